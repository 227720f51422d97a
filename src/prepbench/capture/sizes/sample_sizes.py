"""Find samples whose sizes contradict an assumption of tracing."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from sympy import sympify

from prepbench.inputs import Sample, named_leaves


def value_at(expression: Any, sizes: dict[Any, Any]) -> Any:
    """Return the value of a sympy condition or number at these sizes; ``None`` if it divides by zero."""
    try:
        return sympify(expression.xreplace(sizes))
    except ZeroDivisionError:
        return None


class SizesDecide(RuntimeError):
    """Raised if the sizes of two samples lead the model down different paths."""


class NumbersDecide(RuntimeError):
    """Raised if integers in a tensor of two samples lead the model down different paths."""


class SampleSizes:
    """The sizes of all tensors in all samples.

    Args:
        function: the callee, which gives positional arguments their names.
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
        """Whether some sample has a size of 0 or 1, which tracing considers impossible for a dynamic size."""
        return any(size < 2 for sizes in self._sizes for size in sizes.values())

    def values(self, expression: Any, names: dict[Any, str]) -> list[int] | None:
        """Return the value of an expression in each sample; None if it involves more than the sizes of inputs."""
        known = [{symbol: sizes.get(size_key(name)) for symbol, name in names.items()} for sizes in self._sizes]
        if any(None in sizes.values() for sizes in known):
            return None
        found = [value_at(expression, sizes) for sizes in known]
        return (
            [int(value) for value in found] if all(value is not None and value.is_Integer for value in found) else None
        )

    def answers(self, expression: Any, names: dict[Any, str]) -> list[bool] | None:
        """Return whether a condition holds in each sample; None if it involves more than the sizes of inputs."""
        known = [{symbol: sizes.get(size_key(name)) for symbol, name in names.items()} for sizes in self._sizes]
        if any(None in sizes.values() for sizes in known):
            return None
        found = [value_at(expression, sizes) for sizes in known]
        return [value == True for value in found]  # noqa: E712 - sympy's

    def refuse_contradiction(self, expression: Any, names: dict[Any, str]) -> None:
        """Raise if ``expression`` has different values for the sizes of two samples.

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
    """Return in words how samples differ in ``expression``; ``None`` if they agree.

    Args:
        expression: a sympy condition or number over sizes.
        names: the size behind each symbol.
        values: for each sample its sizes.
        what: the kind of things that are named.
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
    """Return a condition on sizes as shown to users, e.g. ``"x.shape[1] >= 4"``."""
    operators = {"Equality": "==", "Unequality": "!=", "GreaterThan": ">=", "StrictGreaterThan": ">"}
    operators |= {"LessThan": "<=", "StrictLessThan": "<"}
    operator = operators.get(type(expression).__name__)
    text = f" {operator} ".join(map(str, expression.args)) if operator else str(expression)
    for symbol in sorted(names, key=lambda symbol: -len(str(symbol))):
        text = re.sub(rf"\b{re.escape(str(symbol))}\b", names[symbol], text)
    return text


def size_key(name: str) -> tuple[str, ...]:
    """Return the words of a size's name, so that ``L['d']['a'].shape[0]`` and ``d.a.shape[0]`` are equal."""
    return tuple(re.findall(r"\w+", name.removeprefix("L")))
