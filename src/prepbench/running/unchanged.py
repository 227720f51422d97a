"""Run a model without side effects: state, random numbers and tensors are restored, results recorded."""

from __future__ import annotations

import copy
import io
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from prepbench._torch_compat import pytree
from prepbench._torch_compat.generators import generator_kept, is_drawn_from
from prepbench._torch_compat.modes import fast_paths_off, functorch_levels_kept
from prepbench.errors import InputError, sentence
from prepbench.inputs import Sample
from prepbench.internal_errors import raise_if_internal
from prepbench.interrupts import interruptible
from prepbench.objects.compare import ROUNDED, Outcome, difference
from prepbench.objects.flatten import register_nodes, tensors_in
from prepbench.objects.parts import LEAVES
from prepbench.objects.restore import tensors_kept, tensors_of
from prepbench.patching import output_here, undoing, warnings_ignored_here


class NotedState:
    """The state of a model, recorded once and restored after each of several runs.

    For a model that no other code changes between these runs, such as a twin.

    Example:
        >>> model, samples = nn.BatchNorm1d(4).train(), [pb.Sample((torch.ones(n, 4),)) for n in (2, 3)]
        >>> noted = NotedState(model)
        >>> for sample in samples:
        ...     with noted.unchanged():
        ...         _ = sample.call(model)
        >>> int(model.num_batches_tracked)
        0
    """

    def __init__(self, model: torch.nn.Module) -> None:
        parameters, others = tensors_of(model)
        _check_materialised(model, [*parameters, *others])
        self._devices = sorted({tensor.device.index for tensor in parameters if tensor.is_cuda})
        self._steps = tuple(tensors_kept(model, parameters, others))

    @contextmanager
    def unchanged(self, *, seed: int | None = None) -> Iterator[None]:
        """Restore attributes, buffer values, the training flags and every random number generator after the block.

        The model computes what its graph does: without the fast path of torch's encoder layers.

        Args:
            seed: the seed of torch's random numbers inside the block.
        """
        with undoing() as undo:
            undo.add_all(self._steps)
            with numbers_kept(self._devices, seed=seed), fast_paths_off():
                yield


@contextmanager
def unchanged(model: torch.nn.Module, *, seed: int | None = None) -> Iterator[None]:
    """Restore the model's state and random numbers after the block, by :class:`NotedState`.

    Args:
        model: whose forward runs in the block.
        seed: the seed of torch's random numbers inside the block.
    """
    with NotedState(model).unchanged(seed=seed):
        yield


def _check_materialised(model: torch.nn.Module, tensors: list[torch.Tensor]) -> None:
    if not any(map(torch.nn.parameter.is_lazy, tensors)):
        return
    for fqn, parameter in (*model.named_parameters(), *model.named_buffers()):
        if torch.nn.parameter.is_lazy(parameter):
            raise InputError(
                f"{fqn} has no size yet, because its lazy module has never run, and running it would change the model. "
                "Call the model once on a sample input first."
            )


def own_copy(sample: Sample, *, keeps_sizes: bool = False) -> Sample:
    """Return the sample with cloned tensors, so that operations in place do not reach the caller's; strides stay the
    same, and a tensor that is given twice stays one.

    Objects that hold tensors are copied as well, because the model may put others into them.

    Args:
        sample: what is copied.
        keeps_sizes: as for :meth:`prepbench.inputs.Sample.map`: a call that is compared with others is the user's own.

    Raises:
        InputError: a class of tensors cannot be copied.
    """
    register_nodes((sample.args, sample.kwargs))
    copies: dict[int, torch.Tensor] = {}

    def own(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return _own_object(leaf)
        if id(leaf) not in copies:
            copies[id(leaf)] = _own(leaf, sample.index)
        return copies[id(leaf)]

    return sample.map(own, keeps_sizes=keeps_sizes)


def _own_object(leaf: Any) -> Any:
    """Return a copy of an object that holds no tensors yet, such as an empty cache; other values as they are."""
    if (
        isinstance(leaf, LEAVES)
        or callable(leaf)
        or type(leaf).__module__ == "builtins"
        or not hasattr(leaf, "__dict__")
    ):
        return leaf
    try:
        return copy.copy(leaf)
    except Exception as error:  # of the user's class
        raise_if_internal(error)
        return leaf


def _own(tensor: torch.Tensor, index: int) -> torch.Tensor:
    try:
        return _clone(tensor, _with_strides)
    except Exception as error:
        if type(tensor) in (torch.Tensor, torch.nn.Parameter):  # such as too little memory
            raise
        raise InputError(
            f"Sample {index} holds a {type(tensor).__name__} that cannot be copied: {type(error).__name__}: "
            f"{sentence(error)} Models run on copies of samples, so that yours stay as they are: mend its detach() or "
            "clone(), or give a plain tensor: x.as_subclass(torch.Tensor)."
        ) from error


def dense_copy(sample: Sample) -> Sample:
    """Return the sample with cloned tensors that are dense, without gaps as in a slice of a larger tensor."""
    return sample.map(lambda leaf: _clone(leaf, torch.clone) if isinstance(leaf, torch.Tensor) else leaf)


def detached_copy(value: Any) -> Any:
    """Return ``value`` with cloned tensors that have no gradients."""
    return pytree.tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf, value)


