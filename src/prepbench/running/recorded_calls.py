"""What every submodule receives and returns on the samples: one forward per sample, of which only metadata is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench._torch_compat.tensors import memory_of, version_of
from prepbench.inputs import Sample
from prepbench.patching import patched
from prepbench.running.object_nodes import count_registered, opened, register_nodes
from prepbench.running.unchanged import own_copy, unchanged

_NUMBERS = (bool, int, float, complex, str, type(None))


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
class Given:
    """What a call left in its arguments where it found it: the input at this place."""

    index: int


@dataclass(frozen=True)
class RecordedCall:
    """One call of one submodule.

    Attributes:
        inputs: the flattened ``(args, kwargs)``: a :class:`TensorLeaf` for a tensor, else the Python value.
        input_spec: the pytree of ``(args, kwargs)``.
        outputs: the flattened result, in the same way; see :func:`flatten_result`.
        output_spec: the pytree of the result.
        sample: index of the sample that made the call.
        restructured: the call put other tensors into its own arguments (a cache that grew); the result is then the
            output and the arguments after the call.
        shared: which tensors of the call share memory, in words; empty if none do.
    """

    inputs: tuple[Any, ...]
    input_spec: pytree.TreeSpec
    outputs: tuple[Any, ...]
    output_spec: pytree.TreeSpec
    sample: int = 0
    restructured: bool = False
    shared: str = ""


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
    chosen = list(samples)
    known = count_registered()
    calls = _record_all(model, chosen)
    # classes that were met for the first time were not looked into before that
    return calls if count_registered() == known else _record_all(model, chosen)


def _record_all(model: torch.nn.Module, samples: Sequence[Sample]) -> dict[str, list[RecordedCall]]:
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
        before, versions = [_leaf(leaf) for leaf in leaves], [_version(leaf) for leaf in leaves]
        places = dict(pytree.tree_leaves_with_path(opened((args, kwargs))))
        output = forward(*args, **kwargs)
        restructured = _is_restructured(args, kwargs, leaves, spec)
        inputs = tuple(
            replace(seen, changed=True) if _version(leaf) != version else seen
            for seen, leaf, version in zip(before, leaves, versions, strict=True)
        )
        flat, output_spec = flatten_result(output, (args, kwargs) if restructured else None)
        outputs = [_leaf(leaf) for leaf in flat]
        if restructured:
            kept = _left_where_they_were(places, (args, kwargs), leaves)
            outputs[len(outputs) - len(kept) :] = [
                seen if index is None else Given(index)
                for seen, index in zip(outputs[len(outputs) - len(kept) :], kept, strict=True)
            ]
        new = [leaf for leaf, seen in zip(flat, outputs, strict=True) if not isinstance(seen, Given)]
        shared = _shared_memory(leaves, inputs, new)
        calls.append(RecordedCall(inputs, spec, tuple(outputs), output_spec, sample, restructured, shared))
        return output

    # code that inspects self.forward must still see the user's signature
    recorded.__wrapped__ = forward  # type: ignore[attr-defined]
    return recorded


def flatten_result(output: Any, arguments: Any = None) -> tuple[list[Any], pytree.TreeSpec]:
    """The leaves of what a call gives back: its output, and its arguments where the call put others into them."""
    register_nodes(output)
    return pytree.tree_flatten(opened(output if arguments is None else (output, arguments)))


def _version(leaf: Any) -> int:
    return version_of(leaf) if isinstance(leaf, torch.Tensor) else 0


def _is_restructured(args: Any, kwargs: Any, leaves: list[Any], spec: pytree.TreeSpec) -> bool:
    register_nodes((args, kwargs))
    after, spec_after = pytree.tree_flatten((args, kwargs))
    return spec_after != spec or any(
        a is not b for a, b in zip(after, leaves, strict=True) if isinstance(b, torch.Tensor)
    )


def _left_where_they_were(before: dict[Any, Any], arguments: Any, inputs: Sequence[Any]) -> list[int | None]:
    """For each leaf of ``arguments`` after a call the input that it is, if it is still the object that it was there."""
    indices = {id(leaf): index for index, leaf in enumerate(inputs) if not isinstance(leaf, _NUMBERS)}
    return [
        indices.get(id(leaf)) if before.get(path) is leaf else None
        for path, leaf in pytree.tree_leaves_with_path(opened(arguments))
    ]


def _shared_memory(leaves: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> str:
    """What a graph of separate tensors would lose if one of them were written into later."""
    storages = {_storage(leaf): index for index, leaf in enumerate(leaves) if _storage(leaf) is not None}
    for index, leaf in enumerate(leaves):
        first = storages.get(_storage(leaf), index)
        changed = any(isinstance(inputs[i], TensorLeaf) and inputs[i].changed for i in (index, first))
        if changed and leaves[first] is not leaf:
            return "writes into one of two arguments that share memory"
    seen: dict[Any, Any] = {}
    for leaf in outputs:
        storage = _storage(leaf)
        if storage is None:
            continue
        if storage in storages:
            return "returns " + ("its argument" if any(leaf is given for given in leaves) else "a view of its argument")
        if seen.setdefault(storage, leaf) is not leaf:
            return "returns two tensors that share memory"
    return ""


def _storage(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided or leaf.numel() == 0:
        return None
    return memory_of(leaf)


def _leaf(leaf: Any) -> Any:
    return TensorLeaf.of(leaf) if isinstance(leaf, torch.Tensor) else leaf
