"""The one place that touches private parts of torch, each behind a feature check with a test."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import logging
import math
import re
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.export.graph_signature import ConstantArgument, ExportGraphSignature, OutputKind
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    GuardOnDataDependentSymNode,
    ShapeEnv,
    StatelessSymbolicContext,
)
from torch.utils import _pytree as pytree

GuardCallback = Callable[[Any], None]


class _WatchedShapeEnv(ShapeEnv):
    """A shape environment that reports each new assumption about sizes at the moment the model makes it."""

    def __init__(self, on_guard: GuardCallback, on_question: GuardCallback) -> None:
        # a value read from a tensor becomes an unknown number instead of an error; only branching on it fails
        super().__init__(allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True)
        self._on_guard = on_guard
        self._on_question = on_question

    def evaluate_expr(self, *args: Any, **kwargs: Any) -> Any:
        self._on_question(args[0])
        before = len(self.guards)
        result = super().evaluate_expr(*args, **kwargs)
        for guard in self.guards[before:]:
            self._on_guard(guard.expr)
        return result


def symbolic_fake_mode(on_guard: GuardCallback, on_question: GuardCallback) -> FakeTensorMode:
    """A fake mode with symbolic sizes; real parameters may be used in it as they are.

    ``on_guard`` receives each assumption on sizes (a sympy expression) when it is first made; ``on_question`` every
    question about sizes before it is answered. What they raise appears at the line of the model that asks.
    """
    return FakeTensorMode(allow_non_fake_inputs=True, shape_env=_WatchedShapeEnv(on_guard, on_question))


def is_open_question(mode: FakeTensorMode, expression: Any) -> bool:
    """Whether the answer does not follow from what is known of the sizes already."""
    return mode.shape_env is None or mode.shape_env._maybe_evaluate_static(expression) is None


def fake_input(mode: FakeTensorMode, tensor: torch.Tensor, hints: dict[int, int], name: str) -> torch.Tensor:
    """A fake of ``tensor`` whose dims in ``hints`` are symbolic; each is traced as if it had the hinted size."""
    from torch._dynamo.source import ConstantSource

    device = getattr(tensor, _DEVICE, tensor.device)
    base = tensor
    if device != tensor.device or any(tensor.shape[dim] != size for dim, size in hints.items()):
        base = torch.empty(
            [hints.get(dim, size) for dim, size in enumerate(tensor.shape)], dtype=tensor.dtype, device="meta"
        )
    dims = [DimDynamic.DYNAMIC if dim in hints else DimDynamic.STATIC for dim in range(tensor.dim())]
    context: Any = StatelessSymbolicContext(dynamic_sizes=dims)
    fake: torch.Tensor = mode.from_tensor(base, source=ConstantSource(name), symbolic_context=context)
    if fake.device != device:
        with mode:
            fake = torch.empty_strided(fake.size(), fake.stride(), dtype=fake.dtype, device=device)
    return fake.requires_grad_(tensor.requires_grad) if fake.is_leaf else fake


_DEVICE = "_prepbench_device"


def on_device(meta_tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Mark a meta tensor as standing for one on ``device``; :func:`fake_input` makes fakes there."""
    setattr(meta_tensor, _DEVICE, device)
    return meta_tensor


def device_of(tensor: torch.Tensor) -> torch.device:
    """The device that :func:`on_device` noted, or the tensor's own."""
    device: torch.device = getattr(tensor, _DEVICE, tensor.device)
    return device


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether this tensor has sizes but no data."""
    return isinstance(tensor, FakeTensor)


def in_functorch() -> bool:
    """Whether a function transform (vmap, grad) is running in this thread."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def vmap_module() -> Any:
    """The module whose ``vmap_impl`` runs every ``torch.vmap``."""
    return sys.modules["torch._functorch.apis"]


def fresh_size(mode: FakeTensorMode) -> torch.SymInt:
    """A size about which nothing is known."""
    assert mode.shape_env is not None
    size: torch.SymInt = mode.shape_env.create_unbacked_symint()
    torch._check(size >= 0)
    return size


