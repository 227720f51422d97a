"""What users are told when their torch lacks a private part that prepbench needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prepbench.errors import TorchVersionError, sentence

TESTED = "torch>=2.11,<2.14"


@contextmanager
def needed_for(purpose: str) -> Iterator[None]:
    """Turn a failed import or lookup inside the block into an error that says what is missing and what to do.

    Only imports and lookups of torch's private parts belong inside, never code of the user's.

    Raises:
        TorchVersionError: something was not found.
    """
    try:
        yield
    except TorchVersionError:
        raise
    except (ImportError, AttributeError) as error:
        import torch

        raise TorchVersionError(
            f"torch {torch.__version__} lacks a private part that prepbench needs for {purpose}: {sentence(error)} "
            f"Install a version that prepbench is tested with: pip install '{TESTED}'."
        ) from error
