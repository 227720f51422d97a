"""Changes to a model's source that make it traceable, checked against the original.

Each kind of change is one file in :mod:`prepbench.fixes.kinds`. What they share is here: finding a function's source,
running an instrumented copy of it, and proving that the changed function computes what the original computes.
"""

from prepbench.fixes.proposals import proposed_rewrites
from prepbench.fixes.results import BranchResult, CannotRewrite, RewriteResult
from prepbench.fixes.rewrite import Rewrite

__all__ = ["BranchResult", "CannotRewrite", "Rewrite", "RewriteResult", "proposed_rewrites"]
