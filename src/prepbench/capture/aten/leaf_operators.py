"""The operator that stands for a leaf module: its fake implementation is learned, its real one calls it."""

from __future__ import annotations

import itertools
import re
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench._torch_compat.operators import OpOverload, is_registered, registered_operators
from prepbench._torch_compat.tensors import memory_of
from prepbench.capture.aten.leaf_memory import leaves_written_into
from prepbench.capture.aten.leaf_outputs import LeafOutputs
from prepbench.capture.sizes.learned_outputs import UnknownOutputsError
from prepbench.capture.statements.statement_leaf import ReleasedLeaf, StatementLeaf
from prepbench.errors import CaptureError
from prepbench.patching import patched_item
from prepbench.running.compare_samples import is_same
from prepbench.running.object_nodes import refill
from prepbench.running.replaced_forward import FURTHER

_NAMESPACE = "prepbench_leaf"
_SCHEMA_TYPES = ((torch.Tensor, "Tensor"), (torch.SymInt, "SymInt"), (torch.SymFloat, "float"))


@dataclass(frozen=True)
class _Signature:
    """How the operator's flat arguments become a call: which positions are arguments, and the values of the rest.

    ``repeats`` has the positions of tensors that were given before, and where.
    """

    spec: pytree.TreeSpec
    kinds: tuple[str, ...]
    fixed: tuple[Any, ...]
    repeats: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, leaves: Sequence[Any], spec: pytree.TreeSpec) -> _Signature:
        kinds = [_kind(leaf) for leaf in leaves]
        first: dict[int, int] = {}
        repeats = []
        for index, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor) and first.setdefault(id(leaf), index) != index:
                repeats.append((index, first[id(leaf)]))
                kinds[index] = ""
        fixed = tuple(
            None if kind or isinstance(leaf, torch.Tensor) else leaf for leaf, kind in zip(leaves, kinds, strict=True)
        )
        return cls(spec, tuple(kinds), fixed, tuple(repeats))

    def leaves(self, arguments: Sequence[Any]) -> list[Any]:
        given = iter(arguments)
        leaves = [next(given) if kind else value for kind, value in zip(self.kinds, self.fixed, strict=True)]
        return self.with_repeats(leaves)

    def with_repeats(self, leaves: list[Any]) -> list[Any]:
        for index, first in self.repeats:
            leaves[index] = leaves[first]
        return leaves

    def first_of(self, places: Sequence[int]) -> list[int]:
        """The places without those that repeat an earlier one."""
        repeats = dict(self.repeats)
        return sorted({repeats.get(place, place) for place in places})

    def matches(self, other: _Signature) -> bool:
        # fixed values may be modules or tensors' owners: compare what cannot be compared by identity
        return (
            self.spec == other.spec
            and self.kinds == other.kinds
            and self.repeats == other.repeats
            and all(type(a) is type(b) and is_same(a, b) for a, b in zip(self.fixed, other.fixed, strict=True))
        )


class UnknownInputError(UnknownOutputsError):
    """A leaf is called with something that an operator cannot take."""


class KeepAlive:
    """What a graph with leaves needs in order to run: the model and the libraries that registered its operators.

    It travels in ``GraphModule.meta``, which ``torch.export`` and PT2E pass on to the graphs they make.
    """

    def __init__(
        self, model: torch.nn.Module, libraries: list[torch.library.Library], owner: _Owner | None = None
    ) -> None:
        self.model = model
        self.libraries = libraries
        self._owner = owner

    @contextmanager
    def running_on(self, twin: torch.nn.Module) -> Iterator[None]:
        """Inside the block, the operators run the leaves of a twin of the model when this thread calls them."""
        if self._owner is None:
            yield
            return
        with patched_item(self._owner.stand_ins, threading.get_ident(), twin):
            yield

    def __deepcopy__(self, memo: Any) -> KeepAlive:
        return self

    def __reduce__(self) -> Any:
        # pickled graphs are for other processes, where the operators do not exist
        return KeepAlive, (torch.nn.Module(), [])


