"""Results of compile stages, shared between compiles of the same model."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from prepbench.checks import check_count
from prepbench.compile.task import CompileTask
from prepbench.inputs import Sample
from prepbench.objects.digest import StateDigest, state_digest
from prepbench.quantize import Statistics
from prepbench.targets.kept_programs import KeptPrograms
from prepbench.targets.programs import is_repeatable

_STATISTICS = 4
_QUANTIZED = 2


@dataclass(frozen=True)
class CaptureKey:
    """The dependencies of a capture: the model and its caller, the traced samples, axes, leaf modules and so on."""

    model: StateDigest
    samples: StateDigest
    choices: tuple[Any, ...]


class KeptCapture:
    """A captured model, and later results derived from it.

    Attributes:
        task: the capture, to compile in float.
        programs: programs that were derived from graphs of one form; used by one thread at a time, which traces.
    """

    def __init__(self, task: CompileTask) -> None:
        self.task = task
        self.programs = KeptPrograms()
        self._statistics: OrderedDict[Any, Statistics] = OrderedDict()
        self._quantized: OrderedDict[Any, Any] = OrderedDict()
        self._lock = threading.Lock()

    def statistics(self, task: CompileTask, scaled: frozenset[str]) -> Statistics:
        """Return the calibration statistics of this task's graph, whose ``scaled`` layers an algorithm changed."""
        options, rows = task.options, task.layer_settings or ()
        changed: tuple[Any, ...] = ()
        equalizes = options.cross_layer_equalization or any(
            row.settings is not None and row.settings.cross_layer_equalization for row in rows
        )
        if options.smooth_quant or equalizes:  # they change the weights of quantized layers
            layers = repr(rows)
            changed = (layers, options.cross_layer_equalization, options.smooth_quant, options.smooth_quant_strength)
        elif scaled:  # unasked, which depends on no settings of layers
            changed = (scaled, options.smooth_quant_strength)
        return self._known(task, changed)

    def statistics_in_float(self, task: CompileTask) -> Statistics:
        """Return the statistics of the graph before algorithms change weights."""
        return self._known(task, ())

    def _known(self, task: CompileTask, changed: tuple[Any, ...]) -> Statistics:
        key = (samples_digest(task.calibration), task.options.fold_batch_norm, changed)
        with self._lock:
            found = self._statistics.setdefault(key, Statistics())
            _use(self._statistics, key, _STATISTICS)
            return found

    def quantized(self, task: CompileTask) -> Any:
        """Return the quantized program of a task that differs in the target's own options only, or None."""
        with self._lock:
            return self._quantized.get(_quantized_key(task))

    def keep_quantized(self, task: CompileTask, quantized: Any) -> None:
        """Keep a quantized program."""
        key = _quantized_key(task)
        with self._lock:
            self._quantized[key] = quantized
            _use(self._quantized, key, _QUANTIZED)


def _quantized_key(task: CompileTask) -> tuple[Any, ...]:
    samples = samples_digest(task.calibration)
    return samples, repr(task.layer_settings), task.target.placement, repr(task.options), task.is_pretrained


def _use(table: OrderedDict[Any, Any], key: Any, limit: int) -> None:
    """Mark an entry as used, and drop the least recently used ones."""
    table.move_to_end(key)
    while len(table) > limit:
        table.popitem(last=False)


def samples_digest(samples: Sequence[Sample]) -> StateDigest:
    """Return a digest of the samples."""
    return state_digest([(sample.args, sample.kwargs) for sample in samples], by_value=True)


def capture_key(model: StateDigest, samples: Sequence[Sample], *choices: Any) -> CaptureKey:
    """Return the dependencies of a model's capture; further choices are told apart by their text."""
    modes = (
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_autocast_enabled("cpu"),
        torch.is_inference_mode_enabled(),
        torch.are_deterministic_algorithms_enabled(),
    )
    return CaptureKey(model, samples_digest(samples), tuple(map(repr, (*choices, *modes))))


class Captures:
    """A thread-safe cache of the most recently used captures, ``limit`` at most."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._captures: OrderedDict[CaptureKey, KeptCapture] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._captures)

    def clear(self) -> None:
        """Drop all."""
        with self._lock:
            self._captures.clear()

    def find(self, key: CaptureKey) -> KeptCapture | None:
        """Return the kept results of a capture."""
        with self._lock:
            found = self._captures.get(key)
            if found is not None:
                _use(self._captures, key, self.limit)
            return found

    def keep(self, key: CaptureKey, task: CompileTask) -> KeptCapture | None:
        """Keep a capture; None if the next compile must capture again."""
        if task.captured.leaves or task.variants or not is_repeatable(task.program):
            return None
        with self._lock:
            kept = self._captures[key] = KeptCapture(task)
            _use(self._captures, key, self.limit)
            return kept

    @contextmanager
    def checked(self, key: CaptureKey, roots: Sequence[Any], samples: Sequence[Sample]) -> Iterator[None]:
        """Drop the capture if the model or a sample changes during the stages after it.

        Other threads may train the model while it is compiled.
        """
        before = samples_digest(samples)
        try:
            yield
        finally:
            if state_digest(*roots) != key.model or samples_digest(samples) != before:
                with self._lock:
                    self._captures.pop(key, None)


class KeptStages:
    """A captured, calibrated, measured and exported model, for the next ``compile_model(..., reuse=kept)``.

    A stage is done again if anything that it depends on has changed; so results are those of a compile that reuses
    nothing. The model is read as a whole at the beginning and the end of each compile: the values of its tensors,
    flags, hooks, attributes, closures and the globals that its code names. Samples are read by value. A model with leaf
    modules, with state that a call changes, or that draws random numbers is captured each time.

    It may be given to compiles in several threads, and stays usable when one fails or is cancelled.

    Memory: the last captures are kept, each with its model and samples, with copies of the weights where
    ``discard_input_model=False``, and with the integers of its last two quantized programs. :meth:`clear` releases all.

    Args:
        captures: the most captures to keep; the least recently used one is dropped first.

    Attributes:
        table: the kept results, for ``compile_model``.

    Example:
        >>> from prepbench import compile_model
        >>> kept, layer = KeptStages(), torch.nn.Linear(4, 2)
        >>> for _ in range(2):
        ...     compiled = compile_model(layer, tracing_inputs=[torch.ones(1, 4), torch.ones(2, 4)], reuse=kept)
        >>> compiled.report.reused
        ('capture', 'lower: graph')
    """

    def __init__(self, captures: int = 3) -> None:
        check_count("captures", captures, 1)
        self.table = Captures(captures)

    def clear(self) -> None:
        """Release everything."""
        self.table.clear()

    def __len__(self) -> int:
        return len(self.table)

    def __repr__(self) -> str:
        return f"KeptStages({len(self)} of at most {self.table.limit} captures)"
