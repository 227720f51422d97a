"""Tracing by value: the real forward runs on tensors without data, and every torch call it makes is written down.

Because the values are true tensors with true (possibly symbolic) sizes, Python resolves as usual: branches on shapes,
``len``, iteration, item assignment, ``isinstance``, keyword arguments, output classes. Only what depends on tensor
*data* cannot be resolved; the innermost module that tries becomes one opaque call, and tracing goes on behind it.
"""

from __future__ import annotations

import keyword
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from prepbench._torch_compat.dynamo import forget_compiled
from prepbench._torch_compat.exporting import conversions_that_change_nothing_skipped, seen_as_exporting
from prepbench._torch_compat.fake_tensors import (
    device_of,
    fresh_size,
    is_fake,
    is_open_question,
    symbolic_fake_mode,
    symbolic_kernels,
)
from prepbench._torch_compat.modes import autocast_functions, autocast_state, in_functorch
from prepbench._torch_compat.operators import HigherOrderOperator
from prepbench.capture.modules.assumptions import size_names
from prepbench.capture.modules.fake_inputs import FakeCall, InputSize, base_samples, fake_call
from prepbench.capture.modules.grad_mode import enter_grad_mode, exit_grad_mode
from prepbench.capture.modules.graph_builder import Recording, UntracedTensor
from prepbench.capture.modules.interception import intercepted, symbolic_conversions
from prepbench.capture.modules.observed import Observed, wrapped_name
from prepbench.capture.modules.operations import has_side_effect, spell
from prepbench.capture.modules.repeated_layers import RepeatedLayers
from prepbench.capture.modules.trace_result import Assumption, ModuleCall, ValueTrace, values_on_samples
from prepbench.capture.sizes.sample_sizes import SizesDecide, disagreement
from prepbench.inputs import Sample
from prepbench.running import nested_values as structures
from prepbench.running.module_state import replaced_buffers, restored
from prepbench.running.source_lines import source_of_frame

IsLeaf = Callable[[torch.nn.Module, str], bool]


class _NotObserved(BaseException):
    """Tracing needs the real outputs of a part that failed; not an ``Exception``, so that no model swallows it."""


def trace_values(
    root: torch.nn.Module | Callable[..., Any],
    samples: Sequence[Sample],
    *,
    is_leaf: IsLeaf,
    observe: Callable[[], Observed],
    observed: Observed | None = None,
    prefix: str = "",
) -> ValueTrace:
    """Trace ``root`` on the samples.

    Args:
        root: a module, or a function over tensors.
        samples: at least one; sizes that differ between samples stay symbolic.
        is_leaf: which modules stay single calls; called with the module and its name within ``root``.
        observe: finds out what the submodules do on the samples, which needs a real forward; asked when something
            fails, and then ``root`` is traced once more with the answer.
        observed: the answer, if known already.
        prefix: name of ``root`` within the model that was observed.
    """
    best: ValueTrace | None = None
    sizes_matter = False
    bases = base_samples(root, samples)
    # the fast way first; torch's Python kernels are slow but fix fewer sizes, and so may another sample; as a last
    # resort models that know a way of their own for torch.export may take it
    ways = [_Way(bases[0]), *(_Way(base, kernels=True) for base in bases), _Way(bases[0], kernels=True, exporting=True)]
    queue = deque([*ways, _Way(bases[0], kernels=True, strict=True)])
    while queue:
        way = queue.popleft()
        if best is not None and not _may_help(way, best):
            continue
        if best is not None and not sizes_matter and not way.exporting:
            continue  # what was lost was not lost to a size, so neither sample nor kernels matter
        try:
            trace = _Run(root, is_leaf, observed, prefix).trace(samples, way)
        except _NotObserved:
            observed = observe()
            trace = _Run(root, is_leaf, observed, prefix).trace(samples, way)
        sizes_matter |= bool(trace.fixed or trace.contradicted or trace.error) or any(map(_about_sizes, trace.errors))
        if trace.converted and not way.conversions:
            queue.appendleft(replace(way, conversions=True))
        elif way.conversions and not way.kernels and trace.avoidable:
            queue.appendleft(replace(way, kernels=True))
        if best is None or trace.losses < best.losses:
            if best is not None and way.strict:
                trace.keep_errors_of(best)
            best = trace
    assert best is not None  # there is at least one sample
    if observed is not None and observed.error is not None and best.error is not None and not prefix:
        # the model does not run on these inputs at all: its own error says more than that of a tensor without data
        best.error = observed.error
    return best


def _about_sizes(error: Exception) -> bool:
    """Whether torch failed at a symbolic size, which its Python kernels may take."""
    return isinstance(error, UntracedTensor) or "sym" in str(error).lower()


