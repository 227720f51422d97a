"""``python -m prepbench``: see :mod:`prepbench.command_line`."""

from __future__ import annotations

from prepbench.command_line.main import main

if __name__ == "__main__":
    raise SystemExit(main())
