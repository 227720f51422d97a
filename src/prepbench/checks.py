"""Checks of the arguments of public functions, one function for each kind of argument.

Each names the argument and the expected value. They raise before any work is done, instead of a later error in code
that would have used the argument.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Iterable, Mapping
from typing import Any

from prepbench.errors import SettingsError


def check_switch(name: str, value: object) -> None:
    """Raise ``SettingsError`` unless the value is True or False; ``"no"`` and ``0`` are neither."""
    if type(value) is not bool:
        raise SettingsError(f"{name} must be True or False, got {described(value)}. Write {name}=True or {name}=False.")


def check_switches(**values: object) -> None:
    """Run :func:`check_switch` for several arguments by name."""
    for name, value in values.items():
        check_switch(name, value)


def check_function(name: str, value: object, call: str, *, optional: bool = False) -> None:
    """Raise ``SettingsError`` unless the value can be called, in a form such as ``"metric(output, target)"``."""
    if not (callable(value) or (optional and value is None)) or isinstance(value, type):
        leave_out = ", or leave it out" if optional else ""
        raise SettingsError(
            f"{name} must be a function, got {described(value)}. Give one that can be called as {call}{leave_out}."
        )


def check_progress(value: object) -> None:
    """Raise ``SettingsError`` unless the value is a progress callback."""
    if not callable(value) or isinstance(value, type):
        raise SettingsError(
            f"progress must be a function, got {described(value)}. Give one that takes a Progress, such as print, or "
            "leave it out."
        )


def check_path(name: str, value: object, *, optional: bool = False) -> None:
    """Raise ``SettingsError`` unless the value is text or a ``pathlib.Path``."""
    if optional and value is None:
        return
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(path, str) or not path or "\0" in path:
        raise SettingsError(f"{name} must be a path, got {described(value)}. Give text or a pathlib.Path.")


def check_text(name: str, value: object, example: str, *, optional: bool = False) -> None:
    """Raise ``SettingsError`` unless the value is text."""
    if not (isinstance(value, str) or (optional and value is None)):
        raise SettingsError(f"{name} must be text, got {described(value)}. Write {name}={example!r}.")


def check_texts(name: str, value: object, example: str, *, optional: bool = False) -> None:
    """Raise ``SettingsError`` unless the value is a list, tuple or set of texts."""
    if optional and value is None:
        return
    given = value if isinstance(value, list | tuple | set | frozenset) else [None]
    if not all(isinstance(text, str) for text in given):
        raise SettingsError(f"{name} must be a list of texts, got {described(value)}. Write {name}=[{example!r}].")


def check_count(name: str, value: object, low: int = 0, *, optional: bool = False) -> None:
    """Raise ``SettingsError`` unless the value is a whole number of at least ``low``."""
    if optional and value is None:
        return
    if type(value) is not int or value < low:
        raise SettingsError(
            f"{name} must be a whole number of at least {low}{' or None' if optional else ''}, got {described(value)}. "
            f"Write {name}={low}, for example."
        )


def check_seconds(name: str, value: object, *, optional: bool = False) -> None:
    """Raise ``SettingsError`` unless the value is a positive number of seconds."""
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value) or value <= 0:
        raise SettingsError(
            f"{name} must be a positive number of seconds{' or None' if optional else ''}, got {described(value)}. "
            f"Write {name}=60.0, for example."
        )


def check_table(name: str, value: object, example: str, *, optional: bool = False) -> None:
    """Raise ``SettingsError`` unless the value is a dict whose keys are texts."""
    if optional and value is None:
        return
    if not isinstance(value, Mapping):
        raise SettingsError(f"{name} must be a dict, got {described(value)}. Write {name}={example}.")
    for key in value:
        if not isinstance(key, str):
            raise SettingsError(f"{name}: every key must be text, got {described(key)}. Write {name}={example}.")


def check_type(name: str, value: object, kind: type | tuple[type, ...], remedy: str, *, optional: bool = False) -> None:
    """Raise ``SettingsError`` unless the value is an instance of a class.

    Args:
        name: of the argument.
        value: the argument.
        kind: the class, or several.
        remedy: a sentence that says how to get one.
        optional: whether None is allowed.
    """
    if isinstance(value, kind) or (optional and value is None):
        return
    kinds = kind if isinstance(kind, tuple) else (kind,)
    wanted = " or ".join(one.__name__ for one in kinds)
    raise SettingsError(f"{name} must be of type {wanted}, got {described(value)}. {remedy}")


def check_all_of(name: str, values: object, kind: type, remedy: str) -> None:
    """Raise ``SettingsError`` unless the value is an iterable of instances of a class, which can be read twice."""
    if not isinstance(values, list | tuple | set | frozenset):
        raise SettingsError(f"{name} must be a list, got {described(values)}. {remedy}")
    for index, value in enumerate(values):
        check_type(f"{name}[{index}]", value, kind, remedy)


def described(value: Any) -> str:
    """Return a value as shown in messages: short values and short lists themselves, others by their type.

    So is a value whose own code raises when it is asked for its text or its length.
    """
    try:
        return _described(value)
    except Exception:
        return type(value).__name__


def _described(value: Any) -> str:
    if _is_plain(value):
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:57]}..."
    if isinstance(value, list | tuple) and len(value) <= 8 and all(map(_is_plain, value)) and len(repr(value)) <= 60:
        return repr(value)
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if callable(value) and hasattr(value, "__name__"):
        return f"the function {value.__name__}"
    if isinstance(value, list | tuple | set | frozenset | Mapping):
        return f"{type(value).__name__} of length {len(value)}"
    return type(value).__name__


def did_you_mean(name: object, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return a question with the nearest of the known names; "" where none is near."""
    near = difflib.get_close_matches(str(name), list(known), 1, cutoff)
    return f"Did you mean {near[0]!r}? " if near else ""


def nearest_are(name: object, known: Iterable[str], otherwise: str = "There are") -> str:
    """Return a sentence with the nearest of the known names, or with the first of them where none is near."""
    names = list(known)
    near = difflib.get_close_matches(str(name), names, 3, 0.4)
    return f"{'Nearest are' if near else otherwise} {', '.join(map(repr, near or names[:8]))}."


def shown(value: Any, most: int = 80) -> str:
    """Return the ``repr`` of a value, cut to ``most`` characters; its type where its own code raises.

    Example:
        >>> shown([1, 2, 3], 4)
        '[1, '
    """
    try:
        return repr(value)[:most]
    except Exception:
        return f"a {type(value).__name__}, whose repr raises"


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str | bytes)
