"""``PreparedModel`` behaves as the original does: state, structures, attributes, hooks, saving, export."""

from __future__ import annotations

import copy
import io
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import prepbench as pb
from prepbench.prepare import prepare_model
from tests.compile.prepare.models import Block, Residual, SharedLinear, assert_prepared, x


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(()))

    def forward(self, x):
        self.n += 1
        return x + self.n


class Replaces(Counter):
    def forward(self, x):
        self.n = self.n + 1
        return x + self.n


@pytest.mark.parametrize("make", [Counter, Replaces])
@pytest.mark.parametrize("with_inputs", [True, False])
def test_buffers_are_updated_at_every_call(make: Any, with_inputs: bool) -> None:
    model = make()
    prepared = prepare_model(model, inputs=[x(2, 2)] if with_inputs else None)
    assert model.n == 0
    prepared = copy.deepcopy(prepared)
    for count in (1, 2, 3):
        torch.testing.assert_close(prepared(x(2, 2)), x(2, 2) + count)
    assert prepared.n == 3


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor | None


@dataclass
class Answer:
    logits: torch.Tensor
    extra: Any = None


class Structures(nn.Module):
    def forward(self, d, key="a"):
        total = d["a"] + d["b"]
        values, indices = total.max(1)
        return {"pair": Pair(total, None), "answer": Answer(values, extra={"i": indices}), "none": None, key: (total,)}


def test_structures_stay_what_they_are() -> None:
    sample = {"d": {"a": x(2, 3), "b": x(2, 3) * 2}}
    prepared = prepare_model(Structures(), inputs=[sample])
    got, expected = prepared(**sample), Structures()(**sample)
    assert isinstance(got["pair"], Pair)
    assert isinstance(got["answer"], Answer)
    assert got["none"] is None
    torch.testing.assert_close(got["answer"].extra["i"], expected["answer"].extra["i"])
    torch.testing.assert_close(got["pair"].first, expected["pair"].first)


class Attributes(nn.Module):
    classes = ("cat", "dog")

    def __init__(self) -> None:
        super().__init__()
        self.config = {"size": 4}
        self.code = "mine"
        self.block = Block()
        self.block.note = "kept"
        self.unused = nn.Linear(2, 2)

    @property
    def width(self) -> int:
        return self.config["size"]

    def name_of(self, index: int) -> str:
        return self.classes[index]

    def forward(self, x):
        return self.block(x)


def test_attributes_methods_and_unused_layers_are_kept() -> None:
    model = Attributes().eval()
    prepared = copy.deepcopy(prepare_model(model))
    assert prepared.config == {"size": 4}
    assert prepared.width == 4
    assert prepared.name_of(1) == "dog"
    assert prepared.block.note == "kept"
    assert isinstance(prepared.block, Block)
    assert prepared.load_state_dict(model.state_dict()) is not None
    assert any("'code'" in note for note in prepared.preparation_report.notes)
    with pytest.raises(AttributeError):
        prepared.nothing_like_this  # noqa: B018


def test_hooks_keep_working() -> None:
    model, seen = Residual().eval(), []
    model.register_forward_hook(lambda module, args, output: seen.append("root") or output * 2)
    model.layer1[0].conv1.register_forward_hook(lambda module, args, output: seen.append("layer"))
    model.layer1[1].register_forward_pre_hook(lambda module, args: seen.append("block") or (args[0] + 1,))
    prepared = assert_prepared(model, x(1, 4, 6, 6))
    seen.clear()
    prepared(x(1, 4, 6, 6))
    assert sorted(seen) == ["block", "layer", "root"]
    (kept,) = [kept for kept in prepared.preparation_report.kept if "hooks" in kept.why and kept.fqn == "layer1.1"]
    assert kept.operation == "Block"


