"""What forward asks of the tensors of a call: how they lie in memory, whether they require gradients, whether two
arguments are one tensor, and whether gradients are recorded at all. A graph asks none of this, so calls for which the
answer differs are refused.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any, Literal

import torch

from prepbench._torch_compat import pytree
from prepbench.capture.failures.findings import gives_the_same, own_codes
from prepbench.document.model import Finding, SourceLine
from prepbench.inputs import Sample, forward_of
from prepbench.objects.compare import ROUNDED
from prepbench.running.source_lines import code_frame, source_line

TENSORS = "tensors of one kind"
_TRIED = 4  # samples, which may go different ways

Kind = Literal["contiguous", "without gradients", "different", "no_grad"]

_WORDS: Mapping[Kind, str] = {
    "contiguous": "all tensors are contiguous in memory",
    "without gradients": "no tensor requires gradients",
    "different": "no two arguments are one tensor",
    "no_grad": "the call is made under torch.no_grad()",
}
_REMEDIES: Mapping[Kind, str] = {
    "contiguous": "Give {path}.contiguous()",
    "without gradients": "Give {path}.detach()",
    "different": "Give {path}.clone()",
    "no_grad": "Call it so",
}
_METHODS = {
    "is_contiguous": "contiguous",
    "stride": "contiguous",
    "storage_offset": "contiguous",
    "data_ptr": "different",
    "is_grad_enabled": "no_grad",
}
_ATTRIBUTES = {
    "requires_grad": "without gradients",
    "grad_fn": "without gradients",
    "is_leaf": "without gradients",
    "is_grad_enabled": "no_grad",
}


@dataclass(frozen=True)
class TensorCondition:
    """A condition on the tensors of a call that is none on their sizes or values.

    Attributes:
        kind: of the condition.
        source: the user's line that asks.
        strided: the leaves of a call that are not contiguous, where others are.
    """

    kind: Kind
    source: SourceLine
    strided: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """What holds for calls that the graph is right for."""
        return "tensors are contiguous in memory where those of the samples are" if self.strided else _WORDS[self.kind]

    def __str__(self) -> str:
        return f"{self.text} ({self.source.file}:{self.source.line}: {self.source.code})"

    def broken_by(self, leaves: Sequence[Any]) -> int | None:
        """Return the first leaf of a call that breaks it; None where all is well."""
        seen: set[int] = set()
        for place, leaf in enumerate(leaves):
            if not isinstance(leaf, torch.Tensor):
                continue
            if self.kind == "contiguous":
                is_broken = leaf.is_contiguous() == (place in self.strided)
            elif self.kind == "without gradients":
                is_broken = leaf.requires_grad
            elif self.kind == "no_grad":
                is_broken = torch.is_grad_enabled()
            else:
                is_broken = id(leaf) in seen
                seen.add(id(leaf))
            if is_broken:
                return place
        return None

    def remedy(self, path: str) -> str:
        """Return what to give in place of the argument that breaks it."""
        return "Give it as the samples have it" if self.strided else _REMEDIES[self.kind].format(path=path)

    def finding(self) -> Finding:
        """Return it as an assumption of the capture."""
        text = f"forward goes another way unless {self.text}: the graph is for such calls."
        frame = code_frame(self.source.file, self.source.line)
        remedy = "Compute both ways equal, or drop the question: a compiled model refuses other calls."
        return Finding("", "", TENSORS, text, self.source, frame, remedy)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        source = [self.source.file, self.source.line, self.source.code]
        return {"kind": self.kind, "source": source, "strided": list(self.strided)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TensorCondition:
        """Read the data that :meth:`to_dict` wrote."""
        if data["kind"] not in _WORDS:
            raise ValueError(f"a condition on tensors must be one of {list(_WORDS)}")
        return cls(data["kind"], SourceLine(*data["source"]), tuple(map(int, data["strided"])))


def tensor_conditions(model: torch.nn.Module, samples: Sequence[Sample]) -> tuple[TensorCondition, ...]:
    """Return what a call must be like to go the way of the samples. Runs the model two or three times for each kind of
    question that the user's code asks; a question that makes no difference to the result gives no condition.
    """
    found = []
    for kind, place in _asked(model).items():
        strided = _strided_places(samples[0]) if kind == "contiguous" else ()
        condition = TensorCondition(kind, source_line(*place), strided)
        with torch.no_grad():
            holds = all(condition.broken_by(_leaves(sample)) is None for sample in samples)
        # other strides may mean other kernels, which round in another way
        calls = [_calls(kind, sample) for sample in samples[:_TRIED]]
        if holds and _differs(model, calls, with_gradients=kind == "no_grad"):
            found.append(condition)
    return tuple(found)


def ordered_keywords(model: torch.nn.Module, samples: Sequence[Sample]) -> tuple[str, ...]:
    """Return the keywords that forward takes by ``**kwargs`` where their order decides the result; () where it does
    not. Runs the model twice for each of a few samples if there are several.
    """
    try:
        parameters = inspect.signature(forward_of(model)).parameters.values()
    except (TypeError, ValueError):  # no signature, so no such keywords
        return ()
    named = {one.name for one in parameters if one.kind is not one.VAR_KEYWORD}
    free = tuple(name for name in samples[0].kwargs if name not in named)
    if len(free) < 2:
        return ()
    return free if _differs(model, [[sample, _turned(sample, free)] for sample in samples[:_TRIED]]) else ()


def _turned(sample: Sample, free: Sequence[str]) -> Sample:
    """Return the call with its free keywords in the reverse order."""
    fixed = {name: value for name, value in sample.kwargs.items() if name not in free}
    turned = {name: sample.kwargs[name] for name in reversed(free) if name in sample.kwargs}
    return replace(sample, kwargs={**fixed, **turned})


def _differs(model: torch.nn.Module, calls: Sequence[Sequence[Sample]], *, with_gradients: bool = False) -> bool:
    """Return whether the calls of one group give different results; groups may go different ways through the model."""
    return not all(gives_the_same(model, group, ROUNDED, with_gradients=with_gradients) for group in calls)


def _leaves(sample: Sample) -> list[Any]:
    return pytree.tree_leaves((sample.args, sample.kwargs))


def _strided_places(sample: Sample) -> tuple[int, ...]:
    leaves = enumerate(_leaves(sample))
    return tuple(place for place, leaf in leaves if isinstance(leaf, torch.Tensor) and not leaf.is_contiguous())


def _asked(model: torch.nn.Module) -> dict[Kind, tuple[str, int]]:
    """Return the kinds of questions that the model's own code asks, each with its first line."""
    found: dict[Kind, tuple[str, int]] = {}
    for code in own_codes(model):
        for kind, line in _questions(code):
            found.setdefault(kind, (code.co_filename, line))
    return found


