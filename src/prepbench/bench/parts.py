"""The parts of a bench, and how a bench shows what they can do as its own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from prepbench.bench.captures import Captures, Fixing
from prepbench.bench.choices import Changes, Choices, History
from prepbench.bench.compiling import Compiling
from prepbench.bench.inputs import Inputs
from prepbench.bench.layer_costs import Costs
from prepbench.bench.queue import Jobs
from prepbench.bench.recovering import Training
from prepbench.bench.runs import Runs
from prepbench.bench.searching import Search
from prepbench.bench.summary import BenchSummary
from prepbench.errors import SettingsError

P = ParamSpec("P")
T = TypeVar("T")


class Parts(Protocol):
    """What a bench consists of. None inherits from another; each gets those that it needs when it is made."""

    inputs: Inputs
    changes: Changes
    choices: Choices
    history: History
    captures: Captures
    fixing: Fixing
    run_history: Runs
    jobs: Jobs
    training: Training
    compiling: Compiling
    costs: Costs
    found: Search

    def summary(self) -> BenchSummary:
        """Return what front ends show."""


def method_of(part: str, method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Return a method of the whole that calls the one of a part, with its signature and docstring.

    Example:
        >>> class Whole:
        ...     title = method_of("text", str.title)
        ...     text = "a bench"
        >>> Whole().title()
        'A Bench'
    """

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(getattr(self, part), *args, **kwargs)

    return call


def value_of(part: str, value: Callable[[Any], T]) -> T:
    """Return a property of the whole that reads the one of a part, with its docstring."""
    of_part: Any = value
    found: T = property(method_of(part, of_part.fget))  # type: ignore[assignment]
    return found


def attribute_of(path: str) -> Any:
    """Return a property of the whole that reads an attribute of a part, such as ``"inputs.model"``."""
    part, _, name = path.partition(".")

    def refused(whole: Any, value: Any) -> None:
        if part == "inputs":
            given = "..." if name == "model" else f"model, {name}=..."
            raise SettingsError(f"bench.{name} cannot be replaced. Make another bench: pb.Bench({given}).")
        raise SettingsError(f"bench.{name} is what the bench found or what is selected; it can be read only.")

    return property(attrgetter(path), refused, doc="")  # else it would have the docstring of attrgetter
