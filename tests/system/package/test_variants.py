"""A model whose tracing inputs take both sides of a branch on sizes has a graph for each, and the call chooses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import ArtifactError, CaptureError, ConditionError, InputError, SettingsError, TargetError
from tests.turns import in_turns

DEPLOYMENTS = [
    pb.EagerDeployment(),
    pb.OnnxRuntimeDeployment(),
    pb.OpenVinoDeployment(),
    pb.ExecuTorchDeployment(),
    pb.InductorDeployment(),
]


class Head(nn.Module):
    """Long texts go through a layer of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.short, self.long = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if hidden.shape[1] > 6:
            return self.long(hidden).relu()
        return self.short(hidden)


class Reader(nn.Module):
    """A branch in a submodule, after a layer that both sides share."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(8, 8), Head()

    def forward(self, text: torch.Tensor, scale: torch.Tensor) -> dict[str, Any]:
        return {"scores": self.head(self.embed(text)) * scale, "is_long": text.shape[1] > 6}


def call(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(batch, length, 8), torch.rand(())


def samples() -> list[Any]:
    torch.manual_seed(0)
    return [call(2, 4), call(3, 9), call(2, 5)]


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return Reader().eval()


@pytest.fixture(scope="module")
def compiled(model: nn.Module) -> pb.CompiledModel:
    return compiled_for(model)


def compiled_for(model: nn.Module, deployment: Any = None, **options: Any) -> pb.CompiledModel:
    deployment = deployment or pb.EagerDeployment()
    options = {"tracing_inputs": samples(), "discard_input_model": False, **options}
    return pb.compile_model(model, deployment_settings=deployment, **options)


def agrees(compiled: pb.CompiledModel, model: nn.Module, *sizes: tuple[int, int]) -> None:
    for size in sizes:
        given = call(*size)
        result, wanted = compiled(*given), model(*given)
        torch.testing.assert_close(result["scores"], wanted["scores"], rtol=1e-4, atol=1e-5)
        assert result["is_long"] is wanted["is_long"]


@pytest.mark.parametrize("deployment", in_turns(DEPLOYMENTS, 0, 3), ids=lambda each: type(each).__name__)
def test_every_target_has_a_graph_for_each_side(model: nn.Module, deployment: Any, tmp_path: Path) -> None:
    head = Head().eval()
    given = [torch.randn(2, 4, 8), torch.randn(3, 9, 8), torch.randn(2, 5, 8)]
    made = pb.compile_model(head, tracing_inputs=given, deployment_settings=deployment, discard_input_model=False)
    made.save(tmp_path / "saved")
    loaded = pb.load_compiled(tmp_path / "saved", allow_code=True)
    for each in (made, loaded):
        assert [variant.samples for variant in each.variants] == [(0, 2), (1,)]
        assert each.conditions == ()
        for shape in ((1, 6, 8), (4, 7, 8), (2, 20, 8), (5, 1, 8)):
            x = torch.randn(shape)
            torch.testing.assert_close(each(x), head(x), rtol=1e-4, atol=1e-5)
    assert repr(loaded.report) == repr(made.report)


def test_values_that_only_one_side_fixes_are_those_of_the_side(compiled: pb.CompiledModel, model: nn.Module) -> None:
    agrees(compiled, model, (2, 4), (1, 6), (3, 7), (2, 30), (1, 1))


def test_variants_are_told(compiled: pb.CompiledModel) -> None:
    short, long = compiled.variants
    assert [condition.text for condition in short.conditions] == [
        "the length of text (text.shape[1]) must be at most 6"
    ]
    assert "test_variants.py:" in str(short)
    assert str(long).startswith("for inputs[1] and where the length of text")
    assert long.program is not None
    for text in (repr(compiled), repr(compiled.report)):
        assert "variant 0: for inputs[0], inputs[2] and where" in text


def test_no_weights_are_copied(compiled: pb.CompiledModel, model: nn.Module) -> None:
    made = compiled_for(model, discard_input_model=True)
    shared = [variant.program.state_dict["embed.weight"].data_ptr() for variant in made.variants]
    assert shared == [model.get_parameter("embed.weight").data_ptr()] * 2
    own = [variant.program.state_dict["embed.weight"].data_ptr() for variant in compiled.variants]
    assert own[0] == own[1] != shared[0]


class Middle(nn.Module):
    """What is neither small nor large goes a way that no sample takes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] < 4:
            return x + 1
        return x.flip(0) if x.shape[0] < 8 else x * 2


