"""Lower a flat program to the bytes of a ``.pte`` file."""

from __future__ import annotations

import builtins
import functools
import math
import operator
import os
import shutil
import sysconfig
import types
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sympy
import torch
from torch import fx

from prepbench._torch_compat import pytree
from prepbench._torch_compat.checks import needed_for
from prepbench._torch_compat.operators import OpOverload, schema_of
from prepbench._torch_compat.sizes import exact_zero_one, is_unbounded
from prepbench.capture.aten.export_program import dynamic_sizes
from prepbench.capture.sizes.dynamic_axes import value_at
from prepbench.errors import TargetError, sentence
from prepbench.internal_errors import raise_if_internal
from prepbench.patching import patched_item
from prepbench.running.source_lines import place_in_stack_trace
from prepbench.targets.decompose import attention, decompose, grouped_products, sized_transposed
from prepbench.targets.dynamic_sizes import computed_from_sizes
from prepbench.targets.executorch.layers import InstructionLayers, instruction_layers, layers_by_handle
from prepbench.targets.executorch.replaced import REPLACED, fit_to_xnnpack
from prepbench.targets.programs import _storage_of, plain_tensor
from prepbench.targets.weights import lowered_program

Program = torch.export.ExportedProgram

# without max_size_factor, the largest of these factors whose sizes need no more than this many bytes
_FACTORS = (64, 32, 16, 8, 4, 2, 1)
_BYTES = 256 * 2**20
_COMPLEX = (torch.complex32, torch.complex64, torch.complex128)


@contextmanager
def _flatc_found() -> Iterator[None]:
    """Make ExecuTorch use its own ``flatc`` during the block.

    Before version 1.5 it looks for it on the path, which lacks the programs of an environment that is not activated,
    such as that of a Jupyter kernel.
    """
    beside = Path(sysconfig.get_path("scripts"), "flatc")
    if shutil.which("flatc") or "FLATC_EXECUTABLE" in os.environ or not beside.exists():
        yield
        return
    environment: Any = os.environ
    with patched_item(environment, "FLATC_EXECUTABLE", str(beside)):
        yield


@_flatc_found()
def to_pte(program: Program, max_size_factor: int | None) -> tuple[bytes, InstructionLayers]:
    """Delegate to XNNPACK, plan memory for the largest sizes, and serialize.

    Returns:
        the file, and of which layers its instructions are.

    Raises:
        TargetError: an operator has neither a kernel of XNNPACK nor a portable one.
    """
    try:
        with exact_zero_one():
            return _to_pte(_rewritten(program), max_size_factor)
    except TargetError as error:
        try:  # without assumptions about sizes of 1 torch asks for more than ExecuTorch has, such as offsets in storage
            return _to_pte(_rewritten(program), max_size_factor)
        except TargetError:
            raise error from error.__cause__


def _to_pte(rewritten: Program, max_size_factor: int | None) -> tuple[bytes, InstructionLayers]:
    from executorch.exir import ExecutorchBackendConfig

    dynamic = [set(sizes) for sizes in dynamic_sizes(rewritten)]
    edge = _edge(rewritten)
    graph = edge.exported_program().graph
    missing = _without_kernel(graph)
    if missing:
        raise TargetError(f"ExecuTorch has no kernel for {_named(missing)}. Choose another target for this model.")
    _check_numbers(graph)
    sizes = LargestSizes(rewritten, max_size_factor or _affordable(graph, rewritten), graph)
    # a pass for each method; ExecuTorch's own reads ranges that lowering has narrowed to what the example needs
    try:
        places = layers_by_handle(edge)
        lowered = edge.to_executorch(ExecutorchBackendConfig(sym_shape_eval_pass={"forward": sizes}))
        written = bytes(lowered.buffer), instruction_layers(edge, lowered, places)
    except (RuntimeError, AssertionError) as error:  # its passes raise untyped errors
        raise_if_internal(error)
        raise TargetError(
            f"ExecuTorch cannot plan memory for the graph: {sentence(error)} Choose another target for this model."
        ) from error
    if dynamic != [set(sizes) for sizes in dynamic_sizes(rewritten)]:
        raise TargetError(
            "ExecuTorch lowers the graph for the sizes of one of the tracing inputs only. Make the dynamic axes static "
            "(DynamicAxes.set), or choose another target."
        )
    return written


def _affordable(graph: fx.Graph, program: Program) -> int:
    """Return the largest factor whose sizes still fit into :data:`_BYTES`."""
    affordable = (factor for factor in _FACTORS if bytes_needed(graph, LargestSizes(program, factor, graph)) <= _BYTES)
    return next(affordable, 1)


