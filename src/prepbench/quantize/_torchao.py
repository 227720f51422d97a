"""torchao, imported when first needed and without its import-time messages, so that a user's output stays clean."""

from __future__ import annotations

import functools
from types import SimpleNamespace

from prepbench.patching import logs_dropped_here, warnings_ignored_here


@functools.cache
def pt2e() -> SimpleNamespace:
    """The parts of torchao's PT2E that prepbench uses."""
    with logs_dropped_here(), warnings_ignored_here():
        from torchao.quantization.pt2e import constant_fold, qat_utils, quantize_pt2e, utils
        from torchao.quantization.pt2e.observer import ObserverBase, UniformQuantizationObserverBase
        from torchao.quantization.pt2e.prepare import prepare
        from torchao.quantization.pt2e.quantizer import (
            QuantizationAnnotation,
            QuantizationSpec,
            Quantizer,
            SharedQuantizationSpec,
        )
    return SimpleNamespace(
        ObserverBase=ObserverBase,
        UniformQuantizationObserverBase=UniformQuantizationObserverBase,
        QuantizationAnnotation=QuantizationAnnotation,
        QuantizationSpec=QuantizationSpec,
        Quantizer=Quantizer,
        SharedQuantizationSpec=SharedQuantizationSpec,
        convert_pt2e=quantize_pt2e.convert_pt2e,
        ConstantFolder=constant_fold.ConstantFolder,
        qat_utils=qat_utils,
        # of prepare_pt2e, which folds batch norms first: also those of results that something else reads
        scopes=utils._get_node_name_to_scope,
        prepare=prepare,
    )
