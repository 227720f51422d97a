"""The call specification and the report of a compiled model with several variants."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from prepbench.capture.sizes.conditions import SizeCondition
from prepbench.compile.call_spec import CallSpec
from prepbench.compile.output_tree import leaf_names
from prepbench.compile.report import CompileReport
from prepbench.compile.tensor_specs import joined_tensor_specs
from prepbench.compile.variant_calls import VariantCall
from prepbench.errors import TargetError
from prepbench.quantize import LayerReport, TensorReport
from prepbench.quantize.report import NOT_CALLED, NOT_REACHED, QUANTIZED
from prepbench.running.compare_samples import is_same


def joined_spec(specs: Sequence[CallSpec]) -> CallSpec:
    """Return the joined specification of these variants' calls.

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
        tensors=joined_tensor_specs([spec.tensors for spec in specs]),
        output_constants=constants,
        output_numbers=tuple(numbers),
        conditions=_in_all(specs),
        assertions=tuple(one for spec in specs for one in spec.assertions),
        variants=tuple(_variant_call(spec, constants) for spec in specs),
    )


def _in_all(specs: Sequence[CallSpec]) -> tuple[SizeCondition, ...]:
    """Return the conditions that all variants share."""
    formulas = [{(one.formula, one.places) for one in spec.conditions} for spec in specs]
    return tuple(one for one in specs[0].conditions if all((one.formula, one.places) in known for known in formulas))


def _variant_call(spec: CallSpec, constants: Mapping[int, Any]) -> VariantCall:
    places = [place for place in range(len(leaf_names(spec.outputs))) if place not in constants]
    own = {places.index(place): value for place, value in spec.output_constants.items() if place not in constants}
    return VariantCall(spec.conditions, spec.tensors, own, len(spec.assertions))


def joined_report(reports: Sequence[CompileReport], texts: Sequence[str], **changes: Any) -> CompileReport:
    """Return the joined report of these variants.

    Args:
        reports: of the variants.
        texts: the description of each.
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


def _each_once(texts: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for some in texts for text in some))


def _joined_layers(reports: Sequence[CompileReport]) -> Iterator[LayerReport]:
    """Yield a row for each layer: that of the first variant that quantizes it, with a note where others differ."""
    rows: dict[str, list[tuple[int, LayerReport]]] = {}
    for index, report in enumerate(reports):
        for row in report.layers:
            rows.setdefault(row.fqn, []).append((index, row))
    for some in rows.values():
        called = [(index, row) for index, row in some if row.reason != NOT_CALLED] or some
        place, row = next(((i, row) for i, row in called if row.quantized), called[0])
        others = [f"variant {i}: {other.summary}" for i, other in called if other.summary != row.summary]
        notes = [row.note] if row.note else []
        if len(called) < len(some):
            notes.append(f"called in variant {' and '.join(str(index) for index, _ in called)} only")
        if others:
            notes.append(f"as in variant {place}; {'; '.join(others)}")
        yield replace(row, note="; ".join(notes))


def _joined_tensors(reports: Sequence[CompileReport]) -> Iterator[TensorReport]:
    """Yield a row for each tensor: quantized where it is so in one variant, and not reached where no variant reaches
    it.
    """
    rows: dict[tuple[str, str], list[TensorReport]] = {}
    for report in reports:
        for row in report.tensors:
            rows.setdefault((row.kind, row.fqn), []).append(row)
    order = {QUANTIZED: 0, NOT_REACHED: 2}
    for some in rows.values():
        yield min(some, key=lambda row: order.get(row.outcome, 1))
