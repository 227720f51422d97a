"""The order in which ways to capture a model are tried."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench._torch_compat.exporting import mark_module_stack, seen_as_exporting
from prepbench._torch_compat.scans import name_modules_in_steps
from prepbench._torch_compat.sizes import forget_pending_sizes
from prepbench.capture.aten.export_program import Program, SpecialisedSize, export_program
from prepbench.capture.aten.holds_where import call_that_is_wrong_at_one, model_decides, without_idle_questions
from prepbench.capture.aten.leaf_operators import LeafOperators, LeafOutputs, is_inside_any, outermost
from prepbench.capture.failures.changed_state import written_tensors
from prepbench.capture.failures.checks_of_values import checks_truth_of_tensors
from prepbench.capture.failures.describe import (
    DIFFERS,
    WRITTEN_REMEDY,
    WrongProgram,
    as_leaf,
    describe_failure,
    problem,
)
from prepbench.capture.sizes.dynamic_axes import DynamicAxes, SampleSizes
from prepbench.capture.sizes.learned_outputs import UnknownOutputsError, are_alike, kinds_of
from prepbench.capture.sizes.resizing import base_sample, varied
from prepbench.capture.sizes.size_keys import SizeKeys
from prepbench.capture.sizes.step_loops import StepLoops
from prepbench.capture.statements.cuts import Cuts
from prepbench.capture.statements.loop_steps import LoopSteps
from prepbench.document.model import Failure, with_lines
from prepbench.errors import CaptureError
from prepbench.inputs import Sample
from prepbench.internal_errors import raise_if_internal
from prepbench.interrupts import TimeLimit, TimeLimitReached
from prepbench.objects.compare import Outcome
from prepbench.objects.copy import Twin
from prepbench.running.callable_module import FURTHER, FunctionModule, part_named, replaceable_modules, replaced_forward
from prepbench.running.recorded_calls import RecordedCall, record_calls, record_run
from prepbench.running.unchanged import NotedState, dense_copy, outcome, run, without_output

ROUNDS = 40
"""The most rounds of adding leaves; each round finds the failures that the last one uncovered."""


class SharedMemory(CaptureError):
    """Raised if a module that would be a leaf returns memory that it shares, and the graph writes into it."""


class NoGraphError(CaptureError):
    """Not even one operator can stand for the model, because its results have several structures."""

    def __init__(self, message: str, failure: Failure) -> None:
        super().__init__(message)
        self.failure = failure


def _strides(sample: Sample) -> list[Any]:
    leaves = pytree.tree_leaves((sample.args, sample.kwargs))
    return [leaf.stride() for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided]


class Attempts:
    """Attempts to capture one model on its samples.

    Args:
        expected: the outcome of the model on each sample.
        chosen: leaves that the user asked for.
        deriving: names of the modules in whose own forward ``torch.func`` takes derivatives.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        samples: Sequence[Sample],
        axes: DynamicAxes,
        expected: Sequence[Outcome],
        chosen: dict[str, Failure],
        deriving: Collection[str] = (),
    ) -> None:
        self.model = model
        self.axes = axes
        self.error: Exception | None = None
        self._model_decides = False
        self._samples = samples
        self._expected = expected
        self._leaves = dict(chosen)
        self._export, self._deriving = partial(export_program, deriving=deriving), deriving
        # strides with gaps would become guards of the graph, so dense copies are traced where strides do not matter
        self._given_base = base_sample(model, samples, axes)
        self._base = dense_copy(self._given_base)
        self._given = model
        self._cuts = Cuts(model)
        self._loops = LoopSteps(model)
        self._varied = varied(model, samples, axes)
        self._use(model)

    def _use(self, model: torch.nn.Module) -> None:
        """Capture this model from now on, which is the given one with other statements cut out."""
        self.model = model
        self._records = ModuleRecords(model, self._samples, self._varied)
        self._operators = LeafOperators(model, self._records.outputs)

    def give_back(self, twin: Twin, program: Program) -> None:
        """Replace tensors and leaves of the twin in a program by the user's own."""
        self._cuts.give_back(program)
        self._loops.give_back(program)
        twin.give_back(program)
        self._operators.keep_alive.functions = self._cuts.functions()
        self._operators.run_on(twin.original(self._given), lambda part: twin.original(self._cuts.original(part)))

    def full_graph(self, noted: NotedState, strict: bool = False) -> Program | None:
        """Return the program without leaves, if one way to export gives a correct one; else ``error`` says why."""
        for way in (True, False) if strict else (False, True):
            if way and checks_truth_of_tensors(self.model, self._samples[0]):
                continue
            try:
                return self._checked(noted, strict=way)
            except Exception as error:
                # the first error has the model's own line; dynamo's only matters if it was asked for first
                self.error = self.error or error
                if not way and (program := self._with_loops(error)) is not None:
                    return program
                if not way and self._model_decides:
                    break  # dynamo, which takes longer, would make the same guard
        return None

    def _with_loops(self, error: Exception) -> Program | None:
        """Return the program with loops of dynamic length as operators, if they are the only obstacle."""
        while self._loops.add(error):
            self._use(self._loops.model)
            noted = NotedState(self.model)
            try:
                with StepLoops():
                    program = self._checked(noted)
                name_modules_in_steps(program.graph_module)
                return program
            except Exception as raised:
                error = raised
        self._loops = LoopSteps(self._given)
        self._use(self._given)
        return None

    def _checked(self, noted: NotedState, strict: bool = False) -> Program:
        """Export as :meth:`_exported` does. If dicts are asked with sizes, and what they hold is no mere cache, the
        error is that of the line that asks.
        """
        keys = SizeKeys(self.model)
        try:
            return self._exported(noted, strict, keys)
        except Exception:
            if not keys.asked:
                raise
        return self._exported(noted, strict, None)

    def _exported(self, noted: NotedState, strict: bool, keys: SizeKeys | None) -> Program:
        """Export, and verify the result on the samples.

        Sizes of at least 2 are assumed first, which suits most models. If that gives a wrong program for a sample with
        a size of 1, or specialises a size that happens to equal one of the model's own, guards on such sizes are
        recorded exactly. If a sample has a size of 0, such as an empty cache, the exact export comes first: the sum
        with another size may be less than torch assumes, and a graph can be wrong at such sizes only.
        """
        first: Exception | None = None
        is_empty = any(0 in axis.sizes for axis in self.axes.dynamic)
        ways = [(self._base, is_empty), (self._base, not is_empty)]
        if _strides(self._base) != _strides(self._given_base):
            ways.append((self._given_base, False))
        for base, exact in ways:
            try:
                program = self._export(self.model, base, self.axes, strict=strict, exact=exact, noted=noted, keys=keys)
            except Exception as error:
                first = first or error
                if isinstance(error, SpecialisedSize) or (is_empty and exact):
                    continue
                break
            found = problem(program.module(), self.model, self._samples, self._expected, noted)
            if found is None and not exact:
                found = self._wrong_at_one(program, noted)
            if found is None:
                return program
            if exact and (less := self._asking_less(program, noted)) is not None:
                return less
            # a failure without assumptions comes from the model's own guards
            first = found if first is None or isinstance(first, SpecialisedSize) else first
        assert first is not None
        raise first

    def _wrong_at_one(self, program: Program, noted: NotedState) -> WrongProgram | None:
        call = call_that_is_wrong_at_one(program, self.model, self._samples, self.axes, noted)
        if call is None:
            return None
        with without_output():
            expected = [outcome(self.model, call, self.model, noted)]
            return problem(program.module(), self.model, [call], expected, noted)

    def _asking_less(self, program: Program, noted: NotedState) -> Program | None:
        """Return the program without torch's guards on which samples differ, if it is right without them."""
        sizes = SampleSizes(self.model, self._samples)
        found = without_idle_questions(program, sizes)
        if found is None:
            self._model_decides = model_decides(program, sizes)
            return None
        less, asked = found
        tried = list(zip(self._samples, self._expected, strict=True))
        for sample in self._varied:
            sizes = SampleSizes(self.model, [sample])
            if all(sizes.answers(one.expression, dict(one.names)) == [True] for one in asked):
                with suppress(Exception):  # a model need not run at sizes that no sample has
                    tried.append((sample, outcome(self.model, sample, self.model, noted)))
        samples, expected = zip(*tried, strict=True)
        with without_output():  # torch's graphs print on failure
            return less if problem(less.module(), self.model, samples, expected, noted) is None else None

    def find_failures(self) -> list[Failure]:
        """Return every module that cannot be exported, found in one pass; the model itself if no part of it fails."""
        inside: dict[str, Exception] = {}
        found = self._find(isinstance(self.error, WrongProgram), inside)
        if not found and self.error is not None:
            found = {"": self.error}
        found = inside | found
        return [self._describe(fqn, found[fqn]) for fqn, _ in self.model.named_modules() if fqn in found]

    def with_leaves(self) -> tuple[Program, list[Failure]]:
        """Return a program with the failing statements as operators; where that is impossible, their modules.

        Raises:
            NoGraphError: not even the whole model can be one operator.
        """
        error = self.error
        for _ in range(ROUNDS):
            if error is not None and not self._add_leaves(error):
                break
            self._records.record()
            try:
                with leaves_replaced(self.model, self._leaf_names(), self._operators):
                    program = self._export(self.model, self._base, self.axes)
            except Exception as raised:
                error = raised
                continue
            self._operators.refuse_shared_memory(program.graph)
            error = problem(program.module(), self.model, self._samples, self._expected)
            if error is None:
                program.graph_module.meta["prepbench_keep_alive"] = self._operators.keep_alive
                return program, [*self._leaves.values(), *self._statement_leaves(program)]
        raise NoGraphError(
            f"{type(self.model).__name__} can be neither exported nor kept as one operator: {error} "
            "Capture its submodules one by one to find the part that stops it; compile_model(..., fullgraph=False) "
            "runs it in Python.",
            self._describe("", self.error or error or RuntimeError("unknown")),
        ) from error

    def _add_leaves(self, error: Exception) -> bool:
        """Turn the current failures into leaves: statements, else modules, else the model; return False if that is a
        leaf already.
        """
        if "" in self._leaves:
            return False
        inside: dict[str, Exception] = {}
        found = self._find(isinstance(error, WrongProgram), inside)
        new = {fqn: reason for fqn, reason in found.items() if fqn not in self._leaves}
        if self._cut_statements(inside, new):
            return True
        if not new and isinstance(error, WrongProgram):
            new = self._around_shared_memory()
        if not new and self._cuts.leaves:
            new = self._cuts.take_back()
            self._use(self._cuts.model)
        new = new or {"": error}
        for fqn, reason in new.items():
            self._leaves[fqn] = as_leaf(self._describe(fqn, reason))
        self._leaves = {fqn: self._leaves[fqn] for fqn in outermost(self._leaves)}
        return True

    def _cut_statements(self, inside: Mapping[str, Exception], found: Mapping[str, Exception]) -> bool:
        """Cut out the failing statements; return False if that is impossible."""
        own = {fqn: error for fqn, error in {**inside, **found}.items() if original_error(error) is error}
        return any(self._cuts.add(failing) and self._runs_with_cuts() for failing in (own, found))

    def _runs_with_cuts(self) -> bool:
        """Use the model with the present cuts if it runs on the samples.

        An expression that was moved in front of a branch may raise where the model never computes it. Then it goes back
        into the branch; what raises all the same is run as it was written.
        """
        self._use(self._cuts.model)
        for undo in (self._cuts.put_back_moved, self._cuts.take_back):
            try:
                self._records.record()
                return bool(self._cuts.leaves)
            except Exception:
                undo()
                self._use(self._cuts.model)
        return False

    def _leaf_names(self) -> list[str]:
        """Return the modules and statements that are leaves."""
        return outermost([*self._leaves, *self._cuts.leaves])

    def _statement_leaves(self, program: Program) -> list[Failure]:
        """Return the statements that are leaves in a program."""
        used = self._operators.in_graph(program.graph)
        leaves = {fqn: leaf for fqn, leaf in self._cuts.leaves.items() if fqn in used}
        return [
            with_lines(as_leaf(self._describe(leaf.owner_fqn, leaf.reason)), leaf.outlined.lines)
            for leaf in leaves.values()
        ]

    def _around_shared_memory(self) -> dict[str, Exception]:
        """Return the modules that call leaves with shared memory, because writes into it can make the graph wrong."""
        return {
            self._records.caller(fqn): SharedMemory(
                f"{fqn} cannot be exported and {shared}, which is written into in-place outside of it. One operator "
                "cannot express that, so the module that calls it is the operator."
            )
            for fqn in self._leaves
            if fqn and (shared := self._records.shared(fqn))
        }

    def _find(self, sizes_decide: bool = False, inside: dict[str, Exception] | None = None) -> dict[str, Exception]:
        """Return the failures by module; with ``sizes_decide`` also where the samples' sizes lead to different graphs.

        ``inside`` receives what fails inside of these and cannot be an operator by itself.
        """
        self._records.record()
        sizes = SampleSizes(self.model, self._samples) if sizes_decide else None
        found: dict[str, Exception] = {}
        inside = {} if inside is None else inside
        # guards of the model's own Python count; torch's may not matter
        for exact, own in ((True, True), (False, False), (True, False)) if sizes is not None else ((False, False),):
            if exact and not own and sizes is not None and not sizes.has_zero_or_one:
                break  # size 1 gets a guard only where tracing assumes nothing about it
            try:
                with failures_collected(self.model, self._leaf_names(), self._operators, found, inside, self._deriving):
                    self._export(self.model, self._base, self.axes, exact=exact, sizes=sizes, own_questions=own)
            except Exception as error:
                # fake outputs of a leaf can break the code after it, so an error counts only in a pass without other
                # failures
                if not found:
                    self.error = self.error or original_error(error)
            if found:
                break
        return found

    def _describe(self, fqn: str, error: Exception) -> Failure:
        module = self.model.get_submodule(fqn)
        if isinstance(module, torch.jit.ScriptModule) or (isinstance(module, FunctionModule) and module.is_scripted):
            error = NotImplementedError("A scripted module runs outside Python, where export cannot look into it.")
        failure = describe_failure(original_error(error), fqn=fqn, module_type=type(module).__name__, module=module)
        if failure.kind == DIFFERS and isinstance(error, WrongProgram) and (places := self._written_outside()):
            failure = replace(failure, remedy=WRITTEN_REMEDY.format(place=" and ".join(places)))
        return replace(failure, message="\n".join([failure.message, *undescribable_reasons(error)]))

    def _written_outside(self) -> list[str]:
        """Return the places of the tensors outside of the model's state that a call writes into."""
        try:
            places = written_tensors(self.model, lambda: run(self.model, self._samples[0], self.model))
        except Exception as error:  # of the user's classes
            raise_if_internal(error)
            return []
        return [place.text for place in places]


