"""What a loaded model returns: the classes of this process, filled without running their code, else plain values."""

from __future__ import annotations

import dataclasses
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.calls.output_tree import made_object, made_tuple
from prepbench.errors import ArtifactError

RAN: list[str] = []
SAMPLES = [torch.randn(2, 4), torch.randn(3, 4)]


@dataclasses.dataclass
class Scores:
    """Fields that are None, plain values, and a tensor in a list."""

    logits: torch.Tensor
    loss: torch.Tensor | None = None
    name: str = "linear"
    hidden: Any = None

    def __post_init__(self) -> None:
        RAN.append("__post_init__")


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    first: torch.Tensor
    second: torch.Tensor | None = None


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor | None


class Plain:
    """No dataclass: what its attributes are for is not known."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x, self.nothing, self.number = x, None, 3


@dataclasses.dataclass
class Registered:
    """Known to torch, which keeps the names of what is None apart."""

    x: torch.Tensor
    nothing: torch.Tensor | None = None


torch.export.register_dataclass(Registered, serialized_type_name="tests.Registered")


class Model(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer, self.kind = nn.Linear(4, 4), kind

    def forward(self, x: torch.Tensor) -> Any:
        y = self.layer(x)
        if self.kind == "scores":
            return Scores(y, hidden=[y + 1])
        if self.kind == "frozen":
            return {"inside": Frozen(y)}
        if self.kind == "pair":
            return Pair(y, None)
        return Plain(y) if self.kind == "plain" else Registered(y)


def saved(kind: str, folder: Path) -> tuple[Any, Path]:
    """What the model returns, and a folder with the compiled one."""
    model = Model(kind)
    compiled = pb.compile_model(model, tracing_inputs=SAMPLES, deployment_settings=pb.EagerDeployment())
    compiled.save(folder / "saved")
    with torch.no_grad():
        return model(SAMPLES[0]), folder / "saved"


@pytest.mark.parametrize("kind", ["scores", "frozen", "pair", "registered"])
def test_classes_that_are_imported_come_back(kind: str, tmp_path: Path) -> None:
    expected, folder = saved(kind, tmp_path)
    loaded = pb.load_compiled(folder)
    RAN.clear()
    result = loaded(SAMPLES[0])
    assert RAN == []
    assert type(result) is type(expected)
    for one, two in zip(_leaves(result), _leaves(expected), strict=True):
        assert torch.allclose(one, two) if isinstance(two, torch.Tensor) else one == two


def _leaves(value: Any) -> list[Any]:
    """All that is in it, also the fields that are None."""
    if dataclasses.is_dataclass(value):
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    parts = list(value.values()) if isinstance(value, dict) else value
    return [leaf for part in parts for leaf in _leaves(part)] if isinstance(parts, list | tuple) else [value]


def test_other_classes_become_dicts_with_what_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, folder = saved("plain", tmp_path)
    result = pb.load_compiled(folder)(SAMPLES[0])
    assert list(result) == ["x", "nothing", "number"]
    assert (result["nothing"], result["number"]) == (None, 3)
    expected, folder = saved("scores", tmp_path / "second")
    loaded = pb.load_compiled(folder)
    monkeypatch.delattr(sys.modules[__name__], "Scores")
    result = loaded(SAMPLES[0])
    assert sorted(result) == ["hidden", "logits", "loss", "name"]
    assert (result["loss"], result["name"]) == (None, "linear")
    torch.testing.assert_close(result["logits"], expected.logits)


READER = """
import sys, torch, prepbench as pb
sys.path.insert(0, sys.argv[2])
import given
compiled = pb.load_compiled(sys.argv[1])
print(compiled(given.Given(torch.ones(1, 4))).tolist())
dummy = compiled.generate_dummy_inputs()
print(dummy.args[0].scale, compiled(*dummy.args, **dummy.kwargs).shape[0])
"""
GIVEN = """
import dataclasses, torch
@dataclasses.dataclass
class Given:
    x: torch.Tensor
    scale: float = 2.0
    mask: torch.Tensor | None = None
"""


class Takes(nn.Module):
    def forward(self, given: Any) -> torch.Tensor:
        return given.x * given.scale


def test_another_process_gives_objects_as_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "given.py").write_text(GIVEN)
    monkeypatch.syspath_prepend(str(tmp_path))
    kind = importlib.import_module("given").Given
    samples = [(kind(x),) for x in SAMPLES]
    pb.compile_model(Takes(), tracing_inputs=samples, deployment_settings=pb.EagerDeployment()).save(tmp_path / "saved")
    command = [sys.executable, "-c", READER, str(tmp_path / "saved"), str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.stdout.split("\n")[:2] == ["[[2.0, 2.0, 2.0, 2.0]]", "2.0 2"], found.stderr


def test_result_classes_of_transformers_and_of_its_users_come_back(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")

    @dataclasses.dataclass
    class Output(transformers.utils.ModelOutput):
        loss: torch.Tensor | None = None
        logits: torch.Tensor | None = None

    Output.__module__, Output.__qualname__ = __name__, "Output"
    globals()["Output"] = Output
    x = torch.ones(1)
    for name in (f"{__name__}.Output", "transformers.modeling_outputs.SequenceClassifierOutput"):
        made = made_object(name, {"logits": x})
        assert made.loss is None
        assert made.logits is x
        assert made.to_tuple() == (x,)
    del globals()["Output"]


@dataclasses.dataclass
class Watched:
    """Setting the field would run a setter."""

    x: Any = None

    def _set(self, value: Any) -> None:
        RAN.append("setter")


Watched.x = property(lambda self: 1, Watched._set)  # type: ignore[assignment]


@dataclasses.dataclass
class Cleaned:
    x: Any = None

    def __del__(self) -> None:
        RAN.append("__del__")


class Ordered(NamedTuple):
    x: Any


@pytest.mark.parametrize("name", ["Watched", "Cleaned", "Plain", "SAMPLES", "no.such", ""])
def test_no_code_runs_for_a_name_that_somebody_chose(name: str) -> None:
    RAN.clear()
    assert made_object(f"{__name__}.{name}", {"x": 1}) is None
    assert RAN == []
    for other in ("subprocess.Popen", "antigravity.fly_on", "prepbench.Job", "os", ".", "a..b"):
        assert made_object(other, {"x": 1}) is None
        assert made_tuple(other, ["x"], [1]) is None
    assert "antigravity" not in sys.modules
    assert made_tuple(f"{__name__}.Ordered", ["y"], [1]) is None


@pytest.mark.parametrize("change", [{"fixed": {"loss": [1]}}, {"fixed": 3}, {"class": 3}, {"type": None}])
def test_a_manifest_with_other_attributes_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    _, folder = saved("scores", tmp_path)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["calls"]["outputs"].update(change)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match="manifest is damaged"):
        pb.load_compiled(folder)
