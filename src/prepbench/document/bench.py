"""The document of a bench, ``*.bench.json``: choices, runs, and the page's content, as plain data (standard library
only).

:class:`ShownBench` holds everything that a page shows of a saved bench as text and numbers, so that it needs no
Python. Every string that comes from a user's model is untrusted text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from prepbench.document.codec import parsed, plain, read_document, read_object
from prepbench.document.model import DiagramDocument
from prepbench.errors import DocumentError

BENCH_FORMAT = "prepbench bench"
BENCH_VERSION = "1.1"  # since 1.1 with the samples on which two runs differ
BENCH_MIME_TYPE = "application/vnd.prepbench.bench+json"


@dataclass(frozen=True)
class Fact:
    """A name and its value, e.g. a setting."""

    name: str
    value: str


@dataclass(frozen=True)
class Table:
    """A table as text.

    Attributes:
        title: above it.
        columns: the heads of the columns.
        rows: a text for each column.
        numbers: which columns hold numbers, from 0.
        more: rows that were left out because there were too many.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...] = ()
    numbers: tuple[int, ...] = ()
    more: int = 0


@dataclass(frozen=True)
class Tick:
    """A tick of a chart's axis: its position in pixels, and its label."""

    at: float
    text: str


@dataclass(frozen=True)
class ChartPoint:
    """A run in the chart of accuracy against latency; positions are in pixels, with y pointing down.

    Attributes:
        name: of the run.
        note: its numbers in words.
        kind: the float model, a run, or a run of another machine.
        x: the median latency.
        y: the score.
        x_end: the 90th percentile of the latency; the right end of the plot where that lies beyond.
        y_low: the worst score that other samples would have given; ``y`` where that is not known.
        y_high: the best.
        radius: of the mark, whose area follows the size on disk.
        label: the name, shortened to the available room; empty for a point without a label.
        label_x: the middle of the label.
        label_y: its base line.
    """

    name: str
    note: str
    kind: Literal["float", "run", "elsewhere"]
    x: float
    y: float
    x_end: float
    y_low: float
    y_high: float
    radius: float
    label: str
    label_x: float
    label_y: float


@dataclass(frozen=True)
class Chart:
    """Accuracy against latency over all runs, ready to be drawn.

    Attributes:
        title: a description in one sentence, for screen readers.
        x_title: the name of the axis of latency.
        y_title: the name of the axis of scores.
        better: the words in the corner where the good runs are, e.g. ``"↖ better"``.
        width: in pixels.
        height: in pixels.
        left: of the area inside the axes.
        top: of that area.
        right: of that area.
        bottom: of that area.
        x_ticks: marks on the axis of latency.
        y_ticks: marks on the axis of scores.
        front: the line through the runs that no other beats, as x and y in turn.
        points: the runs.
    """

    title: str = ""
    x_title: str = ""
    y_title: str = ""
    better: str = ""
    width: int = 0
    height: int = 0
    left: int = 0
    top: int = 0
    right: int = 0
    bottom: int = 0
    x_ticks: tuple[Tick, ...] = ()
    y_ticks: tuple[Tick, ...] = ()
    front: tuple[float, ...] = ()
    points: tuple[ChartPoint, ...] = ()


@dataclass(frozen=True)
class ShownFailure:
    """The reason why a module could not be captured, as its card shows it."""

    fqn: str
    type: str
    title: str
    place: str
    code: str
    remedy: str
    state: str


@dataclass(frozen=True)
class SampleBox:
    """A box on an image; its sides are shares of the image's width and height."""

    left: float
    top: float
    width: float
    height: float
    text: str


@dataclass(frozen=True)
class SamplePart:
    """One input or output of a sample, ready to be looked at or heard.

    Attributes:
        name: of the input or output; untrusted, as all texts.
        modality: how it is shown.
        said: its shape or class in words; for numbers the numbers.
        same: of a text the part before the first token that deviates.
        other: that token; empty where none does.
        rest: what follows it.
        picture: of an image a PNG file as a ``data:`` address; empty for other modalities.
        width: of the picture in pixels.
        height: of the picture in pixels.
        boxes: on the picture.
        sound: of audio a WAV file as a ``data:`` address; empty where there is no room for it.
        wave: of audio the lowest and the highest value of each stretch in turn, -1 to 1.
        heard: where the sound begins and ends in the waveform, as shares of its length; empty without a sound.
    """

    name: str
    modality: Literal["image", "audio", "text", "numbers"]
    said: str
    same: str = ""
    other: str = ""
    rest: str = ""
    picture: str = ""
    width: int = 0
    height: int = 0
    boxes: tuple[SampleBox, ...] = ()
    sound: str = ""
    wave: tuple[float, ...] = ()
    heard: tuple[float, ...] = ()


@dataclass(frozen=True)
class ShownSample:
    """A sample on which two candidates differ.

    Attributes:
        place: where it is in the data.
        distance: how far apart the outputs are, with its unit.
        inputs: of the model.
        first: the outputs of one candidate.
        second: the outputs of the other.
        target: in short; empty where there is none.
    """

    place: str
    distance: str
    inputs: tuple[SamplePart, ...]
    first: tuple[SamplePart, ...]
    second: tuple[SamplePart, ...]
    target: str = ""


