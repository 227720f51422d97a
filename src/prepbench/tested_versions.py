"""The versions that prepbench is tested with, and the ones that are here."""

from __future__ import annotations

import platform
import re
from importlib.metadata import PackageNotFoundError, version

TESTED = {
    "Python": ("3.11", "3.14"),
    "torch": ("2.11.0", "2.15.0"),
    "torchao": ("0.17.0", "0.18.0"),
    "numpy": ("1.26", "2.5"),
    "onnx": ("1.18", "1.23"),
    "onnxscript": ("0.5", "0.7"),
    "onnxruntime": ("1.22", "1.32"),
    "openvino": ("2025.0", "2026.4"),
    "executorch": ("1.0", "1.5"),
    "transformers": ("5.0", "5.23"),
    "pandas": ("2.2", "3.1"),
    "plotly": ("6.0", "7.1"),
    "anywidget": ("0.9.18", "0.11"),
    "ipywidgets": ("8.1", "8.1"),
    "peft": ("0.18", "0.21"),
}
"""The oldest and the newest version of each package; a bound of two numbers includes all versions that begin so."""


def installed(name: str) -> str:
    """The version of a package, or of Python; "" where it is not installed.

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
    """The versions that a package is tested with, in words; "" for others.

    Example:
        >>> tested_range("ipywidgets")
        '8.1'
    """
    oldest, newest = TESTED.get(name, ("", ""))
    return oldest if oldest == newest else f"{oldest} to {newest}"


def not_tested(name: str) -> str:
    """Whether a version that is installed is ``"older"`` or ``"newer"`` than those tested; "" if neither is so."""
    found = _numbers(installed(name))
    if not found or name not in TESTED:
        return ""
    oldest, newest = map(_numbers, TESTED[name])
    if found < oldest:
        return "older"
    return "newer" if found[: len(newest)] > newest else ""


def _numbers(text: str) -> tuple[int, ...]:
    """The numbers a version begins with; what a build or a release candidate adds to them is left out."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, found[0].split("."))) if found else ()
