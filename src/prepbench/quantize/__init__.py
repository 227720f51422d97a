"""Quantization through PT2E (torchao): annotate, insert observers, calibrate, convert. Knows no target."""

from prepbench.quantize.accounting import Account as Account
from prepbench.quantize.calibration import calibrate as calibrate
from prepbench.quantize.calibration import check_calibration as check_calibration
from prepbench.quantize.conversion import convert as convert
from prepbench.quantize.conversion import weights_to_cast as weights_to_cast
from prepbench.quantize.floors import Score as Score
from prepbench.quantize.input_hessians import products_bytes as products_bytes
from prepbench.quantize.insert import insert_observers as insert_observers
from prepbench.quantize.layer_reports import choose_weight_schemes as choose_weight_schemes
from prepbench.quantize.observed import Observed as Observed
from prepbench.quantize.placement import RECURRENT_IN_FLOAT as RECURRENT_IN_FLOAT
from prepbench.quantize.placement import Constraint as Constraint
from prepbench.quantize.placement import LayerCall as LayerCall
from prepbench.quantize.placement import Placement as Placement
from prepbench.quantize.placement import why_reduce_range as why_reduce_range
from prepbench.quantize.report import LayerReport as LayerReport
from prepbench.quantize.report import TensorReport as TensorReport
from prepbench.quantize.rounding import NEEDS_MOMENTS as NEEDS_MOMENTS
from prepbench.quantize.statistics import Statistics as Statistics
from prepbench.quantize.weights import WeightScheme as WeightScheme

__all__ = [
    "NEEDS_MOMENTS",
    "RECURRENT_IN_FLOAT",
    "Account",
    "Constraint",
    "LayerCall",
    "LayerReport",
    "Observed",
    "Placement",
    "Score",
    "Statistics",
    "TensorReport",
    "WeightScheme",
    "calibrate",
    "check_calibration",
    "choose_weight_schemes",
    "convert",
    "insert_observers",
    "products_bytes",
    "weights_to_cast",
]