def test_a_call_that_no_variant_takes_is_refused() -> None:
    given = [torch.ones(2, 3), torch.ones(9, 3), torch.ones(3, 3), torch.ones(8, 3)]
    made = compiled_for(Middle(), pb.OnnxRuntimeDeployment(), tracing_inputs=given)
    assert torch.equal(made(torch.ones(12, 3)), torch.full((12, 3), 2.0))
    with pytest.raises(ConditionError) as raised:
        made(torch.ones(5, 3))
    text = str(raised.value)
    assert "x.shape[0] = 5" in text
    assert "Variant 0 asks that the batch size of x (x.shape[0]) must be less than 4 (" in text
    assert "variant 1 asks that" in text
    assert "must be at least 8" in text
    made.allow_unproven = True
    assert made(torch.ones(5, 3)).shape == (5, 3)


def test_more_variants_than_allowed_are_refused(model: nn.Module) -> None:
    with pytest.raises(CaptureError, match="decide"):
        compiled_for(model, variants=1)
    with pytest.raises(SettingsError, match="variants must be"):
        compiled_for(model, variants=0)


def test_models_without_a_branch_have_one_graph() -> None:
    made = compiled_for(nn.Linear(4, 2), tracing_inputs=[torch.ones(1, 4), torch.ones(2, 4)])
    assert made.variants == ()
    assert made.report.variants == ()


def test_quantization_takes_the_inputs_of_each_side(model: nn.Module, tmp_path: Path) -> None:
    given = [call(batch, length) for batch in (2, 3) for length in (4, 5, 9, 12)]
    made = compiled_for(
        model,
        pb.OnnxRuntimeDeployment(),
        calibration_inputs=given,
        quantization_settings=pb.QuantizationSettings(),
        layer_quantization_settings={"head.long": pb.LayerQuantizationSettings(skip_quantization=True)},
    )
    rows = {row.fqn: row for row in made.report.layers}
    assert rows["embed"].weights_bits == rows["head.short"].weights_bits == 8
    assert not rows["head.long"].quantized
    assert rows["head.long"].rule == "head.long"
    tensors = {row.fqn: row.outcome for row in made.report.tensors}
    assert tensors["head.short.weight"] == "quantized"
    assert tensors["head.long.weight"] == "float by rule"
    made.save(tmp_path / "saved")
    for each in (made, pb.load_compiled(tmp_path / "saved")):
        for size in ((2, 5), (2, 11)):
            x = call(*size)
            got, wanted = each(*x)["scores"], model(*x)["scores"]
            assert float((got - wanted).detach().norm() / wanted.detach().norm()) < 0.05


def test_a_side_without_calibration_inputs_learns_from_its_tracing_inputs(model: nn.Module) -> None:
    made = compiled_for(model)
    made.initialize_algorithms([call(2, 4), call(3, 5)])
    assert {row.fqn for row in made.report.layers if row.quantized} == {"embed", "head.short", "head.long"}
    assert "variant 1 was calibrated on tracing_inputs[1]: no calibration input is for it" in repr(made.report)
    assert made(*call(2, 9))["is_long"] is True


def test_calibration_inputs_that_no_variant_takes_are_named() -> None:
    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.middle = nn.Linear(3, 3), Middle()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.middle(self.layer(x))

    given = [torch.randn(2, 3), torch.randn(9, 3)]
    with pytest.raises(ConditionError, match=r"calibration_inputs\[1\]: No variant"):
        compiled_for(
            Steps(),
            tracing_inputs=given,
            calibration_inputs=[given[0], torch.randn(5, 3)],
            quantization_settings=pb.QuantizationSettings(),
        )


def test_a_side_without_layers_stays_in_float() -> None:
    class Optional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) if x.shape[0] > 4 else x * 2

    given = [torch.randn(2, 4), torch.randn(8, 4)]
    made = compiled_for(
        Optional().eval(),
        calibration_inputs=given,
        tracing_inputs=given,
        quantization_settings=pb.QuantizationSettings(),
    )
    assert [row.quantized for row in made.report.layers] == [True]
    assert torch.equal(made(given[0]), given[0] * 2)


