"""The journal of a search: measured candidates, which are not measured again."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from prepbench.document.codec import plain
from prepbench.measure.batches import Batch
from prepbench.measure.latency import doubtful_times
from prepbench.objects.digest import leaves_digest, model_digest
from prepbench.package.report import CompileReport
from prepbench.results.journal import Journal, journal_at
from prepbench.results.measurement import Result, this_machine, this_notebook
from prepbench.search.scoring import Scale
from prepbench.settings import DeploymentSettings
from prepbench.targets import target_for


@dataclass(frozen=True)
class SearchJournal:
    """Reads and writes the results of one model on one machine and workload; without a journal, it does neither.

    Attributes:
        journal: where they are; None for nowhere.
        model: its fingerprint.
        workload: the timed call and the scored data, in words and digests.
        how: other inputs of the compile, such as dynamic axes and calibration samples.
        scale: of the metric.
        name: of the model, for people: its class, and the beginning of its fingerprint.
    """

    journal: Journal | None
    model: str
    workload: str
    how: str
    scale: Scale
    name: str = ""

    @classmethod
    def at(
        cls, path: Any, model: nn.Module, scale: Scale, batches: Callable[[], Iterable[Batch]], *how: Any
    ) -> SearchJournal:
        """Open the results of a model at a path, None for no journal; ``how`` are further inputs of the compile."""
        if path is None:
            return cls(None, "", "", "", scale)
        journal = journal_at(path)
        first = next(iter(batches()))
        data = leaves_digest((each.sample.args, each.sample.kwargs, each.target) for each in batches())
        timed = leaves_digest([(first.sample.args, first.sample.kwargs)])
        workload = f"{scale.name} on data {data}, calls with a batch of {first.size}, {timed}"
        workload += f", {torch.get_num_threads()} threads"
        known = model_digest(model)
        return cls(journal, known, workload, leaves_digest(how), scale, f"{type(model).__name__} {known[:8]}")

    def all(self, deployment: DeploymentSettings) -> list[Result]:
        """Return all results of this model on a target, in the order of measurement."""
        if self.journal is None:
            return []
        of = self._result(deployment, {})
        names = ("model", "target", "target_options", "machine", "workload")
        return [
            each
            for each in self.journal.results()
            if each.p50_ms
            and all(getattr(each, name) == getattr(of, name) for name in names)
            and each.plan.get("compiled with") == self.how
        ]

    def note_on_other_weights(self) -> list[str]:
        """Return a note if the journal has results of these modules with other weights: the model was trained since."""
        if self.journal is None:
            return []
        structure = f"{self.model.partition('-')[0]}-"
        known = {each.key: each.model for each in self.journal.results()}
        others = [model for model in known.values() if model != self.model and model.startswith(structure)]
        if not others:
            return []
        count = "1 measurement is" if len(others) == 1 else f"{len(others)} measurements are"
        return [
            f"{self.journal.path.name}: {count} of this architecture with other weights, which it had before it was "
            "trained or changed. They do not hold for the current weights, so they are not used."
        ]

    def is_of(self, result: Result, deployment: DeploymentSettings, arguments: Mapping[str, Any]) -> bool:
        """Return whether a result is that of a mixture."""
        return result.key == self._result(deployment, arguments).key

    def find(self, deployment: DeploymentSettings, arguments: Mapping[str, Any]) -> Result | None:
        """Return the newest result of a mixture."""
        if self.journal is None:
            return None
        found = [each for each in self.journal.results(self._result(deployment, arguments).key) if each.p50_ms]
        return found[-1] if found else None

    def note(
        self,
        deployment: DeploymentSettings,
        arguments: Mapping[str, Any],
        name: str,
        report: CompileReport,
        ms: float | None,
        size: int | None,
        metric: float | None,
        spread: tuple[float, float] | None,
    ) -> None:
        """Write the result of a mixture to the journal."""
        if self.journal is None:
            return
        measured = self._result(
            deployment,
            arguments,
            settings_name=name,
            score=metric,
            spread=spread,
            change=None if metric is None or self.scale.is_sqnr else metric - self.scale.base,
            p50_ms=ms,
            size_bytes=size,
            report=report.layers,
            stages=dict(report.seconds),
            why=doubtful_times(target_for(deployment).name),
        )
        self.journal.record(measured, uuid.uuid4().hex)

    def _result(self, deployment: DeploymentSettings, arguments: Mapping[str, Any], **measured: Any) -> Result:
        settings = {name: _as_json(value) for name, value in arguments.items() if name != "deployment_settings"}
        return Result(
            target=target_for(deployment).name,
            target_options=plain(deployment.to_dict()),
            plan={**settings, "compiled with": self.how},
            model=self.model,
            model_name=self.name,
            machine=this_machine(),
            notebook=this_notebook(),
            workload=self.workload,
            made=time.time(),
            metric=self.scale.name,
            unit="dB" if self.scale.is_sqnr else "",
            higher_is_better=self.scale.higher_is_better,
            **measured,
        )


def _as_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _as_json(one) for key, one in value.items()}
    return plain(value.to_dict())
