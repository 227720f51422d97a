"""A flat program as an ONNX file with readable names of inputs, outputs and dynamic dims."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import json
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from prepbench._torch_compat.onnx_exporter import (
    decomposing,
    exact_rules,
    translations_read_once,
)
from prepbench._torch_compat.programs import without_guards
from prepbench._torch_compat.sizes import forget_pending_sizes
from prepbench.errors import TargetError, sentence
from prepbench.freed_memory import give_back
from prepbench.internal_errors import raise_if_internal
from prepbench.patching import logs_dropped_here, output_here, warnings_ignored_here
from prepbench.targets.base import Lowering
from prepbench.targets.onnx.decompose import decompose_for_onnx
from prepbench.targets.onnx.finish import forget_origin, type_by_zero_point, write_dropout_out
from prepbench.targets.onnx.layers import write_layers
from prepbench.targets.onnx.merge import merge_tables
from prepbench.targets.onnx.narrow_ranges import clamp_narrow_ranges
from prepbench.targets.onnx.recurrent_weights import pack_recurrent_weights
from prepbench.targets.onnx.translations import OPSET, translations
from prepbench.targets.onnx.weights import pack_weights, remove_unused_initializers

FILE = "model.onnx"
# metadata: a shape that each input can have
EXAMPLE_SHAPES = "prepbench.example_shapes"

# bytes of weights from which on they are written beside the graph
_LARGE = 2**26

# takes an ``onnx_ir.Model`` and changes it in place
Change = Callable[[Any], None]


def export_onnx(lowering: Lowering, folder: Path, changes: Sequence[Change], *, one_file: bool = False) -> Path:
    """Write ``folder/model.onnx``, and large weights beside it, one after the other.

    Args:
        lowering: the program and its names; the program is not changed.
        folder: an existing folder.
        changes: what a runtime wants changed in the ONNX graph.
        one_file: put weights into the file as long as it can hold them (2 GB), which takes memory for three copies.

    The file's metadata has an entry ``prepbench.inputs`` with a line for each input of the program: the name of the
    input of the file, or nothing where the input is a constant.

    Raises:
        TargetError: an operator, which the message names, cannot be written as ONNX.
    """
    program = clamp_narrow_ranges(lowering.program)
    lowering = replace(
        lowering, program=lowering.derived("attention for ONNX", program, lambda: decompose_for_onnx(program))
    )
    onnx_program = _convert(lowering)
    model = onnx_program.model
    _keep_free(model, {*lowering.input_names, *lowering.output_names})
    used = _name_inputs(model, lowering)
    _name_outputs(model, lowering.output_names)
    _name_dimensions(model, lowering.dimension_names)
    merge_tables(model)
    pack_recurrent_weights(model)
    pack_weights(model)
    type_by_zero_point(model)
    write_dropout_out(model)
    for change in changes:
        change(model)
    remove_unused_initializers(model)
    write_layers(model)
    forget_origin(model)
    model.metadata_props["prepbench.inputs"] = "\n".join(used)
    model.metadata_props[EXAMPLE_SHAPES] = json.dumps(_example_shapes(lowering.program, used))
    path, size = folder / FILE, _bytes_of(model)
    with _quiet():
        onnx_program.save(str(path), external_data=None if one_file else size > _LARGE or None)
    for value in model.graph.initializers.values():
        value.const_value = None  # at once: the model refers to itself, and would keep its weights for a while
    give_back(size)
    return path


def _bytes_of(model: Any) -> int:
    return sum(int(value.const_value.nbytes) for value in model.graph.initializers.values())


def _convert(lowering: Lowering) -> Any:
    try:
        try:
            return _export(lowering)
        except Exception as error:
            # an earlier trace left sizes behind that depend on data; now they are gone
            if "Pending unbacked symbols" not in str(_first_cause(error)):
                raise
            return _export(lowering)
    except Exception as error:
        raise_if_internal(error)
        raise TargetError(
            f"The graph cannot be written as ONNX: {_reason(_first_cause(error))} "
            "Rewrite the operator named here, or choose InductorDeployment()."
        ) from error


def _reason(cause: BaseException) -> str:
    missing = re.search(r"No ONNX function found for <OpOverload\(op='([\w.]+)'", str(cause))
    return f"ONNX has nothing for {missing[1]}." if missing else f"{type(cause).__name__}: {sentence(cause)}"


def _export(lowering: Lowering) -> Any:
    # without gradients, because their rules refuse some operators on complex numbers
    decomposed = decomposing(functools.partial(lowering.derived, "operators of ONNX"))
    try:
        with _quiet(), torch.no_grad(), decomposed, translations_read_once(), exact_rules() as exact:
            return torch.onnx.export(
                without_guards(lowering.program),
                dynamo=True,
                verbose=False,
                opset_version=OPSET,
                optimize=exact,
                custom_translation_table=translations(),
            )
    finally:  # it runs operators whose sizes depend on data once more, and whoever traces next would look for these
        forget_pending_sizes([node.meta.get("val") for node in lowering.program.graph.nodes])


def _first_cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _keep_free(model: Any, names: set[str]) -> None:
    """Rename values inside the graph that have one of the names which its inputs and outputs are about to get."""
    inside = [
        *model.graph.initializers.values(),
        *(value for node in model.graph.all_nodes() for value in node.outputs),
    ]
    taken = {*names, *(value.name for value in (*inside, *model.graph.inputs))}
    for value in inside:
        if value.name in names and not value.is_graph_output():
            value.name = next(name for i in itertools.count(1) if (name := f"{value.name}_{i}") not in taken)
            taken.add(value.name)


def _name_inputs(model: Any, lowering: Lowering) -> list[str]:
    """Name the graph's inputs; returns the name of each input of the program, "" for one that is a constant."""
    user_inputs = lowering.program.graph_signature.user_inputs
    tensors = [
        name if isinstance(leaf, str) else "" for name, leaf in zip(lowering.input_names, user_inputs, strict=True)
    ]
    graph_inputs = list(model.graph.inputs)
    names = [name for name in tensors if name]
    if len(names) != len(graph_inputs):
        raise TargetError(
            f"The ONNX graph takes {len(graph_inputs)} inputs where the model takes the tensors {', '.join(names)}. "
            "Choose InductorDeployment() for this model."
        )
    for value, name in zip(graph_inputs, names, strict=True):
        value.name = name
    return tensors


