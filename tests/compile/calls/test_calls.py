"""A compiled model is called like the original and returns the same structure; other calls are refused."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import InputError


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


class Structured(nn.Module):
    """Optional and keyword-only arguments in, nested structure out."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, *, scale: float = 1.0) -> dict[str, Any]:
        y = self.layer(x) * scale
        if mask is not None:
            y = y * mask
        return {"y": y, "pair": Pair(y, x + 1), "list": [y.sum(), None, (3, "text")]}


def call(batch: int, **keywords: Any) -> tuple[Any, ...]:
    return torch.randn(batch, 4), {"mask": torch.ones(batch, 4), **keywords}


@pytest.fixture(params=[pb.OnnxRuntimeDeployment(), pb.EagerDeployment()], ids=["onnxruntime", "eager"])
def target(request: pytest.FixtureRequest) -> pb.DeploymentSettings:
    return request.param


def test_nested_outputs_come_back_as_they_were(target: pb.DeploymentSettings, tmp_path: Any) -> None:
    model = Structured().eval()
    compiled = pb.compile_model(model, tracing_inputs=[call(2), call(3)], deployment_settings=target)
    compiled.save(tmp_path / "saved")
    x, mask = torch.randn(7, 4), torch.rand(7, 4)
    expected = model(x, mask)
    for candidate in (compiled, pb.load_compiled(tmp_path / "saved")):
        result = candidate(x, mask)
        assert list(result) == ["y", "pair", "list"]
        assert type(result["pair"]).__name__ == "Pair"
        assert result["pair"]._fields == ("first", "second")
        assert result["list"][1:] == [None, (3, "text")]
        torch.testing.assert_close(result["y"], expected["y"])
        torch.testing.assert_close(result["pair"].second, expected["pair"].second)
        torch.testing.assert_close(result["list"][0], expected["list"][0])


def test_arguments_may_be_given_by_position_or_keyword(target: pb.DeploymentSettings) -> None:
    compiled = pb.compile_model(Structured(), tracing_inputs=[call(2), call(3)], deployment_settings=target)
    x, mask = torch.randn(5, 4), torch.rand(5, 4)
    results = [compiled(x, mask), compiled(x, mask=mask), compiled(mask=mask, x=x), compiled(x, mask, scale=1.0)]
    assert all(torch.equal(results[0]["y"], other["y"]) for other in results[1:])


@pytest.mark.parametrize(
    "args, keywords, message",
    [
        ((), {}, "missing x"),
        ((torch.ones(2, 4),), {}, "missing mask"),
        ((torch.ones(2, 4), torch.ones(2, 4)), {"scale": 3.0}, "scale"),
        ((torch.ones(2, 4), torch.ones(2, 4)), {"other": 1}, "other was not among the tracing inputs"),
        ((torch.ones(2, 4), torch.ones(2, 4)), {"x": torch.ones(2, 4)}, "'x' is given twice"),
        (
            (torch.ones(2, 5), torch.ones(2, 4)),
            {},
            r"x must be a torch.float32 tensor of shape \(\*, 4\), got shape \(2, 5\)",
        ),
        ((torch.ones(4), torch.ones(2, 4)), {}, r"x must be .*, got shape \(4,\)"),
        ((torch.ones(2, 4).double(), torch.ones(2, 4)), {}, r"got torch.float64. Convert it: x.to\(torch.float32\)"),
        ((torch.ones(2, 4).numpy(), torch.ones(2, 4)), {}, r"x must be .*, got ndarray"),
    ],
)
def test_a_call_of_another_form_is_refused(args: Any, keywords: Any, message: str) -> None:
    compiled = pb.compile_model(
        Structured(), tracing_inputs=[call(2), call(3)], deployment_settings=pb.EagerDeployment()
    )
    with pytest.raises(InputError, match=message):
        compiled(*args, **keywords)


