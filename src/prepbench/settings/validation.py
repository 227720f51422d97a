"""The base of all settings: fields that check themselves, and JSON in and out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, Self

from prepbench.checks import check_table, described, did_you_mean
from prepbench.errors import SettingsError


class Settings:
    """Base of the settings dataclasses: plain data that goes to JSON and back."""

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON-ready data."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_dict` wrote.

        Args:
            data: plain values by field.

        Returns:
            The settings.

        Raises:
            SettingsError: a field that does not exist (with the nearest names), or a value that is not allowed.
        """
        check_table("data", data, "settings.to_dict()")
        names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        for key in data:
            if key not in names:
                hint = did_you_mean(key, names).rstrip() or f"There are: {', '.join(names)}."
                raise SettingsError(f"{cls.__name__} has no field {key!r}. {hint}")
        return cls(**data)


def check_choice(owner: object, field: str, allowed: tuple[Any, ...]) -> None:
    """Raise ``SettingsError`` unless the field's value is one of ``allowed`` (of the same type: True is not 1)."""
    value = getattr(owner, field)
    if not any(type(value) is type(choice) and value == choice for choice in allowed):
        choices = " or ".join(repr(choice) for choice in allowed)
        raise SettingsError(f"{type(owner).__name__}.{field} must be {choices}, got {described(value)}.")


def check_range(owner: object, field: str, low: float, high: float) -> None:
    """Raise ``SettingsError`` unless the field's value is a number from ``low`` to ``high``."""
    value = getattr(owner, field)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise SettingsError(
            f"{type(owner).__name__}.{field} must be a number from {low:g} to {high:g}, got {described(value)}."
        )


def check_candidates(owner: object, field: str, allowed: tuple[int | str, ...], optional: bool = False) -> None:
    """Raise ``SettingsError`` unless the field is one of ``allowed`` or a list of them. A list becomes a tuple."""
    value = getattr(owner, field)
    if optional and value is None:
        return
    listed = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not listed or not all(any(type(one) is type(each) and one == each for each in allowed) for one in listed):
        choices = " or ".join(map(str, allowed))
        raise SettingsError(
            f"{type(owner).__name__}.{field} must be {choices}, or a list of these as candidates, got "
            f"{described(value)}."
        )
    if len(set(listed)) < len(listed):
        raise SettingsError(
            f"{type(owner).__name__}.{field} names a candidate twice: {described(value)}. Name each once."
        )
    object.__setattr__(owner, field, listed if isinstance(value, list | tuple) else value)
