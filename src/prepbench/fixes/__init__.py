"""Change a model's source so that it can be captured, and prove the change against the original.

Each kind of change is one file in :mod:`prepbench.fixes.kinds`. The shared parts are here: finding a function's
source and the values of its expressions on samples, running a model with other code, and proving that it computes
the same.
"""

from prepbench.fixes.results import Draft, Fix, Fixed, assumptions_of
from prepbench.fixes.search import fix, fix_of
from prepbench.fixes.syntax import CannotFix

__all__ = ["CannotFix", "Draft", "Fix", "Fixed", "assumptions_of", "fix", "fix_of"]
