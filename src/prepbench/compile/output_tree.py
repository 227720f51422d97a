"""The pytree structure of inputs and outputs as JSON: enough to check a call and rebuild a result in another
process.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from prepbench._torch_compat import pytree
from prepbench.compile.result_classes import made_tuple, object_maker
from prepbench.running.object_nodes import Layout
from prepbench.running.tensor_numbers import tensor_numbers

Tree = dict[str, Any]

# what JSON can hold of an object
_PLAIN = (type(None), bool, int, float, str)


def tree_of(spec: pytree.TreeSpec, *, with_fixed: bool = False) -> Tree:
    """Return a pytree spec as JSON; ``with_fixed``, also the attributes of objects that hold no tensors, such as
    None.
    """
    if spec.is_leaf():
        return {"kind": "leaf"}
    children = [tree_of(child, with_fixed=with_fixed) for child in spec.children()]
    kind, context = spec.type, spec.context
    if kind in (tuple, list):
        return {"kind": kind.__name__, "items": children}
    if kind in (dict, collections.OrderedDict, collections.defaultdict):
        keys = context if kind is not collections.defaultdict else context[1]
        return {"kind": "dict", "keys": list(keys), "items": children}
    if kind is collections.namedtuple:
        tree = {"kind": "namedtuple", "type": context.__name__, "keys": list(context._fields), "items": children}
        return {**tree, "class": _name(context)}
    keys, fixed = _attributes(context, len(children))
    tree = {"kind": "object", "type": _name(kind), "keys": keys, "items": children}
    return {**tree, "fixed": fixed} if with_fixed and fixed else tree


def number_leaves(spec: pytree.TreeSpec) -> tuple[int, ...]:
    """Return the positions of leaves that are tensors in graphs only, and numbers in their objects."""
    found: list[int] = []
    count = 0
    names = spec.context.names if isinstance(spec.context, Layout) else [""] * spec.num_children
    for child, name in zip(spec.children(), names, strict=True):
        inner = (0,) if name and name in tensor_numbers(spec.context.kind) else number_leaves(child)
        found += [count + place for place in inner]
        count += child.num_leaves
    return tuple(found)


def without_fixed(tree: Tree) -> Tree:
    """Return the tree without the parts that ``with_fixed`` added."""
    rest = {key: value for key, value in tree.items() if key != "fixed"}
    return {**rest, "items": [without_fixed(item) for item in tree["items"]]} if "items" in tree else rest


def _name(kind: Any) -> str:
    return f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', kind)}"


def _attributes(context: Any, count: int) -> tuple[list[str], dict[str, Any]]:
    """Return the names of an object's parts from its registration, else numbers; and its other plain attributes."""
    fixed: dict[str, Any] = getattr(context, "fixed", {})
    names = getattr(context, "names", context)
    if isinstance(names, list) and len(names) == 2 and all(isinstance(part, list) for part in names):
        names, fixed = names[0], dict.fromkeys(names[1])  # of torch.export.register_dataclass: those that are None
    if not (isinstance(names, list | tuple) and len(names) == count and all(isinstance(name, str) for name in names)):
        names = map(str, range(count))
    return list(names), {name: value for name, value in fixed.items() if type(value) in _PLAIN}


Build = Callable[[Iterator[Any]], Any]


def rebuild(tree: Tree, leaves: Iterator[Any]) -> Any:
    """Rebuild the structure of ``tree`` from leaves.

    Dataclasses and named tuples are those of this process, see :mod:`prepbench.compile.result_classes`. Other objects
    become dicts of their parts.
    """
    return rebuilder(tree)(leaves)


def rebuilder(tree: Tree) -> Build:
    """Return :func:`rebuild` for one tree, which is analysed once, because a cache has many parts."""
    kind = tree["kind"]
    if kind == "leaf":
        return next
    items = [rebuilder(item) for item in tree["items"]]
    if kind == "tuple":
        return lambda leaves: tuple([item(leaves) for item in items])
    if kind == "list":
        return lambda leaves: [item(leaves) for item in items]
    if kind == "namedtuple":
        return _named_tuple(tree, items)
    fixed = tree.get("fixed", {})
    pairs = list(zip(tree["keys"], items, strict=True))
    make = object_maker(tree["type"]) if kind == "object" else None

    def build(leaves: Iterator[Any]) -> Any:
        parts = {key: item(leaves) for key, item in pairs}
        parts.update(fixed)
        made = make(parts) if make is not None else None
        return parts if made is None else made

    return build


def _named_tuple(tree: Tree, items: Sequence[Build]) -> Build:
    def build(leaves: Iterator[Any]) -> Any:
        parts = [item(leaves) for item in items]
        made = made_tuple(tree.get("class", ""), tree["keys"], parts)
        return collections.namedtuple(tree["type"], tree["keys"])(*parts) if made is None else made

    return build


def leaf_names(tree: Tree, name: str = "output") -> list[str]:
    """Return a name for each leaf from the keys and positions that lead to it, e.g. ``"logits"`` or ``"output_1"``."""
    if tree["kind"] == "leaf":
        return [name]
    keys: Sequence[Any] = tree.get("keys") or range(len(tree["items"]))
    names = []
    for key, item in zip(keys, tree["items"], strict=True):
        whole = str(key) if name == "output" and isinstance(key, str) and not key.isdigit() else f"{name}_{key}"
        names += leaf_names(item, whole)
    return names


def identifiers(names: Sequence[str]) -> tuple[str, ...]:
    """Return valid identifiers for names, numbered on repetition.

    Example:
        >>> identifiers(["x[0]", "x.0", "1"])
        ('x_0', 'x_0_2', '_1')
    """
    seen: dict[str, int] = {}
    result = []
    for name in names:
        plain = re.sub(r"\W+", "_", name).strip("_") or "value"
        plain = f"_{plain}" if plain[0].isdigit() else plain
        seen[plain] = seen.get(plain, 0) + 1
        result.append(plain if seen[plain] == 1 else f"{plain}_{seen[plain]}")
    return tuple(result)
