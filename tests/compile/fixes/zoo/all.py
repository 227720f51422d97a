"""All modules of the zoo."""

from tests.compile.fixes.zoo import (  # noqa: F401
    arrays,
    branches,
    calls,
    chosen,
    effects,
    everyday,
    habits,
    loops,
    masks,
    numbers,
    places,
    row_blocks,
    rows,
)
from tests.compile.fixes.zoo.case import CASES

__all__ = ["CASES"]
