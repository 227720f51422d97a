"""Where a compiled model shall run."""

from __future__ import annotations

from dataclasses import dataclass

from prepbench.errors import SettingsError
from prepbench.settings.validation import Settings


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
        if self.intra_op_threads is not None and (type(self.intra_op_threads) is not int or self.intra_op_threads < 1):
            raise SettingsError(
                "OnnxRuntimeDeployment.intra_op_threads must be None or a positive number of threads, "
                f"got {self.intra_op_threads!r}."
            )


@dataclass(frozen=True, kw_only=True)
class InductorDeployment(DeploymentSettings):
    """Compile with PyTorch's Inductor (CPU), with constants folded into the code; needs a C++ compiler."""


@dataclass(frozen=True, kw_only=True)
class EagerDeployment(DeploymentSettings):
    """Run the captured graph in PyTorch itself, operator by operator: the reference to compare other targets with."""
