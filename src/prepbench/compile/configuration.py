"""The configuration files of a ``transformers`` model that belong to a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

SECTION = "configuration"
"""Its name in a manifest."""
CONFIG, GENERATION = "config.json", "generation_config.json"

Configuration = Mapping[str, str]
"""The text of each file by its name; empty for a model without a configuration."""
NO_CONFIGURATION: Configuration = MappingProxyType({})


def configuration_of(model: Any) -> Configuration:
    """Return the files that ``save_pretrained`` would write, apart from the weights.

    Args:
        model: any module; one whose ``config`` can be written as JSON has a configuration.
    """
    config = _table(getattr(model, "config", None))
    if config is None:
        return NO_CONFIGURATION
    if not config.get("architectures"):
        config["architectures"] = [type(model).__name__]
    files = {CONFIG: _text(config)}
    generation = _table(getattr(model, "generation_config", None))
    return files if generation is None else {**files, GENERATION: _text(generation)}


def with_cache(configuration: Configuration, *, has_cache: bool) -> Configuration:
    """Return the files with a flag for whether the graph takes and returns a cache, which generation requests by
    default.
    """
    return {name: _text({**json.loads(text), "use_cache": has_cache}) for name, text in configuration.items()}


def check_configuration(files: Any) -> None:
    """Raise ``ValueError`` unless this is a result of :func:`configuration_of`."""
    if not isinstance(files, dict) or not files.keys() <= {CONFIG, GENERATION}:
        raise ValueError(f"{SECTION} may hold {CONFIG} and {GENERATION}")
    if not all(isinstance(text, str) and isinstance(json.loads(text), dict) for text in files.values()):
        raise ValueError(f"{SECTION} must hold the text of JSON objects")


def _table(config: Any) -> dict[str, Any] | None:
    """Return a configuration as JSON data; None for other objects of that attribute name."""
    write = getattr(config, "to_json_string", None)
    if not callable(write):
        return None
    try:
        table = json.loads(write())
    except Exception:  # a third-party class, not necessarily of transformers
        return None
    return table if isinstance(table, dict) else None


def _text(table: Mapping[str, Any]) -> str:
    return json.dumps(table, indent=2, sort_keys=True) + "\n"
