"""Conditions on sizes under which a captured graph equals the model, and the trial calls that decide which ones matter.

A guard from the model's own Python is a condition. Guards from torch's tracing (is this size 1? is this tensor
contiguous?) often make no difference to the result, and neither does the assumption that sizes are 2 or more. So trial
calls break such a guard: if the graph still agrees with the model there, the guard is dropped.
"""

from __future__ import annotations

import functools
import itertools
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch

from prepbench._torch_compat.programs import size_limits, with_guards, without_guards
from prepbench._torch_compat.sizes import noted_guards
from prepbench.capture.aten.export_program import Program
from prepbench.capture.aten.trial_calls import (
    MOST_TRIALS,
    Judge,
    MadeCalls,
    Place,
    Sizes,
    Trial,
    breaks,
    breaks_any,
    positive_symbol,
    unequal_size,
)
from prepbench.capture.sizes.axis import Axis
from prepbench.capture.sizes.conditions import CONDITIONS, Asked, SizeCondition, SizeConditions, strongest
from prepbench.capture.sizes.dynamic_axes import DynamicAxes, SampleSizes, size_key
from prepbench.capture.sizes.resizing import sizes_in
from prepbench.capture.sizes.size_formulas import formula_text, python_text
from prepbench.document.model import SourceLine
from prepbench.inputs import Sample, named_leaves
from prepbench.running.unchanged import NotedState

_ROUNDS = 3
"""How often guards that make no difference are tried again, where those hold that do."""


def _mattering(conditions: Sequence[SizeCondition], trials: Sequence[tuple[Trial, bool]]) -> list[SizeCondition]:
    """Return the guards without those that make no difference where the others hold.

    Each trial where the graph is wrong breaks one that is kept, and for each that is left out there is a trial that
    breaks it, meets what is kept, and is right.

    Args:
        conditions: in the order in which they may be left out.
        trials: with whether the graph was right in each.
    """
    tells = {condition: _that_tell(condition, trials) for condition in conditions}
    kept = list(conditions)
    for condition in conditions:
        others = [one for one in kept if one is not condition]
        wrong = [trial for trial, is_right in tells[condition] if not is_right]
        if len(wrong) < len(tells[condition]) and all(breaks_any(trial, others) for trial in wrong):
            kept = others
    while True:
        known = [
            condition
            for condition in conditions
            if condition in kept
            or not any(is_right and not breaks_any(trial, kept) for trial, is_right in tells[condition])
        ]
        if len(known) == len(kept):
            return kept
        kept = known


def _that_tell(condition: SizeCondition, trials: Sequence[tuple[Trial, bool]]) -> list[tuple[Trial, bool]]:
    """Return the trials that decide about a guard, and whether they speak against it."""
    # what two small sizes do together is a condition of its own
    alone = [(trial, is_right) for trial, is_right in trials if not (trial.made and trial.refused)]
    found = [(trial, is_right) for trial, is_right in alone if breaks(trial.sizes, condition)]
    # A trial with a size of 0 or 1 may fail for that size alone, which becomes a condition of its own. So it decides
    # about this condition only if no trial with larger sizes breaks it.
    larger = [(trial, is_right) for trial, is_right in found if not trial.made]
    # where one size is 0, results are empty, and equal whatever the graph does with the others
    return larger or [
        (trial, is_right and (trial.made[2] > 0 or condition.places == trial.made[:1]))
        for trial, is_right in found
        if trial.made
    ]


