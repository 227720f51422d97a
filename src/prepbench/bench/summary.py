"""The summary that a front end of the bench shows, as plain values; ``extension/generate.py`` makes it TypeScript."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from prepbench.bench.cards import Card, CardButton
from prepbench.bench.state import Precision
from prepbench.bench.written import WrittenBy
from prepbench.document.bench import Chart, ShownSamples

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
class InputNote:
    """A line in the head of a bench about what it was given.

    Attributes:
        kind: ``"bad"`` for what a run would fail on, ``"hint"`` for what may be meant otherwise, else ``""``.
        text: the line.
        label: of the button that mends it; "" for none.
        paths: of the inputs whose dim the button makes dynamic or static.
        dim: the dim.
        dynamic: which of the two.
    """

    kind: Literal["", "hint", "bad"]
    text: str
    label: str = ""
    paths: tuple[str, ...] = ()
    dim: int = 0
    dynamic: bool = True


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
        graphs: how many graphs a compile makes instead of one, of which each call runs the one that its sizes fit; 0
            where it cannot.
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
    graphs: int
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
        reason: the line or the error behind such a problem.
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
    reason: str = ""
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
        formats: the label without how integers are found, to compare with an outcome; the label where empty.
        equalised: ``"true"`` where channels are scaled between layers.
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
    formats: str = ""
    equalised: str = "false"
    pruning: str = ""
    pruned_by: str = ""
    mask: str = "none"
    amount: str = ""
    score: str = ""


@dataclass(frozen=True)
class Outcome:
    """The outcome of layers in a run.

    Attributes:
        label: its formats, as :attr:`Decision.formats` has those of the plan.
        why: why it, or a part of it, is in float.
        pruned: what was pruned.
        note: a remark on how it is computed.
    """

    label: str
    why: str
    pruned: str = ""
    note: str = ""


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
class ExpectedSize:
    """The size that the model is expected to have with the current choices, before it is compiled.

    Attributes:
        megabytes: of weights and everything else, in MB (10**6 bytes).
        float_megabytes: the same with all layers in float.
        note: what is not counted; "" for nothing.
    """

    megabytes: float
    float_megabytes: float
    note: str = ""


@dataclass(frozen=True)
class RuleSummary:
    """A rule: its key, a short text of its settings, the number of its layers, and whether it is about pruning."""

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
class LayerColours:
    """A number for each layer in which two runs differ, for the diagram; nothing for an empty title.

    Attributes:
        title: what the numbers are, as the legend says it.
        unit: of them.
        fqns: the layers.
        values: their numbers.
    """

    title: str = ""
    unit: str = ""
    fqns: tuple[str, ...] = ()
    values: tuple[float, ...] = ()


@dataclass(frozen=True)
class RunDifference:
    """The differences between two runs; names are empty where none are compared.

    Attributes:
        colours: what the diagram shows of it.
        samples: the samples on which they differ most.
    """

    first: str = ""
    second: str = ""
    results: tuple[DifferenceRow, ...] = ()
    settings: tuple[DifferenceRow, ...] = ()
    layers: tuple[DifferenceRow, ...] = ()
    note: str = ""
    colours: LayerColours = field(default_factory=LayerColours)
    samples: ShownSamples = field(default_factory=ShownSamples)


@dataclass(frozen=True)
class RunSummary:
    """A run in the history, as text.

    Attributes:
        p50: the median latency of a call; of a token where text was generated.
        first: time to the first token; empty where nothing was generated, as the next ones.
        rate: tokens in a second.
        peak: most memory of the process, in MB.
        speed: how many times faster it is, and than what, or why that is not said.
        eager: the float model's time in PyTorch eager in the same rounds; empty where it is not known.
        beside: the same of the float model, in words.
        is_live: whether its compiled model is in this process.
        where: the machine and notebook that it ran on, where these are others than here.
        is_far: whether it ran on another machine, so that its latency cannot be compared with those of this one.
        is_own: whether it belongs to the history; else it can only be looked at.
        model: the display name of its model.
        lacks_float: whether the float model can be timed beside it on its runtime, and was not yet.
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
    eager: str = ""
    first: str = ""
    rate: str = ""
    peak: str = ""
    beside: str = ""
    where: str = ""
    is_far: bool = False
    is_own: bool = True
    model: str = ""
    lacks_float: bool = False


