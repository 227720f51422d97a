"""Check a saved program before torch parses it.

torch trusts its input: texts become generated Python, operators are looked up as attributes of ``torch``, and
structures import modules. Here every text must have the kind that the schema requires at its place. Data that running
does not need (stack traces, module stacks) is dropped when a program is saved and refused when it is read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat.operators import OpOverload, schema_of
from prepbench.capture.sizes.size_formulas import MAX_NUMBER, SYMBOL, parsed_size
from prepbench.errors import ArtifactError

MAX_DEPTH = 60
NAMESPACES = frozenset({"aten", "prims", "quantized_decomposed", "prepbench"})
"""Operators of torch and of prepbench. Others are third-party code."""

_OPERATOR = re.compile(r"torch\.ops\.(\w+)\.(\w+)(\.\w+)?")
_LEAVES = "prepbench_leaf"
_LEAF = re.compile(rf"torch\.ops\.({_LEAVES}\d*\.\w+)\.default")
_DENIED = frozenset({"aten.from_file"})
"""Operators that read or write files."""

_PYTHON = re.compile(
    r"_operator\.(getitem|add|sub|mul|truediv|floordiv|mod|pow|neg|pos|abs|and_|or_|xor|not_|invert|lshift|rshift"
    r"|eq|ne|lt|le|gt|ge|index|is_|is_not)|math\.(ceil|floor|trunc|sqrt)"
    r"|torch\.(sym_\w+|_sym_sqrt)"
    r"|torch\._functorch\.predispatch\.(_vmap_(in|de)crement_nesting|_(add|remove)_batch_dim|lazy_load_decompositions)"
)
_HIGHER_ORDER = frozenset(
    {"cond", "while_loop", "scan", "wrap_with_set_grad_enabled", "wrap_with_autocast", "map_impl"}
)
_NAME = re.compile(r"([A-Za-z_]\w{0,1000})?", re.ASCII)  # arguments of higher-order operators have no names
_PATH = re.compile(r"(?!.*\.?__\w+__)[^\"'\\\x00-\x1f\x7f\u2028\u2029]{0,2000}", re.DOTALL)
_STRUCTURES = ("builtins.tuple", "builtins.list", "builtins.dict", None)


def stripped(content: Any) -> Any:
    """Return the program without data that running does not need: the origin of its operations."""
    if isinstance(content, dict):
        return {key: {} if key == "metadata" else stripped(value) for key, value in content.items()}
    return [stripped(value) for value in content] if isinstance(content, list) else content


def check_program(content: Any, *, allow_code: bool = False, leaves: Collection[str] = ()) -> None:
    """Check the JSON of a program against what prepbench writes.

    Args:
        content: the parsed JSON.
        allow_code: also accept operators that others registered in this process.
        leaves: the operators of leaves that it may call, such as ``"prepbench_leaf.gate"``.

    Raises:
        ArtifactError: it asks for anything else; the message names the place.
    """
    if not isinstance(content, dict):
        raise _refused("program", "it is no object")
    _Check(allow_code, leaves).value(content, "program", "", 0)


def with_leaves(content: Any, leaves: Mapping[str, str]) -> Any:
    """Return the JSON of a checked program that calls operators of leaves by other names."""
    if isinstance(content, dict):
        return {key: with_leaves(value, leaves) for key, value in content.items()}
    if isinstance(content, list):
        return [with_leaves(value, leaves) for value in content]
    found = _LEAF.fullmatch(content) if isinstance(content, str) else None
    return content if found is None else f"torch.ops.{leaves[found[1]]}.default"


def leaf_operators_in(module: fx.GraphModule) -> set[str]:
    """Return the operators of leaves that a graph calls."""
    names = {f"torch.ops.{node.target}" for node in module.graph.nodes if isinstance(node.target, OpOverload)}
    return {found[1] for name in names if (found := _LEAF.fullmatch(name))}


def check_leaf_calls(module: fx.GraphModule) -> None:
    """Raise ``ValueError`` if a leaf's operator is called with the wrong arguments."""
    for node in module.graph.nodes:
        if not isinstance(node.target, OpOverload) or not _LEAF.fullmatch(f"torch.ops.{node.target}"):
            continue
        arguments = schema_of(node.target).arguments
        kinds = [str(argument.type) for argument in arguments]
        if node.kwargs or len(node.args) != len(kinds):
            raise ValueError(f"{node.name} calls a leaf with {len(node.args)} arguments, and it takes {len(kinds)}.")
        for value, kind in zip(node.args, kinds, strict=True):
            known = value.meta.get("val") if isinstance(value, fx.Node) else value
            if isinstance(known, torch.Tensor) != (kind == "Tensor"):
                raise ValueError(f"{node.name} calls a leaf with arguments of other kinds than it takes.")


