"""The assumptions of a successful capture: training flags, constants, randomness, mutated state, try blocks."""

from __future__ import annotations

import ast
import dis
import functools
import itertools
import linecache
import random
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from types import CodeType, FrameType, FunctionType
from typing import Any

import numpy as np
import torch

from prepbench._torch_compat.operators import draws, given_arguments, schema_of
from prepbench._torch_compat.scans import surely_equal
from prepbench.capture.failures.changed_state import Place, ReachedState
from prepbench.document.model import Finding
from prepbench.inputs import Sample, named_leaves
from prepbench.interrupts import interruptible
from prepbench.objects.compare import EXACT, Closeness, difference
from prepbench.objects.copy import Twin
from prepbench.objects.flatten import collect, register_nodes
from prepbench.objects.parts import is_user_code, is_user_file
from prepbench.objects.restore import writes_watched
from prepbench.patching import patched_here
from prepbench.running.callable_module import replaceable_modules
from prepbench.running.first_calls import REMEDY, built_buffers, changed_arguments, filled_for_all
from prepbench.running.source_lines import code_frame, place_in_stack_trace, source_line
from prepbench.running.unchanged import detached_copy, own_copy, unchanged, without_output

# Random numbers of Python and NumPy that a forward draws: the graph has those that were drawn while it was traced.


RANDOM_FIXED = "random number fixed"

_PYTHON_DRAWS_REMEDY = (
    "Draw with torch (torch.rand(())), which stays random in the graph, choose with torch.where in place of `if`, or "
    "call model.eval() before capturing if it is drawn in training only."
)


def python_states() -> Any:
    """Return the states of Python's and NumPy's random generators, which a draw changes."""
    kind, keys, *rest = np.random.get_state()
    return random.getstate(), (kind, bytes(np.asarray(keys)), *rest)


def findings_of_draws(model: torch.nn.Module, samples: Sequence[Sample]) -> Iterator[Finding]:
    """Yield one finding for each line of the model at which this thread draws. Runs the model once under a profiler."""
    twin = Twin(model).model
    names = {id(module): (fqn, type(module).__name__) for fqn, module in twin.named_modules()}
    found: dict[tuple[str, int], Finding] = {}

    def drawn(frame: FrameType | None) -> None:
        place: tuple[str, int] | None = None
        while frame is not None:
            if place is None and _is_of_model(frame):
                place = frame.f_code.co_filename, frame.f_lineno
            owner = names.get(id(frame.f_locals.get("self")))
            if owner is not None and place is not None:
                text = "forward draws a random number in Python: the graph has the one that was drawn while capturing."
                source, around = source_line(*place), code_frame(*place)
                found.setdefault(place, Finding(*owner, RANDOM_FIXED, text, source, around, _PYTHON_DRAWS_REMEDY))
                return
            frame = frame.f_back

    with unchanged(twin), without_output(), torch.no_grad(), _watched(drawn):
        own_copy(samples[0]).call(twin)
    yield from found.values()


