"""One attempt to export a model, and the checks of its result."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.export.graph_signature import InputKind

from prepbench._torch_compat.derivatives import derivatives_traced
from prepbench._torch_compat.exporting import conversions_that_change_nothing_skipped, quiet_export
from prepbench._torch_compat.grad_regions import without_grad_regions
from prepbench._torch_compat.programs import lower_bounds, with_lower_bounds
from prepbench._torch_compat.sizes import SizeCallback, exact_zero_one, watched_sizes, watched_specialisation
from prepbench.capture.aten.function_transforms import transforms_computed
from prepbench.capture.modules.interception import symbolic_conversions, symbolic_roots
from prepbench.capture.modules.seen_types import code_held_by
from prepbench.capture.sizes.clamped_slices import ClampedSlices
from prepbench.capture.sizes.conditions import CONDITIONS, SizeConditions, if_own
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.capture.sizes.library_caches import one_answer_for_all_sizes
from prepbench.capture.sizes.recurrent import RecurrentLayers
from prepbench.capture.sizes.sample_sizes import SampleSizes
from prepbench.capture.sizes.size_forms import SizeForms
from prepbench.inputs import Sample, arguments_by_name, named_leaves
from prepbench.patching import patched
from prepbench.running.counted_numbers import count_from_sizes
from prepbench.running.unchanged import NotedState

Program = torch.export.ExportedProgram


class SpecialisedSize(RuntimeError):
    """Raised if the model specialises the size of a dynamic axis to a constant."""


def export_program(
    model: torch.nn.Module,
    sample: Sample,
    axes: DynamicAxes,
    *,
    strict: bool = False,
    exact: bool = False,
    sizes: SampleSizes | None = None,
    own_questions: bool = False,
    noted: NotedState | None = None,
    deriving: Collection[str] = (),
) -> Program:
    """Export ``model`` for the call ``sample`` with these dynamic axes; the model is not changed.

    Args:
        strict: through dynamo, which understands more Python but takes longer.
        exact: record guards on sizes 0 and 1 instead of assuming sizes of 2 or more.
        sizes: guards on sizes must have the same answer for all of these.
        own_questions: whether only guards of the model's own Python must.
        noted: the state of the model, if it is recorded already.
        deriving: names of the modules in whose own forward ``torch.func`` takes derivatives.

    Raises:
        SizesDecide: at the line that asks something else.
        SpecialisedSize: at the line that fixes a dynamic size.
        Exception: whatever export raises.
    """
    conditions = SizeConditions()
    with ExitStack() as stack:
        stack.enter_context((noted or NotedState(model)).unchanged())
        stack.enter_context(_counting_from_sizes(model, sample))
        stack.enter_context(one_answer_for_all_sizes())
        stack.enter_context(_explicit_keywords(model, sample))
        shapes = axes.dynamic_shapes(model, sample, hint=torch.export.Dim.AUTO) if axes.dynamic else None
        stack.enter_context(quiet_export())
        stack.enter_context(conversions_that_change_nothing_skipped())
        # an inference graph needs no grad-mode switches for the model's no_grad() blocks
        stack.enter_context(torch.no_grad())
        if exact:
            stack.enter_context(exact_zero_one())
        if not strict:
            stack.enter_context(transforms_computed(model, deriving))
            # dynamo would take an exception for one of the user's code
            stack.enter_context(watched_specialisation(_refuse))
            stack.enter_context(derivatives_traced())
            stack.enter_context(RecurrentLayers().entered())
            stack.enter_context(ClampedSlices(SampleSizes(model, axes.samples)))
            stack.enter_context(SizeForms())
            stack.enter_context(symbolic_conversions(code_held_by(model), of_data=False))
            stack.enter_context(symbolic_roots())
            question: SizeCallback | None = sizes.refuse_contradiction if sizes is not None else None
            if question is not None and own_questions:
                question = if_own(question)
            stack.enter_context(watched_sizes(conditions.note, question))
        program = torch.export.export(model, sample.args, sample.kwargs, dynamic_shapes=shapes, strict=strict)
        program = without_grad_regions(program)
    sizes_of_axes = axis_sizes(program, model, axes)
    if not strict:
        program = _without_assumed_bounds(program, conditions, axes, sizes_of_axes)
    program.graph_module.meta[CONDITIONS] = conditions
    fixed = [axis for axis, size in sizes_of_axes.items() if isinstance(size, int)]
    if fixed:
        where = ", ".join(f"{path}.shape[{dim}]" for path, dim in fixed)
        raise SpecialisedSize(f"{where} is specialized to a constant: the captured graph would take no other size.")
    return program


def _without_assumed_bounds(
    program: Program, conditions: SizeConditions, axes: DynamicAxes, sizes: Mapping[tuple[str, int], Any]
) -> Program:
    """Return the program without lower bounds that no guard of the model requires.

    Where a mask is as long as a cache and the new tokens together, torch concludes that its size is at least 4, because
    it assumes that both are at least 2 while it traces. The sum itself stays a condition.
    """
    wanted: dict[Any, int] = {}
    for axis in axes.dynamic:
        symbol = sizes.get((axis.path, axis.dim))
        wanted[symbol] = max(wanted.get(symbol, 2), axis.minimum or 2)
    assumed = {
        symbol: wanted[symbol]
        for symbol, low in lower_bounds(program).items()
        if low > wanted.get(symbol, low) and not conditions.limits(symbol, low - 1)
    }
    return with_lower_bounds(program, assumed) if assumed else program


@contextmanager
def _counting_from_sizes(model: torch.nn.Module, sample: Sample) -> Iterator[None]:
    """Compute numbers in objects among the arguments from sizes where they follow from them; sizes may be symbols."""
    if not sample.counted:
        yield
        return
    forward = model.forward

    @functools.wraps(forward)
    def counting(*args: Any, **kwargs: Any) -> Any:
        count_from_sizes(sample.counted, arguments_by_name(forward, args, kwargs))
        return forward(*args, **kwargs)

    with patched(model, "forward", counting):
        yield


@contextmanager
def _explicit_keywords(model: torch.nn.Module, sample: Sample) -> Iterator[None]:
    """Give ``forward`` a parameter for each keyword of the sample that it takes by ``**kwargs``.

    Export pairs dynamic shapes with parameters by name, and cannot do so for those.
    """
    forward = model.forward
    signature = inspect.signature(forward)
    parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    further = [name for name in sample.kwargs if name not in signature.parameters]
    if not further:
        yield
        return

    def explicit(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    parameters += [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in further]
    explicit.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    with patched(model, "forward", explicit):
        yield


def _refuse(name: str, size: int) -> None:
    raise SpecialisedSize(
        f"{name} is specialized to {size} here, so the graph would take no other size, but the axis is dynamic."
    )


def axis_sizes(program: Program, model: torch.nn.Module, axes: DynamicAxes) -> dict[tuple[str, int], Any]:
    """Return the size of each dynamic axis in the program: a number, or a symbolic expression."""
    assert program.example_inputs is not None
    args, kwargs = program.example_inputs
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    specs = [spec for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
    names = {
        path: getattr(spec.arg, "name", "")
        for (path, _), spec in zip(named_leaves(model, Sample(tuple(args), dict(kwargs))), specs, strict=True)
    }
    result: dict[tuple[str, int], Any] = {}
    for axis in axes.dynamic:
        value = values.get(names.get(axis.path, ""))
        if isinstance(value, torch.Tensor):
            size: Any = value.shape[axis.dim]
            expression = size if isinstance(size, int) else size.node.expr
            # a symbol that tracing specialised later has become a number
            result[axis.path, axis.dim] = int(expression) if getattr(expression, "is_Integer", False) else expression
    return result
