"""Registered operators and their translations (``torch._ops``, ``torch.onnx``)."""

from __future__ import annotations

import importlib
import logging
import warnings

import torch


def register_quantized_operators() -> None:
    """Make the operators of converted graphs known to torch, as loading such a graph needs."""
    importlib.import_module("torch.ao.quantization.fx._decomposed")


def without_onnx_translation(program: torch.export.ExportedProgram) -> list[torch.fx.Node]:
    """The nodes, after decomposition, whose operator torch's ONNX exporter has no translation for; it leaves assertions
    out.
    """
    from torch.onnx._internal.exporter import _decomp, _dispatching, _registration

    logger = logging.getLogger(_registration.__name__)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        registry = _registration.ONNXRegistry.from_torchlib()
    finally:
        logger.setLevel(level)
    table = _decomp.create_onnx_friendly_decomposition_table(set(_decomp.get_onnx_implemented_overloads(registry)))
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        graph = program.run_decompositions(table).graph
    return [
        node
        for node in graph.nodes
        if node.op == "call_function"
        and isinstance(node.target, torch._ops.OpOverload | torch._ops.HigherOrderOperator)
        and not str(node.target).startswith("aten._assert")
        and _dispatching.dispatch(node, registry)[0] is None
    ]
