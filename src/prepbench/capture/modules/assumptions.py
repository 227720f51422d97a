"""What a graph assumes about the sizes of its inputs: in words, and as a check when it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import fx

from prepbench.capture.modules.fake_inputs import InputSize
from prepbench.capture.modules.trace_result import Assumption, TraceResult
from prepbench.capture.sizes.conditions import condition_in_words, is_always_true
from prepbench.capture.sizes.sample_sizes import value_at
from prepbench.errors import InputError
from prepbench.running.nested_values import collect


def readable(trace: TraceResult) -> list[str]:
    """One line per assumption, e.g. ``"x.size(1) == 4, from model.py:12: for i in range(x.shape[1])"``."""
    told = [
        a for a in trace.assumptions if not _shown_by_samples(a, trace.sizes) and not is_always_true(a.expression, 1)
    ]
    return list(dict.fromkeys(_line(assumption, trace.sizes) for assumption in told))


def size_names(sizes: dict[Any, InputSize]) -> dict[Any, str]:
    """``"x.size(1)"`` for each symbol."""
    return {symbol: f"{size.path}.size({size.dim})" for symbol, size in sizes.items()}


def _shown_by_samples(assumption: Assumption, sizes: dict[Any, InputSize]) -> bool:
    """Whether it follows from sizes being equal that are equal in every sample."""
    first: dict[tuple[int, ...], Any] = {}
    equal = {symbol: first.setdefault(sizes[symbol].sizes, symbol) for symbol in _in_order(assumption, sizes)}
    return len(set(equal.values())) < len(equal) and assumption.expression.xreplace(equal) == True  # noqa: E712


def _in_order(assumption: Assumption, sizes: dict[Any, InputSize]) -> list[Any]:
    return [symbol for symbol in sizes if symbol in assumption.expression.free_symbols]


def _line(assumption: Assumption, sizes: dict[Any, InputSize]) -> str:
    text = condition_in_words(assumption.expression, size_names(sizes))
    source = assumption.source
    return f"{text}, from {source.file}:{source.line}: {source.code}" if source else text


@dataclass(frozen=True)
class SizeCheck:
    """A forward pre-hook that refuses inputs of sizes for which the graph and the model differ."""

    names: tuple[str, ...]
    places: tuple[tuple[Any, int, int], ...]
    assumptions: tuple[Assumption, ...]
    sizes: dict[Any, InputSize]

    @classmethod
    def of(cls, trace: TraceResult) -> SizeCheck | None:
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
            if value_at(assumption.expression, values) == False:  # noqa: E712 - sympy's false, or a relation not decided
                got = ", ".join(f"{self.sizes[s].path}.size({self.sizes[s].dim}) = {v}" for s, v in values.items())
                raise InputError(
                    f"This graph of {type(module).__name__} was traced for {_line(assumption, self.sizes)}; got {got}. "
                    "Trace again with samples of this size, or change that line so that it does not fix the size."
                )
