"""One run of a forward on fake tensors, in which every torch call becomes a node."""

from __future__ import annotations

import keyword
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import fx
from torch.overrides import TorchFunctionMode

from prepbench._torch_compat.dynamo import forget_compiled
from prepbench._torch_compat.exporting import conversions_that_change_nothing_skipped, seen_as_exporting
from prepbench._torch_compat.fake_tensors import (
    device_of,
    fresh_size,
    is_fake,
    symbolic_kernels,
    without_data,
)
from prepbench._torch_compat.modes import OperatorMode, autocast_state, in_functorch
from prepbench._torch_compat.operators import HigherOrderOperator
from prepbench._torch_compat.tensors import memory_of, version_of
from prepbench.capture.modules.assumptions import READS, Questions
from prepbench.capture.modules.fake_inputs import FakeInputs, fake_inputs
from prepbench.capture.modules.graph_builder import GraphBuilder, has_side_effect, spell
from prepbench.capture.modules.interception import (
    Regions,
    code_held_by,
    intercepted,
    symbolic_conversions,
    types_as_in_eager,
)
from prepbench.capture.modules.sample_runs import SampleRuns
from prepbench.capture.modules.trace_result import (
    Granted,
    IsLeaf,
    ModuleVisit,
    TraceResult,
)
from prepbench.capture.sizes.recurrent import RecurrentLayers, assume_total_length
from prepbench.inputs import Sample
from prepbench.objects import flatten as structures
from prepbench.objects.restore import replaced_buffers, restored
from prepbench.running.recorded_calls import wrapped_name
from prepbench.running.source_lines import source_of_frame
from prepbench.running.unchanged import numbers_kept


class RunsNeeded(BaseException):
    """Tracing needs the recorded results of a failed part; no ``Exception``, so that no model swallows it."""


@dataclass(frozen=True)
class TraceOptions:
    """The options of one tracing run.

    Attributes:
        base: the sample whose sizes decide.
        conversions: whether ``int(size)`` and ``float(size)`` in the model's code stay symbolic.
        kernels: whether to use torch's Python kernels, which take symbolic sizes.
        exporting: whether the model sees itself as being exported by ``torch.export``.
        strict: whether branches on sizes must go the same way for all samples.
    """

    base: int
    conversions: bool = False
    kernels: bool = False
    exporting: bool = False
    strict: bool = False


