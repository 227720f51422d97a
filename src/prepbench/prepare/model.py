"""``PreparedModel``: the graph of a model as a module with the model's layers, names, attributes and hooks."""

from __future__ import annotations

import copy
import os
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx

from prepbench._display import view
from prepbench._torch_compat import pytree
from prepbench._torch_compat.fake_tensors import is_fake
from prepbench.capture.modules.collection import GraphCollection, recursive_trace
from prepbench.capture.modules.trace_result import TraceResult
from prepbench.prepare.operations import function_name
from prepbench.prepare.report import PreparationReport

Check = Callable[["PreparedModel", tuple[Any, ...], dict[str, Any]], None]

# attributes of FX's graph module and its class, which the user's model cannot have
_OWN = frozenset(vars(fx.GraphModule(torch.nn.Module(), fx.Graph()))) - frozenset(vars(torch.nn.Module())) | {
    "_original_type", "_checks", "preparation_report", "forward", "_compiled_call_impl",
}  # fmt: skip
_TAKEN = frozenset(dir(fx.GraphModule)) - frozenset(dir(torch.nn.Module))


class PreparedModel(fx.GraphModule):
    """A prepared model: an FX graph in which operations are modules.

    Layers are those of the original, not copies, and keep their names; so do parameters, buffers, attributes and
    methods of the original model. Made by :func:`prepbench.prepare_model`.

    Attributes:
        preparation_report: changes, kept operations with reasons, and the differences of outputs.
    """

    preparation_report: PreparationReport

    @classmethod
    def of(cls, model: torch.nn.Module, trace: TraceResult) -> PreparedModel:
        """Make a module of a traced graph, before any pass. Call :meth:`recompile` after the passes.

        It takes over the graph. ``model`` is not changed.
        """
        graph = trace.graph
        root = _shells(model, graph)
        for name, value in trace.constants.items():
            if isinstance(value, torch.Tensor):
                root.register_buffer(name, value, persistent=False)
            else:
                vars(root)[name] = value
        for node in graph.nodes:
            if node.op.startswith("call"):
                name = "" if node.op == "call_module" else function_name(node.target)
                value = node.meta.get("val")
                node.meta["rank"] = value.dim() if isinstance(value, torch.Tensor) else None
                node.meta["origin"] = str(node.meta.get("fqn", "")), name
        known = isinstance(model, PreparedModel)
        return cls._made(vars(root), graph, *((model._original_type, model._checks) if known else (type(model), ())))

    @classmethod
    def _made(
        cls, attributes: dict[str, Any], graph: fx.Graph, original: type, checks: tuple[Check, ...]
    ) -> PreparedModel:
        made = cls(torch.nn.Module(), fx.Graph(), class_name=original.__name__)
        for name, value in attributes.items():
            if name not in _OWN and name not in _TAKEN:
                vars(made)[name] = value
        vars(made).update(_original_type=original, _checks=checks)
        vars(made)["_graph"] = graph
        graph.owning_module = made
        return made

    def add_check(self, check: Check) -> None:
        """Call ``check`` with the arguments of every call before the graph runs; it raises to refuse a call."""
        self._checks: tuple[Check, ...] = (*self._checks, check)

    @property
    def original_type(self) -> type:
        """The class of the original model."""
        kind: type = self._original_type
        return kind

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph on the arguments of the original."""
        if self._checks and _are_real(args, kwargs):
            for check in self._checks:
                check(self, args, kwargs)
        return super().__call__(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            original = vars(self).get("_original_type")
            found = getattr(original, name, _MISSING) if original and not name.startswith("__") else _MISSING
            if found is _MISSING:
                raise
        if isinstance(found, property):
            return found.__get__(self)
        return types.MethodType(found, self) if isinstance(found, types.FunctionType) else found

    def __deepcopy__(self, memo: dict[int, Any]) -> PreparedModel:
        kept = {name: value for name, value in vars(self).items() if name not in _OWN}
        return self._with(copy.deepcopy(kept, memo), _copy_of(self.graph))

    def __copy__(self) -> PreparedModel:
        graph = _copy_of(self.graph)
        return self._with(vars(_shells(self, graph)), graph)

    def _with(self, attributes: dict[str, Any], graph: fx.Graph) -> PreparedModel:
        made = PreparedModel._made(attributes, graph, self._original_type, self._checks)
        made.preparation_report = self.preparation_report
        made.recompile()
        return made

    def strip(self) -> None:
        """Remove metadata of tracing and the passes, because it would mislead a later export of this model."""
        for node in self.graph.nodes:
            node.meta.pop("val", None)
            for name in ("by_mode", "nn_module_stack"):
                node.meta.pop(name, None)


_MISSING = object()


def _are_real(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether this is a call on real data, and not during tracing or export."""
    leaves = pytree.tree_leaves((args, kwargs))
    return not any(isinstance(leaf, fx.Proxy) or (isinstance(leaf, torch.Tensor) and is_fake(leaf)) for leaf in leaves)


