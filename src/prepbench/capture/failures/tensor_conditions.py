"""What forward asks of the tensors of a call, such as how they lie in memory, whether they require gradients, and
whether two arguments are one tensor, and of the state of torch, such as whether gradients are recorded at all. A graph
asks none of this, so calls for which the answer differs are refused.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import CodeType
from typing import Any, Literal

import torch

from prepbench._torch_compat import pytree
from prepbench._torch_compat.tensors import VERSION, is_part, version_of
from prepbench.capture.failures.findings import Way, depends_on, gives_the_same, own_codes
from prepbench.capture.failures.surroundings import Question, answer_now, answers_that_matter, is_question, words
from prepbench.document.model import Finding, SourceLine
from prepbench.inputs import Sample, forward_of
from prepbench.objects.compare import ROUNDED
from prepbench.patching import patched_here
from prepbench.running.source_lines import code_frame, source_line

TENSORS = "tensors of one kind"
_TRIED = 4  # samples, which may go different ways

Kind = Literal[
    "contiguous", "without gradients", "different", "plain", "without attributes", "whole", "unwritten",
    "no inference tensor", "not pinned", "no_grad", "answer",
]  # fmt: skip

_WORDS: Mapping[Kind, str] = {
    "contiguous": "all tensors are contiguous in memory",
    "without gradients": "no tensor requires gradients",
    "different": "no two arguments are one tensor",
    "plain": "all tensors are of the class torch.Tensor",
    "without attributes": "no tensor has an attribute {names}",
    "whole": "no tensor is a view or a part of another one",
    "unwritten": "no tensor was changed in place before",
    "no inference tensor": "no tensor was made under torch.inference_mode()",
    "not pinned": "no tensor lies in pinned memory",
    "no_grad": "the call is made under torch.no_grad()",
    "answer": "{answer}",
}
_AS_SAMPLES: Mapping[Kind, str] = {
    "contiguous": "tensors are contiguous in memory where those of the samples are",
    "without gradients": "tensors require gradients where those of the samples do",
}
"""Of what a copy of a sample keeps."""
_REMEDIES: Mapping[Kind, str] = {
    "contiguous": "Give {path}.contiguous()",
    "without gradients": "Give {path}.detach()",
    "different": "Give {path}.clone()",
    "plain": "Give {path}.detach()",
    "without attributes": "Give {path}.clone()",
    "whole": "Give {path}.clone()",
    "unwritten": "Give {path}.clone()",
    "no inference tensor": "Make {path} outside of it",
    "not pinned": "Give {path}.clone()",
    "no_grad": "Call it so",
    "answer": "Call it so",
}
_METHODS: Mapping[str, Sequence[Kind]] = {
    "is_contiguous": ["contiguous"],
    "stride": ["contiguous"],
    "storage_offset": ["contiguous", "whole"],
    "data_ptr": ["different"],
    "_is_view": ["whole"],
    "untyped_storage": ["whole"],
    "storage": ["whole"],
    "is_inference": ["no inference tensor"],
    "is_pinned": ["not pinned"],
    "is_grad_enabled": ["no_grad"],
}
_ATTRIBUTES: Mapping[str, Sequence[Kind]] = {
    "requires_grad": ["without gradients"],
    "grad_fn": ["without gradients"],
    "grad": ["without gradients"],
    "is_leaf": ["without gradients"],
    "_base": ["whole"],
    VERSION: ["unwritten"],
    "Parameter": ["plain"],
    "Buffer": ["plain"],
    "is_grad_enabled": ["no_grad"],
    "is_inference": ["no inference tensor"],
}
_GLOBALS: Mapping[str, Sequence[Kind]] = {
    "type": ["plain"],
    "hasattr": ["without attributes"],
    "getattr": ["without attributes"],
}


@dataclass(frozen=True)
class TensorCondition:
    """A condition on the tensors of a call that is none on their sizes or values.

    Attributes:
        kind: of the condition.
        source: the user's line that asks.
        strided: the leaves of a call that are not contiguous, or require gradients, in the samples.
        asked: the question of an answer, or the attributes that no tensor has.
        answer: what the question was told while capturing.
    """

    kind: Kind
    source: SourceLine
    strided: tuple[int, ...] = ()
    asked: Question = ()
    answer: str = ""

    @property
    def text(self) -> str:
        """What holds for calls that the graph is right for."""
        if self.kind == "answer":
            return words(self.asked, self.answer)
        return _AS_SAMPLES[self.kind] if self.strided else _WORDS[self.kind].format(names=" or ".join(self.asked))

    @property
    def is_of_call(self) -> bool:
        """Whether it is about the call as a whole and not about one of its tensors."""
        return self.kind in ("no_grad", "answer")

    def __str__(self) -> str:
        return f"{self.text} ({self.source.file}:{self.source.line}: {self.source.code})"

    def broken_by(self, leaves: Sequence[Any]) -> int | None:
        """Return the first leaf of a call that breaks it; None where all is well."""
        seen: set[int] = set()
        if self.is_of_call:
            is_broken = torch.is_grad_enabled() if self.kind == "no_grad" else answer_now(self.asked) != self.answer
            return 0 if is_broken else None
        for place, leaf in enumerate(leaves):
            if not isinstance(leaf, torch.Tensor):
                continue
            if self.kind == "different":
                is_broken = id(leaf) in seen
                seen.add(id(leaf))
            else:
                is_broken = self._is_other(leaf) != (place in self.strided)
            if is_broken:
                return place
        return None

    def _is_other(self, leaf: torch.Tensor) -> bool:
        match self.kind:
            case "contiguous":
                return not leaf.is_contiguous()
            case "without gradients":
                return leaf.requires_grad
            case "plain":
                return type(leaf) is not torch.Tensor
            case "without attributes":
                return any(hasattr(leaf, name) for name in self.asked)
            case "whole":
                return is_part(leaf)
            case "unwritten":
                return version_of(leaf) > 0
            case "no inference tensor":
                return leaf.is_inference()
            case _:
                return leaf.is_pinned()

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
        found = {"kind": self.kind, "source": source, "strided": list(self.strided)}
        return found | ({"asked": list(self.asked), "answer": self.answer} if self.asked else {})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TensorCondition:
        """Read the data that :meth:`to_dict` wrote."""
        if data["kind"] not in _WORDS:
            raise ValueError(f"a condition on tensors must be one of {list(_WORDS)}")
        asked = tuple(map(str, data.get("asked", ())))  # absent in folders of earlier versions
        if data["kind"] == "answer" and not is_question(asked):
            raise ValueError("a condition on an answer must name a question that is known")
        strided = tuple(map(int, data["strided"]))
        return cls(data["kind"], SourceLine(*data["source"]), strided, asked, str(data.get("answer", "")))


def tensor_conditions(model: torch.nn.Module, samples: Sequence[Sample]) -> tuple[TensorCondition, ...]:
    """Return what a call must be like to go the way of the samples. Runs the model two or three times for each kind of
    question that the user's code asks; a question that makes no difference to the result gives no condition.
    """
    found = []
    for kind, (place, names) in _asked(model).items():
        strided = _other_places(kind, samples[0])
        condition = TensorCondition(kind, source_line(*place), strided, names)
        if kind == "without attributes" and not names:
            continue
        with torch.no_grad():
            holds = kind not in _KEPT or all(condition.broken_by(_leaves(sample)) is None for sample in samples)
        # other strides may mean other kernels, which round in another way
        if holds and any(depends_on(model, sample, _ways(condition), ROUNDED) for sample in samples[:_TRIED]):
            found.append(condition)
    for heard in answers_that_matter(model, samples):
        found.append(TensorCondition("answer", source_line(*heard.place), (), heard.question, heard.answer))
    return tuple(found)


_KEPT = ("contiguous", "without gradients", "different", "no_grad")
"""What a model's own copies of samples share with the samples; in all else they are as a condition wants them."""


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
    same = (gives_the_same(model, [one, _turned(one, free)], ROUNDED) for one in samples[:_TRIED])
    return () if all(same) else free