def test_a_constant_argument_holds_for_its_value_only() -> None:
    samples = [call(2, scale=2.0), call(3, scale=2.0)]
    compiled = pb.compile_model(Structured(), tracing_inputs=samples, deployment_settings=pb.EagerDeployment())
    with pytest.raises(InputError, match=r"scale was 2.0 when the model was compiled.*got 3.0"):
        compiled(torch.ones(2, 4), torch.ones(2, 4), scale=3.0)


def test_inputs_of_any_layout_and_from_a_training_loop(target: pb.DeploymentSettings) -> None:
    net = nn.Linear(4, 2)
    compiled = pb.compile_model(net, tracing_inputs=[torch.randn(2, 4), torch.randn(3, 4)], deployment_settings=target)
    x = torch.randn(4, 6, requires_grad=True)
    result = compiled(x.t())
    torch.testing.assert_close(result, net(x.t()))
    assert not result.requires_grad
    assert compiled(torch.randn(0, 4)).shape == (0, 2)


class Counts(nn.Module):
    """Changes a buffer at each call; its output depends on it if asked to."""

    def __init__(self, used: bool) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))
        self.used = used

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x + self.calls if self.used else x * 2


def test_onnx_refuses_a_model_with_state_and_names_the_buffer() -> None:
    samples = [torch.randn(2, 4), torch.randn(3, 4)]
    with pytest.raises(pb.PrepbenchError, match="outputs depend on them: calls"):
        pb.compile_model(Counts(True), tracing_inputs=samples)
    assert torch.equal(pb.compile_model(Counts(False), tracing_inputs=samples)(samples[0]), samples[0] * 2)


def test_eager_keeps_its_own_state() -> None:
    model = Counts(True)
    samples = [torch.zeros(2, 4), torch.zeros(3, 4)]
    compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=pb.EagerDeployment())
    assert float((compiled(samples[0]) + compiled(samples[0]))[0, 0]) == 3
    assert float(model.calls) == 0


def test_transformers_outputs_keep_their_class_and_take_keywords() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=100
    )
    model = transformers.BertForSequenceClassification(config).eval()

    def tokens(batch: int, length: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(0, 100, (batch, length), generator=torch.Generator().manual_seed(batch))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    compiled = pb.compile_model(
        model,
        tracing_inputs=[tokens(2, 7), tokens(3, 9)],
        calibration_inputs=[tokens(4, 8), tokens(5, 12)],
        deployment_settings=pb.OnnxRuntimeDeployment(),
        quantization_settings=pb.QuantizationSettings(),
    )
    unseen = tokens(6, 13)
    result, expected = compiled(**unseen), model(**unseen)
    assert type(result) is type(expected)
    noise = (result.logits - expected.logits).pow(2).sum() / expected.logits.pow(2).sum()
    assert float(noise) < 10**-2.5
    assert all(row.quantized for row in compiled.report.layers)


class Fills(nn.Module):
    def forward(self, pair: Pair, fill: float, power: int) -> torch.Tensor:
        return pair.first.masked_fill(pair.second > 0, fill) * power


def test_numbers_that_are_equal_but_of_another_type_are_refused_and_nan_is_itself() -> None:
    def sample(size: int) -> tuple[Any, ...]:
        return Pair(torch.ones(size, 2, dtype=torch.int64).float(), torch.randn(size, 2)), float("nan"), 2

    compiled = pb.compile_model(
        Fills().eval(), tracing_inputs=[sample(2), sample(3)], deployment_settings=pb.EagerDeployment()
    )
    for size in (4, 5):  # the second call is of a known form
        call = sample(size)
        torch.testing.assert_close(compiled(*call), Fills()(*call), equal_nan=True)
    pair, fill, power = sample(2)
    for other in (2.0, True):
        with pytest.raises(InputError, match="power was"):
            compiled(pair, fill, other)
    with pytest.raises(InputError, match="fill was"):
        compiled(pair, 0.0, power)
