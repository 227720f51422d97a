"""The packages that prepbench works with: tested versions, installed versions, and import errors."""

from __future__ import annotations

import importlib
import importlib.util
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

from prepbench.errors import MissingPackageError, sentence

TESTED = {
    "Python": ("3.11", "3.13"),
    "torch": ("2.11.0", "2.15.0"),
    "torchao": ("0.17.0", "0.18.0"),
    "numpy": ("1.26", "2.5"),
    "onnx": ("1.18", "1.23"),
    "onnxscript": ("0.7.1", "0.7"),
    "onnxruntime": ("1.22", "1.32"),
    "openvino": ("2025.0", "2026.4"),
    "executorch": ("1.3", "1.5"),
    "transformers": ("5.0", "5.24"),
    "pandas": ("2.2", "3.1"),
    "plotly": ("6.0", "7.1"),
    "anywidget": ("0.9.18", "0.11"),
    "ipywidgets": ("8.1", "8.1"),
    "peft": ("0.18", "0.21"),
}
"""The oldest and the newest version of each package; a bound of two numbers includes all versions that begin so."""


def installed(name: str) -> str:
    """Return the version of a package, or of Python; "" if it is not installed.

    Example:
        >>> installed("no-such-package")
        ''
    """
    if name == "Python":
        return platform.python_version()
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def tested_range(name: str) -> str:
    """Return the tested versions of a package, in words; "" for others.

    Example:
        >>> tested_range("ipywidgets")
        '8.1'
    """
    oldest, newest = TESTED.get(name, ("", ""))
    return oldest if oldest == newest else f"{oldest} to {newest}"


def not_tested(name: str) -> str:
    """Return whether the installed version is ``"older"`` or ``"newer"`` than the tested ones; "" if neither."""
    found = _numbers(installed(name))
    if not found or name not in TESTED:
        return ""
    oldest, newest = map(_numbers, TESTED[name])
    if found < oldest:
        return "older"
    return "newer" if found[: len(newest)] > newest else ""


def untested_remark(name: str) -> str:
    """Return a sentence on an installed version that is older or newer than the tested ones; "" if there is none."""
    way = not_tested(name)
    if not way:
        return ""
    return f"{name} {installed(name)} is {way} than the versions that prepbench is tested with ({tested_range(name)}). "


def is_absent(package: str) -> bool:
    """Return whether a package is missing, as opposed to one whose import fails."""
    try:
        return importlib.util.find_spec(package) is None
    except ModuleNotFoundError:  # from a finder that refuses it
        return True


def imported(module: str, purpose: str, install: str, otherwise: str = "") -> ModuleType:
    """Import an optional package.

    Args:
        module: its name, or that of a part of it.
        purpose: the feature that needs it, as the start of a sentence.
        install: the argument of ``pip install``.
        otherwise: the alternative, as a sentence.

    Raises:
        MissingPackageError: it is not installed, or it is and its import fails, which the message tells apart.

    Example:
        >>> imported("json", "This example", "json").__name__
        'json'
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except Exception as error:  # its code may raise anything
        if isinstance(error, ModuleNotFoundError) and error.name == package:
            text = f"{purpose} needs {package}, which is not installed: pip install {install}. {otherwise}"
            raise MissingPackageError(text.rstrip()) from error
        raise import_failure(package, error, f"{purpose} needs {package}, but ", install, otherwise) from error


class Deferred:
    """A package that is imported where something of it is needed first, and stands for it in a file that always is.

    Args:
        name: of the package, or behind a dot of something in it.
    """

    def __init__(self, name: str) -> None:
        self._package, _, self._inside = name.partition(".")

    def __getattr__(self, name: str) -> Any:
        package = importlib.import_module(self._package)
        return getattr(getattr(package, self._inside) if self._inside else package, name)


def import_failure(
    package: str, error: BaseException, beginning: str, install: str = "", otherwise: str = ""
) -> MissingPackageError:
    """Return the error of an installed package's import, if it raises."""
    found = installed(package)
    here = f"{package} {found}" if found else f"the {package} that is here"
    if isinstance(error, ModuleNotFoundError) and error.name and error.name.partition(".")[0] != package:
        remedy = f"Install what it lacks: pip install {error.name.partition('.')[0]}."
    else:
        again = install or package
        remedy = f"Install it again, in a version that fits what else is here: pip install --force-reinstall {again}."
    text = (
        f"{beginning}{here} is installed and does not import: {type(error).__name__}: {sentence(error)} "
        f"{untested_remark(package)}{remedy} {otherwise}"
    )
    return MissingPackageError(text.rstrip())


def _numbers(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, without suffixes of builds or release candidates."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, found[0].split("."))) if found else ()
