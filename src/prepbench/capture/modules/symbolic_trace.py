"""Symbolic tracing without inputs, in one pass: what cannot be traced becomes one call, and tracing goes on."""

from __future__ import annotations

import inspect
import linecache
import operator
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat.symbolic_fx import taking_tuple
from prepbench.capture.modules.regions import Regions
from prepbench.capture.modules.seen_types import asks_for_user, code_held_by, types_as_in_eager
from prepbench.capture.modules.trace_result import IsLeaf, ModuleVisit, TraceResult
from prepbench.patching import patched_here
from prepbench.running.module_state import restored
from prepbench.running.nested_values import map_values
from prepbench.running.plain_state import put_back_after
from prepbench.running.random_numbers import numbers_kept
from prepbench.running.source_lines import is_user_code, source_of_frame

_MISSING = inspect.Parameter.empty


def trace_symbolically(
    root: torch.nn.Module | Callable[..., Any], concrete_args: dict[str, Any] | None, *, is_leaf: IsLeaf, keep: bool
) -> TraceResult:
    """Trace ``root`` with proxies for its tensors.

    Args:
        root: a module or a function.
        concrete_args: values by parameter name; tensors become proxies, other values are used as they are. Parameters
            left out use their default, or a proxy if they have none.
        is_leaf: which modules stay single calls.
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
    """``Module.__setattr__`` that writes an assignment to a buffer into the graph, so that it happens at every call."""
    original = torch.nn.Module.__setattr__

    def assign(module: torch.nn.Module, name: str, value: Any) -> None:
        if isinstance(value, fx.Proxy) and name in vars(module).get("_buffers", ()):
            tracer.create_proxy("call_method", "copy_", (getattr(module, name), value), {})
        else:
            original(module, name, value)

    return assign


class _SeenAsTensor(fx.Proxy):
    """A proxy that the model's own ``isinstance(x, torch.Tensor)`` takes for a tensor."""

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
    """FX's tracer, in which a module that cannot be traced becomes one call."""

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
        """The graph of a root that is a leaf itself: its inputs, one call, its output."""
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
