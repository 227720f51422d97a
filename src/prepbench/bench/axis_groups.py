"""Groups inputs whose sizes always agree, such as all keys and values of a cache."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from prepbench.capture.sizes.axis import counted_places, in_pattern

_NAMED = 2  # patterns


@dataclass(frozen=True)
class InputGroup:
    """Inputs of one argument whose sizes agree.

    Attributes:
        text: how they are called, as tables of axes do, e.g. ``"past.*"``.
        paths: the arguments of ``DynamicAxes``'s methods for exactly these inputs: patterns, or the paths where none
            fits.
        members: their paths.
    """

    text: str
    paths: tuple[str, ...]
    members: tuple[str, ...]


def input_groups(kinds: Mapping[str, Hashable]) -> list[InputGroup]:
    """Return the inputs of each argument grouped by kind, in their order.

    Args:
        kinds: by the path of each input, a value that inputs of one group share.

    Example:
        >>> kinds = {"x": 1, **{f"past[{i}].{part}": 2 for i in range(2) for part in ("key", "value")}}
        >>> [(group.text, group.paths, len(group.members)) for group in input_groups(kinds)]
        [('x', ('x',), 1), ('past.*', ('past.*',), 4)]
    """
    alike: dict[tuple[str, Hashable], list[str]] = {}
    for path, kind in kinds.items():
        alike.setdefault((re.split(r"[.\[]", path)[0], kind), []).append(path)
    return [_group(paths, kinds) for paths in alike.values()]


def _group(members: list[str], every: Mapping[str, Hashable]) -> InputGroup:
    patterns = [re.sub(r" \(\d+\)$", "", text) for text in counted_places(members, every)]
    meant = {path for path in every if any(in_pattern(pattern, path) for pattern in patterns)}
    # a pattern may mean others, too: every second layer of a cache may be another one
    paths = patterns if meant == set(members) else members
    rest = len(patterns) - _NAMED
    text = ", ".join(patterns[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
    return InputGroup(text, tuple(paths), tuple(members))