def _is_of_model(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return file != random.__file__ and "/numpy/" not in file and is_user_code(frame.f_code)


@contextmanager
def _watched(drawn: Callable[[FrameType | None], None]) -> Iterator[None]:
    """Report each draw of this thread; a running profiler is suspended meanwhile."""

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_call" and isinstance(getattr(arg, "__self__", None), random.Random):
            drawn(frame)

    before = sys.getprofile()
    with ExitStack() as stack:
        # profilers do not see the functions of NumPy's generator
        for name, function in list(vars(np.random).items()):
            if isinstance(getattr(function, "__self__", None), np.random.RandomState):
                stack.enter_context(patched_here(np.random, name, _telling(function, drawn)))
        sys.setprofile(profile)
        stack.callback(sys.setprofile, before)
        yield


def _telling(function: Callable[..., Any], drawn: Callable[[FrameType | None], None]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        drawn(sys._getframe(1))
        return function(*args, **kwargs)

    return call


TRAINING = "training flag fixed"
CONSTANT = "constant from an input"
RANDOM = "random numbers"
INPUT_CHANGED = "input changed in place"
STATE_CHANGED = "state changed"
ATTRIBUTE = "Python attribute changed"
SHARED = "samples share an object"

Program = torch.export.ExportedProgram


def findings_of_program(model: torch.nn.Module, program: Program, samples: Sequence[Sample]) -> tuple[Finding, ...]:
    """Return all assumptions of an exported program, in a fixed order. Runs the model up to five times."""
    return tuple(
        dict.fromkeys(
            (
                *_training_flags(model),
                *_fixed_values(model, samples),
                *_shared(model, samples),
                *_changes(program),
                *_changed_arguments(model, samples),
                *_built_by_calls(model, program),
                *_random_operators(program),
                *_changed_by_a_run(Twin(model).model, samples),
                *findings_of_tries(program),
                *findings_of_padding(model, samples),
            )
        )
    )


def findings_of_trace(model: Any, samples: Sequence[Sample] | None) -> tuple[Finding, ...]:
    """Return the assumptions of module graphs: the findings that need no program."""
    if not isinstance(model, torch.nn.Module):
        return ()
    found = [*_training_flags(model)]
    if samples:
        changed = _changed_by_a_run(Twin(model).model, samples)
        found += [*_fixed_values(model, samples), *_shared(model, samples), *changed]
    return tuple(dict.fromkeys(found))


def _training_flags(model: torch.nn.Module) -> Iterator[Finding]:
    seen = set()
    for fqn, module in replaceable_modules(model):
        for code in _methods(module):
            line = _line_reading(code, "training")
            if line is None or (code, line) in seen:
                continue
            seen.add((code, line))
            mode = "training" if module.training else "evaluation"
            yield _finding(
                fqn,
                module,
                TRAINING,
                f"forward reads self.training, which is {module.training} now: the graph stays in {mode} mode.",
                (code.co_filename, line),
                f"Call model.{'eval' if module.training else 'train'}() and capture again for the other mode.",
            )


def _methods(module: torch.nn.Module) -> Iterator[CodeType]:
    """Yield the code of the methods that the user's own classes define, forward first."""
    yield from (function.__code__ for function in _functions(module))


def _functions(module: torch.nn.Module) -> Iterator[FunctionType]:
    for kind in type(module).__mro__:
        functions = {name: getattr(value, "__wrapped__", value) for name, value in vars(kind).items()}
        for name in sorted(functions, key=lambda name: name != "forward"):
            function = functions[name]
            is_code = isinstance(function, FunctionType) and name not in ("__init__", "train", "eval")
            if is_code and is_user_code(function.__code__):
                yield function


def own_codes(model: torch.nn.Module) -> list[CodeType]:
    """Return the code of the user's own classes of a model, and of the user's functions that they name."""
    found: dict[CodeType, None] = {}
    for _, module in replaceable_modules(model):
        for method in _functions(module):
            found[method.__code__] = None
            for name in method.__code__.co_names:
                function = method.__globals__.get(name)
                if isinstance(function, FunctionType) and is_user_code(function.__code__):
                    found[function.__code__] = None
    return list(found)


def _line_reading(code: CodeType, attribute: str) -> int | None:
    if attribute not in code.co_names:
        return None
    previous = None
    for instruction in dis.get_instructions(code):
        is_read = instruction.opname == "LOAD_ATTR" and instruction.argval == attribute
        if is_read and previous is not None and previous.opname == "LOAD_FAST" and previous.argval == "self":
            return instruction.positions.lineno if instruction.positions else None
        previous = instruction
    return None


def _fixed_values(model: torch.nn.Module, samples: Sequence[Sample]) -> Iterator[Finding]:
    for path, value in named_leaves(model, samples[0]):
        if isinstance(value, bool | int | float | str):
            yield _finding(
                "",
                model,
                CONSTANT,
                f"The argument {path} is fixed to {value!r}: the graph ignores other values.",
                None,
                f"Capture once for each value of {path}, or let the model take it as a tensor.",
            )


def _changed_arguments(model: torch.nn.Module, samples: Sequence[Sample]) -> Iterator[Finding]:
    for path in changed_arguments(model, samples[0]):
        text = f"forward changes {path} and does not return it: the graph leaves the caller's object as it is."
        yield _finding("", model, INPUT_CHANGED, text, None, "Let forward return the new value, if it is needed.")


def _shared(model: torch.nn.Module, samples: Sequence[Sample]) -> Iterator[Finding]:
    if text := filled_for_all(model, samples):
        yield _finding("", model, SHARED, text, None, REMEDY)


def written_arguments(program: Program) -> tuple[str, ...]:
    """Return the placeholders of arguments that the graph writes into, also through views."""
    return tuple(root.name for root, _ in _written_roots(program) if root.name in program.graph_signature.user_inputs)


def returned_arguments(program: Program) -> frozenset[str]:
    """Return the placeholders of arguments that the graph returns whole; what it wrote into them is in its results."""
    nodes = {node.name: node for node in program.graph.nodes}
    found = [nodes[name] for name in program.graph_signature.user_outputs if isinstance(name, str) and name in nodes]
    return frozenset(_viewed(node).name for node in found if _is_whole(node, _viewed(node)))


def _is_whole(view: torch.fx.Node, root: torch.fx.Node) -> bool:
    """Return whether a view has the sizes of its tensor for every input: sizes that data decide may differ."""
    one, other = (getattr(node.meta.get("val"), "shape", ()) for node in (view, root))
    return len(one) == len(other) and all(map(surely_equal, one, other))


def _written_roots(program: Program) -> Iterator[tuple[torch.fx.Node, torch.fx.Node]]:
    """Yield each placeholder that operators of the graph write into, with the first of them."""
    told = set()
    for node in program.graph.nodes:
        for written in _written(node):
            root = _viewed(written)
            if root.op == "placeholder" and root not in told:
                told.add(root)
                yield root, node


def _changes(program: Program) -> Iterator[Finding]:
    """Yield inputs and buffers that operators of the graph write into, also through views."""
    signature = program.graph_signature
    for root, node in _written_roots(program):
        buffer = signature.inputs_to_buffers.get(root.name) or signature.inputs_to_parameters.get(root.name)
        place = place_in_stack_trace(node.meta.get("stack_trace"))
        remedy = "Nothing, if that is meant; otherwise work on a copy, such as x = x.clone()."
        if buffer:
            text = f"The buffer {buffer} is changed by each call: the graph does the same."
            yield Finding(buffer.rpartition(".")[0], "", STATE_CHANGED, text, *_source(place), remedy)
        elif root.name in signature.user_inputs:
            text = f"The argument {root.name} is written into: the graph does the same."
            yield Finding("", "", INPUT_CHANGED, text, *_source(place), remedy)


def _built_by_calls(model: torch.nn.Module, program: Program) -> Iterator[Finding]:
    """Yield buffers of the graph that the model lacks so far, or has in another shape."""
    for name in built_buffers(dict(model.named_buffers()), dict(program.named_buffers())):
        owner = name.rpartition(".")[0]
        text = f"The buffer {name} is built by the first call: the graph holds what calls on the samples leave in it."
        remedy = "Give samples up to the largest sizes that you will use, or build the buffer in __init__."
        yield _finding(owner, model.get_submodule(owner), STATE_CHANGED, text, None, remedy)


def _written(node: torch.fx.Node) -> list[torch.fx.Node]:
    schema = schema_of(node.target)
    if schema is None:
        return []
    given = given_arguments(node)
    names = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    if given.get("training") is True and "running_mean" in given:
        # the schema of batch norm does not say that it updates its statistics
        names += ["running_mean", "running_var"]
    return [given[name] for name in names if isinstance(given.get(name), torch.fx.Node)]


def _viewed(node: torch.fx.Node) -> torch.fx.Node:
    """Return the node whose memory ``node`` is a view of."""
    while node.op == "call_function":
        schema = schema_of(node.target)
        given = given_arguments(node)
        sources = [a.name for a in schema.arguments if a.alias_info is not None] if schema else []
        source = next((given[name] for name in sources if isinstance(given.get(name), torch.fx.Node)), None)
        if source is None:
            break
        node = source
    return node


def _random_operators(program: Program) -> Iterator[Finding]:
    for node in program.graph.nodes:
        if not draws(node):
            continue
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        fqn, kind = stack[-1] if stack else ("", "")
        kind = kind if isinstance(kind, str) else kind.__name__
        place = place_in_stack_trace(node.meta.get("stack_trace"))
        name = str(node.target).removeprefix("aten.").partition(".")[0]
        text = f"{name} draws random numbers at each call: results repeat only with the same seed."
        remedy = "Call model.eval() before capturing if it is dropout; otherwise take the numbers as an input."
        yield Finding(fqn, kind.rpartition(".")[2], RANDOM, text, *_source(place), remedy)


def _changed_by_a_run(model: torch.nn.Module, samples: Sequence[Sample]) -> Iterator[Finding]:
    """Yield what a run changes in Python: each attribute, and of what lies outside of modules only what further calls
    change or read, because many models fill a table there once.

    Args:
        model: a twin.
        samples: its inputs.
    """
    try:
        with unchanged(model), without_output(), torch.no_grad(), writes_watched(model):
            states, noted = python_states(), ReachedState(model)
            own_copy(samples[0]).call(model)
            has_drawn, changed = python_states() != states, noted.changed()
            again = changed
            if not all(place.is_attribute for place in changed):
                noted = ReachedState(model)
                own_copy(samples[0]).call(model)
                again = noted.changed()
    except Exception:  # a model that does not run is reported by capture itself
        return
    if has_drawn:
        yield from findings_of_draws(model, samples)
    if not set(changed) <= set(again) and not gives_the_same(model, [samples[0]] * 2):
        again = changed
    for place in changed:
        if place.is_attribute or place in again:
            text = f"forward changes {place.text}: the graph keeps what it was while capturing."
            line = _line_changing(model, place, noted.codes())
            remedy = "Keep changing state in a buffer (register_buffer) and change it with tensor operations."
            yield _finding(place.fqn, model.get_submodule(place.fqn), ATTRIBUTE, text, line, remedy)


def remarks_on_state(model: torch.nn.Module, samples: Sequence[Sample]) -> tuple[str, ...]:
    """Return the findings on a twin for which its graph gives other results, and that no check of a call sees: what
    ``forward`` changes or draws in Python, and what samples share. Runs it up to four times.
    """
    found = [*_shared(model, samples), *_changed_by_a_run(model, samples)]
    is_seen = any(each.kind == ATTRIBUTE for each in found) and not gives_the_same(model, [samples[0]] * 2)
    return tuple(
        ("in PyTorch, a second call gives another result: " if is_seen and each.kind == ATTRIBUTE else "")
        + remark_of(each)
        for each in found
    )


def remark_of(finding: Finding) -> str:
    """Return a finding as one line of a report."""
    place = f" ({finding.source.file}:{finding.source.line})" if finding.source else ""
    return f"{finding.message.rstrip('.')}{place}"


Way = Callable[[torch.nn.Module, Sample], Any]
"""How a model is called with its own copy of a sample."""


def _as_it_is(model: torch.nn.Module, sample: Sample) -> Any:
    return sample.call(model)


def gives_the_same(
    model: torch.nn.Module, calls: Iterable[Sample], closeness: Closeness = EXACT, *, ways: Sequence[Way] = ()
) -> bool:
    """Return whether calls behind one another give the same; where one of them raises they do not.

    Args:
        model: the callee.
        calls: of it, under ``no_grad``.
        closeness: what counts as the same.
        ways: how each of the calls is made; as it is, if none are given.
    """
    twin, results = Twin(model).model, list[Any]()
    try:
        with unchanged(twin), without_output(), torch.no_grad(), interruptible():
            numbers = torch.get_rng_state()
            for sample, way in zip(calls, ways or itertools.repeat(_as_it_is), strict=False):
                torch.set_rng_state(numbers)
                results.append(detached_copy(way(twin, own_copy(sample))))
    except Exception:  # a second call may be more than the model can do
        return False
    return all(difference(results[0], result, closeness).equal for result in results[1:])


def depends_on(model: torch.nn.Module, sample: Sample, ways: Sequence[Way], closeness: Closeness) -> bool:
    """Return whether ways to call a model give different results, and equal calls do not."""
    same = partial(gives_the_same, model, closeness=closeness)
    return not same([sample] * len(ways), ways=ways) and same([sample] * 2, ways=[ways[0]] * 2)


def _line_changing(model: torch.nn.Module, place: Place, others: Sequence[CodeType]) -> tuple[str, int] | None:
    """Return the line that changes what is kept at a place, in its module or else in other code that the model runs:
    one that assigns the name, or else one that reads it, as it does to change a list.
    """
    for codes in ([*_methods(model.get_submodule(place.fqn))], others):
        for operations in (_WRITES, _READS):
            for code in codes:
                for instruction in dis.get_instructions(code):
                    if instruction.argval == place.name and instruction.opname in operations and instruction.positions:
                        line = instruction.positions.lineno
                        return (code.co_filename, line) if line is not None else None
    return None


_WRITES = ("STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF")
_READS = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_DEREF")


def _finding(
    fqn: str, module: torch.nn.Module, kind: str, text: str, place: tuple[str, int] | None, remedy: str
) -> Finding:
    return Finding(fqn, type(module).__name__, kind, re.sub(r" at 0x[0-9a-f]+", "", text), *_source(place), remedy)


def _source(place: tuple[str, int] | None) -> tuple[Any, str]:
    return (source_line(*place), code_frame(*place)) if place else (None, "")


# A graph has no handlers for the ``try`` blocks around its operations.


CAUGHT = "errors are not caught"

_REMEDY = (
    "Ask before the call whether it would fail, or use the operator's form that tells, such as "
    "torch.linalg.cholesky_ex, and choose between the two results with torch.where."
)


@dataclass(frozen=True)
class _Try:
    line: int
    block: range  # the lines that may raise
    handlers: range
    caught: str


def findings_of_tries(program: torch.export.ExportedProgram) -> Iterator[Finding]:
    """Yield each ``try`` whose block or handler the graph computes; the other branch is not part of it."""
    owners: dict[tuple[str, _Try], torch.fx.Node] = {}
    handled: set[tuple[str, _Try]] = set()
    for node in program.graph.nodes:
        for file, line in re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or ""):
            for each in _tries(file) if is_user_file(file) else ():
                if int(line) in each.block or int(line) in each.handlers:
                    owners.setdefault((file, each), node)
                if int(line) in each.handlers:
                    handled.add((file, each))
    for (file, each), node in owners.items():
        fqn, kind = (list((node.meta.get("nn_module_stack") or {}).values()) or [("", "")])[-1]
        kind = kind if isinstance(kind, str) else kind.__name__
        text = (
            f"forward catches {each.caught} here, and a sample raised it: the graph always does what the handler does."
            if (file, each) in handled
            else f"forward catches {each.caught} here, and no sample raised it: the graph has no handler, so it raises."
        )
        place = source_line(file, each.line)
        yield Finding(fqn, kind.rpartition(".")[2], CAUGHT, text, place, code_frame(file, each.line), _REMEDY)


def _tries(file: str) -> tuple[_Try, ...]:
    return _tries_of("".join(linecache.getlines(file)))


@functools.lru_cache(maxsize=64)
def _tries_of(text: str) -> tuple[_Try, ...]:
    try:
        tree = ast.parse(text)
    except SyntaxError:  # a file that has changed since it was imported
        return ()
    return tuple(_described(node) for node in ast.walk(tree) if isinstance(node, ast.Try) and _goes_on(node))


def _goes_on(node: ast.Try) -> bool:
    """Return whether a handler does more than raise."""
    return any(not isinstance(handler.body[-1], ast.Raise) for handler in node.handlers)


def _described(node: ast.Try) -> _Try:
    caught = [ast.unparse(handler.type) if handler.type is not None else "every error" for handler in node.handlers]
    block = range(node.body[0].lineno, (node.body[-1].end_lineno or node.body[-1].lineno) + 1)
    last = node.handlers[-1].body[-1]
    handlers = range(node.handlers[0].lineno, (last.end_lineno or last.lineno) + 1)
    return _Try(node.lineno, block, handlers, ", ".join(caught))


# Padding that shifts positions: a mask excludes padding tokens, but positions count them.


PADDING = "padding moves positions"
_MASK, _TOKENS = "attention_mask", "input_ids"
_TOLERANCE = 1e-2


def findings_of_padding(model: torch.nn.Module, samples: Sequence[Sample]) -> Iterator[Finding]:
    """Yield a finding for the first token whose result in a padded row differs from that without padding.

    Runs the model on one row of the first sample that has a mask with zeros, with and without the masked tokens.
    """
    if any(module.training for module in model.modules()):
        return  # dropout would make a difference of its own
    for sample in samples:
        values = dict(named_leaves(model, sample))
        mask, tokens = values.get(_MASK), values.get(_TOKENS)
        if not _is_padded(mask, tokens):
            continue
        assert isinstance(mask, torch.Tensor)
        row = int((mask == 0).any(1).nonzero()[0])
        kept = (mask[row] != 0).nonzero().flatten()
        difference = _difference(model, sample, row, kept, tuple(mask.shape))
        if difference is not None and difference > _TOLERANCE:
            count = int(mask.shape[1] - len(kept))
            yield Finding(
                "",
                type(model).__name__,
                PADDING,
                f"{_MASK} leaves out {count} of {mask.shape[1]} tokens of row {row} in inputs[{sample.index}], and "
                f"with them gone the others get other results (by {difference:.2g} of the largest): their positions "
                "count the padding.",
                None,
                "",
                "Give position_ids that do not count it, such as (attention_mask.cumsum(-1) - 1).clamp(min=0), if the "
                "model takes them, or pad on the other side (tokenizer.padding_side).",
            )
        return


def _is_padded(mask: Any, tokens: Any) -> bool:
    if not (isinstance(mask, torch.Tensor) and isinstance(tokens, torch.Tensor)) or mask.device.type == "meta":
        return False
    padded = (mask == 0).any(-1)
    return mask.dim() == 2 and mask.shape == tokens.shape and bool((padded & (mask != 0).any(-1)).any())


def _difference(
    model: torch.nn.Module, sample: Sample, row: int, kept: torch.Tensor, shape: tuple[int, ...]
) -> float | None:
    """Return the largest difference at the kept tokens, relative to the largest result; None if unknown."""

    def row_of(leaf: Any) -> Any:
        is_batched = isinstance(leaf, torch.Tensor) and leaf.dim() and leaf.shape[0] == shape[0]
        return leaf[row : row + 1] if is_batched else leaf

    def without_padding(leaf: Any) -> Any:
        part = row_of(leaf)
        along = isinstance(part, torch.Tensor) and part.dim() in (2, 3) and tuple(part.shape[:2]) == (1, shape[1])
        return part[:, kept] if along else part

    own = Twin(model).model
    results = []
    try:
        for change in (row_of, without_padding):
            with unchanged(own), without_output(), torch.no_grad():
                result = own_copy(sample.map(change)).call(own)
            register_nodes(result)
            results.append(collect(result)[0])
    except Exception:  # a row alone, or a shorter one, may be no call that the model takes
        return None
    long, short = results
    if long.dim() < 2 or tuple(long.shape[:2]) != (1, shape[1]) or tuple(short.shape[:2]) != (1, len(kept)):
        return None
    largest = float(short.abs().max())
    return float((long[:, kept] - short).abs().max()) / largest if largest else None
