"""The measurements of one compile with its texts and its machine, as plain values that go to JSON and back."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, Self

from prepbench.document.checks import MAX_NUMBER
from prepbench.document.codec import plain, read_object
from prepbench.errors import UNPRINTABLE, DocumentError, SettingsError
from prepbench.quantize.report import LayerReport
from prepbench.results.speed_up import EAGER, Reference, speed_up_over_reference
from prepbench.settings import DeploymentSettings
from prepbench.targets.registry import TARGETS

# The stored generation of a candidate: its texts beside those of the float model, and their cost.


@dataclass(frozen=True)
class WrittenText:
    """The text after one prompt, in three parts; all of it is untrusted.

    Attributes:
        same: the part that equals the float model's text.
        other: the first token that differs; empty where none does.
        rest: the part after it.
        agree: how many tokens come before it.
        tokens: how many tokens there are.
    """

    same: str
    other: str = ""
    rest: str = ""
    agree: int = 0
    tokens: int = 0


@dataclass(frozen=True)
class RunGeneration:
    """The texts of a run, beside those of the float model from the same rounds.

    Attributes:
        first_token_ms: median time from a prompt to its first token; None where it was not measured.
        tokens_per_second: of all prompts.
        peak_bytes: most memory of the process.
        float_first_token_ms: of the float model.
        float_tokens_per_second: of the float model.
        float_peak_bytes: of the float model.
        prompts: the prompts as text, as many as are kept.
        texts: the run's text after each.
        float_texts: the float model's text.
    """

    first_token_ms: float | None = None
    tokens_per_second: float | None = None
    peak_bytes: int | None = None
    float_first_token_ms: float | None = None
    float_tokens_per_second: float | None = None
    float_peak_bytes: int | None = None
    prompts: tuple[str, ...] = ()
    texts: tuple[WrittenText, ...] = ()
    float_texts: tuple[str, ...] = ()


# The report of each layer as columns: half the size of rows, and read a whole column at a time.
#
# A history of 200 runs of 1,000 layers has millions of values. Each column is checked at once; only where that finds
# something wrong are the rows read one by one, for a message that names the place.


_FIELDS = {field.name: field for field in fields(LayerReport)}
_NOT_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def to_columns(rows: Sequence[LayerReport]) -> dict[str, list[Any]]:
    """Return the values of each field as JSON-ready data; fields whose values are all defaults are left out."""
    columns = {name: [getattr(row, name) for row in rows] for name in _FIELDS}
    return {
        name: column if _CHECKS[name] in (_are_texts, _are_counts) else list(map(_plain, column))
        for name, column in columns.items()
        if _FIELDS[name].default is MISSING or any(value != _FIELDS[name].default for value in column)
    }


def from_columns(data: Any, path: str) -> tuple[LayerReport, ...]:
    """Read what :func:`to_columns` wrote.

    Raises:
        DocumentError: columns of different length, or a missing, unknown or wrong field; the message names the place.
    """
    if not isinstance(data, Mapping) or not all(isinstance(column, list) for column in data.values()):
        raise DocumentError(f"{path} must be an object of lists, one for each field of a layer.")
    lengths = {len(column) for column in data.values()}
    if len(lengths) > 1:
        raise DocumentError(f"{path} has columns of {min(lengths)} and of {max(lengths)} layers.")
    count = lengths.pop() if lengths else 0
    required = {name for name, field in _FIELDS.items() if field.default is MISSING}
    if count and required <= set(data) <= set(_FIELDS) and all(_CHECKS[name](data[name]) for name in data):
        columns = [_restored(name, data[name]) if name in data else [field.default] * count
                   for name, field in _FIELDS.items()]  # fmt: skip
        return tuple(map(LayerReport, *columns))
    rows = [dict(zip(data, values, strict=True)) for values in zip(*data.values(), strict=True)]
    return tuple(
        read_object(row, LayerReport, f"{path}[{i}]", lenient=True, measured=True) for i, row in enumerate(rows)
    )


def _plain(value: Any) -> Any:
    return value if value is None or _is_number(value) else plain(value)


def _restored(name: str, column: list[Any]) -> list[Any]:
    if _CHECKS[name] is _are_numbers:
        return [_NOT_FINITE.get(value, value) if isinstance(value, str) else value for value in column]
    if _CHECKS[name] in (_are_pairs, _are_lists):
        return [None if value is None else tuple(value) for value in column]
    return column


def _are_texts(column: list[Any]) -> bool:
    return all(type(value) is str for value in column) and UNPRINTABLE.search("".join(column)) is None


def _are_counts(column: list[Any]) -> bool:
    return all(type(value) is int and 0 <= value <= MAX_NUMBER for value in column)


def _are_numbers(column: list[Any]) -> bool:
    return all(value is None or _is_number(value) or (type(value) is str and value in _NOT_FINITE) for value in column)


def _are_pairs(column: list[Any]) -> bool:
    return all(
        value is None or (type(value) is list and len(value) == 2 and all(map(_is_number, value))) for value in column
    )


def _are_lists(column: list[Any]) -> bool:
    return all(type(value) is list and _are_counts(value) for value in column)


def _is_number(value: Any) -> bool:
    return type(value) is float and math.isfinite(value)


_BY_TYPE: Mapping[str, Callable[[list[Any]], bool]] = {
    "str": _are_texts,
    "int": _are_counts,
    "float | None": _are_numbers,
    "tuple[float, float] | None": _are_pairs,
    "tuple[int, ...]": _are_lists,
}
_CHECKS = {name: _BY_TYPE[str(field.type)] for name, field in _FIELDS.items()}


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The measurements of one compile for a target.

    Attributes:
        target: the name of the target, e.g. ``"onnxruntime"``.
        target_options: the fields of the target's settings; see :attr:`deployment`.
        made: when, in seconds since 1970.
        seconds: how long it took.
        score: its score; ``inf`` for outputs equal to float when that is an SQNR; None where it was not scored.
        metric: the metric's name.
        unit: ``"dB"`` for SQNR, else empty.
        higher_is_better: direction of the metric.
        change: its score minus that of the float model; None where that is no number.
        spread: the least and the greatest score that other samples would have given; None when not known.
        p50_ms: median latency in milliseconds; None when not measured.
        p90_ms: 90th percentile of the latency.
        interval_ms: the interval of the median latency; None when not known.
        reference: the time of the float model in PyTorch eager in the same rounds; None when not measured.
        busy: the share of all cores that other programs kept busy while it was timed, 0 to 1.
        size_bytes: size of the saved result; None when it cannot be saved.
        report: the outcome for each layer.
        stages: seconds of each stage.
        reused: the stages whose result was taken from an earlier run.
        why: why it is slower than PyTorch eager, or why it is not scored or timed; else empty.
        error: why it failed; empty where it worked.
        machine: a description of the machine.
        notebook: the file name of the notebook that it ran in; empty where that is not known.
        workload: a description of the data, e.g. ``"64 samples in batches of 8"``.
        model: the fingerprint of the model.
        model_name: the display name of the model; may be empty.
        settings_name: the display name of the settings.
        generation: the cost and the texts of generating, where that was measured; the latencies are then those of a
            token.
    """

    target: str
    made: float
    target_options: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    score: float | None = None
    metric: str = ""
    unit: str = ""
    higher_is_better: bool = True
    change: float | None = None
    spread: tuple[float, float] | None = None
    p50_ms: float | None = None
    p90_ms: float | None = None
    interval_ms: tuple[float, float] | None = None
    reference: Reference | None = None
    busy: float = 0.0
    size_bytes: int | None = None
    report: tuple[LayerReport, ...] = field(default=(), repr=False)
    stages: Mapping[str, float] = field(default_factory=dict, repr=False)
    reused: tuple[str, ...] = ()
    why: str = ""
    error: str = ""
    machine: str = ""
    notebook: str = ""
    workload: str = ""
    model: str = ""
    model_name: str = ""
    settings_name: str = ""
    generation: RunGeneration | None = None

    @property
    def is_float(self) -> bool:
        """Whether it is the model as it was, neither quantized nor pruned."""
        return not any(layer.quantized for layer in self.report)

    @property
    def speedup(self) -> float | None:
        """How many times faster than the model it was timed beside, as the medians say; see ``speed_ups``, which has
        the float model of the same runtime as the baseline, and the interval.
        """
        return speed_up_over_reference(self)

    @property
    def runtime(self) -> str:
        """An identity of target, machine and work: equal where times can be compared."""
        return self._runtime(self.model.partition("-")[0])  # other weights take the same time

    def _runtime(self, model: str) -> str:
        of = (self.machine, model, self.workload, self.target, self.target_options)
        return json.dumps(plain(of), sort_keys=True)

    @property
    def deployment(self) -> DeploymentSettings:
        """Return the settings of the target.

        Raises:
            SettingsError: this version has no such target, or it has other options.
        """
        for target in TARGETS:
            if target.name == self.target:
                return target.settings_type.from_dict(self.target_options)
        known = ", ".join(target.name for target in TARGETS)
        raise SettingsError(f"This result is for the target {self.target!r}, which is not one of {known}.")

    def to_json(self) -> dict[str, Any]:
        """Return the values as JSON-ready data; infinite and NaN numbers become text."""
        others = {name: plain(value) for name, value in vars(self).items() if name != "report"}
        return {**others, "report": to_columns(self.report)}

    @classmethod
    def from_json(cls, data: Any, path: str = "run") -> Self:
        """Read what :meth:`to_json` wrote; every field is checked.

        Raises:
            DocumentError: a missing, unknown or wrong field.
        """
        if not isinstance(data, dict):
            raise DocumentError(f"{path} must be an object, got {type(data).__name__}.")
        data = _with_reference(data)
        report = from_columns(data.get("report", {}), f"{path}.report")
        return replace(read_object({**data, "report": []}, cls, path, lenient=True, measured=True), report=report)