def without_kernel(program: Program) -> list[fx.Node]:
    """Return the nodes, after decomposition, without a portable kernel; XNNPACK supports none beyond these."""
    with needed_for("finding operators that ExecuTorch lacks", "executorch"):
        from executorch.exir.tracer import _default_decomposition_table

    return _without_kernel(_rewritten(program).run_decompositions(_default_decomposition_table()).graph)


def _rewritten(program: Program) -> Program:
    # the result of ExecuTorch's own attention has another memory layout than its readers expect
    by_operator = {
        torch.ops.aten.scaled_dot_product_attention.default: attention,
        **grouped_products(program),
        **sized_transposed(),
        **computed_from_sizes(),
        **REPLACED,
    }
    program = decompose(program, by_operator)
    module = program.module(check_guards=False)
    assert isinstance(module, fx.GraphModule)
    _write_to_copies(module)
    _rewrite_size_arithmetic(module)
    fit_to_xnnpack(module)
    # lowering adds guards to the ShapeEnv that programs share, so it gets a copy
    assert program.example_inputs is not None
    return lowered_program(module, program, tuple(map(in_order, program.example_inputs[0])))


def in_order(value: Any) -> Any:
    """Return a tensor in the memory layout of the program's input, whatever the caller's; other values unchanged."""
    if not isinstance(value, torch.Tensor):
        return value
    # it does not support tensor subclasses
    return plain_tensor(value.detach().as_subclass(torch.Tensor))


def _write_to_copies(module: fx.GraphModule) -> None:
    """Redirect in-place changes of inputs or buffers to copies, because a changed input becomes an output."""
    written = {
        _storage_of(value)
        for node in module.graph.nodes
        if isinstance(node.target, OpOverload)
        for argument, value in zip(schema_of(node.target).arguments, node.args, strict=False)
        if argument.is_write and isinstance(value, fx.Node)
    }
    for node in [node for node in written if node.op in ("placeholder", "get_attr")]:
        after = node if node.op == "get_attr" else list(module.graph.find_nodes(op="placeholder"))[-1]
        readers = list(node.users)
        with module.graph.inserting_after(after):
            copy = module.graph.call_function(torch.ops.aten.clone.default, (node,))
        for reader in readers:
            reader.replace_input_with(node, copy)
    module.recompile()


def _rewrite_size_arithmetic(module: fx.GraphModule) -> None:
    """Replace arithmetic on sizes by ExecuTorch's own functions, in place.

    It has no floors, powers, shifts and amounts, its remainders have the sign of the dividend, and it forgets to how
    many digits a number is rounded.
    """
    for function, rewritten in _SIZE_ARITHMETIC.items():
        for node in module.graph.find_nodes(op="call_function", target=function):
            with module.graph.inserting_before(node):
                result = rewritten(lambda *call: module.graph.call_function(call[0], call[1:]), *node.args)
            if result is not None:
                node.replace_all_uses_with(result)
                module.graph.erase_node(node)
    module.recompile()


def _powers(call: Any, x: Any, exponent: Any) -> Any:
    if not isinstance(exponent, int) or not 0 < exponent <= _LARGEST_POWER:
        return None
    return functools.reduce(lambda product, _: call(operator.mul, product, x), range(exponent - 1), x)


def _digits(call: Any, x: Any, digits: Any = None) -> Any:
    if digits is None or not isinstance(x.meta.get("val"), float | torch.SymFloat):
        return None
    moved = call(builtins.round, call(operator.mul, x, 10.0**digits))
    return call(operator.truediv, call(torch.sym_float, moved), 10.0**digits)


def _remainder(call: Any, x: Any, y: Any) -> Any:
    return call(operator.sub, x, call(operator.mul, call(operator.floordiv, x, y), y))


_LARGEST_POWER = 8
_SIZE_ARITHMETIC: dict[Any, Callable[..., Any]] = {
    operator.mod: _remainder,
    operator.pow: _powers,
    builtins.pow: _powers,
    builtins.round: _digits,
    builtins.abs: lambda call, x: call(torch.sym_max, x, call(operator.neg, x)),
    operator.abs: lambda call, x: call(torch.sym_max, x, call(operator.neg, x)),
    math.floor: lambda call, x: call(operator.neg, call(math.ceil, call(operator.neg, x))),
    operator.lshift: lambda call, x, bits: call(operator.mul, x, 2**bits) if isinstance(bits, int) else None,
    operator.rshift: lambda call, x, bits: call(operator.floordiv, x, 2**bits) if isinstance(bits, int) else None,
}


