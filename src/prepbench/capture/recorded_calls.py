"""What every submodule receives and returns on the samples: one forward per sample, of which only metadata is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from prepbench.capture.object_nodes import register_nodes
from prepbench.capture.patching import patched
from prepbench.capture.unchanged import own_copy, unchanged
from prepbench.inputs import Sample


@dataclass(frozen=True)
class TensorLeaf:
    """One tensor that was seen: metadata only.

    ``layout`` is ``"contiguous"``, ``"channels_last"`` or ``"strided"``; ``changed`` says that the call wrote into it.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    stride: tuple[int, ...]
    device: torch.device
    layout: str = "contiguous"
    changed: bool = False

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorLeaf:
        shape = tuple(int(size) for size in tensor.shape)
        stride = tuple(tensor.stride()) if tensor.layout is torch.strided else ()
        return cls(shape, tensor.dtype, stride, tensor.device, _layout(tensor))


def _layout(tensor: torch.Tensor) -> str:
    if tensor.layout is not torch.strided:
        return str(tensor.layout)
    if tensor.is_contiguous():
        return "contiguous"
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return "channels_last"
    return "strided"


@dataclass(frozen=True)
class RecordedCall:
    """One call of one submodule.

    Attributes:
        inputs: the flattened ``(args, kwargs)``: a :class:`TensorLeaf` for a tensor, else the Python value.
        input_spec: the pytree of ``(args, kwargs)``.
        outputs: the flattened result, in the same way.
        output_spec: the pytree of the result.
        sample: index of the sample that made the call.
        restructured: the call changed the structure of its own arguments (a cache that grew).
    """

    inputs: tuple[Any, ...]
    input_spec: pytree.TreeSpec
    outputs: tuple[Any, ...]
    output_spec: pytree.TreeSpec
    sample: int = 0
    restructured: bool = False


def record_calls(model: torch.nn.Module, samples: Iterable[Sample]) -> dict[str, list[RecordedCall]]:
    """Run ``model`` once per sample and note what each submodule received and returned, by fully qualified name.

    The model runs in its present mode under ``no_grad``; its buffers, attributes, the random state and the samples'
    tensors are as before afterwards. A module that is registered under several names appears under the first. The name
    of ``model`` itself is "".

    Raises:
        Exception: whatever the model raises on a sample.

    Example:
        >>> calls = record_calls(torch.nn.Sequential(torch.nn.Linear(4, 2)), [Sample((torch.ones(3, 4),))])
        >>> calls["0"][0].outputs[0].shape
        (3, 2)
    """
    calls: dict[str, list[RecordedCall]] = {}
    for sample in samples:
        with unchanged(model), torch.no_grad(), ExitStack() as stack:
            for fqn, module in replaceable_modules(model):
                forward = _recording(module.forward, calls.setdefault(fqn, []), sample.index)
                stack.enter_context(replaced_forward(model, fqn, forward))
            own_copy(sample).call(model)
    return {fqn: seen for fqn, seen in calls.items() if seen}


def replaceable_modules(model: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    """The modules whose forward Python can replace, by name: all but those inside scripted modules."""
    modules = list(model.named_modules())
    scripted = [fqn for fqn, module in modules if isinstance(module, torch.jit.ScriptModule)]
    return [(fqn, module) for fqn, module in modules if not any(fqn.startswith(f"{outer}.") for outer in scripted)]


class _StandIn(torch.nn.Module):
    """Takes the place of a scripted module, whose forward runs outside Python and cannot be replaced on it."""

    def __init__(self, original: torch.nn.Module, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.__dict__["original"] = original
        self.forward = forward

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["original"], name)


@contextmanager
def replaced_forward(model: torch.nn.Module, fqn: str, forward: Callable[..., Any]) -> Iterator[None]:
    """Inside the block, calls of the submodule ``fqn`` run ``forward``."""
    module = model.get_submodule(fqn)
    if not isinstance(module, torch.jit.ScriptModule):
        with patched(module, "forward", forward):
            yield
        return
    parent, _, name = fqn.rpartition(".")
    children = model.get_submodule(parent)._modules
    children[name] = _StandIn(module, forward)
    try:
        yield
    finally:
        children[name] = module


def _recording(forward: Callable[..., Any], calls: list[RecordedCall], sample: int) -> Callable[..., Any]:
    def recorded(*args: Any, **kwargs: Any) -> Any:
        register_nodes((args, kwargs))
        leaves, spec = pytree.tree_flatten((args, kwargs))
        before = [_leaf(leaf) for leaf in leaves]
        versions = [
            leaf._version if isinstance(leaf, torch.Tensor) and not leaf.is_inference() else 0 for leaf in leaves
        ]
        output = forward(*args, **kwargs)
        after, spec_after = pytree.tree_flatten((args, kwargs))
        restructured = spec_after != spec or any(
            a is not b for a, b in zip(after, leaves, strict=True) if isinstance(b, torch.Tensor)
        )
        inputs = tuple(
            replace(seen, changed=True)
            if isinstance(leaf, torch.Tensor) and not leaf.is_inference() and leaf._version != version
            else seen
            for seen, leaf, version in zip(before, leaves, versions, strict=True)
        )
        register_nodes(output)
        flat, output_spec = pytree.tree_flatten(output)
        calls.append(RecordedCall(inputs, spec, tuple(map(_leaf, flat)), output_spec, sample, restructured))
        return output

    # code that inspects self.forward must still see the user's signature
    recorded.__wrapped__ = forward  # type: ignore[attr-defined]
    return recorded


def _leaf(leaf: Any) -> Any:
    return TensorLeaf.of(leaf) if isinstance(leaf, torch.Tensor) else leaf
