"""What torch's exporter to ONNX does before it translates (``torch.onnx._internal``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from prepbench._torch_compat.checks import needed_for
from prepbench.patching import patched_here

Program = torch.export.ExportedProgram


@contextmanager
def decomposing(decomposed: Callable[[Program, Callable[[], Program]], Program]) -> Iterator[None]:
    """Inside the block, the exporter's decomposition of a program goes through ``decomposed``, in this thread.

    It is called with the program and a function that decomposes it.
    """
    with needed_for("decomposing programs for ONNX"):
        from torch.onnx._internal.exporter import _fx_passes

        decompose = _fx_passes.decompose_with_registry

    def through(program: Program, table: Any) -> Program:
        return decomposed(program, lambda: decompose(program, table))

    with patched_here(_fx_passes, "decompose_with_registry", through):
        yield
