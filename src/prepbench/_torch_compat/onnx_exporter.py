"""The steps of torch's ONNX exporter before its translation (``torch.onnx._internal``)."""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from prepbench.patching import patched_here

Program = torch.export.ExportedProgram


@contextmanager
def decomposing(
    decomposed: Callable[[Program, Callable[[], Program]], Program], further: Mapping[Any, Callable[..., Any]]
) -> Iterator[None]:
    """Route the exporter's decomposition of a program through ``decomposed`` inside the block, in this thread.

    It is called with the program and a function that decomposes it, with ``further`` decompositions by operator.
    """
    passes = _module("torch.onnx._internal.exporter._fx_passes")
    decompose = getattr(passes, "decompose_with_registry", None)
    if decompose is None:  # the exporter does it alone, and keeps nothing for the next time
        yield
        return

    def through(program: Program, registry: Any) -> Program:
        return decomposed(program, lambda: decompose(program, registry))

    with _further_decompositions(further), patched_here(passes, "decompose_with_registry", through):
        yield


@contextmanager
def _further_decompositions(further: Mapping[Any, Callable[..., Any]]) -> Iterator[None]:
    tables, name = _module("torch.onnx._internal.exporter._decomp"), "create_onnx_friendly_decomposition_table"
    made: Any = getattr(tables, name, None)
    if made is None:
        yield
        return
    with patched_here(tables, name, lambda taken: {**made(taken), **further}):
        yield


@contextmanager
def translations_read_once() -> Iterator[None]:
    """Inside the block, the exporter does not read its translations to ONNX again, in this thread.

    Every export parses the sources of onnxscript's, and works the signature of each out from its annotations, which
    takes longer than everything else for a small model. Both are reused as long as onnxscript's registry holds the same
    functions.
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

    with patched_here(owner, "get_torchlib_ops", kept), _signatures_kept():
        yield


@contextmanager
def _signatures_kept() -> Iterator[None]:
    schemas = _module("torch.onnx._internal.exporter._schemas")
    read = getattr(schemas, "op_signature_from_function", None)
    if read is None:
        yield
        return

    def kept(function: Any, *names: str, **options: Any) -> Any:
        if not str(getattr(function, "__module__", "")).startswith(("torch.", "onnxscript.")):
            return read(function, *names, **options)  # a caller's own, which may be made anew for each export
        key = (function, *names, *options.items())
        if key not in _SIGNATURES:
            _SIGNATURES[key] = read(function, *names, **options)
        return _SIGNATURES[key]

    with patched_here(schemas, "op_signature_from_function", kept):
        yield


@contextmanager
def exact_rules() -> Iterator[bool]:
    """Make the rules of onnxscript's optimizer exact inside the block, in this thread.

    Upstream they treat a constant of 1e-9 as zero and one of 1.000001 as one, so that an addition and a product
    disappear, and they reuse existing names for new constants. Here integers in a rule match only themselves, floats
    match by their relative difference, and names are new.

    A rule is tried only at nodes of its first operator. Upstream a rule with several outputs searches the whole
    graph at each node, without a match.

    The yielded value says whether that holds. Where onnxscript has its rules under other names, they must not run.
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
_SIGNATURES: dict[tuple[Any, ...], Any] = {}


def _module(name: str) -> Any:
    """Return a module of torch's exporter or onnxscript; ``None`` where this version lacks it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
