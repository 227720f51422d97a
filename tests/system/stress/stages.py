"""Everything that may be interrupted: what runs, when its clock starts, and what must be true of its files."""

from __future__ import annotations

import functools
import gc
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import torch
from torch import nn

import prepbench as pb
from prepbench.jobs import ProgressCallback
from prepbench.measure.run import compare
from tests.compile.package.leaf_models import Branching
from tests.system.stress.models import Small, capture, prepare, same, samples, trace


@dataclass(frozen=True)
class Stage:
    """One stage.

    Attributes:
        run: called with the model and a progress callback; gives the same result each time.
        after: the clock starts when progress names this stage, and stops when it names another; None for all of it.
        problems: what is wrong with the files afterwards.
    """

    name: str
    run: Callable[[nn.Module, ProgressCallback], Any]
    after: str | None = None
    problems: Callable[[], list[str]] = list


def _compiled(model: nn.Module, progress: ProgressCallback) -> pb.CompiledModel:
    settings = pb.QuantizationSettings(), pb.OnnxRuntimeDeployment()
    return pb.compile_model(
        model,
        tracing_inputs=samples(),
        calibration_inputs=samples() * 20,
        quantization_settings=settings[0],
        deployment_settings=settings[1],
        progress=progress,
    )


def _compile(model: nn.Module, progress: ProgressCallback) -> Any:
    compiled = _compiled(model, progress)
    return repr(compiled.report.layers), compiled(samples()[1])


MACHINE_LOCK = "prepbench-machine."

TARGETS = {
    "OpenVINO": pb.OpenVinoDeployment,
    "ExecuTorch": pb.ExecuTorchDeployment,
    "Inductor": pb.InductorDeployment,
    "eager": pb.EagerDeployment,
}


def _compile_for(deployment: Any, model: nn.Module, progress: ProgressCallback) -> Any:
    """Compile in 8 bits for another target than ONNX Runtime."""
    compiled = pb.compile_model(
        model,
        tracing_inputs=samples(),
        calibration_inputs=samples() * 2,
        quantization_settings=pb.QuantizationSettings(),
        deployment_settings=deployment(),
        progress=progress,
    )
    return repr(compiled.report.layers), compiled(samples()[1])


def _search(model: nn.Module, progress: ProgressCallback) -> Any:
    """Search for the best mixture; what is fastest varies, so only its kind is compared."""
    found = pb.search(model, samples(), budget=pb.Budget(min_metric=20.0), tries=2, rounds=2, progress=progress)
    return type(found).__name__


class Files:
    """A folder with old files, what writes new ones in their place, and whether they are old or new afterwards."""

    def __init__(self, place: Path, model: nn.Module) -> None:
        self._place = place
        (place / "temporary").mkdir()
        tempfile.tempdir = os.environ["TMPDIR"] = str(place / "temporary")
        self._old = _compiled(Small(0).eval(), lambda step: None)
        self._new = _compiled(model, lambda step: None)
        self._collection = pb.recursive_trace(model, inputs=samples())
        self._old.save(place / "model")
        for name in ("model.onnx", "model.onnx.conditions.json", "page.html", "model.graph.json"):
            (place / name).write_text("old")
        self._temporary = self._kept()
        self._names = sorted([*os.listdir(place), "benches"])

    def save(self, model: nn.Module, progress: ProgressCallback) -> Any:
        self._new.save(self._place / "model")
        return pb.load_compiled(self._place / "model")(samples()[1])

    def export(self, model: nn.Module, progress: ProgressCallback) -> Any:
        return self._new.export(self._place / "model.onnx")

    def html(self, model: nn.Module, progress: ProgressCallback) -> Any:
        self._collection.diagram().to_html(str(self._place / "page.html"))
        return len((self._place / "page.html").read_text())

    def compare(self, model: nn.Module, progress: ProgressCallback) -> Any:
        found = pb.compare({"float32": model, "int8": self._new}, samples(), rounds=2, progress=progress)
        return [(row.name, row.metric, row.timed_in) for row in found.rows]

    def problems(self) -> list[str]:
        """What is neither old nor new, and what is left over."""
        gc.collect()
        found = []
        loaded = pb.load_compiled(self._place / "model")(samples()[1])
        if not any(same(loaded, each(samples()[1])) for each in (self._old, self._new)):
            found.append("the saved model is neither the old nor the new one")
        if (content := (self._place / "model.onnx").read_bytes()) != b"old":
            import onnx

            onnx.checker.check_model(onnx.load_from_string(content))
        conditions = (self._place / "model.onnx.conditions.json").read_text()
        if (conditions == "old") is not (content == b"old"):
            found.append("the exported model and its conditions are not of one export")
        if (page := (self._place / "page.html").read_text()) != "old" and not page.rstrip().endswith("</html>"):
            found.append("the page is cut")
        if names := sorted(set(os.listdir(self._place)) ^ set(self._names)):
            found.append(f"left over or lost: {names}")
        if left := self._kept() - self._temporary:
            found.append(f"temporary folders left: {sorted(left)}")
        if children := _children():
            found.append(f"processes left: {children}")
        return found

    def _kept(self) -> set[str]:
        names = os.listdir(self._place / "temporary")
        # the lock of the machine's timings is one file for all processes, and stays
        return {name for name in names if name.startswith("prepbench-") and not name.startswith(MACHINE_LOCK)}


