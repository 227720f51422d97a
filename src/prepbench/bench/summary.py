"""What a front end of the bench shows, as plain values; ``extension/generate.py`` makes TypeScript types from them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import nn

from prepbench.bench.state import EXPLANATIONS, LABELS, PRECISIONS, Precision
from prepbench.capture.sizes.axis import Axis, pattern_of
from prepbench.capture.sizes.dynamic_axes import DynamicAxes


@dataclass(frozen=True)
class AxisSummary:
    """One dim of one tensor argument, or of several that are alike: the sizes in the samples, its symbol when it is
    dynamic, what is wrong with the choice, if anything is, and how many arguments ``path`` stands for.
    """

    path: str
    dim: int
    sizes: tuple[int, ...]
    dynamic: bool
    symbol: str
    problem: str = ""
    places: int = 1


@dataclass(frozen=True)
class LayerSummary:
    """One quantizable layer: its precision, and in a few words what the newest compile made of it."""

    fqn: str
    type: str
    parameters: int
    precision: Precision
    note: str = ""


@dataclass(frozen=True)
class PrecisionChoice:
    """A precision that layers can have; not ``enabled`` where the calibration inputs that it needs are missing."""

    name: Precision
    label: str
    explanation: str
    enabled: bool


@dataclass(frozen=True)
class BenchSummary:
    """Everything that a front end shows of a bench, apart from a running compile.

    Attributes:
        title: the class of the model.
        subtitle: the number of quantizable layers and of failures.
        axes: every dim of every tensor argument.
        layers: the quantizable layers.
        precisions: what a layer's precision can be.
        target: the display name of the chosen target.
        targets: the display names of all targets.
        leaf_wrap: whether modules that cannot be captured become leaf modules.
        leaf_label: the words beside the checkbox for that.
        failures: how many modules cannot be captured.
        code: the Python lines that do the same.
        stale: in what the choices behind the shown results differ from the current ones; empty when they do not.
        can_undo: whether there is a change to undo.
        can_redo: whether there is an undo to take back.
    """

    title: str
    subtitle: str
    axes: tuple[AxisSummary, ...]
    layers: tuple[LayerSummary, ...]
    precisions: tuple[PrecisionChoice, ...]
    target: str
    targets: tuple[str, ...]
    leaf_wrap: bool
    leaf_label: str
    failures: int
    code: str
    stale: str
    can_undo: bool
    can_redo: bool


def axis_summaries(axes: DynamicAxes) -> tuple[AxisSummary, ...]:
    """A summary of each axis, in their order; arguments that differ in indices only are one."""
    tensors: dict[str, list[Axis]] = {}
    for axis in axes.axes:
        tensors.setdefault(axis.path, []).append(axis)
    kinds: dict[str, dict[str, tuple[object, ...]]] = {}
    for path, dims in tensors.items():
        kinds.setdefault(pattern_of(path), {})[path] = tuple((axis.sizes, axis.dynamic, axis.symbol) for axis in dims)
    summaries: list[AxisSummary] = []
    for pattern, paths in kinds.items():
        alike = len(set(paths.values())) == 1 and len(paths) > 1
        for path in [next(iter(paths))] if alike else paths:
            named = [replace(axis, path=pattern if alike else path) for axis in tensors[path]]
            summaries += [_summary(axis, len(paths) if alike else 1) for axis in named]
    return tuple(summaries)


def _summary(axis: Axis, places: int) -> AxisSummary:
    sizes = tuple(sorted(set(axis.sizes)))
    return AxisSummary(axis.path, axis.dim, sizes, axis.dynamic, axis.symbol, _problem(axis), places)


def _problem(axis: Axis) -> str:
    """What contradicts the choice: a static dim takes one size only."""
    others = [i for i, size in enumerate(axis.sizes) if size != axis.sizes[0]]
    if axis.dynamic or not others:
        return ""
    return (
        f"{axis.path} dim {axis.dim} is static, so the compiled model takes only size {axis.sizes[0]}; sample "
        f"{others[0] + 1} has {axis.sizes[others[0]]}. Make the dim dynamic, or give samples of one size."
    )


def layer_summary(model: nn.Module, fqn: str, precision: Precision) -> LayerSummary:
    """The summary of a layer that was not compiled yet."""
    module = model.get_submodule(fqn)
    return LayerSummary(fqn, type(module).__name__, sum(p.numel() for p in module.parameters()), precision)


def precision_choices(calibrated: bool) -> tuple[PrecisionChoice, ...]:
    """All precisions; only float32 is enabled without calibration inputs."""
    return tuple(PrecisionChoice(p, LABELS[p], EXPLANATIONS[p], calibrated or p == "float32") for p in PRECISIONS)


def subtitle(layers: int, failures: int) -> str:
    """E.g. ``"3 quantizable layers · no failures"``."""
    return f"{_count(layers, 'quantizable layer')} · {_count(failures, 'failure')}"


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
