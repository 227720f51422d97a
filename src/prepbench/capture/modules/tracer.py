"""``RobustTracer``: one FX graph of a module, in which each untraceable part is a single call."""

from __future__ import annotations

import inspect
import linecache
import operator
import sys
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import FrameType
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat.symbolic_fx import taking_tuple
from prepbench.capture.failures.describe import describe_failure
from prepbench.capture.modules.fake_inputs import base_samples
from prepbench.capture.modules.graph_builder import UntracedTensor
from prepbench.capture.modules.interception import Regions, asks_for_user, code_held_by, types_as_in_eager
from prepbench.capture.modules.sample_runs import SampleRuns
from prepbench.capture.modules.trace_result import IsLeaf, ModuleVisit, TraceResult
from prepbench.capture.modules.value_run import RunsNeeded, TraceOptions, ValueRun
from prepbench.checks import check_text, described
from prepbench.document.model import Failure
from prepbench.errors import SettingsError, UnknownNameError
from prepbench.inputs import Sample
from prepbench.objects.copy import Twin
from prepbench.objects.flatten import map_values
from prepbench.objects.parts import is_user_code
from prepbench.objects.restore import put_back_after, restored
from prepbench.patching import patched_here
from prepbench.running.check_inputs import alike_samples, check_traced, known_names
from prepbench.running.source_lines import source_of_frame
from prepbench.running.tracing import tracing
from prepbench.running.unchanged import numbers_kept

Target = torch.nn.Module | Callable[..., Any]


