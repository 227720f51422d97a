"""Saving and loading exported programs without pickle."""

from __future__ import annotations

import zipfile
from pathlib import Path

import torch
from torch import fx

from prepbench._torch_compat.operators import OpOverload, register_quantized_operators, schema_of
from prepbench._torch_compat.programs import without_example_inputs
from prepbench.errors import ArtifactError

FILE = "program.pt2"


def save_program(program: torch.export.ExportedProgram, folder: Path) -> None:
    """Write ``program`` to ``folder/program.pt2``: a JSON graph and raw weights."""
    torch.export.save(without_example_inputs(program), folder / FILE)
    _refuse_pickles(folder / FILE)


def load_program(folder: Path) -> torch.export.ExportedProgram:
    """Read what :func:`save_program` wrote.

    Raises:
        ArtifactError: the archive holds a pickle, which prepbench neither writes nor reads.
    """
    _refuse_pickles(folder / FILE)
    register_quantized_operators()
    return torch.export.load(folder / FILE)


def _refuse_pickles(path: Path) -> None:
    """No member may be in a format that torch would unpickle."""
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.file_size and member.filename.endswith((".pt", ".pkl", ".pickle")):
                raise ArtifactError(
                    f"{path} holds {member.filename}, which would have to be unpickled. Compile and save the "
                    "model again."
                )
            if member.filename.endswith("_config.json") and b'"use_pickle": true' in archive.read(member):
                raise ArtifactError(f"{path}: {member.filename} asks for pickle. Compile and save the model again.")


def written_buffers(program: torch.export.ExportedProgram) -> set[str]:
    """Placeholders of the buffers that the program changes in place: its state from call to call."""
    signature = program.graph_signature
    changed = set(signature.buffers_to_mutate.values())
    written = {name for name, buffer in signature.inputs_to_buffers.items() if buffer in changed}
    for node in program.graph.nodes:
        if not isinstance(node.target, OpOverload):
            continue
        for argument, value in zip(schema_of(node.target).arguments, node.args, strict=False):
            if argument.is_write and isinstance(value, fx.Node):
                written.add(_storage_of(value).name)
    return written & set(signature.inputs_to_buffers)


def is_repeatable(program: torch.export.ExportedProgram) -> bool:
    """Whether running it again gives the same: it keeps no state and draws no random numbers."""
    return not written_buffers(program) and not any(map(_is_random, program.graph.nodes))


def _is_random(node: fx.Node) -> bool:
    """Whether a node draws random numbers; attention and dropout do only where they drop something."""
    if not isinstance(node.target, OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded not in node.target.tags:
        return False
    given = dict(zip((argument.name for argument in schema_of(node.target).arguments), node.args, strict=False))
    given |= node.kwargs
    if node.target is torch.ops.aten.scaled_dot_product_attention.default:
        return bool(given.get("dropout_p", 0.0) != 0)
    return not (node.target is torch.ops.aten.dropout.default and given.get("train") is False)


def _storage_of(node: fx.Node) -> fx.Node:
    """The node that made the memory that ``node`` is a view of, or the result of changing in place."""
    while isinstance(node.target, OpOverload) and node.args and isinstance(node.args[0], fx.Node):
        if not any(result.alias_info is not None for result in schema_of(node.target).returns):
            break
        node = node.args[0]
    return node
