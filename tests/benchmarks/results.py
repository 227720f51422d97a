"""What benchmarks printed, kept with the day, the machine and the versions, and shown on pages.

``python -m tests.benchmarks NAME`` writes ``results/NAME.txt``. A page shows it between ``<!-- results: NAME -->`` and
``<!-- end of results -->``; ``python -m tests.benchmarks.results --write`` fills these places in, ``--check`` says
whether they are filled in as they should be.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

from prepbench.command_line.info import machine
from prepbench.packages import installed
from prepbench.storage import write_file

FOLDER = Path(__file__).parent / "results"
ROOT = Path(__file__).parents[2]
PACKAGES = ("torch", "torchao", "onnxruntime", "openvino", "nncf", "nvidia-modelopt", "aimet-torch")
LONGEST = 200  # letters of a file's name, which file systems limit
PLACE = re.compile(r"(<!-- results: (?P<name>[\w.-]+) -->\n).*?(<!-- end of results -->)", re.DOTALL)


def pages() -> list[Path]:
    """The pages that show results."""
    found = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in found if PLACE.search(page.read_text(encoding="utf-8"))]


def file_name(name: str, arguments: Sequence[str] = ()) -> str:
    """The file of a benchmark, and of one with arguments: ``generation-type-float16.txt``; digests end long names."""
    stem = "-".join([name, *re.findall(r"[\w.]+", " ".join(arguments))])
    if len(stem) > LONGEST:
        stem = f"{stem[: LONGEST - 9]}-{zlib.crc32(stem.encode()):08x}"
    return f"{stem}.txt"


def busy() -> float:
    """How many processes wanted the processor in the minute before, on average."""
    return os.getloadavg()[0]


def kept(
    name: str, printed: str, arguments: Sequence[str] = (), *, missed: bool = False, load: float | None = None
) -> Path:
    """Write what a benchmark printed to its file, below where, when and with what it ran.

    Args:
        name: of the benchmark.
        printed: its lines.
        arguments: those that it was given.
        missed: whether it missed a limit of its own.
        load: what :func:`busy` said before it began.
    """
    facts = machine()
    versions = [f"{package} {found}" for package in PACKAGES if (found := installed(package))]
    load = busy() if load is None else load
    threads = os.environ.get("OMP_NUM_THREADS")
    header = [
        " ".join(
            [f"command: python -m tests.benchmarks {name}", *(["--", shlex.join(arguments)] if arguments else [])]
        ),
        f"date: {time.strftime('%Y-%m-%d')}",
        f"machine: {facts['processor']}, {facts['cores']} cores, {facts['memory']}, GPU: {facts['GPU']}",
        f"versions: {', '.join(versions)}",
        f"load before: {load:.1f} processes",
        *([f"threads: OMP_NUM_THREADS={threads}"] if threads else []),
        *(["limits: one or more are missed"] if missed else []),
    ]
    FOLDER.mkdir(exist_ok=True)
    lines = "\n".join(line.rstrip() for line in printed.strip("\n").splitlines())
    return write_file(FOLDER / file_name(name, arguments), "\n".join([*header, "", lines]) + "\n")


def rendered(page: str) -> str:
    """The text of a page with every place filled in from its file."""
    return PLACE.sub(lambda match: f"{match[1]}{_block(match['name'])}\n{match[3]}", page)


def _block(name: str) -> str:
    path = FOLDER / f"{name}.txt"
    if not path.exists():
        return "*Not measured in this revision: the command above prints it.*"
    return f"```text\n{path.read_text(encoding='utf-8').rstrip()}\n```"


def main() -> int:
    """Fill in the pages, or check that they are; returns 1 if one is not."""
    differ = [page for page in pages() if rendered(text := page.read_text(encoding="utf-8")) != text]
    if "--write" in sys.argv[1:]:
        for page in differ:
            write_file(page, rendered(page.read_text(encoding="utf-8")))
        return 0
    for page in differ:
        print(f"{page} differs from the results: run python -m tests.benchmarks.results --write", file=sys.stderr)
    return bool(differ)


if __name__ == "__main__":
    raise SystemExit(main())
