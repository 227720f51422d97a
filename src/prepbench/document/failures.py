"""Failures as people read them: one reason at one line is said once, whichever modules it is for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from prepbench.document.model import Failure


def alike_failures(failures: Iterable[Failure]) -> list[Failure]:
    """Those of one reason at one line as one failure, with the names of all modules that fail so.

    The FQN of such a failure is e.g. ``"layers.*.attention (24)"``; it is for reading only.
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
    """The failure as one of some lines of its module; ``failure`` itself is changed."""
    # no field: documents and their schema know the lines by the label of the node
    object.__setattr__(failure, "_lines", lines)
    return failure


def _names(fqns: Iterable[str]) -> str:
    """Names with ``*`` for numbers, each with how many it stands for."""
    counts = Counter(re.sub(r"(?<![^.])\d+(?![^.])", "*", fqn) or "the model" for fqn in fqns)
    return ", ".join(f"{name} ({count})" if count > 1 else name for name, count in counts.items())
