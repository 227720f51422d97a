"""Compare a lowered program with PyTorch on the same inputs, to tell compiler bugs from quantization noise."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import fx

from prepbench._torch_compat import pytree
from prepbench.compile.wrong_operator import IN_TORCH, Blame, unknown
from prepbench.errors import InputError, TargetError, sentence
from prepbench.inputs import Sample
from prepbench.internal_errors import raise_if_internal
from prepbench.objects.compare import EXACT, Closeness, difference, sqnr
from prepbench.objects.copy import clones
from prepbench.quantize.rows import OPERATOR as BLOCKS
from prepbench.settings.numbers import FLOAT32, format_named
from prepbench.targets import Runtime
from prepbench.targets.programs import is_repeatable, outputs_computed_from_floats

aten = torch.ops.aten

_Call = tuple[Sequence[Any], Sequence[Any], Sequence[Any]]
"""The results of a call in float, of the quantized graph, and of the runtime."""

# of quantized programs: 8-bit rounding in another order leaves 40 dB (measured), and flips only near ties
LOWERED = Closeness(sqnr=30.0, integers=0.05)

# dB that a runtime may be further from float than the quantized graph
_MORE_NOISE = 3.0

# dB by which bad luck alone may put one call behind; what is further off is wrong
_UNLUCKY = 20.0

# calls that are judged together; after so few nothing is decided; and half of how far their inputs are moved, in turn
_MOST_CALLS, _UNCERTAIN, _A_LITTLE = 32, 2, (0.005, 0.02, 0.08)

# in float, by the coarsest type of the program: the precision left by summation in another order
_FLOAT_SQNR = {torch.float64: 70.0, torch.float32: 70.0, torch.float16: 35.0, torch.bfloat16: 22.0}

# the tolerance as a multiple of the effect of PyTorch's own rounding
_TIMES = 32.0


class LoweredCheck:
    """Checks a lowered program against its exported program.

    Number and order of the outputs, shapes, dtypes, and the places of NaN and infinities must be the same, and integers
    too, unless they are computed from floating-point numbers: of those 5 % may differ.

    In float, 70 dB must be left (35 of float16, 22 of bfloat16). Less is right only where PyTorch's own result moves as
    much when nothing but rounding changes: when it computes in double precision, when the inputs move by a few units in
    the last place, or each value on the way by one. So it is with zeros, large, tiny and equal negative values in the
    place of the samples'.

    Quantized programs must be within 30 dB of the quantized graph. Where quantization itself leaves less, one value
    that is rounded the other way may change as much. There the lowered program must be as near to float as the program
    is, with 3 dB to spare: of integers, such as the classes of the best boxes, twice as many may differ. A call that is
    not is judged together with calls whose inputs are nearly the same. Where the program in float itself is left with
    less than 6 dB when nothing but rounding changes, its result is noise: there is nothing to compare, and
    :attr:`remarks` say so.

    Of made values, those judge nothing between which rounding alone decides: equal ones to choose among, or ones in the
    middle of two integers.

    Programs that keep state or draw random numbers are not checked: two runs of them differ anyway, and a run would
    change the model's buffers.

    Args:
        runtime: the lowered program.
        program: the program that the target was given.
        target: the name of the target.
        original: the program in float that was quantized; None where nothing was.
        asserted: how many of the last outputs tell whether assertions on values hold; made calls that break one are no
            calls of the model.
        precision: in which the target was asked to compute, such as ``"bf16"``; None for that of the program.
        blame: finds out which operator differs, and who is wrong.
        has_leaves: whether PyTorch runs leaves among the lowered parts, whose errors are the model's own.
    """

    def __init__(
        self,
        runtime: Runtime,
        program: torch.export.ExportedProgram,
        target: str,
        original: torch.export.ExportedProgram | None = None,
        *,
        asserted: int = 0,
        precision: str | None = None,
        blame: Blame | None = None,
        has_leaves: bool = False,
    ) -> None:
        self._blame, self._asserted, self._has_leaves = blame, asserted, has_leaves
        self._names_causes = True
        self._runtime, self._target, self._original = runtime, target, original
        self._program = program
        asked = format_named(precision or FLOAT32.name)
        lowest = coarsest_type(program) if asked is None or asked is FLOAT32 else asked.dtype
        self._unit = torch.finfo(lowest).eps
        self._closeness = LOWERED if original is not None else replace(LOWERED, sqnr=_FLOAT_SQNR.get(lowest, 20.0))
        self._scales: dict[int, float] = {}
        self._noisy: dict[int, None] = {}
        self._is_checked = is_repeatable(program)
        self._chooses = any(map(_is_choice, program.graph.nodes))
        self._decides = original is not None or self._chooses or any(map(_is_decision, program.graph.nodes))
        self._from_floats = outputs_computed_from_floats(program)

    @functools.cached_property
    def _module(self) -> Callable[..., Any]:
        return light_module(self._program)

    @torch.no_grad()
    def check_samples(self, samples: Sequence[Sample]) -> None:
        """Compare calls of different sizes, because a program may be right at one size only.

        Raises:
            TargetError: an output differs, or is too far away, at the first call or at a second one; or an input is
                changed that the program does not change.
        """
        if not self._is_checked:
            return
        expected = []
        for sample in samples:
            try:
                expected.append(self.call(sample, f"tracing_inputs[{sample.index}]"))
            except InputError as error:
                raise TargetError(
                    f"{self._target} lowered the graph for other sizes than those of tracing_inputs[{sample.index}]: "
                    f"{sentence(error)} This is a limit of the target on this model. {_REMEDY}"
                ) from error
        if samples:  # a kernel that adds to a constant is right only once
            self.outputs(expected[0], samples[0], f"a second call with tracing_inputs[{samples[0].index}]")

    @torch.no_grad()
    def check_others(self, samples: Sequence[Sample]) -> None:
        """Compare calls of sizes that no sample has; those that the program itself refuses are skipped.

        Raises:
            TargetError: an output differs.
        """
        for sample in samples if self._is_checked else ():
            sizes = ", ".join(str(tuple(leaf.shape)) for leaf in sample.args if isinstance(leaf, torch.Tensor))
            self.made_call(sample, f"a call of other sizes, {sizes}")

    @torch.no_grad()
    def check_edges(self, samples: Sequence[Sample]) -> None:
        """Compare calls of the smallest sizes among some samples, with values that are rare in samples.

        Raises:
            TargetError: an output differs.
        """
        filled = [one for one in samples if all(leaf.numel() for leaf in one.args if isinstance(leaf, torch.Tensor))]
        if filled and self._is_checked:
            smallest = min(filled, key=_elements)
            sizes = ", ".join(str(tuple(leaf.shape)) for leaf in smallest.args if isinstance(leaf, torch.Tensor))
            for what, made in with_edge_values(smallest, is_quantized=self._original is not None):
                self.made_call(made, f"a call of sizes {sizes} with {what}", is_edge=True)

    @torch.no_grad()
    def is_right(self, sample: Sample) -> bool:
        """Return whether the results of one call agree."""
        self._names_causes = False  # which would lower the graph in parts, for an answer that nobody reads
        try:
            if self._is_checked:
                self.call(sample, "a call")
        except Exception:  # each runtime has its own
            return False
        finally:
            self._names_causes = True
        return True

    def call(self, sample: Sample, name: str) -> list[Any]:
        """Compare one call; return the right outputs."""
        given = clones(sample.args)  # a model may change its inputs in place
        try:
            expected = list(self._module(*given))
        except RuntimeError as error:  # it took this call before it was lowered
            raise TargetError(
                f"{self._target} fixed a size while it lowered the graph, which then refuses {name}: "
                f"{sentence(error)} Choose another target, give this size one value in all tracing inputs, or keep the "
                "module that computes with it as a leaf (leaf_modules=)."
            ) from error
        after = self.outputs(expected, sample, name)
        for index, (before, right, got) in enumerate(zip(sample.args, given, after, strict=True)):
            if difference(before, right).equal and not difference(before, got).equal:
                raise TargetError(
                    f"{self._target} changes input {index} of the graph while it runs. This is a bug of the target on "
                    f"this model. {_REMEDY}"
                )
        return expected

    def made_call(self, sample: Sample, name: str, *, is_edge: bool = False) -> None:
        """Compare a made-up call, if the program takes it and is deterministic on it."""
        try:
            expected = list(self._module(*clones(sample.args)))
        except Exception:  # operators raise various types for inconsistent sizes or values
            return
        if not all(map(bool, expected[len(expected) - self._asserted :])):
            return
        try:
            self.outputs(expected, sample, name, is_made=True, is_edge=is_edge)
        except InputError:  # a size beyond those that memory is planned for
            return
        except TargetError:
            if difference(expected, list(self._module(*clones(sample.args)))).equal:
                raise

    def outputs(
        self, expected: Sequence[Any], sample: Sample, name: str, *, is_made: bool = False, is_edge: bool = False
    ) -> list[Any]:
        """Compare the outputs of one call; return the inputs as the call leaves them."""
        given = clones(sample.args)
        try:
            got = list(self._runtime.run(given))
        except InputError:  # a size beyond those that memory is planned for
            raise
        except Exception as error:  # each library has its own
            raise_if_internal(error, of_libraries=True)
            if self._has_leaves and not isinstance(error, TargetError):
                raise
            told = (
                str(error) if isinstance(error, TargetError) else f"{self._target} fails: {sentence(error)} {_REMEDY}"
            )
            where = self._blame.of_failure(sample) if self._blame is not None and self._names_causes else ""
            raise TargetError(" ".join(filter(None, (told, f"This is on {name}.", where)))) from error
        if len(got) == len(expected):
            got = [_like(value, right) for value, right in zip(got, expected, strict=True)]
        found = difference(expected, got, self._closeness)
        for place, (right, value) in enumerate(zip(expected, got, strict=False)):
            if not is_made:
                self._scales.setdefault(place, _largest(right))
            if found.equal and not self._from_floats[place]:
                found = difference(right, value, EXACT, f"output[{place}]")
        if found.equal:
            return given
        # intermediate values that are rounded are as large as the inputs, even where the result is small
        largest = max(map(_largest, sample.args), default=0.0) if is_made else 0.0
        is_near = self._is_as_near if self._original is not None else self._is_rounded_otherwise
        if not is_near(expected, got, sample, largest):
            if is_edge and self._is_right_at_edge(expected, got, sample, largest):
                return given
            if self._original is not None and self._is_noise(expected, got, sample):
                self._noisy |= {} if is_made else {sample.index: None}
                return given
            raise TargetError(
                f"{self._target} does not compute what the graph computes: on {name}, {found.text}. "
                + self._reason(sample, expected)
            )
        return given

    @property
    def remarks(self) -> tuple[str, ...]:
        """The calls on which nothing could be compared, because rounding alone decides what PyTorch computes in float.

        Such are calls of equal values where a norm divides by their deviation.
        """
        text = (
            "tracing_inputs[{}]: the result in float is noise (other rounding alone gives another), so the target was "
            "not compared there; a division by nearly nothing does that, such as in the norm of equal values"
        )
        return tuple(map(text.format, self._noisy))

    def _is_noise(self, expected: Sequence[Any], got: Sequence[Any], sample: Sample) -> bool:
        """Return whether each result that differs is one that rounding alone decides in the program in float."""
        if self._original is None or len(expected) != len(got):
            return False
        off = [
            place
            for place, (right, value) in enumerate(zip(expected, got, strict=True))
            if not difference(right, value, LOWERED if self._from_floats[place] else EXACT).equal
        ]
        if any(
            not is_float_of_same_form(expected[place], got[place])
            or not torch.equal(expected[place].isfinite(), got[place].isfinite())
            for place in off
        ):
            return False
        module = self._original.module(check_guards=False)
        unit = torch.finfo(coarsest_type(self._original)).eps
        base = list(module(*clones(sample.args)))
        moved = list(rounded_otherwise(self._original, module, sample, unit))
        moved += [list(_WithNoise(self._original, unit / 2, seed).run(*clones(sample.args))) for seed in (0, 1)]
        return all(any(sqnr(base[place], each[place]) < _PURE_NOISE for each in moved) for place in off)

    def _is_small(self, expected: Sequence[Any], got: Sequence[Any]) -> bool:
        """Return whether a quantized result with a small signal differs by the tolerance on the samples at most."""
        if self._original is None or len(expected) != len(got):
            return False
        share = 10 ** (-(LOWERED.sqnr or 0.0) / 20)
        return all(
            difference(right, value, LOWERED if self._from_floats[place] else EXACT).equal
            or (
                is_float_of_same_form(right, value)
                and bool(torch.equal(right.isfinite(), value.isfinite()))
                and _largest(right - value) <= share * self._scales.get(place, 0.0)
            )
            for place, (right, value) in enumerate(zip(expected, got, strict=True))
        )

    def _is_right_at_edge(self, expected: Sequence[Any], got: Sequence[Any], sample: Sample, largest: float) -> bool:
        """Return whether results differ by rounding, including intermediate rounding, or the order of ties only.

        Of equal values, a norm divides the rounding of their mean by nearly nothing. Where PyTorch's own result is NaN,
        as is the mean of what a mask selects from zeros, kernels may have a number.
        """
        if len(expected) != len(got):
            return False
        got = [_with_same_nan(right, value) for right, value in zip(expected, got, strict=True)]
        kinds = [self._closeness if from_floats else EXACT for from_floats in self._from_floats]
        if all(difference(*each).equal for each in zip(expected, got, kinds, strict=True)):
            return True
        if self._is_small(expected, got):
            return True
        is_quantized = self._original is not None
        unit = _STEP if is_quantized else self._unit
        moved = [list(_WithNoise(self._program, unit, seed).run(*clones(sample.args))) for seed in (0, 1)]
        is_within = self._is_no_noisier if is_quantized else self._is_within
        off = [
            (place, right)
            for place, (right, value) in enumerate(zip(expected, got, strict=True))
            if not is_within(place, right, value, [each[place] for each in moved], largest)
        ]
        if not off or not self._decides:
            return not off
        for last_first in (False, True):
            moved.append(with_ties_broken(self._program, sample, last_first=last_first)[0])
        return not any(all(difference(right, each[i], kinds[i]).equal for each in moved) for i, right in off)

    def _is_rounded_otherwise(
        self, expected: Sequence[Any], got: Sequence[Any], sample: Sample, largest: float
    ) -> bool:
        """Return whether PyTorch's own result moves as much under different rounding."""
        if len(expected) != len(got):
            return False
        moved = list(rounded_otherwise(self._program, self._module, sample, self._unit))
        off = [
            place
            for place, (right, value) in enumerate(zip(expected, got, strict=True))
            if not self._is_within(place, right, value, [result[place] for result in moved], largest)
        ]
        # what cancels exactly in PyTorch, such as a mean of whole numbers, moves with the values before it only
        if off and not self._chooses:
            moved += [
                list(_WithNoise(self._program, self._unit / 2, seed).run(*clones(sample.args))) for seed in (0, 1)
            ]
        return all(
            self._is_within(place, expected[place], got[place], [result[place] for result in moved], largest)
            for place in off
        )

    def _is_no_noisier(self, place: int, right: Any, value: Any, moved: Sequence[Any], _: float) -> bool:
        """Return whether a result is off by no more than twice what rounding each value to 8 bits moves it."""
        if not is_float_of_same_form(right, value):
            return difference(right, value, self._closeness if self._from_floats[place] else EXACT).equal
        allowed = min((sqnr(right, each) for each in moved if each.shape == right.shape), default=math.inf)
        return sqnr(right, value) >= allowed - _TWICE

    def _is_within(self, place: int, right: Any, value: Any, moved: Sequence[Any], largest: float) -> bool:
        if not isinstance(right, torch.Tensor) or not right.is_floating_point() or not isinstance(value, torch.Tensor):
            return difference(right, value, self._closeness if self._from_floats[place] else EXACT).equal
        if (right.shape, right.dtype) != (value.shape, value.dtype):
            return False
        wide, found = right.double(), value.double()
        results = [result.double() for result in moved if result.shape == right.shape]
        is_finite = wide.isfinite()
        # inconclusive if rounding decides whether a number is finite
        decided = torch.ones_like(is_finite)
        for result in results:
            decided &= result.isfinite() == is_finite
        same = (wide == found) | (wide.isnan() & found.isnan())
        if not bool((same | found.isfinite() & is_finite | ~decided).all()):
            return False
        counts = decided & is_finite & found.isfinite()
        apart = float(torch.where(counts, wide - found, 0.0).abs().max()) if wide.numel() else 0.0
        own = max((float(torch.where(counts, wide - result, 0.0).abs().max()) for result in results), default=0.0)
        scale = max(float(torch.where(counts, wide, 0.0).abs().max()), _SMALL * self._scales.get(place, 1.0), largest)
        return apart <= _TIMES * (own + self._unit * scale)

    def _reason(self, sample: Sample, expected: Sequence[Any]) -> str:
        if not self._names_causes:
            return ""
        for last_first in (False, True):
            results, places = with_ties_broken(self._program, sample, last_first=last_first)
            if places and not difference(expected, results, self._closeness).equal:
                layers = "keep layers whose results are rounded to the same integers in float, "
                return (
                    f"On this call {places[0]} chooses among equal values, or values that only rounding tells apart. "
                    "PyTorch promises no order of these, and with another order its own result is another, too. Give "
                    "samples or weights that decide (those of a router that was never trained may all be zero), "
                    + (layers if self._original is not None else "")
                    + "or choose EagerDeployment(), which computes as PyTorch does."
                )
        if self._blame is None:
            return unknown(is_quantized=self._original is not None)
        return self._blame(sample, self._is_value_right)

    def _is_value_right(self, right: Any, value: Any) -> bool:
        """Return whether an intermediate value agrees with PyTorch's up to rounding."""
        if difference(right, value, self._closeness).equal:
            return True
        is_small = isinstance(right, torch.Tensor) and right.is_floating_point() and right.shape == value.shape
        return is_small and bool(((right - value).abs() <= _TIMES * self._unit * _largest(right)).all())

    def _is_as_near(self, expected: Sequence[Any], got: Sequence[Any], sample: Sample, _: float) -> bool:
        """Return whether the runtime's result is as near to float as the quantized graph's own.

        Rounding in another order changes some 8-bit values by a step, and what these change in later layers. Where few
        values make up a result, a call may be 10 dB better or worse by that alone, in the graph as in the runtime. So a
        call that is not near enough is judged together with calls whose inputs are moved by 1 to 16 %.
        """
        if self._original is None or len(expected) != len(got):
            return False
        original = self._original.module(check_guards=False)
        calls = [(list(original(*clones(sample.args))), expected, got)]
        if self._are_near(calls):
            return True
        if not self._are_near(calls, spare=_UNLUCKY) or not any(map(_is_float_tensor, sample.args)):
            return False
        generator = torch.Generator().manual_seed(0)
        for count in range(2, _MOST_CALLS + 1):
            args = _moved(sample, _A_LITTLE[count % len(_A_LITTLE)], generator)
            try:
                in_float, right = list(original(*clones(args))), list(self._module(*clones(args)))
                run = self._runtime.run(clones(args))
                calls.append((in_float, right, list(map(_like, run, right))))
            except Exception:  # what is asserted may not hold for moved values; the call is refused then, as it was
                return False
            if count & (count - 1) == 0 and count > _UNCERTAIN and self._are_near(calls):
                return True
        return False

    def _are_near(self, calls: Sequence[_Call], spare: float = _MORE_NOISE) -> bool:
        """Return whether the runtime's results of some calls, taken together, are as near to float as the graph's."""
        for place, from_floats in enumerate(self._from_floats):
            exact, right, value = ([call[kind][place] for call in calls] for kind in range(3))
            if all(
                difference(each, other, LOWERED if from_floats else EXACT).equal
                for each, other in zip(right, value, strict=True)
            ):
                continue
            if not from_floats:
                return False
            if len(calls) > 1:
                if not all(map(_have_one_form, exact, right, value)):
                    return False
                exact, right, value = ([torch.cat([one.flatten() for one in each])] for each in (exact, right, value))
            if not difference(exact[0], value[0], _noise(exact[0], right[0], spare)).equal:
                return False
        return True


