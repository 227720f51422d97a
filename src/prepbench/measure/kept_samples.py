"""Keep the rows of the data on which a candidate differs most from the first one, during scoring.

Only a few rows are kept, of at most a megabyte each, so that the data may be larger than memory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from prepbench._display import view
from prepbench._torch_compat import pytree
from prepbench.checks import described
from prepbench.inputs import named_leaves
from prepbench.measure import metrics
from prepbench.measure.batches import Batch
from prepbench.measure.generation import Generation
from prepbench.measure.language_metrics import IGNORED_CLASS, logits_of, scores_and_classes
from prepbench.measure.modality import SAMPLING_RATE, Modality, modality_of
from prepbench.running.metric_facts import totals_of

if TYPE_CHECKING:
    import pandas


# How far each row of an output is from the same row of the reference's: larger is farther, NaN counts as infinite.


TOKENS = 32
"""How many predictions of one row are kept."""
_DISTANCES_CLASSES = 3
_ROUNDING = 1e-7
_VALUES = 6


@dataclass(frozen=True)
class Measure:
    """A distance between rows.

    Attributes:
        label: its name and unit, as a heading.
        distances: from an output, the reference's, the target and a number of rows to one number for each row; None for
            the number of rows means that the whole batch is one row.
        shown: how to display a number.
        predicts: whether outputs are scores of classes.
    """

    label: str
    distances: Callable[[Any, Any, Any, int | None], torch.Tensor]
    shown: Callable[[float], float] = lambda value: value
    predicts: bool = False


def measure_for(metric: Any, output: Any, target: Any) -> Measure:
    """Return the distance of rows for candidates that are scored by ``metric``."""
    totals = totals_of(metric)
    if metric is metrics.token_agreement:
        return OTHERS
    if totals is not None and totals.of_classes:
        scores = _scores(output, target)
        return DIVERGENCE if scores.is_floating_point() else OTHERS
    return NOISE if metrics.signal_tensors(output) else OTHERS


def rows_in(first_input: torch.Tensor | None, output: Any, target: Any) -> int | None:
    """Return the number of rows of a batch: a size of the first input that results have, too; None where there is
    none.

    Where several sizes qualify, it is the one that most results and the target have, and of these the first: batches
    whose first dimension is time are recognised by their states.
    """
    if first_input is None:
        return None
    results = [x for x in pytree.tree_leaves(output) if isinstance(x, torch.Tensor)]
    leading = target.shape[:1] if isinstance(target, torch.Tensor) else ()
    votes = [
        sum(row_dim(result, size) is not None for result in results) + (bool(results) and leading == (size,))
        for size in first_input.shape
    ]
    return int(first_input.shape[votes.index(max(votes))]) if any(votes) else None


def row_dim(tensor: torch.Tensor, rows: int) -> int | None:
    """Return the dimension of rows: the first of this size, if it is dimension 0 or the only one."""
    dims = [dim for dim, size in enumerate(tensor.shape) if size == rows]
    return dims[0] if dims and (dims[0] == 0 or len(dims) == 1) else None


def row_of(tensor: torch.Tensor, rows: int | None, row: int | None) -> torch.Tensor:
    """Return one row of a tensor; all of it where it has no rows."""
    dim = None if rows is None or row is None else row_dim(tensor, rows)
    return tensor if dim is None or row is None else tensor.select(dim, row)


def output_text(output: Any, target: Any, measure: Measure, rows: int | None, row: int | None) -> str:
    """Return an output's row as a short text: its likeliest classes, its tokens, or its first numbers."""
    if measure.predicts:
        return _classes_text(row_of(_scores(output, target), rows, row).float())
    tensors = [x for x in pytree.tree_leaves(output) if isinstance(x, torch.Tensor)]
    return "; ".join(numbers_text(row_of(x, rows, row)) for x in tensors[:_DISTANCES_CLASSES])


def predicted_tokens(output: Any, target: Any, rows: int | None, row: int | None) -> tuple[int, ...]:
    """Return the first predicted tokens of a row; none where its scores are not of tokens."""
    scores = row_of(_scores(output, target), rows, row)
    return tuple(scores[:TOKENS].argmax(-1).tolist()) if scores.dim() == 2 else ()


