"""Quantization through PT2E (torchao): annotate, insert observers, calibrate, convert. Knows no target."""

from prepbench.quantize.pipeline import Observed as Observed
from prepbench.quantize.pipeline import calibrate as calibrate
from prepbench.quantize.pipeline import check_calibration as check_calibration
from prepbench.quantize.pipeline import choose_forms as choose_forms
from prepbench.quantize.pipeline import convert as convert
from prepbench.quantize.pipeline import insert_observers as insert_observers
from prepbench.quantize.placement import Placement as Placement
from prepbench.quantize.report import LayerReport as LayerReport

__all__ = [
    "LayerReport",
    "Observed",
    "Placement",
    "calibrate",
    "check_calibration",
    "choose_forms",
    "convert",
    "insert_observers",
]
