"""Merge failures for display: one reason at one line is shown once, with all its modules."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from prepbench.document.model import Failure


def alike_failures(failures: Iterable[Failure]) -> list[Failure]:
    """Merge failures of one reason at one line into one, with the names of all its modules.

    The FQN of such a failure is e.g. ``"layers.*.attention (24)"``; it is for display only.
    """
    alike: dict[object, list[Failure]] = {}
    for failure in failures:
        place = failure.source or failure.message
        alike.setdefault((failure.module_type, failure.kind, failure.exception_type, place), []).append(failure)
    return [
        with_lines(replace(same[0], fqn=_names(failure.fqn for failure in same)), same[0].lines)
        if len(same) > 1
        else same[0]
        for same in alike.values()
    ]


def with_lines(failure: Failure, lines: tuple[int, int] | None) -> Failure:
    """Change a failure in place to one of some lines of its module, and return it."""
    # no field: documents and their schema know the lines by the label of the node
    object.__setattr__(failure, "_lines", lines)
    return failure


def _names(fqns: Iterable[str]) -> str:
    """Return names with ``*`` for numbers, each with the number of names it stands for."""
    counts = Counter(re.sub(r"(?<![^.])\d+(?![^.])", "*", fqn) or "the model" for fqn in fqns)
    return ", ".join(f"{name} ({count})" if count > 1 else name for name, count in counts.items())
