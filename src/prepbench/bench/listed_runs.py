"""The history of runs as plain values for a front end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RunSummary:
    """A run in the history, as text.

    Attributes:
        p50: the median latency of a call; of a token where text was generated.
        first: time to the first token; empty where nothing was generated, as the next ones.
        rate: tokens in a second.
        peak: most memory of the process, in MB.
        beside: the same of the float model, in words.
        is_live: whether its compiled model is in this process.
        where: the machine and notebook that it ran on, where these are others than here.
        is_far: whether it ran on another machine, so that its latency cannot be compared with those of this one.
        is_own: whether it belongs to the history; else it can only be looked at.
        model: the display name of its model.
    """

    id: str
    name: str
    target: str
    made: str
    pinned: bool
    score: str
    spread: str
    change: str
    p50: str
    p90: str
    speed: str
    size: str
    slower: bool
    why: str
    error: str
    is_live: bool
    first: str = ""
    rate: str = ""
    peak: str = ""
    beside: str = ""
    where: str = ""
    is_far: bool = False
    is_own: bool = True
    model: str = ""


@dataclass(frozen=True)
class ElsewhereSummary:
    """The number of runs from other machines, notebooks and a file, whether they are listed, and that file."""

    count: int
    shown: bool
    path: str
