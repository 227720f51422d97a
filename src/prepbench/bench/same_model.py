"""Whether a file is of this model: the modules and tensors that differ, by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torch import nn

from prepbench.document.bench import SavedModule
from prepbench.errors import InputError
from prepbench.results.fingerprint import modules_of

_LISTED = 8


def check_same_model(saved: Sequence[SavedModule], model: nn.Module, model_type: str) -> None:
    """Raise ``InputError`` that lists the names that differ, unless ``model`` has the modules and tensors of a file."""
    before, now = _names(saved), _names(modules_of(model))
    missing = [name for name in before if name not in now]
    added = [name for name in now if name not in before]
    other = [
        f"{name} ({before[name]}, now {now[name]})" for name in before if now.get(name, "") not in ("", before[name])
    ]
    if not (missing or added or other):
        return
    parts = [("missing", missing), ("added", added), ("different", other)]
    said = "; ".join(f"{word}: {_listed(names)}" for word, names in parts if names)
    raise InputError(
        f"The file is of another model: it was saved of a {model_type}, and this {type(model).__name__} differs in its "
        f"names ({said}). Give the model that the bench was made for, or make a new bench."
    )


def _names(modules: Iterable[SavedModule]) -> Mapping[str, str]:
    """What each module and tensor is, in words, by its name."""
    found: dict[str, str] = {}
    for module in modules:
        if module.fqn:  # the class of the model itself may have been renamed
            found[module.fqn] = module.type
        for tensor in module.tensors:
            shape = "×".join(map(str, tensor.shape)) or "scalar"
            found[f"{module.fqn}.{tensor.name}".lstrip(".")] = f"{shape} {tensor.dtype}"
    return found


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