@dataclass(frozen=True)
class HoldsWhere:
    """The conditions on sizes that a captured graph assumes.

    Attributes:
        firm: guards of the model's own Python on sizes above 1, and declared limits.
        doubtful: torch's guards, and the model's on sizes of 0 and 1.
        trials: calls that tell whether the doubtful ones matter.
        edges: strict inequalities whose weak form is firm; a trial call at equality decides between the two.
    """

    firm: tuple[SizeCondition, ...] = ()
    doubtful: tuple[SizeCondition, ...] = ()
    trials: tuple[Trial, ...] = ()
    edges: tuple[SizeCondition, ...] = ()

    def conditions(self, are_right: Callable[[Sequence[Sample]], bool] | None = None) -> tuple[SizeCondition, ...]:
        """Return the conditions that a call must meet.

        Args:
            are_right: tells whether what was made of the graph does what the graph does in all of some calls; it
                always does when not given.
        """
        equal = [trial.sample for trial in self.trials if trial.equal]
        # one run over all trials first: it answers for most graphs, and single runs are needed only where it fails
        all_right = are_right is None or not equal or are_right(equal)
        open_ones = [
            (trial, trial.equal and (all_right or are_right is None or are_right([trial.sample])))
            for trial in self.trials
        ]
        kept = [*self.firm, *_mattering(self.doubtful, open_ones)]
        for condition in self.edges:
            # where sizes change only together, no trial may be at equality, and nothing speaks for the weak form
            told = _that_tell(condition, open_ones)
            if not told or not all(is_right for _, is_right in told):
                # the strict condition replaces the firm one that _with_edge had widened: both were one question
                same = (condition.places, condition.source)
                kept = [one for one in kept if (one.places, one.source) != same] + [condition]
        for trial, is_equal in open_ones:
            if is_equal or breaks_any(trial, kept):
                continue
            wrong_at = trial.wrong_at
            if trial.equal and are_right and (larger := trial.larger()) and not are_right([larger[0]]):
                wrong_at = larger[1]  # e.g. sizes beyond what a target is made for
            # where a condition refuses the larger call, that says nothing about the small one
            if wrong_at is not None and not any(breaks(wrong_at, one) for one in kept):
                continue
            if trial.refused:
                kept.append(trial.refused)
            elif trial.made:
                kept.append(unequal_size(*trial.made))
        return tuple(strongest(kept))

    def right_calls(self, conditions: Sequence[SizeCondition]) -> list[Sample]:
        """Return the trial calls that meet some conditions and on which the graph agrees with the model."""
        right = [trial for trial in self.trials if trial.equal]
        return [trial.sample for trial in right if not any(breaks(trial.sizes, one) for one in conditions)]


NOTHING = HoldsWhere()


def with_small_sizes_refused(program: Program, where: HoldsWhere) -> Program:
    """Return the program with guards against the sizes of 0 and 1 for which it differs from the model.

    torch itself makes it refuse other sizes, and takes these two for impossible.
    """
    small = [one for one in where.conditions() if len(one.places) == 1 and all(map(one.holds, ([2], [3], [5], [64])))]
    return with_conditions_checked(program, small)


def with_conditions_checked(program: Program, conditions: Sequence[SizeCondition]) -> Program:
    """Return the program with guards against calls that break one of these conditions."""
    texts = [python_text(one.formula, list(map(guarded_size, one.sizes))) for one in conditions if one.formula]
    return with_guards(program, texts) if texts else program


def call_that_is_wrong_at_one(
    program: Program, model: torch.nn.Module, samples: Sequence[Sample], axes: DynamicAxes, noted: NotedState
) -> Sample | None:
    """Return a call that the program takes and is wrong for, where a size is 1 as in a sample; None if none is known.

    Tracing that assumes sizes of 2 or more answers ``if rows > 1`` without a guard. A sample of one row may agree with
    the graph by chance, and then nothing refuses other calls with one row.
    """
    if not any(1 in axis.sizes for axis in axes.dynamic):
        return None
    of = functools.partial(sizes_by_place, model, paths_of(program, model))
    calls = MadeCalls(model, samples, axes, (), of, _places_of(model, samples[0]))
    judge = Judge(program, model, noted, check_guards=True)
    wrong = (
        trial.sample for trial in judge.judged(calls.at_ones_of_samples()) if trial.wrong_at is None and not trial.equal
    )
    return next(wrong, None)


