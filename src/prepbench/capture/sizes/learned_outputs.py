"""The outputs of a module or function as a function of its inputs' sizes, learned from recorded calls.

From calls of at least two sizes, every output size is explained by input sizes. So a graph can hold the module as one
node, and what comes after it knows its sizes, without looking into the module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations_with_replacement
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench.errors import CaptureError
from prepbench.objects.flatten import closed, map_values, tensors_in
from prepbench.running.recorded_calls import Given, RecordedCall, Undescribed

# Rules that give an unknown size as a function of known ones, learned from examples.
#
# A rule explains every example. Two examples fit many formulas, so the cheapest one is taken: small constants cost less
# than large ones, one size less than two, and the caller may give sizes a cost of their own.


Column = tuple[int, ...]
"""The values of one size in all examples."""

Compute = Callable[[Sequence[Any]], Any]

LARGEST_DIVISOR = 64


@dataclass(frozen=True)
class SizeRule:
    """One formula: ``compute`` takes the known sizes, which may be symbolic; ``text`` reads ``"2*x.shape[0]+1"``.

    ``equal`` has the known sizes that a constant is equal to, which it follows where they are symbolic; it is None for
    what is no constant.
    """

    text: str
    compute: Compute = field(compare=False, repr=False)
    equal: tuple[int, ...] | None = None

    def allows(self, size: int, known: Sequence[int]) -> bool:
        """Return whether the rule gives this size for these known sizes."""
        return size == self.compute(known) or any(size == known[index] for index in self.equal or ())


@dataclass(frozen=True)
class Known:
    """A known size: its name, its value in each example, and the cost of using it."""

    name: str
    values: Column
    cost: float = 0.0

    @property
    def varies(self) -> bool:
        return len(set(self.values)) > 1


@dataclass(frozen=True)
class _Term:
    """One size, or a product of sizes, that varied."""

    name: str
    values: Column
    cost: float
    compute: Compute


def learn_rule(values: Column, known: Sequence[Known]) -> SizeRule | None:
    """Return the simplest rule for ``values`` over ``known`` sizes, or ``None`` if no rule fits.

    Example:
        >>> learn_rule((4, 10), [Known("x.shape[0]", (2, 5))]).text
        '2*x.shape[0]'
    """
    if len(set(values)) == 1:
        return _constant(values[0], known)
    sizes = _distinct(known)
    candidates = [
        *_linear(values, [*sizes, *_products(sizes)]),
        *_divided(values, sizes),
        *_of_two(values, sizes),
        *_patches(values, sizes),
    ]
    return min(candidates, key=lambda candidate: candidate[0])[1] if candidates else None


def _constant(value: int, known: Sequence[Known]) -> SizeRule:
    equal = [index for index, size in enumerate(known) if not size.varies and size.values[0] == value]

    def compute(sizes: Sequence[Any]) -> Any:
        # an input size that never varied in the examples but is symbolic now determines the output size
        symbolic = [sizes[index] for index in equal if isinstance(sizes[index], torch.SymInt)]
        return symbolic[0] if symbolic else value

    return SizeRule(str(value), compute, tuple(equal))


def _distinct(known: Sequence[Known]) -> list[_Term]:
    """Return one term for each set of sizes that always vary together: the cheapest of them."""
    best: dict[Column, _Term] = {}
    for index, size in enumerate(known):
        if size.varies and (size.values not in best or size.cost < best[size.values].cost):
            best[size.values] = _Term(size.name, size.values, size.cost, lambda sizes, i=index: sizes[i])  # type: ignore[misc]
    return list(best.values())


def _products(sizes: Sequence[_Term]) -> Iterator[_Term]:
    for degree in (2, 3):
        for chosen in combinations_with_replacement(sizes, degree):
            values = tuple(math.prod(row) for row in zip(*(term.values for term in chosen), strict=True))
            name = "*".join(term.name for term in chosen)
            cost = 2.5 * (degree - 1) + sum(term.cost for term in chosen)
            yield _Term(name, values, cost, lambda known, c=chosen: _multiply([term.compute(known) for term in c]))  # type: ignore[misc]


def _multiply(values: Sequence[Any]) -> Any:
    # math.prod starts with the int 1, which a symbolic size does not need
    result = values[0]
    for value in values[1:]:
        result = result * value
    return result


Candidates = Iterator[tuple[float, SizeRule]]


def _linear(values: Column, terms: Sequence[_Term]) -> Candidates:
    """``a*x + b`` with whole ``a``, and ``p*x//q``."""
    for term in terms:
        slope = _slope(values, term.values)
        if slope is None:
            continue
        if slope.denominator == 1:
            a, b = slope.numerator, values[0] - slope.numerator * term.values[0]
            if all(a * x + b == y for x, y in zip(term.values, values, strict=True)):
                text = _factor(a) + term.name + (f"{b:+d}" if b else "")
                cost = term.cost + math.log2(a) + (1 + math.log2(1 + abs(b)) if b else 0)
                yield cost, SizeRule(text, lambda sizes, t=term, a=a, b=b: a * t.compute(sizes) + b)  # type: ignore[misc]
        elif all(slope * x == y for x, y in zip(term.values, values, strict=True)):
            p, q = slope.numerator, slope.denominator
            cost = term.cost + 0.5 + math.log2(p) + math.log2(q) / 4
            text = f"{_factor(p)}{term.name}//{q}"
            yield cost, SizeRule(text, lambda sizes, t=term, p=p, q=q: p * t.compute(sizes) // q)  # type: ignore[misc]


def _divided(values: Column, terms: Sequence[_Term]) -> Candidates:
    """``(x + c) // q``: convolutions and pooling with a stride."""
    for term in terms:
        for q in range(2, LARGEST_DIVISOR + 1):
            c = _shift_for(values, term.values, q)
            if c is not None:
                text = f"({term.name}{c:+d})//{q}" if c else f"{term.name}//{q}"
                cost = term.cost + 1.5 + math.log2(q) / 4 + math.log2(1 + abs(c)) / 2
                yield cost, SizeRule(text, lambda sizes, t=term, c=c, q=q: (t.compute(sizes) + c) // q)  # type: ignore[misc]


def _of_two(values: Column, terms: Sequence[_Term]) -> Candidates:
    """``x + y + b`` (concatenation) and ``max(x, y)`` (broadcasting)."""
    for one, two in combinations_with_replacement(terms, 2):
        cost = 2 + one.cost + two.cost
        shifts = {value - x - y for value, x, y in zip(values, one.values, two.values, strict=True)}
        if one is not two and len(shifts) == 1:
            b = shifts.pop()
            text = f"{one.name}+{two.name}" + (f"{b:+d}" if b else "")
            yield (
                cost + math.log2(1 + abs(b)),
                SizeRule(text, lambda sizes, x=one, y=two, b=b: x.compute(sizes) + y.compute(sizes) + b),  # type: ignore[misc]
            )
        if tuple(map(max, one.values, two.values)) == values:
            text = f"max({one.name}, {two.name})"
            yield (
                cost + 1,
                SizeRule(text, lambda sizes, x=one, y=two: torch.sym_max(x.compute(sizes), y.compute(sizes))),  # type: ignore[misc]
            )


def _patches(values: Column, terms: Sequence[_Term]) -> Candidates:
    """Yield rules ``f * ((x + c) // q) * ((y + c) // q) + b``: image patches, with a class token."""
    for one, two in combinations_with_replacement(terms, 2):
        for q in range(2, LARGEST_DIVISOR + 1):
            for c in (0, q - 1):
                products = tuple(((x + c) // q) * ((y + c) // q) for x, y in zip(one.values, two.values, strict=True))
                for linear_cost, rule in _linear(values, [_Term("p", products, 0, lambda sizes: sizes[0])]):
                    name = f"(({one.name}+{c})//{q})*(({two.name}+{c})//{q})"
                    yield (
                        linear_cost + 4 + one.cost + two.cost + math.log2(q) / 4 + (0.5 if c else 0),
                        SizeRule(
                            rule.text.replace("p", name),
                            lambda sizes, x=one, y=two, q=q, c=c, r=rule: r.compute(  # type: ignore[misc]
                                [((x.compute(sizes) + c) // q) * ((y.compute(sizes) + c) // q)]
                            ),
                        ),
                    )


def _slope(values: Column, others: Column) -> Fraction | None:
    """Return the positive slope of the line through the first two examples that differ."""
    for value, other in zip(values[1:], others[1:], strict=True):
        if other != others[0]:
            slope = Fraction(value - values[0], other - others[0])
            return slope if slope > 0 else None
    return None


def _shift_for(values: Column, others: Column, divisor: int) -> int | None:
    """Return the ``c`` nearest to zero with ``(other + c) // divisor == value`` for all examples."""
    low = max(value * divisor - other for value, other in zip(values, others, strict=True))
    high = min(value * divisor + divisor - 1 - other for value, other in zip(values, others, strict=True))
    if low > high:
        return None
    return 0 if low <= 0 <= high else low if low > 0 else high


def _factor(factor: int) -> str:
    return "" if factor == 1 else f"{factor}*"


CONSTANTS = (type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
"""Python values that a description of outputs can hold."""

Rules = tuple[SizeRule | None, ...]
"""One rule for each size of a tensor; ``None`` where no rule explains it."""


class UnknownOutputsError(CaptureError):
    """Raised if the outputs of a module are unknown before it runs, or have no description without data."""


@dataclass(frozen=True)
class CallsAlike:
    """Calls of one module whose inputs have the same structure, ranks and dtypes; all return the same structure.

    Attributes:
        name: of the module, for error messages.
        calls: at least one; the first is the example.
        rules: for each output the rules for its tensors' sizes, or one rule for an integer.
        unknown: the outputs that are Python values which differ and follow from no size.
    """

    name: str
    calls: tuple[RecordedCall, ...]
    rules: tuple[tuple[Rules, ...], ...]
    unknown: frozenset[int]

    @classmethod
    def learn(cls, calls: Sequence[RecordedCall], name: str) -> CallsAlike:
        """Learn the rules.

        Raises:
            UnknownOutputsError: the calls do not return the same structure, or tensors that torch cannot fake.
        """
        first = calls[0]
        for leaf in first.outputs:
            if isinstance(leaf, Undescribed):
                raise UnknownOutputsError(
                    f"{name} returns a {leaf.kind}, which has no counterpart without data. Return a plain tensor."
                )
        for call in calls[1:]:
            if call.output_spec != first.output_spec or _structure(call.outputs) != _structure(first.outputs):
                raise UnknownOutputsError(
                    f"{name} returns {kinds_text(kinds_of(first.outputs))} on sample {first.sample} but "
                    f"{kinds_text(kinds_of(call.outputs))} on sample {call.sample} for inputs of the same structure; "
                    "it must always return the same structure, because its outputs are needed before it runs. Return "
                    "the same tensors in every case."
                )
        columns = list(zip(*(sizes_of(call.inputs) for call in calls), strict=True))
        known = [Known(name, column) for name, column in zip(_size_names(first.inputs), columns, strict=True)]
        columns_out = [tuple(call.outputs[index] for call in calls) for index in range(len(first.outputs))]
        rules = tuple(tuple(_rules(values, known)) for values in columns_out)
        unknown = frozenset(index for index, values in enumerate(columns_out) if not _is_known(values, rules[index]))
        return cls(name, tuple(calls), rules, unknown)

    def build(
        self,
        inputs: Sequence[Any],
        tensor: Callable[[int, torch.Tensor, Rules], Any],
        number: Callable[[int], Any],
    ) -> Any:
        """Return the result for these inputs, with new objects.

        Args:
            inputs: the flattened ``(args, kwargs)``; sizes may be symbolic.
            tensor: makes an output tensor, from its position among the outputs, a recorded one and the rules for its
                sizes (see :meth:`sizes`).
            number: gives the Python value at this position of the outputs, which no rule explains.
        """
        flat = [self._built(index, inputs, tensor, number) for index in range(len(self.calls[0].outputs))]
        return closed(pytree.tree_unflatten(flat, self.calls[0].output_spec))

    def _built(self, index: int, inputs: Sequence[Any], tensor: Any, number: Callable[[int], Any]) -> Any:
        if index in self.unknown:
            return number(index)
        value, rules = self.value(index, inputs), iter(self.rules[index])
        if isinstance(self.calls[0].outputs[index], Given):
            return value
        return map_values(
            value, lambda part: tensor(index, part, next(rules)) if isinstance(part, torch.Tensor) else part
        )

    def value(self, index: int, inputs: Sequence[Any]) -> Any:
        """Return the recorded output at this position, unless it is an integer that follows from sizes."""
        leaf = self.calls[0].outputs[index]
        if isinstance(leaf, Given):
            return inputs[leaf.index]
        return self.sizes(self.rules[index][0], inputs)[0] if type(leaf) is int else leaf

    def sizes(self, rules: Rules, inputs: Sequence[Any], unknown_size: Callable[[], Any] | None = None) -> list[Any]:
        """Return the sizes that these rules give.

        Args:
            rules: from :attr:`rules`.
            inputs: the flattened ``(args, kwargs)``; sizes may be symbolic.
            unknown_size: makes a size that no rule explains; without it such a size is an error.
        """
        known = sizes_of(inputs)
        if unknown_size is None and None in rules:
            raise UnknownOutputsError(
                f"A size of what {self.name} returns follows from no input size on the samples (it may depend on "
                "tensor values). Return a tensor of fixed size, or make an enclosing module the leaf."
            )
        return [unknown_size() if rule is None else rule.compute(known) for rule in rules]  # type: ignore[misc]

    def fixed_numbers(self) -> list[Any]:
        """Return the Python numbers among the outputs that were the same in all calls."""
        outputs = zip(*(call.outputs for call in self.calls), strict=True)
        known = [values for index, values in enumerate(outputs) if index not in self.unknown]
        return [values[0] for values in known if type(values[0]) in (bool, int, float) and len(set(values)) == 1]

    def is_fixed_number(self, index: int) -> bool:
        """Return whether the output is a Python number that no size explains and that was the same in all calls."""
        if type(self.calls[0].outputs[index]) is int:
            rule = self.rules[index][0][0]
            return rule is not None and rule.equal == ()
        return type(self.calls[0].outputs[index]) is float

    def check_sizes(self, index: int, tensor: torch.Tensor, inputs: Sequence[Any]) -> None:
        """Check that an output tensor of a real call has the sizes that its rules say.

        Raises:
            UnknownOutputsError: it has others; they depend on data, and no sample shows it.
        """
        rules = self.rules[index][0]
        known = sizes_of(inputs)
        for dim, (rule, size) in enumerate(zip(rules, tensor.shape, strict=True)):
            if rule is not None and not rule.allows(size, known):
                raise UnknownOutputsError(
                    f"{self.name} returned a tensor of size {size} in dim {dim}, where the captured graph was made for "
                    f"{rule.text}, as on the samples. Capture again with a sample like this input."
                )

    def refuse_number(self, index: int) -> Any:
        """Raise for a Python value that no rule explains.

        Raises:
            UnknownOutputsError: always.
        """
        seen = ", ".join(dict.fromkeys(repr(call.outputs[index]) for call in self.calls[:4]))
        raise UnknownOutputsError(
            f"{self.name} returns a Python value from a tensor ({seen} on the samples), which is not known before it "
            "runs and follows from no input size. Return it as a tensor."
        )

    def describe(self) -> Iterator[str]:
        """Yield the learned sizes in words, one line per output tensor."""
        for index, (leaf, rules) in enumerate(zip(self.calls[0].outputs, self.rules, strict=True)):
            for tensor, sizes in zip(_tensors(leaf), rules, strict=False):
                text = ", ".join("unknown" if rule is None else rule.text for rule in sizes)
                yield f"output {index}: ({text}) {str(tensor.dtype).removeprefix('torch.')}"


@dataclass(frozen=True)
class LearnedOutputs:
    """The rules for one module's outputs: calls with other argument structures are learned separately.

    Example:
        >>> from prepbench.running.recorded_calls import record_calls
        >>> calls = record_calls(nn.Linear(4, 2), [pb.Sample((torch.ones(n, 4),)) for n in (2, 5)])
        >>> print(LearnedOutputs.learn(calls[""], "linear").describe())
        output 0: (input0.shape[0], 2) float32
    """

    name: str
    variants: tuple[CallsAlike, ...]

    @classmethod
    def learn(cls, calls: Sequence[RecordedCall], name: str) -> LearnedOutputs:
        """Learn from calls of one module; ``name`` is for error messages.

        Raises:
            UnknownOutputsError: calls alike return other structures.
        """
        groups: dict[Any, list[RecordedCall]] = {}
        for call in calls:
            groups.setdefault(kinds_of(call.inputs), []).append(call)
        return cls(name, tuple(CallsAlike.learn(group, name) for group in groups.values()))

    def find(self, inputs: Sequence[Any]) -> CallsAlike | None:
        """Return the calls with inputs like these, if there are any."""
        kinds = kinds_of(inputs)
        return next((found for found in self.variants if kinds_of(found.calls[0].inputs) == kinds), None)

    def describe(self) -> str:
        """Return the learned sizes in words, one line per output tensor."""
        return "\n".join(line for variant in self.variants for line in variant.describe())


def _rules(values: Sequence[Any], known: Sequence[Known]) -> Iterator[Rules]:
    if all(type(value) is int for value in values):
        yield (learn_rule(tuple(values), known),)
        return
    for tensors in zip(*map(_tensors, values), strict=True):
        shapes = zip(*(tensor.shape for tensor in tensors), strict=True)
        yield tuple(_rule_for_dim(dim, sizes, known) for dim, sizes in enumerate(shapes))


def _rule_for_dim(dim: int, sizes: tuple[int, ...], known: Sequence[Known]) -> SizeRule | None:
    # an output's dim most often follows the same dim of an input
    near = [Known(k.name, k.values, 0 if k.name.endswith(f".shape[{dim}]") else 0.75) for k in known]
    return learn_rule(sizes, near)


def _is_known(values: Sequence[Any], rules: tuple[Rules, ...]) -> bool:
    """Return whether an output that is a Python value is the same in all calls, or follows from a rule."""
    if all(type(value) is int for value in values):
        return rules[0][0] is not None
    if not isinstance(values[0], CONSTANTS):
        return True
    return all(type(value) is type(values[0]) and value == values[0] for value in values)


def sizes_of(leaves: Sequence[Any]) -> list[Any]:
    """Return the sizes that rules may use: those of all tensors, and integers."""
    sizes: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, torch.SymInt) or type(leaf) is int:
            sizes.append(leaf)
        else:
            for tensor in _tensors(leaf):
                sizes += tensor.shape
    return sizes


def _size_names(leaves: Sequence[Any]) -> list[str]:
    names: list[str] = []
    for index, leaf in enumerate(leaves):
        if type(leaf) is int:
            names.append(f"input{index}")
        for tensor in _tensors(leaf):
            names += [f"input{index}.shape[{dim}]" for dim in range(tensor.dim())]
    return names


def _tensors(leaf: Any) -> list[torch.Tensor]:
    return [] if isinstance(leaf, (Given, *CONSTANTS)) else tensors_in(leaf)


def kinds_of(leaves: Sequence[Any]) -> tuple[Any, ...]:
    """Return the properties in which similar calls agree: ranks and dtypes of tensors, values of all but numbers."""
    kinds: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, torch.SymInt) or type(leaf) is int:
            kinds.append("int")
        elif isinstance(leaf, torch.SymFloat | float):
            kinds.append("float")
        else:
            kinds.append(leaf if isinstance(leaf, (Given, *CONSTANTS)) else _kind(leaf))
    return tuple(kinds)


def _kind(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.dim(), leaf.dtype
    inside = ", ".join(_kind_text(_kind(tensor)) for tensor in _tensors(leaf))
    return f"{type(leaf).__name__}({inside})" if inside else type(leaf).__name__


def are_alike(one: RecordedCall, other: RecordedCall) -> bool:
    """Return whether two calls take and return the same structures."""
    kinds = kinds_of(one.inputs) == kinds_of(other.inputs)
    return kinds and one.output_spec == other.output_spec and _structure(one.outputs) == _structure(other.outputs)


def _structure(outputs: Sequence[Any]) -> list[Any]:
    """Return the properties in which results of similar calls agree: all but Python values, whose types must agree."""
    return [type(leaf) if isinstance(leaf, CONSTANTS) else kinds_of([leaf]) for leaf in outputs]


def kinds_text(kinds: tuple[Any, ...]) -> str:
    """Return :func:`kinds_of` in words."""
    return "(" + ", ".join(map(_kind_text, kinds)) + ")"


def _kind_text(kind: Any) -> str:
    return f"{kind[1]} of rank {kind[0]}" if isinstance(kind, tuple) else repr(kind)
