"""The whole way through the bench in JupyterLab for a detector of 40 layers: clicks, and seconds from the cell to code.

The test of the flow does it, and two tests share the machine where all run. Here it is alone.
"""

from __future__ import annotations

import re
import subprocess
import sys

MOST_CLICKS, MOST_SECONDS = 14, 60


def main() -> int:
    """Print what the flow took; returns 1 if it failed or took more."""
    place = "tests/system/browser/test_bench_flow.py"
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-m", "browser", place]
    ended = subprocess.run(command, text=True, capture_output=True, check=False)
    told = re.search(r"(\d+) clicks and keys, (\d+) s", ended.stdout)
    if told is None:
        print(ended.stdout[-4000:])
        return 1
    clicks, seconds = map(int, told.groups())
    print(f"{clicks} clicks and keys (at most {MOST_CLICKS}), {seconds} s (at most {MOST_SECONDS})")
    return int(ended.returncode != 0 or clicks > MOST_CLICKS or seconds > MOST_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
