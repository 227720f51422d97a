"""Which modules of a model are layers that can be quantized."""

from __future__ import annotations

from torch import nn

from prepbench.prepare.modules import Operator

_TABLES = (nn.Embedding, nn.EmbeddingBag)
# prepared functions that take a weight, which is a parameter of the module around them
_FUNCTIONS = ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "linear")


def quantizable_layers(model: nn.Module, *, tables: bool = False) -> list[str]:
    """FQNs of the layers that can be quantized, in the order of ``named_modules()``; a shared layer once.

    Args:
        model: the model.
        tables: also embeddings, which can be where weights alone are quantized.

    Example:
        >>> quantizable_layers(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
        ['0']
    """
    return [fqn for fqn, module in model.named_modules() if is_quantizable(module) or (tables and is_table(module))]


def is_quantizable(module: nn.Module) -> bool:
    """Whether a module has a weight of two dims or more, under a name such as ``weight`` or ``in_proj_weight``.

    Users' own linear layers, attention and LSTMs have one; embeddings only look theirs up.
    """
    if isinstance(module, _TABLES):
        return False
    if isinstance(module, Operator):
        return module.operation is not None and module.operation.name in _FUNCTIONS
    return any(
        value is not None and value.ndim >= 2 and (name.startswith("weight") or name.endswith("_weight"))
        for name, value in module._parameters.items()
    )


def is_table(module: nn.Module) -> bool:
    """Whether it is an embedding whose weights can be quantized: one that does not write to them."""
    return isinstance(module, nn.Embedding) and module.max_norm is None
