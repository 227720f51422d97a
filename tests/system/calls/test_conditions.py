"""A compiled model refuses the sizes for which its graph is not the model, in words, wherever it runs."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import ArtifactError, ConditionError, InputError
from prepbench.generate.greedy import CompiledSteps
from tests.turns import in_turns

DEPLOYMENTS = [
    pb.EagerDeployment(),
    pb.OnnxRuntimeDeployment(),
    pb.OpenVinoDeployment(),
    pb.ExecuTorchDeployment(),
    pb.InductorDeployment(),
]


class Frames(nn.Module):
    """Joins frames in threes where they fit, else gives them as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, signal: torch.Tensor) -> torch.Tensor:
        hidden = self.layer(signal)
        if signal.shape[1] % 3 == 0:
            return hidden.view(signal.shape[0], -1, 3, 5).mean(2)
        return hidden


SAMPLES = [torch.randn(2, 12, 5), torch.randn(3, 18, 5)]
WORDS = "the length of signal (signal.shape[1]) must be a multiple of 3"


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return Frames().eval()


def compiled_for(model: nn.Module, deployment: Any = None, samples: Any = None) -> pb.CompiledModel:
    deployment = deployment or pb.EagerDeployment()
    return pb.compile_model(
        model, tracing_inputs=samples or SAMPLES, deployment_settings=deployment, discard_input_model=False
    )


@pytest.mark.parametrize("deployment", in_turns(DEPLOYMENTS, 1, 3), ids=lambda each: type(each).__name__)
def test_every_target_refuses_what_breaks_a_condition(model: nn.Module, deployment: Any, tmp_path: Path) -> None:
    compiled = compiled_for(model, deployment)
    compiled.save(tmp_path / "saved")
    loaded = pb.load_compiled(tmp_path / "saved", allow_code=True)
    for each in (compiled, loaded):
        assert [condition.text for condition in each.conditions] == [WORDS]
        for size in (15, 3):
            x = torch.randn(2, size, 5)
            torch.testing.assert_close(each(x), model(x), rtol=1e-4, atol=1e-5)
        with pytest.raises(ConditionError) as raised:
            each(torch.randn(2, 16, 5))
        text = str(raised.value)
        assert WORDS in text
        assert "signal.shape[1] = 16" in text
        assert "may be 15 or 18" in text
        assert "test_conditions.py:" in text
        assert "if signal.shape[1] % 3 == 0:" in text


def test_reports_tell_where_a_model_holds(model: nn.Module, tmp_path: Path) -> None:
    compiled = compiled_for(model)
    for text in (repr(compiled), repr(compiled.report)):
        assert f"holds where {WORDS} (" in text
    compiled.save(tmp_path / "saved")
    assert pb.load_compiled(tmp_path / "saved").report.conditions == compiled.report.conditions


def test_unproven_calls_are_made_where_they_are_asked_for(model: nn.Module) -> None:
    class Doubled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if x.shape[0] > 1 else x * 3

    compiled = compiled_for(Doubled(), samples=[torch.ones(2, 4), torch.ones(3, 4)])
    with pytest.raises(InputError, match=r"must be more than 1, because of .*x.shape\[0\] > 1"):
        compiled(torch.ones(1, 4))
    compiled.allow_unproven = True
    assert torch.equal(compiled(torch.ones(1, 4)), torch.full((1, 4), 2.0))


