"""ExecuTorch with XNNPACK on the CPU: a ``.pte`` file for phones and small computers, run here by the same runtime."""

from __future__ import annotations

import platform
import re
import shutil
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from prepbench._torch_compat.scans import scans_in
from prepbench.errors import InputError, TargetError
from prepbench.quantize import Placement
from prepbench.settings import DeploymentSettings, ExecuTorchDeployment
from prepbench.settings.numbers import INT8
from prepbench.storage import KeptFolder
from prepbench.targets.base import NO_RECURRENT, NO_TABLES, NO_TRANSPOSED, NO_TRUST, Lowering, Runtime, Target, Trust
from prepbench.targets.executorch.layers import NO_LAYERS, InstructionLayers, read_layers
from prepbench.targets.executorch.lower import in_order, to_pte, without_kernel
from prepbench.targets.executorch.profiling import check_loads, kernel_times, quiet
from prepbench.targets.kernel_times import KernelTimes
from prepbench.targets.programs import check_stateless

FILE, LAYERS = "model.pte", "layers.json"


class ExecuTorch(Runtime):
    """A loaded program.

    Args:
        file: the ``.pte`` file, which stays where it is as long as the runtime lives.
        keep: a temporary folder that lives as long.
        layers: of the program's instructions, for profiles.
    """

    def __init__(self, file: Path, keep: KeptFolder | None = None, layers: InstructionLayers = NO_LAYERS) -> None:
        self._file = file
        self._keep = keep
        self._layers = layers
        with quiet() as heard:
            from executorch.runtime import Runtime as Library

            try:
                self._program = Library.get().load_program(file)
                self._method = self._program.load_method("forward")
            except (RuntimeError, MemoryError) as error:
                raise _refused("load", error, heard.text()) from error
            assert self._method is not None
            metadata = self._method.metadata
            self._bounds = [_bounds(metadata, index) for index in range(metadata.num_inputs())]
        # one plan of memory, so one call at a time
        self._lock = threading.Lock()

    def run(self, leaves: Sequence[Any]) -> Sequence[Any]:
        inputs = list(map(in_order, leaves))
        self._check_sizes(inputs)
        with self._lock:
            try:
                outputs: Sequence[Any] = self._method.execute(inputs)
            except RuntimeError as error:
                raise _refused("run", error) from error
        return outputs

    def save(self, folder: Path) -> None:
        shutil.copy(self._file, folder / FILE)
        (folder / LAYERS).write_text(self._layers.text())

    def stored_bits(self) -> Mapping[str, int]:
        """Return the bits of the file's segments together: XNNPACK packs constants without their names."""
        with self._file.open("rb") as file:
            found = _HEADER.match(file.read(_HEADER_BYTES))
        return {} if found is None else {"segments": 8 * int.from_bytes(found["size"], "little")}

    def kernel_times(self, calls: Sequence[Sequence[Any]], rounds: int) -> KernelTimes:
        inputs = [list(map(in_order, leaves)) for leaves in calls]
        for each in inputs:
            self._check_sizes(each)
        with self._lock, quiet():
            return kernel_times(self._file, inputs, rounds, self._layers)

    def _check_sizes(self, inputs: Sequence[Any]) -> None:
        """Raise ``InputError`` for sizes beyond the planned memory; ExecuTorch would report an error number only."""
        for index, (value, bounds) in enumerate(zip(inputs, self._bounds, strict=True)):
            if bounds is None or not isinstance(value, torch.Tensor):
                continue
            for dim, (size, bound) in enumerate(zip(value.shape, bounds, strict=True)):
                if size > bound:
                    raise InputError(
                        f"Size {size} in dim {dim} of input {index} is more than the {bound} for which ExecuTorch "
                        "planned memory. Give a smaller one, or compile with larger tracing inputs or "
                        "ExecuTorchDeployment(max_size_factor=...)."
                    )


def _bounds(metadata: Any, index: int) -> tuple[int, ...] | None:
    """Return the largest sizes of an input tensor; None for other inputs."""
    try:
        sizes: tuple[int, ...] = metadata.input_tensor_meta(index).sizes()
    except IndexError:
        return None
    return sizes


def _refused(what: str, error: Exception, said: str = "") -> TargetError:
    reason = " ".join(filter(None, (f"{str(error).strip().rstrip('.')}.", said)))
    return TargetError(
        f"ExecuTorch cannot {what} the program: {reason} Choose another target, or keep the module or line in PyTorch "
        "(leaf_modules=)."
    )


# of a program whose constants and delegated parts stand behind it: magic, length, size of the program, start and size
# of the segments (``extended_header.h`` of ExecuTorch 1.0)
_HEADER_BYTES = 40
_HEADER = re.compile(rb".{8}eh00.{4}.{8}.{8}(?P<size>.{8})", re.DOTALL)

_SMALL = ("arm", "aarch64")
"""The beginnings of the names of processors of phones and small computers."""


class ExecuTorchTarget(Target):
    """CPU inference with ExecuTorch; XNNPACK computes the operators that it has kernels for."""

    name = "executorch"
    display_name = "ExecuTorch"
    settings_type = ExecuTorchDeployment
    packages = ("executorch",)
    modules = ("executorch.runtime",)
    extra = "executorch"
    unraised_errors = frozenset({"divisors"})
    placement = Placement(
        conv_outputs=True,
        linear_outputs=True,
        conv_additions=True,
        additions=True,
        signed_activations=True,
        weights=(INT8,),
        weights_only=(INT8,),
        activations=(INT8,),
        block_sizes=False,
        constraints=(NO_TABLES, NO_TRANSPOSED, NO_RECURRENT),
    )

    def runs_elsewhere(self) -> str:
        is_small = platform.machine().lower().startswith(_SMALL)
        return "" if is_small and platform.system() in ("Linux", "Android") else "on a desktop"

    def unsupported_nodes(self, program: torch.export.ExportedProgram) -> Sequence[torch.fx.Node]:
        self.check_available()
        with quiet():  # its loops do not support dynamic sizes
            return [*scans_in(program.graph), *without_kernel(program)]

    def lower(self, lowering: Lowering, settings: DeploymentSettings) -> Runtime:
        assert isinstance(settings, ExecuTorchDeployment)
        if scans_in(lowering.program.graph):
            raise TargetError("ExecuTorch cannot run a loop of dynamic length.")
        check_stateless(lowering.program)
        keep = KeptFolder("executorch")
        file = keep.path / FILE
        with quiet():
            written, layers = to_pte(lowering.program, settings.max_size_factor)
            file.write_bytes(written)
        runtime = ExecuTorch(file, keep, layers)
        assert lowering.program.example_inputs is not None
        with quiet() as heard:  # a kernel that refuses its arguments says why on standard error only
            try:
                runtime.run(lowering.program.example_inputs[0])
            except TargetError as error:
                raise TargetError(f"{error} It says: {heard.text()[:500]}") from error.__cause__
        return runtime

    def load(self, folder: Path, settings: DeploymentSettings, trust: Trust = NO_TRUST) -> Runtime:
        check_loads(folder / FILE)
        layers = folder / LAYERS
        return ExecuTorch(folder / FILE, layers=read_layers(layers.read_text()) if layers.is_file() else NO_LAYERS)
