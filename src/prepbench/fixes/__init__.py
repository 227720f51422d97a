"""Changes to a model's source that let it be captured, proven against the original.

Each kind of change is one file in :mod:`prepbench.fixes.kinds`. What they share is here: finding a function's source
and what its expressions are on samples, running a model with other code, and the proof that it computes the same.
"""

from prepbench.fixes.attached import fix_of
from prepbench.fixes.cannot_fix import CannotFix
from prepbench.fixes.fixing import fix
from prepbench.fixes.results import Draft, Fix, Fixed, assumptions_of

__all__ = ["CannotFix", "Draft", "Fix", "Fixed", "assumptions_of", "fix", "fix_of"]
