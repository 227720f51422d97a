"""Operators that XNNPACK gets where ExecuTorch's own rules are wrong for us; importing this loads ExecuTorch."""

from __future__ import annotations

from typing import Any

import torch
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
from torch import fx

from prepbench.targets.executorch.replaced import has_dynamic_sizes, is_between_quantizers

Program = torch.export.ExportedProgram


class Linear(LinearConfig):  # type: ignore[misc]
    """Also layers of which only the weights are quantized: XNNPACK multiplies float by 8-bit or 4-bit integers."""

    def get_deps(self, node: fx.Node, program: Program) -> tuple[bool, list[fx.Node]]:
        weights_only = is_dequant(node.args[1]) and not is_between_quantizers(node)
        valid, found = self._get_weight_deps(node, program, ConfigPrecisionType.STATIC_QUANT)
        if not weights_only or not valid:
            valid, found = super().get_deps(node, program)
            return bool(valid), list(found)
        _, activation = self._get_output_deps(node, program, ConfigPrecisionType.FP32)
        tag_as_implicit_q_dq(node.args[1])
        return True, [*found, *activation]


class Convolution(ConvolutionConfig):  # type: ignore[misc]
    """Not 1d convolutions of dynamic sizes: they become 2d convolutions after a reshape."""

    def check_constraints(self, node: fx.Node, program: Program) -> bool:
        is_1d = node.meta["val"].ndim == 3
        return bool(super().check_constraints(node, program)) and not (is_1d and has_dynamic_sizes(node))


class Unsqueeze(UnsqueezeCopyConfig):  # type: ignore[misc]
    """Not with dynamic sizes: it becomes a reshape."""

    def check_constraints(self, node: fx.Node, program: Program) -> bool:
        return bool(super().check_constraints(node, program)) and not has_dynamic_sizes(node)


class Mean(MeanDimConfig):  # type: ignore[misc]
    """Not in integers: the kernel writes past its memory when a batch is larger than the first one."""

    def supported_precision_types(self) -> list[Any]:
        return [ConfigPrecisionType.FP32]


class Pad(ConstantPadConfig):  # type: ignore[misc]
    """Not of integers that a layer reads in float: XNNPACK quantizes the result nevertheless."""

    def check_constraints(self, node: fx.Node, program: Program) -> bool:
        is_read_in_float = is_dequant(node.args[0]) and not any(is_quant(user) for user in node.users)
        return bool(super().check_constraints(node, program)) and not is_read_in_float


REPLACED = {
    LinearConfig: Linear,
    ConvolutionConfig: Convolution,
    UnsqueezeCopyConfig: Unsqueeze,
    MeanDimConfig: Mean,
    ConstantPadConfig: Pad,
}


def partitioner() -> Any:
    """Return the partitioner for a program whose weights ``fit_to_xnnpack`` has rewritten."""
    return XnnpackPartitioner(configs=[REPLACED.get(config, config) for config in ALL_PARTITIONER_CONFIGS])
