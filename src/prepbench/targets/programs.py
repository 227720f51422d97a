"""Exported programs as files, and their state between calls."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat.operators import OpOverload, register_quantized_operators, schema_of
from prepbench._torch_compat.programs import program_from_json, program_to_json, without_example_inputs
from prepbench.capture.sizes.size_formulas import MAX_NUMBER, SYMBOL, parsed_size
from prepbench.errors import ArtifactError, TargetError, sentence
from prepbench.internal_errors import raise_if_internal
from prepbench.quantize.layer_nodes import nodes_reached
from prepbench.storage import write_file
from prepbench.targets.base import NO_TRUST, Trust

GRAPH, WEIGHTS = "program.json", "program.safetensors"


def save_program(program: torch.export.ExportedProgram, folder: Path) -> None:
    """Write ``program`` as JSON and safetensors: ``program.json`` and ``program.safetensors``.

    Raises:
        ArtifactError: it has something that JSON cannot hold.
        StorageError: the disk is full or read-only.
    """
    import safetensors.torch

    tables = {"state": program.state_dict, "constants": program.constants}
    _check_paths([*program.state_dict, *program.constants])
    data: dict[str, torch.Tensor] = {}
    places: dict[Any, str] = {}
    index = {name: _described(table, data, places) for name, table in tables.items()}
    try:
        graph = stripped(program_to_json(without_example_inputs(program)))
    except Exception as error:
        raise_if_internal(error)
        raise ArtifactError(
            f"The program cannot be saved, because torch has no form for a part of it in a file: {sentence(error)} "
            "Use the model in the process that compiled it, or choose another target."
        ) from error
    graph["guards_code"] = []  # the call's own specification checks its arguments
    check_program(graph, allow_code=True, leaves=leaf_operators_in(program.graph_module))
    write_file(folder / WEIGHTS, safetensors.torch.save(data))
    write_file(folder / GRAPH, json.dumps({"program": graph, **index}))


def _check_paths(names: Iterable[str]) -> None:
    for name in names:
        if not _is_path(name):
            raise ArtifactError(
                f"The tensor {name[:200]!r} cannot be saved under this name: special names of Python, control "
                "characters and more than 2,000 characters are refused in files. Rename the module that has it in the "
                "model and compile again, or choose another target."
            )


def load_program(folder: Path, trust: Trust = NO_TRUST) -> torch.export.ExportedProgram:
    """Read the files that :func:`save_program` wrote.

    Args:
        folder: with both files.
        trust: what the program may do; if it allows code, call operators that others registered in this process.

    Raises:
        ArtifactError: the files hold anything else; nothing of them was run.
    """
    content, data = _read(folder)
    check_program(content["program"], allow_code=trust.allow_code, leaves=trust.leaves)
    register_quantized_operators()
    try:
        tables = [_restored(content[name], data) for name in ("state", "constants")]
        program = program_from_json(with_leaves(content["program"], trust.leaves), *tables)
        check_leaf_calls(program.graph_module)
        return program
    except ArtifactError:
        raise
    except Exception as error:
        raise _damaged(folder / GRAPH, error) from error


def _described(
    table: dict[str, Any], data: dict[str, torch.Tensor], places: dict[Any, str]
) -> dict[str, dict[str, Any]]:
    """Return the tensor of each name; one that several names share is written once."""
    described = {}
    for name, tensor in table.items():
        if not isinstance(tensor, torch.Tensor):
            raise ArtifactError(
                f"{name} is a {type(tensor).__name__}, which cannot be saved without pickle. Pass it as an input, or "
                "make it a tensor."
            )
        plain = tensor.detach()
        identity = (
            plain.untyped_storage().data_ptr(),
            plain.storage_offset(),
            plain.shape,
            plain.stride(),
            plain.dtype,
        )
        key = places.setdefault(identity if plain.numel() else (name, len(places)), f"t{len(places)}")
        data.setdefault(key, plain.cpu().contiguous())
        described[name] = {
            "tensor": key,
            "parameter": isinstance(tensor, torch.nn.Parameter),
            "requires_grad": tensor.requires_grad,
            "stride": None if plain.is_contiguous() or not _is_dense(plain) else list(plain.stride()),
        }
    return described


def _is_dense(tensor: torch.Tensor) -> bool:
    """Return whether its strides are a permutation of contiguous ones, such as channels last."""
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda dim: (-strides[dim], -tensor.shape[dim]))
    return tensor.permute(order).is_contiguous()


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    import safetensors.torch

    path = folder / GRAPH
    try:
        content = json.loads(path.read_bytes())
        path = folder / WEIGHTS
        data = safetensors.torch.load_file(path)
    except Exception as error:  # safetensors has an exception type of its own
        raise _damaged(path, error) from error
    if not isinstance(content, dict) or set(content) != {"program", "state", "constants"}:
        raise _damaged(folder / GRAPH, ValueError("it is not of the form that prepbench writes"))
    return content, data


def _restored(table: Any, data: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    restored = {}
    for name, row in table.items():
        tensor = data[row["tensor"]]
        if row["stride"] is not None:
            tensor = _with_stride(tensor, row["stride"])
        if row["parameter"]:
            tensor = torch.nn.Parameter(tensor, requires_grad=bool(row["requires_grad"]))
        restored[name] = tensor
    return restored


def _with_stride(tensor: torch.Tensor, stride: list[int]) -> torch.Tensor:
    if len(stride) != tensor.dim() or not all(type(step) is int and step > 0 for step in stride):
        raise ValueError(f"strides {stride} do not fit the shape {tuple(tensor.shape)}")
    strided = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device="meta")
    if not _is_dense(strided):
        raise ValueError(f"strides {stride} do not fit the shape {tuple(tensor.shape)}")
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype).copy_(tensor)


def _damaged(path: Path, error: Exception) -> ArtifactError:
    return ArtifactError(f"{path} is damaged: {sentence(error)} Copy the folder again, or compile and save again.")


_SIZES = (torch.ops.aten.sym_size.int, torch.ops.aten.sym_numel.default, torch.ops.aten.sym_stride.int)


def written_buffers(program: torch.export.ExportedProgram) -> set[str]:
    """Return the placeholders of buffers that the program changes in place: its state between calls."""
    signature = program.graph_signature
    changed = set(signature.buffers_to_mutate.values())
    written = {name for name, buffer in signature.inputs_to_buffers.items() if buffer in changed}
    for node in program.graph.nodes:
        if not isinstance(node.target, OpOverload):
            continue
        for argument, value in zip(schema_of(node.target).arguments, node.args, strict=False):
            if argument.is_write and isinstance(value, fx.Node):
                written.add(_storage_of(value).name)
        if is_batch_norm_in_training(node):  # its schema does not say that it writes
            written |= {value.name for value in node.args[3:5] if isinstance(value, fx.Node)}
    return written & set(signature.inputs_to_buffers)


def outputs_computed_from_floats(program: torch.export.ExportedProgram) -> list[bool]:
    """Return for each output whether floating-point numbers decide it: only then may rounding change integers."""
    rounded: set[fx.Node] = set()
    for node in program.graph.nodes:  # in the order in which they run
        value = node.meta.get("val")
        is_float = isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())
        # a size does not depend on a tensor's values
        if is_float or (node.target not in _SIZES and not rounded.isdisjoint(node.all_input_nodes)):
            rounded.add(node)
    results = {node.name: node in rounded for node in program.graph.nodes}
    return [results.get(str(name), False) for name in program.graph_signature.user_outputs]


def is_batch_norm_in_training(node: fx.Node) -> bool:
    """Return whether a node normalises with the statistics of the batch and updates the running ones."""
    return node.target is torch.ops.aten.batch_norm.default and node.args[5] is True and node.args[3] is not None


def is_repeatable(program: torch.export.ExportedProgram) -> bool:
    """Return whether repeated runs give the same result: no state, and no random numbers."""
    return not written_buffers(program) and not any(map(_is_random, program.graph.nodes))


def _is_random(node: fx.Node) -> bool:
    """Return whether a node draws random numbers; attention and dropout do so only if they drop something."""
    if not isinstance(node.target, OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded not in node.target.tags:
        return False
    given = dict(zip((argument.name for argument in schema_of(node.target).arguments), node.args, strict=False))
    given |= node.kwargs
    if node.target is torch.ops.aten.scaled_dot_product_attention.default:
        return bool(given.get("dropout_p", 0.0) != 0)
    return not (node.target is torch.ops.aten.dropout.default and given.get("train") is False)


def _storage_of(node: fx.Node) -> fx.Node:
    """Return the node that owns the memory of which ``node`` is a view or in-place result."""
    while isinstance(node.target, OpOverload) and node.args and isinstance(node.args[0], fx.Node):
        if not any(result.alias_info is not None for result in schema_of(node.target).returns):
            break
        node = node.args[0]
    return node


# Checks for models that change their buffers in each call, which ONNX files and constant-folded code cannot.


Program = torch.export.ExportedProgram


def check_stateless(program: Program) -> None:
    """Raise ``TargetError`` for batch norms in training mode, and for buffers as :func:`check_kept_state` does."""
    for node in program.graph.nodes:
        if is_batch_norm_in_training(node):
            stack = list((node.meta.get("nn_module_stack") or {}).values())
            raise TargetError(
                f"{stack[-1][0] if stack else node.name} is a batch norm in training mode: it updates its statistics "
                "at each call, and the target keeps nothing between calls. Compile in eval mode (leave out "
                "skip_eval_set_mode), call eval() on this module, or choose InductorDeployment()."
            )
    check_kept_state(program)


def check_kept_state(program: Program) -> None:
    """Raise ``TargetError`` when an output depends on a buffer that the model changes in each call."""
    signature = program.graph_signature
    nodes = {node.name: node for node in program.graph.nodes}
    needed = nodes_reached([nodes[name] for name in signature.user_outputs], _sources)
    state = sorted({signature.inputs_to_buffers[name] for name in written_buffers(program) if nodes[name] in needed})
    if state:
        raise TargetError(
            f"The model changes its buffers at each call and its outputs depend on them: {', '.join(state)}. The "
            "target keeps nothing between calls. Make them arguments and results of forward, or "
            "choose EagerDeployment()."
        )


def _sources(node: fx.Node) -> list[fx.Node]:
    # normalised with the statistics of the call, a batch norm only writes to those that it keeps
    kept = node.args[3:5] if is_batch_norm_in_training(node) else ()
    return [each for each in node.all_input_nodes if each not in kept]


def is_complex(node: fx.Node) -> bool:
    """Return whether a node is a complex tensor."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype.is_complex