# Finding the submodules that cannot be exported, and exporting the rest with each of them as one operator.


@contextmanager
def leaves_replaced(model: torch.nn.Module, fqns: Iterable[str], operators: LeafOperators) -> Iterator[None]:
    """Replace the forward of each named submodule by a call of its operator during the block."""
    with ExitStack() as stack:
        for fqn in fqns:
            module = part_named(model, fqn)
            stack.enter_context(replaced_forward(model, fqn, _calling(fqn, module, operators)))
        yield


def _calling(fqn: str, module: Any, operators: LeafOperators) -> Callable[..., Any]:
    def leaf(*args: Any, **kwargs: Any) -> Any:
        return operators.call(fqn, args, kwargs)

    leaf.__wrapped__ = module.forward  # type: ignore[attr-defined]
    return leaf


@contextmanager
def failures_collected(
    model: torch.nn.Module,
    known: Iterable[str],
    operators: LeafOperators,
    found: dict[str, Exception],
    inside: dict[str, Exception],
    whole: Iterable[str] = (),
) -> Iterator[None]:
    """Collect in ``found`` each submodule whose forward raises during the block, and replace it by its operator.

    One that cannot be an operator goes to ``inside``, and the module that called it is replaced.

    Modules inside of those in ``whole`` are not looked at. Only the innermost module that raises counts. Its callers go
    on with fake outputs, so one pass finds all failures.
    """
    leaves = set(known)
    with ExitStack() as stack:
        for fqn, module in replaceable_modules(model):
            if is_inside_any(fqn, whole):
                continue
            attempt = _attempting(fqn, module, operators, found, inside)
            forward = _calling(fqn, module, operators) if fqn in leaves else attempt
            stack.enter_context(replaced_forward(model, fqn, forward))
        yield


