"""One attempt to export a model, and the checks of its result."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import InputKind

from prepbench._torch_compat import pytree
from prepbench._torch_compat.derivatives import (
    CALL_OF_MODULES,
    derivatives_traced,
    plain_operations,
    transforms_noticed,
)
from prepbench._torch_compat.exporting import (
    conversions_that_change_nothing_skipped,
    distributions_checked_in_graph,
    flags_of_attention_answered,
    masks_taken_as_given,
    quiet_export,
)
from prepbench._torch_compat.programs import lower_bounds, with_lower_bounds, without_grad_regions
from prepbench._torch_compat.sizes import (
    SizeCallback,
    exact_zero_one,
    smallest,
    watched_keys,
    watched_sizes,
    watched_specialisation,
    watched_texts,
)
from prepbench.capture.aten.leaf_operators import outermost
from prepbench.capture.modules.interception import code_held_by, symbolic_conversions, symbolic_roots
from prepbench.capture.sizes.conditions import CONDITIONS, SizeConditions, if_own
from prepbench.capture.sizes.dynamic_axes import DynamicAxes, SampleSizes
from prepbench.capture.sizes.recurrent import RecurrentLayers
from prepbench.capture.sizes.size_forms import ClampedSlices, SizeForms, SizesInTensors
from prepbench.capture.sizes.size_keys import SizeKeys
from prepbench.inputs import Sample, arguments_by_name, named_leaves
from prepbench.objects.caches.counted import count_from_sizes
from prepbench.objects.caches.transformers import one_answer_for_all_sizes
from prepbench.patching import patched
from prepbench.running.callable_module import part_named, replaced_forward
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
    keys: SizeKeys | None = None,
) -> Program:
    """Export ``model`` for the call ``sample`` with these dynamic axes; the model is not changed.

    Args:
        strict: through dynamo, which understands more Python but takes longer.
        exact: record guards on sizes 0 and 1 instead of assuming sizes of 2 or more.
        sizes: guards on sizes must have the same answer for all of these.
        own_questions: whether only guards of the model's own Python must.
        noted: the state of the model, if it is recorded already.
        deriving: names of the modules in whose own forward ``torch.func`` takes derivatives.
        keys: what dicts and sets may be asked with a size; without it, none is.

    Raises:
        SizesDecide: at the line that asks something else.
        SpecialisedSize: at the line that fixes a dynamic size.
        Exception: whatever export raises.
    """
    conditions = SizeConditions()
    with ExitStack() as stack:
        if keys is not None and not strict:  # until dicts with sizes as keys are restored
            stack.enter_context(watched_keys(keys.numbers, conditions.note_numbers))
        stack.enter_context((noted or NotedState(model)).unchanged())
        stack.enter_context(_counting_from_sizes(model, sample))
        stack.enter_context(one_answer_for_all_sizes())
        stack.enter_context(_explicit_keywords(model, sample))
        shapes = axes.dynamic_shapes(model, sample, hint=torch.export.Dim.AUTO) if axes.dynamic else None
        stack.enter_context(quiet_export())
        stack.enter_context(conversions_that_change_nothing_skipped())
        stack.enter_context(masks_taken_as_given())
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
            stack.enter_context(SizesInTensors())
            stack.enter_context(distributions_checked_in_graph())
            stack.enter_context(flags_of_attention_answered())
            stack.enter_context(symbolic_conversions(code_held_by(model), of_data=False))
            stack.enter_context(symbolic_roots())
            question: SizeCallback | None = sizes.refuse_contradiction if sizes is not None else None
            if question is not None and own_questions:
                question = if_own(question)
            stack.enter_context(watched_sizes(conditions.note, question))
            stack.enter_context(watched_texts(conditions.note_text))
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


# Modules whose forward takes derivatives with ``torch.func``: the graph contains the operations of the derivatives.


@contextmanager
def transforming_modules(model: torch.nn.Module) -> Iterator[set[str]]:
    """Collect the names of the modules in whose own forward ``torch.func`` takes derivatives."""
    names = {id(module): fqn for fqn, module in model.named_modules()}
    found: set[str] = set()

    def note() -> None:
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None:
            owner = frame.f_locals.get("self") if frame.f_code is CALL_OF_MODULES else None
            if owner is not None and id(owner) in names:
                found.add(names[id(owner)])
                return
            frame = frame.f_back

    with transforms_noticed(note):
        yield found


@contextmanager
def transforms_computed(model: torch.nn.Module, fqns: Iterable[str]) -> Iterator[None]:
    """Trace the named modules as plain operations during the block."""
    with ExitStack() as stack:
        for fqn in outermost(fqns):
            module = part_named(model, fqn)
            if not isinstance(module, torch.jit.ScriptModule):
                stack.enter_context(replaced_forward(model, fqn, _computed(module.forward)))
        yield


def _computed(forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def computed(*args: Any, **kwargs: Any) -> Any:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        returned: list[Any] = []

        def of_tensors(*tensors: torch.Tensor) -> list[torch.Tensor]:
            given = dict(zip(places, tensors, strict=True))
            arguments = [given.get(place, leaf) for place, leaf in enumerate(leaves)]
            own_args, own_kwargs = pytree.tree_unflatten(arguments, spec)
            results, form = pytree.tree_flatten(forward(*own_args, **own_kwargs))
            returned[:] = [results, form]
            return [result for result in results if isinstance(result, torch.Tensor)]

        tensors = [leaves[place] for place in places]
        values = iter(plain_operations(of_tensors, tensors)(*tensors))
        results, form = returned
        return pytree.tree_unflatten(
            [next(values) if isinstance(result, torch.Tensor) else result for result in results], form
        )

    return computed


# Re-export a graph after it was changed: quantized, rewritten for a target, or cut out of a larger one.


def export_again(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    dynamic: Sequence[Collection[int]],
    error: Callable[[str], Exception],
) -> Program:
    """Export a graph so that the sizes that were dynamic before stay dynamic.

    Args:
        module: a graph that takes its input leaves by position.
        inputs: the example inputs.
        dynamic: for each input the dims whose sizes must stay dynamic.
        error: makes the exception to raise for an input, given its name, whose sizes became static.

    Returns:
        The program. Its weights are those of ``module``.
    """
    shapes = tuple(dict.fromkeys(dims, torch.export.Dim.AUTO) if dims else None for dims in dynamic)

    def exported(context: AbstractContextManager[Any]) -> Program:
        with torch.no_grad(), context:
            return torch.export.export(
                module, tuple(inputs), dynamic_shapes=(shapes,) if _is_variadic(module) else shapes, strict=False
            )

    try:
        program = exported(traced_alike(module.graph))
    except AssertionError:  # torch 2.13 cannot solve some of its own guards under the assumption of sizes of 2 and more
        if is_exact(module.graph):
            raise
        program = exported(exact_zero_one())
    names = program.graph_signature.user_inputs
    for name, wanted, found in zip(names, dynamic, dynamic_sizes(program), strict=True):
        if found.keys() != set(wanted):
            raise error(str(name))
    return program


def is_exact(graph: fx.Graph) -> bool:
    """Return whether a graph was traced without the assumption that dynamic sizes are at least 2."""
    values = [node.meta.get("val") for node in graph.find_nodes(op="placeholder")]
    return any(smallest(size) < 2 for value in values for size in sizes_of(value).values())


def traced_alike(graph: fx.Graph) -> AbstractContextManager[Any]:
    """A context in which a graph is traced again with the assumptions about sizes of 0 and 1 of its first tracing.

    Otherwise torch guards on a computed size that is 1 for the example inputs (it asks for the memory format of a
    ``[2, 1, 1]``), which makes the sizes that it is computed from static.
    """
    return exact_zero_one() if is_exact(graph) else nullcontext()


def dynamic_sizes(program: Program) -> list[dict[int, Any]]:
    """Return the symbolic sizes of each input leaf by dim; empty for other values than tensors."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    names = program.graph_signature.user_inputs
    return [sizes_of(values.get(name)) if isinstance(name, str) else {} for name in names]


def sizes_of(value: Any) -> dict[int, Any]:
    """Return the symbolic sizes of a traced tensor by dim; empty for other values."""
    if not isinstance(value, torch.Tensor):
        return {}
    sizes: tuple[Any, ...] = tuple(value.shape)
    return {dim: size for dim, size in enumerate(sizes) if _is_dynamic(size)}


def _is_dynamic(size: Any) -> bool:
    # a symbol that tracing specialised later is still a SymInt, but its expression is a number
    return isinstance(size, torch.SymInt) and not size.node.expr.is_Integer


def _is_variadic(module: fx.GraphModule) -> bool:
    return any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(module.forward).parameters.values())
