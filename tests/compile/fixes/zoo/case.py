"""``Case``: a failing module with samples, and the list that all of them are in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Case:
    """A module that cannot be captured as it is.

    Attributes:
        name: the class's name.
        make: makes the module.
        samples: makes its samples.
        area: the file it stands in, which is the kind of reason.
        fixable: whether a right change exists that keeps all results.
    """

    name: str
    make: Callable[[], torch.nn.Module]
    samples: Callable[[], list[Any]]
    area: str
    fixable: bool = True

    def built(self) -> tuple[torch.nn.Module, list[Any]]:
        torch.manual_seed(0)
        return self.make(), self.samples()


CASES: dict[str, Case] = {}


def case(samples: Callable[[], list[Any]], *, fixable: bool = True) -> Callable[[Any], Any]:
    """Enter a class into the zoo."""

    def entered(kind: Any) -> Any:
        assert kind.__name__ not in CASES, kind.__name__
        CASES[kind.__name__] = Case(kind.__name__, kind, samples, kind.__module__.rpartition(".")[2], fixable)
        return kind

    return entered


def rows(width: int = 10, *sizes: int) -> Callable[[], list[torch.Tensor]]:
    """Samples of two batch sizes."""
    return lambda: [torch.randn(size, width) for size in sizes or (2, 3)]


def images() -> list[torch.Tensor]:
    return [torch.randn(size, 3, 8, 8) for size in (2, 3)]
