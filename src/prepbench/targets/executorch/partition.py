"""What XNNPACK gets: what ExecuTorch's own rules give it, and linear layers of which only the weights are quantized."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from prepbench.targets.executorch.weights import has_dynamic_sizes, is_between_quantizers


def partitioner() -> Any:
    """The partitioner for a program whose weights are in the forms of ``weights.fit_weights``."""
    from executorch.backends.xnnpack.partition.config import ALL_PARTITIONER_CONFIGS
    from executorch.backends.xnnpack.partition.config.gemm_configs import ConvolutionConfig, LinearConfig
    from executorch.backends.xnnpack.partition.config.generic_node_configs import (
        ConstantPadConfig,
        MeanDimConfig,
        UnsqueezeCopyConfig,
    )
    from executorch.backends.xnnpack.partition.config.xnnpack_config import ConfigPrecisionType
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.backends.xnnpack.utils.quant_utils import is_dequant, is_quant, tag_as_implicit_q_dq

    class LinearOrWeightsOnly(LinearConfig):  # type: ignore[misc]
        """XNNPACK multiplies float by integers of 8 or 4 bits; the package's rule asks for quantized activations."""

        def get_deps(self, node: fx.Node, program: torch.export.ExportedProgram) -> tuple[bool, list[fx.Node]]:
            weights_only = is_dequant(node.args[1]) and not is_between_quantizers(node)
            valid, found = self._get_weight_deps(node, program, ConfigPrecisionType.STATIC_QUANT)
            if not weights_only or not valid:
                valid, found = super().get_deps(node, program)
                return bool(valid), list(found)
            _, activation = self._get_output_deps(node, program, ConfigPrecisionType.FP32)
            tag_as_implicit_q_dq(node.args[1])
            return True, [*found, *activation]

    class Convolution(ConvolutionConfig):  # type: ignore[misc]
        """One over a line becomes one over an image, with a reshape before it."""

        def check_constraints(self, node: fx.Node, program: torch.export.ExportedProgram) -> bool:
            is_line = node.meta["val"].ndim == 3
            return bool(super().check_constraints(node, program)) and not (is_line and has_dynamic_sizes(node))

    class Unsqueeze(UnsqueezeCopyConfig):  # type: ignore[misc]
        """It is a reshape."""

        def check_constraints(self, node: fx.Node, program: torch.export.ExportedProgram) -> bool:
            return bool(super().check_constraints(node, program)) and not has_dynamic_sizes(node)

    class Mean(MeanDimConfig):  # type: ignore[misc]
        """Its integer kernel writes past the memory that it asks for when a batch is larger than the first."""

        def supported_precision_types(self) -> list[Any]:
            return [ConfigPrecisionType.FP32]

    class Pad(ConstantPadConfig):  # type: ignore[misc]
        """The backend quantizes the result of padding integers, also for layers that read it in float."""

        def check_constraints(self, node: fx.Node, program: torch.export.ExportedProgram) -> bool:
            is_for_floats = is_dequant(node.args[0]) and not any(is_quant(user) for user in node.users)
            return bool(super().check_constraints(node, program)) and not is_for_floats

    own = {
        LinearConfig: LinearOrWeightsOnly,
        ConvolutionConfig: Convolution,
        UnsqueezeCopyConfig: Unsqueeze,
        MeanDimConfig: Mean,
        ConstantPadConfig: Pad,
    }
    return XnnpackPartitioner(configs=[own.get(config, config) for config in ALL_PARTITIONER_CONFIGS])
