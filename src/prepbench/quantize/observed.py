"""A graph with PT2E's observers, the value that the stages pass on."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import fx

from prepbench.quantize.floors import Score
from prepbench.quantize.plan import Plan
from prepbench.quantize.report import LayerReport
from prepbench.settings import CompileOptions


@dataclass(frozen=True)
class Observed:
    """A graph with observers, and the plan of each layer.

    Attributes:
        graph: the graph, which the stages change.
        layers: the plan of each layer.
        plan: which values the observers stand for.
        options: algorithms and floors.
        score: how far the outputs are from float on calibration samples, once it has been measured.
        reused: the stages that found all or some of their results in :class:`Statistics`, in words.
        scaled: layers whose weights an algorithm changed before.
        written: the initial values of the buffers that the graph writes to, by name.
    """

    graph: fx.GraphModule
    layers: tuple[LayerReport, ...]
    plan: Plan = field(default_factory=Plan)
    options: CompileOptions = field(default_factory=CompileOptions)
    score: Score | None = None
    reused: tuple[str, ...] = ()
    scaled: frozenset[str] = frozenset()
    written: dict[str, torch.Tensor] = field(default_factory=dict)