# Tensors whose memory other libraries can read.


def plain_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor itself if its memory is readable as it is: on the CPU, contiguous, without gradient, and no
    negated or conjugated view. Else a copy that is.
    """
    # the common case; the check takes half as long as an unneeded conversion
    if (
        tensor.is_cpu
        and tensor.is_contiguous()
        and not (tensor.requires_grad or tensor.is_neg() or (tensor.is_complex() and tensor.is_conj()))
    ):
        return tensor
    return tensor.detach().cpu().contiguous().resolve_conj().resolve_neg()


# Check a saved program before torch parses it.


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
_NAME = re.compile(r"([A-Za-z_]\w{0,3000})?", re.ASCII)  # arguments of higher-order operators have no names
_PATH = re.compile(r"[^\"\\\x00-\x1f\x7f]{0,2000}")
_SPECIAL = re.compile(r"__\w+__")
_STRUCTURES = ("builtins.tuple", "builtins.list", "builtins.dict", None)


# torch trusts its input: texts become generated Python, operators are looked up as attributes of `torch`, and
# structures import modules. Here every text must have the kind that the schema requires at its place. Data that running
# does not need (stack traces, module stacks) is dropped when a program is saved and refused when it is read.


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
                ("fqn", "parameter_name", "buffer_name", "tensor_constant_name", "buffer_to_mutate"), _check_path
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


def _check_path(text: str, where: str) -> None:
    if not _is_path(text):
        raise _refused(where, f"{text[:60]!r} is no name")


def _is_path(text: str) -> bool:
    """Return whether a text is the name of a tensor.

    torch writes each part between double quotes, or after a dot where it is an identifier, which Python reads in its
    normal form.
    """
    parts = (unicodedata.normalize("NFKC", part) for part in text.split("."))
    return _PATH.fullmatch(text) is not None and not any(map(_SPECIAL.fullmatch, parts))


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
