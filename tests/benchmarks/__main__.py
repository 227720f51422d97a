"""``make bench``: runs every ``bench_*.py`` here, one after the other, and prints what they measure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def main() -> int:
    """Run all benchmarks, or those named on the command line; returns 1 if any failed."""
    chosen = sys.argv[1:] or sorted(path.stem for path in FOLDER.glob("bench_*.py"))
    failed = []
    for name in chosen:
        print(f"\n=== {name.removeprefix('bench_')} ===", flush=True)
        if subprocess.run([sys.executable, "-m", f"tests.benchmarks.{name}"], cwd=FOLDER.parents[1]).returncode:
            failed.append(name)
    if failed:
        print(f"\nFailed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
