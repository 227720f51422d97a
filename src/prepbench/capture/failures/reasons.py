"""Why a module could not be captured: an exception becomes a :class:`Failure` that a person can act on.

Tracing, exporting and compiling fail with dozens of exception types whose messages quote addresses, colours and
internals. This module maps all of them onto a short list of reasons, finds the user's line, and says what to change.
The texts are stable: the same model fails with the same words, so that documents can be compared.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from prepbench.document.model import Failure
from prepbench.running.source_lines import code_frame, forward_place, place_in_stack_trace, source_line, user_place

MESSAGE_LINES = 3
MESSAGE_LENGTH = 400


@dataclass(frozen=True)
class _Reason:
    """One kind of failure: how to recognise it (any given condition must hold) and what to do about it."""

    kind: str
    remedy: str
    types: tuple[str, ...] = ()
    message: str = ""
    code: str = ""
    gb_type: str = ""

    def matches(self, type_names: frozenset[str], message: str, code: str, gb_type: str) -> bool:
        if self.types and not type_names.intersection(self.types):
            return False
        if self.message and not re.search(self.message, message):
            return False
        if self.code and not re.search(self.code, code):
            return False
        return not self.gb_type or bool(re.search(self.gb_type, gb_type))


_INPUTS_HINT = "If the value comes from a shape, pass inputs=[...] so that shapes are known while tracing. "
_LEAF_HINT = "or keep the module as a leaf (leaf_modules=, RobustTracer.register_leaf)"

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

_BRANCH_REMEDY = (
    "Compute both sides and choose with torch.where, or use torch.cond, so that no Python `if` depends on tensor "
    "values; "
    f"{_LEAF_HINT}."
)
_NUMBER_REMEDY = (
    f"Keep the value as a tensor (drop .item(), float(), int(), .tolist()), or compute it from the shape; {_LEAF_HINT}."
)
_NUMPY_REMEDY = f"Replace the numpy call with the torch function of the same name; {_LEAF_HINT}."
_ITERATION_REMEDY = (
    "Use x.unbind(0), or index with a known length, or pass inputs=[...] so that the length is known while tracing."
)
_SHAPE_REMEDY = (
    "Keep sizes symbolic: use x.shape[i] directly in torch calls instead of int(...) or range(...), "
    "or make this axis static in the dynamic axes."
)
_SIZES_DECIDE_REMEDY = (
    "Give samples whose sizes all take the same way at this line and capture once for each way, compute both ways and "
    f"choose with torch.where, {_LEAF_HINT}."
)
_DATA_SHAPE_REMEDY = (
    "The size of this result depends on tensor values (nonzero, unique, boolean mask): use torch.where or a mask of "
    f"fixed size; {_LEAF_HINT}."
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

_ERROR_REMEDY = (
    "The module raises this error when it is called this way: check that inputs=[...] are what it expects and that "
    "model(*inputs) runs on its own."
)
_NUMBER_CODE = r"\.item\(|\.tolist\(|\bfloat\(|\bint\(|\bround\(|\bcomplex\(|\bmath\."
_DATA_TYPES = (
    "GuardOnDataDependentSymNode",
    "PendingUnbackedSymbolNotFound",
    "DataDependentOutputException",
)

# The first reason that matches wins, so the specific ones come first.
_REASONS = (
    _Reason(NUMPY, _NUMPY_REMEDY, code=r"\.numpy\(|\bnp\.|\bnumpy\.", message=r"numpy|array|Proxy|Tensor|Fake|fake"),
    _Reason(NUMPY, _NUMPY_REMEDY, message=r"numpy\(\)|to numpy|numpy (array|conversion)|__array__"),
    _Reason(DATA_SHAPE, _DATA_SHAPE_REMEDY, types=("DynamicOutputShapeException",)),
    _Reason(NUMBER, _NUMBER_REMEDY, types=_DATA_TYPES, code=_NUMBER_CODE),
    _Reason(BRANCH, _BRANCH_REMEDY, types=_DATA_TYPES),
    _Reason(BRANCH, _BRANCH_REMEDY, message=r"[Dd]ata[- ]dependent (branch|control flow|expression|jump|assert)"),
    _Reason(BRANCH, _BRANCH_REMEDY, gb_type=r"[Dd]ata[- ]dependent (branching|jump|assert)"),
    _Reason(NUMBER, _NUMBER_REMEDY, gb_type=r"Tensor\.(item|tolist)|as_python_constant|scalar"),
    _Reason(DATA_SHAPE, _DATA_SHAPE_REMEDY, gb_type=r"[Dd]ynamic (shape|slicing|output)|data[- ]dependent operator"),
    _Reason(
        BRANCH, _INPUTS_HINT + _BRANCH_REMEDY, message=r"used as inputs to control flow|bool of|bool value of Tensor"
    ),
    _Reason(
        ITERATION,
        _ITERATION_REMEDY,
        message=r"cannot be iterated|[Ii]teration over a 0-d|iter\(\) returned non-iterator",
    ),
    _Reason(ITERATION, _ITERATION_REMEDY, message=r"not iterable|[Cc]annot unpack|unpack.*\bProxy\b|iterat"),
    _Reason(NUMBER, _NUMBER_REMEDY, message=r"Python (number|value) from a tensor"),
    _Reason(MUTATION, _MUTATION_REMEDY, message=r"does not support item (assignment|deletion)"),
    _Reason(MUTATION, _MUTATION_REMEDY, message=r"was assigned during export|[Mm]utat(ing|ed|ion)|in-?place"),
    _Reason(MUTATION, _MUTATION_REMEDY, types=("SpecViolationError", "UnsupportedMutationAliasingException")),
    _Reason(MUTATION, _MUTATION_REMEDY, types=("UntracedTensor",), message="reached this operation"),
    _Reason(SHAPE, _SIZES_DECIDE_REMEDY, types=("SizesDecide",)),
    _Reason(SHAPE, _SHAPE_REMEDY, types=("ConstraintViolationError",)),
    _Reason(
        SHAPE, _SHAPE_REMEDY, message=r"0/1 speciali|specializ(ed|ation)|Constraints violated|marked .* as dynamic"
    ),
    _Reason(
        NUMBER,
        _INPUTS_HINT + _NUMBER_REMEDY,
        message=r"'len' is not supported in symbolic|len\(\)|__len__|must be real number, not (\w*Proxy|Tensor)|"
        r"cannot be interpreted as an integer|(int|float|complex)\(\) argument must be",
    ),
    _Reason(
        SIGNATURE,
        "Pass inputs=[...] so that forward is called the way your program calls it, instead of by its bare signature.",
        message=r"co_varnames is too small|missing \d+ required (positional|keyword-only)|unexpected keyword argument",
    ),
    # what the user's own code raised while dynamo ran it on fake tensors
    _Reason(ERROR, _ERROR_REMEDY, message=r"making fake tensor call", types=("TorchRuntimeError",)),
    _Reason(NO_FAKE, _NO_FAKE_REMEDY, types=("UnsupportedOperatorException", "MissingOpProfile")),
    _Reason(
        NO_FAKE,
        _NO_FAKE_REMEDY,
        message=r"'Meta' backend|[Mm]eta tensor|[Ff]ake (impl|kernel)|data pointer|register_fake|FakeTensor",
    ),
    _Reason(
        SIDE_EFFECT, _SIDE_EFFECT_REMEDY, message=r"print|logging|side effect|forbidden callable|time\.(time|perf)"
    ),
    _Reason(SIDE_EFFECT, _SIDE_EFFECT_REMEDY, gb_type=r"print|logg|side effect|reorderable|builtin.*(open|input)"),
    _Reason(
        PYTHON_CALL,
        _INPUTS_HINT + "Otherwise wrap the function with torch.fx.wrap, or use the torch function of the same meaning.",
        message=r"\bProxy\b|symbolically traced",
    ),
    _Reason(
        UNSUPPORTED,
        f"Use supported torch operators in place of this one, {_LEAF_HINT}.",
        types=("SerializeError", "OperatorIssue", "NotImplementedError", "UnsupportedOperator"),
    ),
    _Reason(
        OUTPUT,
        "Return tensors, numbers, None, or tuples, lists and dicts of these; "
        "register other classes with torch.utils._pytree.register_pytree_node or as a dataclass.",
        message=r"not a valid type for a Node|output.*(unsupported|pytree|type)|Unsupported output|not registered",
    ),
    _Reason(
        GRAPH_BREAK,
        f"Rewrite this line with plain torch operations and control flow on shapes only, {_LEAF_HINT}.",
        types=("Unsupported", "TorchRuntimeError", "UncapturedHigherOrderOpError", "UserError"),
    ),
    _Reason(ERROR, _ERROR_REMEDY),
)


def describe_failure(
    error: BaseException, *, fqn: str, module_type: str, module: torch.nn.Module | None = None
) -> Failure:
    """Explain why capturing the module ``fqn`` raised ``error``.

    Args:
        error: what was raised, with its traceback.
        fqn: fully qualified name of the module that failed ("" is the model itself).
        module_type: its class name.
        module: the module, whose ``forward`` gives a line when the traceback has no line of the user's.

    Example:
        >>> try:
        ...     torch.fx.symbolic_trace(lambda x: x if x.sum() > 0 else -x)
        ... except torch.fx.proxy.TraceError as error:
        ...     describe_failure(error, fqn="gate", module_type="Gate").kind
        'data-dependent branch'
    """
    place = user_place(error) or (forward_place(module) if module is not None else None)
    source = source_line(*place) if place else None
    message = normalize_message(error)
    reason = _reason_of(error, message, source.code if source else "")
    frame = code_frame(*place) if place else ""
    return Failure(fqn, module_type, reason.kind, type(error).__name__, message, source, reason.remedy, frame)


def describe_node(node: torch.fx.Node, message: str, remedy: str) -> Failure:
    """An operator of an exported graph as a failure of the module that uses it."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    fqn, kind = stack[-1] if stack else ("", "")
    kind = kind if isinstance(kind, str) else kind.__name__
    place = place_in_stack_trace(node.meta.get("stack_trace"))
    source = source_line(*place) if place else None
    frame = code_frame(*place) if place else ""
    return Failure(fqn, kind.rpartition(".")[2], UNSUPPORTED, "", message, source, remedy, frame)


def normalize_message(error: BaseException) -> str:
    """The error's message in at most three lines, without addresses, colours, paths of libraries and internal state."""
    text = _without_noise(str(error))
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


def _reason_of(error: BaseException, message: str, code: str) -> _Reason:
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and cause not in chain:
        chain.append(cause)
    for link in chain if _wraps_another(error) else chain[:1]:
        names = frozenset(kind.__name__ for kind in type(link).__mro__)
        text = message if link is error else _without_noise(str(link))
        gb_type = str(getattr(link, "gb_type", "") or "")
        for reason in _REASONS[:-1]:
            if reason.matches(names, text, code, gb_type):
                return reason
    return _REASONS[-1]


def _wraps_another(error: BaseException) -> bool:
    """Whether the cause tells more than the error: torch wraps what the user's code raised."""
    return error.__cause__ is not None and type(error).__module__.startswith("torch")
