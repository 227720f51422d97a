"""All modules of the zoo."""

from tests.fixes.zoo import arrays, branches, calls, effects, habits, loops, masks, numbers, places  # noqa: F401
from tests.fixes.zoo.case import CASES

__all__ = ["CASES"]
