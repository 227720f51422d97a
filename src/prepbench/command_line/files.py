"""Read untrusted files: whole, within a limit, and never executed."""

from __future__ import annotations

import stat
from pathlib import Path

from prepbench.errors import DocumentError, sentence


def read_bounded(path: str, limit: int, what: str) -> bytes:
    """Return the bytes of a regular file.

    Raises:
        DocumentError: there is no such file, it is not a regular file, or it is too large.
    """
    place = Path(path)
    try:
        status = place.stat()
        if not stat.S_ISREG(status.st_mode):
            raise DocumentError(f"{place} is not a regular file, so it is not {what}.")
        if status.st_size > limit:
            raise DocumentError(f"{place} has {status.st_size} bytes, and {what} has at most {limit}.")
        return place.read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, DocumentError):
            raise
        reason = getattr(error, "strerror", None) or sentence(error)
        raise DocumentError(f"{place} cannot be read: {reason.rstrip('.')}. Give the path of {what}.") from error
