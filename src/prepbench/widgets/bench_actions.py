"""The requests that the page may send to the bench: a table of actions, each with its payload."""

from __future__ import annotations

import functools
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from prepbench.bench import Bench
from prepbench.bench.cards import About, Card, export_error_card
from prepbench.bench.layer_summaries import change_of, change_of_pruning, is_of_pruning
from prepbench.bench.state import TARGETS, Precision, display_name
from prepbench.bench.summarize import with_option
from prepbench.errors import PrepbenchError, SettingsError
from prepbench.storage import temporary_folder
from prepbench.widgets.actions import Action, Nothing
from prepbench.widgets.traits import plain_fields

Download = Literal["model", "onnx", "code", "report"]
_PIECE = 8 * 2**20  # bytes of a file in one message


class Controls(Protocol):
    """The widget that takes the actions."""

    bench: Bench

    def compile(self) -> None: ...
    def capture(self) -> None: ...
    def again(self) -> None: ...
    def measure_layers(self) -> None: ...
    def train_back(self, steps: str, distill: bool, by_metric: bool, learning_rate: str) -> None: ...
    def start_search(self, minimize: str, loss: str, latency: str, size: str) -> None: ...
    def repeat(self, about: About) -> None: ...
    def send_still(self) -> None: ...
    def shown(self, shown: bool) -> None: ...
    def send(self, content: Any, buffers: Any = None) -> None: ...


@dataclass(frozen=True)
class SetAxis:
    """Make a dim of inputs, and those of the same size, dynamic or static."""

    path: tuple[str, ...]
    dim: int
    dynamic: bool


@dataclass(frozen=True)
class NameAxis:
    """Name the size of a dim."""

    path: str
    dim: int
    name: str


@dataclass(frozen=True)
class LimitAxis:
    """Limit the sizes of a dim of inputs; 0 is no limit."""

    path: tuple[str, ...]
    dim: int
    min: int
    max: int


@dataclass(frozen=True)
class SetPrecision:
    """Choose the precision of layers."""

    pattern: tuple[str, ...]
    precision: Precision


@dataclass(frozen=True)
class SetLayers:
    """Change one setting of layers; ``field`` is the name of a ``SettingField``."""

    pattern: tuple[str, ...]
    field: str
    value: str


@dataclass(frozen=True)
class ClearRules:
    """Remove rules by their keys."""

    pattern: tuple[str, ...]


@dataclass(frozen=True)
class SetTarget:
    """Choose or remove a deployment target by its display name."""

    target: str
    chosen: bool


@dataclass(frozen=True)
class SetTargetOption:
    """Set an option of a target; "" is the target's default."""

    target: str
    name: str
    value: str


@dataclass(frozen=True)
class SetLeafWrap:
    """Choose whether lines that cannot be captured become leaves."""

    leaf_wrap: bool


@dataclass(frozen=True)
class SetLeaf:
    """Keep a module as a leaf module, or undo this."""

    fqn: str
    leaf: bool


@dataclass(frozen=True)
class Repair:
    """Do what the button of a card says, and ask for an action again; ``""`` for none."""

    how: Literal[
        "measure_again",
        "compare_with_float",
        "apply_fixes",
        "keep_in_pytorch",
        "one_graph",
        "keep_float",
        "eight_bits",
        "make_dynamic",
        "make_static",
        "use_target",
    ]
    value: str
    again: About


@dataclass(frozen=True)
class OfModule:
    """The module that an action is about."""

    fqn: str


@dataclass(frozen=True)
class RenameRun:
    """Give a run another name."""

    id: str
    name: str


@dataclass(frozen=True)
class PinRun:
    """Pin a run to the top, or unpin it."""

    id: str
    pinned: bool


@dataclass(frozen=True)
class Search:
    """Search the best settings within bounds; ``loss`` is a drop of the metric, or without one the least SQNR in dB."""

    minimize: Literal["latency", "size", "drop"]
    loss: str
    latency: str
    size: str


@dataclass(frozen=True)
class TrainBack:
    """Train for some steps and compile; numbers are as somebody has typed them."""

    steps: str
    distill: bool
    by_metric: bool
    learning_rate: str


@dataclass(frozen=True)
class OfCandidate:
    """The settings that a search found."""

    id: str


@dataclass(frozen=True)
class OfRun:
    """The run that an action is about."""

    id: str


@dataclass(frozen=True)
class CompareRuns:
    """Show the differences between two runs; nothing for two empty ids."""

    first: str
    second: str


@dataclass(frozen=True)
class ToPath:
    """Write to a path on the machine of the kernel."""

    path: str


@dataclass(frozen=True)
class ShowElsewhere:
    """List or hide runs from elsewhere."""

    shown: bool


@dataclass(frozen=True)
class Shown:
    """A view of the bench became visible or hidden."""

    shown: bool


@dataclass(frozen=True)
class SendFile:
    """Send a file to the page, which saves it."""

    what: Download


