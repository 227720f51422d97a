"""Partly compiled models are saved; what stays in Python is a program of its own, or found in the model handed in."""

from __future__ import annotations

import copy
import gc
import json
import linecache
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench._torch_compat.operators import registered_operators
from prepbench.errors import ArtifactError, PrepbenchError, SettingsError, TargetError
from prepbench.package.artifact import MANIFEST
from prepbench.package.leaves.definitions import MAX_CALLS
from tests.compile.package import leaf_models
from tests.compile.package.leaf_models import Branching, Changing, Gate, Several, WithBlock, WithObject

ROOT = Path(__file__).parents[3]
EAGER = pb.EagerDeployment()


def noise(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(seed))


def made(kind: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind().eval()


def compiled(model: nn.Module, **more: Any) -> pb.CompiledModel:
    settings = {"deployment_settings": EAGER, "fullgraph": False, "tracing_inputs": [noise(2), noise(5), noise(3)]}
    result: pb.CompiledModel = pb.compile_model(model, **{**settings, **more})
    return result


@pytest.fixture(scope="module")
def branching(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model with a branch, and its checkpoint beside it."""
    place, model = tmp_path_factory.mktemp("branching"), made(Branching)
    compiled(model).save(place / "model")
    torch.save(model.state_dict(), place / "weights.pt")
    return place / "model"


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("several") / "model"
    compiled(made(Several)).save(folder)
    return folder


def test_another_process_loads_it_with_the_class_and_the_checkpoint(branching: Path) -> None:
    script = f"""
import torch, prepbench as pb
from tests.compile.package.leaf_models import Branching
model = Branching()
model.load_state_dict(torch.load({str(branching.parent / "weights.pt")!r}))
loaded = pb.load_compiled({str(branching)!r}, model=model)
assert model.training, "the model handed in stays in its mode"
for rows in (1, 7):
    x = torch.randn(rows, 8)
    for each in (x.abs(), -x.abs()):
        torch.testing.assert_close(loaded(each), model.eval()(each))
        model.train()
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_without_the_model_the_error_says_what_to_call(branching: Path) -> None:
    first = Branching.forward.__code__.co_firstlineno
    with pytest.raises(ArtifactError) as caught:
        pb.load_compiled(branching)
    text = str(caught.value)
    assert f"lines {first + 2} to {first + 6} of the model itself (tests.compile.package.leaf_models.Branching)" in text
    assert f"pb.load_compiled({str(branching)!r}, model=model)" in text


def test_several_leaves_are_found_again(several: Path) -> None:
    model = made(Several)
    loaded = pb.load_compiled(several, model=model)
    with torch.no_grad():
        for x in (noise(4, 1), noise(9, 2), noise(1, 3).abs()):
            torch.testing.assert_close(loaded(x), model(x))
    assert set(map(str, loaded.report.leaves)) == set(loaded.report.leaves) != set()
    assert len(loaded.needs_model) >= 3


@pytest.mark.parametrize("settings", [pb.OnnxRuntimeDeployment(), EAGER], ids=["onnxruntime", "eager"])
def test_in_8_bits_loaded_and_saved_again(settings: pb.DeploymentSettings, tmp_path: Path) -> None:
    model = made(Branching)
    here = compiled(
        model,
        deployment_settings=settings,
        calibration_inputs=[noise(16)],
        quantization_settings=pb.QuantizationSettings(),
    )
    here.save(tmp_path / "first")
    loaded = pb.load_compiled(tmp_path / "first", model=model)
    loaded.save(tmp_path / "second")
    again = pb.load_compiled(tmp_path / "second", model=model)
    for x in (noise(7, 1).abs(), -noise(4, 2).abs()):
        assert torch.equal(loaded(x), here(x))
        assert torch.equal(again(x), here(x))
    assert loaded.size_bytes == here.size_bytes is not None


def test_a_chosen_leaf_that_can_be_exported_needs_nothing(tmp_path: Path) -> None:
    model = made(WithBlock)
    here = compiled(model, leaf_modules=["block"], dynamic_axes=None)
    assert here.needs_model == ()
    here.save(tmp_path / "model")
    loaded = pb.load_compiled(tmp_path / "model")
    assert loaded.report.leaves == ("block",)
    for rows in (1, 8):
        torch.testing.assert_close(loaded(noise(rows, 1)), model(noise(rows, 1)))
    size = sum(
        path.stat().st_size for path in (tmp_path / "model").rglob("*") if path.is_file() and path.name != MANIFEST
    )
    assert here.size_bytes == size


def test_a_call_that_no_graph_can_express_runs_the_model_handed_in(tmp_path: Path) -> None:
    model = made(Changing)
    here = compiled(model)
    assert here.needs_model
    here.save(tmp_path / "model")
    loaded = pb.load_compiled(tmp_path / "model", model=model)
    for x in (noise(3, 1), noise(3, 1) - 100):
        torch.testing.assert_close(loaded(x), model(x))


def test_half_precision(tmp_path: Path) -> None:
    model = made(Branching).half()
    here = compiled(model, tracing_inputs=[noise(2).half(), noise(5).half()])
    here.save(tmp_path / "model")
    loaded = pb.load_compiled(tmp_path / "model", model=model)
    assert torch.equal(loaded(noise(6, 1).half()), here(noise(6, 1).half()))


def test_a_class_of_a_notebook(tmp_path: Path) -> None:
    text = (
        "import torch\nclass Cell(torch.nn.Module):\n    def forward(self, x):\n        y = x + 1\n"
        "        if x.sum() > 0.5:\n            y = y * 2\n        return y - 1\n"
    )
    name = "<cell of a test>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    cell = types.ModuleType("cell")
    exec(compile(text, name, "exec", dont_inherit=True), vars(cell))
    compiled(cell.Cell().eval()).save(tmp_path / "model")
    loaded = pb.load_compiled(tmp_path / "model", model=cell.Cell())
    assert torch.equal(loaded(noise(3).abs()), cell.Cell()(noise(3).abs()))


# -- the model handed in -----------------------------------------------------------------------------------------------


def test_other_weights_are_named(branching: Path) -> None:
    model = made(Branching)
    with torch.no_grad():
        model.last.bias[0] += 1
    with pytest.raises(ArtifactError, match=r"'last\.bias' .*other values.*Load the checkpoint first"):
        pb.load_compiled(branching, model=model)


def test_another_class_or_another_module_is_named(branching: Path, several: Path) -> None:
    class Other(Branching):
        pass

    with pytest.raises(ArtifactError, match=r"Other, and was a tests\.compile\.package\.leaf_models\.Branching"):
        pb.load_compiled(branching, model=made(Other))
    model = made(Several)
    model.gates = nn.ModuleList([Gate()])
    with pytest.raises(ArtifactError, match=r"no module 'gates\.1'"):
        pb.load_compiled(several, model=model)


def test_a_line_that_changed_is_named(branching: Path, tmp_path: Path) -> None:
    text = Path(leaf_models.__file__).read_text().replace("            y = h * 2", "            y = h * 3")
    (tmp_path / "changed.py").write_text(text)
    changed = types.ModuleType("changed")
    exec(compile(text, str(tmp_path / "changed.py"), "exec"), vars(changed))
    with pytest.raises(ArtifactError, match=r"first that differs is line \d+ of .*changed\.py: 'y = h \* 3'"):
        pb.load_compiled(branching, model=made(changed.Branching))


def test_the_same_code_in_another_module_and_at_other_lines(branching: Path, tmp_path: Path) -> None:
    text = "# one more line\n" + Path(leaf_models.__file__).read_text()
    (tmp_path / "moved.py").write_text(text)
    moved = types.ModuleType("moved")
    exec(compile(text, str(tmp_path / "moved.py"), "exec"), vars(moved))
    loaded = pb.load_compiled(branching, model=made(moved.Branching))
    torch.testing.assert_close(loaded(noise(4, 1)), made(Branching)(noise(4, 1)))


def test_a_model_for_a_folder_that_needs_none(tmp_path: Path) -> None:
    pb.compile_model(nn.Linear(8, 2), tracing_inputs=[noise(2)], deployment_settings=EAGER).save(tmp_path / "model")
    with pytest.raises(SettingsError, match="without model="):
        pb.load_compiled(tmp_path / "model", model=nn.Linear(8, 2))


# -- what cannot be saved ----------------------------------------------------------------------------------------------


def test_a_leaf_that_no_file_can_tell_is_named(tmp_path: Path) -> None:
    here = compiled(made(WithObject), leaf_modules=["block"])
    assert here.size_bytes is None
    with pytest.raises(TargetError, match=r"because of the leaf block: it takes or returns a .*leaf_models\.Held"):
        here.save(tmp_path / "model")
    assert any("cannot be saved" in remark for remark in here.report.remarks)
    assert not (tmp_path / "model").exists()


def test_a_model_of_which_nothing_is_compiled(tmp_path: Path) -> None:
    whole = compiled(made(WithBlock), leaf_modules=[WithBlock])
    with pytest.raises(TargetError, match="Nothing is compiled"):
        whole.save(tmp_path / "model")


# -- operators ---------------------------------------------------------------------------------------------------------


def leaf_operators() -> set[str]:
    return {name for name in registered_operators() if name.startswith("prepbench_leaf")}


def test_loaded_twice_and_let_go(branching: Path) -> None:
    model, before = made(Branching), leaf_operators()
    one, two = (pb.load_compiled(branching, model=model) for _ in range(2))
    assert len(leaf_operators() - before) == 2
    x = noise(3, 1)
    assert torch.equal(one(x), two(x))
    del one
    gc.collect()
    assert torch.equal(two(x), model(x))
    del two
    gc.collect()
    assert leaf_operators() <= before


def test_the_loaded_model_keeps_what_it_needs(branching: Path) -> None:
    loaded, x = pb.load_compiled(branching, model=made(Branching)), noise(3, 1)
    gc.collect()
    results: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda: results.append(loaded(x))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all(torch.equal(result, made(Branching)(x)) for result in results)


# -- folders of anybody ------------------------------------------------------------------------------------------------


def forged(folder: Path, place: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    place.mkdir()
    for file in folder.iterdir():
        (place / file.name).write_bytes(file.read_bytes())
    manifest = json.loads((place / MANIFEST).read_bytes())
    change(manifest["leaves"])
    (place / MANIFEST).write_text(json.dumps(manifest))
    return place


def first(leaves: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = leaves["operators"][0]
    return row


def counted(leaves: dict[str, Any]) -> dict[str, Any]:
    return leaves["functions"][0]  # type: ignore[no-any-return]


def secret(leaves: dict[str, Any]) -> None:
    """Name a method that no forward leads to, with digests that fit."""
    from prepbench.capture.statements.outline import line_digests
    from prepbench.capture.statements.ranges import source_file

    code = Several.load_secret.__code__
    file = source_file(code.co_filename)
    assert file is not None
    counted(leaves).update(path=[["Several", 0], ["load_secret", 0]], source=list(line_digests(file, code)))


def nested(depth: int) -> dict[str, Any]:
    tree: dict[str, Any] = {"kind": "leaf"}
    for _ in range(depth):
        tree = {"kind": "tuple", "items": [tree]}
    return tree


FORGERIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "a function outside of the model": lambda d: counted(d).update(path=[["system", 0]]),
    "a method that no forward calls": secret,
    "lines that are no range": lambda d: counted(d)["ranges"][0].update(end=[["body", 10**6]]),
    "a range that the function has not": lambda d: first(d)["statements"].update(range=99),
    "no function": lambda d: d.update(functions=[]),
    "an operator of torch": lambda d: first(d).update(operator="aten.relu"),
    "an operator that the program lacks": lambda d: first(d).update(operator="prepbench_leaf.other"),
    "no operators": lambda d: d.update(operators=[]),
    "one operator twice": lambda d: d["operators"].append(first(d)),
    "a module that is not there": lambda d: first(d).update(module="other.part"),
    "a tree without end": lambda d: first(d).update(arguments=nested(300)),
    "a tree of other values": lambda d: first(d).update(arguments=nested(1)),
    "a class of nobody": lambda d: first(d).update(
        results={"kind": "object", "class": "os.system", "keys": [], "fixed": {}, "items": []}
    ),
    "a text of its own": lambda d: first(d)["fixed"].__setitem__(0, "/etc/passwd"),
    "huge sizes": lambda d: first(d)["calls"][0]["inputs"].__setitem__(0, {"tensor": "float32", "shape": [2**60] * 3}),
    "too many calls": lambda d: first(d).update(calls=first(d)["calls"] * (MAX_CALLS + 1)),
    "a dtype that is none": lambda d: first(d)["calls"][0]["inputs"][0].update(tensor="save"),
    "a piece outside of the folder": lambda d: first(d).update(piece="../piece"),
    "a piece that is not there": lambda d: first(d).update(piece="leaf_0", statements=None),
    "numbers for names": lambda d: first(d).update(leaf=3),
    "further entries": lambda d: first(d).update(code="print(1)"),
    "a state of another form": lambda d: d.update(state={"last.bias": "x"}),
}


@pytest.mark.parametrize("name", FORGERIES)
@pytest.mark.timeout(30)
def test_a_forged_folder_is_refused_and_runs_nothing(
    name: str, several: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, before = made(Several), leaf_operators()
    for kind in (Several, Gate):
        monkeypatch.setattr(kind, "__call__", lambda *args, **kwargs: pytest.fail("the model ran"))
    with pytest.raises(PrepbenchError) as caught:
        pb.load_compiled(forged(several, tmp_path / "forged", FORGERIES[name]), model=model)
    assert isinstance(caught.value, ArtifactError), caught.value
    del caught  # its traceback holds what was made so far
    gc.collect()
    assert leaf_operators() <= before


def test_no_other_leaf_of_this_process_can_be_called(branching: Path, tmp_path: Path) -> None:
    """Not even with consent: it would be that of another model."""
    other = compiled(made(Branching))
    place = forged(branching, tmp_path / "model", lambda leaves: None)
    manifest = json.loads((place / MANIFEST).read_bytes())
    del manifest["leaves"]
    (place / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match="no leaf that the manifest lists"):
        pb.load_compiled(place, allow_code=True)
    assert other(noise(2)).shape == (2, 4)


def test_a_model_is_left_as_it_was(branching: Path) -> None:
    model = made(Branching).train()
    before = copy.deepcopy(model.state_dict())
    pb.load_compiled(branching, model=model)(noise(3))
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
