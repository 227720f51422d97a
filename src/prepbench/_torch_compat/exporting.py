"""Run ``torch.export`` quietly, and imitate what code sees while it runs."""

from __future__ import annotations

import contextlib
import linecache
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from prepbench._torch_compat.checks import needed_for
from prepbench.patching import logs_dropped_here, patched, patched_here, undoing, warnings_ignored_here


@contextmanager
def quiet_export() -> Iterator[None]:
    """Inside the block, a failing ``torch.export`` only raises: it prints no partial graph and logs no warning."""
    with needed_for("exporting without messages"):
        import torch.export._trace as trace
        from torch.fx.experimental import proxy_tensor

    names = (
        "torch.fx.experimental.symbolic_shapes",
        "torch.export",
        "torch._export",
        "torch._dynamo",
        "torch._subclasses",
    )
    # this table would keep the last exported graph, and with it the model, alive until the next export
    table = getattr(proxy_tensor, "_FAKE_TENSOR_ID_TO_PROXY_MAP_FOR_EXPORT", {})
    # the module prints through the builtin of this name
    silent = patched(trace, "print", lambda *args, **kwargs: None)
    with undoing() as undo, silent, logs_dropped_here(*names), warnings_ignored_here(), strict_export_let_go():
        undo.add(table.clear)
        yield


def mark_module_stack() -> Callable[[], None]:
    """Return a function that resets export's stack of entered modules to its present state, for a caught exception."""
    with needed_for("going on with an export after an exception"):
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
    with needed_for("telling models that they are being exported"):
        _ = torch.compiler._is_compiling_flag
    flags = [name for name in ("_is_compiling_flag", "_is_exporting_flag") if hasattr(torch.compiler, name)]
    with ExitStack() as stack:
        for name in flags:
            stack.enter_context(patched(torch.compiler, name, True))
        yield


