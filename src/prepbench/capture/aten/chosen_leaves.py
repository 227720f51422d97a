"""The modules that the user keeps as leaves."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from prepbench.checks import described
from prepbench.document.model import Failure
from prepbench.errors import SettingsError

CHOSEN = "chosen as a leaf"


def outermost(fqns: Iterable[str]) -> list[str]:
    """Return the names that do not lie inside another of them."""
    names = sorted(set(fqns))
    return [name for name in names if not is_inside_any(name, names)]


def is_inside_any(name: str, others: Iterable[str]) -> bool:
    """Return whether a name lies inside one of the others."""
    return any(other != name and (other == "" or name.startswith(f"{other}.")) for other in others)


def chosen_leaves(model: torch.nn.Module, leaf_modules: Iterable[Any]) -> dict[str, Failure]:
    """Return the leaves that the user asks for, by FQN, module or class.

    Raises:
        SettingsError: one that matches nothing; the message gives the nearest names.
    """
    if not isinstance(leaf_modules, Iterable) or isinstance(leaf_modules, str | bytes | bytearray):
        raise SettingsError(
            f"leaf_modules must be a list of names, modules or classes, got {described(leaf_modules)}. Write "
            "leaf_modules=['encoder']."
        )
    leaves: dict[str, Failure] = {}
    names = {id(module): fqn for fqn, module in model.named_modules()}
    aliases = {fqn: names[id(module)] for fqn, module in model.named_modules(remove_duplicate=False)}
    for wanted in [leaf_modules] if isinstance(leaf_modules, str | type | torch.nn.Module) else leaf_modules:
        matches = _matching(model, wanted, names, aliases)
        if not matches:
            raise SettingsError(_no_match(model, wanted, aliases))
        for fqn in matches:
            module_type = type(model.get_submodule(fqn)).__name__
            message = "Kept as one operator because leaf_modules names it."
            leaves[fqn] = Failure(fqn, module_type, CHOSEN, "", message)
    return {fqn: leaves[fqn] for fqn in outermost(leaves)}


def _matching(model: torch.nn.Module, wanted: Any, names: Mapping[int, str], aliases: Mapping[str, str]) -> list[str]:
    if isinstance(wanted, str):
        if wanted in aliases:
            return [aliases[wanted]]
        return [fqn for fqn, module in model.named_modules() if type(module).__name__ == wanted]
    if isinstance(wanted, type):
        return [fqn for fqn, module in model.named_modules() if isinstance(module, wanted)]
    return [names[id(wanted)]] if id(wanted) in names else []


def _no_match(model: torch.nn.Module, wanted: Any, aliases: Mapping[str, str]) -> str:
    kinds = sorted({type(module).__name__ for module in model.modules()})
    text = repr(wanted) if isinstance(wanted, str) else getattr(wanted, "__name__", type(wanted).__name__)
    near = difflib.get_close_matches(text.strip("'"), [name for name in aliases if name] + kinds, 4, 0.4)
    hint = f" Nearest: {', '.join(near)}." if near else f" The model has: {', '.join(kinds[:8])}."
    return f"leaf_modules: {text} is no module name, class or submodule of {type(model).__name__}.{hint}"
