"""Sizes that Inductor may expect where they are dynamic."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from prepbench._torch_compat.inductor_pass import CustomGraphPass


class ExpectedSizes(CustomGraphPass):
    """Lets Inductor pack integer weights for the sizes of the example inputs.

    Its passes for weights look at the recorded shape of what is multiplied with them, and pack for no shape in
    particular where one size is symbolic: then oneDNN reorders the weights in each call (torch 2.13). With the
    example's sizes instead they fit those calls, and others are reordered as before. Nothing else reads these records.
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