def numbers_text(tensor: torch.Tensor) -> str:
    """Return the first numbers of a tensor, and how many there are, as text."""
    flat = tensor.detach().flatten()
    more = f", … ({flat.numel()} numbers)" if flat.numel() > _VALUES else ""
    return ", ".join(_number(value) for value in flat[:_VALUES].tolist()) + more


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _classes_text(scores: torch.Tensor) -> str:
    if scores.dim() != 1:
        predicted = scores.argmax(-1).flatten()
        return " ".join(map(str, predicted[:TOKENS].tolist())) + " …" * (predicted.numel() > TOKENS)
    if not bool(torch.isfinite(scores).all()):
        return numbers_text(scores)
    likely, classes = scores.softmax(-1).topk(min(_DISTANCES_CLASSES, len(scores)))
    return ", ".join(f"{label} ({share:.0%})" for label, share in zip(classes.tolist(), likely.tolist(), strict=True))


def _scores(output: Any, target: Any) -> torch.Tensor:
    """Return scores with the classes in the last dimension."""
    if target is None:
        return logits_of(output).detach()
    try:
        return scores_and_classes(output, target)[0]
    except ValueError:
        return logits_of(output).detach()  # of a language model, whose last logits have no target


def _per_row(values: torch.Tensor, rows: int | None) -> torch.Tensor:
    """Return ``values`` with the shape (rows, numbers of a row)."""
    dim = None if rows is None else row_dim(values, rows)
    if rows is None:
        return values.reshape(1, -1)
    # a tensor without rows of its own does not describe one
    return values.new_zeros(rows, 1) if dim is None else values.movedim(dim, 0).reshape(rows, -1)


def _noise(output: Any, reference: Any, target: Any, rows: int | None) -> torch.Tensor:
    del target
    signal = noise = torch.zeros(())
    for found, expected in _pairs(metrics.signal_tensors(output), metrics.signal_tensors(reference)):
        wide = torch.promote_types(found.dtype, torch.float32)
        given, wanted = (_per_row(each, rows).to(wide) for each in (found, expected))
        added = _square_sums(given - wanted), _square_sums(wanted)
        if not bool(torch.isfinite(added[0] + added[1]).all()):
            same = (given == wanted) | (given.isnan() & wanted.isnan())
            clean = torch.where(wanted.isfinite(), wanted, 0.0)
            added = _square_sums(torch.where(same, 0.0, given - wanted)), _square_sums(clean)
        noise, signal = noise + added[0], signal + added[1]
    # noise without any signal is as far as can be
    return torch.where(noise == 0, 0.0, noise / signal)


def _square_sums(rows: torch.Tensor) -> torch.Tensor:
    norms: torch.Tensor = torch.linalg.vector_norm(rows, dim=1)
    return norms.double().square()


def _divergences(output: Any, reference: Any, target: Any, rows: int | None) -> torch.Tensor:
    found, expected = _scores(output, target), _scores(reference, target)
    _check_alike(found, expected)
    wanted, given = (scores.float().log_softmax(-1) for scores in (expected, found))
    terms = (wanted.exp() * (wanted - given)).sum(-1)
    if not bool(terms.isfinite().all()):
        # an impossible prediction has a probability of 0, and adds nothing
        terms = torch.where(wanted.isneginf(), 0.0, wanted.exp() * (wanted - given)).sum(-1)
        both = (found == expected) | (found.isnan() & expected.isnan())
        terms = torch.where(both.all(-1), 0.0, terms)
    # equal predictions are 0 apart, but for rounding
    kept = terms.masked_fill(terms.abs() < _ROUNDING, 0.0)
    return _per_row(kept, rows).mean(1)


def _others(output: Any, reference: Any, target: Any, rows: int | None) -> torch.Tensor:
    del target
    different: list[torch.Tensor] = []
    pairs = _pairs(
        *([x for x in pytree.tree_leaves(each) if isinstance(x, torch.Tensor)] for each in (output, reference))
    )
    for found, expected in pairs:
        pair = [x.argmax(-1) if x.is_floating_point() and x.dim() > 1 else x for x in (found, expected)]
        different.append(_per_row((pair[0] != pair[1]).float(), rows))
    return torch.cat(different, 1).mean(1)


