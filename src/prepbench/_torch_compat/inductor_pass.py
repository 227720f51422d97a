"""A pass over Inductor's graphs, with size hints for dynamic sizes; importing this module loads Inductor."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from prepbench._torch_compat.checks import needed_for

with needed_for("a pass of our own in Inductor"):
    from torch._inductor.custom_graph_pass import CustomGraphPass as CustomGraphPass


class ExpectedSizes(CustomGraphPass):
    """A pass that makes Inductor pack integer weights for the sizes of the example inputs.

    Inductor packs weights for the recorded shape of what they are multiplied with. Where a size of it is symbolic, it
    packs them for no shape, and oneDNN reorders them in each call (torch 2.13). This pass records the sizes of the
    example inputs instead; only calls of other sizes still reorder. Nothing else reads the recorded shapes.
    """

    def __call__(self, graph: fx.Graph) -> None:
        for node in graph.nodes:
            recorded = node.meta.get("tensor_meta")
            shape = getattr(recorded, "shape", ())
            sizes = [size.node.hint if isinstance(size, torch.SymInt) else size for size in shape]
            if any(isinstance(size, torch.SymInt) for size in shape) and all(isinstance(size, int) for size in sizes):
                node.meta["tensor_meta"] = recorded._replace(shape=torch.Size(sizes))

    def uuid(self) -> Any:
        return "prepbench.ExpectedSizes.1"
