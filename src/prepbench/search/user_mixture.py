"""Turn a user's choices by layer name into a mixture."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from prepbench.checks import described
from prepbench.errors import SettingsError, UnknownNameError
from prepbench.search.mixtures import FLOAT, Mixture
from prepbench.search.tables import Tables


def check_user_mixture(layers: object) -> None:
    """Raise ``SettingsError`` unless these are names of candidates by names of layers."""
    if isinstance(layers, Mapping) and all(isinstance(text, str) for pair in layers.items() for text in pair):
        return
    raise SettingsError(
        f"layers must be a dict of names of candidates by FQN, got {described(layers)}. Write "
        'layers={"head": "int8"}.'
    )


def mixture_of(tables: Tables, layers: Mapping[str, str]) -> Mixture:
    """Return the mixture with these choices; all other layers stay in float.

    Args:
        tables: of the target.
        layers: names of choices, by FQN.

    Raises:
        UnknownNameError: there is no such layer or choice.
        SettingsError: a layer cannot take its choice, or layers that share weights differ.
    """
    for fqn, name in layers.items():
        _check_known(f"layers: there is no layer {described(fqn)} that can be quantized", fqn, tables.layers)
        _check_known(f"layers[{fqn!r}]: there is no candidate {described(name)}", name, tables.choices)
        if why := tables.refused.get((fqn, name)):
            raise SettingsError(f"layers[{fqn!r}] cannot be {name!r}: {why.rstrip('.')}. Leave it in float.")
    for group in tables.groups:
        if len({layers.get(fqn, FLOAT) for fqn in group}) > 1:
            raise SettingsError(
                f"layers: {', '.join(map(repr, sorted(group)))} share weights and so must take the same candidate. "
                "Name all of them, with one candidate."
            )
    return tuple(layers.get(fqn, FLOAT) for fqn in tables.layers)


def _check_known(message: str, name: object, known: Iterable[str]) -> None:
    names = list(known)
    if name in names:
        return
    near = difflib.get_close_matches(str(name), names, 3, 0.4)
    which = "Nearest are" if near else "There are"
    raise UnknownNameError(f"{message}. {which} {', '.join(map(repr, near or names[:8]))}.")
