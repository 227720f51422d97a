"""torchao, imported when first needed and without its import-time messages, so that a user's output stays clean."""

from __future__ import annotations

import functools
import logging
import warnings
from types import SimpleNamespace


@functools.cache
def pt2e() -> SimpleNamespace:
    """The parts of torchao's PT2E that prepbench uses."""
    previous = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from torchao.quantization.pt2e import MinMaxObserver, PerChannelMinMaxObserver
            from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
            from torchao.quantization.pt2e.quantizer import QuantizationAnnotation, QuantizationSpec, Quantizer
    finally:
        logging.disable(previous)
    return SimpleNamespace(
        MinMaxObserver=MinMaxObserver,
        PerChannelMinMaxObserver=PerChannelMinMaxObserver,
        QuantizationAnnotation=QuantizationAnnotation,
        QuantizationSpec=QuantizationSpec,
        Quantizer=Quantizer,
        convert_pt2e=convert_pt2e,
        prepare_pt2e=prepare_pt2e,
    )
