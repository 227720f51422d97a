"""ExecuTorch, and sizes that depend on data: refused, with a remedy that works."""

from __future__ import annotations

import ast
import re

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import TargetError

pytest.importorskip("executorch")


def test_sizes_that_depend_on_data_are_refused() -> None:
    class Picks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[x > 0]

    with pytest.raises(TargetError, match=r"plans memory ahead.*depends on data"):
        pb.compile_model(
            Picks(), tracing_inputs=[torch.randn(4), torch.randn(5)], deployment_settings=pb.ExecuTorchDeployment()
        )


@pytest.mark.stress
def test_the_remedy_for_packed_sequences_works() -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(4, 6, batch_first=True)

        def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            padded, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
            return padded

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.head = Encoder(), nn.Linear(6, 3)

        def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            tags: torch.Tensor = self.head(self.encoder(x, lengths))
            return tags

    model = Tagger().eval()
    samples = [(torch.randn(2, 5, 4), torch.tensor([5, 3])), (torch.randn(3, 7, 4), torch.tensor([7, 2, 4]))]
    target = pb.ExecuTorchDeployment()
    with pytest.raises(TargetError, match="depends on data") as caught:
        pb.compile_model(model, tracing_inputs=samples, deployment_settings=target, fullgraph=False)
    found = re.search(r"leaf_modules=(\[.*?\]) and fullgraph=False", str(caught.value))
    assert found is not None
    leaves = ast.literal_eval(found[1])
    compiled = pb.compile_model(
        model, tracing_inputs=samples, deployment_settings=target, leaf_modules=leaves, fullgraph=False
    )
    assert "runs in PyTorch: encoder" in str(compiled.report)
    longer = (torch.randn(4, 9, 4), torch.tensor([6, 2, 9, 1]))
    torch.testing.assert_close(compiled(*longer), model(*longer))