def test_a_size_of_0_that_goes_another_way_is_refused() -> None:
    class Total(nn.Module):
        """Tracing takes a size of 0 for impossible, so that nothing is asked of it."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.new_ones(1, 4) if x.shape[0] == 0 else x.sum(0, keepdim=True)

    compiled = compiled_for(Total(), samples=[torch.ones(2, 4), torch.ones(3, 4)])
    assert torch.equal(compiled(torch.ones(1, 4)), torch.ones(1, 4))
    with pytest.raises(ConditionError, match=r"x.shape\[0\] must not be 0"):
        compiled(torch.ones(0, 4))


def test_an_empty_result_may_have_the_same_shape_by_chance() -> None:
    class Padded(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if x.shape[0] == 0 else nn.functional.pad(x, (0, 0, 0, -x.shape[1] % 3))

    compiled = compiled_for(Padded(), samples=[torch.ones(1, 3, 2), torch.ones(5, 5, 2)])
    with pytest.raises(ConditionError, match=r"x.shape\[0\] must not be 0"):
        compiled(torch.ones(0, 4, 2))


def test_a_later_quantization_keeps_the_conditions(model: nn.Module) -> None:
    compiled = compiled_for(model)
    compiled.initialize_algorithms([torch.randn(2, 12, 5) for _ in range(4)])
    with pytest.raises(ConditionError):
        compiled(torch.randn(2, 13, 5))


@pytest.fixture(scope="module")
def saved(model: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("conditions") / "saved"
    compiled_for(model).save(folder)
    return folder


def test_older_folders_have_no_conditions(saved: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(saved, tmp_path / "saved"))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["version"] = "2.1"
    del manifest["calls"]["conditions"], manifest["report"]["conditions"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert pb.load_compiled(folder).conditions == ()


@pytest.mark.parametrize(
    "change",
    [
        {"formula": "__import__('os').getcwd()"},
        {"formula": "Symbol('s5')"},
        {"places": [[0, 7]]},
        {"places": [[3, 0]]},
        {"places": []},
        {"source": "model.py"},
        {"text": 3},
        {"sizes": [1]},
    ],
)
def test_conditions_of_others_are_checked(saved: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    folder = Path(shutil.copytree(saved, tmp_path / "saved"))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["calls"]["conditions"][0].update(change)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match="manifest is damaged"):
        pb.load_compiled(folder)


def test_exported_onnx_has_the_conditions(model: nn.Module, tmp_path: Path) -> None:
    import onnx

    compiled = compiled_for(model, pb.OnnxRuntimeDeployment())
    compiled.save(tmp_path / "saved")
    for each, name in ((compiled, "sound"), (pb.load_compiled(tmp_path / "saved"), "signal")):
        file = each.export(tmp_path / f"{name}.onnx", input_names=["sound"] if name == "sound" else None)
        read = onnx.load(file)
        onnx.checker.check_model(read)
        (text,) = [entry.value for entry in read.metadata_props if entry.key == "prepbench.conditions"]
        assert (tmp_path / f"{name}.onnx.conditions.json").read_text() == text + "\n"
        (row,) = json.loads(text)["conditions"]
        assert row["text"] == WORDS
        assert row["sizes"] == [{"input": name, "dim": 1}]
        assert row["source"][2] == "if signal.shape[1] % 3 == 0:"
        assert row["formula"].startswith("Equality(")


def test_a_file_without_conditions_has_none_beside_it(tmp_path: Path) -> None:
    beside = tmp_path / "plain.onnx.conditions.json"
    beside.write_text("{}")
    compiled_for(nn.Linear(4, 2), samples=[torch.ones(2, 4), torch.ones(3, 4)]).export(tmp_path / "plain.onnx")
    assert not beside.exists()


def test_torch_compile_lets_pytorch_run_other_sizes() -> None:
    class Ways(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).exp() if x.shape[0] % 2 == 0 else self.layer(x).sin()

    torch._dynamo.reset()
    module = Ways().eval()
    samples = [torch.randn(2, 4), torch.randn(6, 4)]
    made = torch.compile(
        module, backend="prepbench", options={"tracing_inputs": samples, "deployment_settings": pb.EagerDeployment()}
    )
    for rows in (2, 6, 8):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(made(x), module(x))
    x = torch.randn(5, 4)
    with pytest.warns(UserWarning, match="PyTorch runs this call"):
        found = made(x)
    torch.testing.assert_close(found, module(x))
    torch._dynamo.reset()


def test_ir_has_the_conditions(model: nn.Module, tmp_path: Path) -> None:
    import openvino

    from prepbench.calls.checked_conditions import FileConditions, conditions_text, write_conditions

    compiled = compiled_for(model, pb.OpenVinoDeployment())
    compiled.save(tmp_path)
    conditions = FileConditions(compiled._call_spec.conditions, ["signal"], {})
    for _ in range(2):  # a file that has them already stays as it is
        write_conditions(tmp_path / "model.xml", conditions)
    read = openvino.Core().read_model(tmp_path / "model.xml")
    assert read.get_rt_info("prepbench_conditions").astype(str) == conditions_text(conditions)
    assert (tmp_path / "model.xml").read_text().count("prepbench_conditions") == 1


class AsksInDepth(nn.Module):
    """Asks what is nested so deeply that no file would hold it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if self.odd(x.shape[1]) else x * 3

    def odd(self, size: int) -> bool:
        for step in range(60):
            size = (size * 5 + step) // 3
        return size % 3 != 0


def test_what_no_formula_tells_holds_for_the_sizes_of_the_samples_alone(tmp_path: Path) -> None:
    model = AsksInDepth().eval()
    alike = [size for size in range(5, 40) if model.odd(size)][:3]
    compiled = compiled_for(model, samples=[torch.ones(2, size) for size in alike])
    compiled.save(tmp_path / "saved")
    for each in (compiled, pb.load_compiled(tmp_path / "saved")):
        assert torch.equal(each(torch.ones(2, alike[1])), torch.full((2, alike[1]), 2.0))
        with pytest.raises(ConditionError, match=r"x.shape\[1\] must be as in a sample.* may be"):
            each(torch.ones(2, alike[-1] + 9))


