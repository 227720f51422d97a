"""How a result of a lower layer is shown by a higher one.

Results belong to the layer that computes them, their pictures to ``views``. This module is the only place where a
lower layer
reaches upwards: by name, at the moment something is shown, so that computing never loads pandas, plotly or Graphviz.
"""

from __future__ import annotations

import importlib
from typing import Any


def view(module: str, function: str, *arguments: Any, **keywords: Any) -> Any:
    """Call ``prepbench.<module>.<function>``, e.g. ``view("views.display", "collection_bundle", self)``."""
    return getattr(importlib.import_module(f"prepbench.{module}"), function)(*arguments, **keywords)
