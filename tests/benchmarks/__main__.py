"""``make bench``: runs every ``bench_*.py`` here, one after the other, and prints and keeps what they measure.

``python -m tests.benchmarks NAME...`` runs those that are named, with or without ``bench_``. What follows ``--`` are
arguments of the benchmark, ``python -m tests.benchmarks generation -- --type float16``; what it prints with them has a
file of its own. ``results`` says where what they print goes.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.results import busy, kept

FOLDER = Path(__file__).parent
LIMIT_MISSED = 1


def main() -> int:
    """Run all benchmarks, or those named on the command line; returns 1 if any failed or missed its limits."""
    every = sorted(path.stem.removeprefix("bench_") for path in FOLDER.glob("bench_*.py"))
    names, arguments = sys.argv[1:], []
    if "--" in names:
        names, arguments = names[: names.index("--")], names[names.index("--") + 1 :]
    chosen = [name.removeprefix("bench_") for name in names] or every
    if unknown := [name for name in chosen if name not in every]:
        print(f"There is no benchmark {', '.join(unknown)}. Choose among {', '.join(every)}.", file=sys.stderr)
        return 2
    if arguments and len(chosen) > 1:
        print("Arguments are those of one benchmark: name it before --.", file=sys.stderr)
        return 2
    failed = [name for name in chosen if not run(name, arguments)]
    if failed:
        print(f"\nFailed, or missed a limit: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


def run(name: str, arguments: Sequence[str] = ()) -> bool:
    """Run one benchmark, print what it prints as it comes, and keep it; a limit that it misses is kept, too.

    Returns:
        Whether it ran to its end and met its limits.
    """
    print(f"\n=== {name} ===", flush=True)
    command = [sys.executable, "-u", "-m", f"tests.benchmarks.bench_{name}", *arguments]
    before, printed = busy(), []
    with tempfile.TemporaryFile("w+") as complaints:
        with subprocess.Popen(
            command, cwd=FOLDER.parents[1], stdout=subprocess.PIPE, stderr=complaints, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
                printed.append(line)
        complaints.seek(0)
        said = complaints.read()
    sys.stderr.write(said)
    # what Python prints of an error, which ends with the same status
    if process.returncode not in (0, LIMIT_MISSED) or (process.returncode and "\nTraceback (most" in f"\n{said}"):
        return False
    if not "".join(printed).strip():
        print(f"{name} printed nothing.", file=sys.stderr)
        return False
    path = kept(name, "".join(printed), arguments, missed=process.returncode == LIMIT_MISSED, load=before)
    print(f"kept in {path}")
    return process.returncode == 0


if __name__ == "__main__":
    raise SystemExit(main())
