"""``python -m tests.board.share PYTHON``: let another Python of this version import what this one imports."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path


def main() -> None:
    """Write a file that adds this environment's packages to those of the other Python."""
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    other = subprocess.run([sys.argv[1], "-c", ask], check=True, capture_output=True, text=True).stdout.strip()
    # by a call, because a path alone would leave out what is installed in editable mode
    line = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    (Path(other) / "project.pth").write_text(line, encoding="utf-8")


if __name__ == "__main__":
    main()
