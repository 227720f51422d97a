"""Compute a half-precision program in float32, for targets without kernels of that type."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import InputKind, OutputKind

from prepbench._torch_compat import pytree
from prepbench._torch_compat.operators import OpOverload
from prepbench._torch_compat.programs import copied_graph, with_graph, with_tensors

Program = torch.export.ExportedProgram
Dtypes = Collection[torch.dtype]

HALF_TYPES = frozenset({torch.float16, torch.bfloat16})
_aten = torch.ops.aten
# operators that take any floating type
_NAMESPACES = ("aten", "prims", "prepbench")


def computed_in_float32(program: Program, dtypes: Dtypes, weights: Collection[str] = ()) -> Program:
    """Return the same program with every value of one of these types computed in float32.

    Inputs and results keep their types: they are cast at the border. Operators of other libraries keep theirs too,
    because they need not support float32, and so does what is there to round (:func:`is_rounding`). What makes whole
    numbers or truth values reads operands that are rounded to their type, because a step shows the least difference.

    Args:
        program: not changed. Its parameters and constants of these types are copied.
        dtypes: floating types; where the program has none of them, it is returned as it is.
        weights: names of placeholders of parameters that keep their type and their memory: all that have it, where
            several do. Each use casts them, so that one after the other is in float32 while the program runs.
    """
    values = [node.meta.get("val") for node in program.graph.nodes]
    if not any(_type_of(value, dtypes) for value in pytree.tree_leaves(values)):
        return program
    inputs = [spec.kind is InputKind.USER_INPUT for spec in program.graph_signature.input_specs]
    results = [spec.kind is OutputKind.USER_OUTPUT for spec in program.graph_signature.output_specs]
    graph = _rewritten(program.graph_module, dtypes, inputs, results, weights)
    parameters = program.graph_signature.inputs_to_parameters
    kept = {parameters[name] for name in weights}
    return with_tensors(with_graph(program, graph), _to_float32(dtypes), kept)


def _to_float32(dtypes: Dtypes) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: tensor.to(torch.float32) if tensor.dtype in dtypes else tensor


def _rewritten(
    module: fx.GraphModule,
    dtypes: Dtypes,
    inputs: Sequence[bool] = (),
    results: Sequence[bool] = (),
    weights: Collection[str] = (),
) -> fx.GraphModule:
    """Return a copy of a graph, computed in float32.

    Args:
        module: the graph.
        dtypes: the types to replace.
        inputs: for each placeholder, whether it keeps its type.
        results: for each value that the graph returns, whether it keeps its type.
        weights: names of placeholders that keep their type and are cast where they are read.
    """
    copy = fx.GraphModule(module, copied_graph(module.graph))
    for name, inner in list(copy.named_children()):
        if isinstance(inner, fx.GraphModule):  # the branches of torch.cond and their like
            copy.add_submodule(name, _rewritten(inner, dtypes))
    types: dict[fx.Node, torch.dtype] = {}  # the original metadata of values that are now float32
    placeholders = copy.graph.find_nodes(op="placeholder")
    keepers = set(itertools.compress(placeholders, inputs))
    # values that are as they were in their type; those that a branch gets may have been computed
    exact = set(placeholders) if inputs else set()
    stepping = _leading_to_steps(copy.graph)
    for node in list(copy.graph.nodes):
        if node.op == "output":
            _cast_results(node, results, types)
            continue
        if node.op == "placeholder" and node.name in weights:
            _cast_uses(node, dtypes)
            continue
        if _type_of(node.meta.get("val"), dtypes) and is_rounding(node):
            exact.update(_cast_result(node, dtypes, types))
            continue
        if node in keepers or _keeps_type(node, keepers):
            keepers.add(node)
            _cast_operands(node, types)
            exact.update(_cast_result(node, dtypes, types))
            continue
        if node.target in _SAME_VALUES and node.args[0] in exact:
            exact.add(node)
        dtype = _type_of(node.meta.get("val"), dtypes)
        readers = [user for user in node.users if user in stepping] if dtype and node not in exact else []
        if dtype:
            types[node] = dtype
        _ask_for_float32(node, dtypes)
        if readers:
            _round_for(node, readers, types)
    copy.recompile()
    return copy


_CASTS = frozenset({_aten.to.dtype, _aten._to_copy.default, _aten.type_as.default})
_SAME_VALUES = frozenset({
    _aten.view.default, _aten.reshape.default, _aten.permute.default, _aten.transpose.int, _aten.t.default,
    _aten.unsqueeze.default, _aten.squeeze.dim, _aten.expand.default, _aten.clone.default, _aten.contiguous.default,
    _aten.slice.Tensor, _aten.select.int, _aten.flatten.using_ints, _aten.detach.default,
})  # fmt: skip


def is_rounding(node: fx.Node) -> bool:
    """Return whether a cast to a half-precision type is there to round: all that reads its result casts it again.

    A cast to compute in that type, as in models of that type and in mixed precision, is none.
    """
    if not _casts(node) or node.meta["val"].dtype not in HALF_TYPES:
        return False
    rest, is_cast_again = list(node.users), False
    while rest:
        user = rest.pop()
        if user.target in _SAME_VALUES:
            rest += user.users
        elif _casts(user):
            is_cast_again = True
        elif user.op != "output" and user.target is not _aten._assert_tensor_metadata.default:
            return False
    return is_cast_again


def _casts(node: fx.Node) -> bool:
    """Return whether a node casts one floating type to another."""
    if node.op != "call_function" or node.target not in _CASTS or not isinstance(node.args[0], fx.Node):
        return False
    before, after = node.args[0].meta.get("val"), node.meta.get("val")
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
        return False
    return before.is_floating_point() and after.is_floating_point() and before.dtype != after.dtype


# whole numbers in a floating type, and numbers that Python reads
_STEPS = frozenset(
    {"floor", "ceil", "round", "trunc", "fix", "frac", "remainder", "fmod", "floor_divide", "item",
     "_local_scalar_dense"}
)  # fmt: skip
_ARITHMETIC = frozenset({"add", "sub", "rsub", "mul", "div", "neg", "abs", "clamp"})


def _leading_to_steps(graph: fx.Graph) -> set[fx.Node]:
    """Return the nodes that make steps of their operands, or lead to such nodes in a type that is not rounded."""
    found: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        value = node.meta.get("val")
        is_wide = isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype not in HALF_TYPES
        passes_on = is_wide and (_casts(node) or node.target in _SAME_VALUES or _name(node) in _ARITHMETIC)
        if _makes_steps(node) or (passes_on and not found.isdisjoint(node.users)):
            found.add(node)
    return found


def _name(node: fx.Node) -> str:
    return str(getattr(node.target, "overloadpacket", "")).rpartition(".")[2]


def _makes_steps(node: fx.Node) -> bool:
    """Return whether an operator makes whole numbers or truth values of the values of its operands."""
    if node.op != "call_function" or node.target is operator.getitem:
        return False
    name = _name(node)
    if name in _STEPS or node.kwargs.get("rounding_mode"):
        return True
    if name.endswith("_like") or name.startswith("new_"):  # of the form alone
        return False
    results = [node.meta.get("val")]
    if not isinstance(results[0], torch.Tensor):  # of several results, those that are read
        results = [user.meta.get("val") for user in node.users if user.target is operator.getitem and user.users]
    return any(
        isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex()) for value in results
    )


def _round_for(node: fx.Node, readers: Sequence[fx.Node], types: dict[fx.Node, torch.dtype]) -> None:
    """Let some readers of a float32 value read it rounded to its original type."""
    with node.graph.inserting_after(node):
        rounded = _cast(node, types[node], node)
    with node.graph.inserting_after(rounded):
        wide = _cast(rounded, torch.float32, node)
    types[wide] = types[node]
    for reader in readers:
        reader.replace_input_with(node, wide)


def _keeps_type(node: fx.Node, keepers: Collection[fx.Node]) -> bool:
    if node.target is operator.getitem:
        return node.args[0] in keepers
    if node.target is _aten.view.dtype:  # reinterprets the bits
        return True
    return isinstance(node.target, OpOverload) and node.target.namespace not in _NAMESPACES


def _ask_for_float32(node: fx.Node, dtypes: Dtypes) -> None:
    """Replace the types among the arguments of a node, and mark its result as float32."""
    if getattr(node.target, "__name__", "") == "wrap_with_autocast" and node.args[1] in dtypes:
        node.update_arg(2, False)  # its dtype argument would keep the computation in that type
        return
    node.args, node.kwargs = pytree.tree_map(
        lambda value: torch.float32 if isinstance(value, torch.dtype) and value in dtypes else value,
        (node.args, node.kwargs),
    )
    cast = _to_float32(dtypes)
    node.meta["val"] = pytree.tree_map(
        lambda value: cast(value) if isinstance(value, torch.Tensor) else value, node.meta.get("val")
    )


def _cast_operands(node: fx.Node, types: dict[fx.Node, torch.dtype]) -> None:
    """Restore the operands' original types for a node that keeps its type."""
    for source in node.all_input_nodes:
        if source in types:
            with node.graph.inserting_before(node):
                node.replace_input_with(source, _cast(source, types[source], node))


