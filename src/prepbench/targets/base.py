"""The interface of a deployment target: names, requirements, lowering a program and loading the result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch

from prepbench.document.model import Failure
from prepbench.errors import MissingPackageError, SettingsError, TargetError
from prepbench.jobs import ProgressCallback, report_nothing
from prepbench.packages import imported, is_absent
from prepbench.patching import logs_dropped_here, warnings_ignored_here
from prepbench.quantize import Constraint, Placement
from prepbench.settings import (
    DeploymentSettings,
    ExplainedLayer,
    QuantizationSettings,
    activation_format,
    weight_formats,
)
from prepbench.settings.numbers import NumberFormat
from prepbench.targets.kept_programs import KeptPrograms
from prepbench.targets.kernel_times import KernelTimes

Derive = Callable[[], torch.export.ExportedProgram]

_OTHERWISE = "Or choose InductorDeployment()."


@dataclass(frozen=True)
class Trust:
    """What files may do in this process.

    Attributes:
        allow_code: whether the caller trusts the files enough to run code in them.
        leaves: the operators of leaves in this process, by the names that the files have for them.
    """

    allow_code: bool = False
    leaves: Mapping[str, str] = field(default_factory=dict)


NO_TRUST = Trust()


@dataclass(frozen=True)
class Lowering:
    """The input of a target: a program with its names, layers and kept programs.

    Attributes:
        program: a flat program, which takes the tensors and numbers of a call as positional arguments and returns a
            tuple of them (see ``_torch_compat.programs.flat_program``).
        input_names: a name for each of its inputs, e.g. ``"input_ids"``.
        output_names: a name for each of its outputs, e.g. ``"logits"``.
        dimension_names: readable names of the dynamic sizes, by the symbols in the program.
        leaves: those in it, modules and lines, each of which is one operator.
        keep_alive: the callees of the leaves' operators; held as long as the program runs.
        progress: called with the progress of long stages.
        programs: the cache of programs derived from graphs of the same form; None for no cache.
    """

    program: torch.export.ExportedProgram
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    dimension_names: dict[str, str]
    leaves: tuple[Failure, ...] = ()
    keep_alive: object = None
    progress: ProgressCallback = report_nothing
    programs: KeptPrograms | None = None

    def derived(self, purpose: str, program: torch.export.ExportedProgram, make: Derive) -> Any:
        """Return the result of ``make`` for a program, or the kept one for a program of the same form."""
        if self.programs is None:
            return make()
        tensors = {**program.state_dict, **program.constants}
        purpose = f"{purpose} {program.graph_signature}"
        return self.programs.derive(purpose, program.graph_module, tensors, make)[0]

    def ends(self) -> Iterator[tuple[str, str, torch.fx.Node]]:
        """Yield "input" or "output", the name and the node of each that is computed, and not a constant."""
        signature = self.program.graph_signature
        nodes = {node.name: node for node in self.program.graph.nodes}
        for kind, names, ends in (
            ("input", self.input_names, signature.user_inputs),
            ("output", self.output_names, signature.user_outputs),
        ):
            for name, end in zip(names, ends, strict=False):
                if isinstance(end, str) and end in nodes:
                    yield kind, name, nodes[end]


@dataclass(frozen=True)
class EndNames:
    """New names for the inputs of a lowered program, by those in its :class:`Lowering`, and for its outputs in
    order.
    """

    inputs: Mapping[str, str]
    outputs: Sequence[str]


class Runtime(ABC):
    """A lowered program that runs; like a flat program it takes and returns a flat sequence."""

    @abstractmethod
    def run(self, leaves: Sequence[Any]) -> Sequence[Any]:
        """Compute the outputs; the inputs are not changed."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the files for :meth:`Target.load` into an existing folder."""

    def stored_bits(self) -> Mapping[str, int]:
        """Return the bits of each constant in the lowered program, by name; empty where its format is opaque."""
        return {}

    def kernel_times(self, calls: Sequence[Sequence[Any]], rounds: int) -> KernelTimes:
        """Return the time of each kernel in one call, measured by the runtime's own profiler.

        Args:
            calls: the inputs of one or several calls.
            rounds: the repetitions of each measurement.

        Raises:
            TargetError: the runtime has no profiler.
        """
        raise TargetError(
            "It has no profiler here that tells of layers. Profile the same model compiled for "
            "OnnxRuntimeDeployment(), OpenVinoDeployment() or EagerDeployment(), or the original model."
        )