def _attempting(
    fqn: str,
    module: Any,
    operators: LeafOperators,
    found: dict[str, Exception],
    inside: dict[str, Exception],
) -> Callable[..., Any]:
    forward = module.forward

    def attempt(*args: Any, **kwargs: Any) -> Any:
        leave_inner_modules = mark_module_stack()
        try:
            return forward(*args, **kwargs)
        except _Undescribable as inner:
            # the module inside cannot be one operator, so this one, which called it, has to be
            error: Exception = inner
        except Exception as raised:
            error = raised
        leave_inner_modules()
        forget_pending_sizes((args, kwargs))
        try:
            output = operators.call(fqn, args, kwargs)
        except UnknownOutputsError as reason:
            inside.setdefault(fqn, error)
            raise _Undescribable(error, str(reason)) from reason
        found.setdefault(fqn, error)
        return output

    attempt.__wrapped__ = forward  # type: ignore[attr-defined]
    return attempt


class _Undescribable(RuntimeError):
    """A failed module has outputs that cannot be described; ``error`` is its failure, ``reason`` why it is no leaf."""

    def __init__(self, error: Exception, reason: str) -> None:
        super().__init__(str(error))
        self.error = error
        self.reason = reason


def original_error(error: Exception) -> Exception:
    """Return the error of the model itself."""
    while isinstance(error, _Undescribable):
        error = error.error
    return error


