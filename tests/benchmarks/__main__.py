"""``make bench``: runs every ``bench_*.py`` here, one after the other, and prints and keeps what they measure.

``python -m tests.benchmarks NAME...`` runs those that are named, with or without ``bench_``; ``results`` says where
what they print goes.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.benchmarks.results import kept

FOLDER = Path(__file__).parent


def main() -> int:
    """Run all benchmarks, or those named on the command line; returns 1 if any failed."""
    every = sorted(path.stem.removeprefix("bench_") for path in FOLDER.glob("bench_*.py"))
    chosen = [name.removeprefix("bench_") for name in sys.argv[1:]] or every
    if unknown := [name for name in chosen if name not in every]:
        print(f"There is no benchmark {', '.join(unknown)}. Choose among {', '.join(every)}.", file=sys.stderr)
        return 2
    failed = [name for name in chosen if not run(name)]
    if failed:
        print(f"\nFailed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


def run(name: str) -> bool:
    """Run one benchmark, print what it prints as it comes, and keep it if it succeeds."""
    print(f"\n=== {name} ===", flush=True)
    command = [sys.executable, "-u", "-m", f"tests.benchmarks.bench_{name}"]
    printed = []
    with subprocess.Popen(command, cwd=FOLDER.parents[1], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            printed.append(line)
    if process.returncode:
        return False
    print(f"kept in {kept(name, ''.join(printed))}")
    return True


if __name__ == "__main__":
    raise SystemExit(main())