def names_taken(model: torch.nn.Module) -> list[str]:
    """Return the attributes of ``model`` that a graph module uses itself: the prepared model cannot have them."""
    return [] if isinstance(model, PreparedModel) else [name for name in vars(model) if name in _TAKEN]


def _copy_of(graph: fx.Graph) -> fx.Graph:
    copied, values = fx.Graph(), dict[fx.Node, fx.Node]()
    copied.output(copied.graph_copy(graph, values))
    for new, old in zip(copied.nodes, graph.nodes, strict=True):
        new.meta = dict(old.meta)
    return copied


def _shells(root: torch.nn.Module, graph: fx.Graph) -> torch.nn.Module:
    """Return copies of the modules whose code the graph contains; layers, parameters and all else are shared."""
    above = {""}
    for node in graph.nodes:
        if node.op == "call_module":
            above |= {*_ancestors(str(node.target))}
        elif node.op != "get_attr":
            above |= {*_ancestors(f"{node.meta.get('fqn', '')}.")}
    done: dict[int, torch.nn.Module] = {}

    def shell(module: torch.nn.Module, name: str) -> torch.nn.Module:
        if name not in above or isinstance(module, torch.jit.ScriptModule):
            return module
        if id(module) not in done:
            made = done[id(module)] = _shell_of(module)
            vars(made)["_modules"] = {
                key: child if child is None else shell(child, f"{name}.{key}" if name else key)
                for key, child in module._modules.items()
            }
        return done[id(module)]

    return shell(root, "")


def _shell_of(module: torch.nn.Module) -> torch.nn.Module:
    kind = torch.nn.Module if isinstance(module, fx.GraphModule) else type(module)
    made: torch.nn.Module = object.__new__(kind)
    for name, value in vars(module).items():
        own = name.startswith("_") and isinstance(value, dict | set)
        vars(made)[name] = copy.copy(value) if own else value
    return made


def _ancestors(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[:index]) for index in range(1, len(parts)))


# The graphs of a model before and after preparation, side by side.


@dataclass(frozen=True)
class BeforeAfter:
    """The graphs of the original and of the prepared model, which a notebook shows side by side."""

    before: GraphCollection
    after: GraphCollection

    def __repr__(self) -> str:
        return f"before: {self.before!r}\nafter: {self.after!r}"

    def diagram(self) -> Any:
        """Return the live diagram: both graphs side by side, with linked selection and changes marked."""
        return view("views.display", "diagram", self.before, self.after, compare=True)

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """Write both graphs, side by side and interactive, to one HTML file that needs no network; return its path."""
        both = view("views.display", "combined", self.before, self.after, compare=True)
        written: Path = view("views.page", "write_page", both, path)
        return written

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        return view("views.display", "before_after_bundle", self)


def before_and_after(model: torch.nn.Module, prepared: PreparedModel, *, inputs: Any = None) -> BeforeAfter:
    """Return the graphs of both models, to show the changes by preparation.

    Args:
        model: the original.
        prepared: the result of :func:`prepbench.prepare_model`.
        inputs: sample inputs, as for :func:`prepbench.recursive_trace`.
    """
    return BeforeAfter(recursive_trace(model, inputs=inputs), recursive_trace(prepared, inputs=inputs))
