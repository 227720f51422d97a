"""Exported programs as files, and their state between calls."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat.operators import OpOverload, register_quantized_operators, schema_of
from prepbench._torch_compat.programs import program_from_json, program_to_json, without_example_inputs
from prepbench.errors import ArtifactError, TargetError, sentence
from prepbench.internal_errors import raise_if_internal
from prepbench.storage import write_file
from prepbench.targets.base import NO_LEAVES
from prepbench.targets.program_check import (
    check_leaf_calls,
    check_program,
    leaf_operators_in,
    stripped,
    with_leaves,
)

GRAPH, WEIGHTS = "program.json", "program.safetensors"


def save_program(program: torch.export.ExportedProgram, folder: Path) -> None:
    """Write ``program`` as JSON and safetensors: ``program.json`` and ``program.safetensors``.

    Raises:
        ArtifactError: it has something that JSON cannot hold.
        StorageError: the disk is full or read-only.
    """
    import safetensors.torch

    tables = {"state": program.state_dict, "constants": program.constants}
    data: dict[str, torch.Tensor] = {}
    places: dict[Any, str] = {}
    index = {name: _described(table, data, places) for name, table in tables.items()}
    try:
        graph = stripped(program_to_json(without_example_inputs(program)))
    except Exception as error:
        raise_if_internal(error)
        raise ArtifactError(
            f"The program cannot be saved, because torch has no form for a part of it in a file: {sentence(error)} "
            "Use the model in the process that compiled it, or choose another target."
        ) from error
    graph["guards_code"] = []  # the call's own specification checks its arguments
    check_program(graph, allow_code=True, leaves=leaf_operators_in(program.graph_module))
    write_file(folder / WEIGHTS, safetensors.torch.save(data))
    write_file(folder / GRAPH, json.dumps({"program": graph, **index}))


def load_program(
    folder: Path, *, allow_code: bool = False, leaves: Mapping[str, str] = NO_LEAVES
) -> torch.export.ExportedProgram:
    """Read the files that :func:`save_program` wrote.

    Args:
        folder: with both files.
        allow_code: also accept operators that others registered in this process.
        leaves: the operators of leaves in this process, by the names that the program has for them.

    Raises:
        ArtifactError: the files hold anything else; nothing of them was run.
    """
    content, data = _read(folder)
    check_program(content["program"], allow_code=allow_code, leaves=leaves)
    register_quantized_operators()
    try:
        tables = [_restored(content[name], data) for name in ("state", "constants")]
        program = program_from_json(with_leaves(content["program"], leaves), *tables)
        check_leaf_calls(program.graph_module)
        return program
    except ArtifactError:
        raise
    except Exception as error:
        raise _damaged(folder / GRAPH, error) from error


def _described(
    table: dict[str, Any], data: dict[str, torch.Tensor], places: dict[Any, str]
) -> dict[str, dict[str, Any]]:
    """Return the tensor of each name; one that several names share is written once."""
    described = {}
    for name, tensor in table.items():
        if not isinstance(tensor, torch.Tensor):
            raise ArtifactError(
                f"{name} is a {type(tensor).__name__}, which cannot be saved without pickle. Pass it as an input, or "
                "make it a tensor."
            )
        plain = tensor.detach()
        identity = (
            plain.untyped_storage().data_ptr(),
            plain.storage_offset(),
            plain.shape,
            plain.stride(),
            plain.dtype,
        )
        key = places.setdefault(identity if plain.numel() else (name, len(places)), f"t{len(places)}")
        data.setdefault(key, plain.cpu().contiguous())
        described[name] = {
            "tensor": key,
            "parameter": isinstance(tensor, torch.nn.Parameter),
            "requires_grad": tensor.requires_grad,
            "stride": None if plain.is_contiguous() or not _is_dense(plain) else list(plain.stride()),
        }
    return described


def _is_dense(tensor: torch.Tensor) -> bool:
    """Return whether its strides are a permutation of contiguous ones, such as channels last."""
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda dim: (-strides[dim], -tensor.shape[dim]))
    return tensor.permute(order).is_contiguous()


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    import safetensors.torch

    path = folder / GRAPH
    try:
        content = json.loads(path.read_bytes())
        path = folder / WEIGHTS
        data = safetensors.torch.load_file(path)
    except Exception as error:  # safetensors has an exception type of its own
        raise _damaged(path, error) from error
    if not isinstance(content, dict) or set(content) != {"program", "state", "constants"}:
        raise _damaged(folder / GRAPH, ValueError("it is not of the form that prepbench writes"))
    return content, data


def _restored(table: Any, data: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    restored = {}
    for name, row in table.items():
        tensor = data[row["tensor"]]
        if row["stride"] is not None:
            tensor = _with_stride(tensor, row["stride"])
        if row["parameter"]:
            tensor = torch.nn.Parameter(tensor, requires_grad=bool(row["requires_grad"]))
        restored[name] = tensor
    return restored


def _with_stride(tensor: torch.Tensor, stride: list[int]) -> torch.Tensor:
    if len(stride) != tensor.dim() or not all(type(step) is int and step > 0 for step in stride):
        raise ValueError(f"strides {stride} do not fit the shape {tuple(tensor.shape)}")
    strided = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device="meta")
    if not _is_dense(strided):
        raise ValueError(f"strides {stride} do not fit the shape {tuple(tensor.shape)}")
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype).copy_(tensor)


def _damaged(path: Path, error: Exception) -> ArtifactError:
    return ArtifactError(f"{path} is damaged: {sentence(error)} Copy the folder again, or compile and save again.")


_SIZES = (torch.ops.aten.sym_size.int, torch.ops.aten.sym_numel.default, torch.ops.aten.sym_stride.int)


def written_buffers(program: torch.export.ExportedProgram) -> set[str]:
    """Return the placeholders of buffers that the program changes in place: its state between calls."""
    signature = program.graph_signature
    changed = set(signature.buffers_to_mutate.values())
    written = {name for name, buffer in signature.inputs_to_buffers.items() if buffer in changed}
    for node in program.graph.nodes:
        if not isinstance(node.target, OpOverload):
            continue
        for argument, value in zip(schema_of(node.target).arguments, node.args, strict=False):
            if argument.is_write and isinstance(value, fx.Node):
                written.add(_storage_of(value).name)
        if is_batch_norm_in_training(node):  # its schema does not say that it writes
            written |= {value.name for value in node.args[3:5] if isinstance(value, fx.Node)}
    return written & set(signature.inputs_to_buffers)


def outputs_computed_from_floats(program: torch.export.ExportedProgram) -> list[bool]:
    """Return, for each output, whether floating-point numbers decide its values: only then may rounding change
    integers.
    """
    rounded: set[fx.Node] = set()
    for node in program.graph.nodes:  # in the order in which they run
        value = node.meta.get("val")
        is_float = isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())
        # a size does not depend on a tensor's values
        if is_float or (node.target not in _SIZES and not rounded.isdisjoint(node.all_input_nodes)):
            rounded.add(node)
    results = {node.name: node in rounded for node in program.graph.nodes}
    return [results.get(str(name), False) for name in program.graph_signature.user_outputs]


def is_batch_norm_in_training(node: fx.Node) -> bool:
    """Return whether a node normalises with the statistics of the batch and updates the running ones."""
    return node.target is torch.ops.aten.batch_norm.default and node.args[5] is True and node.args[3] is not None


def is_repeatable(program: torch.export.ExportedProgram) -> bool:
    """Return whether repeated runs give the same result: no state, and no random numbers."""
    return not written_buffers(program) and not any(map(_is_random, program.graph.nodes))


def _is_random(node: fx.Node) -> bool:
    """Return whether a node draws random numbers; attention and dropout do so only if they drop something."""
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
    """Return the node that owns the memory of which ``node`` is a view or in-place result."""
    while isinstance(node.target, OpOverload) and node.args and isinstance(node.args[0], fx.Node):
        if not any(result.alias_info is not None for result in schema_of(node.target).returns):
            break
        node = node.args[0]
    return node


# Checks for models that change their buffers in each call, which ONNX files and constant-folded code cannot.


Program = torch.export.ExportedProgram


def check_stateless(program: Program) -> None:
    """Raise ``TargetError`` for batch norms in training mode, and for buffers as :func:`check_kept_state` does."""
    for node in program.graph.nodes:
        if is_batch_norm_in_training(node):
            stack = list((node.meta.get("nn_module_stack") or {}).values())
            raise TargetError(
                f"{stack[-1][0] if stack else node.name} is a batch norm in training mode: it updates its statistics "
                "at each call, and the target keeps nothing between calls. Compile in eval mode (leave out "
                "skip_eval_set_mode), call eval() on this module, or choose InductorDeployment()."
            )
    check_kept_state(program)


def check_kept_state(program: Program) -> None:
    """Raise ``TargetError`` when an output depends on a buffer that the model changes in each call."""
    signature = program.graph_signature
    nodes = {node.name: node for node in program.graph.nodes}
    needed = _ancestors([nodes[name] for name in signature.user_outputs])
    state = sorted({signature.inputs_to_buffers[name] for name in written_buffers(program) if nodes[name] in needed})
    if state:
        raise TargetError(
            f"The model changes its buffers at each call and its outputs depend on them: {', '.join(state)}. The "
            "target keeps nothing between calls. Make them arguments and results of forward, or "
            "choose EagerDeployment()."
        )


def _ancestors(nodes: list[fx.Node]) -> set[fx.Node]:
    seen: set[fx.Node] = set()
    rest = copy.copy(nodes)
    while rest:
        node = rest.pop()
        if node not in seen:
            seen.add(node)
            # normalised with the statistics of the call, a batch norm only writes to those that it keeps
            kept = node.args[3:5] if is_batch_norm_in_training(node) else ()
            rest += [each for each in node.all_input_nodes if each not in kept]
    return seen


# Tensors whose memory other libraries can read.


def plain_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor itself if its memory is readable as it is: on the CPU, contiguous, without gradient, and no
    negated or conjugated view. Else a copy that is.
    """
    # the common case; the check takes half as long as an unneeded conversion
    if (
        tensor.is_cpu
        and tensor.is_contiguous()
        and not (tensor.requires_grad or tensor.is_neg() or (tensor.is_complex() and tensor.is_conj()))
    ):
        return tensor
    return tensor.detach().cpu().contiguous().resolve_conj().resolve_neg()
