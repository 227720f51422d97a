"""What calls leave behind: buffers that the first one builds, tensors that they write into, and changed arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench._torch_compat.tensors import version_of
from prepbench.inputs import Sample, arguments_by_name, named_leaves
from prepbench.interrupts import interruptible
from prepbench.objects.copy import Twin
from prepbench.objects.flatten import is_registered, register_nodes
from prepbench.objects.parts import LEAVES
from prepbench.objects.restore import is_written, same_bits
from prepbench.running.unchanged import own_copy, unchanged, without_output

_ROUNDS = 3


def built_buffers(before: Mapping[str, torch.Tensor], after: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the names of the buffers that a call made, or replaced by one of another shape or dtype."""
    return [
        name
        for name, value in after.items()
        if name not in before or (before[name].shape, before[name].dtype) != (value.shape, value.dtype)
    ]


def fill_caches_(model: torch.nn.Module, samples: Sequence[Sample]) -> list[str]:
    """Leave ``model`` with the caches that calls on all samples build, if a further call builds none.

    Only the modules that own such buffers change: their buffers of new shapes, and their attributes, which may say what
    the buffers are for. All else is as before, and so is everything where each call builds its buffers anew.

    Args:
        model: a twin, whose caches are to be captured as eager calls leave them.
        samples: its inputs.

    Returns:
        The names of the buffers that were built.
    """
    before = dict(model.named_buffers())
    left: dict[str, dict[str, Any]] = {}
    with torch.no_grad(), unchanged(model), interruptible():
        if not any(_is_settled(model, samples) for _ in range(_ROUNDS)):
            return []
        built = built_buffers(before, dict(model.named_buffers()))
        for owner in {name.rpartition(".")[0] for name in built}:
            attributes = vars(model.get_submodule(owner))
            prefix = f"{owner}." if owner else ""
            buffers = {
                name: before.get(prefix + name, value) if value is not None and prefix + name not in built else value
                for name, value in attributes["_buffers"].items()
            }
            names = attributes["_non_persistent_buffers_set"].copy()
            left[owner] = {**attributes, "_buffers": buffers, "_non_persistent_buffers_set": names}
    for owner, attributes in left.items():
        vars(model.get_submodule(owner)).update(attributes)
    return built


def _is_settled(model: torch.nn.Module, samples: Sequence[Sample]) -> bool:
    """Call the model on each sample; return whether no call built a buffer."""
    settled = True
    for sample in samples:
        start = dict(model.named_buffers())
        own_copy(sample).call(model)
        settled &= not built_buffers(start, dict(model.named_buffers()))
    return settled


# State outside of buffers: plain tensors of modules, and parameters, into which calls write.