def holds_where(
    program: Program, model: torch.nn.Module, samples: Sequence[Sample], axes: DynamicAxes, noted: NotedState
) -> HoldsWhere:
    """Return the conditions that a program assumes, with trial calls of the model that tell which ones matter."""
    assert program.example_inputs is not None
    args, kwargs = program.example_inputs
    call = Sample(tuple(args), dict(kwargs))
    paths = paths_of(program, model)
    places = _places_of(model, call)
    of = functools.partial(sizes_by_place, model, paths)
    seen = [of(sample) for sample in samples]
    asked = [one for one in _asked(program, paths) if all(size_key(name) in places for name in one.names.values())]
    found = [*_declared(axes, places), *((one, one.condition(places)) for one in asked)]
    found += _ranges(program, places, paths)
    found = [_with_formula(*pair, seen) for pair in found]
    # a guard that a sample breaks is no condition, because the graph is right for the samples
    disproved = [condition for _, condition in found if any(breaks(sizes, condition) for sizes in seen)]
    parts = _sorted([pair for pair in found if pair[1] not in disproved])
    roles = {f"{axis.path}.shape[{axis.dim}]": _role(axis) for axis in axes.dynamic}
    firm, doubtful, edges = (tuple(_told(*pair, roles) for pair in part) for part in parts)
    judged = Judge(program, model, noted).judged
    calls = MadeCalls(model, samples, axes, firm, of, places)
    # edges first: their trials decide about firm conditions, and the number of trials is limited
    trials = judged(calls.small((*doubtful, *edges)))
    trials += judged(calls.breaking(edges))
    trials += judged(calls.beside(disproved))
    for part in itertools.chain(calls.apart(), calls.beside_none()):
        for index, trial in enumerate(part):
            told = judged([trial])
            if not told and index == 0:
                break  # the model takes no such call
            # those that are right are no calls for targets: that sizes change together is what the samples say
            trials += [one for one in told if not one.equal]
    tried: list[SizeCondition] = []
    mattering: list[SizeCondition] = []
    while doubtful:
        # those that follow from others wait: if the others turn out to make no difference, these may
        independent, doubtful = _independent(doubtful, (*firm, *mattering))
        if not independent:
            break
        for condition in independent:
            trials += judged(calls.breaking([condition], mattering))
            tried.append(condition)
            mattering = _mattering(tried, [(trial, trial.equal) for trial in trials])
    # what is kept may tell the wrong calls apart that were made, and still take others that an idle guard refuses
    for _ in range(_ROUNDS):
        idle = [one for one in tried if one not in mattering]
        further = judged(calls.breaking(idle, mattering, again=min(2 * len(idle), MOST_TRIALS)))
        if not further:
            break
        trials += further
        mattering = _mattering(tried, [(trial, trial.equal) for trial in trials])
    idle = [*(one for one in tried if one not in mattering), *disproved]
    # those that are right are no calls for targets, which may be made for smaller sizes
    trials += [trial for trial in judged(calls.far(idle, mattering)) if not trial.equal] if idle else []
    return HoldsWhere(firm, tuple(tried), edges=edges, trials=tuple(trials))


def trials_beside(
    program: Program,
    model: torch.nn.Module,
    samples: Sequence[Sample],
    axes: DynamicAxes,
    firm: Sequence[SizeCondition],
    disproved: Sequence[SizeCondition],
) -> list[Trial]:
    """Return trial calls between and beside samples, within ``firm`` conditions, that disprove guards of a program."""
    of = functools.partial(sizes_by_place, model, paths_of(program, model))
    calls = MadeCalls(model, samples, axes, firm, of, _places_of(model, samples[0]))
    return Judge(program, model).judged(calls.beside(disproved))


def _places_of(model: torch.nn.Module, call: Sample) -> dict[tuple[str, ...], Place]:
    return {
        size_key(f"{path}.shape[{dim}]"): (leaf, dim)
        for leaf, (path, value) in enumerate(named_leaves(model, call))
        if isinstance(value, torch.Tensor)
        for dim in range(value.dim())
    }