class Target(ABC):
    """One deployment target; listed in ``targets/registry.py``.

    Attributes:
        name: in saved models and reports, e.g. ``"onnxruntime"``.
        display_name: the name shown to users, e.g. ``"ONNX Runtime"``.
        settings_type: the settings that choose this target.
        packages: the required packages, by their names for pip.
        modules: the modules whose import tests them; the packages themselves if it is empty.
        extra: the extra of prepbench that installs the packages; empty where prepbench itself requires them.
        runs_leaves: whether it can run leaves, which call back into this process's Python.
        placement: the places of quantizers, and the supported bits.
        types_without_kernels: floating types that it computes in float32, because it has no kernels of them.
        keeps_writes: whether what the graph writes into its arguments is in the caller's tensors after a call.
        largest_integer: up to which its integer arithmetic is exact; 0 where it is that of PyTorch.
        unraised_errors: kinds of errors of PyTorch that its kernels answer instead, as
            :func:`prepbench.calls.asserted_errors.with_errors_asserted` names them; the graph asserts these.
        runs_recurrent_layers: whether it has an operator for one layer of an LSTM, GRU or RNN.
        renamed_file: the main file that :meth:`rename_ends` writes, as tools for ``transformers`` call it; empty where
            it writes none.
    """

    name: ClassVar[str]
    display_name: ClassVar[str]
    settings_type: ClassVar[type[DeploymentSettings]]
    packages: ClassVar[tuple[str, ...]] = ()
    modules: ClassVar[tuple[str, ...]] = ()
    extra: ClassVar[str] = ""
    runs_leaves: ClassVar[bool] = False
    placement: ClassVar[Placement] = Placement()
    types_without_kernels: ClassVar[frozenset[torch.dtype]] = frozenset()
    keeps_writes: ClassVar[bool] = False
    largest_integer: ClassVar[int] = 0
    unraised_errors: ClassVar[frozenset[str]] = frozenset()
    runs_recurrent_layers: ClassVar[bool] = False
    renamed_file: ClassVar[str] = ""

    def check_available(self, *, by_import: bool = True) -> None:
        """Raise ``MissingPackageError`` with the remedy if a requirement of the target is missing or fails.

        Args:
            by_import: also import the packages, which may take seconds; else only look whether they are there.
        """
        missing = [name for name in self.packages if is_absent(name)]
        if missing:
            wanted = f'"prepbench[{self.extra}]"' if self.extra else " ".join(missing)
            raise MissingPackageError(
                f"{self.settings_type.__name__} needs {', '.join(missing)}: pip install {wanted}. {_OTHERWISE}"
            )
        for name in self.modules or self.packages if by_import else ():
            install = f'"prepbench[{self.extra}]"' if self.extra else name
            with logs_dropped_here(), warnings_ignored_here():
                imported(name, self.settings_type.__name__, install, _OTHERWISE)

    def runs_elsewhere(self) -> str:
        """Return where it runs here instead of on its own hardware, e.g. ``"in ONNX Runtime"``; "" on its own."""
        return ""

    def types_to_replace(self, program: torch.export.ExportedProgram) -> frozenset[torch.dtype]:
        """Return the floating types of this program that the target computes in float32."""
        return self.types_without_kernels

    def check_leaves(self, leaves: Sequence[Failure]) -> None:
        """Raise ``TargetError`` that names the leaves when the target cannot run them."""
        if leaves and not self.runs_leaves:
            remedy = leaves[0].remedy.rstrip(".")
            first = f"Rewrite them ({remedy})" if remedy else "Give fullgraph=False, and they run in PyTorch"
            raise TargetError(
                f"{self.display_name} cannot run leaves, because they call back into Python. Leaves: "
                f"{'; '.join(map(_described, leaves))}. {first}, or compile with "
                "deployment_settings=InductorDeployment(), which runs them."
            )

    def unsupported_nodes(self, program: torch.export.ExportedProgram) -> Sequence[torch.fx.Node]:
        """Return the nodes whose operator the target has no kernel or translation for; none by default."""
        return ()

    def check_renaming(self) -> None:
        """Raise ``TargetError`` unless other tools can read its files under user-given names."""
        if not self.renamed_file:
            raise TargetError(
                f"{self.display_name} has no files that other tools read under names of their own. Compile with "
                "OnnxRuntimeDeployment() or OpenVinoDeployment(), whose files they do read."
            )

    def rename_ends(self, folder: Path, names: EndNames) -> None:
        """Rename inputs and outputs in the files that :meth:`Runtime.save` wrote, in place.

        Types that NumPy lacks become float32 at these ends.

        Raises:
            TargetError: see :meth:`check_renaming`.
        """
        self.check_renaming()
        raise NotImplementedError

    @abstractmethod
    def lower(self, lowering: Lowering, settings: DeploymentSettings) -> Runtime:
        """Lower a program to a runtime of the target."""

    @abstractmethod
    def load(self, folder: Path, settings: DeploymentSettings, trust: Trust = NO_TRUST) -> Runtime:
        """Read the files that :meth:`Runtime.save` wrote, without running code from them.

        Args:
            folder: may come from anybody.
            settings: of the target.
            trust: what the files may do.

        Raises:
            ArtifactError: the files are damaged, or hold code and ``trust`` does not allow it.
        """