def _pairs(found: list[torch.Tensor], expected: list[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    if len(found) != len(expected) or not found:
        raise ValueError(f"outputs hold {len(found)} tensors, and those of the first candidate {len(expected)}")
    for pair in zip(found, expected, strict=True):
        _check_alike(*pair)
    return [(a.detach(), b.detach().to(a.device)) for a, b in zip(found, expected, strict=True)]


def _check_alike(found: torch.Tensor, expected: torch.Tensor) -> None:
    if found.shape != expected.shape:
        raise ValueError(f"outputs have the shapes {tuple(found.shape)} and {tuple(expected.shape)}")


def _decibels(ratio: float) -> float:
    if ratio == 0:
        return math.inf
    return -10 * math.log10(ratio) if math.isfinite(ratio) else -math.inf


NOISE = Measure("SQNR dB", _noise, _decibels)
DIVERGENCE = Measure("divergence in nats", _divergences, predicts=True)
OTHERS = Measure("share that differs", _others)


KEPT = 16
"""How many rows are kept for each candidate."""

_LIMIT = 1_000_000  # bytes of one input of one row
_OUTPUTS = 8  # tensors of one output
_CLASSES = 2000
_REPR = 200


@dataclass(frozen=True)
class SampleInput:
    """One input of one row, or one output.

    Attributes:
        name: the parameter of forward, with the path inside it; of an output the path inside what forward returns.
        shape: shape of the row; None for inputs that are no tensors.
        values: a copy on the CPU; of large tensors every n-th entry of the last two dimensions, or the first ones. None
            for inputs that are no tensors.
        described: a short text for an input that is no tensor.
        is_whole: whether ``values`` are all of it.
    """

    name: str
    shape: tuple[int, ...] | None
    values: torch.Tensor | None = field(repr=False)
    described: str = ""
    is_whole: bool = True

    @property
    def text(self) -> str:
        """A short text of the input."""
        if self.values is None:
            return self.described
        dtype = str(self.values.dtype).removeprefix("torch.")
        return f"{dtype} of shape {self.shape}: {numbers_text(self.values)}"


@dataclass(frozen=True)
class WorstSample:
    """A row of the data, with the outputs of two candidates.

    Attributes:
        batch: index of the batch in the data.
        row: index in the batch; None where the batch is one sample.
        distance: how far the outputs are apart, in the unit of the table.
        expected: the first candidate's output in short.
        found: the other candidate's output in short.
        target: the target in short; empty without targets.
        inputs: the inputs of the model.
        tokens: the tokens that the first candidate and the other one wrote or predicted, where these are tokens.
        outputs: the tensors of both outputs, the first candidate's first; empty where they are scores of classes.
    """

    batch: int
    row: int | None
    distance: float
    expected: str
    found: str
    target: str
    inputs: tuple[SampleInput, ...]
    tokens: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    outputs: tuple[tuple[SampleInput, ...], tuple[SampleInput, ...]] = ((), ())


@dataclass(frozen=True)
class KeptSamples:
    """The single samples that a comparison kept.

    Attributes:
        measure: the kind of distance, with its unit.
        worst: for each candidate but the first the farthest rows, the farthest first.
        reasons: why nothing is known of a candidate.
        counts: for each candidate how often each class (row) was predicted as each (column), where the metric is
            accuracy.
        no_counts: why there are none.
    """

    measure: str = ""
    worst: Mapping[str, tuple[WorstSample, ...]] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    counts: Mapping[str, torch.Tensor] = field(default_factory=dict)
    no_counts: str = ""


class Keeper:
    """Keeps the rows with the largest distance of each candidate, batch after batch.

    Args:
        metric: the metric of the candidates; it decides how rows are compared.
        caller: the candidate whose forward names the inputs.
    """

    def __init__(self, metric: Any, caller: Callable[..., Any]) -> None:
        self._metric = metric
        self._caller = caller
        self._measure: Measure | None = None
        self._worst: dict[str, list[tuple[float, WorstSample]]] = {}
        self._reasons: dict[str, str] = {}
        self._counts: dict[str, torch.Tensor] = {}
        self._no_counts = "" if metric is metrics.accuracy else "the metric is another one"
        self._inputs: dict[int | None, tuple[SampleInput, ...]] = {}
        self._leaves: list[tuple[str, Any]] = []
        self._batch = -1

    def add(self, name: str, output: Any, reference: Any, batch: Batch) -> None:
        """Examine a candidate's output; the first candidate's is the reference."""
        if not self._no_counts:
            self._count(name, output, batch.target)
        if output is reference or name in self._reasons:
            return
        worst = self._worst.setdefault(name, [])
        try:
            self._keep(worst, output, reference, batch)
        except (ValueError, TypeError, RuntimeError, IndexError) as error:
            # outputs may have any structure; scores must not depend on the kept samples
            worst.clear()
            self._reasons[name] = str(error).strip().rstrip(".") or type(error).__name__

    def kept(self) -> KeptSamples:
        """Return the samples kept so far."""
        shown = self._measure.shown if self._measure else float
        worst = {
            name: tuple(replace(row, distance=shown(distance)) for distance, row in rows)
            for name, rows in self._worst.items()
        }
        label = self._measure.label if self._measure else ""
        return KeptSamples(label, worst, dict(self._reasons), dict(self._counts), self._no_counts)

    def _keep(self, worst: list[tuple[float, WorstSample]], output: Any, reference: Any, batch: Batch) -> None:
        if self._measure is None:
            self._measure = measure_for(self._metric, reference, batch.target)
        first = _first_tensor(batch)
        if first is not None and not first.numel():
            return
        rows = rows_in(first, reference, batch.target)
        distances = self._measure.distances(output, reference, batch.target, rows)
        if not distances.numel():
            return
        values, places = distances.topk(min(KEPT, distances.numel()))  # NaN is larger than all else
        for value, place in zip(values.tolist(), places.tolist(), strict=True):
            distance = math.inf if math.isnan(value) else value
            if distance <= 0 or (len(worst) == KEPT and distance <= worst[-1][0]):
                break
            row = None if rows is None else place
            sample = WorstSample(
                batch.sample.index,
                row,
                distance,
                output_text(reference, batch.target, self._measure, rows, row),
                output_text(output, batch.target, self._measure, rows, row),
                _target_text(batch.target, rows, row),
                self._inputs_of(batch, rows, row),
                self._tokens(reference, output, batch.target, rows, row),
                ((), ()) if self._measure.predicts else (_outputs(reference, rows, row), _outputs(output, rows, row)),
            )
            worst.append((distance, sample))
            worst.sort(key=lambda one: -one[0])  # rows that are equally far stay in the order of the data
            del worst[KEPT:]

    def _tokens(
        self, reference: Any, output: Any, target: Any, rows: int | None, row: int | None
    ) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        if self._measure is None or not self._measure.predicts:
            return None
        expected, found = (predicted_tokens(each, target, rows, row) for each in (reference, output))
        return (expected, found) if expected and found else None

    def _inputs_of(self, batch: Batch, rows: int | None, row: int | None) -> tuple[SampleInput, ...]:
        if self._batch != batch.sample.index:
            self._inputs, self._batch = {}, batch.sample.index
            self._leaves = named_leaves(self._caller, batch.sample)
        if row not in self._inputs:  # candidates are often farthest on the same rows
            self._inputs[row] = tuple(_input(name, leaf, rows, row) for name, leaf in self._leaves)
        return self._inputs[row]

    def _count(self, name: str, output: Any, target: Any) -> None:
        try:
            scores, classes = scores_and_classes(output, target)
        except ValueError as error:  # accuracy has failed already where these do not fit
            self._no_counts = str(error)
            return
        predicted = scores.argmax(-1) if scores.dim() > classes.dim() else scores
        counted = classes != IGNORED_CLASS
        if not bool(counted.any()):
            return
        wanted, given = classes[counted].flatten().long().cpu(), predicted[counted].flatten().long().cpu()
        number = scores.shape[-1] if scores.dim() > classes.dim() else int(max(wanted.max(), given.max())) + 1
        if number > _CLASSES:
            self._count_no_more(f"there are {number} classes, and they are counted for up to {_CLASSES}")
            return
        counts = self._counts.get(name, torch.zeros(0, 0, dtype=torch.long))
        if len(counts) < number:
            counts = torch.nn.functional.pad(counts, (0, number - len(counts), 0, number - len(counts)))
        try:
            counts.view(-1).index_add_(0, wanted * len(counts) + given, torch.ones_like(wanted))
        except (IndexError, RuntimeError):
            self._count_no_more(f"there are targets outside of the classes 0 to {number - 1}")
            return
        self._counts[name] = counts

    def _count_no_more(self, reason: str) -> None:
        self._counts.clear()
        self._no_counts = reason


def _first_tensor(batch: Batch) -> torch.Tensor | None:
    leaves = pytree.tree_leaves((batch.sample.args, batch.sample.kwargs))
    return next((leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim() > 0), None)


def _target_text(target: Any, rows: int | None, row: int | None) -> str:
    if target is None:
        return ""
    if isinstance(target, torch.Tensor):
        return numbers_text(row_of(target, rows, row))
    if isinstance(target, list | tuple) and row is not None and len(target) == rows:
        return described(target[row])[:_REPR]
    return described(target)[:_REPR]


def _input(name: str, leaf: Any, rows: int | None, row: int | None) -> SampleInput:
    if not isinstance(leaf, torch.Tensor):
        return SampleInput(name, None, None, described(leaf)[:_REPR])
    own = row_of(leaf.detach(), rows, row)
    thinned = _thinned(own)
    return SampleInput(name, tuple(own.shape), thinned.cpu().clone(), is_whole=thinned.shape == own.shape)


def _outputs(output: Any, rows: int | None, row: int | None) -> tuple[SampleInput, ...]:
    leaves = pytree.tree_flatten_with_path(output)[0]
    tensors = [(pytree.keystr(path), leaf) for path, leaf in leaves if isinstance(leaf, torch.Tensor)]
    named = [(re.sub(r"[\[\]'.]+", ".", path).strip("."), leaf) for path, leaf in tensors]
    return tuple(_input(name, leaf, rows, row) for name, leaf in named[:_OUTPUTS])


def _thinned(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor where it is small enough, else every n-th entry of an image, or its first entries."""
    room = max(_LIMIT // tensor.element_size(), 1)
    if tensor.numel() <= room:
        return tensor
    if tensor.dim() < 3:
        return tensor.flatten()[:room]
    step = math.ceil(math.sqrt(tensor.numel() / room))
    # channels are few: the two longest dimensions lose entries
    longest = sorted(range(tensor.dim()), key=lambda dim: -tensor.shape[dim])[:2]
    for dim in longest:
        tensor = tensor[tuple(slice(None, None, step if dim == each else 1) for each in range(tensor.dim()))]
    return tensor if tensor.numel() <= room else tensor.flatten()[:room]


def kept_prompts(workload: Generation, tokens: Mapping[str, list[torch.Tensor]]) -> KeptSamples:
    """Return the prompts after which candidates generate other tokens than the first one, the earliest difference
    first.
    """
    (_, reference), *others = tokens.items()
    worst = {}
    for name, made in others:
        found = []
        for index, (prompt, expected, given) in enumerate(zip(workload.batches, reference, made, strict=True)):
            differs = expected != given
            for row in differs.any(1).nonzero().flatten().tolist():
                first = int(differs[row].int().argmax())
                ids = prompt.ids[row][prompt.mask[row] != 0]
                shown = SampleInput("prompt", tuple(ids.shape), _thinned(ids).clone())
                ours, theirs = (" ".join(map(str, each[row][first:][:TOKENS].tolist())) for each in (expected, given))
                wrote = (tuple(expected[row].tolist()), tuple(given[row].tolist()))
                found.append(WorstSample(index, row, float(first), ours, theirs, "", (shown,), wrote))
        worst[name] = tuple(sorted(found, key=lambda one: one.distance)[:KEPT])
    return KeptSamples("equal tokens before they differ", worst, no_counts="tokens are generated")


# The samples on which a candidate differs most from the first one, as values, text and table.


_TEXT = 60


@dataclass(frozen=True, repr=False)
class WorstSamples:
    """The samples on which a candidate differs most from the first one: the result of :meth:`Comparison.worst`.

    Attributes:
        first: the first candidate's name.
        candidate: the other one's.
        measure: how far they are apart, with its unit; the distances are in it.
        samples: how many samples were compared.
        rows: the farthest first; empty where both candidates have equal outputs for all samples.
        decode: makes text of token numbers.
        modality: how inputs and outputs are shown, for all or by name; None for what their values tell.
        sampling_rate: of audio, in values a second.

    Example:
        >>> WorstSamples("float32", "int8", "SQNR dB", 64, ()).rows
        ()
    """

    first: str
    candidate: str
    measure: str
    samples: int
    rows: tuple[WorstSample, ...]
    decode: Callable[[list[int]], str] | None = field(default=None, repr=False)
    modality: Modality | Mapping[str, Modality] | None = None
    sampling_rate: int = SAMPLING_RATE

    @property
    def caption(self) -> str:
        """Describe the rows in one sentence."""
        if not self.rows:
            return f"{self.candidate} gives what {self.first} gives on all of {self.samples} samples."
        count = len(self.rows)
        return (
            f"{'The sample' if count == 1 else f'The {count} samples'} of {self.samples} on which {self.candidate} is "
            f"farthest from {self.first}, by {self.measure.removesuffix(' dB')}."
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on samples that are not among the rows."""
        return (f"{KEPT} rows are kept for each candidate.",) if len(self.rows) == KEPT < self.samples else ()

    def table(self) -> pandas.DataFrame:
        """Return one row for each sample: its place in the data, the distance of outputs, and a short text of both."""
        import pandas

        columns: dict[str, list[Any]] = {
            "batch": [row.batch for row in self.rows],
            "row": [row.row for row in self.rows],
            self.measure: [row.distance for row in self.rows],
            self.first: [self.output_texts(row)[0] for row in self.rows],
            f"{self.candidate} " if self.candidate == self.measure else self.candidate: [
                self.output_texts(row)[1] for row in self.rows
            ],
            "target": [row.target for row in self.rows],
            "input": ["; ".join(self.input_text(one) for one in row.inputs) for row in self.rows],
        }
        if not any(row.target for row in self.rows):
            del columns["target"]
        return pandas.DataFrame(columns).astype({"row": "Int64", self.measure: float})

    def input_text(self, one: SampleInput) -> str:
        """Return a text of an input: decoded tokens where possible, else a summary of the tensor."""
        values = one.values
        if self.decode is None or values is None or modality_of(values, one.name) != "text":
            return f"{one.name} {one.text}"
        return str(self.decode(values.tolist()))

    def output_texts(self, row: WorstSample) -> tuple[str, str]:
        """Return short texts of both outputs, the first candidate's first."""
        if self.decode is None or row.tokens is None:
            return row.expected, row.found
        expected, found = (str(self.decode(list(tokens))) for tokens in row.tokens)
        return expected, found

    def __repr__(self) -> str:
        header = ["batch", "row", self.measure, self.first, self.candidate, "target"]
        body = [
            [
                str(row.batch),
                "–" if row.row is None else str(row.row),
                distance_text(row.distance),
                *map(_short, self.output_texts(row)),
                _short(row.target),
            ]
            for row in self.rows
        ]
        lines = [header, *body] if body else []
        if not any(row.target for row in self.rows):
            lines = [line[:-1] for line in lines]
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))] if lines else []
        texts = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
        return "\n".join([*(text.rstrip() for text in texts), self.caption, *self.notes])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return view("views.samples", "worst_bundle", self)  # type: ignore[no-any-return]


def distance_text(value: float) -> str:
    """Format a distance with three significant digits.

    Example:
        >>> distance_text(12.345), distance_text(float("-inf"))
        ('12.3', '−∞')
    """
    if value in (float("inf"), float("-inf")):
        return "∞" if value > 0 else "−∞"
    return f"{value:.3g}".replace("-", "−")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _TEXT else line[: _TEXT - 1] + "…"
