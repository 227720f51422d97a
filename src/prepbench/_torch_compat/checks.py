"""The errors for a torch, or another package, without a private part that prepbench needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prepbench.errors import PackageVersionError, TorchVersionError, sentence
from prepbench.packages import TESTED, installed, untested_remark


@contextmanager
def needed_for(purpose: str, package: str = "torch") -> Iterator[None]:
    """Turn a failed import or lookup inside the block into an error that says what is missing and what to do.

    Only imports and lookups of private parts belong inside, never a user's code.

    Args:
        purpose: the ability that needs it.
        package: whose private part it is, by the name under which pip installs it.

    Raises:
        TorchVersionError: something of torch was not found.
        PackageVersionError: something of another package was not found.
    """
    try:
        yield
    except PackageVersionError:
        raise
    except (ImportError, AttributeError) as error:
        kind = TorchVersionError if package == "torch" else PackageVersionError
        raise kind(
            f"{package} {_version(package)} lacks a private part that prepbench needs for {purpose}: "
            f"{sentence(error)} {untested_remark(package)}Install a version that prepbench is tested with: "
            f"pip install '{tested_requirement(package)}'."
        ) from error


def tested_requirement(package: str) -> str:
    """Return the versions that a package is tested with, as a pip requirement.

    Example:
        >>> tested_requirement("torchao").startswith("torchao>=")
        True
    """
    oldest, newest = TESTED[package]
    head, _, last = newest.rpartition(".")
    below = f"<={newest}" if newest.count(".") > 1 else f"<{head}.{int(last) + 1}"
    return f"{package}>={oldest},{below}"


def _version(package: str) -> str:
    if package == "torch":  # torch appends its build (+cpu, +cu128)
        import torch

        return torch.__version__
    return installed(package)
