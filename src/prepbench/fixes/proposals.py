"""``proposed_rewrites``: for each class that fails, the kind of change that removes the failure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from prepbench.document.model import Failure
from prepbench.fixes.function_source import FunctionSource
from prepbench.fixes.instrumented_runs import places_to_change
from prepbench.fixes.kinds import KINDS
from prepbench.fixes.kinds.kind import RewriteKind
from prepbench.fixes.results import CannotRewrite
from prepbench.fixes.rewrite import Rewrite
from prepbench.inputs import Sample


def proposed_rewrites(
    model: torch.nn.Module, samples: Sequence[Sample], failures: Iterable[Failure]
) -> tuple[Rewrite, ...]:
    """A rewrite for each class whose failure one of the :data:`~prepbench.fixes.kinds.KINDS` removes.

    A rewrite without a diff says why nothing can be proposed.
    """
    found: dict[tuple[type, str], Rewrite] = {}
    modules = dict(model.named_modules(remove_duplicate=False))
    for failure in failures:
        module = modules.get(failure.fqn)
        if module is None:  # inside a scripted module, whose source is not Python's
            continue
        for kind in KINDS:
            key = type(module), kind.name
            if failure.kind in kind.failures and key not in found:
                found[key] = _proposal(kind, model, failure.fqn, samples)
    return tuple(rewrite for rewrite in found.values() if rewrite.diff or rewrite.reason)


def _proposal(kind: RewriteKind, model: torch.nn.Module, fqn: str, samples: Sequence[Sample]) -> Rewrite:
    module = model.get_submodule(fqn)
    name, place = type(module).__name__, None
    try:
        source = FunctionSource.of(module.forward)
        place = source.place
        places = places_to_change(kind, source, model, fqn, samples)
        if not places:
            return Rewrite(fqn, name, place)
        code = source.edited(kind.edits(source.tree, places))
        function = source.compiled(code)
    except CannotRewrite as error:
        return Rewrite(fqn, name, place, reason=str(error), kind=kind.name, right_if=kind.right_if)
    return Rewrite(
        fqn, name, place, source.diff(code), code, "", kind.name, kind.right_if, function, kind, tuple(sorted(places))
    )