def test_a_plan_is_that_of_all_variants(model: nn.Module) -> None:
    plan = compiled_for(
        model, calibration_inputs=samples(), quantization_settings=pb.QuantizationSettings(), is_dry_run=True
    )
    assert {row.fqn for row in plan.layers if row.quantized} == {"embed", "head.short", "head.long"}
    assert len(plan.variants) == 2
    assert not plan.leaves


def test_other_structures_are_refused() -> None:
    class Pair(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return (x, x + 1) if x.shape[0] > 4 else (x * 2,)

    with pytest.raises(TargetError, match="Variant 1 returns another structure than variant 0"):
        compiled_for(Pair(), tracing_inputs=[torch.ones(2, 3), torch.ones(6, 3)])


def test_what_a_leaf_must_be_is_checked(compiled: pb.CompiledModel) -> None:
    with pytest.raises(InputError, match=r"text must be a torch\.float32 tensor"):
        compiled(torch.ones(2, 4, 8, dtype=torch.float64), torch.ones(()))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("variants") / "saved"
    compiled_for(Head().eval(), tracing_inputs=[torch.randn(2, 4, 8), torch.randn(3, 9, 8)]).save(folder)
    return folder


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest["calls"]["variants"][0]["conditions"][0].update(formula="__import__('os')"),
        lambda manifest: manifest["calls"]["variants"][0].update(tensors=[]),
        lambda manifest: manifest["calls"]["variants"][0]["constants"].update({"7": 1}),
        lambda manifest: manifest["calls"]["variants"].pop(),
        lambda manifest: manifest["variants"][0].update(samples=["0"]),
        lambda manifest: manifest.pop("variants"),
    ],
)
def test_variants_of_others_are_checked(saved: Path, tmp_path: Path, change: Any) -> None:
    folder = Path(shutil.copytree(saved, tmp_path / "saved"))
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match="manifest is damaged"):
        pb.load_compiled(folder)


class Cooled(nn.Module):
    """Long signals are cooled until they are small, which nothing in the code limits."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)
        nn.init.eye_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    def forward(self, heat: torch.Tensor) -> torch.Tensor:
        heat = self.layer(heat)
        if heat.shape[0] > 4:
            while heat.abs().max() > 1.0:
                heat = heat * 0.5
        return heat


@pytest.mark.parametrize("deployment", in_turns(DEPLOYMENTS, 2, 3), ids=lambda each: type(each).__name__)
def test_what_one_side_asserts_about_values_is_a_condition_of_its_calls_only(deployment: Any, tmp_path: Path) -> None:
    long = [torch.full((6, 5), 1.5), torch.full((7, 5), 3.0), torch.full((7, 5), 0.5)]
    short = [torch.full((2, 5), 1.5), torch.full((3, 5), 3.0)]
    fixed = pb.fix(Cooled().eval(), [*long, *short], bounds=2).model
    compiled = pb.compile_model(fixed, tracing_inputs=[*long, *short], deployment_settings=deployment)
    assert len(compiled.variants) == 2
    compiled.save(tmp_path / "saved")
    for each in (compiled, pb.load_compiled(tmp_path / "saved", allow_code=True)):
        for x in (long[0], short[1], torch.full((3, 5), 90.0)):
            torch.testing.assert_close(each(x), fixed(x), rtol=1e-4, atol=1e-5)
        with pytest.raises(ConditionError, match="more than 2 iterations"):
            each(torch.full((6, 5), 90.0))
    if isinstance(deployment, pb.OnnxRuntimeDeployment):
        with pytest.raises(SettingsError, match=r"One file has no place for .*more than 2 iterations"):
            compiled.export(tmp_path / "model.onnx")


class Encoder(nn.Module):
    """A layer that both sides share, padding of what is no multiple of 4, and a result of one side."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.rest = nn.Linear(6, 32), nn.Linear(32, 32)

    def forward(self, signal: torch.Tensor) -> Any:
        hidden = self.shared(signal)
        over = signal.shape[1] % 4
        if over:
            return self.rest(nn.functional.pad(hidden, (0, 0, 0, 4 - over))), True
        return hidden, False