class Benches:
    """A saved bench, its report, and a partly compiled model, with their files."""

    def __init__(self, place: Path) -> None:
        self._place = place / "benches"
        self._place.mkdir()
        self._branching = Branching().eval()
        wide = [torch.linspace(-1, 1, 8 * size).reshape(size, 8) for size in (2, 5)]
        self._wide = wide
        self._leaves = pb.compile_model(
            self._branching, tracing_inputs=wide, deployment_settings=pb.EagerDeployment(), fullgraph=False
        )
        self._leaves.save(self._place / "leaves")
        self._bench = pb.Bench(Small(1).eval(), calibration_inputs=samples())
        self._bench.set_target("PyTorch eager")
        self._bench.compile()
        self._bench.save(self._place / "net.bench.json")
        self._bench.report(self._place / "net.html")
        self._names = sorted(os.listdir(self._place))

    def several_targets(self, model: nn.Module, progress: ProgressCallback) -> Any:
        bench = pb.Bench(Small(1).eval(), calibration_inputs=samples())
        bench.set_targets([pb.OnnxRuntimeDeployment(), pb.EagerDeployment()])
        with mock.patch("prepbench.bench.compiling.compare", functools.partial(compare, rounds=0)):
            bench.compile(progress)
        return [(name, found(samples()[1])) for name, found in sorted(bench.results.items())]

    def save_leaves(self, model: nn.Module, progress: ProgressCallback) -> Any:
        self._leaves.save(self._place / "leaves")
        return sorted(os.listdir(self._place / "leaves"))

    def load_leaves(self, model: nn.Module, progress: ProgressCallback) -> Any:
        loaded = pb.load_compiled(self._place / "leaves", model=self._branching)
        return [loaded(x) for x in self._wide]

    def save_bench(self, model: nn.Module, progress: ProgressCallback) -> Any:
        return str(self._bench.save(self._place / "net.bench.json"))

    def load_bench(self, model: nn.Module, progress: ProgressCallback) -> Any:
        back = pb.Bench.load(self._place / "net.bench.json", model=Small(1).eval(), calibration_inputs=samples())
        return [run.id for run in back.runs]

    def report(self, model: nn.Module, progress: ProgressCallback) -> Any:
        return str(self._bench.report(self._place / "net.html"))

    def fix(self, model: nn.Module, progress: ProgressCallback) -> Any:
        fixed = pb.fix(self._branching, self._wide, progress=progress)
        return fixed.model(self._wide[0]).shape

    def problems(self) -> list[str]:
        """What is damaged or left over."""
        gc.collect()
        ids = [run.id for run in self._bench.runs]
        found = [] if self.load_bench(self._branching, lambda step: None) == ids else ["the saved bench is another one"]
        if not same(self.load_leaves(self._branching, lambda step: None), [self._branching(x) for x in self._wide]):
            found.append("the saved model with leaves is another one")
        if not (self._place / "net.html").read_text().rstrip().endswith("</html>"):
            found.append("the report is cut")
        if names := sorted(set(os.listdir(self._place)) ^ set(self._names)):
            found.append(f"left over or lost: {names}")
        return found


def _children() -> list[str]:
    """Timing processes that still run; the one that they are copied from stays, and other libraries have helpers."""
    children = psutil.Process().children()
    copies = [copy for child in children if _is_running(child, "template") for copy in child.children()]
    started = [child for child in children if _is_running(child, "worker")]
    return [" ".join(each.cmdline()) for each in (*copies, *started)]


def _is_running(process: psutil.Process, module: str) -> bool:
    try:
        return f"prepbench.measure.{module}" in process.cmdline()
    except psutil.NoSuchProcess:  # it has ended, and may still wait to be noticed
        return False


def all_stages(place: Path, model: nn.Module) -> tuple[Stage, ...]:
    """The stages; those that write do so in ``place``."""
    files, benches = Files(place, model), Benches(place)
    later = ("several_targets", "save_leaves", "load_leaves", "save_bench", "load_bench", "report", "fix")
    quiet: dict[str, Callable[[nn.Module], Any]] = {"trace": trace, "capture": capture, "prepare": prepare}
    parts = ("capture", "insert observers", "calibrate", "measure", "convert", "lower")
    targets = {name: functools.partial(_compile_for, deployment) for name, deployment in TARGETS.items()}
    return (
        *(Stage(name, lambda model, progress, run=run: run(model)) for name, run in quiet.items()),
        *(Stage(f"compile: {part}", _compile, part, files.problems) for part in parts),
        *(Stage(name, getattr(files, name), None, files.problems) for name in ("save", "export", "html", "compare")),
        *(Stage(name, getattr(benches, name), None, benches.problems) for name in later),
        *(Stage(f"compile for {name}", run, None, files.problems) for name, run in targets.items()),
        Stage("search", _search, None, files.problems),
    )


def line(**data: Any) -> str:
    """A line of JSON for the test that started this process."""
    return json.dumps(data, default=str)


def is_torch_usable() -> bool:
    """Whether torch still traces and exports."""
    torch.fx.symbolic_trace(nn.Linear(2, 2))
    return torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),)) is not None
