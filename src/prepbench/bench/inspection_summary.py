"""What the inspector of a layer shows, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from prepbench.bench.cards import Card
from prepbench.bench.state import Precision


@dataclass(frozen=True)
class InspectedValues:
    """The values of one tensor, for the page.

    Attributes:
        title: what it is.
        low: the smallest value.
        high: the largest one.
        start: where the histogram begins.
        width: of its intervals; 0 where there are no values.
        counts: of its intervals.
        lows: the smallest value of each channel.
        highs: the largest one.
        format: of the numbers that it is rounded to; empty in float.
        levels: how many numbers these are.
        steps: the smallest and the largest distance between two of them.
        grid: the smallest and the largest of them.
        clipped: the share of values beyond them, 0 to 1.
        clipped_channels: the same of each channel.
        note: why there are no values, or why they are others than the model's own.
    """

    title: str
    low: float = 0.0
    high: float = 0.0
    start: float = 0.0
    width: float = 0.0
    counts: tuple[int, ...] = ()
    lows: tuple[float, ...] = ()
    highs: tuple[float, ...] = ()
    format: str = ""
    levels: int = 0
    steps: tuple[float, ...] = ()
    grid: tuple[float, ...] = ()
    clipped: float = 0.0
    clipped_channels: tuple[float, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class InspectedError:
    """The output of the layer, quantized against float.

    Attributes:
        sqnr: in dB; None before it is known.
        channels: the SQNR of each output channel; of many, the worst of some neighbours.
        together: how many channels are one of these.
        reference: outputs in float.
        quantized: the same, quantized.
    """

    sqnr: float | None = None
    channels: tuple[float, ...] = ()
    together: int = 1
    reference: tuple[float, ...] = ()
    quantized: tuple[float, ...] = ()


@dataclass(frozen=True)
class WhatIfChoice:
    """What a layer would be with another precision; a button.

    Attributes:
        precision: for ``set_precision``.
        label: of the button.
        sqnr: of the layer's output in dB; None in float, and where refused.
        change: bytes more than now; None where refused.
        refusal: why the target cannot take the layer so.
        is_now: whether the layer is so.
    """

    precision: Precision
    label: str
    sqnr: float | None
    change: int | None
    refusal: str
    is_now: bool


@dataclass(frozen=True)
class InspectionSummary:
    """The inspector of one layer.

    Attributes:
        fqn: the layer; empty while nothing is inspected.
        state: what goes on.
        stage: in words, while it is computed.
        failure: why it could not be.
        type: the class of the layer.
        decided: its settings, in words.
        why: the rule or the reason.
        shown: the settings that grids and the error are of, where the layer is in float.
        values: weights, input and output.
        error: of the output.
        what_if: the other precisions.
        facts: what it costs, as pairs of a name and words.
        place: file and line of the call in the model's source, in words.
        file: of it.
        line: of it.
        code: the line.
        frame: the lines around it.
        samples: what was counted, in words.
    """

    fqn: str = ""
    state: Literal["", "running", "ready", "failed"] = ""
    stage: str = ""
    failure: Card = field(default_factory=Card)
    type: str = ""
    decided: str = ""
    why: str = ""
    shown: str = ""
    values: tuple[InspectedValues, ...] = ()
    error: InspectedError = field(default_factory=InspectedError)
    what_if: tuple[WhatIfChoice, ...] = ()
    facts: tuple[tuple[str, ...], ...] = ()
    place: str = ""
    file: str = ""
    line: int = 0
    code: str = ""
    frame: str = ""
    samples: str = ""
