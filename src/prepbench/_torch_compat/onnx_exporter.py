"""What torch's exporter to ONNX does before it translates (``torch.onnx._internal``)."""

from __future__ import annotations

import importlib
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


@contextmanager
def translations_read_once() -> Iterator[None]:
    """Inside the block, the exporter does not parse the sources of onnxscript's translations again, in this thread.

    It does so in every export, which takes longer than all the rest for a small model. What was read before is taken
    again for as long as onnxscript's registry holds the same functions.
    """
    with needed_for("reading the translations to ONNX once"):
        from onnxscript.function_libs.torch_lib import registration

        owner = importlib.import_module("torch.onnx._internal.exporter._registration").onnxscript_apis
        read = owner.get_torchlib_ops
        registry = registration.default_registry

    def kept() -> list[Any]:
        functions = tuple((name, *each.overloads, None, *each.complex) for name, each in registry.items())
        if _TRANSLATIONS.get("functions") != functions:
            _TRANSLATIONS.update(functions=(), read=read())
            _TRANSLATIONS["functions"] = functions
        return list(_TRANSLATIONS["read"])

    with patched_here(owner, "get_torchlib_ops", kept):
        yield


@contextmanager
def rules_tried_where_they_can_match() -> Iterator[None]:
    """Inside the block, onnxscript tries a rule at nodes of the operator that it begins with only, in this thread.

    It would go through the whole graph at each node for a rule with several outputs, and find nothing.
    """
    with needed_for("trying rules of onnxscript where they can match"):
        from onnxscript.rewriter import RewriteRule

        rewrite = RewriteRule.try_rewrite

    def tried(rule: Any, model: Any, graph: Any, node: Any, **options: Any) -> Any:
        first = rule._target_pattern.output_nodes[0].op_identifier()
        if first is not None and (first[0] != node.domain or first[1] != node.op_type):
            return None
        return rewrite(rule, model, graph, node, **options)

    with patched_here(RewriteRule, "try_rewrite", tried):
        yield


_TRANSLATIONS: dict[str, Any] = {}
