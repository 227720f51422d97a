"""The reasons why a module cannot be captured, with patterns to recognise them and remedies.

The texts are stable: the same model fails with the same words, so that documents can be compared.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


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
TABLE_REMEDY = (
    "A dict, list or set of Python's is asked with a size: put the values into a tensor, which a size can index "
    "(torch.tensor([...])[x.shape[0]]), or make this axis static in the dynamic axes and capture once for each size, "
    f"{_LEAF_HINT}."
)
_DIFFERS_REMEDY = (
    "The graph was traced on one sample and does not fit the one named here, and no line was found that asks for what "
    "differs. Capture the two samples apart and compare the graphs; give only samples that take the same way; "
    f"{_LEAF_HINT}."
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
    Reason(SHAPE, TABLE_REMEDY, types=("TypeError",), message=r"unhashable type: .*Sym(Int|Float|Bool)"),
    Reason(NUMPY, _NUMPY_REMEDY, code=r"\.numpy\(|\bnp\.|\bnumpy\.", message=r"numpy|array|Proxy|Tensor|Fake|fake"),
    Reason(NUMPY, _NUMPY_REMEDY, message=r"numpy\(\)|to numpy|numpy (array|conversion)|__array__"),
    Reason(DATA_SHAPE, _DATA_SHAPE_REMEDY, types=("DynamicOutputShapeException",)),
    Reason(NUMBER, _NUMBER_REMEDY, types=_DATA_TYPES, code=_NUMBER_CODE),
    Reason(NUMBER, _NUMBER_REMEDY, message=r"Could not extract specialized (integer|float)"),
    # a symbol is not a key of the table, which has the number
    Reason(NUMBER, _NUMBER_REMEDY, types=("KeyError",), code=_NUMBER_CODE),
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