def _questions(code: CodeType) -> Iterator[tuple[Kind, int]]:
    before: dis.Instruction | None = None
    for instruction in dis.get_instructions(code):
        kind: Any = None
        # since Python 3.12 a method that is called is an attribute with a mark
        if instruction.opname == "LOAD_METHOD" or "NULL|self" in instruction.argrepr:
            kind = _METHODS.get(instruction.argval)
        elif instruction.opname in ("LOAD_ATTR", "LOAD_GLOBAL"):
            kind = _ATTRIBUTES.get(instruction.argval)
        elif instruction.opname == "IS_OP" and (before is None or before.opname != "LOAD_CONST"):
            kind = "different"
        if kind is not None:
            yield kind, (instruction.positions.lineno if instruction.positions else None) or code.co_firstlineno
        before = instruction


def _calls(kind: Kind, sample: Sample) -> list[Sample]:
    """Return calls with equal values, of which all but the first break a condition of this kind, if they can."""
    if kind == "contiguous":
        return [sample.map(laid) for laid in (_contiguous, _strided, _by_columns)]
    if kind == "without gradients":
        return [sample, sample.map(_with_gradient)]
    if kind == "no_grad":
        return [sample, sample]
    first: dict[Any, torch.Tensor] = {}

    def one_for_all(leaf: Any) -> Any:
        return first.setdefault((leaf.dtype, tuple(leaf.shape)), leaf) if isinstance(leaf, torch.Tensor) else leaf

    together = sample.map(one_for_all)
    return [together.map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf), together]


def _contiguous(leaf: Any) -> Any:
    return leaf.contiguous() if isinstance(leaf, torch.Tensor) else leaf


def _strided(leaf: Any) -> Any:
    """Return a tensor of which no two elements are neighbours in memory."""
    return leaf.new_empty((*leaf.shape, 2))[..., 0].copy_(leaf) if isinstance(leaf, torch.Tensor) else leaf


def _by_columns(leaf: Any) -> Any:
    """Return a tensor whose first dim is the one of neighbours in memory."""
    is_table = isinstance(leaf, torch.Tensor) and leaf.dim() > 1
    return leaf.transpose(0, -1).contiguous().transpose(0, -1) if is_table else leaf


def _with_gradient(leaf: Any) -> Any:
    is_number = isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex())
    return leaf.detach().clone().requires_grad_() if is_number else leaf