@pytest.mark.parametrize(
    ("asks", "sizes"),
    [
        (lambda n: (n & 6) == 4, (4, 5, 12)),
        (lambda n: (n ^ 1) < n, (5, 7)),
        (lambda n: 2**n > 500, (9, 12)),
        (lambda n: n**0.5 > 2.5, (7, 9)),
        (lambda n: n << 1 > 20, (11, 15)),
        (lambda n: math.log2(n) > 3.5, (12, 15)),
    ],
)
def test_questions_in_bits_and_powers_are_conditions(asks: Callable[[int], bool], sizes: tuple[int, ...]) -> None:
    class Asks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if asks(x.shape[1]) else x * 3

    compiled = compiled_for(Asks().eval(), samples=[torch.ones(2, size) for size in sizes])
    for size in range(2, 40):
        if asks(size):
            assert compiled(torch.ones(2, size))[0, 0] == 2
        else:
            with pytest.raises(ConditionError):
                compiled(torch.ones(2, size))


class Cools(nn.Module):
    """Loops as long as its values need it, which nothing in the code limits."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)
        nn.init.eye_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    def forward(self, heat: torch.Tensor) -> torch.Tensor:
        heat = self.layer(heat)
        while heat.abs().max() > 1.0:
            heat = heat * 0.5
        return heat


WARM = [torch.full((2, 5), 1.5), torch.full((3, 5), 3.0), torch.full((3, 5), 0.5)]
HOT, FAILS = torch.full((2, 5), 90.0), "fails with: more than 2 iterations"


@pytest.fixture(scope="module")
def cools() -> nn.Module:
    fixed: nn.Module = pb.fix(Cools().eval(), WARM, bounds=2).model
    return fixed


@pytest.mark.parametrize("deployment", in_turns(DEPLOYMENTS, 0, 3), ids=lambda each: type(each).__name__)
def test_every_target_refuses_values_beyond_what_a_fix_takes_for_granted(
    cools: nn.Module, deployment: Any, tmp_path: Path
) -> None:
    compiled = compiled_for(cools, deployment, WARM)
    compiled.save(tmp_path / "saved")
    for each in (compiled, pb.load_compiled(tmp_path / "saved", allow_code=True)):
        assert FAILS in each.conditions[-1].text
        assert any(FAILS in line for line in each.report.conditions)
        assert FAILS in repr(each)
        for x in (WARM[0], torch.full((7, 5), -3.5)):
            torch.testing.assert_close(each(x), cools(x), rtol=1e-4, atol=1e-5)
        with pytest.raises(ConditionError, match=FAILS):
            each(HOT)
        each.allow_unproven = True
        torch.testing.assert_close(each(HOT), HOT / 4, rtol=1e-4, atol=1e-4)


def test_quantized_models_refuse_such_values_too(cools: nn.Module) -> None:
    compiled = compiled_for(cools, pb.OnnxRuntimeDeployment(), WARM)
    # activations in 8 bits end at the largest value of calibration, which keeps to the condition
    settings = pb.QuantizationSettings(prefer_weights_only_quantization=True)
    compiled.initialize_algorithms(WARM, quantization_settings=settings)
    assert compiled.report.layers[0].quantized
    torch.testing.assert_close(compiled(WARM[1]), cools(WARM[1]), rtol=0.05, atol=0.05)
    with pytest.raises(ConditionError, match=FAILS):
        compiled(HOT)


def test_exported_files_tell_whether_such_a_condition_holds(cools: nn.Module, tmp_path: Path) -> None:
    ort = pytest.importorskip("onnxruntime")
    compiled = compiled_for(cools, pb.OnnxRuntimeDeployment(), WARM)
    path = compiled.export(tmp_path / "cools.onnx", output_names=["cooled"])
    (row,) = json.loads((tmp_path / "cools.onnx.conditions.json").read_text())["conditions"]
    assert FAILS in row["text"]
    session = ort.InferenceSession(path)
    assert [one.name for one in session.get_outputs()] == ["cooled", row["output"]]
    for x, holds in ((WARM[0], True), (HOT, False)):
        assert bool(session.run([row["output"]], {"heat": x.numpy()})[0]) is holds
    with pytest.raises(pb.errors.SettingsError, match="Choose another name"):
        compiled.export(tmp_path / "other.onnx", output_names=[row["output"]])


class Predicts(nn.Module):
    """Predicts tokens, and another way as soon as there are eight."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(20, 8), nn.Linear(8, 20)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        hidden = self.table(input_ids).cumsum(1)
        return self.head(hidden) if input_ids.shape[1] < 8 else -self.head(hidden)


def test_generation_goes_beyond_a_condition_where_that_is_allowed() -> None:
    compiled = compiled_for(Predicts().eval(), samples=[torch.ones(1, n, dtype=torch.long) for n in (3, 6)])
    ids = torch.tensor([[1, 2, 3]])
    assert CompiledSteps(compiled).generate(ids, torch.ones_like(ids), 5).tokens.shape == (1, 5)
    with pytest.raises(ConditionError, match="must be less than 8"):
        CompiledSteps(compiled).generate(ids, torch.ones_like(ids), 6)
    compiled.allow_unproven = True
    assert CompiledSteps(compiled).generate(ids, torch.ones_like(ids), 6).tokens.shape == (1, 6)
