"""What the submodules of a model receive and return, for describing those that become leaves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from prepbench._torch_compat.exporting import seen_as_exporting
from prepbench.capture.aten.leaf_outputs import LeafOutputs
from prepbench.capture.sizes.learned_outputs import UnknownOutputsError, are_alike, kinds_of
from prepbench.inputs import Sample
from prepbench.running.recorded_calls import RecordedCall, record_calls, record_run
from prepbench.running.replaced_forward import FURTHER
from prepbench.running.time_limit import TimeLimit, TimeLimitReached

_SECONDS = 3.0
_OTHER_VALUES = (-1.0, 10.0)


def _scaled(leaf: Any, factor: float) -> Any:
    """The tensor times a factor, if it is one of floating-point numbers; everything else as it is."""
    return leaf * factor if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf


class ModuleRecords:
    """What every submodule received and returned, recorded when it is first needed.

    Args:
        samples: must run.
        further: made-up samples of other sizes; those on which the model raises are left out.
    """

    def __init__(self, model: torch.nn.Module, samples: Sequence[Sample], further: Sequence[Sample]) -> None:
        self._model = model
        self._samples = samples
        self._further = further
        self._calls: dict[str, list[RecordedCall]] | None = None
        self._learned: dict[str, LeafOutputs] = {}

    def record(self) -> None:
        """Run the model now. It cannot run later, while torch traces."""
        if self._calls is not None:
            return
        self._calls = record_calls(self._model, self._samples)
        self._add(self._further)
        with seen_as_exporting():
            # models that look at this pass other arguments to their parts, such as a mask where it would be None
            self._add([*self._samples, *self._further], only_new=True)
        if vars(self._model).get(FURTHER):
            self._add_other_values()

    def _add(self, samples: Sequence[Sample], *, only_new: bool = False) -> None:
        """Record further calls; with ``only_new`` only those with other kinds of arguments than all earlier calls."""
        assert self._calls is not None
        known = {fqn: {kinds_of(call.inputs) for call in seen} for fqn, seen in self._calls.items()}
        for run in [record_run(self._model, sample) for sample in samples]:
            # where the model does not take a made-up size, nothing is learned from it
            for fqn, seen in run.calls.items() if run.error is None else ():
                new = [call for call in seen if not only_new or kinds_of(call.inputs) not in known.get(fqn, ())]
                if new:
                    self._calls.setdefault(fqn, []).extend(new)

    def _add_other_values(self) -> None:
        """Record what statements make of other values, of which some sizes and numbers depend."""
        assert self._calls is not None
        for factor in _OTHER_VALUES:
            sample = self._samples[0].map(partial(_scaled, factor=factor))
            try:
                with TimeLimit(_SECONDS):
                    run = record_run(self._model, sample)
            except TimeLimitReached:  # a loop may have no end on made-up values
                continue
            for fqn in vars(self._model)[FURTHER]:
                known = self._calls.get(fqn, [])
                known += [call for call in run.calls.get(fqn, ()) if any(are_alike(call, other) for other in known)]

    def outputs(self, fqn: str) -> LeafOutputs:
        """What the module returns, as a function of its inputs' sizes."""
        assert self._calls is not None, "record() runs before tracing"
        if fqn not in self._learned:
            leaf = vars(self._model).get(FURTHER, {}).get(fqn)
            name = (fqn or "the model") if leaf is None else leaf.name
            self._learned[fqn] = LeafOutputs.learn(self._calls.get(fqn, ()), name, are_statements=leaf is not None)
        return self._learned[fqn]

    def shared(self, fqn: str) -> str:
        """In words, which tensors the module returns that share memory with others; empty if none do."""
        try:
            return self.outputs(fqn).shared
        except UnknownOutputsError:
            return ""

    def caller(self, fqn: str) -> str:
        """The nearest module around ``fqn`` that is called itself; containers are not."""
        assert self._calls is not None, "record() runs before tracing"
        outer = fqn.rpartition(".")[0]
        while outer and outer not in self._calls:
            outer = outer.rpartition(".")[0]
        return outer
