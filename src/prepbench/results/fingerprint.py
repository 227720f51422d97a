"""The identity of a model: its modules and tensors by name, and a digest of their values."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

import torch
from torch import nn

from prepbench.document.bench import SavedModule, SavedTensor
from prepbench.errors import printable

_BLOCK = 2**26  # bytes that are read at a time


def modules_of(model: nn.Module) -> tuple[SavedModule, ...]:
    """Return the modules of a model with their own parameters and buffers, in ``named_modules()`` order."""
    return tuple(
        SavedModule(printable(fqn), printable(type(module).__name__), tuple(_tensors(module)))
        for fqn, module in model.named_modules()
    )


def structure_of(modules: Iterable[SavedModule]) -> str:
    """Return a digest of the names and shapes."""
    digest = hashlib.sha256()
    for module in modules:
        digest.update(repr(module).encode(errors="surrogatepass"))
    return digest.hexdigest()[:16]


def fingerprint(model: nn.Module) -> str:
    """Return ``"<structure>-<values>"``: equal for models with equal modules, names, shapes and values.

    Tensors without values, as on the meta device, count by their shapes only.
    """
    digest = hashlib.sha256()
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name in sorted(tensors):
        digest.update(name.encode(errors="surrogatepass"))
        _add_values(digest.update, tensors[name])
    return f"{structure_of(modules_of(model))}-{digest.hexdigest()[:16]}"


def _tensors(module: nn.Module) -> Iterable[SavedTensor]:
    own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    for name, tensor in own:
        shape = () if _is_unmade(tensor) else tuple(tensor.shape)
        yield SavedTensor(printable(name), shape, str(tensor.dtype).removeprefix("torch."))


def _is_unmade(tensor: torch.Tensor) -> bool:
    """Return whether it is an uninitialized parameter or buffer of a lazy module."""
    return isinstance(tensor, nn.UninitializedParameter | nn.UninitializedBuffer)


def _add_values(update: Callable[[bytes], None], tensor: torch.Tensor) -> None:
    if _is_unmade(tensor) or tensor.is_meta or tensor.layout != torch.strided:
        return
    tensor = tensor.detach()
    flat = tensor.contiguous().reshape(-1).view(torch.uint8) if tensor.dim() else tensor.reshape(1).view(torch.uint8)
    for start in range(0, flat.numel(), _BLOCK):
        update(flat[start : start + _BLOCK].cpu().numpy().tobytes())
