"""Functions with and without what docstrings need, for the test of the check of docstrings."""

from __future__ import annotations


def lacks_all(first: int, second: int) -> int:
    """Divide.

    Args:
        first: what is divided.
    """
    if second == 0:
        raise ValueError("second is 0")
    return first // second


def lacks_nothing(first: int, second: int) -> int:
    """Divide.

    Args:
        first: what is divided.
        second: by this.

    Returns:
        The quotient, rounded down.

    Raises:
        ValueError: ``second`` is 0.
        OverflowError: raised by what this calls.
    """
    if second == 0:
        raise ValueError("second is 0")
    return first // second


def says_it_in_a_sentence() -> int:
    """The number one."""
    return 1


def lacks_sections(first: int) -> int:
    """Give what is given back, unless it is 0."""
    if first == 0:
        raise ValueError("first is 0")
    return first


def _private(first: int) -> int:
    """Nothing is asked of this.

    It has a second paragraph, too.
    """
    return first
