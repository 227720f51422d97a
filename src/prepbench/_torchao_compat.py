"""The private parts of torchao that prepbench uses, each behind a feature check with a test.

It is imported when it is first needed, and without its import-time messages, so that a user's output stays clean.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat.checks import needed_for
from prepbench.packages import imported
from prepbench.patching import logs_dropped_here, patched_here, warnings_ignored_here

_HOME = "torchao.quantization.pt2e"


@functools.cache
def pt2e() -> SimpleNamespace:
    """Return the parts of torchao's PT2E that quantization requires.

    Raises:
        MissingPackageError: torchao is not installed, or does not import.
        PackageVersionError: a part was not found.
    """
    with logs_dropped_here(), warnings_ignored_here():
        imported("torchao", "Quantization", "torchao")
        with needed_for("quantization", "torchao"):
            from torchao.quantization.pt2e import quantize_pt2e, utils
            from torchao.quantization.pt2e.observer import ObserverBase, UniformQuantizationObserverBase
            from torchao.quantization.pt2e.prepare import prepare
            from torchao.quantization.pt2e.quantizer import (
                QuantizationAnnotation,
                QuantizationSpec,
                Quantizer,
                SharedQuantizationSpec,
            )

            scopes = utils._get_node_name_to_scope
    return SimpleNamespace(
        ObserverBase=ObserverBase,
        UniformQuantizationObserverBase=UniformQuantizationObserverBase,
        QuantizationAnnotation=QuantizationAnnotation,
        QuantizationSpec=QuantizationSpec,
        Quantizer=Quantizer,
        SharedQuantizationSpec=SharedQuantizationSpec,
        convert_pt2e=quantize_pt2e.convert_pt2e,
        # prepare_pt2e folds batch norms first, even into layers whose results have other readers
        scopes=scopes,
        prepare=prepare,
    )


@contextmanager
def quick_conversion(is_float: Callable[[fx.Node], bool]) -> Iterator[None]:
    """Skip unneeded steps of torchao's conversion in this thread during the block.

    If a version has these parts under other names, the conversion gives the same result and takes longer.

    Args:
        is_float: whether a node gives a weight that is not stored so.
    """
    with ExitStack() as stack:
        # It looks for batch norms of quantization-aware training, which are never here, by exporting patterns for
        # seconds; the examples for these patterns are drawn even so.
        drawn = functools.partial(torch.randn, generator=torch.Generator())
        stack.enter_context(patched_here(torch, "randn", drawn))
        folder, batch_norms = _part("constant_fold", "ConstantFolder"), _part("qat_utils")
        if hasattr(batch_norms, _FOLDING):
            stack.enter_context(patched_here(batch_norms, _FOLDING, lambda graph, *_, **__: graph))
        if hasattr(folder, "_deduce_value") and "unknown_value" in _names_in(folder):
            value_of = folder._deduce_value
            # it would compute all weights in float32 before it finds that only what quantizers give is wanted
            stack.enter_context(
                patched_here(
                    folder,
                    "_deduce_value",
                    lambda self, node: self.unknown_value if is_float(node) else value_of(self, node),
                )
            )
        yield


_FOLDING = "_fold_conv_bn_qat_helper"


def missing_shortcuts() -> list[str]:
    """Return the parts that a quick conversion skips and that this version lacks under their known names."""
    places = {f"qat_utils.{_FOLDING}": _part("qat_utils", _FOLDING)}
    places["constant_fold.ConstantFolder._deduce_value"] = getattr(
        _part("constant_fold", "ConstantFolder"), "_deduce_value", None
    )
    return [f"{_HOME}.{name}" for name, part in places.items() if part is None]


def _part(module: str, name: str = "") -> Any:
    """Return a module of PT2E, or a name in it; ``None`` where there is none."""
    try:
        with logs_dropped_here(), warnings_ignored_here():
            found = importlib.import_module(f"{_HOME}.{module}")
    except ImportError:
        return None
    return getattr(found, name, None) if name else found


def _names_in(kind: type) -> set[str]:
    """Return the attribute names that the methods of a class use."""
    codes = (getattr(value, "__code__", None) for value in vars(kind).values())
    return {name for code in codes if code is not None for name in code.co_names}
