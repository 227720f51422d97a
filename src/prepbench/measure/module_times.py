"""What each module of a model takes in PyTorch, without the modules inside of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from prepbench._torch_compat import pytree
from prepbench.inputs import Sample
from prepbench.targets.kernel_times import KernelTime, KernelTimes, mean_call


def module_times(model: nn.Module, samples: Sequence[Sample], rounds: int) -> KernelTimes:
    """Call a model and note what each of its modules takes itself.

    Args:
        model: as it is; nothing is changed, and hooks are gone afterwards.
        samples: the calls.
        rounds: how often each is made, after once to warm up.
    """
    clock = _Clock()
    measured = []
    with clock.hooked(model), torch.no_grad():
        for index, sample in enumerate([*samples, *(each for each in samples for _ in range(rounds))]):
            clock.start()
            sample.call(model)
            if index >= len(samples):
                measured.append(clock.times())
    return mean_call(measured, len(samples))


class _Clock:
    """Which module runs, and since when: time counts for the innermost."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._bytes: dict[str, int] = {}
        self._types: dict[str, str] = {}
        self._running: list[str] = []
        self._since = 0.0

    def start(self) -> None:
        self._seconds, self._bytes, self._running = {}, {}, []
        self._since = time.perf_counter()

    def times(self) -> KernelTimes:
        kernels = tuple(
            KernelTime(fqn, self._types[fqn], fqn, seconds, True, self._bytes.get(fqn))
            for fqn, seconds in self._seconds.items()
        )
        return KernelTimes(kernels, sum(self._seconds.values()))

    @contextlib.contextmanager
    def hooked(self, model: nn.Module) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for fqn, module in model.named_modules():
                self._types[fqn] = type(module).__name__
                for handle in (
                    module.register_forward_pre_hook(self._entering(fqn)),
                    module.register_forward_hook(self._leaving(fqn), always_call=True),
                ):
                    stack.callback(handle.remove)
            yield

    def _count(self) -> None:
        now = time.perf_counter()
        if self._running:
            fqn = self._running[-1]
            self._seconds[fqn] = self._seconds.get(fqn, 0.0) + now - self._since
        self._since = now

    def _entering(self, fqn: str) -> Any:
        def enter(module: nn.Module, args: Any) -> None:
            self._count()
            self._running.append(fqn)
            self._since = time.perf_counter()

        return enter

    def _leaving(self, fqn: str) -> Any:
        def leave(module: nn.Module, args: Any, result: Any) -> None:
            self._count()
            self._running.pop()
            leaves = pytree.tree_leaves(result)
            self._bytes[fqn] = sum(each.nbytes for each in leaves if isinstance(each, torch.Tensor))
            self._since = time.perf_counter()

        return leave
