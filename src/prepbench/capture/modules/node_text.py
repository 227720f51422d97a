"""Text and plain values of FX nodes, for the documents of both levels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat.operators import OpOverload
from prepbench.capture.modules.operations import is_method
from prepbench.capture.sizes.size_texts import SizeTexts
from prepbench.document.model import CodeFrame, Node
from prepbench.running.nested_values import collect
from prepbench.running.source_lines import frame_of

SHAPE_OUTPUTS = 8
"""At most this many outputs of one node have shapes in a document; caches have hundreds."""

FRAMES = 500
"""At most this many lines of code have their surroundings in a document."""


def label_text(node: fx.Node) -> str:
    """Return the label of a node in a diagram: the last part of a name, or the name of a function."""
    if node.op == "call_module":
        return str(node.target).rpartition(".")[2] or "module"
    if node.op in ("placeholder", "output", "call_method"):
        return str(node.target)
    if node.op == "get_attr":
        return str(node.target).rpartition(".")[2]
    return _short(node.target)


def _short(target: Any) -> str:
    if isinstance(target, OpOverload):
        return str(target.overloadpacket.__name__)
    return str(getattr(target, "__name__", type(target).__name__))


def target_text(target: Any) -> str:
    """Return an FX target as text without addresses, e.g. ``"torch.nn.functional.relu"``."""
    if isinstance(target, str | OpOverload):
        return str(target)
    name = str(getattr(target, "__name__", type(target).__name__))
    if is_method(target, name):
        return f"torch.Tensor.{name}"
    module = str(getattr(target, "__module__", "") or "")
    if module in ("_operator", "builtins"):
        module = "operator" if module == "_operator" else ""
    elif module.startswith("torch._C") or not module:
        module = "torch"
    return f"{module}.{name}" if module else name


def shapes_and_dtypes(
    value: Any, texts: SizeTexts, names: Mapping[str, str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the shapes and dtypes of the first tensors in a value; ``names`` maps symbols to input sizes."""
    tensors = [leaf for leaf in collect(value) if isinstance(leaf, torch.Tensor)][:SHAPE_OUTPUTS]
    shapes = tuple(texts.shape(tensor.shape, names) for tensor in tensors)
    return shapes, tuple(str(tensor.dtype).removeprefix("torch.") for tensor in tensors)


def code_frames(nodes: Iterable[Node]) -> tuple[CodeFrame, ...]:
    """Return the code around the source line of each node, for the first :data:`FRAMES` lines."""
    sources = list(dict.fromkeys(node.source for node in nodes if node.source is not None))[:FRAMES]
    made = ((source, frame_of(source)) for source in sources)
    return tuple(CodeFrame(source.file, source.line, text) for source, text in made if text)


def count_parameters(module: torch.nn.Module) -> int:
    """Return the elements of all parameters; a lazy parameter has none yet."""
    return sum(0 if _is_lazy(parameter) else parameter.numel() for parameter in module.parameters())


def _is_lazy(parameter: torch.nn.Parameter) -> bool:
    return isinstance(parameter, torch.nn.parameter.UninitializedParameter)
