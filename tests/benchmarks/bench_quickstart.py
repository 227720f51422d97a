"""What the quickstart's comparison says: accuracy, time and size of a network for digits, in float and in int8.

Runs ``make demo``'s program, ``notebooks/demo.py``, and prints its table.

``python -m tests.benchmarks.bench_quickstart``
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[2] / "notebooks" / "demo.py"


def table(printed: str) -> str:
    """What the program prints between the line that names the notebook and the one that names its files."""
    return printed.partition("...\n")[2].partition("\nDone in")[0].strip()


def main() -> int:
    """Print the table; returns what the program returned."""
    done = subprocess.run([sys.executable, str(DEMO)], stdout=subprocess.PIPE, text=True)
    print(table(done.stdout))
    return done.returncode


if __name__ == "__main__":
    raise SystemExit(main())
