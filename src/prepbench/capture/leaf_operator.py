"""One opaque operator that stands for a submodule: its fake implementation is learned, its real one calls the submodule."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from prepbench.capture.leaf_outputs import LeafOutputs, LeafOutputsError, TensorLeaf

_NAMESPACE = "prepbench_leaf"
_SCHEMA_TYPES = ((torch.Tensor, "Tensor"), (torch.SymInt, "SymInt"), (torch.SymFloat, "float"))


@dataclass(frozen=True)
class _Signature:
    """How the operator's flat arguments become a call: positions that are arguments, and the fixed values of the rest."""

    spec: pytree.TreeSpec
    kinds: tuple[str, ...]
    fixed: tuple[Any, ...]

    @classmethod
    def of(cls, leaves: Sequence[Any], spec: pytree.TreeSpec) -> _Signature:
        kinds = tuple(_kind(leaf) for leaf in leaves)
        return cls(spec, kinds, tuple(None if kind else leaf for leaf, kind in zip(leaves, kinds, strict=True)))

    def leaves(self, arguments: Sequence[Any]) -> list[Any]:
        given = iter(arguments)
        return [next(given) if kind else value for kind, value in zip(self.kinds, self.fixed, strict=True)]

    def matches(self, other: _Signature) -> bool:
        # fixed values may be modules or tensors' owners: compare what cannot be compared by identity
        return (
            self.spec == other.spec
            and self.kinds == other.kinds
            and all(
                a is b or (type(a) is type(b) and _equal(a, b)) for a, b in zip(self.fixed, other.fixed, strict=True)
            )
        )


class LeafOperators:
    """Makes the operators of one capture.

    An operator lives as long as a graph that calls it: it holds the library that registered it.

    Args:
        outputs: gives the learned outputs of a module by name.
    """

    def __init__(self, outputs: Callable[[str], LeafOutputs]) -> None:
        self._outputs = outputs
        self._made: dict[str, list[tuple[_Signature, Any]]] = {}

    def call(self, fqn: str, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the operator for the module ``fqn``; while tracing, this is one node.

        Raises:
            LeafOutputsError: the outputs of the module cannot be described.
        """
        learned = self._outputs(fqn)
        leaves, spec = pytree.tree_flatten((args, kwargs))
        flat, output_spec = learned.fake_flat(leaves, unknown_size=_any_size)
        signature = _Signature.of(leaves, spec)
        operator = self._operator(fqn, signature, forward, learned, leaves)
        results = operator(*[leaf for leaf, kind in zip(leaves, signature.kinds, strict=True) if kind])
        values = iter([results] if isinstance(results, torch.Tensor) else results or ())
        outputs = [next(values) if isinstance(leaf, torch.Tensor) else leaf for leaf in flat]
        for index in learned.changed_inputs(leaves):
            leaves[index].copy_(next(values))
        return pytree.tree_unflatten(outputs, output_spec)

    def _operator(
        self, fqn: str, signature: _Signature, forward: Callable[..., Any], learned: LeafOutputs, leaves: Sequence[Any]
    ) -> Any:
        made = self._made.setdefault(fqn, [])
        for known, operator in made:
            if known.matches(signature):
                return operator
        name = _free_name(fqn)
        library = torch.library.Library(_NAMESPACE, "FRAGMENT")
        count = sum(isinstance(leaf, TensorLeaf) for leaf in learned.variant_outputs(leaves))
        count += len(learned.changed_inputs(leaves))
        library.define(name + _schema(signature, count))
        library.impl(name, _real(forward, signature, learned), "CompositeExplicitAutograd")
        torch.library.register_fake(f"{_NAMESPACE}::{name}", _fake(signature, learned), lib=library)
        operator = getattr(getattr(torch.ops, _NAMESPACE), name).default
        operator._prepbench_library = library
        # torch.ops caches every operator it ever looked up, which would keep the module alive for ever
        vars(getattr(torch.ops, _NAMESPACE)).pop(name, None)
        made.append((signature, operator))
        return operator


def is_leaf_operator(target: Any) -> bool:
    """Whether the target of a graph node is a leaf module's operator."""
    return isinstance(target, torch._ops.OpOverload) and target.namespace == _NAMESPACE


def _any_size() -> Any:
    # outside the fake implementation only the structure of the outputs matters
    return 2


def _real(forward: Callable[..., Any], signature: _Signature, learned: LeafOutputs) -> Callable[..., Any]:
    def real(*arguments: Any) -> Any:
        leaves = signature.leaves(arguments)
        changed = learned.changed_inputs(leaves)
        for index in changed:
            leaves[index] = leaves[index].clone()
        args, kwargs = pytree.tree_unflatten(leaves, signature.spec)
        with torch.no_grad():
            flat = pytree.tree_leaves(forward(*args, **kwargs))
        outputs = [
            _promised(leaf, learned.layout_of(leaves, index))
            for index, leaf in enumerate(flat)
            if isinstance(leaf, torch.Tensor)
        ]
        return _returned(_without_aliases(outputs, arguments) + [leaves[index] for index in changed])

    return real


def _fake(signature: _Signature, learned: LeafOutputs) -> Callable[..., Any]:
    def fake(*arguments: Any) -> Any:
        leaves = signature.leaves(arguments)
        # a size that no rule explains becomes a number which only the real call knows
        flat, _ = learned.fake_flat(leaves, unknown_size=lambda: torch.library.get_ctx().new_dynamic_size())
        outputs = [leaf for leaf in flat if isinstance(leaf, torch.Tensor)]
        return _returned(outputs + [torch.empty_like(leaves[index]) for index in learned.changed_inputs(leaves)])

    return fake


def _returned(outputs: list[torch.Tensor]) -> Any:
    return outputs[0] if len(outputs) == 1 else tuple(outputs) if outputs else None


def _promised(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    wanted = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    return tensor.detach().contiguous(memory_format=wanted)


def _without_aliases(outputs: list[torch.Tensor], arguments: Sequence[Any]) -> list[torch.Tensor]:
    """An operator may not return its arguments, or one tensor twice."""
    seen = {leaf.untyped_storage()._cdata for leaf in arguments if isinstance(leaf, torch.Tensor)}
    result = []
    for tensor in outputs:
        storage = tensor.untyped_storage()._cdata
        result.append(tensor.clone() if storage in seen else tensor)
        seen.add(storage)
    return result


def _kind(leaf: Any) -> str:
    for kind, name in _SCHEMA_TYPES:
        if isinstance(leaf, kind):
            return name
    if isinstance(leaf, torch.SymBool):
        raise LeafOutputsError("A leaf module cannot take a truth value that depends on sizes or data.")
    return ""


def _schema(signature: _Signature, outputs: int) -> str:
    kinds = [kind for kind in signature.kinds if kind]
    arguments = ", ".join(f"{kind} x{index}" for index, kind in enumerate(kinds))
    return f"({arguments}) -> " + ("Tensor" if outputs == 1 else "(" + ", ".join(["Tensor"] * outputs) + ")")


def _free_name(fqn: str) -> str:
    """A name that no living operator has; the same in every process that makes the same captures."""
    stem = re.sub(r"\W", "_", fqn) or "root"
    candidates = (f"{stem}_{number}" if number else stem for number in itertools.count())
    return next(name for name in candidates if not torch._C._dispatch_has_kernel(f"{_NAMESPACE}::{name}"))


def _equal(one: Any, two: Any) -> bool:
    try:
        return bool(one == two)
    except (RuntimeError, TypeError, ValueError):  # objects whose == has no truth value
        return False
