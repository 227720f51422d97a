"""A model in partitions, some run by a target and the others by PyTorch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prepbench.errors import ArtifactError, sentence
from prepbench.settings import DeploymentSettings
from prepbench.storage import write_file
from prepbench.targets.base import NO_LEAVES, Runtime, Target
from prepbench.targets.eager import EagerTarget
from prepbench.targets.kernel_times import KernelTimes

# the target of partitions that fall back to PyTorch
FALLBACK: Target = EagerTarget()

_FILE = "parts.json"


@dataclass(frozen=True)
class Partition:
    """One partition of the graph: its inputs, its outputs, and its runtime.

    Attributes:
        inputs: names of the values that it reads.
        outputs: names of the values that others read from it.
        on_target: whether the target runs it; otherwise PyTorch does.
        runtime: the lowered partition.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    on_target: bool
    runtime: Runtime


class PartitionedRuntime(Runtime):
    """Runs partitions one after the other and passes their tensors on.

    Args:
        inputs: names of the model's inputs.
        outputs: names of the values that the model returns.
        partitions: in the order in which they run.
    """

    def __init__(self, inputs: Sequence[str], outputs: Sequence[str], partitions: Sequence[Partition]) -> None:
        self._inputs, self._outputs, self._partitions = tuple(inputs), tuple(outputs), tuple(partitions)
        reads = [set(partition.inputs) for partition in partitions]
        # for each partition the values whose last reader it is, so that their memory is freed at once
        self._last_used = [
            (set(partition.outputs) | set(partition.inputs)) - set(outputs) - set().union(*reads[i + 1 :])
            for i, partition in enumerate(partitions)
        ]

    def stored_bits(self) -> Mapping[str, int]:
        found: dict[str, int] = {}
        for partition in self._partitions:
            found.update(partition.runtime.stored_bits())
        return found

    def run(self, leaves: Sequence[Any]) -> Sequence[Any]:
        return self._run(leaves, lambda partition, given: None)

    def kernel_times(self, calls: Sequence[Sequence[Any]], rounds: int) -> KernelTimes:
        given: dict[int, list[Sequence[Any]]] = {}
        for leaves in calls:
            self._run(leaves, lambda partition, inputs: given.setdefault(id(partition), []).append(inputs))
        times = [each.runtime.kernel_times(given[id(each)], rounds) for each in self._partitions]
        return KernelTimes(tuple(k for each in times for k in each.kernels), sum(each.seconds for each in times))

    def _run(self, leaves: Sequence[Any], note: Callable[[Partition, Sequence[Any]], None]) -> Sequence[Any]:
        values: dict[str, Any] = dict(zip(self._inputs, leaves, strict=True))
        for partition, last_used in zip(self._partitions, self._last_used, strict=True):
            inputs = [values[name] for name in partition.inputs]
            note(partition, inputs)
            results = partition.runtime.run(inputs)
            values.update(zip(partition.outputs, results, strict=True))
            for name in last_used:
                del values[name]
        return [values[name] for name in self._outputs]

    def save(self, folder: Path) -> None:
        rows = []
        for index, partition in enumerate(self._partitions):
            place = _place(folder, index)
            place.mkdir()
            partition.runtime.save(place)
            rows.append({"inputs": partition.inputs, "outputs": partition.outputs, "on_target": partition.on_target})
        content = {"inputs": self._inputs, "outputs": self._outputs, "parts": rows}
        write_file(folder / _FILE, json.dumps(content, indent=1))


def is_partitioned(folder: Path) -> bool:
    """Return whether the model in this folder is partitioned."""
    return (folder / _FILE).exists()


def load_partitioned(
    target: Target,
    folder: Path,
    settings: DeploymentSettings,
    *,
    allow_code: bool = False,
    leaves: Mapping[str, str] = NO_LEAVES,
) -> Runtime:
    """Read the files that :meth:`PartitionedRuntime.save` wrote; see :meth:`Target.load`."""
    content = _read(folder / _FILE)
    partitions = [
        Partition(
            tuple(row["inputs"]),
            tuple(row["outputs"]),
            row["on_target"],
            (target if row["on_target"] else FALLBACK).load(
                _place(folder, index), settings, allow_code=allow_code, leaves=leaves
            ),
        )
        for index, row in enumerate(content["parts"])
    ]
    return PartitionedRuntime(content["inputs"], content["outputs"], partitions)


def _read(path: Path) -> dict[str, Any]:
    """Return the description of the partitions, in which each reads inputs or values of earlier partitions.

    Raises:
        ArtifactError: it is damaged.
    """
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
        known = set(_names(content["inputs"]))
        for index, row in enumerate(content["parts"]):
            if type(row["on_target"]) is not bool or set(_names(row["inputs"])) - known:
                raise ValueError(f"partition {index} reads what no earlier one computes")
            known |= set(_names(row["outputs"]))
        if set(_names(content["outputs"])) - known:
            raise ValueError("no partition computes one of the results")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ArtifactError(f"{path} is damaged: {sentence(error)} Save the model again.") from error
    return content


def _names(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError("names of values are a list of texts")
    return value


def _place(folder: Path, index: int) -> Path:
    return folder / f"part_{index}"