def _turned(sample: Sample, free: Sequence[str]) -> Sample:
    """Return the call with its free keywords in the reverse order."""
    fixed = {name: value for name, value in sample.kwargs.items() if name not in free}
    turned = {name: sample.kwargs[name] for name in reversed(free) if name in sample.kwargs}
    return replace(sample, kwargs={**fixed, **turned})


def _leaves(sample: Sample) -> list[Any]:
    return pytree.tree_leaves((sample.args, sample.kwargs))


def _other_places(kind: Kind, sample: Sample) -> tuple[int, ...]:
    """Return the leaves of a sample that are otherwise than a condition says, where its words know of samples."""
    if kind not in _AS_SAMPLES:
        return ()
    condition = TensorCondition(kind, SourceLine("", 0, ""))
    leaves = enumerate(_leaves(sample))
    return tuple(place for place, leaf in leaves if isinstance(leaf, torch.Tensor) and condition._is_other(leaf))


def _asked(model: torch.nn.Module) -> dict[Kind, tuple[tuple[str, int], tuple[str, ...]]]:
    """Return the kinds of questions that the model's own code asks, each with its first line, and with the names of
    attributes that are asked for.
    """
    found: dict[Kind, tuple[tuple[str, int], tuple[str, ...]]] = {}
    for code in own_codes(model):
        for kind, line in _questions(code):
            place, names = found.get(kind, ((code.co_filename, line), ()))
            if kind == "without attributes":
                texts = [text for text in code.co_consts if isinstance(text, str) and text.isidentifier()]
                names = tuple(dict.fromkeys([*names, *(text for text in texts if not hasattr(torch.Tensor, text))]))
            found[kind] = place, names
    return found


