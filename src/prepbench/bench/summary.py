"""The summary that a front end of the bench shows, as plain values; ``extension/generate.py`` derives TypeScript
types.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prepbench.bench.listed_runs import ElsewhereSummary, RunSummary
from prepbench.bench.recovery_summary import RecoverySummary
from prepbench.bench.search_summary import SearchNow, SearchSummary
from prepbench.bench.state import Precision
from prepbench.bench.written import WrittenBy

StepName = Literal["capture", "axes", "precision", "run", "recover", "results"]
Kind = Literal["", "good", "warning", "bad"]
Control = Literal["choice", "switch", "number"]


@dataclass(frozen=True)
class StepSummary:
    """One step of the rail: its title, and its status as a short text."""

    name: StepName
    title: str
    status: str
    kind: Kind = ""


@dataclass(frozen=True)
class FailureSummary:
    """One module that cannot be captured, or several that fail alike.

    Attributes:
        fqn: its name; of several, that of the first.
        type: its class.
        title: the reason in the user's words.
        place: the line in short, e.g. ``"net.py:7"``; "" if it is not known.
        code: the text of the line.
        remedy: how to fix it.
        file: the file of the line, as Python names it.
        line: its number, from 1.
        diff: the proposed change; "" where there is none.
        proof: how the change was checked, in words; why there is none where none can be proposed.
        can_fix: whether there is a change to apply.
        assumption: the assumption of a change beyond the samples, because of which it is never applied together with
            others; "" without one.
        has_draft: whether there is a change that could be edited.
        fixed: whether it is applied.
        is_leaf: whether the module is kept as a leaf module.
        count: how many modules fail alike.
        fqns: their names.
        report: all that is known, as text to be copied.
    """

    fqn: str
    type: str
    title: str
    place: str
    code: str
    remedy: str
    file: str
    line: int
    diff: str
    proof: str
    can_fix: bool
    assumption: str
    has_draft: bool
    fixed: bool
    is_leaf: bool
    count: int
    fqns: tuple[str, ...]
    report: str


@dataclass(frozen=True)
class AxisSummary:
    """One dim of one tensor argument, or of several that are alike.

    Attributes:
        path: the argument, as it is shown; patterns where it stands for several.
        dim: the dim, from 0.
        sizes: the sizes in the samples.
        dynamic: whether other sizes must work.
        symbol: the short name of the size when it is dynamic.
        name: its whole name.
        min: the smallest size to support; -1 if not limited.
        max: the largest; -1 if not limited.
        linked: other dims of the same size, as ``"path dim 1"``.
        problem: the contradiction with the choice; "" if there is none.
        verified: sizes at which the graph ran and was equal, in words, or the problem found; "" before.
        places: how many arguments ``path`` stands for.
        paths: the arguments with which actions name these dims.
    """

    path: str
    dim: int
    sizes: tuple[int, ...]
    dynamic: bool
    symbol: str
    name: str = ""
    min: int = -1
    max: int = -1
    linked: tuple[str, ...] = ()
    problem: str = ""
    verified: str = ""
    places: int = 1
    paths: tuple[str, ...] = ()


@dataclass(frozen=True)
class LayerFacts:
    """The fixed facts of a quantizable layer."""

    fqn: str
    type: str
    parameters: int


@dataclass(frozen=True)
class Decision:
    """The plan for layers.

    Attributes:
        label: in short, e.g. ``"int8"`` or ``"int4 weights, 32"``.
        rule: the key that decides, or ``"global"``.
        weights: bits of the weights, ``"32"`` for float; several for candidates.
        activations: bits of the inputs, ``"32"`` for float.
        weights_only: ``"true"`` where activations stay in float.
        block: inputs that share a scale; ``"0"`` for one scale for each channel.
        observer: how ranges are learned.
        algorithm: how weights become integers.
        quantized: whether the layer is quantized.
        pruning: the pruning in short, e.g. ``"50% channels"``; "" for none.
        pruned_by: the key of the deciding pruning rule; "" where nothing is pruned and no rule applies.
        mask: the field of that name as the editor has it.
        amount: in percent; "" where the mask determines it.
        score: the criterion of what is removed first.
    """

    label: str
    rule: str
    weights: str
    activations: str
    weights_only: str
    block: str
    observer: str
    algorithm: str
    quantized: bool
    pruning: str = ""
    pruned_by: str = ""
    mask: str = "none"
    amount: str = ""
    score: str = ""


@dataclass(frozen=True)
class Outcome:
    """The outcome of layers in a run: in short, why it differs from the plan, and what was pruned."""

    label: str
    why: str
    pruned: str = ""


@dataclass(frozen=True)
class LayerColumn:
    """A number for each layer, e.g. its SQNR; None where unknown.

    Attributes:
        key: names it.
        title: its head.
        unit: of the numbers.
        help: an explanation of the column.
        values: the numbers.
        worst: which end of them stands out; "" where they are no bars.
        stale: what changed since the numbers were measured; "" if nothing did.
        notes: remarks on the numbers, such as why there is none, each once.
        noted: for each layer the index of its note; empty without notes.
    """

    key: str
    title: str
    unit: str
    help: str
    values: tuple[float | None, ...]
    worst: Literal["", "least", "greatest"] = ""
    stale: str = ""
    notes: tuple[str, ...] = ()
    noted: tuple[int, ...] = ()


@dataclass(frozen=True)
class RuleSummary:
    """A rule: its key, a short text of its settings, the number of layers it decides, and whether it is about
    pruning.
    """

    pattern: str
    label: str
    layers: int
    prunes: bool = False


@dataclass(frozen=True)
class SettingField:
    """A setting that the editor of layers offers.

    Attributes:
        name: the field of :class:`Decision` that has its value.
        title: the words beside it.
        help: an explanation of the setting.
        kind: of its control.
        choices: its values.
        refused: for each value, which of the chosen targets do not have it, in words; "" where all do.
    """

    name: str
    title: str
    help: str
    kind: Control
    choices: tuple[str, ...]
    refused: tuple[str, ...] = ()


@dataclass(frozen=True)
class PrecisionChoice:
    """A precision for layers; not ``enabled`` where it needs calibration inputs and there are none."""

    name: Precision
    label: str
    explanation: str
    enabled: bool


@dataclass(frozen=True)
class OptionField:
    """An option of a target; an empty ``value`` is the target's own choice."""

    name: str
    title: str
    help: str
    kind: Control
    choices: tuple[str, ...]
    value: str