def _have_one_form(exact: Any, right: Any, value: Any) -> bool:
    return all(isinstance(one, torch.Tensor) and one.shape == exact.shape for one in (exact, right, value))


def _is_float_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _with_same_nan(right: Any, value: Any) -> Any:
    """Return a result with NaN wherever the right one has it."""
    return torch.where(right.isnan(), right, value) if is_float_of_same_form(right, value) else value


def coarsest_type(program: torch.export.ExportedProgram) -> torch.dtype:
    """Return the floating type of a program with the fewest digits."""
    types = {getattr(node.meta.get("val"), "dtype", None) for node in program.graph.nodes}
    return max((each for each in _FLOAT_SQNR if each in types), key=lambda each: torch.finfo(each).eps, default=_SINGLE)


def with_edge_values(sample: Sample, *, is_quantized: bool) -> Iterator[tuple[str, Sample]]:
    """Yield calls with values that are rare in samples, by description; integers have no small ones."""
    for what, change in _EDGES.items():
        if is_quantized and what not in _EDGES_OF_INTEGERS:
            continue
        leaves = [
            change(leaf) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.numel() else leaf
            for leaf in sample.args
        ]
        if any(one is not other for one, other in zip(leaves, sample.args, strict=True)):
            yield what, Sample(tuple(leaves), {}, sample.index)