@dataclass(frozen=True)
class ShownSamples:
    """The samples on which two runs differ most; nothing for two empty names.

    Attributes:
        first: the name of one run.
        second: the name of the other.
        caption: what they are, or why there are none.
        samples: the farthest first.
    """

    first: str = ""
    second: str = ""
    caption: str = ""
    samples: tuple[ShownSample, ...] = ()


@dataclass(frozen=True)
class ShownBench:
    """The page's content of a bench."""

    title: str
    sentence: str
    settings: tuple[Fact, ...]
    failures: tuple[ShownFailure, ...]
    assumptions: tuple[str, ...]
    tables: tuple[Table, ...]
    chart: Chart
    code: str
    environment: tuple[Fact, ...]
    samples: ShownSamples = ShownSamples()


@dataclass(frozen=True)
class SavedTensor:
    """A parameter or buffer: its name in the module, its shape and dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class SavedModule:
    """A module of the model, part of the model's identity."""

    fqn: str
    type: str
    tensors: tuple[SavedTensor, ...] = ()


@dataclass(frozen=True)
class BenchDocument:
    """A saved bench.

    Attributes:
        model_type: the class of the model.
        modules: its modules with their parameters and buffers.
        states: the states of undo, oldest first, each as ``BenchState.to_json()`` writes it.
        position: which of them is the current one.
        runs: the history, each as ``Run.to_json()`` writes it.
        shown: the page's content.
        graph: the diagram.
        made: when it was saved, in seconds since 1970.
        prepbench: the version that wrote it.
    """

    model_type: str
    modules: tuple[SavedModule, ...]
    states: tuple[Mapping[str, Any], ...]
    position: int
    runs: tuple[Mapping[str, Any], ...]
    shown: ShownBench
    graph: DiagramDocument
    made: float
    prepbench: str
    format: Literal["prepbench bench"] = "prepbench bench"
    version: str = BENCH_VERSION


# The document of a bench as JSON: written deterministically, read back with every field checked.


BENCH_LIMIT = 512 * 2**20
"""Bytes of the largest file that is read: a bench of 10,000 layers and 200 runs is smaller."""

_AGAIN = "Save the bench again."


def bench_to_json(document: BenchDocument) -> str:
    """Return the document as JSON text; equal documents give equal text."""
    return json.dumps(plain(document), ensure_ascii=False, allow_nan=False)


def bench_from_json(text: str | bytes) -> BenchDocument:
    """Read what :func:`bench_to_json` wrote.

    Raises:
        DocumentError: no JSON, another format or a newer version, a missing, unknown or wrong field (named by its
            path), a graph that :func:`~prepbench.document.codec.from_json` would refuse, or places that are not there.
    """
    data = parsed(text, "bench file", _AGAIN)
    if data.get("format") != BENCH_FORMAT:
        raise DocumentError(
            f"The file is not a saved bench: its format is not {BENCH_FORMAT!r}. Bench.save writes one."
        )
    version = str(data.get("version", ""))[:40]
    if version.partition(".")[0] != BENCH_VERSION.partition(".")[0]:
        raise DocumentError(
            f"The bench file has version {version or 'none'}; this prepbench reads {BENCH_VERSION}. Open it with the "
            "prepbench that wrote it."
        )
    given = data.get("graph")
    if not isinstance(given, dict):
        raise DocumentError(f"bench.graph must be an object, got {type(given).__name__}. {_AGAIN}")
    graph = read_document(given)
    if not isinstance(graph, DiagramDocument) or not graph.documents:
        raise DocumentError(f"bench.graph must hold at least one graph. {_AGAIN}")
    rest = {**data, "graph": plain(DiagramDocument(()))}
    document = read_object(rest, BenchDocument, "bench", lenient=version != BENCH_VERSION)
    if document.position >= len(document.states):
        raise DocumentError(f"bench.position is {document.position}, and there are {len(document.states)} states.")
    check_shown(document.shown)
    return replace(document, graph=graph)


def check_shown(shown: ShownBench) -> None:
    """Raise ``DocumentError`` where rows have other columns than their table."""
    for table in shown.tables:
        columns = len(table.columns)
        wrong = next((i for i, row in enumerate(table.rows) if len(row) != columns), None)
        if wrong is not None:
            raise DocumentError(f"Row {wrong} of {table.title[:60]!r} has other columns than its table. {_AGAIN}")
        if any(number >= columns for number in table.numbers):
            raise DocumentError(f"{table.title[:60]!r} has no column {max(table.numbers)}. {_AGAIN}")


def shown_to_json(shown: ShownBench) -> dict[str, Any]:
    """Return the saved notebook output of a bench: the page's content, with room for the graph in any form."""
    return {"format": BENCH_FORMAT, "version": BENCH_VERSION, "shown": plain(shown), "graph": None}