class _Owner:
    """The model that has the leaves, which no operator keeps alive by itself."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.reference = weakref.ref(model)
        self.stand_ins: dict[int, torch.nn.Module] = {}
        self._originals: dict[int, Any] = {}
        self._statements: Mapping[str, StatementLeaf | ReleasedLeaf] = vars(model).get(FURTHER, {})
        self._names = {id(module): fqn for fqn, module in model.named_modules()}

    def forward(self, fqn: str) -> Callable[..., Any]:
        """What a leaf runs."""
        leaf = self._statements.get(fqn)
        model = self._model(fqn)
        if leaf is not None:
            return leaf.on(model)
        forward: Callable[..., Any] = model.get_submodule(fqn).forward
        return forward

    def own(self, fqn: str, value: Any) -> Any:
        """A value that is fixed in the graph, such as a module that the leaf is called with, as that of the model."""
        name = self._names.get(id(value))
        return self._originals.get(id(value), value) if name is None else self._model(fqn).get_submodule(name)

    def give_to(self, model: torch.nn.Module, original: Callable[[Any], Any], values: Iterable[Any]) -> None:
        """Run the leaves of another model, which nothing here keeps alive.

        Args:
            original: gives the part of it that a part of this one stands for.
            values: those that are fixed in the graph.
        """
        self.reference = weakref.ref(model)
        self._statements = {fqn: leaf.released(original) for fqn, leaf in self._statements.items()}
        self._originals = {id(value): original(value) for value in values}

    def _model(self, fqn: str) -> torch.nn.Module:
        model = self.stand_ins.get(threading.get_ident()) or self.reference()
        if model is None:
            raise CaptureError(f"The model with the leaf {fqn!r} no longer exists: keep the Captured object.")
        return model


# A graph that lost its meta (by being exported again) still runs as long as its model lives.
_LIBRARIES: weakref.WeakKeyDictionary[torch.nn.Module, list[torch.library.Library]] = weakref.WeakKeyDictionary()


class LeafOperators:
    """Makes the operators of one capture.

    The operators live as long as the model, or as any graph that holds :attr:`keep_alive`.

    Args:
        model: the model that has the leaves.
        outputs: gives the learned outputs of a module by name.
    """

    def __init__(self, model: torch.nn.Module, outputs: Callable[[str], LeafOutputs]) -> None:
        self._outputs = outputs
        self._made: dict[str, list[tuple[_Signature, Any]]] = {}
        self._namespace = ""
        self._strict: set[Any] = set()
        self._owner = _Owner(model)
        self.keep_alive = KeepAlive(model, [], self._owner)

    def run_on(self, model: torch.nn.Module, original: Callable[[Any], Any]) -> None:
        """From now on the operators call the submodules of another model, of which the first was a twin.

        Args:
            model: the other model.
            original: gives the part of it that a part of the first stands for.
        """
        made = [signature for known in self._made.values() for signature, _ in known]
        self._owner.give_to(model, original, [value for signature in made for value in signature.fixed])
        self.keep_alive.model = model
        _LIBRARIES.setdefault(model, []).extend(self.keep_alive.libraries)

    def call(self, fqn: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the operator for a submodule; while tracing, this is one node.

        Raises:
            UnknownOutputsError: the outputs of the module cannot be described.
        """
        learned = self._outputs(fqn)
        leaves, spec = pytree.tree_flatten((args, kwargs))
        signature = _Signature.of(leaves, spec)
        changed = signature.first_of(learned.changed_inputs(leaves))
        operator = self._operator(fqn, signature, learned, leaves)
        results = operator(*[leaf for leaf, kind in zip(leaves, signature.kinds, strict=True) if kind])
        tensors = iter([results] if isinstance(results, torch.Tensor) else results or ())
        result = learned.rebuild(leaves, tensors)
        for index in changed:
            leaves[index].copy_(next(tensors))
        if not learned.restructures(leaves):
            return result
        output, arguments = result
        refill((args, kwargs), arguments)
        return output

    def refuse_shared_memory(self, graph: torch.fx.Graph) -> None:
        """Make those leaves raise that return memory of their arguments where ``graph`` writes into it."""
        self._strict |= {str(target) for target in leaves_written_into(graph, is_leaf_operator)}

    def in_graph(self, graph: torch.fx.Graph) -> set[str]:
        """The names of the leaves that a graph calls."""
        targets = {node.target for node in graph.nodes}
        return {fqn for fqn, made in self._made.items() if any(operator in targets for _, operator in made)}

    def _operator(self, fqn: str, signature: _Signature, learned: LeafOutputs, leaves: Sequence[Any]) -> Any:
        made = self._made.setdefault(fqn, [])
        for known, operator in made:
            if known.matches(signature):
                return operator
        self._namespace = self._namespace or _free_namespace()
        name = _free_name(self._namespace, fqn)
        library = torch.library.Library(self._namespace, "FRAGMENT")
        count = learned.count_tensors(leaves) + len(signature.first_of(learned.changed_inputs(leaves)))
        library.define(name + _schema(signature, count))
        strict, full_name = self._strict, f"{self._namespace}.{name}.default"
        real = _real(fqn, self._owner, signature, learned, lambda: full_name in strict)
        library.impl(name, real, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{self._namespace}::{name}", _fake(signature, learned), lib=library)
        self.keep_alive.libraries.append(library)
        _LIBRARIES.setdefault(self.keep_alive.model, []).append(library)
        operator = getattr(getattr(torch.ops, self._namespace), name).default
        made.append((signature, operator))
        return operator


def is_leaf_operator(target: Any) -> bool:
    """Whether the target of a graph node is a leaf module's operator."""
    return isinstance(target, OpOverload) and target.namespace.startswith(_NAMESPACE)


def leaf_label(target: Any) -> str:
    """The lines that a leaf's operator stands for, in words; "" if it stands for a module."""
    found = re.search(r"(?:^|[._])line_(\d+)(?:_to_(\d+))?(?:_\d+)*(?:\.default)?$", str(target))
    if found is None:
        return ""
    return f"lines {found[1]} to {found[2]}" if found[2] else f"line {found[1]}"


def _real(
    fqn: str,
    owner: _Owner,
    signature: _Signature,
    learned: LeafOutputs,
    is_written_into: Callable[[], bool],
) -> Callable[..., Any]:
    def real(*arguments: Any) -> Any:
        forward = owner.forward(fqn)
        fixed = [owner.own(fqn, value) for value in signature.fixed]
        leaves = replace(signature, fixed=tuple(fixed)).leaves(arguments)
        changed = signature.first_of(learned.changed_inputs(leaves))
        for index in changed:
            leaves[index] = leaves[index].clone()
        signature.with_repeats(leaves)
        args, kwargs = pytree.tree_unflatten(leaves, signature.spec)
        with torch.no_grad():
            output = forward(*args, **kwargs)
        outputs = learned.tensors_of(leaves, output, (args, kwargs))
        if is_written_into() and _share_memory(pytree.tree_leaves(output), leaves):
            raise UnknownOutputsError(
                f"{learned.name}: a leaf returned memory of its argument, and the captured graph writes into one of "
                "them later, which the other would not see. Return a copy (.clone()), or make the module around it the "
                "leaf (leaf_modules=)."
            )
        separate = _without_aliases(outputs, [*arguments, *leaves])
        return _returned(separate + [leaves[index] for index in changed])

    return real


def _fake(signature: _Signature, learned: LeafOutputs) -> Callable[..., Any]:
    def fake(*arguments: Any) -> Any:
        leaves = signature.leaves(arguments)
        # a size that no rule explains becomes a number which only the real call knows
        outputs = learned.fake_tensors(leaves, unknown_size=lambda: torch.library.get_ctx().new_dynamic_size())
        changed = signature.first_of(learned.changed_inputs(leaves))
        return _returned(outputs + [torch.empty_like(leaves[index]) for index in changed])

    return fake


def _returned(outputs: list[torch.Tensor]) -> Any:
    return outputs[0] if len(outputs) == 1 else tuple(outputs) if outputs else None


def _share_memory(outputs: Sequence[Any], arguments: Sequence[Any]) -> bool:
    tensors = [[leaf for leaf in leaves if isinstance(leaf, torch.Tensor)] for leaves in (outputs, arguments)]
    storages = [[memory_of(leaf) for leaf in leaves] for leaves in tensors]
    return len(set(storages[0])) < len(storages[0]) or bool(set(storages[0]) & set(storages[1]))


def _without_aliases(outputs: list[torch.Tensor], arguments: Sequence[Any]) -> list[torch.Tensor]:
    """An operator may not return its arguments, or one tensor twice."""
    seen = {memory_of(leaf) for leaf in arguments if isinstance(leaf, torch.Tensor)}
    result = []
    for tensor in outputs:
        storage = memory_of(tensor)
        result.append(tensor.clone() if storage in seen else tensor)
        seen.add(storage)
    return result


def _kind(leaf: Any) -> str:
    for kind, name in _SCHEMA_TYPES:
        if isinstance(leaf, kind):
            return name
    if isinstance(leaf, torch.SymBool):
        raise UnknownInputError("A leaf cannot take a truth value that depends on sizes or data.")
    return ""


def _schema(signature: _Signature, outputs: int) -> str:
    kinds = [kind for kind in signature.kinds if kind]
    arguments = ", ".join(f"{kind} x{index}" for index, kind in enumerate(kinds))
    return f"({arguments}) -> " + ("Tensor" if outputs == 1 else "(" + ", ".join(["Tensor"] * outputs) + ")")


def _free_namespace() -> str:
    used = {name.partition("::")[0] for name in registered_operators() if name.startswith(_NAMESPACE)}
    candidates = (f"{_NAMESPACE}{number or ''}" for number in itertools.count())
    return next(name for name in candidates if name not in used)


def _free_name(namespace: str, fqn: str) -> str:
    # names in a Sequential are numbers, and operator names may not start with one
    stem = re.sub(r"\W", "_", f"layer_{fqn}" if fqn[:1].isdigit() else fqn or "model")
    candidates = (f"{stem}_{number}" if number else stem for number in itertools.count())
    return next(name for name in candidates if not is_registered(f"{namespace}::{name}"))
