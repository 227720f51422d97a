"""Several graphs in one compiled model, if the sizes of tracing inputs take both sides of a branch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from prepbench.calls.call_spec import CallSpec
from prepbench.calls.checked_conditions import FileConditions, write_beside, write_conditions
from prepbench.calls.output_tree import leaf_names
from prepbench.calls.tensor_specs import joined_tensor_specs
from prepbench.calls.variant_calls import VariantCall, VariantChoice
from prepbench.capture.aten.verification import conditions_text
from prepbench.capture.sizes.conditions import SizeCondition
from prepbench.errors import ArtifactError, SettingsError, TargetError, sentence
from prepbench.package.onnx_file import ExportNames, axis_names, checked_names, copy_saved, renamed
from prepbench.package.report import CompileReport
from prepbench.quantize import LayerReport, TensorReport
from prepbench.quantize.report import NOT_CALLED, NOT_REACHED, QUANTIZED
from prepbench.running.check_inputs import is_same
from prepbench.running.tracing import tracing
from prepbench.storage import folder_beside, move_file, temporary_space, typed_errors
from prepbench.targets import Lowering, Runtime, target_named
from prepbench.targets.kernel_times import KernelTimes
from prepbench.targets.onnx.branches import joined_models
from prepbench.targets.onnx.target import write_onnx

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
    return f"for {given} and where {conditions_text(conditions) or 'no other holds'}"


class VariantsRuntime(Runtime):
    """Runs each call on the runtime of its variant."""

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


# A compiled model of several variants as one ONNX file, in which an ``If`` chooses.


def export_variants(
    path: Path, names: ExportNames, variants: Sequence[Variant], runtime: Any, spec: CallSpec, target: str
) -> Path:
    """Write the file beside its place, then move it there; conditions on sizes lie in it and beside it.

    Raises:
        SettingsError: names or outputs are wrong, or cannot be chosen for a model that was loaded.
        TargetError: a condition on sizes has no form in ONNX, or a result has another type in another variant.
    """
    import onnx

    assert isinstance(runtime, VariantsRuntime)
    if names.kept_outputs is not None:
        raise SettingsError(
            "keep_outputs_at_idx cannot be given for a model with variants, whose graphs have results of their own. "
            "Return fewer values from forward, or leave it out."
        )
    if spec.assertions:
        raise SettingsError(
            f"One file has no place for what only one variant asserts: {spec.assertions[0]}. Use save(folder), which "
            "keeps a file for each variant, or change the line that asserts."
        )
    outputs, inputs = list(spec.output_names), list(spec.input_names)
    if names.outputs is not None:
        outputs = checked_names(names.outputs, outputs, "output_names")
    with tracing(), typed_errors(path), temporary_space(), folder_beside(path) as folder:
        models = []
        for index, (variant, call) in enumerate(zip(variants, spec.variants, strict=True)):
            place = folder / str(index)
            place.mkdir()
            own = [name for at, name in enumerate(outputs) if at not in call.constants]
            if variant.lowering is None:
                copy_saved(place, names, runtime.runtimes[index], target)
            else:
                lowering = renamed(variant.lowering, replace(names, outputs=own, axes=None))
                inputs = list(lowering.input_names)
                write_onnx(target_named(target), lowering, place)
            models.append(onnx.load(str(place / "model.onnx")))
        asked = [
            [(one.formula, [(inputs[leaf], dim) for leaf, dim in one.places]) for one in call.conditions if one.formula]
            for call in spec.variants
        ]
        model = joined_models(models, asked, [call.constants for call in spec.variants], outputs)
        _name_dims(model, names)
        file = folder / "joined.onnx"
        _save(model, file)
        conditions = FileConditions(spec.conditions, inputs, {}, [call.conditions for call in spec.variants])
        write_conditions(file, conditions)
        move_file(file, path)
        write_beside(path, conditions)
    return path


def _save(model: Any, file: Path) -> None:
    import onnx

    try:
        onnx.save(model, str(file))
        onnx.checker.check_model(str(file))
    except Exception as error:  # its errors share no base class
        raise ArtifactError(
            f"The graphs of the variants do not make one ONNX file: {sentence(error)} Use save(folder), which keeps a "
            "file for each."
        ) from error


def _name_dims(model: Any, names: ExportNames) -> None:
    """Give dynamic dims the user's names."""
    if names.axes is None:
        return
    tensors = {value.name: value.type.tensor_type.shape.dim for value in (*model.graph.input, *model.graph.output)}
    sizes = {name: [d.dim_value if d.HasField("dim_value") else d for d in dims] for name, dims in tensors.items()}
    for tensor, dim, name in axis_names(sizes, names.axes):
        tensors[tensor][dim].dim_param = name


# The call specification and the report of a compiled model with several variants.


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
        written=tuple(sorted({place for spec in specs for place in spec.written})),
        of_tensors=tuple(dict.fromkeys(one for spec in specs for one in spec.of_tensors)),
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
    """Return the joined report of variants; ``texts`` describe them, ``changes`` are fields known of the whole."""
    measured = [(index, report) for index, report in enumerate(reports) if report.model_sqnr is not None]
    worst, of_worst = min(measured, key=lambda pair: pair[1].model_sqnr or 0.0, default=(0, reports[0]))
    divergences = [report.model_divergence for report in reports if report.model_divergence is not None]
    bits = [report.bits_per_weight for report in reports]
    outputs: dict[str, float] = {}
    for report in reports:
        for name, sqnr in report.output_sqnrs.items():
            outputs[name] = min(sqnr, outputs.get(name, sqnr))
    joined = replace(
        reports[0],
        layers=tuple(_joined_layers(reports)),
        model_sqnr=of_worst.model_sqnr,
        simulated_sqnr=of_worst.simulated_sqnr,
        measured_on=f"{of_worst.measured_on}, for variant {worst}" if measured else "",
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
    """Yield a row for each tensor: quantized if it is so in one variant, not reached if no variant reaches it."""
    rows: dict[tuple[str, str], list[TensorReport]] = {}
    for report in reports:
        for row in report.tensors:
            rows.setdefault((row.kind, row.fqn), []).append(row)
    order = {QUANTIZED: 0, NOT_REACHED: 2}
    for some in rows.values():
        yield min(some, key=lambda row: order.get(row.outcome, 1))