def is_float_of_same_form(right: Any, value: Any) -> bool:
    """Return whether both are floating-point tensors of one shape and type."""
    if not isinstance(right, torch.Tensor) or not isinstance(value, torch.Tensor):
        return False
    return right.is_floating_point() and (right.shape, right.dtype) == (value.shape, value.dtype)


def rounded_otherwise(
    program: torch.export.ExportedProgram, module: Callable[..., Any], sample: Sample, unit: float
) -> Iterator[list[Any]]:
    """Yield results of a call that differ by rounding alone.

    Of inputs that are moved by a few units in the last place, and of the program in double precision where its
    operators take that.
    """
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        yield list(module(*_moved(sample, unit, generator)))
    try:
        yield list(_InDoubles(program.module(check_guards=False)).run(*clones(sample.args)))
    except Exception:  # an operator of one precision, such as a leaf
        return


def _moved(sample: Sample, unit: float, generator: torch.Generator) -> list[Any]:
    """Return the inputs of a call with each floating-point number moved by up to twice so much of itself."""
    return [
        leaf * (1 + 4 * unit * (torch.rand(leaf.shape, generator=generator) - 0.5)).to(leaf)
        if _is_float_tensor(leaf)
        else leaf
        for leaf in clones(sample.args)
    ]


class _InDoubles(fx.Interpreter):
    """Runs a program in double instead of single precision."""

    def run_node(self, n: fx.Node) -> Any:
        if n.op == "call_function":
            args, kwargs = fx.node.map_aggregate(self.fetch_args_kwargs_from_env(n), _doubled)
            return getattr(self, n.op)(n.target, args, kwargs)
        return fx.node.map_aggregate(super().run_node(n), _doubled) if n.op != "output" else super().run_node(n)


