"""Turn an exception of torch or of the user's code into a :class:`Failure` with a reason and a remedy.

Tracing, exporting and compiling fail with dozens of exception types whose messages quote addresses, colours and
internals. This module maps all of them onto the reasons in :mod:`prepbench.capture.failures.describe`, finds the user's
line, and says what to change.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import linecache
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from prepbench._torch_compat.derivatives import in_forward_mode
from prepbench.document.model import Failure, SourceLine
from prepbench.errors import printable
from prepbench.inputs import Sample
from prepbench.internal_errors import raise_if_internal
from prepbench.objects.compare import ROUNDED, Outcome, difference
from prepbench.running.source_lines import (
    code_frame,
    file_of,
    forward_place,
    place_in_stack_trace,
    source_line,
    user_place,
)
from prepbench.running.unchanged import NotedState, outcome, without_output

MESSAGE_LINES = 3
MESSAGE_LENGTH = 400


def describe_failure(
    error: BaseException,
    *,
    fqn: str,
    module_type: str,
    module: torch.nn.Module | None = None,
    source: SourceLine | None = None,
) -> Failure:
    """Describe why capturing the module ``fqn`` raised ``error``.

    Args:
        error: the exception with its traceback.
        fqn: fully qualified name of the module that failed ("" is the model itself).
        module_type: its class name.
        module: the module, whose ``forward`` gives a line when the traceback has no line of the user's.
        source: the user's line, where it is known otherwise than from the traceback.

    Raises:
        InternalError: prepbench itself is the reason, and no code of the user's.
        TorchVersionError: torch lacks something.

    Example:
        >>> try:
        ...     torch.fx.symbolic_trace(lambda x: x if x.sum() > 0 else -x)
        ... except torch.fx.proxy.TraceError as error:
        ...     describe_failure(error, fqn="gate", module_type="Gate").kind
        'data-dependent branch'
    """
    raise_if_internal(error)
    place = (file_of(source), source.line) if source is not None else user_place(error)
    place = place or (_place_in(module, normalize_message(error)) if module is not None else None)
    source = source_line(*place) if place else None
    message = normalize_message(error)
    reason = _reason_of(error, message, source.code if source else "")
    frame = code_frame(*place) if place else ""
    remedy = reason.remedy
    if place and reason.kind == BRANCH:
        remedy = remedy_of_branch(*place) or remedy
    elif source and reason.kind == SHAPE:
        remedy = _remedy_of_size(source.code, remedy, error)
    return Failure(fqn, module_type, reason.kind, type(error).__name__, message, source, remedy, frame)


def _place_in(module: torch.nn.Module, message: str) -> tuple[str, int] | None:
    """Return the line of a module for an error without a place: where it takes derivatives, else its forward."""
    if re.search(_LOST_DERIVATIVE, message):
        for kind in type(module).__mro__[: -len(torch.nn.Module.__mro__)]:
            with contextlib.suppress(OSError, TypeError):  # no source
                lines, first = inspect.getsourcelines(kind)
                found = [number for number, line in enumerate(lines, first) if re.search(_DERIVATIVE, line)]
                if found:
                    return inspect.getsourcefile(kind) or "", found[0]
    return forward_place(module)


_LOST_DERIVATIVE = "does not require grad|fake tensor in the exported program"
_DERIVATIVE = r"\bautograd\.grad\(|\.backward\("


def as_leaf(failure: Failure) -> Failure:
    """Return the failure as the reason of a leaf, without the advice to make it one."""
    return replace(failure, remedy=without_leaf_hint(failure.remedy))


_LOOP = r"(async )?for |.*[(\[{].* for .+ in "


def _remedy_of_size(code: str, remedy: str, error: BaseException) -> str:
    """Return the remedy for a specialised size: by a derivative, a loop over it, a table, or a branch on it."""
    if in_forward_mode(error):
        return FORWARD_MODE_SIZES_REMEDY
    if remedy == TABLE_REMEDY:
        return remedy
    if re.match(_LOOP, code):
        return ROWS_REMEDY
    if re.search(_TABLE, code):
        return TABLE_REMEDY
    return SIZES_DECIDE_REMEDY if re.match(r"(if|elif|while) |.* if .+ else ", code) else remedy


_TABLE = r"[\w\])}]\[[\w.]*?(\.shape\[|\.size\(|\blen\()"


def describe_node(node: torch.fx.Node, message: str, remedy: str) -> Failure:
    """Return an operator of an exported graph as a failure of the module that uses it."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    fqn, kind = stack[-1] if stack else ("", "")
    kind = kind if isinstance(kind, str) else kind.__name__
    place = place_in_stack_trace(node.meta.get("stack_trace"))
    source = source_line(*place) if place else None
    frame = code_frame(*place) if place else ""
    return Failure(fqn, kind.rpartition(".")[2], UNSUPPORTED, "", message, source, remedy, frame)


