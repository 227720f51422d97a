"""One environment after another, and a table of what differs from the pinned one.

``make versions`` is ``python -m tests.benchmarks versions``, which keeps the table. ``python -m tests.versions [NAME
...] [--short] [--folder FOLDER]`` runs some of it. What is missing of the environments is made (several gigabytes each,
kept in FOLDER), and :mod:`tests.versions.worker` runs in each. A check fails that ends in an error that is not
prepbench's own, in a wrong result, or otherwise than in the pinned environment, where ``differences.txt`` does not say
why.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.versions.worker import RAW

ROOT = Path(__file__).parents[2]
SAVED = Path(__file__).parent / "saved"
KNOWN = Path(__file__).parent / "differences.txt"
REFERENCE = "pinned"
PROCESSES = 2
EXTRAS = "inductor,openvino,lab"
TOOLS = ("scikit-learn", "pytest", "hypothesis", "expecttest")
SHOWN = ("torch", "torchao", "onnx", "onnxscript", "onnxruntime", "openvino", "executorch", "transformers", "numpy",
         "pandas", "plotly", "anywidget")  # fmt: skip
# this machine's pip may hold torch back; only who asks for the newest of all lifts that
UNCAPPED = {"PIP_CONSTRAINT": os.devnull}


@dataclass(frozen=True)
class Environment:
    """What is installed for one column of the table.

    Attributes:
        name: of the column.
        python: versions of Python to take, the first that is found.
        pins: requirements beside prepbench's own.
        settings: variables for pip.
    """

    name: str
    python: tuple[str, ...]
    pins: tuple[str, ...] = ()
    settings: Mapping[str, str] | None = None


def lowest() -> tuple[str, ...]:
    """A pin to the lower bound of each requirement that ``pyproject.toml`` states, also of the extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [each for name in EXTRAS.split(",") for each in project["optional-dependencies"][name]]
    return tuple(each.replace(">=", "==") for each in [*project["dependencies"], *extras] if ">=" in each)


ENVIRONMENTS = (
    Environment(REFERENCE, ("3.11",)),  # what make installs for everything else
    Environment("oldest", ("3.11",), ("transformers==5.0.0", *lowest())),  # executorch needs a newer NumPy
    Environment(
        "torch-2.12", ("3.12", "3.11"),
        ("torch==2.12.1", "torchao==0.17.0", "executorch==1.3.1", "onnxruntime==1.24.1", "openvino==2025.4.0",
         "transformers==5.10.0"),
    ),
    Environment("torch-2.14", ("3.12", "3.11"), ("torch==2.14.1", "executorch")),
    Environment("unpinned", ("3.11", "3.12", "3.13"), ("executorch",)),
    Environment("newest", ("3.13", "3.12", "3.11"), ("executorch",), UNCAPPED),
    Environment("python-3.14", ("3.14",), ("executorch",), UNCAPPED),
)  # fmt: skip