@dataclass(frozen=True)
class TargetSummary:
    """A target; ``unavailable`` names a missing requirement, ``problem`` an unsupported setting."""

    name: str
    chosen: bool
    unavailable: str
    problem: str
    options: tuple[OptionField, ...]


@dataclass(frozen=True)
class Staleness:
    """The differences between a run's choices and the current ones, in words; empty where there are none."""

    texts: tuple[str, ...]


@dataclass(frozen=True)
class QueuedSummary:
    """A waiting run: its name, its targets and its settings in words."""

    id: str
    name: str
    target: str
    settings: str


@dataclass(frozen=True)
class DifferenceRow:
    """One difference between two runs."""

    what: str
    first: str
    second: str


@dataclass(frozen=True)
class RunDifference:
    """The differences between two runs; names are empty where none are compared."""

    first: str = ""
    second: str = ""
    results: tuple[DifferenceRow, ...] = ()
    settings: tuple[DifferenceRow, ...] = ()
    layers: tuple[DifferenceRow, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class BenchSummary:
    """Everything that a front end shows of a bench, apart from a running compile.

    Attributes:
        title: the class of the model.
        sentence: where the work stands, in one sentence.
        steps: the rail.
        selected: the FQN of the selected layer or module; "" for none.
        failures: the modules that cannot be captured.
        fixes_known: whether changes that work were looked for.
        assumptions: the assumptions of the graph.
        leaf_wrap: whether lines that cannot be captured become leaves.
        leaf_label: the words beside the checkbox for that.
        leaves: modules that are kept as leaf modules.
        axes: every dim of every tensor argument.
        layers: the quantizable layers.
        decisions: the plan of layers, each kind once.
        planned: for each layer the index of its decision.
        outcomes: the outcome of layers in the shown run, each kind once.
        applied: for each layer the index of its outcome; empty before the first run.
        columns: numbers by layer.
        measured: how the costs and times of single layers were measured, in words; "" before.
        is_measuring: whether that is measured with the current choices, or waits.
        search: the search for the best settings within a budget.
        search_now: how the current choices stand to it.
        recovery: the training between preparing and compiling.
        rules: the rules, in order.
        base: a short text of the settings where no rule applies.
        settings: the fields of the editor of layers.
        precisions: the precisions to choose from.
        targets: all targets.
        queue: the runs that wait, the next one first.
        turn: the position of the current run among several, e.g. ``"1 of 3"``; "" for a single one.
        is_queued: whether a run with the current choices is running or queued.
        runs: the history, pinned ones first, then the newest.
        elsewhere: the runs from elsewhere.
        shown_run: the id of the run whose results are shown; "" for none.
        staleness: how the choices behind runs differ from the current ones, each kind once.
        stale_of: for each run the index of its staleness; apart from the runs, because each click changes it.
        difference: the differences between the two compared runs.
        workload: the generation that candidates are compared on, in words; "" for single calls.
        prompts: the prompts of it that are shown.
        written: the generated texts of the float model and the newest runs.
        code: the Python lines that do the same.
        stale: the differences between the choices of the shown results and the current ones; empty if there are none.
        can_undo: whether there is a change to undo.
        can_redo: whether there is an undo to take back.
    """

    title: str
    sentence: str
    steps: tuple[StepSummary, ...]
    selected: str
    failures: tuple[FailureSummary, ...]
    fixes_known: bool
    assumptions: tuple[str, ...]
    leaf_wrap: bool
    leaf_label: str
    leaves: tuple[str, ...]
    axes: tuple[AxisSummary, ...]
    layers: tuple[LayerFacts, ...]
    decisions: tuple[Decision, ...]
    planned: tuple[int, ...]
    outcomes: tuple[Outcome, ...]
    applied: tuple[int, ...]
    columns: tuple[LayerColumn, ...]
    measured: str
    is_measuring: bool
    search: SearchSummary
    search_now: SearchNow
    recovery: RecoverySummary
    rules: tuple[RuleSummary, ...]
    base: str
    settings: tuple[SettingField, ...]
    precisions: tuple[PrecisionChoice, ...]
    targets: tuple[TargetSummary, ...]
    queue: tuple[QueuedSummary, ...]
    turn: str
    is_queued: bool
    runs: tuple[RunSummary, ...]
    elsewhere: ElsewhereSummary
    shown_run: str
    staleness: tuple[Staleness, ...]
    stale_of: tuple[int, ...]
    difference: RunDifference
    workload: str
    prompts: tuple[str, ...]
    written: tuple[WrittenBy, ...]
    code: str
    stale: str
    can_undo: bool
    can_redo: bool
