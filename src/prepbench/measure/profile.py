"""``profile``: the time of one call by layer, from each runtime's own profiler."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from prepbench._display import view
from prepbench._torch_compat import pytree
from prepbench.calls.call_spec import runtime_and_calls
from prepbench.checks import check_count, check_type, described, nearest_are
from prepbench.errors import TargetError, UnknownNameError
from prepbench.inputs import Sample
from prepbench.internal_errors import tells_internal_errors
from prepbench.measure.latency import doubtful_times
from prepbench.measure.scores import eval_mode
from prepbench.package.compiled import CompiledModel, program_of, what_runs
from prepbench.package.report import CompileReport
from prepbench.quantize.report import QUANTIZED
from prepbench.running.check_inputs import checked_samples, twin_with_own_writes
from prepbench.running.given_samples import normalize_samples
from prepbench.targets import target_named
from prepbench.targets.kernel_times import BETWEEN, KernelTime, KernelTimes, mean_call, stored_by_layer

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects


@tells_internal_errors
def profile(model: nn.Module, inputs: Any, *, rounds: int = 20) -> Profile:
    """Measure the time of each layer of a model in one call.

    Compiled models are measured by the profiler of their runtime: ONNX Runtime's profile, OpenVINO's counters,
    ExecuTorch's events, and PyTorch operator by operator. Kernels are assigned to the layers that they compute; a
    fused kernel counts for the first of its layers. Time outside of layers has a name: conversions between integers
    and floats, reordering of memory, time between kernels. Models that are not compiled are measured module by
    module, each without its submodules.

    The profiler itself takes time, so totals are longer than those of :func:`prepbench.compare`, for calls of less than
    a millisecond several times. It runs in this process: other work on the machine, such as other cells, is measured
    as well.

    Args:
        model: a compiled model, or any module. It is left as it was.
        inputs: a sample, or several, of which the mean is taken, in any form that ``compile_model`` takes.
        rounds: how often each sample is measured, after once to warm up.

    Returns:
        The times, by kernel and by layer.

    Raises:
        InputError: inputs that the model does not take.
        SettingsError: no model, or a number of rounds below 1.
        CaptureError: the model itself raises on a sample.
        TargetError: the target has no profiler here.

    Example:
        >>> pb.profile(compiled, x).table().head()
        >>> diagram.overlay(pb.profile(compiled, x).table(), "ms")
    """
    check_type("model", model, nn.Module, "Give a model, or what compile_model returned.")
    check_count("rounds", rounds, 1)
    model = what_runs(model)
    if isinstance(model, CompiledModel):
        return _compiled(model, inputs, rounds)
    samples = checked_samples(model, inputs)
    twin = twin_with_own_writes(model, samples[0]).model
    with eval_mode([twin]):
        times = module_times(twin, samples, rounds)
    modules = dict(model.named_modules())
    types = {fqn: type(module).__name__ for fqn, module in modules.items()}
    weights = {fqn: sum(p.nbytes for p in module.parameters(recurse=False)) for fqn, module in modules.items()}
    return _profile(times, types, weights, "PyTorch", rounds * len(samples))


def _compiled(model: CompiledModel, inputs: Any, rounds: int) -> Profile:
    runtime, calls = runtime_and_calls(model)
    samples = normalize_samples(model, inputs)
    flat: list[Sequence[Any]] = []
    for sample in samples:
        leaves = calls.flatten(sample.args, sample.kwargs)
        flat.append(calls.checked(leaves, allow_unproven=model.allow_unproven))
    layers, program = model.report.layers, program_of(model)
    bits = {row.fqn: row.stored_bits for row in layers if row.quantized}
    types, weights = stored_by_layer(program.graph, bits, runtime.stored_bits()) if program is not None else ({}, {})
    types |= {row.fqn: row.type for row in layers}
    weights = {**_weights_of_report(model.report), **weights}
    target = target_named(model.target).display_name
    try:
        times = runtime.kernel_times(flat, rounds)
    except TargetError as error:
        raise TargetError(f"{target}: {error}") from error
    found = _profile(times, types, weights, target, rounds * len(samples))
    return replace(found, remark=doubtful_times(model.target))


def _weights_of_report(report: CompileReport) -> dict[str, int]:
    """Return the bytes of each layer's parameters by what the report tells: all but scales of channels."""
    found: dict[str, int] = {}
    for row in report.layers:
        kept = sum(one.bytes for one in report.tensors if one.layer == row.fqn and one.outcome != QUANTIZED)
        integers = row.parameters - kept // 4
        scales = 4 * integers // row.block_size if row.block_size else 0
        whole = int(integers * (row.stored_bits or row.weights_bits)) // 8 + kept + scales
        found[row.fqn] = whole if row.quantized else row.parameters * row.weights_bits // 8
    return found


