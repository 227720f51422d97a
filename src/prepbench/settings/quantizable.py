"""Find the modules and tensors of a model that are quantizable layers."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

import torch
from torch import nn
from torch.nn.utils import parametrize

from prepbench.prepare.modules import Operator

_TABLES = (nn.Embedding, nn.EmbeddingBag)
# prepared functions that take a weight, which is a parameter of the module around them
_FUNCTIONS = ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "linear")


def quantizable_layers(model: nn.Module, *, tables: bool = False, whole: bool = False) -> list[str]:
    """Return the FQNs of the quantizable layers, in the order of ``named_modules()``; a shared layer once.

    The layers of an LSTM, GRU or RNN that has several go by the name of their first weight.

    Args:
        model: the model.
        tables: include embeddings, which weight-only settings can quantize.
        whole: give recurrent modules of several layers as one.

    Example:
        >>> quantizable_layers(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
        ['0']
    """
    found: list[str] = []
    for fqn, module in model.named_modules():
        if is_quantizable(module) or (tables and is_table(module)):
            parts = [] if whole else recurrent_parts(module)
            found += [_joined(fqn, name) for name in parts] or [fqn]
    return found


def recurrent_parts(module: object) -> list[str]:
    """Return the names of the first weight of each layer of an LSTM, GRU or RNN with several layers; else none.

    Example:
        >>> recurrent_parts(nn.LSTM(2, 3, num_layers=2))
        ['weight_ih_l0', 'weight_ih_l1']
    """
    if not isinstance(module, nn.RNNBase) or module.num_layers < 2 or parametrize.is_parametrized(module):
        return []
    names = [f"weight_ih_l{layer}" for layer in range(module.num_layers)]
    return names if all(name in module._parameters for name in names) else []


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def is_quantizable(module: nn.Module) -> bool:
    """Return whether a module has a weight of two dims or more, under a name such as ``weight`` or
    ``in_proj_weight``.

    Users' own linear layers, attention and LSTMs have one; embeddings only look rows up in theirs.
    """
    if isinstance(module, _TABLES):
        return False
    if isinstance(module, Operator):
        return module.operation is not None and module.operation.name in _FUNCTIONS
    if isinstance(module, parametrize.ParametrizationList):
        return False  # its tensors are parts of a weight of the module around it
    if parametrize.is_parametrized(module):
        parts = getattr(module, "parametrizations", {})
        if any(_is_weights_name(name) and _has_matrix(parts[name]) for name in parts):
            return True
    return any(
        value is not None and value.ndim >= 2 and _is_weights_name(name) for name, value in module._parameters.items()
    )


def _is_weights_name(name: str) -> bool:
    return name.startswith("weight") or name.endswith("_weight")


def _has_matrix(module: nn.Module) -> bool:
    return any(value.ndim >= 2 for value in module.parameters())


def other_weights(model: nn.Module) -> dict[str, nn.Module | torch.Tensor]:
    """Return further possible layers beside :func:`quantizable_layers`, by FQN, in the order of ``named_modules()``.

    These are the layers of recurrent modules with several, and tensors of two dims or more, under any name, in lists
    and dicts of parameters, and in buffers. The only
    such tensor of a module without submodules is named like that module, others by their own FQN. Only the graph
    shows whether anything multiplies by them.

    Example:
        >>> model = nn.Module()
        >>> model.kernels = nn.ParameterList([torch.ones(4, 2), torch.ones(2, 2)])
        >>> list(other_weights(model))
        ['kernels.0', 'kernels.1']
    """
    found: dict[str, nn.Module | torch.Tensor] = {}
    seen: set[int] = set()
    for module in model.modules():
        known = is_quantizable(module) or isinstance(module, _TABLES)
        if known or isinstance(module, parametrize.ParametrizationList):
            seen.update(id(value) for value in module.parameters())
    # in a prepared model the functions that take these tensors are modules, and these are the layers
    functions = [
        fqn for fqn, module in model.named_modules() if isinstance(module, Operator) and is_quantizable(module)
    ]
    around = {fqn.rpartition(".")[0] for fqn in functions}
    for fqn, module in model.named_modules():
        if fqn in around:
            continue
        found.update({_joined(fqn, name): getattr(module, name) for name in recurrent_parts(module)})
        tensors = {name: value for name, value in _matrices(module) if id(value) not in seen}
        seen.update(map(id, tensors.values()))
        is_container = isinstance(module, nn.ParameterList | nn.ParameterDict)
        if len(tensors) == 1 and fqn and not is_container and next(module.children(), None) is None:
            found[fqn] = module
        else:
            found.update({_joined(fqn, name): value for name, value in tensors.items()})
    return found


def _matrices(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield a module's own tensors that have two or more dims of size above 1."""
    for name, value in (*module._parameters.items(), *module._buffers.items()):
        if value is not None and value.is_floating_point() and sum(size > 1 for size in value.shape) > 1:
            yield name, value


def layer_named(model: nn.Module, fqn: str) -> nn.Module | torch.Tensor:
    """Return the module, or the tensor that is a layer by itself."""
    path, _, name = fqn.rpartition(".")
    owner = module_named(model, path)
    tensors = {**dict(owner.named_buffers(recurse=False)), **dict(owner.named_parameters(recurse=False))}
    return module_named(model, fqn) if tensors.get(name) is None else tensors[name]


def module_named(model: nn.Module, fqn: str) -> nn.Module:
    """Return a module by its name, also of a scripted model, which has no ``get_submodule``."""
    module: nn.Module = attrgetter(fqn)(model) if fqn else model
    return module


def tensors_of_layer(model: nn.Module, fqn: str) -> list[torch.Tensor]:
    """Return the tensors of a layer: a module's own ones, and the parts of those that are parametrized."""
    layer = layer_named(model, fqn)
    if isinstance(layer, torch.Tensor):
        owner, _, name = fqn.rpartition(".")
        module = module_named(model, owner)
        if name not in recurrent_parts(module):
            return [layer]
        number = name.removeprefix("weight_ih")
        return [value for key, value in module.named_parameters() if key.removesuffix("_reverse").endswith(number)]
    inner = getattr(layer, "parametrizations", None)
    parts = inner.parameters() if isinstance(inner, nn.Module) else ()
    return [*layer.parameters(recurse=isinstance(layer, Operator)), *parts]


def module_of_layer(model: nn.Module, fqn: str) -> str:
    """Return the FQN of the module that computes a layer: its own, or that of the recurrent module it is a part of."""
    owner, _, name = fqn.rpartition(".")
    layer = layer_named(model, fqn)
    is_part = isinstance(layer, torch.Tensor) and name in recurrent_parts(module_named(model, owner))
    return owner if is_part else fqn


def layers_to_quantize(model: nn.Module) -> list[str]:
    """Return the FQNs of all layers that settings may name: modules with weights, embeddings, :func:`other_weights`."""
    others = other_weights(model)
    found: list[str] = []
    for fqn, module in model.named_modules():
        if (fqn in others or is_quantizable(module) or is_table(module)) and not recurrent_parts(module):
            found.append(fqn)
        found += [name for name, value in others.items() if value is not module and name.rpartition(".")[0] == fqn]
    return list(dict.fromkeys(found))


def is_table(module: object) -> bool:
    """Return whether it is an embedding whose weights can be quantized: one that does not write to them."""
    return isinstance(module, nn.Embedding) and module.max_norm is None