def failure_line(failure: Failure) -> str:
    """Return the failure in one line: name, class, kind and place."""
    part = failure.fqn or "the model" if failure.lines is None else failure.part
    place = f", {failure.source.file}:{failure.source.line}" if failure.source else ""
    return f"{part} ({failure.module_type}): {failure.kind}{place}"


def normalize_message(error: BaseException) -> str:
    """Return the error's message in at most three lines, without addresses, colours, library paths and inner state."""
    text = printable(_without_noise(str(error)))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    kept: list[str] = []
    for line in lines:
        if kept and re.match(_TRAILER, line):
            break
        kept.append(line)
    result = "\n".join(kept[:MESSAGE_LINES])
    if not result:
        return type(error).__name__
    return result if len(result) <= MESSAGE_LENGTH else result[: MESSAGE_LENGTH - 1] + "…"


# Everything after one of these repeats the traceback or advertises environment variables.
_TRAILER = (
    r"(Caused by:|User [Ss]tack|from user code|The following call raised|To fix the error|Set TORCH|"
    r"For more information|For more debug|For C\+\+ stack|Developer debug|For more details|While executing|"
    r"Original traceback|"
    r"During handling|File \"|Call tool|If you suspect)"
)


def _without_noise(text: str) -> str:
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)
    text = re.sub(r"\s*\(unhinted:.*", "", text)
    text = re.sub(r"\(Size-like symbols: [^)]*\)", "", text)
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", text)
    text = re.sub(r"0x[0-9a-fA-F]{6,}", "0x…", text)
    text = re.sub(r"/(?:[\w.+-]+/)+(?=[\w.+-]+\.(?:py|so|cpp|h)\b)", "", text)
    # symbol numbers count every tensor seen before, so they shift when an unrelated layer changes
    return re.sub(r"\b([uzs]+f?)\d+\b", r"\1", text)


def _reason_of(error: BaseException, message: str, code: str) -> Reason:
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and cause not in chain:
        chain.append(cause)
    for link in chain if _wraps_another(error) else chain[:1]:
        names = frozenset(kind.__name__ for kind in type(link).__mro__)
        text = message if link is error else _without_noise(str(link))
        # around a loop or a call, the statement on the path differs from the one that broke
        gb_type = str(getattr(link, "gb_type", "") or "")
        if gb_type:
            gb_type += "\n" + text.partition("\n")[0]
        for reason in REASONS[:-1]:
            if reason.matches(names, text, code, gb_type):
                return reason
    return FORWARD_MODE if in_forward_mode(error) else REASONS[-1]


def _wraps_another(error: BaseException) -> bool:
    """Return whether the cause is more specific than the error, as where torch wraps an error of the user's code."""
    return error.__cause__ is not None and type(error).__module__.startswith("torch")


# Remedies for a condition on data, by the enclosing statement.


_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def remedy_of_branch(file: str, line: int) -> str | None:
    """Return the remedy for a check or loop at a line; None if torch.where or the like helps, or there is no source."""
    tree = _tree("".join(linecache.getlines(file)))
    around = _around(tree, line) if tree is not None else []
    for at, node in reversed(list(enumerate(around))):
        if isinstance(node, ast.Assert):
            return CHECK_REMEDY
        if isinstance(node, ast.If) and _spans(node, node.test, line):
            return _remedy_of_if(node, around[:at])
        if isinstance(node, ast.While) and _spans(node, node.test, line):
            return LOOP_REMEDY
        if isinstance(node, ast.For | ast.AsyncFor) and _spans(node, node.iter, line):
            return VALUES_REMEDY
        if isinstance(node, ast.IfExp) and _spans(node.test, node.test, line):
            return None
        if isinstance(node, _COMPREHENSIONS):
            return VALUES_REMEDY
    return None


