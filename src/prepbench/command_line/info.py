"""``info``: versions, targets and what they lack, and the machine."""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from prepbench.command_line.outcomes import Report
from prepbench.errors import PrepbenchError, sentence

SUMMARY = "Say what is installed, which targets are here, and what others lack"
DESCRIPTION = "Paste what it prints into a report of a problem."
HAS_CHECKS = False

PACKAGES = (
    "torch",
    "torchao",
    "numpy",
    "onnx",
    "onnxscript",
    "onnxruntime",
    "openvino",
    "executorch",
    "transformers",
    "jupyterlab",
    "ipywidgets",
    "anywidget",
    "plotly",
    "pandas",
    "dask",
)
_NOT_HERE = "not installed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments: there are none."""


def run(options: argparse.Namespace) -> Report:
    """Carry it out."""
    packages = {name: installed(name) for name in PACKAGES}
    targets, here = _targets(), machine()
    tools = {"dot": shutil.which("dot") or "not found: static pictures are text (Debian: apt-get install graphviz)"}
    tools["JupyterLab extension"] = _extension()
    own = {"prepbench": installed("prepbench"), "Python": platform.python_version(), **packages}
    sections = {"Versions": own, "Targets": targets, "Tools": tools, "Machine": here}
    body = "\n\n".join(_table(title, rows) for title, rows in sections.items())
    return Report("info", body, data={"versions": own, "targets": targets, "tools": tools, "machine": here})


def installed(name: str) -> str:
    """The version of a package, or that it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return _NOT_HERE


def _targets() -> dict[str, str]:
    """For each target ``"here"``, or what is missing with the command that installs it."""
    if importlib.util.find_spec("torch") is None:
        return {"all": "torch is not installed: pip install torch"}
    from prepbench.targets.registry import TARGETS

    found = {}
    for target in TARGETS:
        try:
            target.check_available()
            found[target.display_name] = "here"
        except PrepbenchError as error:
            found[target.display_name] = f"missing. {error}"
    return found


def machine() -> dict[str, str]:
    """What this machine is, in words: system, processor, cores, memory and GPU."""
    import psutil

    cores = psutil.cpu_count(logical=False) or "unknown"
    return {
        "system": f"{platform.machine()} {platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": f"{cores} ({os.cpu_count()} logical)",
        "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
        "GPU": _gpu(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def _gpu() -> str:
    if importlib.util.find_spec("torch") is None:
        return "unknown"
    import torch

    try:
        names: list[Any] = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    except Exception as error:  # of a driver
        return f"not usable: {sentence(error)}"
    return ", ".join(names) or "none that torch can use"


def _extension() -> str:
    """Where the JupyterLab extension of this environment lies."""
    place = Path(sys.prefix, "share", "jupyter", "labextensions", "prepbench-lab")
    return str(place) if (place / "package.json").exists() else "not found: pip install 'prepbench[lab]'"


def _table(title: str, rows: dict[str, str]) -> str:
    width = max(map(len, rows))
    return "\n".join([title, *(f"  {name.ljust(width)}  {value}" for name, value in rows.items())])
