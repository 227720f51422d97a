"""Finding samples whose sizes contradict what a graph is about to assume."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from sympy import sympify

from prepbench.inputs import Sample, named_leaves


def value_at(expression: Any, sizes: dict[Any, Any]) -> Any:
    """A sympy condition or number with these sizes put in; ``None`` where it divides by zero."""
    try:
        return sympify(expression.xreplace(sizes))
    except ZeroDivisionError:
        return None


class SizesDecide(RuntimeError):
    """The model takes one path for the sizes of one sample and another path for those of another."""


class NumbersDecide(RuntimeError):
    """The model takes one path for an integer that one sample has in a tensor and another path for that of another."""


class SampleSizes:
    """The sizes of all tensors in all samples.

    Args:
        function: what is called with the samples; gives positional arguments their names.
    """

    def __init__(self, function: Callable[..., Any], samples: Sequence[Sample]) -> None:
        self._sizes: list[dict[tuple[str, ...], int]] = []
        self._indices = [sample.index for sample in samples]
        for sample in samples:
            sizes = {}
            for path, leaf in named_leaves(function, sample):
                if isinstance(leaf, torch.Tensor):
                    sizes.update({(*size_key(path), "shape", str(dim)): int(n) for dim, n in enumerate(leaf.shape)})
            self._sizes.append(sizes)

    @property
    def has_zero_or_one(self) -> bool:
        """Whether some sample has a size of 0 or 1, which tracing takes for no possible value of a dynamic size."""
        return any(size < 2 for sizes in self._sizes for size in sizes.values())

    def values(self, expression: Any, names: dict[Any, str]) -> list[int] | None:
        """What an expression is in each sample; None where it is made of more than the sizes of inputs."""
        known = [{symbol: sizes.get(size_key(name)) for symbol, name in names.items()} for sizes in self._sizes]
        if any(None in sizes.values() for sizes in known):
            return None
        found = [value_at(expression, sizes) for sizes in known]
        return (
            [int(value) for value in found] if all(value is not None and value.is_Integer for value in found) else None
        )

    def answers(self, expression: Any, names: dict[Any, str]) -> list[bool] | None:
        """Whether a condition holds in each sample; None where it is about more than the sizes of inputs."""
        known = [{symbol: sizes.get(size_key(name)) for symbol, name in names.items()} for sizes in self._sizes]
        if any(None in sizes.values() for sizes in known):
            return None
        found = [value_at(expression, sizes) for sizes in known]
        return [value == True for value in found]  # noqa: E712 - sympy's

    def refuse_contradiction(self, expression: Any, names: dict[Any, str]) -> None:
        """Raise when ``expression`` has another value for the sizes of one sample than for those of another.

        Args:
            expression: a sympy condition or number.
            names: the size behind each symbol, e.g. ``"x.shape[0]"``; a symbol that is no input size decides nothing.

        Raises:
            SizesDecide: with the expression and two samples that disagree.
        """
        values = [{symbol: sizes.get(size_key(name)) for symbol, name in names.items()} for sizes in self._sizes]
        if any(None in sizes.values() for sizes in values):
            return
        text = disagreement(expression, names, dict(zip(self._indices, values, strict=True)))
        if text is not None:
            raise SizesDecide(text)


def disagreement(
    expression: Any, names: dict[Any, str], values: dict[int, dict[Any, Any]], what: str = "sizes"
) -> str | None:
    """What differs between samples when a model asks for ``expression``, in words; ``None`` if nothing does.

    Args:
        expression: a sympy condition or number over sizes.
        names: the size behind each symbol.
        values: for each sample its sizes.
        what: what the names stand for.
    """
    answers = {index: value_at(expression, sizes) for index, sizes in values.items()}
    if not all(a is not None and (a.is_Number or a in (True, False)) for a in answers.values()):
        return None
    first = next(iter(answers))
    other = next((index for index, answer in answers.items() if answer != answers[first]), None)
    if other is None:
        return None
    text = condition_text(expression, names)
    if answers[first].is_Number:
        return (
            f"{text} is turned into a Python number here, which is {answers[first]} for inputs[{first}] and "
            f"{answers[other]} for inputs[{other}]: one graph would have to be made for each."
        )
    yes, no = (first, other) if answers[first] == True else (other, first)  # noqa: E712 - sympy's
    return f"The {what} of the inputs decide the way here: {text} holds for inputs[{yes}] but not for inputs[{no}]."


def condition_text(expression: Any, names: dict[Any, str]) -> str:
    """A condition on sizes as people read it, e.g. ``"x.shape[1] >= 4"``."""
    operators = {"Equality": "==", "Unequality": "!=", "GreaterThan": ">=", "StrictGreaterThan": ">"}
    operators |= {"LessThan": "<=", "StrictLessThan": "<"}
    operator = operators.get(type(expression).__name__)
    text = f" {operator} ".join(map(str, expression.args)) if operator else str(expression)
    for symbol in sorted(names, key=lambda symbol: -len(str(symbol))):
        text = re.sub(rf"\b{re.escape(str(symbol))}\b", names[symbol], text)
    return text


def size_key(name: str) -> tuple[str, ...]:
    """The words of a size's name, so that ``L['d']['a'].shape[0]`` and ``d.a.shape[0]`` are the same."""
    return tuple(re.findall(r"\w+", name.removeprefix("L")))