class _WithNoise(fx.Interpreter):
    """Runs a program with noise of a few ulps on each value, as other rounding may cause."""

    def __init__(self, program: torch.export.ExportedProgram, unit: float, seed: int) -> None:
        super().__init__(program.module(check_guards=False))
        self._unit, self._generator = unit, torch.Generator().manual_seed(seed)

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        return fx.node.map_aggregate(value, self._moved) if n.op in ("placeholder", "call_function") else value

    def _moved(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        return value * (1 + 4 * self._unit * (torch.rand(value.shape, generator=self._generator) - 0.5)).to(value)


def _doubled(value: Any) -> Any:
    if value is torch.float32:
        return torch.float64
    return value.double() if isinstance(value, torch.Tensor) and value.dtype == torch.float32 else value


def _is_choice(node: fx.Node) -> bool:
    """Return whether an operator selects among values, or rounds to integers: with ties, each choice is right."""
    return str(getattr(node.target, "overloadpacket", "")).removeprefix("aten.") in _CHOOSE


def _is_decision(node: fx.Node) -> bool:
    """Return whether an operator turns floats into integers or truth values, by comparing or cutting off."""
    results = [value.dtype for value in pytree.tree_leaves(node.meta.get("val")) if isinstance(value, torch.Tensor)]
    is_whole = bool(results) and not any(each.is_floating_point for each in results)
    return is_whole and any(map(_is_float, node.all_input_nodes))


def _is_float(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _elements(sample: Sample) -> int:
    return sum(leaf.numel() for leaf in sample.args if isinstance(leaf, torch.Tensor))


def _largest(value: Any) -> float:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or not value.numel():
        return 1.0
    return float(torch.where(value.isfinite(), value, 0.0).abs().max())


_REMEDY = f"Choose another target, or {IN_TORCH}."
_SINGLE = torch.float32
# integer kernels round activations in each call to 8 bits, whatever the quantized graph does
_STEP = 2.0**-7
# in dB
_TWICE = 6.0
# in dB: other rounding moves a result by as much as half of itself
_PURE_NOISE = 6.0
# smaller values are compared relative to this share of a sample's result
_SMALL = 1e-3
_EDGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "zeros": torch.zeros_like,
    "large values": lambda x: x * 1000,
    "tiny values": lambda x: x * 1e-4,
    "rows of equal negative values": lambda x: -x[..., :1].abs().expand_as(x).clone() if x.dim() else -x.abs(),
}
_EDGES_OF_INTEGERS = ("zeros", "large values", "rows of equal negative values")
_CHOOSE = frozenset(
    (
        *("argmax", "argmin", "argsort", "sort", "topk", "max", "min", "median", "mode", "kthvalue", "unique"),
        *("round", "floor", "ceil", "trunc", "floor_divide", "remainder", "fmod", "histc", "bucketize", "searchsorted"),
        *("nonzero", "masked_select", "cummax", "cummin", "adaptive_max_pool2d", "max_pool2d_with_indices"),
    )
)


def _noise(exact: Any, right: Any, spare: float) -> Closeness:
    """Return the tolerance relative to float, where ``right`` is the quantized result, with so many dB to spare."""
    if not isinstance(right, torch.Tensor) or right.shape != exact.shape:
        return LOWERED
    if right.is_floating_point():
        return Closeness(sqnr=min(LOWERED.sqnr or 0.0, sqnr(exact, right) - spare))
    share = float((exact != right).double().mean())
    return Closeness(integers=LOWERED.integers + share * 10 ** (spare / 10))


def _like(value: Any, right: Any) -> Any:
    """Return a target's tensor as a number where the program returns one."""
    is_number = isinstance(right, int | float) and isinstance(value, torch.Tensor) and value.numel() == 1
    return value.item() if is_number else value


# A quantized program as a module that runs in little memory.


# weights that are in float at a time
_VALUES = 2**22


def light_module(program: torch.export.ExportedProgram) -> Callable[..., Any]:
    """Return the program as a module with the same results that never holds a large matrix in float.

    Of a table, the rows that are looked up are made floats, and of the weight of a linear layer, some outputs after the
    other. PyTorch's own operator would go through integers of 64 bits, twelve bytes for each weight.
    """
    module = program.module(check_guards=False)
    for node in list(module.graph.nodes):
        if _is_large_matrix(node) and len(node.users) == 1:
            _read_in_parts(node, next(iter(node.users)))
    module.recompile()
    return module


def _is_large_matrix(node: fx.Node) -> bool:
    """Return whether a node dequantizes a large matrix with per-row scales."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or node.kwargs or value.ndim != 2:
        return False
    sizes = [size for size in value.shape if isinstance(size, int)]  # those of weights are numbers
    if len(sizes) < 2 or sizes[0] * sizes[1] <= _VALUES:
        return False
    channels = torch.ops.quantized_decomposed.dequantize_per_channel.default
    return node.target is BLOCKS or (node.target is channels and bool(node.args[3] == 0))


def _read_in_parts(weight: fx.Node, user: fx.Node) -> None:
    call: Callable[..., torch.Tensor]
    given: tuple[Any, ...]
    if user.target is aten.embedding.default and user.args[0] is weight:
        call, given = _looked_up, (user.args[1],)
    elif user.target is aten.linear.default and user.args[1] is weight and user.args[0] is not weight:
        call, given = _linear, (user.args[0], user.args[2] if len(user.args) > 2 else None)
    else:
        return
    with user.graph.inserting_before(user):
        new = user.graph.call_function(call, (cast(Any, weight.target), weight.args, *given))
    user.replace_all_uses_with(new)
    user.graph.erase_node(user)
    user.graph.erase_node(weight)


def _part(dequantize: Callable[..., torch.Tensor], args: Sequence[Any], rows: Any) -> torch.Tensor:
    q, scale, zero_point, *others = args
    return dequantize(q[rows], scale[rows], None if zero_point is None else zero_point[rows], *others)


def _looked_up(dequantize: Callable[..., torch.Tensor], args: Sequence[Any], places: torch.Tensor) -> torch.Tensor:
    return _part(dequantize, args, places.flatten()).reshape(*places.shape, -1)


def _linear(
    dequantize: Callable[..., torch.Tensor], args: Sequence[Any], values: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    outputs, inputs = args[0].shape
    step = max(1, _VALUES // inputs)
    parts = [values @ _part(dequantize, args, slice(start, start + step)).t() for start in range(0, outputs, step)]
    joined = torch.cat(parts, -1)
    return joined if bias is None else joined.add_(bias)


# Ties, of which PyTorch and a target may choose different ones, so that both are right.


_TOPK, _SORT, _ARGSORT = aten.topk.default, aten.sort.default, aten.argsort.default
# relative: other rounding may swap two values that are no further apart
_NEAR = 1e-5


def with_ties_broken(
    program: torch.export.ExportedProgram, sample: Sample, *, last_first: bool
) -> tuple[list[Any], list[str]]:
    """Return the results of a call with ties broken toward the first, or the last, and whether there are ties.

    PyTorch promises an order of equal values for ``argmax``, ``max`` and stable sorting, but not for ``topk`` and other
    sorting. Values that only rounding tells apart count as equal.

    Args:
        program: what is called.
        sample: a call of the flat program, whose tensors are left as they are.
        last_first: whether the last of equal values comes first.

    Returns:
        The results, and the modules and operators whose choice depends on that.
    """
    run = _Run(program.module(check_guards=False), last_first)
    results = run.run(*clones(sample.args))
    return list(results), run.places


class _Run(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, last_first: bool) -> None:
        super().__init__(module)
        self._last_first = last_first
        self.places: list[str] = []

    def run_node(self, n: fx.Node) -> Any:
        if n.target not in (_TOPK, _SORT, _ARGSORT):
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        first, last = (_chosen(n.target, args, kwargs, last_first=way) for way in (False, True))
        if not torch.equal(first, last):
            stack = list((n.meta.get("nn_module_stack") or {}).values())
            name = str(n.target).split(".")[1]
            self.places.append(f"{stack[-1][0]} ({name})" if stack and stack[-1][0] else name)
        indices = last if self._last_first else first
        return indices if n.target is _ARGSORT else (_taken(args[0], indices, _dim(n.target, args, kwargs)), indices)


def _chosen(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, last_first: bool) -> torch.Tensor:
    """Return the indices of an operator in the requested order of ties."""
    values: torch.Tensor = args[0]
    dim = _dim(target, args, kwargs)
    is_topk = target is _TOPK
    at, name = (3, "largest") if is_topk else (2, "descending")
    descending = args[at] if len(args) > at else kwargs.get(name, is_topk)
    if not values.ndim:
        return torch.zeros((), dtype=torch.int64)
    keys = values.flip(dim) if last_first else values
    if keys.is_floating_point():
        keys = _preferring_the_first(keys.double(), dim, 1 if descending else -1)
    indices: torch.Tensor = keys.sort(dim=dim, descending=descending, stable=True).indices
    if last_first:
        indices = values.shape[dim] - 1 - indices
    return indices.narrow(dim, 0, args[1]) if is_topk else indices


def _preferring_the_first(keys: torch.Tensor, dim: int, sign: int) -> torch.Tensor:
    """Return keys with nearly equal ones shifted so that the first ones come first."""
    ramp = torch.linspace(1.0, 0.0, keys.shape[dim], dtype=keys.dtype)
    moved = keys.transpose(dim, -1) * (1 + sign * keys.transpose(dim, -1).sign() * _NEAR * ramp)
    return torch.where(keys.isfinite(), moved.transpose(dim, -1), keys)


def _taken(values: torch.Tensor, indices: torch.Tensor, dim: int) -> torch.Tensor:
    return values.gather(dim, indices) if values.ndim else values


def _dim(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    at = 2 if target is _TOPK else 1
    return int(args[at] if len(args) > at else kwargs.get("dim", -1))