def symbolic_kernels() -> AbstractContextManager[Any]:
    """Use torch's Python kernels where it has them; the C++ ones of padding and resizing fix symbolic sizes."""
    from torch._dispatch.python import enable_python_dispatcher

    context: AbstractContextManager[Any] = enable_python_dispatcher()
    return context


@contextmanager
def watched_specialisation(on_constant: Callable[[str, int], None]) -> Iterator[None]:
    """Call ``on_constant("x.shape[0]", 4)`` when tracing is about to fix the size of an input; it may raise.

    What it raises appears at the line of the model that asked for the number.
    """
    original = ShapeEnv._set_replacement

    def set_replacement(self: ShapeEnv, symbol: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(target, "is_Integer", False) and symbol in self.backed_var_to_val:
            on_constant(_size_name(self, symbol), int(target))
        return original(self, symbol, target, *args, **kwargs)

    ShapeEnv._set_replacement = set_replacement  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        ShapeEnv._set_replacement = original  # type: ignore[method-assign]


def _size_name(shape_env: ShapeEnv, symbol: Any) -> str:
    sources = getattr(shape_env, "var_to_sources", {}).get(symbol) or [None]
    name = getattr(sources[0], "name", "")
    text = str(name() if callable(name) else name) or str(symbol)
    return re.sub(r"^L\['(\w+)'\]", r"\1", text).replace(".size()", ".shape")


def forget_pending_sizes(values: Any) -> None:
    """Drop unknown sizes and numbers that an abandoned computation left behind on the fake mode of ``values``."""
    from torch._guards import detect_fake_mode

    mode = detect_fake_mode(values)
    if mode is not None and mode.shape_env is not None:
        mode.shape_env.pending_fresh_unbacked_symbols.clear()


def exact_zero_one() -> Any:
    """A context in which tracing assumes nothing about sizes 0 and 1 and records what the model asks about them."""
    from torch.fx.experimental import _config

    return _config.patch(backed_size_oblivious=True)  # type: ignore[attr-defined]


def autocast_functions() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Functions that enter autocast and leave it, for use as nodes of a graph."""
    from torch.amp import autocast_mode

    return autocast_mode._enter_autocast, autocast_mode._exit_autocast


def autocast_state() -> tuple[tuple[str, bool, torch.dtype], ...]:
    """``(device, enabled, dtype)`` of autocast in this thread."""
    return tuple(
        (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in ("cpu", "cuda")
    )


@contextmanager
def quiet_export() -> Iterator[None]:
    """Inside the block, a failing ``torch.export`` only raises: it prints no partial graph and logs no warning."""
    import torch.export._trace as trace
    from torch.fx.experimental import proxy_tensor

    names = (
        "torch.fx.experimental.symbolic_shapes",
        "torch.export",
        "torch._export",
        "torch._dynamo",
        "torch._subclasses",
    )
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    # the module prints through the builtin of this name
    trace.print = lambda *args, **kwargs: None  # type: ignore[attr-defined]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        del trace.print  # type: ignore[attr-defined]
        # this table would keep the last exported graph, and with it the model, alive until the next export
        getattr(proxy_tensor, "_FAKE_TENSOR_ID_TO_PROXY_MAP_FOR_EXPORT", {}).clear()
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def flat_program(program: torch.export.ExportedProgram, names: Sequence[str]) -> torch.export.ExportedProgram:
    """The same program, taking its input leaves as positional arguments and returning a tuple of output leaves.

    ``names`` are identifiers for the input leaves. The graph and its weights are shared; only the description of the
    call changes, so that no class of the user's is needed to run or load it.
    """
    root, *rest = program.module_call_graph
    signature = root.signature
    assert signature is not None
    inputs, outputs = signature.in_spec.num_leaves, signature.out_spec.num_leaves
    flat = dataclasses.replace(
        signature,
        in_spec=pytree.tree_structure(((0,) * inputs, {})),
        out_spec=pytree.tree_structure((0,) * outputs),
        forward_arg_names=list(names),
    )
    result = copy.copy(program)
    result._module_call_graph = [dataclasses.replace(root, signature=flat), *rest]
    if program.example_inputs is not None:
        result._example_inputs = (tuple(pytree.tree_leaves(program.example_inputs)), {})
    return without_guards(result)


def without_guards(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The same program without checks of its inputs, which refer to the original call: ``b['x']`` where a flat program
    has a leaf. torch makes them anew for each program that it derives.
    """
    result = copy.copy(program)
    result._guards_code = []
    return result


def with_graph(program: torch.export.ExportedProgram, graph: torch.fx.GraphModule) -> torch.export.ExportedProgram:
    """The same program computing its results in another way; inputs and constants keep their names."""
    (output,) = graph.graph.find_nodes(op="output")
    specs = [
        dataclasses.replace(spec, arg=dataclasses.replace(spec.arg, name=value.name))
        if isinstance(value, torch.fx.Node)
        else spec
        for spec, value in zip(program.graph_signature.output_specs, output.args[0], strict=True)
    ]
    result = copy.copy(program)
    result._graph_module = graph
    result._graph_signature = dataclasses.replace(program.graph_signature, output_specs=specs)
    return result


def with_own_weights(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The same program with copies of all parameters, buffers and constants."""
    result = copy.copy(program)
    copies: dict[int, Any] = {}

    def own(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in copies:  # tied weights stay tied
            clone = value.detach().clone()
            copies[id(value)] = torch.nn.Parameter(clone, False) if isinstance(value, torch.nn.Parameter) else clone
        return copies[id(value)]

    result._state_dict = {name: own(value) for name, value in program.state_dict.items()}
    result._constants = {name: own(value) for name, value in program.constants.items()}
    return result


def without_example_inputs(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The same program without its example inputs, which ``torch.export.save`` would write as a pickle."""
    result = copy.copy(program)
    result._example_inputs = None
    return result


def forget_compiled() -> None:
    """Make ``torch.cond`` and its like compile anew at their next call; the user's compiled functions are kept."""
    eval_frame: Any = importlib.import_module("torch._dynamo.eval_frame")
    reset_code = getattr(eval_frame, "reset_code", None)
    if reset_code is None:
        torch._dynamo.reset()
        return
    for name, module in list(sys.modules.items()):
        if name.startswith("torch._higher_order_ops."):
            for function in [value for value in vars(module).values() if isinstance(value, types.FunctionType)]:
                for code in _codes_in(function.__code__):
                    reset_code(code)


def _codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes_in(constant)


def mark_module_stack() -> Callable[[], None]:
    """A function that takes export's stack of entered modules back to what it is now, after an exception was caught."""
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    mode = get_proxy_mode()
    stack = getattr(getattr(mode, "tracer", None), "module_stack", None)
    depth = len(stack) if stack is not None else 0

    def restore() -> None:
        while stack is not None and len(stack) > depth:
            stack.popitem(last=True)

    return restore


@contextmanager
def seen_as_exporting() -> Iterator[None]:
    """Inside the block, ``torch.compiler`` says that a model is being compiled and exported."""
    flags = [name for name in ("_is_compiling_flag", "_is_exporting_flag") if hasattr(torch.compiler, name)]
    before = {name: getattr(torch.compiler, name) for name in flags}
    try:
        for name in flags:
            setattr(torch.compiler, name, True)
        yield
    finally:
        for name, value in before.items():
            setattr(torch.compiler, name, value)


@contextmanager
def conversions_that_change_nothing_skipped() -> Iterator[None]:
    """Inside the block, ``module.to(...)`` returns at once when every tensor of the module is as asked for already.

    Tensors without data cannot be put in place of parameters, so that even such a call would fail while tracing.
    """
    original = torch.nn.Module.to

    def to(self: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        wanted: tuple[Any, ...] = torch._C._nn._parse_to(*args, **kwargs)
        device, dtype, _, memory_format = wanted
        tensors = [*self.parameters(), *self.buffers()]
        same = memory_format is None and all(
            (device is None or device in (tensor.device, torch.device(tensor.device.type)))
            and (dtype is None or tensor.dtype == dtype or not (tensor.is_floating_point() or tensor.is_complex()))
            for tensor in tensors
        )
        return self if same else original(self, *args, **kwargs)

    torch.nn.Module.to = to  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.nn.Module.to = original  # type: ignore[method-assign]


SizeCallback = Callable[[Any, dict[Any, str]], None]


@contextmanager
def watched_sizes(on_guard: SizeCallback, on_question: SizeCallback | None = None) -> Iterator[None]:
    """Call ``on_guard(expression, names)`` when tracing assumes something about sizes.

    ``on_question`` is called before an open question is answered; it may raise, and then nothing is assumed. What is
    raised appears at the line of the model that asked. ``names`` gives each symbol's size, such as ``"x.shape[0]"``.
    """
    original = ShapeEnv.evaluate_expr

    def evaluate_expr(self: ShapeEnv, *args: Any, **kwargs: Any) -> Any:
        def names(expression: Any) -> dict[Any, str]:
            return {symbol: _size_name(self, symbol) for symbol in expression.free_symbols}

        expression, before = args[0], len(self.guards)
        is_open = on_question and getattr(expression, "free_symbols", None)
        if on_question and is_open and self._maybe_evaluate_static(expression) is None:
            on_question(expression, names(expression))
        result = original(self, *args, **kwargs)
        for guard in self.guards[before:]:
            on_guard(guard.expr, names(guard.expr))
        return result

    ShapeEnv.evaluate_expr = evaluate_expr  # type: ignore[method-assign]
    try:
        yield
    finally:
        ShapeEnv.evaluate_expr = original  # type: ignore[method-assign]


def needs_data(error: Exception) -> bool:
    """Whether a fake tensor was asked for its values, so that no other way of tracing can succeed."""
    return isinstance(error, GuardOnDataDependentSymNode | DataDependentOutputException | DynamicOutputShapeException)


def with_outputs(program: torch.export.ExportedProgram, places: Sequence[int]) -> torch.export.ExportedProgram:
    """A flat program that returns only the user outputs at ``places``; what it changes in place stays. Weights are
    shared.
    """
    signature = program.graph_signature
    kinds = [spec.kind is OutputKind.USER_OUTPUT for spec in signature.output_specs]
    order = [i for i, is_user in enumerate(kinds) if is_user]
    kept = [i for i, is_user in enumerate(kinds) if not is_user] + [order[place] for place in places]
    module = torch.fx.GraphModule(program.graph_module, copy.deepcopy(program.graph_module.graph))
    output = next(iter(reversed(module.graph.nodes)))
    output.args = (tuple(output.args[0][i] for i in kept),)
    module.recompile()
    result = copy.copy(program)
    result._graph_module = module
    result._graph_signature = ExportGraphSignature(signature.input_specs, [signature.output_specs[i] for i in kept])
    root, *rest = program.module_call_graph
    assert root.signature is not None
    flat = dataclasses.replace(root.signature, out_spec=pytree.tree_structure((0,) * len(places)))
    result._module_call_graph = [dataclasses.replace(root, signature=flat), *rest]
    return result


def constant_outputs(program: torch.export.ExportedProgram) -> dict[int, Any]:
    """The user outputs that are no results of the graph but values known beforehand, by place."""
    specs = [spec for spec in program.graph_signature.output_specs if spec.kind is OutputKind.USER_OUTPUT]
    return {i: spec.arg.value for i, spec in enumerate(specs) if isinstance(spec.arg, ConstantArgument)}


def register_quantized_operators() -> None:
    """Make the operators of converted graphs known to torch, as loading such a graph needs."""
    importlib.import_module("torch.ao.quantization.fx._decomposed")


@contextmanager
def graph_breaks_noted() -> Iterator[list[Exception]]:
    """Inside the block, every graph break of dynamo is added to the list, as its exception."""
    from torch._dynamo import symbolic_convert

    found: list[Exception] = []
    base: Any = next(
        kind for kind in vars(symbolic_convert).values() if isinstance(kind, type) and "log_graph_break" in vars(kind)
    )
    original = base.log_graph_break

    def log_graph_break(self: Any, code_options: Any, reason: Any, exc: Any, *args: Any, **kwargs: Any) -> None:
        if getattr(exc, "real_stack", None) is None:
            exc.real_stack = torch._guards.TracingContext.extract_stack()
        found.append(exc)

    base.log_graph_break = log_graph_break
    try:
        yield found
    finally:
        base.log_graph_break = original


def run_in_dynamo(model: Callable[..., Any], args: Any, kwargs: Any, *, fullgraph: bool) -> None:
    """Run ``model`` through dynamo with dynamic shapes, and with a backend that runs each graph as it is.

    What was compiled is forgotten afterwards; other compiled functions stay.

    Raises:
        Exception: with ``fullgraph``, what dynamo raises where the graph breaks.
    """
    from torch._C._dynamo import eval_frame
    from torch._dynamo import convert_frame

    before = {id(reference()) for reference in convert_frame.input_codes.seen}
    loggers = [logging.getLogger(name) for name in ("torch._dynamo", "torch.fx.experimental.symbolic_shapes")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with torch._dynamo.config.patch(recompile_limit=10_000, accumulated_recompile_limit=100_000):
            torch.compile(model, backend=lambda graph, inputs: graph.forward, fullgraph=fullgraph, dynamic=True)(
                *args, **kwargs
            )
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        for reference in convert_frame.input_codes.seen:
            code = reference()
            if code is not None and id(code) not in before:
                eval_frame.reset_code(code)


def without_onnx_translation(program: torch.export.ExportedProgram) -> list[torch.fx.Node]:
    """The nodes, after decomposition, whose operator torch's ONNX exporter has no translation for; it leaves assertions
    out.
    """
    from torch.onnx._internal.exporter import _decomp, _dispatching, _registration

    logger = logging.getLogger(_registration.__name__)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        registry = _registration.ONNXRegistry.from_torchlib()
    finally:
        logger.setLevel(level)
    table = _decomp.create_onnx_friendly_decomposition_table(set(_decomp.get_onnx_implemented_overloads(registry)))
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        graph = program.run_decompositions(table).graph
    return [
        node
        for node in graph.nodes
        if node.op == "call_function"
        and isinstance(node.target, torch._ops.OpOverload | torch._ops.HigherOrderOperator)
        and not str(node.target).startswith("aten._assert")
        and _dispatching.dispatch(node, registry)[0] is None
    ]


def taking_tuple(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], rest: Any) -> Any:
    """``function`` with its ``*args`` as one ordinary last parameter, so that a proxy can stand for the tuple.

    Keyword-only parameters become positional, in front of it. ``args``, ``kwargs`` and ``rest`` are what it will get.

    Raises:
        TypeError: the function has no Python code of its own (it is wrapped, or built in).
    """
    from torch.fx._symbolic_trace import _patch_function

    plain: Any = getattr(function, "__func__", function)
    code = getattr(plain, "__code__", None)
    if code is None or not code.co_flags & inspect.CO_VARARGS or code.co_flags & inspect.CO_VARKEYWORDS:
        raise TypeError(
            "forward takes *args, and nothing says how many there are: missing 1 required positional argument; pass "
            "inputs=[...]."
        )
    own = [function.__self__] if hasattr(function, "__self__") else []
    patched = _patch_function(plain, len(own) + len(args) + len(kwargs) + 1)
    return lambda *given: patched(*own, *given)


def wrapped_functions() -> list[tuple[dict[str, Any], str, Callable[..., Any]]]:
    """What ``torch.fx.wrap`` was called for: the namespace, the name in it, and the function."""
    import builtins

    from torch.fx._symbolic_trace import _wrapped_fns_to_patch

    found = []
    for (_, name), namespace in list(_wrapped_fns_to_patch.items()):
        function = namespace.get(name, getattr(builtins, name, None))
        if callable(function):
            found.append((namespace, name, function))
    return found


# as they are before tracing replaces them
_FLOOR, _CEIL, _TRUNC = math.floor, math.ceil, math.trunc
_SQRT = getattr(torch, "sym_sqrt", None) or torch._sym_sqrt  # type: ignore[attr-defined]


def number_analysis(call: Callable[..., Any]) -> Any:
    """How sympy expressions over sizes are computed in a graph.

    Args:
        call: calls a function on numbers, some of which may be proxies.
    """
    from torch.utils._sympy.reference import PythonReferenceAnalysis

    class Numbers(PythonReferenceAnalysis):
        """Torch's own way, and the functions that do not take proxies."""

        @staticmethod
        def int_truediv(a: Any, b: Any) -> Any:
            return a / b

        @staticmethod
        def sqrt(x: Any) -> Any:
            return call(_SQRT, x)

        @staticmethod
        def to_dtype(x: Any, dtype: torch.dtype) -> Any:
            return call(torch.sym_float, x) if dtype.is_floating_point else x

        @staticmethod
        def floor(x: Any) -> Any:
            return call(torch.sym_float, call(_FLOOR, x))

        @staticmethod
        def ceil(x: Any) -> Any:
            return call(torch.sym_float, call(_CEIL, x))

        @staticmethod
        def floor_to_int(x: Any, dtype: Any) -> Any:
            return call(_FLOOR, x)

        @staticmethod
        def ceil_to_int(x: Any, dtype: Any) -> Any:
            return call(_CEIL, x)

        @staticmethod
        def trunc_to_int(x: Any, dtype: Any) -> Any:
            return call(_TRUNC, x)

        @staticmethod
        def round_to_int(a: Any, dtype: Any) -> Any:
            return call(round, a)

        @staticmethod
        def round_decimal(a: Any, b: Any) -> Any:
            return call(round, a, b)

    return Numbers


@dataclasses.dataclass(frozen=True)
class OptimizedCall:
    """The call of a compiled function that dynamo is working for.

    Attributes:
        function: what was given to ``torch.compile``.
        args: of the call.
        kwargs: of the call.
        place: the code whose graph dynamo has just traced: its file, name and first line.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    place: tuple[str, str, int]


def optimized_call() -> OptimizedCall | None:
    """The innermost call of a ``torch.compile``d function on this thread's stack; None when there is none.

    Called from a backend, or from the function that a backend returned: dynamo tells neither what it belongs to.
    """
    from torch._dynamo import eval_frame

    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        found = frame.f_locals if frame.f_code.co_filename == eval_frame.__file__ else {}
        if {"fn", "args", "kwargs", "callback"} <= found.keys():  # a disabled function has no callback
            return OptimizedCall(_compiled_callable(found["fn"]), found["args"], found["kwargs"], _traced_place())
        frame = frame.f_back
    return None


def _compiled_callable(function: Any) -> Callable[..., Any]:
    """The user's module or function, without the functions that ``torch.compile`` puts around it."""
    inner = vars(function).get("__wrapped__") if isinstance(function, types.FunctionType) else None
    if isinstance(inner, torch.nn.Module):  # torch's own layers get a frame of their own
        return inner
    owner = getattr(function, "__self__", None)
    own = ("__call__", "_call_impl", "_wrapped_call_impl", "forward")
    if isinstance(owner, torch.nn.Module) and getattr(function, "__name__", "") in own:
        return owner
    return function  # type: ignore[no-any-return]


def _traced_place() -> tuple[str, str, int]:
    from torch._dynamo.symbolic_convert import InstructionTranslator

    try:
        code = InstructionTranslator.current_tx().output.root_tx.f_code
    except Exception:  # outside of dynamo there is no such thing
        return ("", "", 0)
    return (code.co_filename, code.co_name, code.co_firstlineno)


@dataclasses.dataclass(frozen=True)
class GraphInput:
    """One input of a graph of dynamo.

    Attributes:
        name: dynamo's name for where it comes from, such as ``"L_x_"``.
        is_tensor: a tensor that was one before; a Python number may come as a tensor, too.
        size_of: for a number that is the size of another input: the place of that input, and the dim.
        symbolic: for a tensor the dims that may vary.
    """

    name: str
    is_tensor: bool
    size_of: tuple[int, int] | None = None
    symbolic: tuple[int, ...] = ()


def graph_inputs(graph: torch.fx.GraphModule) -> tuple[GraphInput, ...]:
    """The inputs of a graph of dynamo, in the order in which it is called with them."""
    nodes = graph.graph.find_nodes(op="placeholder")
    values = [node.meta.get("example_value") for node in nodes]
    sizes: dict[Any, tuple[int, int]] = {}
    for place, value in enumerate(values):
        shape: tuple[Any, ...] = tuple(value.shape) if isinstance(value, torch.Tensor) else ()
        for dim, size in enumerate(shape):
            if _may_vary(size):
                sizes.setdefault(size.node.expr, (place, dim))
    result = []
    for node, value in zip(nodes, values, strict=True):
        name = str(node.target)
        if isinstance(value, torch.Tensor):
            is_number = bool(getattr(node.meta.get("grapharg"), "pass_arg_as_tensor", False))
            dims = tuple(dim for dim, size in enumerate(value.shape) if _may_vary(size))
            result.append(GraphInput(name, not is_number, symbolic=dims))
        else:
            expression = value.node.expr if isinstance(value, torch.SymInt) else None
            result.append(GraphInput(name, False, sizes.get(expression)))
    return tuple(result)


def _may_vary(size: Any) -> bool:
    # what tracing has fixed is still a SymInt, of a number
    return isinstance(size, torch.SymInt) and bool(size.node.expr.free_symbols)


def with_backend_options(options: Any, kind: Callable[[Any], Any]) -> Any:
    """``kind(options)``, which also takes the place of ``options`` in the backend that dynamo compares with others.

    Called from the backend; comparing dicts that hold tensors raises.
    """
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        wrapper = frame.f_locals.get("self")
        kept = getattr(wrapper, "kwargs", None)
        if type(wrapper).__name__ == "_TorchCompileWrapper" and kept and kept.get("options") is options:
            kept["options"] = kind(options)
            return kept["options"]
        frame = frame.f_back
    return options


def compiled_apart(function: Callable[..., Any], backend: Callable[..., Any], *, dynamic: bool | None) -> Any:
    """``torch.compile``, counted apart from other compiles of the same code where torch can do that.

    Numbers that are no sizes are constants of its graphs.
    """
    apart = "isolate_recompiles" in inspect.signature(torch.compile).parameters
    keywords: dict[str, Any] = {"isolate_recompiles": True} if apart else {}
    optimized = torch.compile(function, backend=backend, dynamic=dynamic, **keywords)

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._dynamo.config.patch(
            recompile_limit=10_000,
            accumulated_recompile_limit=100_000,
            specialize_int=True,
            specialize_float=True,
        ):
            return optimized(*args, **kwargs)

    return call


@contextmanager
def compiled_calls_off(root: torch.nn.Module) -> Iterator[None]:
    """Inside the block, modules on which ``module.compile()`` was called run as they were before."""
    found = [module for module in root.modules() if vars(module).get("_compiled_call_impl") is not None]
    kept = [module._compiled_call_impl for module in found]
    for module in found:
        module._compiled_call_impl = None
    try:
        yield
    finally:
        for module, implementation in zip(found, kept, strict=True):
            module._compiled_call_impl = implementation