def _profile(
    times: KernelTimes, types: Mapping[str, str], weights: Mapping[str, int], target: str, calls: int
) -> Profile:
    kernels: defaultdict[tuple[str, bool], list[KernelTime]] = defaultdict(list)
    for kernel in times.kernels:
        kernels[kernel.place, kernel.is_layer].append(kernel)
    inside = sum(kernel.seconds for kernel in times.kernels)
    total = max(times.seconds, inside)
    if total > inside:
        kernels[BETWEEN, False].append(KernelTime("", "", BETWEEN, total - inside, False))
    rows = [
        ProfileRow(
            name,
            is_layer,
            types.get(name, "") if is_layer else "",
            1e3 * (seconds := sum(kernel.seconds for kernel in each)),
            seconds / total if total else 0.0,
            weights.get(name) if is_layer else None,
            _bytes(each),
            tuple(dict.fromkeys(kernel.operator for kernel in each if kernel.operator)),
        )
        for (name, is_layer), each in kernels.items()
    ]
    return Profile(tuple(sorted(rows, key=lambda row: -row.ms)), 1e3 * total, target, calls)


def _bytes(kernels: Sequence[KernelTime]) -> int | None:
    sizes = [kernel.result_bytes for kernel in kernels if kernel.result_bytes is not None]
    return sum(sizes) if sizes else None


# The time of each module of a model in PyTorch, without its submodules.


def module_times(model: nn.Module, samples: Sequence[Sample], rounds: int) -> KernelTimes:
    """Call a model, after once to warm up, and return the time of each module without its submodules."""
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
    """Attributes time to the innermost running module."""

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


# The result of profiling: the time of each layer, and two profiles side by side.