def _set_axis(controls: Controls) -> Callable[..., object]:
    return lambda path, dim, dynamic: controls.bench.set_axis(path, dim, dynamic, linked=True)


def _limit_axis(controls: Controls) -> Callable[..., object]:
    def limit(path: tuple[str, ...], dim: int, min: int, max: int) -> None:
        bounds = [bound or None for bound in (min, max)]
        controls.bench.limit_axis(path, dim, bounds[0], bounds[1], linked=True)

    return limit


def _set_layers(controls: Controls) -> Callable[..., object]:
    def set_layers(pattern: tuple[str, ...], field: str, value: str) -> None:
        change, meaning = controls.bench.set_layers, change_of
        if is_of_pruning(field):
            change, meaning = controls.bench.change_pruning, change_of_pruning
        try:
            name, wanted = meaning(field, value)
        except ValueError:
            raise SettingsError(f"{value!r} is not a value of {field!r}.") from None
        change(pattern, name, wanted)

    return set_layers


def _repair(controls: Controls) -> Callable[..., object]:
    bench = controls.bench

    def repair(how: str, value: str, again: About) -> None:
        if how == "compare_with_float":
            if not bench.jobs.compares(value.split()):
                bench.start_comparing_with_float(value.split())
            return
        if how in ("keep_in_pytorch", "one_graph"):
            bench.set_leaf_wrap(how == "keep_in_pytorch")
        elif how == "apply_fixes":
            bench.apply_fixes()
        elif how in ("keep_float", "eight_bits"):
            bench.set_precision("*", "float32" if how == "keep_float" else "int8")
        elif how in ("make_dynamic", "make_static"):
            path, _, dim = value.rpartition(":")
            bench.set_axis(path, int(dim) if dim.isdecimal() else -1, dynamic=how == "make_dynamic", linked=True)
        elif how == "use_target":
            _known(value)
            bench.set_targets([TARGETS[value]()])
        if again:
            controls.repeat(again)

    return repair


def _set_target(controls: Controls) -> Callable[..., object]:
    def choose(target: str, chosen: bool) -> None:
        _known(target)
        targets = [each for each in controls.bench.state.targets if display_name(each) != target]
        if not chosen and not targets:
            raise SettingsError(f"{target} is the only target. Choose another one first.")
        names = [*map(display_name, targets), *([target] if chosen else [])]
        settings = {display_name(each): each for each in controls.bench.state.targets}
        controls.bench.set_targets([settings.get(name) or kind() for name, kind in TARGETS.items() if name in names])

    return choose


def _set_target_option(controls: Controls) -> Callable[..., object]:
    def change(target: str, name: str, value: str) -> None:
        _known(target)
        chosen = {display_name(each): each for each in controls.bench.state.targets}
        if target not in chosen:
            raise SettingsError(f"{target} is not chosen. Choose it to set its options.")
        chosen[target] = with_option(chosen[target], name, value)
        controls.bench.set_targets(chosen.values())

    return change


def _known(target: str) -> None:
    if target not in TARGETS:
        raise SettingsError(f"target must be one of {', '.join(map(repr, TARGETS))}, got {target!r}.")


def _select(controls: Controls) -> Callable[..., object]:
    return lambda fqn: controls.bench.select(fqn or None)


def _edit_draft(controls: Controls) -> Callable[..., object]:
    def send(fqn: str) -> None:
        try:
            controls.send({"action": "draft", "code": controls.bench.draft_code(fqn)})
        except Exception:
            controls.send({"action": "draft"})  # the page waits no longer
            raise

    return send


@contextmanager
def _answering(controls: Controls, answer: str, action: str, path: str) -> Iterator[None]:
    """Send the card of an error to the view that asked for a file; it has a place beside its buttons."""
    try:
        yield
    except Exception as error:
        card = export_error_card(error, action, path, leaf_wrap=controls.bench.state.leaf_wrap)
        controls.send({"action": answer, "card": plain_fields(vars(card))})
        if not isinstance(error, (PrepbenchError, OSError)):
            raise


def _compare_runs(controls: Controls) -> Callable[..., object]:
    bench = controls.bench
    return lambda first, second: (
        bench.start_comparing(first, second) if first or second else bench.run_history.end_comparison()
    )


def _writing(method: str) -> Callable[[Controls], Callable[..., object]]:
    """Return an action that writes a file by a method of the bench, and tells the page where, and what it replaced."""

    def write(controls: Controls, path: str) -> None:
        with _answering(controls, "written", method, path):
            older = ", in the place of an older one" if os.path.exists(path) else ""
            written = getattr(controls.bench, method)(path)
            card = Card("info", f"Written to {written}{older}.", about="export")
            controls.send({"action": "written", "card": plain_fields(vars(card))})

    return lambda controls: functools.partial(write, controls)


def _download(controls: Controls) -> Callable[..., object]:
    def send(what: Download) -> None:
        name = re.sub(r"\W+", "_", type(controls.bench.model).__name__)
        with _answering(controls, "download", "download", what), temporary_folder("download") as folder:
            _send_file(controls, _written(controls.bench, what, folder, name))

    return send