def main() -> int:
    """Run the environments that are named, or all; returns 1 if one of them is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"among {', '.join(e.name for e in ENVIRONMENTS)}")
    parser.add_argument("--short", action="store_true", help="a third of the models, each network on one target")
    parser.add_argument("--folder", type=Path, default=ROOT / ".versions")
    options = parser.parse_args()
    known = {environment.name: environment for environment in ENVIRONMENTS}
    if unknown := [name for name in options.names if name not in known]:
        print(f"There is no environment {', '.join(unknown)}. Choose among {', '.join(known)}.", file=sys.stderr)
        return 2
    chosen = [environment for environment in ENVIRONMENTS if not options.names or environment.name in options.names]
    tables, lines = {}, []
    shutil.rmtree(options.folder / "saved", ignore_errors=True)
    for environment in chosen:
        python = interpreter(environment)
        if python is None:
            lines.append(f"{environment.name}: not run, no Python {' or '.join(environment.python)} is here")
            print(lines[-1], file=sys.stderr, flush=True)
            continue
        home = made(environment, python, options.folder)
        began = time.monotonic()
        tables[environment.name] = results(environment, home, options.folder, short=options.short)
        lines.append(f"{environment.name}: {versions(home)}, {time.monotonic() - began:.0f} s")
        print(lines[-1], file=sys.stderr, flush=True)
    text, faults = table(tables, lines)
    print(text)
    return bool(faults)


def interpreter(environment: Environment) -> str | None:
    """The Python of an environment, also one that pyenv keeps, or ``None``."""
    for version in environment.python:
        homes = [Path(path) for path in (os.environ.get("PYENV_ROOT"), Path.home() / ".pyenv") if path]
        managed = [found for home in homes for found in sorted(home.glob(f"versions/{version}.*/bin/python{version}"))]
        for candidate in [*managed, shutil.which(f"python{version}")]:
            # a shim of pyenv may be found that starts nothing
            if candidate and not subprocess.run([candidate, "--version"], capture_output=True, check=False).returncode:
                return str(candidate)
    return None


def made(environment: Environment, python: str, folder: Path) -> Path:
    """The environment, which is built where it is not there or its requirements changed; its home."""
    if environment.name == REFERENCE:
        return Path(sys.prefix)
    home = folder / environment.name
    wanted = "\n".join([*environment.pins, (ROOT / "pyproject.toml").read_text(encoding="utf-8")])
    note = home / "requirements.txt"
    if note.exists() and note.read_text(encoding="utf-8") == wanted:
        return home
    shutil.rmtree(home, ignore_errors=True)
    subprocess.run([python, "-m", "venv", home], check=True)
    pip = [home / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    variables = {**os.environ, **(environment.settings or {})}
    # torch first: it decides which of the others fit
    first = [pin for pin in environment.pins if pin != "executorch"] or ["torch"]
    subprocess.run([*pip, *first], check=True, env=variables)
    subprocess.run([*pip, "--editable", f"{ROOT}[{EXTRAS}]", *environment.pins, *TOOLS, "transformers"],
                   check=True, env=variables)  # fmt: skip
    note.write_text(wanted, encoding="utf-8")
    return home


def versions(home: Path) -> str:
    """What is installed there, in one line."""
    code = (
        "import sys, importlib.metadata as m\n"
        "found = {d.metadata['Name'].lower(): d.version for d in m.distributions()}\n"
        f"print('Python', '.'.join(map(str, sys.version_info[:3])), *(', ' + n + ' ' + found.get(n, 'not installed') "
        f"for n in {SHOWN!r}), sep='')"
    )
    done = subprocess.run([home / "bin" / "python", "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip().replace("Python", "Python ", 1)


def results(environment: Environment, home: Path, folder: Path, *, short: bool) -> dict[str, str]:
    """What came out of each check, by its name; two processes share them."""
    saved = folder / "saved"
    earlier = sorted(path for path in saved.iterdir() if path.is_dir()) if saved.is_dir() else []
    more = ["--save", saved / environment.name, "--load", SAVED, *earlier, *(["--short"] if short else [])]
    outs = [folder / f"{environment.name}.{part}.jsonl" for part in range(PROCESSES)]
    with ThreadPoolExecutor(PROCESSES) as threads:
        parts = [
            threads.submit(_results_of_part, home, out, ["--part", str(part), str(PROCESSES), *more])
            for part, out in enumerate(outs)
        ]
    return {check: result for part in parts for check, result in part.result().items()}


def _results_of_part(home: Path, out: Path, options: Sequence[Any]) -> dict[str, str]:
    """Results by check; a check at which the process ended has that as its result, and the others are run after it."""
    out.unlink(missing_ok=True)
    command = [home / "bin" / "python", "-m", "tests.versions.worker", out, *options]
    variables = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    while True:
        done = subprocess.run(command, cwd=ROOT, env=variables, stderr=subprocess.PIPE, text=True, check=False)
        if not done.returncode:
            break
        begun = [line.removeprefix("begin ") for line in done.stderr.splitlines() if line.startswith("begin ")]
        found = read(out)
        if not begun or begun[-1] in found:
            raise RuntimeError(f"The worker of {home} failed:\n{done.stderr[-3000:]}")
        with out.open("a", encoding="utf-8") as file:
            line = {"check": begun[-1], "result": f"{RAW} the process ended with {done.returncode}", "error": ""}
            file.write(json.dumps(line) + "\n")
    return read(out)


def read(path: Path) -> dict[str, str]:
    """Results by check."""
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {line["check"]: line["result"] for line in lines}


def table(tables: Mapping[str, Mapping[str, str]], lines: Sequence[str]) -> tuple[str, int]:
    """The text that is kept, and how many faults it has."""
    reasons = explained()
    reference = tables.get(REFERENCE)
    text, faults = [*lines, ""], 0
    groups = sorted({check.split()[0] for results in tables.values() for check in results})
    text.append(" ".join(["equal to pinned".ljust(18), *(name.rjust(12) for name in tables)]))
    for group in groups:
        cells = []
        for results in tables.values():
            mine = {check: result for check, result in results.items() if check.split()[0] == group}
            base = mine if reference is None else reference
            cells.append(f"{sum(base.get(check, 'ok') == result for check, result in mine.items())}/{len(mine)}")
        text.append(" ".join([group.ljust(18), *(cell.rjust(12) for cell in cells)]))
    for name, results in tables.items():
        for check, result in results.items():
            expected = (reference or results).get(check, "ok")
            if result == expected and result.startswith("ok"):
                continue
            reason = why(name, check, result, reasons)
            if result.startswith((RAW, "WRONG", "InternalError", "TorchVersionError")) or reason is None:
                faults += 1
                text.append(f"FAULT {name}: {check}: {result}" + (f" (pinned: {expected})" if reference else ""))
            else:
                text.append(f"{name}: {check}: {result}. {reason}")
    text.append(f"{faults} faults")
    return "\n".join(text), faults


def explained() -> list[tuple[str, str, str, str]]:
    """Lines of ``differences.txt``: environment, check and result as patterns, and the reason."""
    rows = [line.split("|") for line in KNOWN.read_text(encoding="utf-8").splitlines() if line[:1] not in ("", "#")]
    return [(row[0].strip(), row[1].strip(), row[2].strip(), row[3].strip()) for row in rows]


def why(name: str, check: str, result: str, reasons: Iterable[tuple[str, str, str, str]]) -> str | None:
    """The reason for a difference that is known."""
    for environment, checks, results, reason in reasons:
        if all(map(fnmatch.fnmatchcase, (name, check, result), (environment, checks, results))):
            return reason
    return None


if __name__ == "__main__":
    raise SystemExit(main())
