"""A cheap check whether the tensors of a model were written to."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable

import torch
from torch import nn

from prepbench._torch_compat.tensors import version_of

_LOOKED_AT = 64  # values of each tensor, about, spread over it


def value_mark(model: nn.Module) -> Hashable:
    """Return a value that changes once a model is trained, loaded or partly replaced; takes milliseconds at any size.

    It holds which tensors there are, how often torch saw them written, and some of their values: ``weight.data`` and
    NumPy write unseen. A :func:`prepbench.running.fingerprint.fingerprint` reads all values.
    """
    digest, seen = hashlib.sha256(), []
    for tensor in (*model.parameters(), *model.buffers()):
        is_made = not nn.parameter.is_lazy(tensor)
        seen.append((id(tensor), version_of(tensor) if is_made else -1))
        digest.update(_some_values(tensor) if is_made else b"")
    return tuple(seen), digest.digest()


@torch.no_grad()
def _some_values(tensor: torch.Tensor) -> bytes:
    """Return the bytes of a few values; none for tensors without plain values."""
    is_plain = type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout == torch.strided
    if not is_plain or tensor.is_meta or not tensor.numel():
        return b""
    # along each axis, because to flatten a transposed tensor copies it
    count = round(_LOOKED_AT ** (1 / max(tensor.ndim, 1)))
    some = tensor.detach()[tuple(slice(None, None, -(-size // count)) for size in tensor.shape)]
    return some.resolve_conj().resolve_neg().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