def _example_shapes(program: torch.export.ExportedProgram, names: Sequence[str]) -> dict[str, list[int]]:
    leaves = program.example_inputs[0] if program.example_inputs is not None else ()
    return {
        name: list(leaf.shape)
        for name, leaf in zip(names, leaves, strict=False)
        if name and isinstance(leaf, torch.Tensor)
    }


def _name_outputs(model: Any, names: tuple[str, ...]) -> None:
    """Name the outputs; a value that is returned twice keeps its first name."""
    taken = {value.name for value in model.graph.inputs}
    seen: set[int] = set()
    for value, name in zip(model.graph.outputs, names, strict=False):
        if id(value) not in seen and not value.is_graph_input():
            value.name = name if name not in taken else f"{name}_out"
            taken.add(value.name)
            seen.add(id(value))


def _name_dimensions(model: Any, names: dict[str, str]) -> None:
    import onnx_ir

    for value in [*model.graph.inputs, *model.graph.outputs]:
        if value.shape is not None:
            dims = [
                re.sub(r"\w+", lambda found: names.get(found[0], found[0]), str(dim.value))
                if isinstance(dim, onnx_ir.SymbolicDim) and dim.value is not None
                else dim
                for dim in value.shape
            ]
            value.shape = onnx_ir.Shape(dims)


@contextlib.contextmanager
def _quiet() -> Any:
    """The exporter prints and warns about its own internals."""
    with logs_dropped_here(below=logging.ERROR), warnings_ignored_here(), output_here(io.StringIO()):
        yield
