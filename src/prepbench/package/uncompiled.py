"""A model of which nothing compiles: it runs in Python, behind the interface of a compiled one."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import nn

from prepbench.document.model import Failure
from prepbench.errors import DocumentError, SettingsError, TargetError
from prepbench.inputs import Sample
from prepbench.package.compiled import CompiledModel
from prepbench.package.report import CompileReport
from prepbench.settings import DeploymentSettings


class NothingCompiledError(SettingsError):
    """Raised if layers are to be quantized, and the whole model is one leaf module."""

    def __init__(self, text: str, why: Failure) -> None:
        super().__init__(text)
        self.failures = (why,)


class UncompiledModel(CompiledModel):
    """The whole model as one leaf module, with the results and the speed of eager mode.

    Args:
        model: runs, in the mode it is in.
        sample: a call that it takes.
        deployment_settings: the intended target.
        report: says why nothing is compiled.
    """

    def __init__(
        self, model: nn.Module, sample: Sample, deployment_settings: DeploymentSettings, report: CompileReport
    ) -> None:
        nn.Module.__init__(self)
        self._python = (model,)  # in a tuple, because its parameters are not those of this module
        self._sample = sample
        self.deployment_settings = deployment_settings
        self.report = report
        self.eval()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model."""
        with torch.no_grad():
            return self._python[0](*args, **kwargs)

    @property
    def needs_model(self) -> tuple[str, ...]:
        """The whole model; but it cannot be saved."""
        return ("the model itself",)

    def document(self) -> NoReturn:
        """Raise ``DocumentError``: there is no graph."""
        raise DocumentError(f"{self._why()} pb.recursive_trace(model, inputs=...) shows the graphs of its parts.")

    def initialize_algorithms(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise ``SettingsError``: there is no layer that could be quantized."""
        raise SettingsError(f"{self._why()} Rewrite the line that is named there, then compile again.")

    def generate_dummy_inputs(self, seed: int = 0) -> Sample:
        """Return its tracing sample."""
        return self._sample

    def save(self, folder: Any) -> NoReturn:
        """Raise ``TargetError``: its code lives in this process only."""
        raise TargetError(
            f"It cannot be saved. {self._why()} Rewrite the line that is named there, then compile again."
        )

    def export(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise ``TargetError``: it has no ONNX form."""
        raise TargetError(f"It has no ONNX form. {self._why()} Rewrite the line that is named there.")

    def _why(self) -> str:
        why = self.report.remarks[0]
        return f"{why[0].upper()}{why[1:]}."
