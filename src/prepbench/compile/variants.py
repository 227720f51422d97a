"""Several graphs in one compiled model, where the sizes of tracing inputs take both sides of a branch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prepbench.capture.aten.axes_text import condition_lines
from prepbench.capture.sizes.conditions import SizeCondition
from prepbench.compile.call_spec import CallSpec
from prepbench.compile.report import CompileReport
from prepbench.compile.variant_calls import VariantCall, VariantChoice
from prepbench.errors import TargetError
from prepbench.quantize import LayerReport, TensorReport
from prepbench.quantize.report import NOT_REACHED, QUANTIZED
from prepbench.running.compare_samples import is_same
from prepbench.targets import Lowering, Runtime
from prepbench.targets.kernel_times import KernelTimes

SECTION = "variants"
"""Of the manifest: what the tracing inputs and the report of each variant were."""


@dataclass(frozen=True)
class Variant:
    """One of the graphs of a compiled model. A call runs the first whose conditions its sizes meet.

    Attributes:
        conditions: on sizes, under which this graph equals the model.
        samples: indices of the tracing inputs that it was captured from.
        report: of this graph alone.
        lowering: the program as the target got it, with its names; None for a model that was loaded.

    Example:
        >>> for variant in compiled.variants:
        ...     print(variant)
    """

    conditions: tuple[SizeCondition, ...]
    samples: tuple[int, ...]
    report: CompileReport
    lowering: Lowering | None = field(default=None, repr=False)

    @property
    def program(self) -> Any:
        """The program as the target got it, a ``torch.export.ExportedProgram``; None for a model that was loaded."""
        return None if self.lowering is None else self.lowering.program

    def __str__(self) -> str:
        return variant_text(self.samples, self.conditions)


def variant_text(samples: Sequence[int], conditions: Sequence[SizeCondition]) -> str:
    """Which inputs a variant is for, and where it holds."""
    given = ", ".join(f"inputs[{index}]" for index in samples)
    return f"for {given} and where {' and '.join(condition_lines(conditions)) or 'no other holds'}"


class VariantsRuntime(Runtime):
    """Runs each call on the runtime of the variant that takes it.

    Args:
        runtimes: one for each variant.
        calls: what each of them takes.
        paths: of the input leaves.
    """

    def __init__(self, runtimes: Sequence[Runtime], calls: Sequence[VariantCall], paths: Sequence[str]) -> None:
        self._runtimes, self._calls = tuple(runtimes), tuple(calls)
        self._choice = VariantChoice(calls, paths)

    def run(self, leaves: Sequence[Any]) -> Sequence[Any]:
        index = self._choice.taken(leaves)
        outputs, constants = self._runtimes[index].run(leaves), self._calls[index].constants
        if not constants:
            return outputs
        rest = iter(outputs)
        count = len(outputs) + len(constants)
        return [constants[place] if place in constants else next(rest) for place in range(count)]

    def save(self, folder: Path) -> None:
        for index, runtime in enumerate(self._runtimes):
            place = variant_folder(folder, index)
            place.mkdir()
            runtime.save(place)

    def stored_bits(self) -> Mapping[str, int]:
        found: dict[str, int] = {}
        for index, runtime in enumerate(self._runtimes):
            found |= {f"variant_{index}.{name}": bits for name, bits in runtime.stored_bits().items()}
        return found

    def kernel_times(self, calls: Sequence[Sequence[Any]], rounds: int) -> KernelTimes:
        given: dict[int, list[Sequence[Any]]] = {}
        for leaves in calls:
            given.setdefault(self._choice.taken(leaves), []).append(leaves)
        times = [self._runtimes[index].kernel_times(some, rounds) for index, some in sorted(given.items())]
        return KernelTimes(tuple(k for each in times for k in each.kernels), sum(each.seconds for each in times))


def variant_folder(folder: Path, index: int) -> Path:
    """Where a saved model has the files of one variant."""
    return folder / f"variant_{index}"


def joined_spec(specs: Sequence[CallSpec]) -> CallSpec:
    """The call of a model whose variants have these.

    Raises:
        TargetError: they return other structures.
    """
    first = specs[0]
    for index, spec in enumerate(specs):
        if spec.outputs != first.outputs:
            raise TargetError(
                f"Variant {index} returns another structure than variant 0, and a compiled model returns one. Let both "
                "sides of the branch return as many values, nested alike, or compile the model once for each side."
            )
    constants = {
        place: value
        for place, value in first.output_constants.items()
        if all(place in spec.output_constants and is_same(value, spec.output_constants[place]) for spec in specs)
    }
    numbers = sorted({place for spec in specs for place in spec.output_numbers} - set(constants))
    return replace(
        first,
        tensors=tuple(_joined_tensor(rows) for rows in zip(*(spec.tensors for spec in specs), strict=True)),
        output_constants=constants,
        output_numbers=tuple(numbers),
        conditions=_in_all(specs),
        variants=tuple(_variant_call(spec, constants) for spec in specs),
    )


def _in_all(specs: Sequence[CallSpec]) -> tuple[SizeCondition, ...]:
    """The conditions that all variants have."""
    formulas = [{(one.formula, one.places) for one in spec.conditions} for spec in specs]
    return tuple(one for one in specs[0].conditions if all((one.formula, one.places) in known for known in formulas))


def _variant_call(spec: CallSpec, constants: Mapping[int, Any]) -> VariantCall:
    places = [place for place in range(_count(spec.outputs)) if place not in constants]
    own = {places.index(place): value for place, value in spec.output_constants.items() if place not in constants}
    return VariantCall(spec.conditions, spec.tensors, own)


def _count(tree: Any) -> int:
    return 1 if tree["kind"] == "leaf" else sum(map(_count, tree["items"]))


def _joined_tensor(rows: Sequence[Mapping[str, Any] | None]) -> Mapping[str, Any] | None:
    """What all variants take: a size is free where it is so in one of them, or where they have others."""
    known = [row for row in rows if row is not None]
    if len(known) < len(rows):
        return None
    first, shapes = known[0], zip(*(row["shape"] for row in known), strict=True)
    made = {**first, "shape": [sizes[0] if len(set(sizes)) == 1 else None for sizes in shapes]}
    if None in made["shape"]:
        made["symbols"] = first.get("symbols", [""] * len(made["shape"]))
    if not all("below" in row for row in known):
        made.pop("below", None), made.pop("from", None)
    elif "below" in made:
        made["below"] = max(row["below"] for row in known)
        made |= {"from": least} if (least := min(row.get("from", 0) for row in known)) else {}
    return made


def joined_report(reports: Sequence[CompileReport], texts: Sequence[str], **changes: Any) -> CompileReport:
    """One report of a model whose variants have these.

    Args:
        reports: of the variants.
        texts: what each of them is for.
        changes: fields that are known of the whole.
    """
    sqnrs = [report.model_sqnr for report in reports if report.model_sqnr is not None]
    divergences = [report.model_divergence for report in reports if report.model_divergence is not None]
    bits = [report.bits_per_weight for report in reports]
    outputs: dict[str, float] = {}
    for report in reports:
        for name, sqnr in report.output_sqnrs.items():
            outputs[name] = min(sqnr, outputs.get(name, sqnr))
    joined = replace(
        reports[0],
        layers=tuple(_joined_layers(reports)),
        model_sqnr=min(sqnrs, default=None),
        model_divergence=max(divergences, default=None),
        output_sqnrs=outputs,
        fallbacks=_each_once(report.fallbacks for report in reports),
        unsupported=_each_once(report.unsupported for report in reports),
        remarks=_each_once(report.remarks for report in reports),
        tensors=tuple(_joined_tensors(reports)),
        bits_per_weight=None if None in bits else round(sum(bits), 2),  # type: ignore[arg-type]
        variants=tuple(texts),
    )
    return replace(joined, **changes)


def _each_once(texts: Iterator[tuple[str, ...]] | Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for some in texts for text in some))


def _joined_layers(reports: Sequence[CompileReport]) -> Iterator[LayerReport]:
    """A row for each layer: that of the first variant in which it is quantized, with a note where others differ."""
    rows: dict[str, list[tuple[int, LayerReport]]] = {}
    for index, report in enumerate(reports):
        for row in report.layers:
            rows.setdefault(row.fqn, []).append((index, row))
    for some in rows.values():
        place, row = next(((i, row) for i, row in some if row.quantized), some[0])
        others = [f"variant {i}: {other.summary}" for i, other in some if other.summary != row.summary]
        notes = [note for note in (row.note, f"as in variant {place}; {'; '.join(others)}" if others else "") if note]
        yield replace(row, note="; ".join(notes))


def _joined_tensors(reports: Sequence[CompileReport]) -> Iterator[TensorReport]:
    """A row for each tensor: quantized where it is so in one variant, and not reached where no variant reaches it."""
    rows: dict[tuple[str, str], list[TensorReport]] = {}
    for report in reports:
        for row in report.tensors:
            rows.setdefault((row.kind, row.fqn), []).append(row)
    order = {QUANTIZED: 0, NOT_REACHED: 2}
    for some in rows.values():
        yield min(some, key=lambda row: order.get(row.outcome, 1))