def onnx_results(file: Path, x: torch.Tensor) -> dict[str, torch.Tensor]:
    import onnxruntime

    session = onnxruntime.InferenceSession(file)
    names = [value.name for value in session.get_outputs()]
    given = {session.get_inputs()[0].name: x.numpy()}
    return dict(zip(names, map(torch.as_tensor, session.run(None, given)), strict=True))


def test_one_file_chooses(tmp_path: Path) -> None:
    import onnx

    torch.manual_seed(0)
    encoder = Encoder().eval()
    given = [torch.randn(2, 8, 6), torch.randn(3, 9, 6), torch.randn(1, 12, 6)]
    made = compiled_for(encoder, pb.OnnxRuntimeDeployment(), tracing_inputs=given)
    made.save(tmp_path / "saved")
    names = {"input_names": ["sound"], "output_names": ["hidden", "padded"], "dynamic_axes": {"sound": {1: "time"}}}
    file = made.export(tmp_path / "chosen.onnx", **names)
    again = pb.load_compiled(tmp_path / "saved").export(tmp_path / "again.onnx")
    read = onnx.load(file)
    onnx.checker.check_model(read)
    assert [node.op_type for node in read.graph.node].count("If") == 1
    assert read.graph.input[0].type.tensor_type.shape.dim[1].dim_param == "time"
    weights = [tensor for tensor in read.graph.initializer if list(tensor.dims) == [6, 32]]
    assert len(weights) == 1  # of the layer that both sides have
    for shape in ((2, 8, 6), (3, 9, 6), (1, 7, 6), (4, 16, 6), (2, 3, 6)):
        x = torch.randn(shape)
        hidden, padded = encoder(x)
        for each in (file, again):
            found = list(onnx_results(each, x).values())
            torch.testing.assert_close(found[0], hidden, rtol=1e-4, atol=1e-5)
            assert bool(found[1]) is padded
    (text,) = [entry.value for entry in read.metadata_props if entry.key == "prepbench.conditions"]
    assert (tmp_path / "chosen.onnx.conditions.json").read_text() == text + "\n"
    first, second = json.loads(text)["variants"]
    assert first[0]["text"] == "the length of signal (signal.shape[1]) must be a multiple of 4"
    assert second[0]["sizes"] == [{"input": "sound", "dim": 1}]


def test_a_file_of_three_ways_and_of_quantized_weights(tmp_path: Path) -> None:
    class Ways(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.last = nn.Linear(16, 16), nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.layer(x)
            if x.shape[0] < 4:
                return self.last(hidden + 1)
            return self.last(hidden * 2) if x.shape[0] < 9 else self.last(hidden.cumsum(0))

    torch.manual_seed(0)
    model = Ways().eval()
    given = [torch.randn(batch, 16) for batch in (2, 6, 12)]
    made = compiled_for(
        model,
        pb.OnnxRuntimeDeployment(),
        tracing_inputs=given,
        calibration_inputs=given * 2,
        quantization_settings=pb.QuantizationSettings(),
    )
    file = made.export(tmp_path / "model.onnx")
    for batch in (1, 3, 4, 8, 9, 30):
        x = torch.randn(batch, 16) * 0.5
        torch.testing.assert_close(onnx_results(file, x)["output"], made(x), rtol=1e-3, atol=1e-3)


def test_what_no_file_can_hold_is_refused(compiled: pb.CompiledModel, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="keep_outputs_at_idx cannot be given for a model with variants"):
        compiled.export(tmp_path / "model.onnx", keep_outputs_at_idx=[0])
    with pytest.raises(SettingsError, match="this model has variants"):
        compiled.export(tmp_path / "folder", style="transformers")
    assert not list(tmp_path.iterdir())


S0, S1 = "Symbol('s0', integer=True)", "Symbol('s1', integer=True)"
FORMULAS: dict[str, Any] = {
    f"StrictLessThan(Add(Mul(FloorDiv({S0}, Integer(4)), Integer(3)), Mul(Integer(-2), {S1})), Integer(5))": (
        lambda a, b: a // 4 * 3 - 2 * b < 5
    ),
    f"Equality(FloorDiv(Add(Integer(1), Mul(Integer(-1), {S0})), Integer(3)), Integer(-2))": (
        lambda a, b: (1 - a) // 3 == -2
    ),
    f"Or(Unequality(Mod({S0}, Integer(5)), Integer(1)), StrictGreaterThan({S1}, Integer(7)))": (
        lambda a, b: a % 5 != 1 or b > 7
    ),
    f"And(GreaterThan(Add(Max({S0}, {S1}), Mul(Integer(-1), Min({S0}, Integer(2)))), Integer(4)), "
    f"Not(Eq({S1}, Integer(7))))": (lambda a, b: max(a, b) - min(a, 2) >= 4 and b != 7),
    f"LessThan(Abs(Add({S0}, Mul(Integer(-1), {S1}))), Integer(3))": lambda a, b: abs(a - b) <= 3,
}


@pytest.mark.parametrize("formula", FORMULAS)
def test_formulas_are_the_same_in_onnx(formula: str) -> None:
    import onnxruntime
    from onnx import TensorProto, helper

    from prepbench.capture.sizes.size_formulas import size_function
    from prepbench.targets.onnx.branches import SizePredicates

    writer = SizePredicates()
    result = writer.all_of([(formula, [("x", 0), ("x", 1)])])
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, None])
    made = helper.make_graph(writer.nodes, "g", [given], [helper.make_tensor_value_info(result, TensorProto.BOOL, [])])
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for rows in range(12):
        for columns in range(9):
            found = bool(session.run(None, {"x": torch.zeros(rows, columns).numpy()})[0])
            assert found == size_function(formula, 2)(rows, columns) == FORMULAS[formula](rows, columns)


