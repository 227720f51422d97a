"""torch's encoder layers have a fast path in evaluation, which returns 0 for padded tokens; graphs have none."""

import pytest
import torch
from torch import nn

import prepbench as pb


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(16, 3)

    def forward(self, tokens: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(tokens, src_key_padding_mask=padding))


def _call(rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    padding = torch.zeros(rows, length, dtype=torch.bool)
    padding[0, length - 2 :] = True
    return torch.randn(rows, length, 16), padding


@pytest.mark.parametrize("target", [pb.OnnxRuntimeDeployment(), pb.EagerDeployment()], ids=["onnx", "eager"])
def test_padding_is_computed_as_in_training_and_said(target: pb.DeploymentSettings) -> None:
    torch.manual_seed(0)
    model, samples = Classifier().eval(), [_call(2, 6), _call(3, 8)]
    with pytest.warns(pb.PrepbenchWarning, match="fast path of nn.TransformerEncoder returns 0 for padded tokens"):
        compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=target)
    other = _call(4, 5)
    compared = pb.compare({"float": model, "compiled": compiled}, [other])
    assert compared["compiled"].metric > 100  # dB
    torch.testing.assert_close(compiled(*other), model(*other))  # with gradients, where PyTorch has no fast path
    assert torch.backends.mha.get_fastpath_enabled()


def test_without_padding_nothing_is_said(recwarn: pytest.WarningsRecorder) -> None:
    model = Classifier().eval()
    pb.capture(model, [(torch.randn(rows, 6, 16), torch.zeros(rows, 6, dtype=torch.bool)) for rows in (2, 3)])
    assert not [found for found in recwarn if "fast path" in str(found.message)]


def test_an_encoder_that_is_kept_in_pytorch_agrees() -> None:
    model, samples = Classifier().eval(), [_call(2, 6), _call(3, 8)]
    captured = pb.capture(model, samples, leaf_modules=["encoder"])
    assert [leaf.fqn for leaf in captured.leaves] == ["encoder"]
    assert {axis.status for axis in captured.verify().axes} == {"holds"}
    other = _call(4, 5)
    with torch.no_grad():  # the fast path would be taken here
        torch.testing.assert_close(captured.program.module()(*other)[~other[1]], model(*other)[~other[1]])
