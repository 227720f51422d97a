"""Export a compiled model as one ONNX file, with names chosen by the user."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from prepbench._torch_compat.programs import input_placeholders, with_outputs
from prepbench.calls.call_spec import CallSpec
from prepbench.calls.checked_conditions import FileConditions, write_beside, write_conditions
from prepbench.checks import check_table, described
from prepbench.errors import ArtifactError, SettingsError, TargetError
from prepbench.package.report import CompileReport
from prepbench.running.tracing import tracing
from prepbench.storage import folder_beside, move_file, temporary_space, typed_errors
from prepbench.targets import Lowering, Runtime, target_named
from prepbench.targets.onnx.target import put_weights_inside, write_onnx


@dataclass(frozen=True)
class ExportNames:
    """The names chosen by the user; see :meth:`prepbench.CompiledModel.export`."""

    inputs: Sequence[str] | None = None
    outputs: Sequence[str] | None = None
    axes: Mapping[str, Mapping[int, str] | Sequence[int]] | None = None
    kept_outputs: Sequence[int] | None = None

    @property
    def given(self) -> bool:
        """Whether any name was given."""
        return any(value is not None for value in (self.inputs, self.outputs, self.axes, self.kept_outputs))


def export_onnx_file(
    path: Path,
    names: ExportNames,
    source: Lowering | None,
    runtime: Runtime,
    spec: CallSpec,
    report: CompileReport,
) -> Path:
    """Write the file beside its place, then move it there; conditions on sizes lie in it and beside it."""
    if report.leaves:
        raise TargetError(
            "A model with leaves cannot be written as ONNX, because they call back into Python: "
            f"{', '.join(leaf or 'the model itself' for leaf in report.leaves)}."
        )
    with tracing(), typed_errors(path), temporary_space(), folder_beside(path) as folder:
        inputs = spec.input_names
        if source is not None:
            lowering = renamed(source, names, list(spec.named_assertions))
            inputs = lowering.input_names
            write_onnx(target_named(report.target), lowering, folder)
        else:
            copy_saved(folder, names, runtime, report.target)
        files = list(folder.iterdir())
        if len(files) != 1:
            raise ArtifactError(
                "The model's weights do not fit into one ONNX file (2 GB); use save(folder), which keeps both files."
            )
        conditions = FileConditions(spec.conditions, inputs, spec.named_assertions)
        write_conditions(files[0], conditions)
        move_file(files[0], path)
        write_beside(path, conditions)
    return path


def copy_saved(folder: Path, names: ExportNames, runtime: Runtime, target: str) -> None:
    """Copy the ONNX file of a model that was loaded from a folder."""
    runtime.save(folder)
    extra = [file for file in folder.iterdir() if not file.name.startswith("model.onnx")]
    if not (folder / "model.onnx").exists():
        raise SettingsError(
            f"A model loaded for {target} cannot be exported: its folder holds the lowered program only. Export the "
            "model that compile_model returned, or compile with deployment_settings=OnnxRuntimeDeployment()."
        )
    if names.given:
        raise SettingsError(
            "A model that was loaded is exported as it was saved; names and axes cannot be changed. Export the model "
            "that compile_model returned."
        )
    for file in extra:
        file.unlink() if file.is_file() else shutil.rmtree(file)
    put_weights_inside(folder / "model.onnx")


def renamed(source: Lowering, names: ExportNames, assertions: Sequence[str] = ()) -> Lowering:
    """Return the lowering input with the user's names and outputs.

    Those that tell whether assertions hold stay, and keep their names.

    Raises:
        SettingsError: they do not fit.
    """
    program, count = source.program, len(source.output_names) - len(assertions)
    outputs = list(source.output_names[:count])
    if names.kept_outputs is not None:
        places = list(names.kept_outputs) if isinstance(names.kept_outputs, Iterable) else []
        if not places or any(type(place) is not int or not 0 <= place < len(outputs) for place in places):
            raise SettingsError(
                f"keep_outputs_at_idx must name some of the results 0 to {len(outputs) - 1} ({', '.join(outputs)}), "
                f"got {described(names.kept_outputs)}. Give their indices."
            )
        program = with_outputs(program, [*places, *range(count, count + len(assertions))])
        outputs = [outputs[place] for place in places]
    tensors = [i for i, place in enumerate(input_placeholders(program)) if place is not None]
    inputs = list(source.input_names)
    if names.inputs is not None:
        old = [inputs[i] for i in tensors]
        for place, name in zip(tensors, checked_names(names.inputs, old, "input_names"), strict=True):
            inputs[place] = name
    if names.outputs is not None:
        outputs = checked_names(names.outputs, outputs, "output_names")
        if taken := set(outputs) & set(assertions):
            raise SettingsError(
                f"output_names: {', '.join(sorted(taken))} is the output that tells whether a condition on values "
                "holds. Choose another name."
            )
    outputs += assertions
    made = replace(source, program=program, input_names=tuple(inputs), output_names=tuple(outputs))
    if names.axes is None:
        return made
    return replace(made, dimension_names={**source.dimension_names, **_dimension_names(made, names.axes)})


def checked_names(given: Sequence[str], old: Sequence[str], argument: str) -> list[str]:
    """Return new names by old ones; raise ``SettingsError`` unless there are as many, all different."""
    if not isinstance(given, Iterable):
        raise SettingsError(
            f"{argument} must be a list of names, got {described(given)}. Write {argument}=[{old[0]!r}]."
        )
    listed = [given] if isinstance(given, str) else list(given)
    if len(listed) != len(old):
        raise SettingsError(
            f"{argument} must hold {len(old)} names, one for each of {', '.join(old) or 'none'}; got {listed!r}. "
            "Give a list of them."
        )
    wrong = [
        name
        for name in listed
        if not isinstance(name, str) or not name.isprintable() or not re.fullmatch(r"[^\s/\\]+", name)
    ]
    if wrong or len(set(map(str, listed))) < len(listed):
        raise SettingsError(
            f"{argument} must be different names without spaces or slashes; got {listed!r}. Choose others."
        )
    return listed


def axis_names(
    sizes: Mapping[str, Sequence[Any]], axes: Mapping[str, Mapping[int, str] | Sequence[int]]
) -> Iterator[tuple[str, int, str]]:
    """Yield the tensor, the dim and the name of each dynamic dim that is to be named.

    Args:
        sizes: of the tensors by name; those that are no number are dynamic.
        axes: as the user gave them.

    Raises:
        SettingsError: they name what is not there or not dynamic.
    """
    check_table("dynamic_axes", axes, '{"ids": {0: "batch"}}')
    for tensor, dims in axes.items():
        if tensor not in sizes:
            raise SettingsError(f"dynamic_axes names {tensor!r}; there are {', '.join(map(repr, sizes))}.")
        if not isinstance(dims, Mapping | list | tuple):
            raise SettingsError(
                f"dynamic_axes[{tensor!r}] must be a dict of names by dim or a list of dims, got {described(dims)}. "
                f"Write dynamic_axes={{{tensor!r}: {{0: 'batch'}}}}."
            )
        shape = sizes[tensor]
        for dim in dims:
            if type(dim) is not int or not -len(shape) <= dim < len(shape) or isinstance(shape[dim], int):
                dynamic = [i for i, size in enumerate(shape) if not isinstance(size, int)]
                raise SettingsError(
                    f"dynamic_axes[{tensor!r}]: dim {dim!r} is not dynamic in this model (dynamic are {dynamic}). "
                    "Compile with tracing inputs whose sizes differ there."
                )
            if isinstance(dims, Mapping):
                yield tensor, dim, str(dims[dim])


def _dimension_names(lowering: Lowering, axes: Mapping[str, Mapping[int, str] | Sequence[int]]) -> dict[str, str]:
    """Return names for the symbols of dynamic sizes."""
    sizes = _symbolic_sizes(lowering)
    result: dict[str, str] = {}
    for tensor, dim, name in axis_names(sizes, axes):
        symbol = str(sizes[tensor][dim])
        if result.get(symbol, name) != name:
            raise SettingsError(
                f"dynamic_axes[{tensor!r}]: dim {dim} always has the size of the one named {result[symbol]!r}, "
                f"so it cannot be named {name!r}."
            )
        result[symbol] = name
    return result


def _symbolic_sizes(lowering: Lowering) -> dict[str, tuple[Any, ...]]:
    """Return the sizes of inputs and outputs by their names."""
    found = {name: node.meta.get("val") for _, name, node in lowering.ends()}
    return {name: tuple(value.shape) for name, value in found.items() if isinstance(value, torch.Tensor)}