@pytest.mark.parametrize(
    "formula", [f"StrictGreaterThan(FloorDiv({S0}, {S1}), Integer(1))", f"Equality(IntTrueDiv({S0}, Integer(2)), {S1})"]
)
def test_formulas_that_onnx_would_compute_otherwise_are_refused(formula: str) -> None:
    from prepbench.targets.onnx.branches import SizePredicates

    with pytest.raises(TargetError, match="A condition on sizes"):
        SizePredicates().all_of([(formula, [("x", 0), ("x", 1)])])


class Drops(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] // 4 >= 2:
            x = x - x.mean(0, keepdim=True)
        return torch.cat(x.chunk(4, 0)[::-1], 0)


def test_a_refused_call_names_the_nearest_sizes_that_are_taken() -> None:
    inputs = [torch.randn(rows, 2) for rows in (11, 3, 10)]
    compiled = pb.compile_model(Drops(), tracing_inputs=inputs, deployment_settings=pb.EagerDeployment())
    with pytest.raises(ConditionError, match=r"\(x.shape\[0\] = 7\)\. x.shape\[0\] may be 3 or 8\. ") as caught:
        compiled(torch.randn(7, 2))
    assert "Variant 0 asks that" in str(caught.value)
    for rows in (3, 8):
        x = torch.randn(rows, 2)
        torch.testing.assert_close(compiled(x), Drops()(x))


def test_the_bench_captures_what_it_compiles() -> None:
    inputs = [torch.randn(rows, 2) for rows in (11, 3, 10)]
    bench = pb.Bench(Drops(), calibration_inputs=inputs)
    bench.capture()
    report = bench.captures.verified(bench.axes)
    assert report is not None
    assert "compile_model makes a graph for each way" in bench.summary().failures[0].remedy


class InPieces(nn.Module):
    """The count of pieces is asked in one line, which makes several conditions."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat(x.chunk(4, 0)[::-1], 0)


def test_a_line_of_code_stands_once_in_what_a_variant_asks() -> None:
    given = [torch.randn(11, 8), torch.randn(3, 8)]
    made = pb.compile_model(InPieces(), tracing_inputs=given, deployment_settings=pb.EagerDeployment())
    assert len(made.variants) == 2
    texts = [line for line in repr(made.report).splitlines() if "variant" in line]
    assert len(texts) == 2
    assert [text.count("x.chunk(4, 0)") for text in texts] == [1, 1]
    with pytest.raises(ConditionError) as caught:
        made(torch.randn(6, 8))
    assert str(caught.value).count("x.chunk(4, 0)") == 2