def _check_numbers(graph: fx.Graph) -> None:
    """Raise ``TargetError`` for a function of sizes that ExecuTorch lacks."""
    from executorch.exir.passes import executorch_prim_ops_registry as registry

    known = getattr(registry, "_PYTHON_SYM_OPS_TO_EXECUTORCH_SYM_OPS", None)
    if known is None:
        return
    for node in graph.nodes:
        value = node.meta.get("val")
        is_number = isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)
        if is_number and node.target not in known and isinstance(node.target, _FUNCTIONS):
            place = place_in_stack_trace(node.meta.get("stack_trace"))
            raise TargetError(
                f"ExecuTorch cannot compute {node.target.__name__.removeprefix('_sym_')} of a size"
                + (f", {place[0]}:{place[1]}" if place else "")
                + ". Compute it from whole numbers with +, -, *, //, %, min and max, make this size static "
                "(DynamicAxes.set), or choose OnnxRuntimeDeployment()."
            )


_FUNCTIONS = (types.BuiltinFunctionType, types.FunctionType)


def _edge(program: Program) -> Any:
    with needed_for("lowering to ExecuTorch", "executorch"):
        from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

        from prepbench.targets.executorch.xnnpack_configs import partitioner

    # operators without a kernel are found later, with the module that they are in
    config = EdgeCompileConfig(_check_ir_validity=False)
    try:
        # without gradients, because their rules refuse some operators on complex numbers
        with torch.no_grad():
            return to_edge_transform_and_lower(program, partitioner=[partitioner()], compile_config=config)
    except Exception as error:  # of any type: its passes and XNNPACK's raise untyped errors
        raise_if_internal(error)
        raise TargetError(
            f"ExecuTorch cannot lower the graph: {sentence(error)} Choose another target for this model."
        ) from error


def _without_kernel(graph: fx.Graph) -> list[fx.Node]:
    import executorch.kernels.quantized  # noqa: F401 (makes its operators known)
    from executorch.runtime import Runtime

    known = Runtime.get().operator_registry.operator_names
    return [node for node in graph.nodes if node.op == "call_function" and not _has_kernel(node, known)]


def _has_kernel(node: fx.Node, known: set[str]) -> bool:
    with needed_for("finding operators that ExecuTorch lacks", "executorch"):
        from executorch.exir.dialects.edge.op.api import SchemaKind, to_variant

    # the edge dialect wraps operators of torch
    overload = node.target if isinstance(node.target, OpOverload) else getattr(node.target, "_op", None)
    name = _operator(node)
    if not isinstance(overload, OpOverload) or name in known:
        return True  # the runtime itself computes numbers, delegates and getitem
    if name.startswith(("aten::_assert", "aten::sym_constrain_range")):  # removed before saving
        return True
    values = [node, *node.all_input_nodes]
    if any(getattr(value.meta.get("val"), "dtype", None) in _COMPLEX for value in values):
        return False
    if name == "aten::convolution" and node.meta["val"].ndim > 4:
        return False
    for variant in (overload, _copying(overload)):
        try:
            if variant is not None and to_variant(variant, SchemaKind.out).name() in known:
                return True
        except (RuntimeError, AssertionError):  # no variant that writes into planned memory
            continue
    return False


def _copying(view: OpOverload) -> OpOverload | None:
    """Return the copying variant of a view operator."""
    packet = getattr(torch.ops.aten, f"{view.overloadpacket.__name__}_copy", None)
    return getattr(packet, view.name().partition(".")[2] or "default", None)


def _operator(node: fx.Node) -> str:
    name = getattr(node.target, "name", None)
    return str(name()) if callable(name) else str(node.target)


def _named(nodes: Sequence[fx.Node]) -> str:
    """Return the operators of ``nodes``, each with the module that first calls it."""
    places: dict[str, str] = {}
    for node in nodes:
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        places.setdefault(_operator(node), str(stack[-1][0]) if stack else "")
    return ", ".join(f"{name} (in {place})" if place else name for name, place in places.items())


# The largest values of dynamic sizes, for which ExecuTorch plans memory.


# the number of values of a size that are tried, downwards from the largest
_POINTS = 16