def _independent(
    conditions: Sequence[SizeCondition], known: Sequence[SizeCondition]
) -> tuple[list[SizeCondition], tuple[SizeCondition, ...]]:
    """Return the conditions that do not follow from those known and those before them, and the others."""
    independent: list[SizeCondition] = []
    others: list[SizeCondition] = []
    for condition in conditions:
        before = [one for one in (*known, *independent) if set(one.places) <= set(condition.places)]
        is_new = condition.is_own or _broken_at(condition, 2, before)
        (independent if is_new else others).append(condition)
    return independent, tuple(others)


def paths_of(program: Program, model: torch.nn.Module) -> list[str]:
    """Return the paths of the leaves of the call that was captured, in order."""
    assert program.example_inputs is not None
    args, kwargs = program.example_inputs
    return [path for path, _ in named_leaves(model, Sample(tuple(args), dict(kwargs)))]


def sizes_by_place(model: torch.nn.Module, paths: Sequence[str], sample: Sample) -> dict[Place, int]:
    """Return the sizes of a call's tensors by their number among ``paths``, those of the call that was captured."""
    return {(paths.index(path), dim): n for (path, dim), n in sizes_in(model, sample).items() if path in paths}


def _asked(program: Program, paths: Sequence[str]) -> Iterator[Asked]:
    """Yield the conditions of tracing: those noted then, or else dynamo's guards."""
    conditions: SizeConditions | None = program.graph_module.meta.get(CONDITIONS)
    found = conditions.asked() if conditions is not None else []
    yield from found
    for expression, names, line, is_own in [] if found else noted_guards(program):
        named = {symbol: _of_flat(name, paths) for symbol, name in names.items()}
        yield Asked(expression, named, _source(line), is_own)


def _with_formula(asked: Asked, condition: SizeCondition, seen: Sequence[Sizes]) -> Found:
    """Replace a condition that has no formula by one that allows the sizes of the samples and no others."""
    if condition.formula:
        return asked, condition
    symbols = [positive_symbol(f"s{index}") for index in range(len(condition.places))]
    known = {tuple(sizes[place] for place in condition.places) for sizes in seen}
    equal = [sympy.And(*map(sympy.Eq, symbols, sizes)) for sizes in sorted(known)]
    formula = formula_text(sympy.Or(*equal), symbols) or "false"
    return asked, replace(condition, formula=formula, is_own=True, text=_ONLY_SEEN)


_ONLY_SEEN = "must be as in a sample, because no formula tells for which other sizes the graph holds"


def _of_flat(name: str, paths: Sequence[str]) -> str:
    """Return a size's name with the path of its leaf; dynamo calls the leaves of a call ``flat_args[0]`` and so on."""
    match = re.fullmatch(r"flat_args\[(\d+)\](\.shape\[\d+\])", name)
    return f"{paths[int(match[1])]}{match[2]}" if match and int(match[1]) < len(paths) else name


def _source(line: str) -> SourceLine | None:
    match = re.fullmatch(r"(.*?) +# (\S+):(\d+) in .*", line, re.DOTALL)
    return SourceLine(match[2], int(match[3]), match[1]) if match else None


Found = tuple[Asked, SizeCondition]


def _declared(axes: DynamicAxes, places: Mapping[tuple[str, ...], Place]) -> Iterator[Found]:
    """Yield the declared limits of sizes that tracing made use of."""
    n = positive_symbol("n")
    for axis in axes.dynamic:
        name = f"{axis.path}.shape[{axis.dim}]"
        for limit, condition in ((axis.minimum, n >= (axis.minimum or 0)), (axis.maximum, n <= (axis.maximum or 0))):
            # tracing assumes at least 2 in any case, and whether 0 and 1 are right is found out by trials
            if limit is not None and not (condition.has(sympy.Ge) and limit <= 2) and condition not in (True, False):
                asked = Asked(condition, {n: name}, None, is_own=True)
                yield asked, asked.condition(places)