def _may_help(way: _Way, best: ValueTrace) -> bool:
    """Whether tracing this way may keep what the best trace so far lost."""
    if way.conversions:
        return True
    if way.strict:
        return best.error is None and bool(best.contradicted)
    return best.avoidable


@dataclass(frozen=True)
class _Way:
    """How to trace.

    Attributes:
        base: the sample whose sizes decide.
        conversions: ``int(size)`` and ``float(size)`` in the model's code stay symbolic.
        kernels: through torch's Python kernels.
        exporting: as if ``torch.export`` did it.
        strict: what is decided by sizes must be the same for all samples.
    """

    base: int
    conversions: bool = False
    kernels: bool = False
    exporting: bool = False
    strict: bool = False


class _Run:
    """One tracing run; lives as long as one call of :func:`trace_values`."""

    def __init__(self, root: Any, is_leaf: IsLeaf, observed: Observed | None, prefix: str) -> None:
        self.function = root
        self.root = root if isinstance(root, torch.nn.Module) else torch.nn.Module()
        self.is_leaf, self.observed, self.prefix = is_leaf, observed, prefix
        self.paths = {id(module): name for name, module in self.root.named_modules()}
        self.numbers: Counter[str] = Counter()
        self.calls: list[ModuleCall] = []
        self.assumptions: list[Assumption] = []
        self.thread = threading.get_ident()
        self.paused = 0
        self.below = 0
        self.compiled_branches = False
        self.decisive: dict[Any, InputSize] = {}
        self._attributes: dict[int, str] | None = None
        self._outer_autocast, self._outer_grad = autocast_state(), torch.is_grad_enabled()
        self._autocast: tuple[Any, list[fx.Node]] = (autocast_state(), [])
        self._no_grad: fx.Node | None = None
        names = {id(t): name for name, t in (*self.root.named_parameters(), *self.root.named_buffers())}
        self.recording = Recording(names, self._attribute_name)
        self.leaves = RepeatedLayers(self.call_quietly)
        self.mode = symbolic_fake_mode(self._assume, self._ask)

    @property
    def active(self) -> bool:
        """Whether what runs now is the model's own code, to be written down call by call."""
        return not self.paused and not self.below and threading.get_ident() == self.thread

    def trace(self, samples: Sequence[Sample], way: _Way) -> ValueTrace:
        """Run the forward once and return what it did."""
        result = ValueTrace(self.recording.graph, self.calls, None, self.recording.constants)
        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=[]))
            buffers = stack.enter_context(restored(self.root))
            call = fake_call(self.function, samples, self.mode, way.base)
            result.sizes = call.sizes
            self.decisive = call.sizes if way.strict else {}
            self._add_placeholders(call)
            try:
                with ExitStack() as around:
                    if way.conversions:
                        around.enter_context(symbolic_conversions(self._code()))
                    if way.kernels:
                        around.enter_context(symbolic_kernels())
                    if way.exporting:
                        around.enter_context(seen_as_exporting())
                    self._forward(call, buffers)
            except Exception as error:
                result.error, result.graph = error, fx.Graph()
            finally:
                if self.compiled_branches:
                    # torch.cond compiled its branches under our modes; eager calls must not meet that code again
                    forget_compiled()
        result.assumptions = [a for a in self.assumptions if a.expression.free_symbols <= set(result.sizes)]
        return result

    def _code(self) -> list[Any]:
        """Whose code runs: the classes of the modules, or the function."""
        return [self.function, *{type(module) for module in self.root.modules()}]

    def _forward(self, call: FakeCall, buffers: dict[str, torch.Tensor]) -> None:
        with self.mode, conversions_that_change_nothing_skipped(), intercepted(self), _Dispatched(self), _Called(self):
            output = self.function(*call.args, **call.kwargs)
            self.paused += 1
            self._follow_autocast()
            self._keep_buffers(buffers)
            self._output(output)

    def _assume(self, expression: Any) -> None:
        # inside torch, inequalities only choose between ways of computing the same (contiguity, broadcasting)
        if self.active or type(expression).__name__ == "Equality":
            self.assumptions.append(Assumption(expression, source_of_frame(sys._getframe(2)), not self.active))

    def _ask(self, expression: Any) -> None:
        """Refuse what has different answers on different samples, if that is wanted."""
        values = dict(enumerate(values_on_samples(expression, self.decisive)))
        text = disagreement(expression, size_names(self.decisive), values) if values else None
        watched = self.active or type(expression).__name__ == "Equality" or not expression.is_Relational
        if text is not None and watched and is_open_question(self.mode, expression):
            raise SizesDecide(text)

    def _add_placeholders(self, call: FakeCall) -> None:
        for name, value in zip(call.names, call.values, strict=True):
            safe = f"{name}_" if keyword.iskeyword(name) else name
            node = self.recording.create("placeholder", safe)
            node.meta["val"] = value
            node.meta["source"] = None
            self.recording.bind(value, node)

    def _keep_buffers(self, before: dict[str, torch.Tensor]) -> None:
        # self.steps = self.steps + 1 changes the model's state, so the graph must write it back
        for old, new in replaced_buffers(self.root, before):
            if is_fake(new):
                self.recording.add("call_method", "copy_", (old, new), {}, None)

    def _output(self, output: Any) -> None:
        node = self.recording.create("output", "output", (self.recording.argument(output),))
        node.meta["val"] = output
        node.meta["source"] = None

    def _follow_autocast(self) -> None:
        """Enter and leave autocast in the graph where the model does; it decides the dtypes of what follows."""
        self._follow_grad_mode()
        state, entered = self._autocast
        now = autocast_state()
        if now == state:
            return
        enter, leave = autocast_functions()
        for node in reversed(entered):
            self.recording.add_prepared("call_function", leave, (node,), {}, None)
        entered = [
            self.recording.add_prepared("call_function", enter, (device, dtype, enabled, True), {}, None)
            for device, enabled, dtype in now
            if (device, enabled, dtype) not in self._outer_autocast
        ]
        self._autocast = now, entered

    def _follow_grad_mode(self) -> None:
        """Open and close ``no_grad`` in the graph where the model does; what is inside has no gradients."""
        off = self._outer_grad and not torch.is_grad_enabled()
        if off and self._no_grad is None:
            self._no_grad = self.recording.add_prepared("call_function", enter_grad_mode, (False,), {}, None)
        elif not off and self._no_grad is not None:
            self.recording.add_prepared("call_function", exit_grad_mode, (self._no_grad,), {}, None)
            self._no_grad = None

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
        """Call ``function`` on fakes without writing anything down."""
        self.paused += 1
        try:
            return function(*args, **kwargs)
        finally:
            self.paused -= 1

    def call_below(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call ``function`` and write down what it does one level below, as plain operators on plain tensors."""
        self.below += 1
        try:
            return function(*args, **kwargs)
        finally:
            self.below -= 1

    def operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one torch call of the model and write it down if it made or changed a value."""
        if func is torch.Tensor.__iter__:
            return iter(self.operation(torch.Tensor.unbind, args, kwargs))
        versions = _versions(args, kwargs)
        result = self._told_apart(self.call_quietly(func, *args, **kwargs), versions)
        if result is NotImplemented:
            return result
        if self._is_new(result) or (result is None and has_side_effect(func)):
            self._follow_autocast()
            self.recording.add(*spell(func, args, kwargs), result)
        return result

    def _told_apart(self, result: Any, versions: dict[int, int]) -> Any:
        """A result that is one of the inputs, unchanged, as an object of its own.

        Dropout in evaluation returns its input. In training it does not, so what the model does with the input
        afterwards must not be taken for something that it does with the output.
        """
        if id(result) in versions and versions[id(result)] == _version(result):
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
            if any(not self.recording.knows(symbol) for symbol in leaf.node.expr.free_symbols):
                return True
        return False

    def autograd_function(self, original: Callable[..., Any], kind: Any, args: Any, kwargs: Any) -> Any:
        """Write a custom autograd function down as one call, so that its backward is kept."""
        if any(callable(arg) and not isinstance(arg, torch.Tensor) for arg in args):
            return original(kind, *args, **kwargs)  # a checkpoint: the model's code runs inside
        result = self.call_quietly(original, kind, *args, **kwargs)
        self.recording.add("call_function", structures.Applied(kind), args, kwargs, result)
        return result

    def wrapped_function(self, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Write a function that ``torch.fx.wrap`` was called for down as one call."""
        self._follow_autocast()
        name = wrapped_name(original)
        number = self.numbers[name]
        self.numbers[name] += 1
        prepared = self._prepared(args, kwargs)
        try:
            result = self.call_quietly(original, *args, **kwargs)
        except Exception:
            # what it does without data does not matter: it is never looked into
            if not self._observed().count(self._full(name)):
                raise
            result = self.call_quietly(lambda: self._output_of(name, number, args, kwargs))
        if self._is_new(result):
            node = self.recording.add_prepared("call_function", original, *prepared, result)
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
        mark, count = self.recording.mark(), len(self.calls)
        autocast, no_grad = self._autocast, self._no_grad
        self.recording.scope.append((fqn, type(module).__name__, number))
        self.calls.append(ModuleCall(fqn))
        try:
            result = original(module, *args, **kwargs)
            return result if module is self.root else _not_an_iterator(result)
        except Exception as error:
            if module is self.root or not self._observed().count(self._full(fqn)):
                raise
            failure = error
        finally:
            self.recording.scope.pop()
        self.recording.rollback(mark)
        self._autocast, self._no_grad = autocast, no_grad
        self._follow_autocast()
        self.calls[count:] = [ModuleCall(fqn, failure), *(call for call in self.calls[count:] if call.error)]
        return self._opaque(module, fqn, number, args, kwargs, self._prepared(args, kwargs), "failed")

    def _observed(self) -> Observed:
        if self.observed is None:
            raise _NotObserved
        return self.observed

    def _prepared(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        argument = self.recording.argument
        return argument(tuple(args)), {name: argument(value) for name, value in kwargs.items()}

    def _leaf(self, original: Any, module: torch.nn.Module, fqn: str, number: int, args: Any, kwargs: Any) -> Any:
        self.calls.append(ModuleCall(fqn))
        self._follow_autocast()
        prepared = self._prepared(args, kwargs)
        known = module is self.root and self.observed is not None and self.observed.count(self._full(fqn))
        if known or isinstance(module, torch.jit.ScriptModule):
            # what is known need not be computed; the script interpreter would fix sizes by reading them as numbers
            return self._opaque(module, fqn, number, args, kwargs, prepared, "leaf")
        try:
            versions = _versions(args, kwargs)
            result = self.leaves.output(
                module, args, kwargs, lambda: self.call_quietly(original, module, *args, **kwargs)
            )
            result = self._told_apart(result, versions)
        except Exception:
            # a leaf is never looked into, so what its code cannot do without data is no failure
            if not self._observed().count(self._full(fqn)):
                raise
            return self._opaque(module, fqn, number, args, kwargs, prepared, "leaf")
        node = self.recording.add_prepared("call_module", fqn, prepared[0], prepared[1], result, fqn)
        node.meta["status"] = "leaf"
        return result

    def _opaque(
        self, module: torch.nn.Module, fqn: str, number: int, args: Any, kwargs: Any, prepared: Any, status: str
    ) -> Any:
        result = self.call_quietly(lambda: self._output_of(fqn, number, args, kwargs))
        node = self.recording.add_prepared("call_module", fqn, prepared[0], prepared[1], result, fqn)
        node.meta["status"] = status
        return result

    def _output_of(self, name: str, number: int, args: Any, kwargs: Any) -> Any:
        """What a part that is not looked into returns, by what it returned on the samples."""

        def make(leaf: torch.Tensor, sizes: Any) -> torch.Tensor:
            return torch.empty(tuple(sizes), dtype=leaf.dtype, device=device_of(leaf))

        return self._observed().output(self._full(name), number, (args, kwargs), make, lambda: fresh_size(self.mode))

    def _full(self, fqn: str) -> str:
        return ".".join(part for part in (self.prefix, fqn) if part)


def _not_an_iterator(result: Any) -> Any:
    if isinstance(result, Iterator):
        raise TypeError(f"Tensor iteration is not an output: forward returns a {type(result).__name__}, used up once.")
    return result


def _versions(args: Any, kwargs: Any) -> dict[int, int]:
    return {id(leaf): _version(leaf) for leaf in (*args, *kwargs.values()) if is_fake(leaf)}


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


class _Called(TorchFunctionMode):
    """Sees every torch function, Tensor method and property that the model's code uses."""

    def __init__(self, run: _Run) -> None:
        super().__init__()
        self._run = run

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self._run.active:
            return func(*args, **(kwargs or {}))
        if in_functorch():
            return self._run.call_below(func, *args, **(kwargs or {}))
        return self._run.operation(func, tuple(args), kwargs or {})


class _Dispatched(TorchDispatchMode):
    """Sees the operators below function transforms, where batched tensors have become plain ones.

    Also sees ``torch.cond`` and its like, which compile their branches and then call one higher-order operator.
    """

    supports_higher_order_operators = True

    def __init__(self, run: _Run) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._run = run

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        run = self._run
        result = func(*args, **(kwargs or {}))
        if isinstance(func, HigherOrderOperator):
            run.compiled_branches = True
        seen = run.below or isinstance(func, HigherOrderOperator)
        if seen and not run.paused and run._is_new(result):
            run.recording.add("call_function", func, args, kwargs or {}, result)
        return result
