"""PyTorch itself runs the exported graph, operator by operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from prepbench.quantize import Placement
from prepbench.settings import DeploymentSettings, EagerDeployment
from prepbench.targets.base import NO_LEAVES, Lowering, Runtime, Target
from prepbench.targets.programs import load_program, save_program, written_buffers


class EagerRuntime(Runtime):
    """The program as a module."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        self._program = program
        self._module = program.module(check_guards=False)
        # weights are shared with the original model, but not the buffers that the program changes in each call
        for name in written_buffers(program):
            owner, _, attribute = program.graph_signature.inputs_to_buffers[name].rpartition(".")
            module = self._module.get_submodule(owner)
            setattr(module, attribute, getattr(module, attribute).clone())

    def run(self, leaves: Sequence[Any]) -> Sequence[Any]:
        outputs: Sequence[Any] = self._module(*leaves)
        return outputs

    def save(self, folder: Path) -> None:
        save_program(self._program, folder)


class EagerTarget(Target):
    """The reference target."""

    name = "eager"
    display_name = "PyTorch eager"
    settings_type = EagerDeployment
    runs_leaves = True
    placement = Placement(tables=True)

    def lower(self, lowering: Lowering, settings: DeploymentSettings) -> Runtime:
        return EagerRuntime(lowering.program)

    def load(
        self,
        folder: Path,
        settings: DeploymentSettings,
        *,
        allow_code: bool = False,
        leaves: Mapping[str, str] = NO_LEAVES,
    ) -> Runtime:
        return EagerRuntime(load_program(folder, allow_code=allow_code, leaves=leaves))
