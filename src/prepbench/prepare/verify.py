"""Does the prepared model compute what the original computes, and if not, which node is the first to differ?"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat import pytree
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.capture.sizes.resizing import linked_axes, resized
from prepbench.errors import InputError, PreparationError
from prepbench.inputs import Sample, named_leaves
from prepbench.prepare.model import PreparedModel
from prepbench.prepare.report import Compared
from prepbench.prepare.watch import watch
from prepbench.running.nested_values import collect
from prepbench.running.outcomes import Outcome, outcome, without_output
from prepbench.running.unchanged import own_copy, unchanged

_STEPS = (1, 2, 4, 8, 32)
_TOLERANCE = 1e-5
_COARSE = {torch.float16: 1e-2, torch.bfloat16: 1e-1}


def verify(
    model: torch.nn.Module, prepared: PreparedModel, samples: Sequence[Sample], traced: Sequence[Sample]
) -> tuple[Compared, ...]:
    """Compare outputs and buffers on the samples and on sizes that no sample has.

    Args:
        model: the original.
        prepared: the prepared model.
        samples: the user's.
        traced: those that were traced; sizes that differ between them are free.

    Raises:
        PreparationError: they differ by more than 1e-5 of the largest value (float32); names the first node that does.
    """
    return (*compare_on(model, prepared, samples), *_on_unseen_sizes(model, prepared, traced))


def compare_on(
    model: torch.nn.Module, prepared: PreparedModel, samples: Sequence[Sample], title: str = "inputs[{index}]"
) -> list[Compared]:
    """Compare on these samples only.

    Raises:
        PreparationError: they differ.
    """
    found = []
    for sample in samples:
        name = title.format(index=sample.index)
        with without_output():
            expected, got = outcome(model, sample, model), outcome(prepared, sample, prepared)
        largest, what = outcomes_apart(expected, got)
        if what:
            with without_output():
                first = first_difference(model, prepared, sample)
            raise PreparationError(_message(prepared, name, what, largest, first))
        found.append(Compared(name, largest))
    return found


def compare_in_other_mode(model: torch.nn.Module, prepared: PreparedModel, sample: Sample) -> tuple[Compared, bool]:
    """Compare in the mode that the model is not in; the second result is whether the prepared model is wrong there."""
    name = f"inputs[{sample.index}] in {'evaluation' if model.training else 'training'}"
    with _other_mode(model, prepared):
        try:
            with torch.no_grad(), unchanged(model), without_output():
                own_copy(sample).call(model)
        except Exception as error:  # batch norm on one value, a loss without labels
            note = f"not compared, because the model itself raises there ({type(error).__name__})"
            return Compared(name, note=note), False
        try:
            (found,) = compare_on(model, prepared, [sample], name)
        except Exception:  # whatever it raises there, it does not do what the original does
            return Compared(name, note="the graph is not that of the original there"), True
    return found, False


@contextmanager
def _other_mode(model: torch.nn.Module, prepared: PreparedModel) -> Iterator[None]:
    flags = [
        (module, module.training)
        for module in (*model.modules(), *prepared.modules())
        if not isinstance(module, torch.jit.ScriptModule)
    ]
    other = not model.training
    try:
        for module, _ in flags:
            module.training = other
        yield
    finally:
        for module, flag in flags:
            module.training = flag


def _on_unseen_sizes(model: torch.nn.Module, prepared: PreparedModel, samples: Sequence[Sample]) -> Iterator[Compared]:
    axes = DynamicAxes.infer(list(samples), model)
    groups = linked_axes(axes)
    if not groups:
        yield Compared("unseen sizes", note="all samples have the same sizes; give samples of two sizes to vary them")
    for symbol, group in groups.items():
        names = ", ".join(f"{axis.path}.shape[{axis.dim}]" for axis in group)
        sample = _larger(model, samples[-1], symbol, groups)
        if sample is None:
            yield Compared(f"unseen {names}", note="the model itself takes no other size that was tried")
            continue
        try:
            (found,) = compare_on(model, prepared, [sample], f"unseen sizes: {_shapes(model, sample)}")
        except InputError as error:
            found = Compared(f"unseen {names}", note=str(error))
        yield found


def _larger(model: torch.nn.Module, sample: Sample, symbol: str, groups: Any) -> Sample | None:
    for step in _STEPS:
        larger = resized(model, sample, {symbol: step}, groups)
        try:
            with torch.no_grad(), unchanged(model), without_output():
                own_copy(larger).call(model)
        except Exception:  # a size that the model itself does not take
            continue
        return larger
    return None


def _shapes(model: torch.nn.Module, sample: Sample) -> str:
    leaves = [(path, leaf) for path, leaf in named_leaves(model, sample) if isinstance(leaf, torch.Tensor)]
    return ", ".join(f"{path} {tuple(leaf.shape)}" for path, leaf in leaves[:4])


# -- how far apart


def outcomes_apart(expected: Outcome, got: Outcome) -> tuple[float, str]:
    """The largest relative difference of two calls, and what differs too much: "" if nothing."""
    buffers = {name: got.buffers[name] for name in expected.buffers if name in got.buffers}
    largest = 0.0
    for name, one, two in (
        ("output", expected.output, got.output),
        ("the caller's tensor", expected.inputs, got.inputs),
        ("buffer", {name: expected.buffers[name] for name in buffers}, buffers),
    ):
        apart, what = values_apart(one, two, name)
        largest = max(largest, apart)
        if what:
            return apart, what
    return largest, ""


def values_apart(one: Any, two: Any, name: str = "output") -> tuple[float, str]:
    """The largest relative difference of the tensors in two values, and what differs too much: "" if nothing."""
    left = [(path, leaf) for path, leaf in pytree.tree_leaves_with_path(one) if isinstance(leaf, torch.Tensor)]
    right = [leaf for leaf in pytree.tree_leaves(two) if isinstance(leaf, torch.Tensor)]
    if len(left) != len(right):
        return math.inf, f"{name} has {len(left)} tensors in the original and {len(right)} when prepared"
    largest = 0.0
    for (path, a), b in zip(left, right, strict=True):
        where = f"{name}{pytree.keystr(path)}"
        if a.shape != b.shape or a.dtype != b.dtype:
            return (
                math.inf,
                f"{where} is {tuple(a.shape)} {a.dtype} in the original, {tuple(b.shape)} {b.dtype} prepared",
            )
        apart = _apart(a, b)
        largest = max(largest, apart)
        if not apart <= _COARSE.get(a.dtype, _TOLERANCE):
            return apart, f"{where} differs"
    return largest, ""


def _apart(one: torch.Tensor, two: torch.Tensor) -> float:
    if one.numel() == 0 or one.device.type == "meta":
        return 0.0
    if one.layout is not torch.strided or not (one.is_floating_point() or one.is_complex()):
        one, two = (one.to_dense(), two.to_dense()) if one.layout is not torch.strided else (one, two)
        return 0.0 if torch.equal(one, two) else math.inf
    if one.dtype is not torch.complex32 and torch.equal(one, two):
        return 0.0
    kind = torch.complex128 if one.is_complex() else torch.float64
    wide, other = one.to(kind), two.to(kind)
    same = (wide == other) | (wide.isnan() & other.isnan())
    apart = torch.where(same, torch.zeros_like(wide), wide - other).abs()
    scale = float(wide[wide.isfinite()].abs().max()) if bool(wide.isfinite().any()) else 1.0
    return float(apart.nan_to_num(math.inf).max()) / max(scale, 1e-12)


# -- the first node that differs


@dataclass(frozen=True)
class FirstDifference:
    """The first node, in the order of the graph, whose value is not that of the original."""

    node: fx.Node
    largest: float


def first_difference(model: torch.nn.Module, prepared: PreparedModel, sample: Sample) -> FirstDifference | None:
    """Run both models on one sample and compare node by node; ``None`` if no node that both have differs.

    Nodes are matched by what they were before preparation: the module they belong to, the operation, and its count.
    """
    origins = {node.meta.get("origin") for node in prepared.graph.nodes if node.op.startswith("call")}
    leaves = {origin[0] for origin in origins if origin is not None and origin[1] == ""}
    with torch.no_grad(), unchanged(model):
        seen = _values_of(model, own_copy(sample), leaves)
    watcher = _Watcher(prepared, seen)
    try:
        with torch.no_grad(), unchanged(prepared):
            own = own_copy(sample)
            names = [node.target for node in prepared.graph.nodes if node.op == "placeholder"]
            rest = [own.kwargs[name] for name in names[len(own.args) :] if name in own.kwargs]
            watcher.run(*own.args, *rest)
    except _Found:
        pass
    return watcher.found


class _Found(Exception):
    """A node that differs was found."""


class _Watcher(fx.Interpreter):
    """Runs a graph until a node has another value than the original had."""

    def __init__(self, prepared: PreparedModel, seen: dict[Any, list[Any]]) -> None:
        super().__init__(prepared)
        self._seen, self._count = seen, Counter[Any]()
        self.found: FirstDifference | None = None

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        origin = n.meta.get("origin")
        if origin is None:
            return value
        number = self._count[origin]
        self._count[origin] += 1
        if number < len(self._seen.get(origin, ())):
            apart, what = values_apart(self._seen[origin][number], _copied(value))
            if what:
                self.found = FirstDifference(n, apart)
                raise _Found
        return value


def _values_of(model: torch.nn.Module, sample: Sample, leaves: set[str]) -> dict[Any, list[Any]]:
    """The value of every operation and leaf module of the original, by owner and name, in order."""
    seen: dict[Any, list[Any]] = defaultdict(list)
    watch(
        model,
        sample,
        lambda _, name: name in leaves,
        lambda call: seen[call.owner, call.name].append(_copied(call.result)),
    )
    return seen


def _copied(value: Any) -> Any:
    return [leaf.detach().clone() for leaf in collect(value) if isinstance(leaf, torch.Tensor)]


def _message(prepared: PreparedModel, inputs: str, what: str, largest: float, first: FirstDifference | None) -> str:
    text = f"The prepared {prepared.original_type.__name__} is not equal to the original on {inputs}: {what}"
    text += (
        f" (largest relative difference {largest:.3g}, allowed {_TOLERANCE:.0e})." if math.isfinite(largest) else "."
    )
    if first is None:
        return text + " No single operation differs, so state outside tensors (an attribute, a closure) is the reason."
    node, source = first.node, first.node.meta.get("source")
    owner = node.meta["origin"][0]
    name = str(node.target) if node.op == "call_module" else node.name
    place = f", {source.file}:{source.line}: {source.code}" if source else ""
    text += f" The first node that differs is {name} (relative difference {first.largest:.3g}{place})."
    if owner:
        text += f" Keep its module whole with modules_to_exclude=[model.get_submodule({owner!r})]."
    return text
