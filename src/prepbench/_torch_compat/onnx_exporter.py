"""What torch's exporter to ONNX does before it translates (``torch.onnx._internal``)."""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from prepbench.patching import patched_here

Program = torch.export.ExportedProgram


@contextmanager
def decomposing(decomposed: Callable[[Program, Callable[[], Program]], Program]) -> Iterator[None]:
    """Inside the block, the exporter's decomposition of a program goes through ``decomposed``, in this thread.

    It is called with the program and a function that decomposes it.
    """
    passes = _module("torch.onnx._internal.exporter._fx_passes")
    decompose = getattr(passes, "decompose_with_registry", None)
    if decompose is None:  # the exporter does it alone, and keeps nothing for the next time
        yield
        return

    def through(program: Program, table: Any) -> Program:
        return decomposed(program, lambda: decompose(program, table))

    with patched_here(passes, "decompose_with_registry", through):
        yield


@contextmanager
def translations_read_once() -> Iterator[None]:
    """Inside the block, the exporter does not parse the sources of onnxscript's translations again, in this thread.

    It does so in every export, which takes longer than all the rest for a small model. What was read before is taken
    again for as long as onnxscript's registry holds the same functions.
    """
    owner = getattr(_module("torch.onnx._internal.exporter._registration"), "onnxscript_apis", None)
    read = getattr(owner, "get_torchlib_ops", None)
    registry = getattr(_module("onnxscript.function_libs.torch_lib.registration"), "default_registry", None)
    if read is None or registry is None:  # they are read again, which takes longer
        yield
        return

    def kept() -> list[Any]:
        functions = tuple((name, *each.overloads, None, *each.complex) for name, each in registry.items())
        if _TRANSLATIONS.get("functions") != functions:
            _TRANSLATIONS.update(functions=(), read=read())
            _TRANSLATIONS["functions"] = functions
        return list(_TRANSLATIONS["read"])

    with patched_here(owner, "get_torchlib_ops", kept):
        yield


@contextmanager
def exact_rules() -> Iterator[bool]:
    """Inside the block, rules of onnxscript's optimizer keep what a graph computes, in this thread.

    They take a constant of 1e-9 for zero and one of 1.000001 for one, so that an addition and a product disappear, and
    they give the constants that they make names which others have. Here whole numbers in a rule match no others, real
    ones match by their relative difference, and names are new.

    A rule is tried at nodes of the operator that it begins with only. It would go through the whole graph at each node
    for a rule with several outputs, and find nothing.

    What it gives says whether that holds. Where onnxscript has its rules under other names, they must not run.
    """
    rule_type = getattr(_module("onnxscript.rewriter"), "RewriteRule", None)
    matcher_type = getattr(_module("onnxscript.rewriter._matcher"), "SimplePatternMatcher", None)
    rewrite, match = getattr(rule_type, "try_rewrite", None), getattr(matcher_type, "_match_constant", None)
    if rewrite is None or match is None:
        yield False
        return

    def tried(rule: Any, model: Any, graph: Any, node: Any, **options: Any) -> Any:
        first = rule._target_pattern.output_nodes[0].op_identifier()
        if first is not None and (first[0] != node.domain or first[1] != node.op_type):
            return None
        found = rewrite(rule, model, graph, node, **options)
        for constant in getattr(found, "new_initializers", None) or ():
            taken = graph.initializers
            if constant.name in taken:
                constant.name = next(
                    name for number in itertools.count(1) if (name := f"{constant.name}_{number}") not in taken
                )
        return found

    def matched(matcher: Any, pattern: Any, value: Any) -> bool:
        if not match(matcher, pattern, value):
            return False
        wanted = pattern.value if isinstance(pattern.value, list) else [pattern.value]
        given = value.const_value.numpy().reshape(-1).tolist()
        is_same = all(
            one == other if isinstance(one, int) or not other else math.isclose(one, other, rel_tol=1e-5)
            for one, other in zip(wanted, given, strict=True)
        )
        return is_same or bool(matcher.fail(f"{value.name} is not exactly {pattern.value}."))

    with (
        patched_here(rule_type, "try_rewrite", tried),
        patched_here(matcher_type, "_match_constant", matched),
    ):
        yield True


_TRANSLATIONS: dict[str, Any] = {}


def _module(name: str) -> Any:
    """A module of torch's exporter or onnxscript; ``None`` where this version has none of that name."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