def _send_file(controls: Controls, file: Path) -> None:
    """Send a file in pieces, so that no message is too large."""
    parts = max(1, -(-file.stat().st_size // _PIECE))
    with file.open("rb") as content:
        for part in range(1, parts + 1):
            about = {"action": "download", "name": file.name, "part": part, "parts": parts}
            controls.send(about, [content.read(_PIECE)])


def _written(bench: Bench, what: Download, folder: Path, name: str) -> Path:
    if what == "onnx":
        return bench.export_onnx(folder / f"{name}.onnx")
    if what == "model":
        return _zipped(bench.save_model(folder / name))
    if what == "report":
        return bench.report(folder / f"{name}.html")
    file = folder / f"{name}.py"
    file.write_text(bench.code(), encoding="utf-8")
    return file


def _zipped(folder: Path) -> Path:
    """Return a zip of a folder, beside it; uncompressed, because weights do not compress."""
    archive = folder.with_suffix(".zip")
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as written:
        for file in sorted(folder.rglob("*")):
            written.write(file, file.relative_to(folder.parent))
    return archive


BENCH_ACTIONS: Mapping[str, Action[Any]] = {
    "set_axis": Action(SetAxis, _set_axis),
    "name_axis": Action(NameAxis, lambda controls: controls.bench.name_axis),
    "limit_axis": Action(LimitAxis, _limit_axis),
    "set_precision": Action(SetPrecision, lambda controls: controls.bench.set_precision),
    "set_layers": Action(SetLayers, _set_layers),
    "clear_rules": Action(ClearRules, lambda controls: lambda pattern: controls.bench.clear_rules(pattern)),
    "set_target": Action(SetTarget, _set_target),
    "set_target_option": Action(SetTargetOption, _set_target_option),
    "set_leaf_wrap": Action(SetLeafWrap, lambda controls: controls.bench.set_leaf_wrap),
    "set_leaf": Action(SetLeaf, lambda controls: controls.bench.set_leaf),
    "apply_fix": Action(OfModule, lambda controls: controls.bench.apply_fix),
    "apply_fix_anyway": Action(OfModule, lambda controls: lambda fqn: controls.bench.apply_fix(fqn, anyway=True)),
    "apply_fixes": Action(Nothing, lambda controls: controls.bench.apply_fixes),
    "edit_draft": Action(OfModule, _edit_draft),
    "remove_fix": Action(OfModule, lambda controls: controls.bench.remove_fix),
    "select": Action(OfModule, _select),
    "inspect": Action(OfModule, lambda controls: controls.bench.inspecting.inspect),
    "undo": Action(Nothing, lambda controls: controls.bench.undo),
    "redo": Action(Nothing, lambda controls: controls.bench.redo),
    "repair": Action(Repair, _repair),
    "compile": Action(Nothing, lambda controls: controls.compile),
    "capture": Action(Nothing, lambda controls: controls.capture),
    "again": Action(Nothing, lambda controls: controls.again),
    "measure_layers": Action(Nothing, lambda controls: controls.measure_layers),
    "search": Action(Search, lambda controls: controls.start_search),
    "use_candidate": Action(OfCandidate, lambda controls: lambda id: controls.bench.use_candidate(id)),
    "clear_pruning": Action(ClearRules, lambda controls: lambda pattern: controls.bench.clear_pruning_rules(pattern)),
    "train_back": Action(TrainBack, lambda controls: controls.train_back),
    "stop_training": Action(Nothing, lambda controls: controls.bench.stop_training),
    "no_training": Action(Nothing, lambda controls: lambda: controls.bench.set_recovery(None)),
    "cancel": Action(Nothing, lambda controls: controls.bench.cancel),
    "cancel_all": Action(Nothing, lambda controls: controls.bench.jobs.cancel_all),
    "remove_queued": Action(OfRun, lambda controls: controls.bench.jobs.remove_queued),
    "rename_run": Action(RenameRun, lambda controls: controls.bench.rename_run),
    "pin_run": Action(PinRun, lambda controls: controls.bench.pin_run),
    "delete_run": Action(OfRun, lambda controls: controls.bench.delete_run),
    "show_run": Action(OfRun, lambda controls: controls.bench.run_history.show_run),
    "restore_run": Action(OfRun, lambda controls: controls.bench.restore_run),
    "compare_runs": Action(CompareRuns, _compare_runs),
    "show_elsewhere": Action(ShowElsewhere, lambda controls: controls.bench.show_elsewhere),
    "show_results": Action(ToPath, lambda controls: lambda path: controls.bench.show_results(path.strip() or None)),
    "save": Action(ToPath, _writing("save")),
    "report": Action(ToPath, _writing("report")),
    "export_onnx": Action(ToPath, _writing("export_onnx")),
    "save_model": Action(ToPath, _writing("save_model")),
    "download": Action(SendFile, _download),
    "shown": Action(Shown, lambda controls: controls.shown),
    "still": Action(Nothing, lambda controls: controls.send_still),
}