def _questions(code: CodeType) -> Iterator[tuple[Kind, int]]:
    before: dis.Instruction | None = None
    for instruction in dis.get_instructions(code):
        kinds: Sequence[Kind] = ()
        # since Python 3.12 a method that is called is an attribute with a mark
        if instruction.opname == "LOAD_METHOD" or "NULL|self" in instruction.argrepr:
            kinds = _METHODS.get(instruction.argval, ())
        elif instruction.opname == "LOAD_ATTR":
            kinds = _ATTRIBUTES.get(instruction.argval, ())
        elif instruction.opname == "LOAD_GLOBAL":
            kinds = _GLOBALS.get(instruction.argval) or _ATTRIBUTES.get(instruction.argval, ())
        elif instruction.opname == "IS_OP" and (before is None or before.opname != "LOAD_CONST"):
            kinds = ["different"]
        for kind in kinds:
            yield kind, (instruction.positions.lineno if instruction.positions else None) or code.co_firstlineno
        before = instruction


def _ways(condition: TensorCondition) -> list[Way]:
    """Return ways to call a model with equal values, of which all but the first break a condition, if they can."""
    match condition.kind:
        case "contiguous":
            return _with_tensors(_contiguous, _strided, _by_columns)
        case "without gradients":
            return _with_tensors(_itself, _with_gradient, _computed, torch.Tensor.detach)
        case "different":
            return [partial(_with_one_tensor, apart=True), partial(_with_one_tensor, apart=False)]
        case "plain":
            return _with_tensors(_itself, partial(torch.nn.Parameter, requires_grad=False))
        case "without attributes":
            return _with_tensors(_itself, partial(_with_attributes, names=condition.asked))
        case "whole":
            return _with_tensors(_itself, _part)
        case "unwritten":
            return _with_tensors(_itself, _written)
        case "no inference tensor":
            return _with_tensors(_itself, _for_inference)
        case "not pinned":
            return [*_with_tensors(_itself), _as_pinned]
        case _:
            return [*_with_tensors(_itself), _with_gradients]


def _with_tensors(*changes: Callable[[torch.Tensor], torch.Tensor]) -> list[Way]:
    """Return ways to call a model with changed tensors."""

    def changed(change: Callable[[torch.Tensor], torch.Tensor], model: torch.nn.Module, sample: Sample) -> Any:
        return sample.map(lambda leaf: change(leaf) if isinstance(leaf, torch.Tensor) else leaf).call(model)

    return [partial(changed, change) for change in changes]


def _with_gradients(model: torch.nn.Module, sample: Sample) -> Any:
    with torch.enable_grad():
        return sample.call(model)


def _as_pinned(model: torch.nn.Module, sample: Sample) -> Any:
    # memory can be pinned on few machines only
    with patched_here(torch.Tensor, "is_pinned", lambda self, *device: True):
        return sample.call(model)


def _with_one_tensor(model: torch.nn.Module, sample: Sample, *, apart: bool) -> Any:
    first: dict[Any, torch.Tensor] = {}

    def one_for_all(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        found = first.setdefault((leaf.dtype, tuple(leaf.shape)), leaf)
        return found.clone() if apart else found

    return sample.map(one_for_all).call(model)


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous()


def _strided(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of which no two elements are neighbours in memory."""
    return tensor.new_empty((*tensor.shape, 2))[..., 0].copy_(tensor)


def _by_columns(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose first dim is the one of neighbours in memory."""
    return tensor.transpose(0, -1).contiguous().transpose(0, -1) if tensor.dim() > 1 else tensor


def _with_gradient(tensor: torch.Tensor) -> torch.Tensor:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor
    made = tensor.detach().clone().requires_grad_()
    made.grad = torch.zeros_like(made)
    return made


def _computed(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that is computed from one that requires gradients."""
    with torch.enable_grad():
        return _with_gradient(tensor).clone()


def _with_attributes(tensor: torch.Tensor, names: Sequence[str]) -> torch.Tensor:
    for name in names:
        setattr(tensor, name, 1)
    return tensor


def _part(tensor: torch.Tensor) -> torch.Tensor:
    """Return a part of a larger tensor, with the same strides."""
    if tensor.layout is not torch.strided or not tensor.is_contiguous():
        return tensor
    flat = tensor.reshape(-1)
    return torch.cat([flat[:1], flat, flat[:1]])[1 : tensor.numel() + 1].view(tensor.shape)


def _written(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().copy_(tensor.detach().clone())


def _for_inference(tensor: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return tensor.clone()