class RobustTracer:
    """Traces modules into FX graphs; an untraceable part does not stop the rest.

    Without inputs, tracing is symbolic. With ``inputs=`` the forward runs on tensors without data, so that Python
    control flow on shapes, ``len``, iteration, item assignment and output classes resolve. Either way, the innermost
    module whose code cannot be followed is recorded as one ``call_module`` node; the model is left as it was.

    Example:
        >>> tracer = RobustTracer()
        >>> graph = tracer.trace(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()))
        >>> [node.op for node in graph.nodes]
        ['placeholder', 'call_module', 'call_module', 'output']
    """

    _makes_twin = True  # False for a tracer that is given a twin already

    def __init__(self) -> None:
        self.root: Target | None = None
        self.graph: fx.Graph | None = None
        self.result: TraceResult | None = None
        """The results of the last :meth:`trace`, beside its graph."""
        self._failures: dict[int, tuple[Target, str]] = {}
        self._visited: dict[int, Target] = {}
        self.failures: dict[str, Failure] = {}
        self.counts: dict[str, int] = {}

    @classmethod
    def register_leaf(cls, m: type[torch.nn.Module]) -> None:
        """Keep every module of class ``m`` as a single call from now on.

        Args:
            m: this very class; subclasses are classes of their own.
        """
        register_leaf(m)

    @classmethod
    def unregister_leaf(cls, m: type[torch.nn.Module]) -> None:
        """Trace into modules of class ``m`` again.

        Args:
            m: the class, as it was registered.

        Raises:
            UnknownNameError: the class was not registered.
        """
        unregister_leaf(m)

    @classmethod
    def is_registered_leaf(cls, m: torch.nn.Module | type[torch.nn.Module]) -> bool:
        """Return whether this class, or the class of this module, was registered as a leaf.

        Args:
            m: a class or a module.

        Returns:
            False also for layers of ``torch.nn``, which are leaves without being registered.
        """
        return is_registered_leaf(type(m) if isinstance(m, torch.nn.Module) else m)

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        """Return whether ``m`` stays one call: a layer of ``torch.nn``, a scripted, registered or failed module.

        Args:
            m: the module.
            module_qualified_name: its name, which ``torch.fx`` gives and nothing depends on.

        Returns:
            False for what is traced through.
        """
        return (
            self.is_registered_leaf(m)
            or (is_layer_class(type(m)) and not isinstance(m, torch.nn.Sequential))
            or isinstance(m, torch.jit.ScriptModule)
            or (self.is_failed(m) and m is not self.root)
        )

    def is_failed(self, m: Target) -> bool:
        """Return whether the code of ``m`` could not be traced.

        Args:
            m: a module or function.

        Returns:
            False also for what was never called.
        """
        return id(m) in self._failures

    def failure_msg(self, m: Target) -> str | None:
        """Return the error of a failed module, in one line.

        Args:
            m: a module or function.

        Returns:
            E.g. ``"TypeError: ..."``; None if it did not fail.
        """
        found = self._failures.get(id(m))
        return found[1] if found else None

    def is_unvisited(self, m: Target) -> bool:
        """Return whether ``m`` was never called while tracing.

        Args:
            m: a module or function.

        Returns:
            False also for what was called and failed.
        """
        return id(m) not in self._visited

    def record_call_module(self, m: Target, e: Exception | None = None) -> None:
        """Note that ``m`` was called, and with ``e`` that its code could not be traced.

        Args:
            m: the module that was called.
            e: why it could not be traced; None if it could.
        """
        self._visited[id(m)] = m
        if e is not None:
            self._failures[id(m)] = (m, f"{type(e).__name__}: {e}")

    def trace(
        self,
        root: Target,
        concrete_args: dict[str, Any] | None = None,
        *,
        inputs: Any = None,
        runs: SampleRuns | None = None,
        prefix: str = "",
    ) -> fx.Graph:
        """Return the graph of ``root``; empty if its own forward failed (see :meth:`is_failed`).

        Args:
            root: a module or a function.
            concrete_args: values by parameter name, for symbolic tracing: only tensors become proxies.
            inputs: sample inputs; tracing then follows values. Sizes that differ between samples stay symbolic.
            runs: what submodules do on the samples, if something fails; by default ``root`` runs to find out.
            prefix: name of ``root`` within the model that runs.

        Returns:
            The graph, which belongs to this tracer.
        """
        check_traced("root", root)
        check_text("prefix", prefix, "encoder")
        self.root = root
        concrete_args = known_names(root, concrete_args)
        with tracing(with_dynamo=inputs is not None):
            result = self._traced(root, concrete_args, inputs, runs, prefix)
        self._note(root, result, prefix)
        self.result, self.graph = result, result.graph
        return result.graph

    def _traced(
        self, root: Target, concrete_args: dict[str, Any] | None, inputs: Any, runs: SampleRuns | None, prefix: str
    ) -> TraceResult:
        """Trace a twin, because forward may change what other threads see of ``root``."""
        twin = Twin(root if self._makes_twin else ())

        def is_leaf(module: torch.nn.Module, name: str) -> bool:
            return self.is_leaf_module(twin.original(module), name)

        if inputs is None:
            result = trace_symbolically(twin.of(root), concrete_args, is_leaf=is_leaf, keep=not self._makes_twin)
        else:
            samples = alike_samples(root, inputs) if not _are_samples(inputs) else list(inputs)
            runs = runs or SampleRuns(root, samples)
            result = trace_values(twin.of(root), samples, is_leaf=is_leaf, runs=runs, prefix=prefix)
        result.constants = {name: twin.original(value) for name, value in result.constants.items()}
        return result

    def _note(self, root: Target, result: TraceResult, prefix: str) -> None:
        modules = dict(root.named_modules()) if isinstance(root, torch.nn.Module) else {}
        for visit in result.visits if result.error is None else [v for v in result.visits if v.error]:
            full = ".".join(part for part in (prefix, visit.fqn) if part)
            if visit.fqn or visit.error is None:
                self._record(modules.get(visit.fqn, root), full, visit.error)
        if result.error is not None or not any(visit.fqn == "" for visit in result.visits):
            self._record(root, prefix, result.error)

    def _record(self, m: Target, fqn: str, error: Exception | None) -> None:
        self.record_call_module(m, error)
        self.counts[fqn] = self.counts.get(fqn, 0) + 1
        if error is not None:
            module = m if isinstance(m, torch.nn.Module) else None
            name = type(m).__name__ if module is not None else getattr(m, "__name__", type(m).__name__)
            self.failures[fqn] = describe_failure(error, fqn=fqn, module_type=name, module=module)


def _are_samples(inputs: Any) -> bool:
    return isinstance(inputs, list) and bool(inputs) and all(isinstance(sample, Sample) for sample in inputs)


# Symbolic tracing without inputs, in one pass: what cannot be traced becomes one call, and tracing goes on.


_MISSING = inspect.Parameter.empty


