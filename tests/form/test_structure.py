"""How the package is built: what may be used where."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "src" / "prepbench"
LIBRARIES = {"torch", "torchao", "transformers", "onnxscript", "onnx_ir", "onnxruntime", "openvino", "peft"}
# private attributes of torch's objects, which no import gives away
PRIVATE_ATTRIBUTES = {
    *("_cdata", "_version", "_schema", "_opname", "_overloadname", "_maybe_evaluate_static", "_set_replacement"),
    *("_graph_module", "_graph_signature", "_example_inputs", "_module_call_graph", "_guards_code", "_state_dict"),
}


def _private_names(source: str) -> Iterator[str]:
    """``"line: name"`` for each private name of a library that is imported or looked up."""
    tree = ast.parse(source)
    imported: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [(alias.name, alias.asname or alias.name.partition(".")[0]) for alias in node.names]
            imported.update((own, full if own != full.partition(".")[0] else own) for full, own in names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [(f"{node.module}.{alias.name}", alias.asname or alias.name) for alias in node.names]
            imported.update((own, full) for full, own in names)
        else:
            continue
        yield from (f"{node.lineno}: {full}" for full, _ in names if _is_private(full))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            full = _dotted(node, imported)
            if _is_private(full) or node.attr in PRIVATE_ATTRIBUTES:
                yield f"{node.lineno}: {full or node.attr}"
        elif isinstance(node, ast.Constant) and node.value in PRIVATE_ATTRIBUTES:  # in getattr and its like
            yield f"{node.lineno}: {node.value}"


def _is_private(name: str) -> bool:
    home, *parts = name.split(".")
    is_operator = parts[:1] == ["ops"]  # operators such as aten._to_copy are public, whatever they are called
    return home in LIBRARIES and not is_operator and any(part[:1] == "_" and part[:2] != "__" for part in parts)


def _dotted(node: ast.expr, imported: dict[str, str]) -> str:
    """The full name of an attribute of something imported; "" for other things."""
    if isinstance(node, ast.Name):
        return imported.get(node.id, "")
    base = _dotted(node.value, imported) if isinstance(node, ast.Attribute) else ""
    return f"{base}.{node.attr}" if base and isinstance(node, ast.Attribute) else ""


def test_private_names_of_libraries_are_only_in_their_rooms() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{place}"
        for path in sorted(ROOT.rglob("*.py"))
        if not re.search(r"_\w+_compat", str(path.relative_to(ROOT)))
        for place in _private_names(path.read_text(encoding="utf-8"))
    ]
    assert found == [], "use or add a function with a feature check in src/prepbench/_torch_compat/ or its like"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import torch._dynamo", ["1: torch._dynamo"]),
        ("from torch._ops import OpOverload", ["1: torch._ops.OpOverload"]),
        ("from torch.utils import _pytree as pytree", ["1: torch.utils._pytree"]),
        ("import torch\nif torch._C._nn: pass", ["2: torch._C._nn", "2: torch._C"]),
        ("from torch import fx\nfx._symbolic_trace", ["2: torch.fx._symbolic_trace"]),
        ("def f(x):\n    return x.untyped_storage()._cdata", ["2: _cdata"]),
        ("getattr(target, '_schema', None)", ["1: _schema"]),
        ("import torch\ntorch.ops.aten._to_copy.default\ntorch.__version__", []),
        ("from torchao.quantization import _quant", ["1: torchao.quantization._quant"]),
        ("import numpy\nnumpy._core", []),
    ],
)
def test_the_search_finds_private_names(source: str, found: list[str]) -> None:
    assert list(_private_names(source)) == found


def _pictures(source: str) -> list[tuple[str, str]]:
    """The module and the function of each call of ``view``, which looks them up by name when a result is shown."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    named = [node.args[:2] for node in calls if isinstance(node.func, ast.Name) and node.func.id == "view"]
    return [
        (str(module.value), str(function.value))
        for module, function in named
        if isinstance(module, ast.Constant) and isinstance(function, ast.Constant)
    ]


def test_every_picture_that_is_looked_up_by_name_exists() -> None:
    found = {
        (path.relative_to(ROOT).as_posix(), *names)
        for path in sorted(ROOT.rglob("*.py"))
        for names in _pictures(path.read_text(encoding="utf-8"))
    }
    assert len(found) > 30
    missing = [
        (user, f"{module}.{function}")
        for user, module, function in sorted(found)
        if not (file := ROOT / f"{module.replace('.', '/')}.py").exists()
        or function not in {getattr(node, "name", "") for node in ast.parse(file.read_text(encoding="utf-8")).body}
    ]
    assert missing == []


def _own_formats(source: str) -> Iterator[int]:
    """The lines that take 32 bits for float or make the name of a format of its bits."""
    for node in ast.walk(ast.parse(source)):
        parts = [inner for part in ast.iter_child_nodes(node) for inner in (part, *getattr(part, "elts", ()))]
        values = [part.value for part in parts if isinstance(part, ast.Constant)]
        is_float = any(value in (32, "32") for value in values) and re.search(r"(\b|_)bits\b", ast.unparse(node))
        makes_name = isinstance(node, ast.JoinedStr) and any(re.search(r"\bu?int$", str(value)) for value in values)
        if is_float or makes_name:
            yield getattr(node, "lineno", 0)


def test_formats_of_numbers_are_derived_in_one_file() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(ROOT.rglob("*.py"))
        if path != ROOT / "settings" / "numbers.py"
        for line in _own_formats(path.read_text(encoding="utf-8"))
    ]
    assert found == [], "ask a NumberFormat of src/prepbench/settings/numbers.py"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("row.weights_bits < 32", [1]),
        ("bits in (8, 32)", [1]),
        ("32 if only_weights else settings.activations_num_bits", [1]),
        ("class Row:\n    weights_bits: int = 32", [2]),
        ("replace(row, weights_bits=32)", [1]),
        ("bits.get(fqn, 32)", [1]),
        ("'32' if only else str(bits)", [1]),
        ("f'int{number} weights'", [1]),
        ("block_size = 32\nbits < 8\nf'{numbers} bits'", []),
    ],
)
def test_the_search_finds_formats_of_numbers(source: str, found: list[int]) -> None:
    assert list(_own_formats(source)) == found
