"""Where a compiled model shall run."""

from __future__ import annotations

from dataclasses import dataclass

from prepbench.errors import SettingsError
from prepbench.settings.validation import Settings, check_choice


@dataclass(frozen=True, kw_only=True)
class DeploymentSettings(Settings):
    """Base of all deployment settings; use one of its subclasses."""


@dataclass(frozen=True, kw_only=True)
class OnnxRuntimeDeployment(DeploymentSettings):
    """Run as an ONNX file in ONNX Runtime (CPU).

    Attributes:
        intra_op_threads: threads that one operator may use; ``None`` lets ONNX Runtime take one for each core.
    """

    intra_op_threads: int | None = None

    def __post_init__(self) -> None:
        _check_threads(self, "intra_op_threads")


@dataclass(frozen=True, kw_only=True)
class OpenVinoDeployment(DeploymentSettings):
    """Run in OpenVINO (CPU).

    Attributes:
        inference_threads: threads that one inference may use; ``None`` lets OpenVINO choose.
        performance_hint: ``"LATENCY"`` for one call at a time, ``"THROUGHPUT"`` for calls from several threads.
        inference_precision: what is not quantized computes in ``"f32"``, ``"bf16"`` or ``"f16"``. ``None`` takes
            float32 unless the activations and weights of all layers are quantized: then what is left is what OpenVINO
            chooses for the CPU, bfloat16 where that has instructions for it.
    """

    inference_threads: int | None = None
    performance_hint: str = "LATENCY"
    inference_precision: str | None = None

    def __post_init__(self) -> None:
        _check_threads(self, "inference_threads")
        check_choice(self, "performance_hint", ("LATENCY", "THROUGHPUT"))
        if self.inference_precision is not None:
            check_choice(self, "inference_precision", ("f32", "bf16", "f16"))


@dataclass(frozen=True, kw_only=True)
class TensorRtDeployment(DeploymentSettings):
    """An ONNX file with explicit symmetric quantization, the form from which TensorRT builds its engines.

    Where TensorRT and a GPU are there, the engine is built and run; elsewhere the same file runs in ONNX Runtime.
    """


@dataclass(frozen=True, kw_only=True)
class ExecuTorchDeployment(DeploymentSettings):
    """An ExecuTorch program (``.pte``) whose operators are delegated to XNNPACK: phones and small CPUs.

    Attributes:
        max_size_factor: dynamic sizes may grow to this many times those of the tracing inputs; memory is planned for
            the largest. ``None`` takes the largest power of two, 64 at most, with which the plan stays below 256 MiB.
    """

    max_size_factor: int | None = None

    def __post_init__(self) -> None:
        _check_count(self, "max_size_factor", "number")


@dataclass(frozen=True, kw_only=True)
class InductorDeployment(DeploymentSettings):
    """Compile with PyTorch's Inductor (CPU), with constants folded into the code; needs a C++ compiler."""


@dataclass(frozen=True, kw_only=True)
class EagerDeployment(DeploymentSettings):
    """Run the captured graph in PyTorch itself, operator by operator: the reference to compare other targets with."""


def _check_threads(owner: DeploymentSettings, field: str) -> None:
    _check_count(owner, field, "number of threads")


def _check_count(owner: DeploymentSettings, field: str, what: str) -> None:
    value = getattr(owner, field)
    if value is not None and (type(value) is not int or value < 1):
        raise SettingsError(f"{type(owner).__name__}.{field} must be None or a positive {what}, got {value!r}.")
