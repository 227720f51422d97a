"""A compiled model of several variants as one ONNX file, in which an ``If`` chooses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from prepbench.compile.call_spec import CallSpec
from prepbench.compile.condition_files import FileConditions, write_beside, write_conditions
from prepbench.compile.onnx_file import ExportNames, axis_names, checked_names, copy_saved, renamed
from prepbench.compile.variants import Variant, VariantsRuntime
from prepbench.errors import ArtifactError, SettingsError, sentence
from prepbench.running.tracing import tracing
from prepbench.storage import folder_beside, move_file, temporary_space, typed_errors
from prepbench.targets import target_named
from prepbench.targets.onnx.branches import joined_models
from prepbench.targets.onnx.target import write_onnx


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