class WrittenTensors:
    """Finds the tensors of a twin that calls write into and that are no buffers."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._before = [(value, version_of(value)) for _, _, value in self._plain()]

    def become_buffers_(self, sample: Sample) -> bool:
        """Turn them into buffers of the same names, which a graph hands on from call to call.

        Only parameters that a second call changes further are state: ``nn.Embedding(max_norm=...)`` writes the same
        numbers again.

        Returns:
            Whether there is any.
        """
        plain = {id(value) for value, version in self._before if version_of(value) != version}
        found = [(module, name, value) for module, name, value in self._plain() if id(value) in plain]
        state = self._growing(sample)
        found += [
            (module, name, state[id(value)])
            for module in self._model.modules()
            for name, value in module._parameters.items()
            if id(value) in state
        ]
        for module, name, value in found:
            delattr(module, name)
            module.register_buffer(name, value)
        return bool(found)

    def _plain(self) -> Iterator[tuple[torch.nn.Module, str, torch.Tensor]]:
        for module in self._model.modules():
            for name, value in vars(module).items():
                if type(value) is torch.Tensor:
                    yield module, name, value

    def _growing(self, sample: Sample) -> dict[int, torch.Tensor]:
        """Return the parameters into whose memory calls write and which a second call changes further, as the tensors
        of future buffers, by id.
        """
        written = [value for value in self._model.parameters() if is_written(value)]
        if not written:
            return {}
        memory = [value.detach() for value in written]
        with torch.no_grad(), unchanged(self._model), without_output(), interruptible():
            own_copy(sample).call(self._model)
            first = [value.clone() for value in memory]
            own_copy(sample).call(self._model)
            growing = [not same_bits(now, before) for now, before in zip(memory, first, strict=True)]
        return {id(value): own for value, own, is_state in zip(written, memory, growing, strict=True) if is_state}


# Find objects that several samples share and that a call fills: afterwards an empty cache is empty in none of them.


REMEDY = "Make one for each sample, and give copy.deepcopy(...) of it to calls that you make yourself."


def filled_for_all(model: torch.nn.Module, samples: Sequence[Sample]) -> str:
    """Return a sentence on an argument that several samples share and a call changes; "" if there is none.

    Runs the model once for each object that samples share, on copies.
    """
    holders: dict[tuple[str, int], list[Sample]] = {}
    for sample in samples:
        for name, value in arguments_by_name(model, sample.args, sample.kwargs).items():
            if is_registered(type(value)):
                holders.setdefault((name, id(value)), []).append(sample)
    for (name, _), (first, *others) in holders.items():
        if others and _changes(model, first, name):
            kind = type(arguments_by_name(model, first.args, first.kwargs)[name]).__name__
            return (
                f"inputs[{first.index}] and inputs[{others[0].index}] share one {kind} as {name}, and each call writes "
                "into it: both hold what the last call has left there."
            )
    return ""


def _changes(model: torch.nn.Module, sample: Sample, name: str) -> bool:
    """Return whether a call replaces tensors inside of an argument, or writes into them."""
    own = own_copy(sample)
    value = arguments_by_name(model, own.args, own.kwargs)[name]
    before = [(leaf, version_of(leaf)) for leaf in pytree.tree_leaves(value)]
    if _result(model, own) is _FAILED:
        return False
    after = pytree.tree_leaves(value)
    return len(after) != len(before) or any(
        now is not leaf or version_of(now) != version for now, (leaf, version) in zip(after, before, strict=True)
    )


def changed_arguments(model: torch.nn.Module, sample: Sample) -> tuple[str, ...]:
    """Return the paths of values that a call puts into its arguments, or takes out of them, and does not return.

    Runs the model once, on a copy; not at all where no argument is a container or an object.

    Example:
        >>> class Keeps(torch.nn.Module):
        ...     def forward(self, x, kept):
        ...         kept.append(2 * x)
        ...         return x
        >>> changed_arguments(Keeps(), Sample((torch.ones(1), [])))
        ('kept[0]',)
    """
    own = own_copy(sample)
    if all(isinstance(value, LEAVES) for value in arguments_by_name(model, own.args, own.kwargs).values()):
        return ()
    before = dict(named_leaves(model, own))
    result = _result(model, own)
    if result is _FAILED:
        return ()
    register_nodes((own.args, own.kwargs))
    after = dict(named_leaves(model, own))
    put = [path for path, leaf in after.items() if path not in before or leaf is not before[path]]
    if not put:
        return tuple(path for path in before if path not in after)
    returned = {id(leaf) for leaf in pytree.tree_leaves(result)}
    lost = [path for path in put if id(after[path]) not in returned]
    has_tensors = any(isinstance(after[path], torch.Tensor) for path in lost)
    return tuple(lost) if has_tensors or len(lost) == len(put) else ()  # else counters beside what is returned


_FAILED = object()


def _result(model: torch.nn.Module, own: Sample) -> Any:
    """Call a twin with the arguments themselves; a model that fails says so when it is captured."""
    twin = Twin(model).model
    try:
        with unchanged(twin), without_output(), torch.no_grad():
            return own.call(twin)
    except Exception:  # of the user's model
        return _FAILED
