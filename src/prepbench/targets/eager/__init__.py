"""The target ``eager``: PyTorch runs the exported graph, operator by operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from prepbench.quantize import Placement
from prepbench.settings import DeploymentSettings, EagerDeployment
from prepbench.settings.numbers import INT4, INT8, INT16
from prepbench.storage import write_file
from prepbench.targets.base import NO_RECURRENT, NO_TRANSPOSED, NO_TRUST, Lowering, Runtime, Target, Trust
from prepbench.targets.kernel_times import KernelTimes, kernel_times, layers_from_text, layers_of, layers_to_text
from prepbench.targets.programs import load_program, save_program, written_buffers

_LAYERS = "layers.json"


class EagerRuntime(Runtime):
    """The program as a module.

    Args:
        program: the program to run.
        layers: FQNs by names of its operators, where the program does not have them itself.
    """

    def __init__(self, program: torch.export.ExportedProgram, layers: Mapping[str, str | None] | None = None) -> None:
        self._program = program
        self._layers = layers_of(program.graph) if layers is None else layers
        module: Any = program.module(check_guards=False)
        module.validate_inputs = False  # the caller has checked them, and may allow unproven conditions
        _without_returned_assertions(module)
        self._module: torch.fx.GraphModule = module
        # weights are shared with the original model, but not the buffers that the program changes in each call
        for name in written_buffers(program):
            owner, _, attribute = program.graph_signature.inputs_to_buffers[name].rpartition(".")
            holder = module.get_submodule(owner)
            setattr(holder, attribute, getattr(holder, attribute).clone())

    def run(self, leaves: Sequence[Any]) -> Sequence[Any]:
        outputs: Sequence[Any] = self._module(*leaves)
        return outputs

    def kernel_times(self, calls: Sequence[Sequence[Any]], rounds: int) -> KernelTimes:
        return kernel_times(self._module, calls, rounds, self._layers)

    def stored_bits(self) -> Mapping[str, int]:
        tensors = {id(value): name for name, value in self._tensors.items()}
        return {name: 8 * self._tensors[name].nbytes for name in tensors.values()}

    @property
    def _tensors(self) -> dict[str, torch.Tensor]:
        given = {**self._program.constants, **self._program.state_dict}
        return {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}

    def save(self, folder: Path) -> None:
        save_program(self._program, folder)
        write_file(folder / _LAYERS, layers_to_text(self._layers))


def _without_returned_assertions(module: torch.fx.GraphModule) -> None:
    """Leave out assertions on numbers, if the values of those that can fail are outputs, which the caller checks."""
    asserted = module.graph.find_nodes(op="call_function", target=torch.ops.aten._assert_scalar.default)
    compared = [node.args[0] for node in asserted if isinstance(node.args[0], torch.fx.Node)]
    if any(user.target is torch.ops.aten.scalar_tensor.default for one in compared for user in one.users):
        for node in asserted:
            module.graph.erase_node(node)
        module.recompile()


class EagerTarget(Target):
    """The reference target."""

    name = "eager"
    display_name = "PyTorch eager"
    settings_type = EagerDeployment
    runs_leaves = True
    keeps_writes = True
    placement = Placement(activations=(INT4, INT8, INT16), constraints=(NO_TRANSPOSED, NO_RECURRENT))

    def lower(self, lowering: Lowering, settings: DeploymentSettings) -> Runtime:
        return EagerRuntime(lowering.program)

    def load(self, folder: Path, settings: DeploymentSettings, trust: Trust = NO_TRUST) -> Runtime:
        program = load_program(folder, trust)
        return EagerRuntime(program, _noted(folder / _LAYERS))


def _noted(file: Path) -> dict[str, str | None]:
    """Return FQNs by operator names; nothing for folders written without them."""
    try:
        return layers_from_text(file.read_text())
    except (OSError, UnicodeDecodeError):
        return {}
