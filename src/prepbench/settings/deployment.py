"""The targets of a compile: one class of settings for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from prepbench.checks import described
from prepbench.errors import SettingsError
from prepbench.settings.validation import Settings, check_choice


@dataclass(frozen=True, kw_only=True)
class DeploymentSettings(Settings):
    """Base of all deployment settings; use one of its subclasses.

    ``CHOICES`` has the allowed values of each field that has few; None is the target's default.

    Example:
        >>> OnnxRuntimeDeployment.from_dict({"intra_op_threads": 2}).intra_op_threads
        2
    """

    CHOICES: ClassVar[Mapping[str, tuple[str | None, ...]]] = {}


@dataclass(frozen=True, kw_only=True)
class OnnxRuntimeDeployment(DeploymentSettings):
    """Run as an ONNX file in ONNX Runtime (CPU).

    Attributes:
        intra_op_threads: threads that one operator may use, 1 or more. Default ``None``: ONNX Runtime takes one for
            each core.

    Example:
        >>> OnnxRuntimeDeployment(intra_op_threads=2).to_dict()
        {'intra_op_threads': 2}
    """

    intra_op_threads: int | None = None

    def __post_init__(self) -> None:
        _check_threads(self, "intra_op_threads")


@dataclass(frozen=True, kw_only=True)
class OpenVinoDeployment(DeploymentSettings):
    """Run in OpenVINO (CPU).

    Attributes:
        inference_threads: threads that one inference may use, 1 or more. Default ``None``: OpenVINO chooses.
        performance_hint: ``"LATENCY"`` for one call at a time, ``"THROUGHPUT"`` for calls from several threads.
            Default ``"LATENCY"``.
        inference_precision: the precision of what is not quantized: ``"f32"``, ``"bf16"`` or ``"f16"``. Default
            ``None``: float32; where the activations and weights of all layers are quantized, and the rest holds no
            operator that amplifies rounding (sines, exponents, choices of the largest), OpenVINO chooses for the rest,
            and takes bfloat16 where the CPU has instructions for it. What enters layers with weights of 4 bits
            is rounded to 8 bits in each call, 32 inputs with a scale; ``"f32"`` keeps it in float, which is slower.

    Example:
        >>> OpenVinoDeployment(performance_hint="THROUGHPUT").inference_precision is None
        True
    """

    CHOICES: ClassVar[Mapping[str, tuple[str | None, ...]]] = {
        "performance_hint": ("LATENCY", "THROUGHPUT"),
        "inference_precision": (None, "f32", "bf16", "f16"),
    }

    inference_threads: int | None = None
    performance_hint: str = "LATENCY"
    inference_precision: str | None = None

    def __post_init__(self) -> None:
        _check_threads(self, "inference_threads")
        for field, choices in self.CHOICES.items():
            check_choice(self, field, choices)


@dataclass(frozen=True, kw_only=True)
class TensorRtDeployment(DeploymentSettings):
    """Run in TensorRT (GPU), from an ONNX file with explicit symmetric quantization.

    Where TensorRT and a GPU are there, the engine is built and run; elsewhere the same file runs in ONNX Runtime.

    Example:
        >>> compiled = pb.compile_model(
        ...     model, tracing_inputs=samples, deployment_settings=pb.TensorRtDeployment()
        ... )
        >>> compiled.target
        'tensorrt'
    """


@dataclass(frozen=True, kw_only=True)
class ExecuTorchDeployment(DeploymentSettings):
    """Run as an ExecuTorch program (``.pte``) on phones and small CPUs; XNNPACK computes its operators.

    Attributes:
        max_size_factor: dynamic sizes may grow to this many times those of the tracing inputs, 1 or more; memory is
            planned for the largest. Default ``None``: the largest power of two, 64 at most, with which the plan stays
            below 256 MiB.

    Example:
        >>> ExecuTorchDeployment(max_size_factor=4).max_size_factor
        4
    """

    max_size_factor: int | None = None

    def __post_init__(self) -> None:
        _check_count(self, "max_size_factor", "number")


@dataclass(frozen=True, kw_only=True)
class InductorDeployment(DeploymentSettings):
    """Compile to C++ with PyTorch's Inductor (CPU). Constants are folded into the code. Needs a C++ compiler.

    Example:
        >>> InductorDeployment() == InductorDeployment.from_dict({})
        True
    """


@dataclass(frozen=True, kw_only=True)
class EagerDeployment(DeploymentSettings):
    """Run the captured graph in PyTorch itself, operator by operator: the reference to compare other targets with.

    Example:
        >>> compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=pb.EagerDeployment())
        >>> torch.equal(compiled(samples[0]), model(samples[0]))
        True
    """


def _check_threads(owner: DeploymentSettings, field: str) -> None:
    _check_count(owner, field, "number of threads")


def _check_count(owner: DeploymentSettings, field: str, what: str) -> None:
    value = getattr(owner, field)
    if value is not None and (type(value) is not int or value < 1):
        raise SettingsError(
            f"{type(owner).__name__}.{field} must be None or a positive {what}, got {described(value)}."
        )
