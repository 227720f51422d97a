"""What the submodules of a model receive and return, for describing those that become leaves."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from prepbench._torch_compat.exporting import seen_as_exporting
from prepbench.capture.aten.leaf_outputs import LeafOutputs
from prepbench.capture.sizes.learned_outputs import UnknownOutputsError, kinds_of
from prepbench.inputs import Sample
from prepbench.running.recorded_calls import RecordedCall, record_calls, record_run


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

    def outputs(self, fqn: str) -> LeafOutputs:
        """What the module returns, as a function of its inputs' sizes."""
        assert self._calls is not None, "record() runs before tracing"
        if fqn not in self._learned:
            self._learned[fqn] = LeafOutputs.learn(self._calls.get(fqn, ()), fqn or "the model")
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
