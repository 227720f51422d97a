"""Name the place of an operator for messages."""

from __future__ import annotations

from torch import fx


def module_of(node: fx.Node) -> str:
    """Return the FQN of the module that calls an operator; empty for the model itself."""
    stack = [str(path) for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    return stack[-1] if stack and not stack[-1].startswith("_empty_nn") else ""


def place_of(node: fx.Node) -> str:
    """Return an operator's name and place for messages: ``add in layer1.0``."""
    operator = str(node.target).removesuffix(".default")
    name = operator.partition(".")[2].partition(".")[0] or operator  # behind the name of its library
    return f"{name} in {module_of(node) or 'the model'}"
