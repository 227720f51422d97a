"""The base class of a pass over Inductor's graphs; importing this module loads Inductor."""

from __future__ import annotations

from prepbench._torch_compat.checks import needed_for

with needed_for("a pass of our own in Inductor"):
    from torch._inductor.custom_graph_pass import CustomGraphPass as CustomGraphPass
