"""prepbench: a workbench in Jupyter for preparing PyTorch models.

Open a model, see what can be captured and why not, choose dynamic axes and quantization settings, compile, compare.
Names are loaded when they are first used (PEP 562), so that ``import prepbench`` costs next to nothing on top of
``import torch``.

Example:
    >>> import prepbench as pb
    >>> pb.QuantizationSettings().weights_num_bits
    8
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

_NAMES = re.compile(r"^from (\S+) import (\w+) as", re.MULTILINE)
_HOME = {name: home for home, name in _NAMES.findall(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))}
"""The module of each public name; the stub beside this file is the one list of them."""

__all__ = sorted(_HOME)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("prepbench")
    if name not in _HOME:
        raise AttributeError(f"module 'prepbench' has no attribute {name!r}")
    home = importlib.import_module(_HOME[name])
    value = getattr(home, name) if hasattr(home, name) else importlib.import_module(f"{_HOME[name]}.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    """Return the place of the built JupyterLab extension for ``jupyter builder develop``."""
    return [{"src": "labextension", "dest": "prepbench-lab"}]
