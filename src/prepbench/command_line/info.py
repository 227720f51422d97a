"""``info``: versions, abilities, targets with their missing requirements, and the machine."""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import shutil
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from prepbench.command_line.outcomes import Report
from prepbench.errors import MissingPackageError, PackageVersionError, PrepbenchError, sentence
from prepbench.internal_errors import internal_error
from prepbench.packages import TESTED, imported, installed, is_absent, not_tested, tested_range

SUMMARY = "Say what is installed, which abilities and targets are here, and what others lack"
DESCRIPTION = "Each ability is tried, or looked for, on the spot. Paste what it prints into a report of a problem."
HAS_CHECKS = False

FURTHER_PACKAGES = ("jupyterlab", "dask")
"""Packages whose versions are told beside those that prepbench is tested with."""
_NOT_HERE = "not installed"
_HERE = "here"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare no arguments."""


def run(options: argparse.Namespace) -> Report:
    """Run the command."""
    versions = {"prepbench": installed("prepbench"), **{name: _version(name) for name in (*TESTED, *FURTHER_PACKAGES)}}
    abilities = {name: _tried(check) for name, check in _abilities().items()}
    targets, here = _targets(), machine()
    tools = {"JupyterLab extension": _extension()}
    sections = {"Versions": versions, "Abilities": abilities, "Targets": targets, "Tools": tools, "Machine": here}
    body = "\n\n".join(_table(title, rows) for title, rows in sections.items())
    data = {"versions": {name: installed(name) or _NOT_HERE for name in versions}, "tested": TESTED}
    return Report(
        "info", body, data={**data, "abilities": abilities, "targets": targets, "tools": tools, "machine": here}
    )


def _version(name: str) -> str:
    """Return the version of a package, and whether prepbench is tested with it."""
    found, tested = installed(name), tested_range(name)
    if not found:
        return _NOT_HERE + (f" (tested with {tested})" if tested else "")
    if not tested:
        return found
    way = not_tested(name)
    return f"{found} ({way} than tested with: {tested})" if way else f"{found} (tested with {tested})"


# -- abilities


def _abilities() -> dict[str, Callable[[], object]]:
    """Return prepbench's abilities by name, each with a check that raises if it is missing."""
    return {
        "graphs of modules": _trace,
        "capture": partial(_capture, strict=False),
        "strict capture (dynamo)": partial(_capture, strict=True),
        "preparation": _prepare,
        "quantization": _quantize,
        "quick conversion": _convert_quickly,
        "recurrent layers": partial(imported, "prepbench.capture.sizes.recurrent", "It", "prepbench"),
        "loops as scans": partial(imported, "prepbench._torch_compat.scans", "It", "prepbench"),
        "caches of transformers": _caches,
        "adapters (PEFT)": _adapters,
        "Inductor's C++ compiler": _compiler,
        "live widgets": _widgets,
        "static pictures (dot)": _dot,
    }


def _tried(check: Callable[[], object]) -> str:
    try:
        from prepbench.running.unchanged import without_output

        with warnings.catch_warnings(), without_output():
            warnings.simplefilter("ignore")
            check()
    except Exception as error:
        told = internal_error(error, of_libraries=True) or error
        text = str(told) if isinstance(told, PrepbenchError) else f"{type(error).__name__}: {sentence(error)}"
        return f"missing. {text}"
    return _HERE


def _example() -> tuple[Any, list[Any]]:
    import torch

    return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()).eval(), [torch.ones(2, 2), torch.ones(3, 2)]


def _trace() -> None:
    from prepbench.capture.modules.collection import recursive_trace

    model, samples = _example()
    found = recursive_trace(model, inputs=samples).failures
    if found:
        raise PackageVersionError(found[0].message)


def _capture(strict: bool) -> None:
    from prepbench.capture.aten.capture import capture

    model, samples = _example()
    capture(model, samples, strict=strict)


def _prepare() -> None:
    from prepbench.prepare import prepare_model

    model, samples = _example()
    prepare_model(model, inputs=samples)


def _quantize() -> None:
    """Check the parts of quantization and the classes derived from them; no graph, whose conversion takes seconds."""
    from prepbench._torchao_compat import pt2e

    pt2e()
    importlib.import_module("prepbench.quantize.observers")
    importlib.import_module("prepbench.quantize.observers")


def _convert_quickly() -> None:
    from prepbench._torchao_compat import missing_shortcuts, pt2e

    pt2e()
    if lacking := missing_shortcuts():
        raise PackageVersionError(
            f"Quantization takes some seconds longer, because torchao {installed('torchao')} has no "
            f"{' and no '.join(lacking)}. The versions tested, {tested_range('torchao')}, have it."
        )


def _caches() -> None:
    from prepbench.objects.caches.transformers import missing_parts

    imported("transformers", "A model with caches", "transformers")
    if lacking := missing_parts():
        raise PackageVersionError(
            "Graphs of sliding windows hold for windows as full as those of the samples, because transformers "
            f"{installed('transformers')} has no {' and no '.join(lacking)}. The versions tested, "
            f"{tested_range('transformers')}, have it."
        )


def _adapters() -> None:
    from prepbench.adapt.trainable_model import peft_package

    peft_package()


def _compiler() -> None:
    from prepbench.targets.inductor import InductorTarget

    InductorTarget().check_available()


def _widgets() -> None:
    for name in ("ipywidgets", "anywidget"):
        imported(name, "The bench", name)


def _dot() -> None:
    if shutil.which("dot") is None:
        raise MissingPackageError("Pictures in files are text without it (Debian: apt-get install graphviz).")


def _targets() -> dict[str, str]:
    """Return for each target ``"here"``, or the missing requirement with its install command."""
    if is_absent("torch"):
        return {"all": "torch is not installed: pip install torch"}
    from prepbench.targets.registry import TARGETS

    return {target.display_name: _tried(target.check_available) for target in TARGETS}


def machine() -> dict[str, str]:
    """Describe this machine: system, processor, cores, memory and GPU."""
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
    if is_absent("torch"):
        return "unknown"
    import torch

    try:
        names: list[Any] = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    except Exception as error:  # of a driver
        return f"not usable: {sentence(error)}"
    return ", ".join(names) or "none that torch can use"


def _extension() -> str:
    """Return the folder of this environment's JupyterLab extension."""
    place = Path(sys.prefix, "share", "jupyter", "labextensions", "prepbench-lab")
    return str(place) if (place / "package.json").exists() else "not found: pip install 'prepbench[lab]'"


def _table(title: str, rows: dict[str, str]) -> str:
    width = max(map(len, rows))
    return "\n".join([title, *(f"  {name.ljust(width)}  {value}" for name, value in rows.items())])