class LargestSizes:
    """A pass that sets each tensor to the largest sizes, for which memory is planned.

    A dynamic size of an input may grow to ``factor`` times its value in the example inputs, or less where the model
    allows less. Sizes computed from it are largest there or slightly below, as with padding to a multiple, so a few
    values are tried. Interval arithmetic would give too much, and not the same for a tensor and its views.

    Args:
        program: the program to lower.
        factor: the largest ratio of dynamic sizes to those of the example inputs.
        graph: in which the sizes occur, for messages.
    """

    def __init__(self, program: Program, factor: int, graph: fx.Graph) -> None:
        assert program.example_inputs is not None
        self._graph = graph
        # a number that is read from a tensor has no lowest value, and sizes are not negative
        ranges = {
            symbol: (int(values.lower) if values.lower.is_Integer else 0, values.upper)
            for symbol, values in program.range_constraints.items()
        }
        for value, sizes in zip(program.example_inputs[0], dynamic_sizes(program), strict=True):
            for dim, size in sizes.items():
                for symbol in size.node.expr.free_symbols:  # one size may be computed from another
                    lower, upper = ranges[symbol]
                    ranges[symbol] = (lower, min(upper, value.shape[dim] * factor))
        bounded = {symbol: (lower, int(upper)) for symbol, (lower, upper) in ranges.items() if not is_unbounded(upper)}
        self._points = [
            {symbol: sympy.Integer(max(lower, upper - below)) for symbol, (lower, upper) in bounded.items()}
            for below in range(_POINTS)
        ]
        self._points.append({symbol: sympy.Integer(max(lower, 1)) for symbol, (lower, _) in bounded.items()})
        self._known: dict[Any, int] = {}

    def __call__(self, graph: fx.GraphModule) -> Any:
        from executorch.exir.pass_base import PassResult
        from executorch.exir.tensor import TensorSpec

        for module in graph.modules():
            for node in module.graph.nodes if isinstance(module, fx.GraphModule) else ():
                for spec in pytree.tree_leaves(node.meta.get("spec")):
                    if isinstance(spec, TensorSpec):
                        spec.shape = [self.largest(size) for size in spec.shape]
                        spec.stride = tuple(self.largest(step) for step in spec.stride)
        return PassResult(graph, True)

    def largest(self, size: Any) -> int:
        """Return the largest value of a size in the graph."""
        if not isinstance(size, torch.SymInt):
            return int(size)
        expression = size.node.expr
        if expression not in self._known:
            # a division by 0 at these sizes means that no such call exists
            found = [value_at(expression, point) for point in self._points]
            values = [value for value in found if value is not None]
            if not all(value.is_Integer for value in values):
                raise TargetError(
                    "ExecuTorch plans memory ahead, and the size of a tensor in the graph depends on data, without a "
                    f"largest value. {self._remedy(expression.free_symbols)} Or choose another target for this model."
                )
            self._known[expression] = max(map(int, values))
        return self._known[expression]

    def _remedy(self, symbols: AbstractSet[Any]) -> str:
        """Return the remedy for a size in the graph: to make the module that computes it a leaf."""
        makes = next((node for node in self._graph.nodes if not symbols.isdisjoint(_symbols(node))), None)
        stack = list((makes.meta.get("nn_module_stack") or {}).values()) if makes is not None else []
        module = str(stack[-1][0]) if stack else ""
        first = "" if module else "Move the lines that make it into a module of their own. "
        name = repr(module) if module else "its name"
        return (
            f"{first}With leaf_modules=[{name}] and fullgraph=False PyTorch runs that module, if the sizes of its "
            "results follow from those of its inputs."
        )


def _symbols(node: fx.Node) -> set[Any]:
    """Return the symbols in a number or in the sizes of a tensor."""
    value = node.meta.get("val")
    sizes = tuple[Any, ...](value.shape) if isinstance(value, torch.Tensor) else (value,)
    return {symbol for size in sizes if isinstance(size, torch.SymInt) for symbol in size.node.expr.free_symbols}


def bytes_needed(graph: fx.Graph, sizes: LargestSizes) -> int:
    """Return the approximate peak bytes of a graph at its largest sizes."""
    last_reader = {source: node for node in graph.nodes for source in node.all_input_nodes}
    held: dict[fx.Node, int] = {}
    most = 0
    for node in graph.nodes:
        if node.op == "call_function" and node.target is not operator.getitem:
            held[node] = sum(_bytes(value, sizes) for value in pytree.tree_leaves(node.meta.get("val")))
        most = max(most, sum(held.values()))
        for source in node.all_input_nodes:
            # a value from getitem is a part of the operator's result
            if last_reader[source] is node and node.target is not operator.getitem:
                held.pop(source.args[0] if source.target is operator.getitem else source, None)
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    return most + sum(_bytes(node.meta.get("val"), sizes) for node in inputs if _is_dynamic(node.meta.get("val")))


def _bytes(value: Any, sizes: LargestSizes) -> int:
    if not isinstance(value, torch.Tensor):
        return 0
    return math.prod(sizes.largest(size) for size in value.shape) * value.element_size()


def _is_dynamic(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and any(
        isinstance(size, torch.SymInt) for size in tuple[Any, ...](value.shape)
    )
