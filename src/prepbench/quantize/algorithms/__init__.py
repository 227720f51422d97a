"""Changes of the float graph that make it easier to quantize; its results stay the same up to rounding."""

from prepbench.quantize.algorithms.batch_norms import fold_batch_norms as fold_batch_norms
from prepbench.quantize.algorithms.equalize import equalize as equalize
from prepbench.quantize.algorithms.equalize import settings_of_scales as settings_of_scales
from prepbench.quantize.algorithms.smooth import BY_DEFAULT as BY_DEFAULT
from prepbench.quantize.algorithms.smooth import WHEN_REQUESTED as WHEN_REQUESTED
from prepbench.quantize.algorithms.smooth import SmoothingGain as SmoothingGain
from prepbench.quantize.algorithms.smooth import smooth as smooth

__all__ = [
    "BY_DEFAULT",
    "WHEN_REQUESTED",
    "SmoothingGain",
    "equalize",
    "fold_batch_norms",
    "settings_of_scales",
    "smooth",
]
