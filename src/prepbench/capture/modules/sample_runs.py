"""The results of a model's submodules on the samples, which stand in for parts that cannot be traced.

The model runs once per sample, and only when something fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.capture.sizes.learned_outputs import (
    CallsAlike,
    LearnedOutputs,
    Rules,
    UnknownOutputsError,
    sizes_of,
)
from prepbench.capture.sizes.resizing import varied
from prepbench.errors import InputError
from prepbench.inputs import Sample
from prepbench.objects.copy import Twin
from prepbench.objects.flatten import register_nodes
from prepbench.running.callable_module import as_module
from prepbench.running.recorded_calls import RecordedCall, RecordedRun, record_run


class SampleRuns:
    """The calls of every submodule on every sample, recorded when :meth:`record` is first called.

    Args:
        model: a module, or a function over tensors; a twin of it runs.
        samples: a sample on which the model raises contributes the calls that finished.
    """

    def __init__(self, model: Callable[..., Any], samples: Sequence[Sample]) -> None:
        self._model, self._samples = model, samples
        self._runs: list[RecordedRun] | None = None
        self._further: list[RecordedRun] = []

    @property
    def recorded(self) -> bool:
        """Whether the model has run."""
        return self._runs is not None

    def record(self) -> None:
        """Run the model now, if it has not run yet. It cannot run while torch traces.

        Samples of further sizes are made, to tell rules over sizes apart; those on which the model raises are ignored.
        """
        if self._runs is not None:
            return
        own = Twin(self._model).model
        model = own if isinstance(own, torch.nn.Module) else as_module(own)
        self._runs = [record_run(model, sample, as_called=True) for sample in self._samples]
        if self.error is None:
            further = [record_run(model, sample, as_called=True) for sample in _varied(model, self._samples)]
            self._further = [run for run in further if run.error is None]

    @property
    def error(self) -> Exception | None:
        """The model's error on a sample without any tracing, if there was one."""
        return next((run.error for run in self._runs or () if run.error is not None), None)

    def count(self, fqn: str) -> int:
        """Return the largest number of calls of the module on one sample; 0 if nothing is recorded."""
        return max((len(run.calls.get(fqn, ())) for run in self._runs or ()), default=0)

    def samples_for(self, fqn: str) -> list[Sample]:
        """Return the inputs of the module's first call on each sample, as samples without data; runs the model if
        needed.

        Empty if the module never ran, or if its inputs cannot exist without data.
        """
        self.record()
        first = [run.calls[fqn][0] for run in self._runs or () if run.calls.get(fqn)]
        try:
            return [replace(call.as_sample(), index=index) for index, call in enumerate(first)]
        except Exception:
            # classes such as PackedSequence look at their tensors when they are made
            return []

    def output(
        self,
        fqn: str,
        number: int,
        inputs: Any,
        make: Callable[[torch.Tensor, list[Any]], Any],
        unknown_size: Callable[[], Any],
    ) -> tuple[Any, list[Any]]:
        """Return a fake output for the ``number``-th call of a module: sizes follow from those of ``inputs`` where they
        can.

        Args:
            fqn: the module.
            number: the index of the call, from 0.
            inputs: the module's inputs while tracing.
            make: turns a recorded tensor and its new sizes into a fake tensor.
            unknown_size: makes a size that nothing is known about.

        Returns:
            The output, and the Python numbers in it that are the same in all recorded calls.

        Raises:
            UnknownOutputsError: the output cannot be known before the module runs, so the module around it fails too.
        """
        runs = [*(self._runs or ()), *self._further]
        calls = [run.calls[fqn][min(number, len(run.calls[fqn]) - 1)] for run in runs if run.calls.get(fqn)]
        if calls[0].restructured:
            raise UnknownOutputsError(
                f"{fqn} cannot be traced and its own arguments are mutated by it (a cache that grows): what they hold "
                "afterwards is not known here. Return what is new instead."
            )
        register_nodes(inputs)
        leaves = pytree.tree_leaves(inputs)
        alike, leaves = _calls_like([call for call in calls if _ranks(call) == _ranks(calls[0])], leaves, fqn)

        def tensor(index: int, seen: torch.Tensor, rules: Rules) -> Any:
            return make(seen, alike.sizes(rules, leaves, unknown_size))

        result = alike.build(leaves, tensor, alike.refuse_number)
        return (_Unreadable(fqn) if isinstance(result, Iterator) else result), alike.fixed_numbers()


def _calls_like(calls: list[RecordedCall], leaves: list[Any], name: str) -> tuple[CallsAlike, list[Any]]:
    """Return the rules learned from the calls whose inputs are most like ``leaves``, and the inputs of the rules."""
    learned = LearnedOutputs.learn(calls, name)
    found = learned.find(leaves)
    if found is None and len(sizes_of(leaves)) == len(sizes_of(calls[0].inputs)):
        found = learned.variants[0]
    if found is not None:
        return found, leaves
    # the arguments match those of no sample, so only constant sizes are known
    return CallsAlike.learn([replace(call, inputs=()) for call in calls], name), []


def _ranks(call: RecordedCall) -> list[Any]:
    return [leaf.dim() for leaf in (*call.inputs, *call.outputs) if isinstance(leaf, torch.Tensor)]


class _Unreadable:
    """Stands for an iterator that a failed module returned, which may be passed on, but not read."""

    def __init__(self, fqn: str) -> None:
        self._fqn = fqn

    def __iter__(self) -> _Unreadable:
        return self

    def __next__(self) -> Any:
        raise UnknownOutputsError(
            f"{self._fqn} returns an iterator and cannot be traced, so what it yields is not known here. Return a "
            "tuple or a list instead."
        )


def _varied(model: torch.nn.Module, samples: Sequence[Sample]) -> list[Sample]:
    try:
        return varied(model, samples, DynamicAxes.infer(list(samples), model))
    except InputError:  # samples that differ in more than sizes
        return []