@contextmanager
def conversions_that_change_nothing_skipped() -> Iterator[None]:
    """Inside the block, ``module.to(...)`` returns at once when every tensor of the module already has the requested
    form.

    Tensors without data cannot replace parameters, so even such a call would fail during tracing.
    """
    with needed_for("tracing conversions that change nothing"):
        parse: Any = torch._C._nn._parse_to
    original = torch.nn.Module.to

    def to(self: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        wanted: tuple[Any, ...] = parse(*args, **kwargs)
        device, dtype, _, memory_format = wanted
        tensors = [*self.parameters(), *self.buffers()]
        same = memory_format is None and all(
            (device is None or device in (tensor.device, torch.device(tensor.device.type)))
            and (dtype is None or tensor.dtype == dtype or not (tensor.is_floating_point() or tensor.is_complex()))
            for tensor in tensors
        )
        return self if same else original(self, *args, **kwargs)

    with patched_here(torch.nn.Module, "to", to):
        yield


@contextmanager
def masks_taken_as_given() -> Iterator[None]:
    """Inside the block, ``nn.Transformer`` and its stacks of layers do not compare a mask with the causal one.

    They do so to hand a hint to the attention, and ask values of a tensor for it, which no graph can answer. The mask
    itself is always given as well, so the result is the same without the hint.
    """
    from torch.nn.modules import transformer

    if not hasattr(transformer, "_detect_is_causal_mask"):
        yield
        return

    def said(mask: Any, is_causal: bool | None = None, size: Any = None) -> bool:
        return is_causal is True

    with patched_here(transformer, "_detect_is_causal_mask", said):
        yield


@contextmanager
def flags_of_attention_answered() -> Iterator[None]:
    """Inside the block, attention takes ``is_causal=length > 1``: C++ refuses what sizes that are symbols answer."""
    functional = torch.nn.functional
    original: Any = functional.scaled_dot_product_attention

    def answered(value: Any) -> Any:
        return bool(value) if isinstance(value, torch.SymBool) else value

    def attention(*args: Any, **kwargs: Any) -> Any:
        return original(*map(answered, args), **{name: answered(value) for name, value in kwargs.items()})

    with patched_here(functional, "scaled_dot_product_attention", attention):
        yield


@contextmanager
def distributions_checked_in_graph() -> Iterator[None]:
    """Inside the block, ``torch.distributions`` has the graph assert what it checks of parameters and samples.

    It would raise where values are out of range, and asks values of a tensor for it, which no graph can answer.
    """
    if not hasattr(torch, "_is_all_true"):
        yield
        return
    message = "values that the distribution does not take (validate_args=False leaves this check out)"

    def asserted(valid: torch.Tensor) -> Any:
        is_all = valid.all()
        if not hasattr(is_all, "constant") or is_all.constant is not None:
            return is_all  # torch knows the value
        torch._assert_async(is_all, message)
        return True

    with patched_here(torch, "_is_all_true", asserted):
        yield


# Drop what torch would keep of every export until the process ends.


_SIZES = "torch.fx.experimental.symbolic_shapes"
_STRICT = "torch._dynamo.functional_export"
_CACHED_BY_GRAPH = (
    ("torchao.utils", "_assert_and_get_unique_device"),
    ("torch.ao.quantization.fx.utils", "assert_and_get_unique_device"),
    ("executorch.exir.backend.utils", "is_same_node"),
)
"""Functions that remember their answer for each graph, and with it the graph. Where a name is absent, nothing does."""

_LEADS_BACK = ("tracked_fakes", "fake_tensor_cache")
"""Attributes of a shape environment that hold fake tensors: inputs of the trace, and calls with whole graphs."""

_NAMES_OF_STRICT = ("__compiled_fn_", "__builtins_dict_", "___unnamed_scope")


@contextmanager
def graphs_let_go() -> Iterator[None]:
    """After the block, torch holds no graphs that were made inside it, and no facts about their sizes.

    torch holds environments of sizes, and with them graphs and stacks, in two ways: in its caches, and by fake
    tensors in an environment whose sizes lead back to it through C++, where no garbage collector looks.
    """
    sizes = sys.modules.get(_SIZES)
    if sizes is None:  # loading the module takes as long as a small trace, and code that makes sizes has loaded it
        yield
        return

    with needed_for("letting go of symbolic sizes"):
        environments: Any = sizes.ShapeEnv
    made: weakref.WeakSet[Any] = weakref.WeakSet()
    start = environments.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        start(self, *args, **kwargs)
        made.add(self)

    def let_go() -> None:
        for environment in list(made):
            for name in _LEADS_BACK:
                if getattr(environment, name, None):
                    getattr(environment, name).clear()
        by_graph = [getattr(sys.modules.get(module), name, None) for module, name in _CACHED_BY_GRAPH]
        for cached in [*vars(sizes).values(), *vars(environments).values(), *by_graph]:
            if hasattr(cached, "cache_clear"):
                cached.cache_clear()

    with undoing() as undo, patched_here(environments, "__init__", init):
        undo.add(let_go)
        yield


@contextmanager
def sources_let_go() -> Iterator[None]:
    """When a graph module from the block is freed, drop its source, too.

    torch keeps the source of every graph, for tracebacks and ``inspect``. A compile makes dozens.
    """
    with needed_for("letting go of the sources of graphs"):
        from torch.fx import graph_module

        make, sources = graph_module._method_from_src, graph_module._loader.eval_cache

    def method_from_src(*args: Any, **kwargs: Any) -> Any:
        made = make(*args, **kwargs)
        name = made.__code__.co_filename
        if name.startswith("<eval_with_key>") and name in sources:  # other names may belong to several modules
            weakref.finalize(made, forget, name).atexit = False
        return made

    def forget(name: str) -> None:
        sources.pop(name, None)
        linecache.cache.pop(name, None)

    with patched_here(graph_module, "_method_from_src", method_from_src):
        yield


@contextmanager
def strict_export_let_go() -> Iterator[None]:
    """Drop what dynamo keeps of the strict exports inside the block.

    It leaves its compiled code among the names of its own module, and registers each guard with objects that live as
    long as Python does. An export evaluates those guards once; they are never called later.
    """
    export = sys.modules.get(_STRICT)
    guards = sys.modules.get("torch._dynamo.guards")
    if export is None or guards is None:
        yield
        return

    with needed_for("letting go of strict exports"):
        manager: Any = guards.CheckFunctionManager
        _ = manager.id_ref, manager.lookup_weakrefs
    space = vars(export)
    before = set(space)

    def id_ref(self: Any, value: object, *args: Any, **kwargs: Any) -> int:
        with contextlib.suppress(TypeError):  # of what cannot be referred to weakly, such as True
            self._weakrefs.setdefault(id(value), weakref.ref(value))
        return id(value)

    def let_go() -> None:
        for name in set(space) - before:
            if name.startswith(_NAMES_OF_STRICT):
                del space[name]

    with undoing() as undo, patched_here(manager, "id_ref", id_ref):
        undo.add(let_go)
        yield