def trace_symbolically(
    root: torch.nn.Module | Callable[..., Any], concrete_args: dict[str, Any] | None, *, is_leaf: IsLeaf, keep: bool
) -> TraceResult:
    """Trace ``root`` with proxies for its tensors.

    Args:
        root: a module or a function.
        concrete_args: values by parameter name; tensors become proxies, other values are used as they are. Parameters
            left out use their default, or a proxy if they have none.
        is_leaf: decides which modules stay single calls.
        keep: whether ``root`` is used afterwards, so that what forward leaves on it must be put back.
    """
    tracer = _Tracer(is_leaf)
    result = TraceResult(fx.Graph(), tracer.visits)
    module = root if isinstance(root, torch.nn.Module) else torch.nn.Module()
    with ExitStack() as stack:
        stack.enter_context(numbers_kept())
        stack.enter_context(restored(module, root) if keep else put_back_after(root))
        stack.enter_context(patched_here(torch.nn.Module, "__setattr__", _keeping_buffers(tracer)))
        stack.enter_context(types_as_in_eager([root, *code_held_by(module)]))
        own = set(vars(module))
        try:
            if module is root and is_leaf(module, ""):
                result.graph = tracer.trace_leaf(module, concrete_args or {})
            else:
                result.graph = tracer.trace(root, concrete_args or {})
        except Exception as error:
            result.error = error
        # FX puts the constants that it meets on the module, from where they go with the block
        result.constants = {
            name: value
            for name, value in vars(tracer.root).items()
            if name.startswith("_tensor_constant") and isinstance(value, torch.Tensor) and name not in own
        }
    return result


def _keeping_buffers(tracer: _Tracer) -> Callable[..., None]:
    """Return a ``Module.__setattr__`` that records assigned buffers in the graph, so that every call assigns them."""
    original = torch.nn.Module.__setattr__

    def assign(module: torch.nn.Module, name: str, value: Any) -> None:
        if isinstance(value, fx.Proxy) and name in vars(module).get("_buffers", ()):
            tracer.create_proxy("call_method", "copy_", (getattr(module, name), value), {})
        else:
            original(module, name, value)

    return assign


class _SeenAsTensor(fx.Proxy):
    """A proxy that the model's own ``isinstance(x, torch.Tensor)`` accepts as a tensor."""

    @property
    def __class__(self) -> type:
        frame = sys._getframe(1)
        return torch.Tensor if _asks_isinstance(frame) else _SeenAsTensor

    @__class__.setter
    def __class__(self, value: type) -> None:
        raise TypeError("The class of a proxy cannot be changed.")

    def __setitem__(self, key: Any, value: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, key, value), {})


def _asks_isinstance(frame: FrameType) -> bool:
    # torch's own checks must see a proxy, or its C++ code would take the proxy for a real tensor
    code = frame.f_code
    if asks_for_user(code) or (code.co_name == "is_tensor" and code.co_filename == torch.__file__):
        return True
    if not is_user_code(code):
        return False
    for index, position in enumerate(code.co_positions()):
        if index == frame.f_lasti // 2 and position[0] is not None and position[2] is not None:
            text = linecache.getline(code.co_filename, position[0]).encode()[position[2] :]
            return text.startswith(b"isinstance(")
    return False


