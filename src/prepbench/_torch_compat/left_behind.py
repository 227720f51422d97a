"""Drop what torch would keep of every export until the process ends."""

from __future__ import annotations

import contextlib
import linecache
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prepbench._torch_compat.checks import needed_for
from prepbench.patching import patched_here, undoing

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