def _with_reference(data: dict[str, Any]) -> dict[str, Any]:
    """Return an object of an older version, which has a speed-up over PyTorch eager, with the time of that instead."""
    if "speedup" not in data:
        return data
    others = {name: value for name, value in data.items() if name != "speedup"}
    speedup, p50 = data["speedup"], data.get("p50_ms")
    if not isinstance(speedup, int | float) or not isinstance(p50, int | float) or others.get("reference") is not None:
        return others
    return {**others, "reference": {"name": EAGER, "p50_ms": p50 * speedup, "interval_ms": None}}


@dataclass(frozen=True, kw_only=True)
class Result(Measurement):
    """A measurement with the identity of its model, target and workload; see :attr:`key`.

    Attributes:
        plan: the decisions for layers and the options of the compile, as plain data.
    """

    plan: Mapping[str, Any]

    @property
    def key(self) -> str:
        """The identity of a measurement: equal for the same plan, model, target, machine and workload."""
        of = (self.model, self.plan, self.target, self.target_options, self.machine, self.workload)
        text = json.dumps(plain(of), sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


# Describe the machine and the notebook of a measurement: latencies of different machines cannot be compared.


def this_machine() -> str:
    """Return the processor, the system and the name of this machine.

    Example:
        >>> this_machine().count(", ")
        1

    So ``"x86_64 Linux, laptop"``.
    """
    return f"{platform.machine()} {platform.system()}, {platform.node()}"


def this_notebook() -> str:
    """Return the file name of this notebook, as Jupyter passes it to kernels; "" where unknown."""
    return re.split(r"[/\\]", os.environ.get("JPY_SESSION_NAME", ""))[-1]


# A measurement with a name and its choices, as a history keeps it.


_OF_THE_PAGE = ("targets",)  # choices of the bench that say nothing about one compile


@dataclass(frozen=True, kw_only=True)
class Run(Measurement):
    """One compile of the bench: a measurement with its choices.

    Attributes:
        id: names the run; the same in the history, the journal and saved files.
        name: the display name.
        state: the choices that it was made with, as ``BenchState.to_json()`` writes them.
        target_name: the target for people, e.g. ``"ONNX Runtime"``.
        targets: all targets that were compiled for together, as ``BenchState.to_json()`` writes them.
        pinned: whether it stays at the top of the history.
        pruned: the outcome of pruning in words, by FQN of each layer with a decision.
        recovered: what the training has won, or that it has not, in a sentence; empty without training.
    """

    id: str
    name: str
    state: Mapping[str, Any]
    target_name: str
    targets: tuple[Mapping[str, Any], ...] = ()
    pinned: bool = False
    pruned: Mapping[str, str] = field(default_factory=dict, repr=False)
    recovered: str = ""

    @property
    def is_float(self) -> bool:
        """Whether it is the model as it was, neither quantized nor pruned nor trained."""
        return super().is_float and not self.pruned and not self.recovered

    @property
    def runtime(self) -> str:
        """An identity of target, machine and work, equal where times can be compared; a history is of one model."""
        return self._runtime("")

    @property
    def result(self) -> Result:
        """Return the measurement without the fields of the history."""
        plan = {name: value for name, value in self.state.items() if name not in _OF_THE_PAGE}
        return Result(plan=plan, **{one.name: getattr(self, one.name) for one in fields(Measurement)})