def undescribable_reasons(error: Exception) -> list[str]:
    """Return why the modules inside the failed one could not be leaves themselves, innermost first."""
    reasons: list[str] = []
    while isinstance(error, _Undescribable):
        reasons.insert(0, error.reason)
        error = error.error
    return reasons


# What the submodules of a model receive and return, for describing those that become leaves.


_SECONDS = 3.0
_OTHER_VALUES = (-1.0, 10.0)


def _scaled(leaf: Any, factor: float) -> Any:
    """Return a floating-point tensor times a factor; other values unchanged."""
    return leaf * factor if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf


class ModuleRecords:
    """The inputs and results of every submodule, recorded on first use.

    Args:
        samples: must run.
        further: made-up samples of other sizes; those on which the model raises are left out.
    """

    def __init__(self, model: torch.nn.Module, samples: Sequence[Sample], further: Sequence[Sample]) -> None:
        self._model = model
        self._samples = samples
        self._further = further
        self._calls: dict[str, list[RecordedCall]] | None = None
        self._learned: dict[str, LeafOutputs] = {}

    def record(self) -> None:
        """Run the model now, because it cannot run later, while torch traces."""
        if self._calls is not None:
            return
        self._calls = record_calls(self._model, self._samples)
        self._add(self._further)
        with seen_as_exporting():
            # models that branch on this flag pass other arguments to their parts, such as a mask instead of None
            self._add([*self._samples, *self._further], only_new=True)
        if vars(self._model).get(FURTHER):
            self._add_other_values()

    def _add(self, samples: Sequence[Sample], *, only_new: bool = False) -> None:
        """Record further calls; with ``only_new`` only those whose argument kinds differ from all earlier calls."""
        assert self._calls is not None
        known = {fqn: {kinds_of(call.inputs) for call in seen} for fqn, seen in self._calls.items()}
        for recorded in [record_run(self._model, sample) for sample in samples]:
            # where the model does not take a made-up size, nothing is learned from it
            for fqn, seen in recorded.calls.items() if recorded.error is None else ():
                new = [call for call in seen if not only_new or kinds_of(call.inputs) not in known.get(fqn, ())]
                if new:
                    self._calls.setdefault(fqn, []).extend(new)

    def _add_other_values(self) -> None:
        """Record the results of statements for other values, on which some sizes and numbers depend."""
        assert self._calls is not None
        for factor in _OTHER_VALUES:
            sample = self._samples[0].map(partial(_scaled, factor=factor))
            try:
                with TimeLimit(_SECONDS):
                    run = record_run(self._model, sample)
            except TimeLimitReached:  # a loop may have no end on made-up values
                continue
            for fqn in vars(self._model)[FURTHER]:
                known = self._calls.get(fqn, [])
                known += [call for call in run.calls.get(fqn, ()) if any(are_alike(call, other) for other in known)]

    def outputs(self, fqn: str) -> LeafOutputs:
        """Return the module's outputs as a function of its inputs' sizes."""
        assert self._calls is not None, "record() runs before tracing"
        if fqn not in self._learned:
            leaf = vars(self._model).get(FURTHER, {}).get(fqn)
            name = (fqn or "the model") if leaf is None else leaf.name
            self._learned[fqn] = LeafOutputs.learn(self._calls.get(fqn, ()), name, are_statements=leaf is not None)
        return self._learned[fqn]

    def shared(self, fqn: str) -> str:
        """Return in words which returned tensors of the module share memory with others; empty if none do."""
        try:
            return self.outputs(fqn).shared
        except UnknownOutputsError:
            return ""

    def caller(self, fqn: str) -> str:
        """Return the nearest enclosing module of ``fqn`` that is called itself; containers are not."""
        assert self._calls is not None, "record() runs before tracing"
        outer = fqn.rpartition(".")[0]
        while outer and outer not in self._calls:
            outer = outer.rpartition(".")[0]
        return outer
