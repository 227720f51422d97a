"""One run of the bench: the choices, the target, and what came out, as plain values that go to JSON and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from prepbench.document.codec import plain, read_object
from prepbench.errors import SettingsError
from prepbench.quantize.report import LayerReport
from prepbench.settings import DeploymentSettings
from prepbench.targets.registry import TARGETS


@dataclass(frozen=True, kw_only=True)
class Run:
    """One compile of the bench and its results.

    Attributes:
        id: names the run; the same in the history, the journal and saved files.
        name: what people call it.
        state: the choices that it was made with, as ``BenchState.to_json()`` writes them.
        target: the name of the target, e.g. ``"onnxruntime"``.
        target_name: the same for people, e.g. ``"ONNX Runtime"``.
        target_options: the fields of the target's settings; see :attr:`deployment`.
        made: when, in seconds since 1970.
        seconds: how long it took.
        pinned: whether it stays at the top of the history.
        score: its score; ``inf`` for outputs equal to float when that is an SQNR; None where it was not scored.
        metric: the metric's name.
        unit: ``"dB"`` for SQNR, else empty.
        higher_is_better: direction of the metric.
        change: its score minus that of the float model; None where that is no number.
        spread: the least and the greatest score that other samples would have given; None when not known.
        p50_ms: median latency in milliseconds; None when not measured.
        p90_ms: 90th percentile of the latency.
        speedup: how many times faster than the float model.
        size_bytes: size of the saved result; None when it cannot be saved.
        report: what was done to each layer.
        stages: seconds of each stage.
        reused: the stages whose result was taken from an earlier run.
        why: why it is slower than the float model, or why it is not scored or timed; else empty.
        error: why it failed; empty where it worked.
        machine: what it ran on, in words.
        workload: what one measurement ran, in words, e.g. ``"64 samples in batches of 8"``.
        model: the fingerprint of the model.
    """

    id: str
    name: str
    state: Mapping[str, Any]
    target: str
    target_name: str
    made: float
    target_options: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    pinned: bool = False
    score: float | None = None
    metric: str = ""
    unit: str = ""
    higher_is_better: bool = True
    change: float | None = None
    spread: tuple[float, float] | None = None
    p50_ms: float | None = None
    p90_ms: float | None = None
    speedup: float | None = None
    size_bytes: int | None = None
    report: tuple[LayerReport, ...] = field(default=(), repr=False)
    stages: Mapping[str, float] = field(default_factory=dict, repr=False)
    reused: tuple[str, ...] = ()
    why: str = ""
    error: str = ""
    machine: str = ""
    workload: str = ""
    model: str = ""

    @property
    def deployment(self) -> DeploymentSettings:
        """The settings of the target.

        Raises:
            SettingsError: this version has no such target, or it has other options.
        """
        for target in TARGETS:
            if target.name == self.target:
                return target.settings_type.from_dict(self.target_options)
        known = ", ".join(target.name for target in TARGETS)
        raise SettingsError(f"The run {self.name!r} is for the target {self.target!r}; there are: {known}.")

    def to_json(self) -> dict[str, Any]:
        """The run as JSON-ready data; numbers that JSON does not have are written as text."""
        data: dict[str, Any] = plain(self)
        return data

    @classmethod
    def from_json(cls, data: Any, path: str = "run") -> Run:
        """Read what :meth:`to_json` wrote; every field is checked.

        Args:
            data: the object.
            path: what it is called in messages.

        Raises:
            DocumentError: a missing, unknown or wrong field.
        """
        return read_object(data, cls, path, lenient=True, measured=True)
