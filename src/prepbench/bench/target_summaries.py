"""The available targets with their options, read from the classes of their settings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import fields

from prepbench.bench.state import TARGETS, display_name
from prepbench.bench.summary import Control, OptionField, TargetSummary
from prepbench.checks import described
from prepbench.errors import PrepbenchError, SettingsError
from prepbench.settings import DeploymentSettings, ExplainedLayer
from prepbench.targets import target_for
from prepbench.targets.capabilities import check_settings


def target_summaries(
    chosen: Sequence[DeploymentSettings], explained: Sequence[ExplainedLayer]
) -> tuple[TargetSummary, ...]:
    """Return all targets; for the chosen ones also the unsupported settings."""
    by_name = {display_name(settings): settings for settings in chosen}
    return tuple(_summary(name, by_name.get(name), kind, explained) for name, kind in TARGETS.items())


def _summary(
    name: str, chosen: DeploymentSettings | None, kind: type[DeploymentSettings], explained: Sequence[ExplainedLayer]
) -> TargetSummary:
    settings = chosen or kind()
    problem = problem_of(settings, explained) if chosen else ""
    return TargetSummary(name, chosen is not None, _unavailable(settings), problem, option_fields(settings))


def problem_of(settings: DeploymentSettings, explained: Sequence[ExplainedLayer]) -> str:
    """Return the settings of layers that the target does not support; "" if it supports all."""
    try:
        check_settings(target_for(settings), settings, explained)
    except PrepbenchError as error:
        return str(error)
    return ""


def _unavailable(settings: DeploymentSettings) -> str:
    try:
        target_for(settings).check_available(by_import=False)
    except PrepbenchError as error:
        return str(error)
    return ""


def option_fields(settings: DeploymentSettings) -> tuple[OptionField, ...]:
    """The options of a target with their help, from the docstring of its settings."""
    helps = _helps(type(settings))
    found = []
    for field in fields(settings):
        value = getattr(settings, field.name)
        listed = type(settings).CHOICES.get(field.name, ())
        shown = tuple("" if choice is None else str(choice) for choice in listed)
        kind: Control = "choice" if listed else "number"
        text = "" if value is None else str(value)
        title = field.name.replace("_", " ").capitalize()
        found.append(OptionField(field.name, title, helps.get(field.name, ""), kind, shown, text))
    return tuple(found)


def with_option(settings: DeploymentSettings, name: str, value: str) -> DeploymentSettings:
    """Return the settings with one option as the page sends it; "" is the target's default.

    Raises:
        SettingsError: no such option, or a value that is not allowed.
    """
    known = [field.name for field in fields(settings)]
    if name not in known:
        raise SettingsError(f"{type(settings).__name__} has no option {name!r}; it has: {', '.join(known) or 'none'}.")
    given: object = value
    if value == "":
        given = None
    elif not type(settings).CHOICES.get(name):
        if not re.fullmatch(r"\d{1,9}", value):
            raise SettingsError(f"{type(settings).__name__}.{name} must be a whole number, got {described(value)}.")
        given = int(value)
    return type(settings).from_dict({**settings.to_dict(), name: given})


def _helps(kind: type) -> dict[str, str]:
    """Return the description of each attribute in the docstring of a class."""
    text = inspect.cleandoc(kind.__doc__ or "").partition("Attributes:\n")[2]
    helps: dict[str, str] = {}
    for entry in re.split(r"\n(?=    \w+:)", text.partition("\n\n")[0]):
        name, _, words = entry.strip().partition(":")
        helps[name] = re.sub(r"``(.*?)``", r"\1", " ".join(words.split()))
    return helps