@dataclass(frozen=True)
class ProfileRow:
    """One layer, or one named part of the rest.

    Attributes:
        name: FQN of the layer, "" for operations in the model's own forward; or a part of the rest, such as
            ``"conversions between integers and floats"``.
        is_layer: whether ``name`` is an FQN.
        type: class of the module; empty for the rest.
        ms: milliseconds in one call: the median over the quickest quarter of the calls.
        share: of the whole call, 0 to 1.
        weights_bytes: of its parameters as they are stored, with scales and biases; of a loaded model without the
            scales of channels. None where that is not known.
        result_bytes: of its results; None where the runtime does not report them.
        operators: its operators, by the runtime's names.
    """

    name: str
    is_layer: bool
    type: str
    ms: float
    share: float
    weights_bytes: int | None
    result_bytes: int | None
    operators: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class Profile:
    """The time of one call by layer: the result of :func:`prepbench.profile`.

    Attributes:
        rows: layers and named parts of the rest, the slowest first.
        total_ms: milliseconds of a whole call under the profiler: the median over the quickest quarter of the calls.
        target: the deployment target as people call it; ``"PyTorch"`` for a model that is not compiled.
        calls: how many calls were measured.
        remark: why the times say nothing about the target, where it did not run on its own hardware; else empty.

    Example:
        >>> pb.profile(torch.nn.Sequential(torch.nn.Linear(4, 2)), torch.ones(8, 4))["0"].type
        'Linear'
    """

    rows: tuple[ProfileRow, ...]
    total_ms: float
    target: str
    calls: int
    remark: str = ""

    def __getitem__(self, name: str) -> ProfileRow:
        """Return the row of a layer."""
        for row in self.rows:
            if row.name == name:
                return row
        names = [row.name for row in self.rows]
        known = nearest_are(name, names, "The slowest are")
        raise UnknownNameError(f"name: {described(name)} took no time of its own here. {known}")

    @property
    def placed(self) -> float:
        """The share of the time inside layers, 0 to 1; the rest has other names."""
        return sum(row.share for row in self.rows if row.is_layer)

    @property
    def caption(self) -> str:
        """Describe the conditions of the measurement in one sentence."""
        return (
            f"{self.target}: {self.total_ms:.3g} ms a call under its profiler, median of the quickest quarter of "
            f"{self.calls} calls; "
            f"{self.placed:.0%} of it in layers{'; ' * bool(self.remark)}{self.remark}."
        )

    def table(self) -> pandas.DataFrame:
        """Return one row for each layer and named part of the rest, the slowest first; sizes in MB (10**6 bytes)."""
        return view("views.layer_charts", "profile_table", self)  # type: ignore[no-any-return]

    def figure(self) -> plotly.graph_objects.Figure:
        """Draw the slowest layers as bars."""
        return view("views.layer_charts", "profile_figure", self)

    def against(self, other: Profile) -> ProfileDifference:
        """Compare this profile with another one of the same model, layer by layer.

        Args:
            other: of the model compiled otherwise, for instance.

        Returns:
            The difference, layer by layer.

        Raises:
            InputError: it is no profile.

        Example:
            >>> pb.profile(model, x).against(pb.profile(compiled, x)).table()
        """
        check_type("other", other, Profile, "Give what prepbench.profile returned.")
        return ProfileDifference(self, other)

    def __repr__(self) -> str:
        return view("views.layer_charts", "profile_text", self)  # type: ignore[no-any-return]

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return view("views.layer_charts", "profile_bundle", self)  # type: ignore[no-any-return]


@dataclass(frozen=True, repr=False)
class ProfileDifference:
    """Two profiles of a model side by side, the second compared with the first."""

    first: Profile
    second: Profile

    @property
    def saved_ms(self) -> Mapping[str, float]:
        """Milliseconds saved in the second, by FQN or part of the rest; negative where it is slower. The largest
        first.

        A layer without time of its own was fused with its neighbours; runtimes fuse differently.
        """
        ms = [{row.name: row.ms for row in each.rows} for each in (self.first, self.second)]
        # to the picosecond: below that are errors of adding up
        saved = {name: round(ms[0].get(name, 0.0) - ms[1].get(name, 0.0), 9) for name in {**ms[0], **ms[1]}}
        return dict(sorted(saved.items(), key=lambda item: -abs(item[1])))

    @property
    def caption(self) -> str:
        """Describe both totals in one sentence."""
        first, second = self.first, self.second
        remarks = [f" {each.target}: {each.remark}." for each in (first, second) if each.remark]
        said = f"{first.target} {first.total_ms:.3g} ms, {second.target} {second.total_ms:.3g} ms a call."
        return "".join([said, *remarks])

    def table(self) -> pandas.DataFrame:
        """Return one row for each layer, those first that changed most."""
        return view("views.layer_charts", "difference_table", self)  # type: ignore[no-any-return]

    def figure(self) -> plotly.graph_objects.Figure:
        """Draw both times of the layers that changed most as bars."""
        return view("views.layer_charts", "difference_figure", self)

    def __repr__(self) -> str:
        return view("views.layer_charts", "difference_text", self)  # type: ignore[no-any-return]

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return view("views.layer_charts", "profile_bundle", self)  # type: ignore[no-any-return]