def _ranges(program: Program, places: Mapping[tuple[str, ...], Place], paths: Sequence[str]) -> Iterator[Found]:
    """Yield the ranges of the program's sizes, where they are narrower than tracing assumes of every size."""
    n = positive_symbol("n")
    for leaf, dim, low, high in size_limits(program):
        name = f"{paths[leaf]}.shape[{dim}]"
        for condition in ([n >= low] if low > 2 else []) + ([n <= high] if high is not None else []):
            asked = Asked(condition, {n: name}, None, is_own=False)
            yield asked, asked.condition(places)


def _sorted(found: Sequence[Found]) -> tuple[list[Found], list[Found], list[Found]]:
    """Return the firm conditions, the doubtful ones, and the edges."""
    firm: list[Found] = []
    doubtful: list[Found] = []
    edges: list[Found] = []
    for asked, condition in found:
        if not condition.formula:
            continue
        if condition.is_own and _broken_at(condition, 2):
            # Code such as ``if n < limit: x = pad(x, limit - n)`` asks a strict question, and both ways agree at
            # equality. So ``>`` is widened to ``>=``, and a trial at the edge decides whether that was right.
            wider = _with_edge(asked, condition)
            firm.append(wider or (asked, condition))
            edges += [(asked, condition)] if wider else []
        elif _broken_at(condition, 0 if condition.is_own else 2):
            doubtful.append((asked, condition))
    # short formulas first: each is kept only if those before it leave sizes that break it, so the order decides which
    # of several equivalent conditions the user reads. The model's own are always kept.
    doubtful.sort(key=lambda pair: (not pair[1].is_own, len(pair[1].formula)))
    return firm, doubtful, edges


_EDGES = {sympy.StrictGreaterThan: sympy.GreaterThan, sympy.StrictLessThan: sympy.LessThan}


def _with_edge(asked: Asked, condition: SizeCondition) -> Found | None:
    """Return the condition with "at least" instead of "more than", where sizes alone are compared; None for others."""
    kind = next((wider for strict, wider in _EDGES.items() if isinstance(asked.expression, strict)), None)
    if kind is None:
        return None
    left, right = asked.expression.args
    if not all(part.is_Symbol for part in sympy.expand(left - right).as_coefficients_dict()):
        return None
    wider = replace(asked, expression=kind(*asked.expression.args, evaluate=False))
    formula = formula_text(wider.expression, list(asked.names))
    return (wider, replace(condition, formula=formula)) if formula else None


def _broken_at(condition: SizeCondition, smallest: int, known: Sequence[SizeCondition] = ()) -> tuple[int, ...] | None:
    """Return sizes, from ``smallest`` on, that break a condition but none of those known; None if there are none."""
    for sizes in _grid(condition, smallest):
        if condition.holds(sizes) is False:
            at = dict(zip(condition.places, sizes, strict=True))
            if not any(breaks(at, other) for other in known):
                return sizes
    return None


def _grid(condition: SizeCondition, smallest: int) -> Iterator[tuple[int, ...]]:
    """Yield the sizes to try: all small ones, those around the condition's own numbers, and some large ones."""
    # a search rather than a proof: sympy has no decision procedure for these formulas with // and %, and a condition
    # that is broken nowhere here is dropped. The seed is fixed, so that one program always has the same conditions.
    numbers = [int(text) for text in re.findall(r"Integer\((-?\d+)\)", condition.formula)]
    near = {abs(number) * factor + step for number in numbers for factor in (1, 2) for step in (-1, 0, 1)}
    large = {2**power + step for power in range(6, 21) for step in (-1, 0, 1)} | {n for n in near if n <= 2**40}
    few, count = range(smallest, 66), len(condition.places)
    if count <= 2:
        yield from itertools.product(few, repeat=count)
    further = [*few, *sorted(size for size in large if size >= 66)]
    if count == 1:
        yield from ((size,) for size in further)
        return
    draw = random.Random(0)
    for _ in range(4000):
        yield tuple(draw.choice(further if draw.random() < 0.5 else few) for _ in range(count))