def _described(leaf: Failure) -> str:
    place = f" at {leaf.source.file}:{leaf.source.line}" if leaf.source else ""
    return f"{leaf.part} ({leaf.module_type}): {leaf.kind}{place}"


# Whether a target supports the quantization settings.


# what several targets lack
NO_TABLES = Constraint(lambda call: call.layer.is_lookup, "this target looks rows of tables up in float")
NO_TRANSPOSED = Constraint(
    lambda call: call.layer.is_transposed, "no int8 form of transposed convolutions for this target"
)
NO_RECURRENT = Constraint(lambda call: call.layer.is_recurrent, "no integer form of recurrent layers for this target")


def check_settings(target: Target, settings: DeploymentSettings, explained: Iterable[ExplainedLayer]) -> None:
    """Raise ``SettingsError`` for the first layer whose settings the target does not support; list those it does."""
    placement = target.placement
    for layer in explained:
        if layer.settings is None:
            continue
        problem = unsupported(layer.settings, placement)
        if problem:
            rule = "quantization_settings" if layer.rule == "global" else f"layer_quantization_settings[{layer.rule!r}]"
            raise SettingsError(
                f"{type(settings).__name__} does not support {problem}, which {rule} asks for (layer {layer.fqn!r}). "
                f"It supports: {supported(placement)}."
            )


def unsupported(settings: QuantizationSettings, placement: Placement) -> str:
    """Return the requested features that the target lacks; empty if it has all of them."""
    activations = activation_format(settings)
    taken = placement.weights_only if activations.is_float else placement.weights
    missing = [one for one in weight_formats(settings) if one not in taken]
    if missing:
        others = "activations in float" if activations.is_float else "quantized activations"
        return f"{missing[0].words} weights with {others}"
    if not activations.is_float:
        return "" if activations in placement.activations else f"{activations.bits}-bit activations"
    lacks_blocks = settings.weights_only_quantization_block_size != 0 and not placement.block_sizes
    return "scales for blocks of weights" if lacks_blocks else ""


def supported(placement: Placement) -> str:
    """Return the features of a target in words."""

    def bits(formats: tuple[NumberFormat, ...]) -> str:
        return " or ".join(str(one.asked) for one in sorted(formats, key=lambda one: one.bits))

    parts = []
    if placement.weights:
        parts.append(f"weights of {bits(placement.weights)} bits with activations of ")
        parts[-1] += f"{bits(placement.activations)} bits"
    if placement.weights_only:
        blocks = ", with or without blocks" if placement.block_sizes else ""
        parts.append(f"weights of {bits(placement.weights_only)} bits with activations in float{blocks}")
    return "; ".join(parts) or "no quantization"
