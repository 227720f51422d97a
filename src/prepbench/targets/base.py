"""The interface of a deployment target: what it wants, how it lowers a program, how its result is saved and loaded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from prepbench.document.model import Failure
from prepbench.jobs import ProgressCallback, report_nothing
from prepbench.quantize import Placement
from prepbench.settings import DeploymentSettings


@dataclass(frozen=True)
class Lowering:
    """What a target gets.

    Attributes:
        program: a flat program: leaves in, tuple of leaves out (see ``_torch_compat.flat_program``).
        input_names: a name for each input leaf, e.g. ``"input_ids"``.
        output_names: a name for each output leaf, e.g. ``"logits"``.
        dimension_names: readable names of the dynamic sizes, by the symbols in the program.
        leaves: the modules that are one opaque operator in it.
        keep_alive: what the operators of leaves call into; to be held as long as the program runs.
        progress: for long stages.
    """

    program: torch.export.ExportedProgram
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    dimension_names: dict[str, str]
    leaves: tuple[Failure, ...] = ()
    keep_alive: object = None
    progress: ProgressCallback = report_nothing


class Runtime(ABC):
    """A lowered program that runs: leaves in, leaves out."""

    @abstractmethod
    def run(self, leaves: Sequence[Any]) -> Sequence[Any]:
        """Compute the output leaves; inputs are not changed."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write what :meth:`Target.load` needs into an existing folder."""


class Target(ABC):
    """One deployment target; registered by the type of its settings."""

    name: ClassVar[str]
    settings_type: ClassVar[type[DeploymentSettings]]
    placement: ClassVar[Placement] = Placement()

    @abstractmethod
    def check_available(self) -> None:
        """Raise ``MissingPackageError`` with the install command when something it needs is missing."""

    def check_leaves(self, leaves: Sequence[Failure]) -> None:  # noqa: B027 (most targets run leaves)
        """Raise ``TargetError`` when the target cannot run leaf-wrapped modules; by default it can."""

    def unsupported_nodes(self, program: torch.export.ExportedProgram) -> Sequence[torch.fx.Node]:
        """The nodes whose operator the target has no kernel or translation for; none by default."""
        return ()

    @abstractmethod
    def lower(self, lowering: Lowering, settings: DeploymentSettings) -> Runtime:
        """Turn a program into something that runs on the target."""

    def write_onnx(self, lowering: Lowering, folder: Path) -> Path:
        """Write a program as ``folder/model.onnx``: as ONNX Runtime wants it, unless the target reads ONNX itself.

        Raises:
            TargetError: an operator has no ONNX form.
        """
        from prepbench.targets.onnx.export import export_onnx  # it builds on this module

        return export_onnx(lowering, folder)

    @abstractmethod
    def load(self, folder: Path, settings: DeploymentSettings) -> Runtime:
        """Read what :meth:`Runtime.save` wrote."""