class ValueRun:
    """One tracing run; lives as long as one call of :meth:`trace`."""

    def __init__(self, root: Any, is_leaf: IsLeaf, runs: SampleRuns, prefix: str) -> None:
        self.function = root
        self.root = root if isinstance(root, torch.nn.Module) else torch.nn.Module()
        self.is_leaf, self.runs, self.prefix = is_leaf, runs, prefix
        # ids are valid keys, because root keeps its modules and tensors alive during the run
        self.paths = {id(module): name for name, module in self.root.named_modules()}
        self.numbers: Counter[str] = Counter()
        self.visits: list[ModuleVisit] = []
        self.thread = threading.get_ident()
        self.paused = 0
        self.below = 0
        self.reading = False
        self.compiled_branches = False
        self.returned: list[Granted] = []
        self._attributes: dict[int, str] | None = None
        names = {id(t): name for name, t in (*self.root.named_parameters(), *self.root.named_buffers())}
        self.builder = GraphBuilder(names, self._attribute_name)
        self.regions = Regions(lambda target, args: self.builder.add_prepared("call_function", target, args, {}, None))
        self.leaves = RepeatedLayers(self.call_quietly)
        self.questions = Questions(self)
        self.mode = self.questions.mode

    @property
    def active(self) -> bool:
        """Whether the model's own code runs now, whose calls are recorded."""
        return not self.paused and not self.below and threading.get_ident() == self.thread

    @property
    def inside(self) -> str:
        """The name of the module whose code runs now."""
        return self.builder.scope[-1][0] if self.builder.scope else ""

    def is_number(self, value: Any) -> bool:
        """Return whether a symbolic value is derived from an integer inside an input."""
        return self.questions.is_number(value)

    def trace(self, samples: Sequence[Sample], options: TraceOptions) -> TraceResult:
        """Run the forward once and return its graph, assumptions and error."""
        result = TraceResult(self.builder.graph, self.visits, None, self.builder.constants)
        with ExitStack() as stack:
            # restored() is outside of everything that runs the model: the forward may write flags and fake tensors into
            # it
            stack.enter_context(numbers_kept())
            buffers = stack.enter_context(restored(self.root, self.function))
            call = fake_inputs(self.function, samples, self.mode, options.base)
            result.sizes = call.sizes
            self.questions.sizes, self.questions.strict = call.sizes, options.strict
            self._add_placeholders(call)
            try:
                with ExitStack() as around:
                    around.enter_context(types_as_in_eager(self._code()))
                    if options.conversions:
                        around.enter_context(symbolic_conversions(self._code()))
                    if options.kernels:
                        around.enter_context(symbolic_kernels())
                    if options.exporting:
                        around.enter_context(seen_as_exporting())
                    self._forward(call, buffers)
            except Exception as error:
                result.error, result.graph = error, fx.Graph()
            finally:
                if self.compiled_branches:
                    # torch.cond compiled its branches under our modes; eager calls must not meet that code again
                    forget_compiled()
        result.returned = self.returned
        result.known = self.questions.known
        result.assumptions = [a for a in self.questions.assumptions if a.expression.free_symbols <= set(result.sizes)]
        return result

    def _code(self) -> list[Any]:
        """Return the objects whose code runs: the root function, and the classes and functions of the modules."""
        return [self.function, *code_held_by(self.root)]

    def _forward(self, call: FakeInputs, buffers: dict[str, torch.Tensor]) -> None:
        # The fake mode is outermost, so that it gets what the two recording modes pass on. TorchFunctions is innermost
        # and sees the calls as the model writes them; Operators sees what is left below a function transform.
        with (
            self.mode,
            conversions_that_change_nothing_skipped(),
            intercepted(self),
            Operators(self),
            TorchFunctions(self),
        ):
            output = self.function(*call.args, **call.kwargs)
            # from here on prepbench itself calls torch; pause for good, the run ends with this block
            self.paused += 1
            self.regions.follow()
            self._keep_buffers(buffers)
            self._output(output)

    def _add_placeholders(self, call: FakeInputs) -> None:
        for name, value in zip(call.names, call.values, strict=True):
            safe = f"{name}_" if keyword.iskeyword(name) else name
            node = self.builder.create("placeholder", safe)
            node.meta["val"] = value
            node.meta["source"] = None
            self.builder.bind(value, node)

    def _keep_buffers(self, before: dict[str, torch.Tensor]) -> None:
        # self.steps = self.steps + 1 changes the model's state, so the graph must write it back
        for old, new in replaced_buffers(self.root, before):
            if is_fake(new):
                self.builder.add("call_method", "copy_", (old, new), {}, None)

    def _output(self, output: Any) -> None:
        node = self.builder.create("output", "output", (self.builder.argument(output),))
        node.meta["val"] = output
        node.meta["source"] = None

    def _attribute_name(self, tensor: Any) -> str | None:
        if self._attributes is None:
            self._attributes = {
                id(value): f"{path}.{name}" if path else name
                for path, module in self.root.named_modules()
                for name, value in vars(module).items()
                if isinstance(value, torch.Tensor)
            }
        return self._attributes.get(id(tensor))

    # -- operations

    def call_quietly(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call ``function`` on fakes without recording it."""
        self.paused += 1
        try:
            return function(*args, **kwargs)
        finally:
            self.paused -= 1

    def call_below(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call ``function`` and record it one level below, as plain operators on plain tensors."""
        self.below += 1
        try:
            return function(*args, **kwargs)
        finally:
            self.below -= 1

    def operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one torch call of the model, and record it if it made or changed a value."""
        if func is torch.Tensor.__iter__:
            # the result of a node has to be tensors, not an iterator over them
            return iter(self.operation(torch.Tensor.unbind, args, kwargs))
        # before the call, because an operation in place raises the version of its own argument
        versions = _versions(args, kwargs)
        self.reading = getattr(func, "__name__", "") in READS
        try:
            result = self._told_apart(self.call_quietly(without_data(func), *args, **kwargs), versions)
        finally:
            self.reading = False
        if func is torch.Tensor.size:
            # pad_packed_sequence(total_length=...) compares this size with the longest sequence, a size that depends on
            # data
            assume_total_length(result)
        if result is NotImplemented:
            return result
        if self._is_new(result) or (result is None and has_side_effect(func)):
            # first the nodes that enter or leave no_grad and the like, as this operation runs inside of them
            self.regions.follow()
            self.builder.add(*spell(func, args, kwargs), result)
        return result

    def operator_below(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Record an operator that ran below a function transform, or a higher-order operator."""
        higher = isinstance(func, HigherOrderOperator)
        self.compiled_branches |= higher
        if (self.below or higher) and not self.paused and self._is_new(result):
            self.builder.add("call_function", func, args, kwargs, result)

    def _told_apart(self, result: Any, versions: dict[int, int]) -> Any:
        """Return a result that is one of the inputs, unchanged, as an object of its own.

        Dropout in evaluation returns its input, but not in training. So later uses of the input must not be recorded as
        uses of the output.
        """
        if id(result) in versions and versions[id(result)] == version_of(result):
            return self.call_quietly(torch.ops.aten.alias.default, result)
        return result

    def _is_new(self, result: Any) -> bool:
        if isinstance(result, torch.Tensor):
            return True
        if result is None or isinstance(result, bool | int | float | str | torch.Size | torch.dtype | torch.device):
            return False
        for leaf in structures.collect(result):
            if isinstance(leaf, torch.Tensor):
                return True
            if any(not self.builder.knows(symbol) for symbol in leaf.node.expr.free_symbols):
                return True
        return False

    def autograd_function(self, original: Callable[..., Any], kind: Any, args: Any, kwargs: Any) -> Any:
        """Record a custom autograd function as one call, so that its backward is kept."""
        if any(callable(arg) and not isinstance(arg, torch.Tensor) for arg in args):
            return original(kind, *args, **kwargs)  # a checkpoint: the model's code runs inside
        result = self.call_quietly(original, kind, *args, **kwargs)
        self.builder.add("call_function", structures.Applied(kind), args, kwargs, result)
        return result

    def wrapped_function(self, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Record a function that ``torch.fx.wrap`` was called for as one call."""
        self.regions.follow()
        name = wrapped_name(original)
        number = self.numbers[name]
        self.numbers[name] += 1
        # nodes for the arguments as they are before the call, which may change them in place
        prepared = self._prepared(args, kwargs)
        try:
            result = self.call_quietly(original, *args, **kwargs)
        except Exception:
            # its failure on fake tensors does not matter, because it stays opaque; recorded results take its place
            if not self._recorded_runs().count(self._full(name)):
                raise
            result = self.call_quietly(lambda: self._output_of(name, number, args, kwargs, "failed"))
        if self._is_new(result):
            node = self.builder.add_prepared("call_function", original, *prepared, result)
            node.meta["is_wrapped"] = True
        return result

    # -- modules

    def module_call(self, original: Callable[..., Any], module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        """Run a submodule: a leaf as one call, any other through its own code, and as one call if that fails."""
        fqn = self.paths.get(id(module))
        if fqn is None:
            return original(module, *args, **kwargs)
        number = self.numbers[fqn]
        self.numbers[fqn] += 1
        if self.is_leaf(module, fqn):
            return self._leaf(original, module, fqn, number, args, kwargs)
        # The nodes of a submodule that fails are rolled back, and one opaque node replaces them. Failures of its own
        # submodules stay among the visits, since they are the cause; its successful visits go with their nodes.
        mark, count = self.builder.mark(), len(self.visits)
        regions = self.regions.opened
        self.builder.scope.append((fqn, type(module).__name__, number))
        self.visits.append(ModuleVisit(fqn))
        try:
            result = original(module, *args, **kwargs)
            return result if module is self.root else _not_an_iterator(result)
        except Exception as error:
            if module is self.root or not self._recorded_runs().count(self._full(fqn)):
                raise
            failure = error
        finally:
            self.builder.scope.pop()
        self.builder.rollback(mark)
        self.regions.opened = regions
        self.regions.follow()
        self.visits[count:] = [ModuleVisit(fqn, failure), *(call for call in self.visits[count:] if call.error)]
        return self._leaf_node(module, fqn, number, args, kwargs, self._prepared(args, kwargs), "failed")

    def _recorded_runs(self) -> SampleRuns:
        if not self.runs.recorded:
            raise RunsNeeded
        return self.runs

    def _prepared(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        argument = self.builder.argument
        return argument(tuple(args)), {name: argument(value) for name, value in kwargs.items()}

    def _leaf(self, original: Any, module: torch.nn.Module, fqn: str, number: int, args: Any, kwargs: Any) -> Any:
        self.visits.append(ModuleVisit(fqn))
        self.regions.follow()
        prepared = self._prepared(args, kwargs)
        known = module is self.root and self.runs.count(self._full(fqn))
        if known or isinstance(module, torch.jit.ScriptModule):
            # recorded results need no second computation; TorchScript's interpreter would specialise sizes to constants
            return self._leaf_node(module, fqn, number, args, kwargs, prepared, "leaf")
        try:
            versions = _versions(args, kwargs)
            with RecurrentLayers():  # torch would unroll the steps of a sequence, and so specialise its length
                result = self.leaves.output(
                    module, args, kwargs, lambda: self.call_quietly(original, module, *args, **kwargs)
                )
            result = self._told_apart(result, versions)
        except Exception:
            # a leaf stays opaque, so an error of its code on fake tensors is no failure of capture
            if not self._recorded_runs().count(self._full(fqn)):
                raise
            return self._leaf_node(module, fqn, number, args, kwargs, prepared, "leaf")
        node = self.builder.add_prepared("call_module", fqn, prepared[0], prepared[1], result, fqn)
        node.meta["status"] = "leaf"
        return result

    def _leaf_node(
        self, module: torch.nn.Module, fqn: str, number: int, args: Any, kwargs: Any, prepared: Any, status: str
    ) -> Any:
        result = self.call_quietly(lambda: self._output_of(fqn, number, args, kwargs, status))
        node = self.builder.add_prepared("call_module", fqn, prepared[0], prepared[1], result, fqn)
        node.meta["status"] = status
        return result

    def _output_of(self, name: str, number: int, args: Any, kwargs: Any, status: str) -> Any:
        """Return the results of an opaque part, derived from its recorded results on the samples.

        Numbers from a part that failed may depend on data, even if the samples do not show it.
        """

        def make(leaf: torch.Tensor, sizes: Any) -> torch.Tensor:
            return torch.empty(tuple(sizes), dtype=leaf.dtype, device=device_of(leaf))

        runs = self._recorded_runs()
        result, fixed = runs.output(self._full(name), number, (args, kwargs), make, lambda: fresh_size(self.mode))
        if fixed and status == "failed":
            text = f"{name} returns {', '.join(map(repr, fixed))}"
            self.returned.append(Granted(name, text, source_of_frame(sys._getframe(1))))
        return result

    def _full(self, fqn: str) -> str:
        return ".".join(part for part in (self.prefix, fqn) if part)


def _not_an_iterator(result: Any) -> Any:
    if isinstance(result, Iterator):
        raise TypeError(f"Tensor iteration is not an output: forward returns a {type(result).__name__}, used up once.")
    return result


def _versions(args: Any, kwargs: Any) -> dict[int, int]:
    return {id(leaf): version_of(leaf) for leaf in (*args, *kwargs.values()) if is_fake(leaf)}


# Outputs of repeated layers, computed once: equal layers give outputs of equal sizes.


class RepeatedLayers:
    """Caches the outputs of layers on fake tensors within one tracing run.

    Two calls are equal when the layers have the same class, settings and parameter shapes, and the inputs the same
    sizes, strides, dtype and device.

    Args:
        quietly: calls a function without recording it.
    """

    def __init__(self, quietly: Callable[..., Any]) -> None:
        self._quietly = quietly
        self._known: dict[Any, torch.Tensor] = {}

    def output(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], compute: Callable[[], Any]
    ) -> Any:
        """Return the result of ``module`` for these fake tensors: computed, or a copy of an equal layer's result."""
        key = None if kwargs or not _is_plain(module) else _key(module, args)
        if key is None:
            return compute()
        if key in self._known:
            return self._quietly(self._known[key].clone)
        result = compute()
        # a view of the input must stay a view, so that a write into it reaches the input; a cached copy would not be
        # one
        if isinstance(result, torch.Tensor) and not _shares_memory(result, args):
            self._known[key] = result
        return result


def _is_plain(module: torch.nn.Module) -> bool:
    """Return whether the module is one of torch's own layers, as torch made it."""
    own = vars(module)
    return (
        type(module).__module__.startswith("torch.nn.modules.")
        and "forward" not in own
        and not module._modules
        and not any(own[name] for name in ("_forward_hooks", "_forward_pre_hooks"))
    )


def _key(module: torch.nn.Module, args: tuple[Any, ...]) -> Any:
    if not all(type(arg) is not torch.nn.Parameter and isinstance(arg, torch.Tensor) for arg in args):
        return None
    own = [
        (name, None if tensor is None else _metadata(tensor))
        for table in (module._parameters, module._buffers)
        for name, tensor in table.items()
    ]
    settings = {
        name: value for name, value in vars(module).items() if isinstance(value, bool | int | float | str | tuple)
    }
    # both change the dtype or requires_grad of the result
    state = torch.is_grad_enabled(), autocast_state()
    return (
        type(module), module.extra_repr(), tuple(sorted(settings.items(), key=str)), state, tuple(own),
        tuple(_metadata(arg) for arg in args),
    )  # fmt: skip


def _metadata(tensor: torch.Tensor) -> Any:
    # a sparse tensor has no strides, and its number of entries is data: alike only to itself
    if tensor.layout is not torch.strided:
        return id(tensor)
    sizes = tuple(map(_expression, tensor.shape)), tuple(map(_expression, tensor.stride()))
    return sizes, tensor.dtype, tensor.device, tensor.requires_grad


def _expression(size: Any) -> Any:
    return size if isinstance(size, int) else size.node.expr


def _shares_memory(result: torch.Tensor, args: tuple[Any, ...]) -> bool:
    storages = {memory_of(arg) for arg in args if arg.layout is torch.strided}
    return result.layout is not torch.strided or memory_of(result) in storages


# The two modes of torch under which a forward is traced by value: one for torch functions, one for operators.


class Run(Protocol):
    """The interface of a tracing run for its modes."""

    @property
    def active(self) -> bool: ...
    def call_below(self, function: Any, *args: Any, **kwargs: Any) -> Any: ...
    def operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...
    def operator_below(self, func: Any, args: Any, kwargs: Any, result: Any) -> None: ...


class TorchFunctions(TorchFunctionMode):
    """Reports every torch function, Tensor method and property that the model's code uses."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self._run.active:
            return func(*args, **(kwargs or {}))
        if in_functorch():
            return self._run.call_below(func, *args, **(kwargs or {}))
        return self._run.operation(func, tuple(args), kwargs or {})


class Operators(OperatorMode):
    """Reports the operators below function transforms, where batched tensors have become plain ones.

    Also sees ``torch.cond`` and its like, which compile their branches and then call one higher-order operator.
    """

    def __init__(self, run: Run) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._run = run

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._run.operator_below(func, args, kwargs or {}, result)
        return result
