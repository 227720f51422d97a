"""Which part of a graph XNNPACK computes."""

from __future__ import annotations

from typing import Any

from prepbench._torch_compat.checks import needed_for


def partitioner() -> Any:
    """The partitioner for a program whose weights ``weights.fit_to_xnnpack`` has rewritten."""
    with needed_for("lowering to XNNPACK", "executorch"):
        from executorch.backends.xnnpack.partition.config import ALL_PARTITIONER_CONFIGS
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    from prepbench.targets.executorch.xnnpack_configs import REPLACED  # loads ExecuTorch

    return XnnpackPartitioner(configs=[REPLACED.get(config, config) for config in ALL_PARTITIONER_CONFIGS])
