"""What a graph takes for granted about the sizes of its inputs, in words, and checked when it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import fx

from prepbench.capture.fake_inputs import InputSize
from prepbench.capture.structures import collect
from prepbench.capture.trace_result import Assumption, ValueTrace
from prepbench.errors import InputError


def readable(trace: ValueTrace) -> list[str]:
    """One line per assumption, e.g. ``"x.size(1) == 4, from model.py:12: for i in range(x.shape[1])"``."""
    return list(
        dict.fromkeys(_line(a, trace.sizes) for a in trace.assumptions if not _shown_by_samples(a, trace.sizes))
    )


def _shown_by_samples(assumption: Assumption, sizes: dict[Any, InputSize]) -> bool:
    """Whether it only says that two sizes are equal which are equal in every sample."""
    seen = {sizes[symbol].sizes for symbol in assumption.expression.free_symbols}
    return bool(assumption.expression.is_Equality) and len(assumption.expression.free_symbols) > 1 and len(seen) == 1


def _line(assumption: Assumption, sizes: dict[Any, InputSize]) -> str:
    text = _condition(assumption.expression, sizes)
    source = assumption.source
    return f"{text}, from {source.file}:{source.line}: {source.code}" if source else text


def _condition(expression: Any, sizes: dict[Any, InputSize]) -> str:
    operators = {"Equality": "==", "Unequality": "!=", "GreaterThan": ">=", "StrictGreaterThan": ">"} | {
        "LessThan": "<=",
        "StrictLessThan": "<",
    }
    names = {symbol: f"{size.path}.size({size.dim})" for symbol, size in sizes.items()}
    operator = operators.get(type(expression).__name__)
    parts = [_named(part, names) for part in expression.args] if operator else [_named(expression, names)]
    return f" {operator} ".join(parts)


def _named(expression: Any, names: dict[Any, str]) -> str:
    text = str(expression)
    for symbol in sorted(names, key=lambda symbol: -len(str(symbol))):
        text = text.replace(str(symbol), names[symbol])
    return text


@dataclass(frozen=True)
class SizeCheck:
    """A forward pre-hook that refuses inputs for which the graph would compute something else than the model."""

    names: tuple[str, ...]
    places: tuple[tuple[Any, int, int], ...]
    assumptions: tuple[Assumption, ...]
    sizes: dict[Any, InputSize]

    @classmethod
    def of(cls, trace: ValueTrace) -> SizeCheck | None:
        """The check for a trace; ``None`` if it holds for every size."""
        if not trace.assumptions:
            return None
        names, places, index = [], [], 0
        for node in trace.graph.nodes:
            if node.op == "placeholder":
                names.append(str(node.target))
                for value in collect(node.meta["val"]):
                    for dim, size in enumerate(value.shape):
                        symbol = getattr(getattr(size, "node", None), "_expr", None)
                        if symbol in trace.sizes:
                            places.append((symbol, index, dim))
                    index += 1
        return cls(tuple(names), tuple(places), tuple(trace.assumptions), trace.sizes)

    def __call__(self, module: fx.GraphModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = [*args, *(kwargs[name] for name in self.names[len(args) :] if name in kwargs)]
        tensors = collect(given)
        values = {
            symbol: tensors[index].shape[dim]
            for symbol, index, dim in self.places
            if index < len(tensors) and dim < tensors[index].dim()
        }
        for assumption in self.assumptions:
            if assumption.expression.xreplace(values) == False:  # noqa: E712 - sympy's false, or a relation not decided
                got = ", ".join(f"{self.sizes[s].path}.size({self.sizes[s].dim}) = {v}" for s, v in values.items())
                raise InputError(
                    f"This graph of {type(module).__name__} was traced for {_line(assumption, self.sizes)}; got {got}. "
                    "Trace again with samples of this size, or change that line so that it does not fix the size."
                )
