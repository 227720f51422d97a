"""``python -m tests.docstrings``: docstrings of public names lack no argument, error or result (pydoclint).

pydoclint reads whole files; what it says is kept for the names in ``prepbench.__all__`` and their public methods.
Arguments and errors need their sections. A docstring without any section may say in its sentence what is returned.
"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import prepbench

ROOT = Path(__file__).parents[1]
_PROBLEM = re.compile(r"^(?P<file>\S+\.py):(?P<line>\d+): (?P<code>DOC\d+): \w+ `(?P<name>[\w.]+)`")
# a function documents the errors of those that it calls, too, and pydoclint sees only its own `raise`
_ERRORS_OF_OTHERS = "DOC502"
_ERRORS_DIFFER = "DOC503"
_WITHOUT_RESULT = {"DOC201", "DOC402"}
MADE_BY_FUNCTIONS = {"CompiledModel", "TrainableModel"}
"""Classes that nobody makes but our own functions: what their ``__init__`` takes is private."""


def public_names() -> dict[str, Any]:
    """Every public function and class, and their public methods and properties, by ``"name"`` or ``"Class.method"``."""
    found: dict[str, Any] = {}
    for name in prepbench.__all__:
        value = getattr(prepbench, name)
        if isinstance(value, types.ModuleType) and not callable(value):
            found |= {f"{name}.{key}": one for key, one in _functions(value)}
            continue
        found[name] = value
        if inspect.isclass(value):
            found |= {f"{name}.{key}": one for key, one in _methods(value)}
    return found


def _functions(module: types.ModuleType) -> Iterator[tuple[str, Any]]:
    """Functions that a module defines, or offers as its own (``from x import name as name``)."""
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    imports = [alias for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    offered = {alias.asname for alias in imports if alias.asname == alias.name}
    for key, value in vars(module).items():
        if key[0] != "_" and inspect.isfunction(value) and (value.__module__ == module.__name__ or key in offered):
            yield key, value


def _methods(kind: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties, also of the base classes that are ours."""
    seen = set()
    for base in kind.__mro__:
        if not base.__module__.startswith("prepbench"):
            continue
        for key, value in vars(base).items():
            value = getattr(value, "__func__", value)
            if key[0] != "_" and key not in seen and (inspect.isfunction(value) or isinstance(value, property)):
                seen.add(key)
                yield key, value


def home(value: Any) -> tuple[Path, str] | None:
    """The file that defines a function, class or property, and its qualified name there; None for others."""
    value = value.fget if isinstance(value, property) else inspect.unwrap(value) if callable(value) else value
    if not hasattr(value, "__qualname__"):
        return None
    return Path(inspect.getfile(value)).resolve(), value.__qualname__


def public_homes() -> set[tuple[Path, str]]:
    """Where all public names are defined, and the ``__init__`` of classes."""
    places = {place for value in public_names().values() if (place := home(value)) is not None}
    return places | {(file, f"{name}.__init__") for file, name in places if name not in MADE_BY_FUNCTIONS}


def problems(homes: set[tuple[Path, str]]) -> list[str]:
    """What pydoclint says of functions and classes, given by file and qualified name."""
    files = sorted({str(file.relative_to(ROOT)) for file, _ in homes})
    everywhere = [match for match in _asked(files, with_short=True) if match["code"] not in _WITHOUT_RESULT]
    results = [match for match in _asked(files, with_short=False) if match["code"] in _WITHOUT_RESULT]
    return sorted(match.string for match in everywhere + results if _counts(match, homes))


def _asked(files: list[str], *, with_short: bool) -> list[re.Match[str]]:
    """What pydoclint says of files, docstrings without sections included or not."""
    program = str(Path(sys.executable).with_name("pydoclint"))
    command = [program, "--config", "pyproject.toml", "--skip-checking-short-docstrings", str(not with_short), *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"pydoclint failed: {done.stderr}")
    return [match for line in (done.stdout + done.stderr).splitlines() if (match := _PROBLEM.match(line))]


def _counts(match: re.Match[str], homes: set[tuple[Path, str]]) -> bool:
    if ((ROOT / match["file"]).resolve(), match["name"]) not in homes or match["code"] == _ERRORS_OF_OTHERS:
        return False
    if match["code"] == _ERRORS_DIFFER:
        documented, raised = (set(ast.literal_eval(names)) for names in re.findall(r"\[[^\]]*\]", match.string)[-2:])
        # a call makes the error, or one is raised again by the name of its base class
        raised = {name for name in raised if name.rpartition(".")[2][:1].isupper()}
        return bool(raised - documented - ({"PrepbenchError"} if documented else set()))
    return True


def main() -> int:
    """Print what is missing; returns 1 if anything is."""
    homes = public_homes()
    found = problems(homes)
    print("\n".join(found) or "Public docstrings lack nothing.")
    return bool(found)


if __name__ == "__main__":
    raise SystemExit(main())