def _cast_result(node: fx.Node, dtypes: Dtypes, types: dict[fx.Node, torch.dtype]) -> Sequence[fx.Node]:
    """Cast the result of a node that keeps its type to float32; return the cast, if it has that type."""
    dtype = _type_of(node.meta.get("val"), dtypes)
    if dtype is None:
        return ()
    with node.graph.inserting_after(node):
        cast = _cast(node, torch.float32, node)
    node.replace_all_uses_with(cast, lambda user: user is not cast)
    types[cast] = dtype
    return (cast,)


def _cast_uses(node: fx.Node, dtypes: Dtypes) -> None:
    """Give each reader of a weight its own cast, which is freed when the reader is done."""
    if _type_of(node.meta.get("val"), dtypes) is not None:
        for user in list(node.users):
            with node.graph.inserting_before(user):
                user.replace_input_with(node, _cast(node, torch.float32, user))


def _cast_results(output: fx.Node, results: Sequence[bool], types: dict[fx.Node, torch.dtype]) -> None:
    """Cast results back to their original types."""
    if not any(results):
        return
    values: Any = output.args[0]
    with output.graph.inserting_before(output):
        output.args = (
            tuple(
                _cast(value, types[value], value) if keeps and value in types else value
                for value, keeps in zip(values, results, strict=True)
            ),
        )


def _cast(source: fx.Node, dtype: torch.dtype, place: fx.Node) -> fx.Node:
    """Return a cast at the insertion point, with the metadata of ``place``."""
    cast = source.graph.call_function(_aten.to.dtype, (source, dtype))
    cast.meta = {key: place.meta[key] for key in ("nn_module_stack", "stack_trace") if key in place.meta}
    cast.meta["val"] = source.meta["val"].to(dtype)
    return cast


def _type_of(value: Any, dtypes: Dtypes) -> torch.dtype | None:
    return value.dtype if isinstance(value, torch.Tensor) and value.dtype in dtypes else None
