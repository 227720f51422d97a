"""Nothing in a saved program reaches torch unchecked."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from prepbench.capture.sizes.size_formulas import parsed_size
from prepbench.errors import ArtifactError
from prepbench.targets.programs import GRAPH, WEIGHTS, check_program, load_program, save_program


class Net(nn.Module):
    """Has what a file can hold: tied and channels-last weights, a buffer, a constant, sizes, a text argument."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.two.weight = self.one.weight
        self.conv = nn.Conv2d(2, 2, 3, padding=1).to(memory_format=torch.channels_last)
        self.register_buffer("shift", torch.arange(4.0))
        self.register_buffer("scratch", torch.ones(2, 3), persistent=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = nn.functional.gelu(self.two(self.one(x)), approximate="tanh") + self.shift + torch.tensor([1.0, 2, 3, 4])
        grid = self.conv(y.reshape(1, 1, -1, 4).expand(1, 2, -1, 4))
        return nn.functional.pad(y, (0, 0, 0, x.shape[0] // 2 + 1)), grid.sum() + self.scratch.sum()


def program() -> torch.export.ExportedProgram:
    torch.manual_seed(0)
    shapes = ({0: torch.export.Dim.DYNAMIC},)
    return torch.export.export(Net().eval(), (torch.randn(4, 4),), dynamic_shapes=shapes)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("program")
    save_program(program(), folder)
    return folder


def test_a_program_comes_back_equal(saved: Path) -> None:
    original, loaded = program().module(), load_program(saved).module()
    for rows in (2, 4, 7):
        x = torch.randn(rows, 4)
        for one, two in zip(original(x), loaded(x), strict=True):
            torch.testing.assert_close(one, two)
    assert loaded.one.weight is not None
    assert loaded.one.weight.data_ptr() == loaded.two.weight.data_ptr()
    assert loaded.conv.weight.stride() == program().module().conv.weight.stride()


def test_files_hold_no_paths_of_the_machine(saved: Path) -> None:
    assert sorted(path.name for path in saved.iterdir()) == [GRAPH, WEIGHTS]
    assert b"File " not in (saved / GRAPH).read_bytes()
    assert str(Path(__file__).parent).encode() not in (saved / GRAPH).read_bytes()


MARKER = "__import__('pathlib').Path('MARKER').write_text('run')"
Change = Callable[[dict[str, Any]], None]


def _first(content: Any, key: str) -> Any:
    """The first object that has ``key``."""
    if isinstance(content, dict):
        if key in content:
            return content
        content = list(content.values())
    if isinstance(content, list):
        for item in content:
            if (found := _first(item, key)) is not None:
                return found
    return None


def _set(key: str, value: Any) -> Change:
    def change(content: dict[str, Any]) -> None:
        place = _first(content, key)
        assert place is not None, key
        place[key] = value

    return change


def _tree(kind: str, context: str = "null") -> str:
    return json.dumps([1, {"type": kind, "context": context, "children_spec": []}])


ATTACKS: dict[str, Change] = {
    "expression": _set("expr_str", MARKER),
    "expression in a function": _set("expr_str", f"Add(Integer(1), {MARKER})"),
    "attribute of a symbol": _set("expr_str", "Symbol('s1').__class__"),
    "lambda": _set("expr_str", "(lambda: 1)()"),
    "text as a symbol": _set("expr_str", "Symbol('os.system')"),
    "tower of powers": _set("expr_str", "Pow(Pow(Pow(Integer(9), Integer(64)), Integer(64)), Integer(64))"),
    "huge power": _set("expr_str", "Pow(Integer(9), Integer(999999999))"),
    "operator of Python": _set("target", "torch.os.system"),
    "operator by attribute": _set("target", "torch.ops.aten.add.Tensor.__class__"),
    "operator of the module": _set("target", "_operator.methodcaller"),
    "file operator": _set("target", "torch.ops.aten.from_file.default"),
    "extension operator": _set("target", "#python:os.system"),
    "somebody's operator": _set("target", "torch.ops.mylib.run.default"),
    "operator as an argument": lambda content: _first(content, "arg").update(arg={"as_operator": "torch.load"}),
    "name with code": _set("name", "x; import os"),
    "graph name with code": _set("as_name", f"a\n{MARKER}"),
    "weight path with code": _set("parameter_name", f'a"); {MARKER}; ("'),
    "dunder path": _set("parameter_name", "one.__class__"),
    "dunder path in the middle": _set("parameter_name", "one.__dict__.weight"),
    "dunder path in other letters": _set("parameter_name", "one.\uff3f\uff3fclass\uff3f\uff3f"),
    "imported structure": _set("in_spec", _tree("os.PathLike")),
    "imported enum": _set("out_spec", _tree("builtins.dict", json.dumps([{"__enum__": True, "fqn": "antigravity:x"}]))),
    "guards": _set("guards_code", [MARKER]),
    "metadata": _set("metadata", {"custom": MARKER}),
    "opaque constant": lambda content: _first(content, "arg").update(arg={"as_custom_obj": {"name": "x"}}),
    "unknown text": lambda content: content.update(note=MARKER),
    "deep": lambda content: content.update(deep=json.loads("[" * 500 + "]" * 500)),
    "many sizes": lambda content: content["range_constraints"].update(u999999999={"min_val": 0, "max_val": 1}),
    "not an object": lambda content: content.update(graph_module=[]),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused(name: str, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = json.loads((saved / GRAPH).read_text())
    ATTACKS[name](content["program"])
    (tmp_path / GRAPH).write_text(json.dumps(content))
    (tmp_path / WEIGHTS).write_bytes((saved / WEIGHTS).read_bytes())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArtifactError, match=r"program|size"):
        load_program(tmp_path).module()(torch.randn(2, 4))
    assert not (tmp_path / "MARKER").exists()


def test_operators_of_others_need_consent(saved: Path) -> None:
    content = json.loads((saved / GRAPH).read_text())["program"]
    _set("target", "torch.ops.mylib.run.default")(content)
    with pytest.raises(ArtifactError, match=r"torch\.ops\.mylib\.run.*allow_code=True"):
        check_program(copy.deepcopy(content))
    check_program(content, allow_code=True)


def test_damaged_files_are_named(saved: Path, tmp_path: Path) -> None:
    graph, weights = (saved / GRAPH).read_bytes(), (saved / WEIGHTS).read_bytes()
    for name, content in {
        GRAPH: graph[:-100],
        WEIGHTS: weights[:-100],
    }.items():
        (tmp_path / GRAPH).write_bytes(graph)
        (tmp_path / WEIGHTS).write_bytes(weights)
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ArtifactError, match=f"{name} is damaged"):
            load_program(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "Integer(3)",
        "Symbol('s77', positive=True, integer=True)",
        "Add(Pow(Symbol('s0', integer=True), Integer(2)), FloorDiv(Max(Integer(3), Symbol('s0')), Integer(-2)))",
        "LessThan(Symbol('u1', integer=True), Mul(Integer(4), Symbol('s77')))",
        "s0",
        "Float('0.5', precision=53)",
    ],
)
def test_sizes_of_torch_pass(text: str) -> None:
    parsed_size(text, "a size")


def test_a_name_that_no_file_takes_is_named_as_what_to_change(tmp_path: Path) -> None:
    model = nn.Sequential()
    model.add_module("__x__", nn.Linear(4, 4))
    with pytest.raises(ArtifactError, match=r"The tensor '__x__\.weight' cannot be saved.*Rename the module"):
        save_program(torch.export.export(model, (torch.randn(2, 4),)), tmp_path)