_ROLES = {"batch": "the batch size", "sequence": "the length", "past": "the length", "total": "the length"}
_ROLES |= {"height": "the height", "width": "the width", "heads": "the number of heads"}


def _role(axis: Axis) -> str:
    role = _ROLES.get(axis.symbol.partition("_")[0], "")
    return f"{role} of {axis.path} ({axis.path}.shape[{axis.dim}])" if role else ""


_VERBS = {"is not ": "must not be ", "always equals ": "must equal ", r"is (?=at |more |less |\d)": "must be "}


def _told(asked: Asked, condition: SizeCondition, roles: Mapping[str, str]) -> SizeCondition:
    """Return the condition in words that name the role of each size."""
    if condition.text:
        return replace(condition, text=f"{' and '.join(condition.sizes)} {condition.text}")
    text = _asking(asked.words)
    rest = functools.reduce(lambda left, name: left.replace(name, ""), condition.sizes, text)
    if not set("*/+-%(") & set(rest):  # inside of a formula the names alone are shorter
        for name in condition.sizes:
            text = text.replace(name, roles.get(name) or name, 1)
    return replace(condition, text=text)


def _asking(text: str) -> str:
    for says, asks in _VERBS.items():
        text = re.sub(f" {says}", f" {asks}", text)
    return text


# Guards on sizes that tracing makes, that the samples answer differently, and that do not change the graph.
#
# torch asks whether a tensor is contiguous, or has one entry, to determine the memory layout of a result. The graph is
# the same for both answers, but would refuse calls with another answer than the traced sample's.


def without_idle_questions(program: Program, sizes: SampleSizes) -> tuple[Program, list[Asked]] | None:
    """Return the program without torch's guards that samples break; its results on them are still to be compared.

    Returns:
        The program and the questions that it still asks; ``None`` where there is no such question, or where the
        model's own Python asked one, which then goes another way for some samples.
    """
    conditions: SizeConditions | None = program.graph_module.meta.get(CONDITIONS)
    texts: list[str] = []
    kept: list[Asked] = []
    is_less = False
    for asked in conditions.asked() if conditions is not None else ():
        answers = sizes.answers(asked.expression, dict(asked.names))
        formula = formula_text(asked.expression, list(asked.names))
        if answers is None or formula is None:
            return None
        if all(answers):
            kept.append(asked)
            texts.append(python_text(formula, [guarded_size(name) for name in asked.names.values()]))
        elif asked.is_own or not _is_about_memory(asked.expression):
            return None
        else:
            is_less = True
    return (with_guards(without_guards(program), texts), kept) if is_less else None


def _is_about_memory(expression: Any) -> bool:
    """Return whether a guard is of the kinds that torch makes for memory layout: is a size 1, does one size divide
    another.

    Other guards, such as whether pooling drops a window, decide sizes, and a sample that takes the other branch may
    agree with the graph by chance.
    """
    if not isinstance(expression, sympy.Eq | sympy.Ne):
        return False
    return 1 in expression.args or (
        0 in expression.args and any("Mod" in type(part).__name__ for part in expression.args)
    )


def model_decides(program: Program, sizes: SampleSizes) -> bool:
    """Return whether the model's own Python branches on sizes on which samples differ, in either mode of tracing."""
    conditions: SizeConditions | None = program.graph_module.meta.get(CONDITIONS)
    own = [asked for asked in conditions.asked() if asked.is_own] if conditions is not None else []
    return any(False in (sizes.answers(asked.expression, dict(asked.names)) or ()) for asked in own)


def guarded_size(name: str) -> str:
    """Return the size ``x.shape[0]`` as torch writes it in guards of a program: ``L['x'].size()[0]``."""
    return re.sub(r"^(\w+)(.*)\.shape", r"L['\1']\2.size()", name)