def _remedy_of_if(node: ast.If, around: list[ast.AST]) -> str | None:
    if isinstance(node.body[-1], ast.Raise):
        return CHECK_REMEDY
    is_in_loop = any(isinstance(each, ast.While | ast.For | ast.AsyncFor) for each in around)
    return LOOP_REMEDY if is_in_loop and isinstance(node.body[-1], ast.Break | ast.Return) else None


def _spans(statement: ast.AST, test: ast.expr, line: int) -> bool:
    """Return whether a line belongs to the head of a statement."""
    first: int = getattr(statement, "lineno", test.lineno)
    return first <= line <= (test.end_lineno or test.lineno)


def _around(tree: ast.AST, line: int) -> list[ast.AST]:
    """Return the nodes around a line within its innermost function, outermost first."""
    found: list[ast.AST] = []
    for node in ast.iter_child_nodes(tree):
        if getattr(node, "lineno", 0) <= line <= (getattr(node, "end_lineno", None) or 0):
            inner = _around(node, line)
            found = [*inner] if any(isinstance(each, _SCOPES) for each in inner) else [*found, node, *inner]
    return found


@functools.lru_cache(maxsize=16)
def _tree(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None


# Compare a graph with its model on the samples, and describe the first difference.


class WrongProgram(RuntimeError):
    """Raised if a graph was made, but does not agree with the model."""


def problem(
    graph: Callable[..., Any],
    model: torch.nn.Module,
    samples: Sequence[Sample],
    expected: Sequence[Outcome],
    noted: NotedState | None = None,
) -> WrongProgram | None:
    """Return the first problem of a graph on the given samples, if there is one.

    Args:
        graph: the graph as something to call.
        model: the original; its buffers after a call are compared, too.
        samples: the inputs of both.
        expected: the outcomes of the model on the samples.
        noted: the state of the model, where it is noted already.
    """
    noted = noted or NotedState(model)
    for sample, wanted in zip(samples, expected, strict=True):
        try:
            actual = outcome(graph, sample, model, noted)
        except Exception as error:
            raise_if_internal(error)
            wrong = WrongProgram(f"The captured graph fails on sample {sample.index}, on which the model runs: {error}")
            wrong.__cause__ = error
            return wrong
        found = difference(wanted, actual, ROUNDED)
        if not found.equal:
            return WrongProgram(f"The captured graph and the model differ on sample {sample.index}: {found.text}.")
    return None


def unequal(graph: Callable[..., Any], model: torch.nn.Module, samples: Sequence[Sample]) -> Failure | None:
    """Return why a graph is wrong on a sample; ``None`` if it agrees with its model on all of them."""
    with without_output():
        wrong = problem(graph, model, samples, [outcome(model, sample, model) for sample in samples])
    if wrong is None:
        return None
    return describe_failure(wrong, fqn="", module_type=type(model).__name__, module=model)


# The reasons why a module cannot be captured, with patterns to recognise them and remedies.
#
# The texts are stable: the same model fails with the same words, so that documents can be compared.


@dataclass(frozen=True)
class Reason:
    """One kind of failure: how to recognise it (every given condition must hold), and its remedy."""

    kind: str
    remedy: str
    types: tuple[str, ...] = ()
    message: str = ""
    code: str = ""
    gb_type: str = ""

    def matches(self, type_names: frozenset[str], message: str, code: str, gb_type: str) -> bool:
        """Return whether an exception is of this kind.

        Args:
            type_names: the names of its class and of the classes above.
            message: its message without addresses and paths.
            code: the user's line that raised it.
            gb_type: dynamo's kind of graph break, and what it says first; "" for other exceptions.
        """
        if self.types and not type_names.intersection(self.types):
            return False
        if self.message and not re.search(self.message, message):
            return False
        if self.code and not re.search(self.code, code):
            return False
        return not self.gb_type or bool(re.search(self.gb_type, gb_type))


_INPUTS_HINT = "If the value comes from a shape, pass inputs=[...] so that shapes are known while tracing. "
_LEAF_HINT = (
    "or keep the module as a leaf (leaf_modules= of capture, modules_to_exclude= of prepare_model, fullgraph=False of "
    "compile_model, else RobustTracer.register_leaf)"
)

_SCRIPTED_HINT = "; or keep it as a leaf, with fullgraph=False"


def without_leaf_hint(remedy: str) -> str:
    """Return a remedy without the advice to make a leaf, for modules that are leaves already."""
    for hint in (f"; {_LEAF_HINT}", f", {_LEAF_HINT}", _SCRIPTED_HINT):
        remedy = remedy.replace(hint, "")
    return remedy


BRANCH = "data-dependent branch"
NUMBER = "item() / Python number from a tensor"
NUMPY = "numpy call"
SHAPE = "shape specialisation"
DATA_SHAPE = "data-dependent shape"
SIDE_EFFECT = "Python side effect"
UNSUPPORTED = "unsupported operator"
MUTATION = "mutation"
ITERATION = "iteration over a tensor"
NO_FAKE = "missing fake kernel"
SIGNATURE = "unsupported signature"
OUTPUT = "unsupported output type"
PYTHON_CALL = "traced value in a plain Python function"
GRAPH_BREAK = "unsupported Python construct"
ERROR = "error in forward"
TIME_LIMIT = "time limit"
DIFFERS = "graph differs from the model"

_BRANCH_REMEDY = (
    "Compute both sides and choose with torch.where, or use torch.cond, so that no Python `if` depends on tensor "
    "values; "
    f"{_LEAF_HINT}."
)
CHECK_REMEDY = (
    "The branch only checks values: leave it out while the model is traced (if not torch.compiler.is_compiling()), or "
    f"let the graph check with torch._assert_async; {_LEAF_HINT}."
)
LOOP_REMEDY = (
    "Tensor values decide how often the loop runs: run it a fixed number of times and keep values that are done with "
    f"torch.where and a mask, or use torch.while_loop; {_LEAF_HINT}."
)
VALUES_REMEDY = (
    "Tensor values decide how many elements the loop goes over: compute with the whole tensor, with torch.where or a "
    f"mask for those that do not count; {_LEAF_HINT}."
)
_NUMBER_REMEDY = (
    f"Keep the value as a tensor (drop .item(), float(), int(), .tolist()), or compute it from the shape; {_LEAF_HINT}."
)
_NUMPY_REMEDY = (
    "Replace the numpy call with torch functions, most of which have the same name; NumPy may compute in float64 where "
    f"torch stays in float32; {_LEAF_HINT}."
)
_ITERATION_REMEDY = (
    "Pass inputs=[...] so that the length is known while tracing; where the length changes from call to call, compute "
    "with the whole tensor in place of the loop."
)
_SHAPE_REMEDY = (
    "Keep sizes symbolic: use x.shape[i] directly in torch calls instead of int(...) or range(...), "
    "or make this axis static in the dynamic axes."
)
ROWS_REMEDY = (
    "A loop over a size has as many steps in the graph as it had for this sample: compute with the whole tensor, apply "
    "what is done to each row with torch.vmap, or make this axis static in the dynamic axes."
)
SIZES_DECIDE_REMEDY = (
    "compile_model makes a graph for each way, up to its variants=, and each call runs the one for its sizes; so does "
    "capture(variants=4). For one graph, give samples whose sizes all take the same way at this line, compute both "
    f"ways and choose with torch.where, {_LEAF_HINT}."
)
_NUMBERS_DECIDE_REMEDY = (
    "Trace once for each value of this number, with samples that have it, or keep it as a tensor: torch.where, "
    "index_select or a mask in place of Python's range(), if and [...]; "
    f"{_LEAF_HINT}."
)
_DATA_SHAPE_REMEDY = (
    "The size of this result depends on tensor values: use torch.where or a mask of fixed size in place of nonzero, "
    f"unique and boolean masks, torch.linalg.pinv in place of lstsq; {_LEAF_HINT}."
)
_RECURRENT_REMEDY = (
    "capture, prepare_model and compile_model take a recurrent layer as one operator; nothing is to be done for them. "
    "torch.compile takes it with torch._dynamo.config.allow_rnn = True."
)
_NO_FAKE_REMEDY = f"Register a fake implementation with torch.library.register_fake for this operator, {_LEAF_HINT}."
_MUTATION_REMEDY = (
    "Return a new value instead of assigning in place or to an attribute in forward; use register_buffer for state "
    "that changes. "
    "For item assignment use torch.where, index_put or torch.cat, or pass inputs=[...]."
)
_SIDE_EFFECT_REMEDY = (
    "Move printing, logging, files and timing out of forward, or guard them with torch.compiler.is_compiling(); "
    f"{_LEAF_HINT}."
)

_SCRIPTED_REMEDY = f"Use the module that it was made from, before torch.jit.script or torch.jit.trace{_SCRIPTED_HINT}."
_ERROR_REMEDY = (
    "If model(*inputs) raises this error too, the inputs are not what the module expects: give others. If it runs, "
    f"tracing cannot follow this line: rewrite it with plain torch operations, {_LEAF_HINT}."
)
_TAKEN_REMEDY = (  # torch 2.13
    "torch.export puts the model's parts into an fx.GraphModule, whose own attributes hide those of the same name, "
    "such as graph, code and meta: give the attribute of the model another name, e.g. self.graph_encoder."
)
_LOST_REMEDY = (
    "Tracing lost where a tensor comes from, as it does with .data and copy.deepcopy: use .detach() and "
    f"torch.func.functional_call in their place, {_LEAF_HINT}."
)
_DERIVATIVE_REMEDY = (
    "Take the derivative with torch.func.grad, vjp or jacrev, which return it, in place of torch.autograd.grad, "
    f".backward() and requires_grad_(); {_LEAF_HINT}."
)
_NO_STAND_IN_REMEDY = (
    "Derivatives are taken of tensors only, and here a stand-in takes their place: capture the model with "
    f"prepbench.capture, or pass inputs=[...], so that there are tensors; {_LEAF_HINT}."
)
_FORWARD_MODE = "derivatives in forward mode (torch.func.jvp, jacfwd, hessian)"
FORWARD_MODE = Reason(
    UNSUPPORTED,
    f"Tracing follows {_FORWARD_MODE} only in part: use vjp, or jacrev for each row under torch.vmap, {_LEAF_HINT}.",
    types=("Exception",),
)
FORWARD_MODE_SIZES_REMEDY = (
    f"Tracing {_FORWARD_MODE} fixes sizes: use vjp, or jacrev for each row under torch.vmap, or make this axis static "
    f"in the dynamic axes, {_LEAF_HINT}."
)
_ARGUMENT_REMEDY = (
    "A call of a graph takes tensors, numbers, texts, None and containers of them. Leave this argument out of the "
    "samples and give it in a function around the model, which forward_fn= of compile_model takes, too: "
    "lambda model, args, kwargs: model(*args, dtype=torch.float32, **kwargs)."
)
TABLE_REMEDY = (
    "A dict, list or set of Python's is asked with a size, or text is made of one: put the values into a tensor, which "
    "a size can index (torch.tensor([...])[x.shape[0]]), compute in each call what is kept for each size, compare "
    "sizes as numbers, or make this axis static in the dynamic axes and capture once for each size, "
    f"{_LEAF_HINT}."
)
_DIFFERS_REMEDY = (
    "The graph was traced on one sample and does not fit the one named here, and no line was found that asks for what "
    "differs. Capture the two samples apart and compare the graphs; give only samples that take the same way; "
    f"{_LEAF_HINT}."
)
WRITTEN_REMEDY = (
    "forward writes into {place}, which is no state of a graph: keep the tensor in a buffer of a module "
    f"(self.register_buffer) and write into that, or let forward take and return it; {_LEAF_HINT}."
)
_DETACHED_REMEDY = (
    "Leave out detach() between the inputs of torch.autograd.grad and what it derives (call it on a result that is not "
    "derived any more), or leave out create_graph=True where no second derivative follows, "
    f"{_LEAF_HINT}."
)
_NUMBER_CODE = r"\.item\(|\.tolist\(|\bfloat\(|\bint\(|\bround\(|\bcomplex\(|\bmath\."
_NO_GRADIENT = "does not require grad"
_DATA_TYPES = (
    "GuardOnDataDependentSymNode",
    "PendingUnbackedSymbolNotFound",
    "DataDependentOutputException",
)

# The first reason that matches wins, so the specific ones come first.
REASONS = (
    # before all others, because its message quotes what the graph raised
    Reason(UNSUPPORTED, _DERIVATIVE_REMEDY, types=("WrongProgram",), message=_NO_GRADIENT),
    Reason(DIFFERS, _DIFFERS_REMEDY, types=("WrongProgram",)),
    Reason(UNSUPPORTED, _DERIVATIVE_REMEDY, message=r"torch\.autograd\.grad|\.backward\(\)|requires_grad_\(\)"),
    Reason(UNSUPPORTED, _DETACHED_REMEDY, message=r"^a derivative that is derived again goes through detach"),
    Reason(UNSUPPORTED, _NO_STAND_IN_REMEDY, message=r"passed to transform API must be|to only contain Tensors, got"),
    Reason(SIGNATURE, _ARGUMENT_REMEDY, types=("ValueError",), message=r"^Unsupported input type"),
    Reason(SHAPE, TABLE_REMEDY, types=("TypeError",), message=r"unhashable type: .*Sym(Int|Float|Bool)"),
    # the text of a symbol, whose number is left out here
    Reason(SHAPE, TABLE_REMEDY, types=("KeyError",), message=r"^'s'$"),
    Reason(SHAPE, TABLE_REMEDY, types=("ValueError",), message=r"^(invalid literal for int|could not convert).*: 's'$"),
    Reason(NUMPY, _NUMPY_REMEDY, code=r"\.numpy\(|\bnp\.|\bnumpy\.", message=r"numpy|array|Proxy|Tensor|Fake|fake"),
    Reason(NUMPY, _NUMPY_REMEDY, message=r"numpy\(\)|to numpy|numpy (array|conversion)|__array__"),
    Reason(DATA_SHAPE, _DATA_SHAPE_REMEDY, types=("DynamicOutputShapeException",)),
    Reason(NUMBER, _NUMBER_REMEDY, types=_DATA_TYPES, code=_NUMBER_CODE),
    Reason(NUMBER, _NUMBER_REMEDY, message=r"Could not extract specialized (integer|float)"),
    # a symbol is not a key of the table, which has the number
    Reason(NUMBER, _NUMBER_REMEDY, types=("KeyError",), code=_NUMBER_CODE),
    Reason(UNSUPPORTED, _TAKEN_REMEDY, message="references nonexistent attribute"),
    Reason(UNSUPPORTED, _LOST_REMEDY, message="data pointer", code=r"\bdeepcopy\(|\bcopy\.copy\("),
    Reason(UNSUPPORTED, _LOST_REMEDY, message=r"fake tensor in the exported program|view functorch tensor"),
    Reason(BRANCH, _BRANCH_REMEDY, types=_DATA_TYPES),
    Reason(BRANCH, _BRANCH_REMEDY, message=r"[Dd]ata[- ]dependent (branch|control flow|expression|jump|assert)"),
    Reason(BRANCH, _BRANCH_REMEDY, gb_type=r"[Dd]ata[- ]dependent (branching|jump|assert)"),
    Reason(NUMBER, _NUMBER_REMEDY, gb_type=r"Tensor\.(item|tolist)|as_python_constant|scalar"),
    Reason(DATA_SHAPE, _DATA_SHAPE_REMEDY, gb_type=r"[Dd]ynamic (shape|slicing|output)|data[- ]dependent operator"),
    Reason(GRAPH_BREAK, _RECURRENT_REMEDY, gb_type="wrap RNN, GRU"),
    Reason(
        BRANCH, _INPUTS_HINT + _BRANCH_REMEDY, message=r"used as inputs to control flow|bool of|bool value of Tensor"
    ),
    Reason(
        ITERATION,
        _ITERATION_REMEDY,
        message=r"cannot be iterated|[Ii]teration over a 0-d|iter\(\) returned non-iterator",
    ),
    Reason(ITERATION, _ITERATION_REMEDY, message=r"not iterable|[Cc]annot unpack|unpack.*\bProxy\b|iterat"),
    Reason(NUMBER, _NUMBER_REMEDY, message=r"Python (number|value) from a tensor"),
    Reason(MUTATION, _MUTATION_REMEDY, message=r"does not support item (assignment|deletion)"),
    Reason(MUTATION, _MUTATION_REMEDY, message=r"was assigned during export|[Mm]utat(ing|ed|ion)|in-?place"),
    Reason(MUTATION, _MUTATION_REMEDY, types=("SpecViolationError", "UnsupportedMutationAliasingException")),
    Reason(MUTATION, _MUTATION_REMEDY, types=("UntracedTensor",), message="reached this operation"),
    Reason(SHAPE, SIZES_DECIDE_REMEDY, types=("SizesDecide",)),
    Reason(NUMBER, _NUMBERS_DECIDE_REMEDY, types=("NumbersDecide",)),
    Reason(SHAPE, _SHAPE_REMEDY, types=("ConstraintViolationError",)),
    Reason(SHAPE, _SHAPE_REMEDY, message=r"0/1 speciali|specializ(ed|ation)|Constraints violated|marked .* as dynamic"),
    Reason(
        NUMBER,
        _INPUTS_HINT + _NUMBER_REMEDY,
        message=r"'len' is not supported in symbolic|len\(\)|__len__|must be real number, not (\w*Proxy|Tensor)|"
        r"cannot be interpreted as an integer|(int|float|complex)\(\) argument must be",
    ),
    Reason(
        SIGNATURE,
        "Pass inputs=[...] so that forward is called the way your program calls it, instead of by its bare signature.",
        message=r"co_varnames is too small|missing \d+ required (positional|keyword-only)|unexpected keyword argument",
    ),
    # errors of the user's own code while dynamo ran it on fake tensors
    Reason(ERROR, _ERROR_REMEDY, message=r"making fake tensor call", types=("TorchRuntimeError",)),
    Reason(NO_FAKE, _NO_FAKE_REMEDY, types=("UnsupportedOperatorException", "MissingOpProfile")),
    Reason(
        NO_FAKE,
        _NO_FAKE_REMEDY,
        message=r"'Meta' backend|[Mm]eta tensor|[Ff]ake (impl|kernel)|data pointer|register_fake|FakeTensor",
    ),
    Reason(SIDE_EFFECT, _SIDE_EFFECT_REMEDY, message=r"print|logging|side effect|forbidden callable|time\.(time|perf)"),
    Reason(SIDE_EFFECT, _SIDE_EFFECT_REMEDY, gb_type=r"print|logg|side effect|reorderable|builtin.*(open|input)"),
    Reason(
        PYTHON_CALL,
        _INPUTS_HINT + "Otherwise wrap the function with torch.fx.wrap, or use the torch function of the same meaning.",
        message=r"\bProxy\b|\b_SeenAsTensor\b|symbolically traced",
    ),
    Reason(
        UNSUPPORTED, _SCRIPTED_REMEDY, types=("NotImplementedError",), message="scripted module runs outside Python"
    ),
    Reason(
        OUTPUT,
        "Pass inputs=[...], with which objects of any class may hold tensors; otherwise return and pass on tensors, "
        "numbers, None, and tuples, lists and dicts of these.",
        types=("NotImplementedError",),
        message="^argument of type:",
    ),
    Reason(
        UNSUPPORTED,
        f"Use supported torch operators in place of this one, {_LEAF_HINT}.",
        types=("SerializeError", "OperatorIssue", "NotImplementedError", "UnsupportedOperator"),
    ),
    Reason(
        OUTPUT,
        "Return tensors, numbers, None, or tuples, lists and dicts of these; "
        "register other classes with torch.utils._pytree.register_pytree_node or as a dataclass.",
        message=r"not a valid type for a Node|output.*(unsupported|pytree|type)|Unsupported output|not registered",
    ),
    Reason(
        GRAPH_BREAK,
        f"Rewrite this line with plain torch operations and control flow on shapes only, {_LEAF_HINT}.",
        types=("Unsupported", "TorchRuntimeError", "UncapturedHigherOrderOpError", "UserError"),
    ),
    Reason(ERROR, _ERROR_REMEDY),
)
