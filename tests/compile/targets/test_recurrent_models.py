"""Models with several recurrent layers, in all the ways in which they are called."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import prepbench as pb


class Listener(nn.Module):
    """Convolutions and a GRU over sound, an LSTM called twice, and an LSTM that begins with the encoder's state and
    attends to it."""

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Sequential(nn.Conv1d(3, 8, 5, stride=2, padding=2), nn.ReLU())
        self.sound = nn.GRU(8, 6, 3, bidirectional=True, batch_first=True, dropout=0.2, bias=False)
        self.again = nn.LSTM(12, 12, batch_first=True)
        self.table = nn.Embedding(20, 5)
        self.words = nn.LSTM(5, 12, batch_first=True)
        self.head = nn.Linear(24, 20)

    def forward(
        self, sound: torch.Tensor, ids: torch.Tensor, cell: torch.Tensor
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        memory, state = self.sound(self.front(sound).transpose(1, 2))
        memory, kept = self.again(memory)
        memory, _ = self.again(memory, kept)
        first = torch.cat([state[-2], state[-1]], 1).unsqueeze(0)
        y, last = self.words(self.table(ids), (first, cell))
        seen = torch.softmax(y @ memory.transpose(1, 2), 2) @ memory
        return self.head(torch.cat([y, seen], 2)), last


def sample(batch: int, time: int, tokens: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(batch, 3, time), torch.randint(0, 20, (batch, tokens)), torch.randn(1, batch, 12)


@pytest.mark.parametrize(
    "target", [pb.OnnxRuntimeDeployment(), pb.OpenVinoDeployment()], ids=["ONNX Runtime", "OpenVINO"]
)
def test_one_graph_for_all_lengths(target: pb.DeploymentSettings) -> None:
    torch.manual_seed(0)
    model = Listener().eval()
    compiled = pb.compile_model(model, tracing_inputs=[sample(2, 24, 5), sample(3, 40, 7)], deployment_settings=target)
    assert compiled.report.leaves == compiled.report.fallbacks == ()
    for sizes in ((2, 24, 5), (1, 61, 1), (4, 9, 12), (0, 24, 5)):
        given = sample(*sizes)
        with torch.no_grad():
            expected, got = model(*given), compiled(*given)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
