"""Several graphs in one compiled model, if the sizes of tracing inputs take both sides of a branch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from prepbench.capture.aten.axes_text import condition_lines
from prepbench.capture.sizes.conditions import SizeCondition
from prepbench.compile.call_spec import CallSpec
from prepbench.compile.report import CompileReport
from prepbench.compile.variant_calls import VariantCall, VariantChoice
from prepbench.targets import Lowering, Runtime
from prepbench.targets.kernel_times import KernelTimes

SECTION = "variants"
"""The manifest's entry for the tracing inputs and the report of each variant."""


@dataclass(frozen=True)
class Variant:
    """One of the graphs of a compiled model. A call runs the first whose conditions its sizes meet.

    Attributes:
        conditions: on sizes, under which this graph equals the model.
        samples: indices of the tracing inputs that it was captured from.
        report: of this graph alone.
        lowering: the program as the target got it, with its names; None for a model that was loaded.

    Example:
        >>> condition = SizeCondition("x.shape[1] must be at most 6", ("x.shape[1]",), None)
        >>> print(Variant((condition,), (0, 2), CompileReport("onnxruntime", {})))
        for inputs[0], inputs[2] and where x.shape[1] must be at most 6
    """

    conditions: tuple[SizeCondition, ...]
    samples: tuple[int, ...]
    report: CompileReport
    lowering: Lowering | None = field(default=None, repr=False)

    @property
    def program(self) -> Any:
        """The program that the target received, a ``torch.export.ExportedProgram``; None for a loaded model."""
        return None if self.lowering is None else self.lowering.program

    def __str__(self) -> str:
        return variant_text(self.samples, self.conditions)


def variant_text(samples: Sequence[int], conditions: Sequence[SizeCondition]) -> str:
    """Return a variant's inputs and conditions as text."""
    given = ", ".join(f"inputs[{index}]" for index in samples)
    return f"for {given} and where {' and '.join(condition_lines(conditions)) or 'no other holds'}"


class VariantsRuntime(Runtime):
    """Runs each call on the runtime of its variant.

    Args:
        runtimes: one for each variant.
        calls: the calls that each of them takes.
        paths: of the input leaves.

    Attributes:
        runtimes: those of the variants.
    """

    def __init__(self, runtimes: Sequence[Runtime], calls: Sequence[VariantCall], paths: Sequence[str]) -> None:
        self.runtimes, self._calls = tuple(runtimes), tuple(calls)
        self._choice = VariantChoice(calls, paths)
        asserted = [call.assertions for call in calls]
        self._asserted = asserted if any(asserted) else None

    def run(self, leaves: Sequence[Any]) -> Sequence[Any]:
        index = self._choice.taken(leaves)
        outputs, call = self.runtimes[index].run(leaves), self._calls[index]
        if not call.constants and self._asserted is None:
            return outputs
        count = len(outputs) - call.assertions
        rest = iter(outputs[:count])
        results = [
            call.constants[place] if place in call.constants else next(rest)
            for place in range(count + len(call.constants))
        ]
        if self._asserted is None:
            return results
        # assertions of variants that do not run count as true, because nothing depends on them
        held: list[Any] = [torch.tensor(True)] * sum(self._asserted)
        first = sum(self._asserted[:index])
        held[first : first + call.assertions] = outputs[count:]
        return [*results, *held]

    def save(self, folder: Path) -> None:
        for index, runtime in enumerate(self.runtimes):
            place = variant_folder(folder, index)
            place.mkdir()
            runtime.save(place)

    def stored_bits(self) -> Mapping[str, int]:
        found: dict[str, int] = {}
        for index, runtime in enumerate(self.runtimes):
            found |= {f"variant_{index}.{name}": bits for name, bits in runtime.stored_bits().items()}
        return found

    def kernel_times(self, calls: Sequence[Sequence[Any]], rounds: int) -> KernelTimes:
        given: dict[int, list[Sequence[Any]]] = {}
        for leaves in calls:
            given.setdefault(self._choice.taken(leaves), []).append(leaves)
        times = [self.runtimes[index].kernel_times(some, rounds) for index, some in sorted(given.items())]
        return KernelTimes(tuple(k for each in times for k in each.kernels), sum(each.seconds for each in times))


def variant_folder(folder: Path, index: int) -> Path:
    """Return the folder of one variant in a saved model."""
    return folder / f"variant_{index}"


def loaded_variants(spec: CallSpec, rows: Sequence[Mapping[str, Any]]) -> tuple[Variant, ...]:
    """Return the variants of a saved model, with their entries in its manifest."""
    return tuple(
        Variant(call.conditions, tuple(row["samples"]), CompileReport.from_dict(row["report"]))
        for call, row in zip(spec.variants, rows, strict=True)
    )


def joined_runtime(runtimes: Sequence[Runtime], spec: CallSpec) -> Runtime:
    """Return one runtime of a model: its only one, or those of all variants."""
    return VariantsRuntime(runtimes, spec.variants, spec.paths) if spec.variants else runtimes[0]
