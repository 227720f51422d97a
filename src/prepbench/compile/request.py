"""What is to be compiled and how, once the model is captured; and the stages that it goes through."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from prepbench._torch_compat.programs import flat_program, with_outputs, with_own_weights
from prepbench.capture.aten.captured import Captured
from prepbench.compile.call_spec import CallSpec
from prepbench.compile.compile_log import Journal
from prepbench.inputs import Sample
from prepbench.jobs import Progress, ProgressCallback
from prepbench.settings import CompileOptions, DeploymentSettings, ExplainedLayer
from prepbench.targets import Target


@dataclass(frozen=True)
class Request:
    """A captured model and what shall become of it.

    Attributes:
        target: where it shall run.
        settings: of the target.
        options: algorithms and floors.
        captured: the model as a graph.
        calls: how it is called.
        program: the flat program, in float.
        name: of the graph.
        explained: what applies to each layer; None for a compile in float.
        calibration: the calibration inputs.
        measured: whether the weights mean something, so that measuring layers does.
        fullgraph: whether the target must take all of it.
        data_transform_fn: applied to samples that are given later.
    """

    target: Target
    settings: DeploymentSettings
    options: CompileOptions
    captured: Captured
    calls: CallSpec
    program: torch.export.ExportedProgram
    name: str
    explained: tuple[ExplainedLayer, ...] | None = None
    calibration: tuple[Sample, ...] = ()
    measured: bool = True
    fullgraph: bool = True
    data_transform_fn: Callable[[Any], Any] | None = None

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        captured: Captured,
        target: Target,
        settings: DeploymentSettings,
        options: CompileOptions,
        name: str,
        *,
        own_weights: bool,
    ) -> Request:
        """A request to compile in float, on the model's tensors or on copies of them."""
        assert captured.program.example_inputs is not None
        args, kwargs = captured.program.example_inputs
        calls = CallSpec.of(function, Sample(tuple(args), dict(kwargs)), captured.program)
        program = flatten(captured, calls)
        program = with_own_weights(program) if own_weights else program
        return cls(target, settings, options, captured, calls, program, name)


def flatten(captured: Captured, calls: CallSpec) -> torch.export.ExportedProgram:
    """The captured program with leaves in and leaves out; outputs that are constants are left out."""
    program = flat_program(captured.program, calls.input_names)
    places = [i for i in range(len(program.graph_signature.user_outputs)) if i not in calls.output_constants]
    return with_outputs(program, places) if calls.output_constants else program


class Stages:
    """Reports each stage, writes it down, and keeps its seconds.

    Args:
        progress: called at the beginning and end of each stage, and within.
        journal: the log.
    """

    def __init__(self, progress: ProgressCallback, journal: Journal) -> None:
        self.progress = progress
        self._journal = journal
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, name: str, counts: bool = False) -> Iterator[None]:
        """One stage, e.g. ``with stages("capture"):``; ``counts`` says that it reports its own beginning and end."""
        if not counts:
            self.progress(Progress(name, 0, 1))
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start
        self._journal.write("stage", f"{name}: {self.seconds[name]:.2f} s", stage=name, seconds=self.seconds[name])
        if not counts:
            self.progress(Progress(name, 1, 1))


def float_bytes(model: nn.Module) -> int:
    """Bytes of a model's parameters and buffers."""
    tensors: Iterable[torch.Tensor] = itertools.chain(model.parameters(), model.buffers())
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