class _Check:
    """Walks the JSON; the key of a text decides its allowed values."""

    def __init__(self, allow_code: bool, leaves: Collection[str]) -> None:
        self._allow_code = allow_code
        self._leaves = leaves
        self._texts: Mapping[str, Callable[[str, str], None]] = {
            "target": self._operator,
            "as_operator": self._operator,
            "expr_str": _check_size,
            "in_spec": _check_structure,
            "out_spec": _check_structure,
            "as_string": _check_any,
            "as_strings": _check_any,
            "type": _matching(re.compile(r"[a-z]{1,20}")),
            "verifiers": _matching(re.compile(r"[A-Z]{1,20}")),
            "torch_version": _matching(re.compile(r"[\w.+-]{1,60}")),
            **dict.fromkeys(("name", "as_name", "forward_arg_names", "user_input_name"), _matching(_NAME)),
            **dict.fromkeys(
                ("fqn", "parameter_name", "buffer_name", "tensor_constant_name", "buffer_to_mutate"), _matching(_PATH)
            ),
        }

    def value(self, value: Any, where: str, key: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise _refused(where, f"it nests more than {MAX_DEPTH} deep")
        if isinstance(value, dict):
            self._object(value, where, key, depth)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                self.value(item, f"{where}[{index}]", key, depth + 1)
        elif isinstance(value, str):
            check = self._texts.get(key)
            if value not in ("Infinity", "-Infinity", "NaN") or not key.startswith("as_float"):
                if check is None:
                    raise _refused(where, "no text is expected there")
                check(value, where)
        elif type(value) is int and abs(value) > MAX_NUMBER:
            raise _refused(where, "the number is too large")

    def _object(self, value: dict[str, Any], where: str, key: str, depth: int) -> None:
        if value and key in ("metadata", "custom_obj_values", "treespec_namedtuple_fields"):
            raise _refused(where, "nothing is expected there")
        names = _KEYS.get(key)
        for inner, item in value.items():
            if names is not None and not names.fullmatch(inner):
                raise _refused(where, f"{inner[:40]!r} is no name")
            if inner in _FORBIDDEN and item:
                raise _refused(f"{where}.{inner}", "nothing is expected there")
            # in a table of names, the keys are names, and the values have keys of their own
            self.value(item, f"{where}.{inner[:60]}", "" if names is not None else inner, depth + 1)

    def _operator(self, text: str, where: str) -> None:
        found = _OPERATOR.fullmatch(text)
        if found is None:
            if not _PYTHON.fullmatch(text):
                raise _refused(where, f"{text[:80]!r} is no operator")
            return
        namespace, name = found[1], found[2]
        if namespace == "higher_order":
            if name not in _HIGHER_ORDER:
                raise _refused(where, f"{text!r} is not an operator that prepbench saves")
        elif namespace.startswith(_LEAVES):
            # an unlisted one would belong to another model in this process
            if f"{namespace}.{name}" not in self._leaves or found[3] != ".default":
                raise _refused(where, f"{text[:80]!r} is no leaf that the manifest lists")
        elif f"{namespace}.{name}" in _DENIED:
            raise _refused(where, f"{text!r} reads or writes files")
        elif namespace not in NAMESPACES and not self._allow_code:
            raise ArtifactError(
                f"{where}: the program calls the operator {text}, which is code that somebody registered in this "
                "process. If you trust the model and the operator, load it with load_compiled(path, allow_code=True)."
            )


_KEYS = {
    **dict.fromkeys(("tensor_values", "sym_int_values", "sym_bool_values", "sym_float_values"), _NAME),
    "range_constraints": SYMBOL,
    "opset_version": re.compile(r"[a-z_]{1,40}"),
    "as_string_to_argument": _NAME,
}
_FORBIDDEN = frozenset({"guards_code", "as_custom_obj", "custom_obj", "token", "class_fqn", "custom_obj_values"})


def _matching(pattern: re.Pattern[str]) -> Callable[[str, str], None]:
    def check(text: str, where: str) -> None:
        if not pattern.fullmatch(text):
            raise _refused(where, f"{text[:60]!r} is no name")

    return check


def _check_any(text: str, where: str) -> None:
    if len(text) > 100_000:
        raise _refused(where, "the text is too long")


def _check_size(text: str, where: str) -> None:
    parsed_size(text, where)


def _check_structure(text: str, where: str) -> None:
    """Check a pytree of tuples, lists and dicts; other types would be imported."""
    try:
        version, tree = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise _refused(where, "it is no structure") from error
    if type(version) is not int:
        raise _refused(where, "it is no structure")
    _check_tree(tree, where, 0)


def _check_tree(tree: Any, where: str, depth: int) -> None:
    if depth > MAX_DEPTH or not isinstance(tree, dict) or set(tree) != {"type", "context", "children_spec"}:
        raise _refused(where, "it is no structure")
    kind, context, children = tree["type"], tree["context"], tree["children_spec"]
    if kind not in _STRUCTURES or not isinstance(children, list):
        raise _refused(where, f"{str(kind)[:60]!r} is no structure that prepbench saves")
    try:
        keys = json.loads(context) if context is not None else None
    except (ValueError, TypeError, RecursionError) as error:
        raise _refused(where, "it is no structure") from error
    if keys is not None and not (isinstance(keys, list) and all(type(key) in (str, int, bool) for key in keys)):
        raise _refused(where, "keys of a structure are texts and numbers")
    for child in children:
        _check_tree(child, where, depth + 1)


def _refused(where: str, why: str) -> ArtifactError:
    return ArtifactError(
        f"{where} is not what prepbench writes: {why}. The file was changed or damaged. Compile and save the model "
        "again."
    )