class _Tracer(fx.Tracer):
    """FX's tracer, with a single call for each module that cannot be traced."""

    # a buffer that is counted up must be counted at every call, not while tracing
    proxy_buffer_attributes = True

    def __init__(self, is_leaf: IsLeaf) -> None:
        super().__init__()
        self.visits: list[ModuleVisit] = []
        self._is_leaf = is_leaf
        self._scope: list[tuple[str, str, int]] = []  # name, class, which call
        self._numbers: Counter[str] = Counter()
        self._regions = Regions(self._add_region)
        self._following = False

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        return self._is_leaf(m, module_qualified_name)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _SeenAsTensor(node, self)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        if args[0] not in ("placeholder", "get_attr") and not self._following:
            self._regions.follow()
        node = super().create_node(*args, **kwargs)
        inside = node.op not in ("placeholder", "output")
        node.meta["fqn"] = str(node.target) if node.op == "call_module" else self._scope[-1][0] if self._scope else ""
        node.meta["source"] = source_of_frame(sys._getframe(1)) if inside else None
        node.meta["nn_module_stack"] = {path: (path, kind) for path, kind, _ in self._scope}
        node.meta["calls"] = {path: number for path, _, number in self._scope}
        return node

    def _add_region(self, target: Any, args: tuple[Any, ...]) -> fx.Node:
        self._following = True
        try:
            return self.create_node("call_function", target, args, {})
        finally:
            self._following = False

    def call_module(
        self, m: torch.nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        fqn = self.path_of_module(m)
        if self.is_leaf_module(m, fqn):
            self.visits.append(ModuleVisit(fqn))
            return self._leaf_node(fqn, args, kwargs, "leaf")
        last, count, regions = next(iter(reversed(self.graph.nodes))), len(self.visits), self._regions.opened
        self._scope.append((fqn, type(m).__name__, self._numbers[fqn]))
        self._numbers[fqn] += 1
        self.visits.append(ModuleVisit(fqn))
        try:
            result = forward(*args, **kwargs)
            self.create_arg(_refuse_iterators(result))
            return result
        except Exception as error:
            failure = error
        finally:
            self._scope.pop()
        for node in reversed(self.graph.nodes):
            if node is last:
                break
            self.graph.erase_node(node)
        self._regions.opened = regions
        # what failed inside stays reported; what was traced inside is traced on its own later
        self.visits[count:] = [ModuleVisit(fqn, failure), *(call for call in self.visits[count:] if call.error)]
        return self._leaf_node(fqn, args, kwargs, "failed")

    def _leaf_node(self, fqn: str, args: tuple[Any, ...], kwargs: dict[str, Any], status: str) -> fx.Proxy:
        proxy = self.create_proxy("call_module", fqn, args, kwargs)
        proxy.node.meta["status"] = status
        return proxy

    def trace_leaf(self, root: torch.nn.Module, concrete_args: dict[str, Any]) -> fx.Graph:
        """Return the graph of a root that is a leaf itself: its inputs, one call, its output."""
        self.root, self.graph = root, fx.Graph()
        self.tensor_attrs: dict[Any, str] = {}
        self.submodule_paths = {root: ""}
        _, args = self.create_args_for_root(type(root).forward, True, concrete_args)
        proxy = self._leaf_node("", tuple(args[1:]), {}, "leaf")
        self.create_node("output", "output", (self.create_arg(proxy),), {})
        return self.graph

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        forward = self.root.forward if is_module else root_fn
        values = concrete_args or {}
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        parameters = inspect.signature(forward).parameters
        unknown = set(values) - set(parameters)
        rest: fx.Proxy | None = None
        for name, parameter in parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                kwargs.update({key: self._argument(key, values[key]) for key in sorted(unknown)})
            elif parameter.kind is parameter.VAR_POSITIONAL and name in values:
                args += [self._argument(f"{name}_{i}", value) for i, value in enumerate(values[name])]
            elif parameter.kind is parameter.VAR_POSITIONAL:
                rest = self.create_proxy("placeholder", f"*{name}", (), {})
            else:
                value = self._argument(name, values.get(name, parameter.default))
                if parameter.kind is parameter.KEYWORD_ONLY:
                    kwargs[name] = value
                else:
                    args.append(value)
        if rest is not None:
            # how many there are is not known: forward gets one proxy for the tuple, which it may index
            forward, args, kwargs = taking_tuple(forward, args, kwargs, rest), [*args, *kwargs.values(), rest], {}
        # FX calls fn(root, *args) for a module
        function = (
            (lambda _, *given: forward(*given, **kwargs)) if is_module else (lambda *given: forward(*given, **kwargs))
        )
        return function, [self.root, *args] if is_module else args

    def _argument(self, name: str, value: Any) -> Any:
        if value is _MISSING or isinstance(value, torch.Tensor):
            return self.create_proxy("placeholder", name, (), {})
        count = iter(range(1_000_000))
        return map_values(value, lambda leaf: self.create_proxy("placeholder", f"{name}_{next(count)}", (), {}))


def _refuse_iterators(result: Any) -> Any:
    if inspect.isgenerator(result):
        raise fx.proxy.TraceError("Proxy object cannot be iterated: forward returns a generator.")
    return result


# Tracing by value: the real forward runs on tensors without data, and every torch call it makes becomes a node.
#
# Because the values are true tensors with true (possibly symbolic) sizes, Python resolves as usual: branches on shapes,
# ``len``, iteration, item assignment, ``isinstance``, keyword arguments, output classes. Only what depends on tensor
# *data* cannot be resolved. The innermost module that tries becomes a leaf, and tracing goes on behind it.


def trace_values(
    root: torch.nn.Module | Callable[..., Any],
    samples: Sequence[Sample],
    *,
    is_leaf: IsLeaf,
    runs: SampleRuns,
    prefix: str = "",
) -> TraceResult:
    """Trace ``root`` on the samples.

    Args:
        root: a module, or a function over tensors.
        samples: at least one; sizes that differ between samples stay symbolic.
        is_leaf: decides which modules stay single calls; called with the module and its name within ``root``.
        runs: what the submodules do on the samples. If something fails, the model runs to record it, and ``root`` is
            traced once more.
        prefix: name of ``root`` within the model that runs.
    """
    best: TraceResult | None = None
    sizes_matter = False
    queue = _first_options(base_samples(root, samples))
    while queue:
        options = queue.popleft()
        if best is not None and not _may_help(options, best, sizes_matter):
            continue
        try:
            trace = ValueRun(root, is_leaf, runs, prefix).trace(samples, options)
        except RunsNeeded:
            runs.record()
            trace = ValueRun(root, is_leaf, runs, prefix).trace(samples, options)
        sizes_matter |= bool(trace.fixed or trace.contradicted or trace.error) or any(map(_about_sizes, trace.errors))
        queue.extendleft(_next_options(options, trace))
        if best is None or trace.losses < best.losses:
            if best is not None and options.strict:
                trace.keep_errors_of(best)
            best = trace
    assert best is not None  # there is at least one sample
    if runs.error is not None and best.error is not None and not prefix:
        # the model does not run on these inputs at all: its own error says more than that of a tensor without data
        best.error = runs.error
    return best


def _first_options(bases: Sequence[int]) -> deque[TraceOptions]:
    """Return options to try with these base samples, fastest first.

    Torch's Python kernels are slow but specialise fewer sizes, and so may another sample. Models with a code path of
    their own for ``torch.export`` may take it as a last resort, before branches on sizes become leaves.
    """
    first = bases[0]
    with_kernels = [TraceOptions(base, kernels=True) for base in bases]
    last = [TraceOptions(first, kernels=True, exporting=True), TraceOptions(first, kernels=True, strict=True)]
    return deque([TraceOptions(first), *with_kernels, *last])


def _next_options(options: TraceOptions, trace: TraceResult) -> list[TraceOptions]:
    """Return the ways to try right after this result."""
    if trace.converted and not options.conversions:
        return [replace(options, conversions=True)]
    if options.conversions and not options.kernels and trace.avoidable:
        return [replace(options, kernels=True)]
    return []


def _about_sizes(error: Exception) -> bool:
    """Return whether torch failed at a symbolic size, which its Python kernels may accept."""
    return isinstance(error, UntracedTensor) or "sym" in str(error).lower()


def _may_help(options: TraceOptions, best: TraceResult, sizes_matter: bool) -> bool:
    """Return whether tracing this way may keep something that the best trace so far lost."""
    if not sizes_matter and not options.exporting:
        return False  # no loss comes from a size, so neither the sample nor the kernels matter
    if options.conversions:
        return True
    if options.strict:
        return best.error is None and bool(best.contradicted)
    return best.avoidable


# The module classes that stay one call in a module graph: layers, and registered leaves.


MARKER = "__prepbench_layer__"
"""A class with this attribute set is a layer, as the classes of ``torch.nn`` are."""

_PACKAGES = ("torch.nn.", "torch.ao.nn.")

_registered: set[type[torch.nn.Module]] = set()


def is_layer_class(kind: type[torch.nn.Module]) -> bool:
    """Return whether the class is one of torch's own, or a class of ours that holds one operation."""
    return kind.__module__.startswith(_PACKAGES) or bool(getattr(kind, MARKER, False))


def register_leaf(kind: Any) -> None:
    """Keep every module of this class as one call from now on.

    Raises:
        SettingsError: it is no class of modules.
    """
    _check_class(kind)
    _registered.add(kind)


def unregister_leaf(kind: type[torch.nn.Module]) -> None:
    """Trace into modules of this class again.

    Raises:
        UnknownNameError: the class was not registered.
    """
    _check_class(kind)
    if kind not in _registered:
        known = ", ".join(sorted(one.__name__ for one in _registered)) or "none"
        raise UnknownNameError(
            f"m: {described(kind)} is not registered as a leaf. Give one of the registered classes: {known}."
        )
    _registered.remove(kind)


def _check_class(kind: Any) -> None:
    if not isinstance(kind, type) or not issubclass(kind, torch.nn.Module):
        raise SettingsError(f"m must be a class of modules, got {described(kind)}. Give the class, type(module).")


def is_registered_leaf(kind: type[torch.nn.Module]) -> bool:
    """Return whether this very class was registered."""
    return kind in _registered
