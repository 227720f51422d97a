"""What benchmarks printed, kept with the day, the machine and the versions, and shown on ``docs/figures.md``.

``python -m tests.benchmarks NAME`` writes ``results/NAME.txt``. A page shows it between ``<!-- results: NAME -->`` and
``<!-- end of results -->``; ``python -m tests.benchmarks.results --write`` fills these places in, ``--check`` says
whether they are filled in as they should be.
"""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

from prepbench.command_line.info import installed, machine
from prepbench.storage import write_file

FOLDER = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[2] / "docs" / "figures.md"
PACKAGES = ("torch", "torchao", "onnxruntime", "openvino", "nncf", "nvidia-modelopt", "aimet-torch")
_PLACE = re.compile(r"(<!-- results: (?P<name>[\w-]+) -->\n).*?(<!-- end of results -->)", re.DOTALL)


def kept(name: str, printed: str) -> Path:
    """Write what a benchmark printed to its file, below where, when and with what it ran."""
    facts = machine()
    versions = [f"{package} {found}" for package in PACKAGES if (found := installed(package)) != "not installed"]
    header = [
        f"command: python -m tests.benchmarks {name}",
        f"date: {time.strftime('%Y-%m-%d')}",
        f"machine: {facts['processor']}, {facts['cores']} cores, {facts['memory']}, GPU: {facts['GPU']}",
        f"versions: {', '.join(versions)}",
    ]
    FOLDER.mkdir(exist_ok=True)
    return write_file(FOLDER / f"{name}.txt", "\n".join([*header, "", printed.strip("\n")]) + "\n")


def rendered(page: str) -> str:
    """The text of a page with every place filled in from its file."""
    return _PLACE.sub(lambda match: f"{match[1]}{_block(match['name'])}\n{match[3]}", page)


def _block(name: str) -> str:
    return f"```text\n{(FOLDER / f'{name}.txt').read_text(encoding='utf-8').rstrip()}\n```"


def main() -> int:
    """Fill in the page, or check that it is; returns 1 if it is not."""
    page = PAGE.read_text(encoding="utf-8")
    if "--write" in sys.argv[1:]:
        write_file(PAGE, rendered(page))
        return 0
    if rendered(page) != page:
        print(f"{PAGE} differs from the results: run python -m tests.benchmarks.results --write", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
