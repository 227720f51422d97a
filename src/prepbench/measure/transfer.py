"""Save one sample in two files, without pickle: its tensors as safetensors, everything else as JSON.

Objects such as caches cannot be JSON. Of a sample with such objects only the leaves are written, for each candidate
in the order of its arguments.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench.errors import InputError
from prepbench.inputs import Sample
from prepbench.storage import temporary_space, write_file

_TENSORS = "inputs.safetensors"
_STRUCTURE = "inputs.json"
_FORMATS = {"channels_last": torch.channels_last, "channels_last_3d": torch.channels_last_3d}


def save_sample(sample: Sample, folder: Path) -> None:
    """Write ``sample`` to ``folder``, with the device and memory format of each tensor, on which latency depends.

    Raises:
        StorageError: the folder cannot be written to.
        InputError: a leaf is neither a tensor nor None, bool, int, float or str, or a container is unknown to pytree.
    """
    leaves, spec = pytree.tree_flatten((sample.args, sample.kwargs))
    try:
        structure = pytree.treespec_dumps(spec)
    except NotImplementedError as error:
        raise InputError(f"the containers of the inputs cannot be written as JSON: {error}") from error
    _save(leaves, structure, folder)


def save_leaves(leaves: Sequence[Any], folder: Path) -> None:
    """Write the leaves of a call, in the order of the candidate's arguments; raises what :func:`save_sample` does."""
    _save(leaves, None, folder)


def _save(leaves: Sequence[Any], structure: str | None, folder: Path) -> None:
    from safetensors.torch import save

    tensors: dict[str, torch.Tensor] = {}
    described: list[dict[str, Any]] = []
    for position, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            tensors[str(position)] = leaf.detach().cpu().contiguous().clone()
            described.append({"tensor": str(position), "device": str(leaf.device), "format": _memory_format(leaf)})
        elif leaf is None or isinstance(leaf, bool | int | float | str):
            described.append({"value": leaf})
        else:
            raise InputError(f"an input of type {type(leaf).__name__} cannot be sent to another process without pickle")
    with temporary_space():
        folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / _TENSORS, save(tensors))
    write_file(folder / _STRUCTURE, json.dumps({"structure": structure, "leaves": described}))


def load_sample(folder: Path) -> Sample:
    """Read a sample that :func:`save_sample` wrote."""
    leaves, structure = _load(folder)
    args, kwargs = pytree.tree_unflatten(leaves, pytree.treespec_loads(structure))
    return Sample(tuple(args), kwargs)


def load_call(folder: Path, candidate: Any) -> Callable[[], Any]:
    """Return a call of a candidate with the inputs that :func:`save_sample` or :func:`save_leaves` wrote for it."""
    leaves, structure = _load(folder)
    if structure is not None:
        return functools.partial(load_sample(folder).call, candidate)
    from prepbench.calls.call_spec import outputs_of, runtime_and_calls

    _, spec = runtime_and_calls(candidate)
    return lambda: spec.result(outputs_of(candidate, leaves))


def _load(folder: Path) -> tuple[list[Any], Any]:
    from safetensors.torch import load_file

    tensors = load_file(folder / _TENSORS)
    document = json.loads((folder / _STRUCTURE).read_text(encoding="utf-8"))
    return [_leaf(entry, tensors) for entry in document["leaves"]], document["structure"]


def _leaf(entry: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Any:
    if "tensor" not in entry:
        return entry["value"]
    tensor = tensors[entry["tensor"]].to(entry["device"])
    return tensor.contiguous(memory_format=_FORMATS[entry["format"]]) if entry["format"] else tensor


def _memory_format(tensor: torch.Tensor) -> str | None:
    if tensor.is_contiguous():
        return None
    ranks = {4: "channels_last", 5: "channels_last_3d"}
    name = ranks.get(tensor.dim())
    return name if name and tensor.is_contiguous(memory_format=_FORMATS[name]) else None


def inputs_of(artifact: Path) -> Path:
    """Return the folder of the inputs that only one candidate uses."""
    return artifact.with_name(f"{artifact.name}-inputs")