@dataclass(frozen=True)
class ElsewhereSummary:
    """The number of runs from other machines, notebooks and a file, whether they are listed, and that file."""

    count: int
    shown: bool
    path: str


@dataclass(frozen=True)
class FoundSettings:
    """Settings of all layers that a search measured or predicted, as text.

    Attributes:
        id: names them.
        name: the display name.
        target: the target.
        measured: whether they were compiled, scored and timed.
        score: the metric.
        drop: how much worse than float that is; "–" for an SQNR.
        latency: milliseconds of a call.
        size: MB on disk.
        kept: which layers stay in float, in a few words.
    """

    id: str
    name: str
    target: str
    measured: bool
    score: str
    drop: str
    latency: str
    size: str
    kept: str


@dataclass(frozen=True)
class BudgetStop:
    """One stop of the slider: a budget, the index of the best within it, and how that is known."""

    label: str
    best: int
    why: str


@dataclass(frozen=True)
class SearchSummary:
    """A search, during its run and afterwards.

    Attributes:
        metric: the metric whose drop is bounded; "" where the SQNR in dB is.
        budget: the budget of the search, in words; "" before the first.
        why: how the search ended; "" during the search.
        notes: remarks.
        found: the measured and predicted candidates, in the order of the points of the chart.
        chart: these, placed.
        bound: the quantity that the slider changes, in words.
        stops: its places.
        stop: the place of the budget that was searched for.
    """

    metric: str
    budget: str
    why: str
    notes: tuple[str, ...]
    found: tuple[FoundSettings, ...]
    chart: Chart
    bound: str
    stops: tuple[BudgetStop, ...]
    stop: int


@dataclass(frozen=True)
class SearchNow:
    """The part of a search summary that may change with each click.

    Attributes:
        unavailable: why none is possible now; "" where one is.
        repairs: what makes one possible.
        is_searching: whether a search is running or queued.
        stale: what changed since the search; "" if nothing did.
        used: the index of the candidate that equals the current choices; -1 for none.
    """

    unavailable: str
    repairs: tuple[CardButton, ...]
    is_searching: bool
    stale: str
    used: int


@dataclass(frozen=True)
class RecoverySummary:
    """The settings of a training, and its requirements.

    Attributes:
        unavailable: why none is possible with the current choices; "" where one is.
        repairs: what makes one possible.
        on: whether a compile trains now.
        said: the training data, and how the best weights are chosen, in words.
        labelled: whether there are targets to learn from; without them the float model is learned.
        metric: by which weights can be kept; "" where only the loss can.
        steps: of the current choices, or else the usual ones; so are the next ones.
        distill: whether the float model is learned, too.
        by_metric: whether the metric decides which weights are kept.
        learning_rate: of the optimizer.
    """

    unavailable: str
    repairs: tuple[CardButton, ...]
    on: bool
    said: str
    labelled: bool
    metric: str
    steps: int
    distill: bool
    by_metric: bool
    learning_rate: float


@dataclass(frozen=True)
class BenchSummary:
    """Everything that a front end shows of a bench, apart from a running compile.

    Attributes:
        title: the class of the model.
        sentence: where the work stands, in one sentence.
        notes: what is to be said of the samples, the data and the metric.
        steps: the rail.
        selected: the FQN of the selected layer or module; "" for none.
        failures: the modules that cannot be captured.
        fixes_known: whether changes that work were looked for.
        newer_code: the changes of the model's code since the capture, in a sentence; "" without any.
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
        inspection: the layer that is looked at in detail.
        search: the search for the best settings within a budget.
        search_now: how the current choices stand to it.
        recovery: the training between preparing and compiling.
        expected: the size of the model with the current choices.
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
        chart: the newest runs, where a front end cannot show the chart of plotly.
    """

    title: str
    sentence: str
    notes: tuple[InputNote, ...]
    steps: tuple[StepSummary, ...]
    selected: str
    failures: tuple[FailureSummary, ...]
    fixes_known: bool
    newer_code: str
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
    inspection: InspectionSummary
    search: SearchSummary
    search_now: SearchNow
    recovery: RecoverySummary
    expected: ExpectedSize
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
    chart: Chart = field(default_factory=Chart)


# What the inspector of a layer shows, as plain values.


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