def test_preparing_twice_changes_nothing() -> None:
    first = prepare_model(Residual().eval(), inputs=[x(1, 4, 6, 6)])
    for second in (prepare_model(first, inputs=[x(1, 4, 6, 6)]), prepare_model(first)):
        assert second.preparation_report.changes == ()
        assert [name for name, _ in second.named_modules()] == [name for name, _ in first.named_modules()]
        assert second.code == first.code
        torch.testing.assert_close(second(x(1, 4, 6, 6)), first(x(1, 4, 6, 6)))


def test_saved_and_loaded_by_state_dict() -> None:
    torch.manual_seed(0)
    trained = prepare_model(SharedLinear().eval(), inputs=[x(5, 4)])
    file = io.BytesIO()
    torch.save(trained.state_dict(), file)
    file.seek(0)
    torch.manual_seed(1)
    other = prepare_model(SharedLinear().eval(), inputs=[x(5, 4)])
    assert not torch.equal(other(x(5, 4)), trained(x(5, 4)))
    other.load_state_dict(torch.load(file, weights_only=True))
    torch.testing.assert_close(other(x(5, 4)), trained(x(5, 4)))


def test_exported_with_dynamic_batch() -> None:
    model = Residual().eval()
    prepared = prepare_model(model, inputs=[x(1, 4, 6, 6)])
    batch = torch.export.Dim("batch")
    program = torch.export.export(prepared, (x(2, 4, 6, 6),), dynamic_shapes=({0: batch},))
    torch.testing.assert_close(program.module()(x(5, 4, 6, 6)), model(x(5, 4, 6, 6)))
    stacks = {path for n in program.graph.nodes for path, _ in (n.meta.get("nn_module_stack") or {}).values()}
    assert any("module_add" in path for path in stacks)


def test_exported_to_onnx(tmp_path: Any) -> None:
    import onnxruntime

    model = Residual().eval()
    prepared = prepare_model(model, inputs=[x(2, 4, 6, 6)])
    path = tmp_path / "model.onnx"
    batch = torch.export.Dim("batch")
    torch.onnx.export(prepared, (x(2, 4, 6, 6),), str(path), dynamo=True, dynamic_shapes=({0: batch},), verbose=False)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (got,) = session.run(None, {session.get_inputs()[0].name: x(5, 4, 6, 6).numpy()})
    torch.testing.assert_close(torch.from_numpy(got), model(x(5, 4, 6, 6)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_moved_and_cast(kind: torch.dtype) -> None:
    prepared = copy.deepcopy(prepare_model(Residual().eval(), inputs=[x(2, 4, 6, 6)])).to(kind)
    assert {parameter.dtype for parameter in prepared.parameters()} == {kind}
    assert prepared(x(2, 4, 6, 6).to(kind)).dtype is kind
    meta = copy.deepcopy(prepared).to("meta")
    assert meta(x(3, 4, 6, 6).to("meta", kind)).shape == (3, 4, 6, 6)


def test_quantized_by_the_names_of_preparation() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = Residual(), nn.Linear(4, 3)

        def forward(self, x):
            return self.head(F.adaptive_avg_pool2d(self.body(x), 1).flatten(1))

    model = Net().eval()
    samples = [x(1, 4, 8, 8), x(2, 4, 8, 8)]
    prepared = prepare_model(model, inputs=samples)
    compiled = pb.compile_model(
        prepared,
        tracing_inputs=samples,
        calibration_inputs=samples,
        deployment_settings=pb.EagerDeployment(),
        quantization_settings=pb.QuantizationSettings(),
        layer_quantization_settings={"body.layer1.0.conv1": pb.LayerQuantizationSettings(skip_quantization=True)},
    )
    rows = {row.fqn: row for row in compiled.report.layers}
    assert rows["body.layer1.0.conv1"].quantized is False
    assert rows["body.layer1.1.conv1"].quantized is True
    expected = model(samples[1])
    assert (compiled(samples[1]) - expected).abs().max() < 0.2 * expected.abs().max()