def _clone(tensor: torch.Tensor, copied: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        # an integer tensor cannot require gradients
        return copied(tensor.detach()).requires_grad_(tensor.requires_grad)


def _with_strides(tensor: torch.Tensor) -> torch.Tensor:
    copied = tensor.clone()
    if tensor.layout is not torch.strided or copied.stride() == tensor.stride() or _overlaps(tensor):
        return copied
    same = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return same.copy_(tensor)


def _overlaps(tensor: torch.Tensor) -> bool:
    """Return whether two entries may share memory, as those of an expanded tensor do."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False


# Restore random number generators after a run.
#
# All threads share the generators of torch, NumPy and Python. So only used generators are restored, and one that
# another thread seeded meanwhile keeps its seed, even an equal one. It is unknown which thread drew a number: other
# threads that draw without seeding during a block may draw the same numbers again.


@contextmanager
def numbers_kept(devices: Sequence[int] = (), *, seed: int | None = None) -> Iterator[None]:
    """Restore the generators' states after the block.

    A forward that seeds a generator itself leaves it seeded, as it does in eager mode.

    Args:
        devices: indices of the CUDA devices whose generators are kept, too.
        seed: the seed of torch's generators inside the block, so that two runs draw the same numbers.

    Example:
        >>> with numbers_kept(seed=0):
        ...     first = torch.rand(1)
        >>> with numbers_kept(seed=0):
        ...     bool(torch.rand(1) == first)
        True
    """
    generators = [torch.default_generator, *(torch.cuda.default_generators[index] for index in devices)]
    with undoing() as undo:
        undo.add(_python_kept())
        undo.add(_numpy_kept())
        for generator in generators:
            undo.add(generator_kept(generator, seed))
            if seed is not None:
                generator.manual_seed(seed)
        yield


def _python_kept() -> Callable[[], None]:
    state = random.getstate()

    def put_back() -> None:
        now = random.getstate()
        if now != state and is_drawn_from(state[1], now[1]):
            random.setstate(state)

    return put_back


def _numpy_kept() -> Callable[[], None]:
    state: Any = np.random.get_state()

    def put_back() -> None:
        now: Any = np.random.get_state()
        if now[0] != state[0] or (now[2:] == state[2:] and np.array_equal(now[1], state[1])):
            return
        if is_drawn_from([*state[1], state[2]], [*now[1], now[2]]):
            np.random.set_state(state)

    return put_back


# Run a model or a program on a sample, and record everything that the call changes.


def run(function: Callable[..., Any], sample: Sample, model: torch.nn.Module) -> Any:
    """Return the output on one sample under ``no_grad``; ``model``, sample and random state stay as they are."""
    with torch.no_grad(), unchanged(model), functorch_levels_kept(), interruptible():
        # what a model returns may be one of its buffers, which unchanged() resets
        return detached_copy(own_copy(sample, keeps_sizes=True).call(function))


@contextmanager
def without_output() -> Iterator[None]:
    """Drop the output that the model prints in this thread during the block."""
    with output_here(io.StringIO()), warnings_ignored_here():
        yield


def outcome(
    function: Callable[..., Any], sample: Sample, model: torch.nn.Module, noted: NotedState | None = None
) -> Outcome:
    """Return all effects of one call under ``no_grad``, and undo them; ``noted`` is the model's state, if known."""
    own = own_copy(sample, keeps_sizes=True)
    given = {i: leaf for i, leaf in enumerate(pytree.tree_leaves((own.args, own.kwargs))) if _is_tensor(leaf)}
    with torch.no_grad(), (noted or NotedState(model)).unchanged(), functorch_levels_kept(), interruptible():
        output = detached_copy(own.call(function))
        return Outcome(output, detached_copy(given), detached_copy(dict(model.named_buffers())))


def repeated_outcome(function: Callable[..., Any], sample: Sample, model: torch.nn.Module) -> Outcome | None:
    """Return the outcome of a call on a made sample if a second call repeats it; None otherwise.

    On invalid values a model may read uninitialised memory, and such a result proves nothing.

    Raises:
        Exception: an error of the call.
    """
    first = outcome(function, sample, model)
    # memory that is given out again does not hold the first result by chance
    rubbish = [torch.empty_like(leaf).fill_(77) for leaf in tensors_in(first.output) for _ in range(4)]
    del rubbish
    return first if difference(first, outcome(function, sample, model), ROUNDED).equal else None


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor)
