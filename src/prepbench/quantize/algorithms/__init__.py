"""Changes of the float graph that make it easier to quantize; its results stay the same up to rounding."""

from prepbench.quantize.algorithms.batch_norms import fold_batch_norms as fold_batch_norms
from prepbench.quantize.algorithms.equalize import equalize as equalize
from prepbench.quantize.algorithms.equalize import settings_of_scales as settings_of_scales
from prepbench.quantize.algorithms.smooth import ASKED_FOR as ASKED_FOR
from prepbench.quantize.algorithms.smooth import UNASKED as UNASKED
from prepbench.quantize.algorithms.smooth import Worth as Worth
from prepbench.quantize.algorithms.smooth import smooth as smooth

__all__ = ["ASKED_FOR", "UNASKED", "Worth", "equalize", "fold_batch_norms", "settings_of_scales", "smooth"]
