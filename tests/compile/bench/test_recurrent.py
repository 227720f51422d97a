"""A bench on recurrent models: the weights of a layer with several levels or directions are layers of their own."""

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.widgets.bench import bench_widget


class Tagger(nn.Module):
    def __init__(self, **kind: object) -> None:
        super().__init__()
        self.rnn = nn.LSTM(8, 12, batch_first=True, **kind)  # type: ignore[arg-type]
        self.head = nn.LazyLinear(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(x)[0].mean(1))


@pytest.mark.parametrize("kind", [{}, {"num_layers": 2}, {"bidirectional": True}, {"num_layers": 2, "proj_size": 4}])
def test_every_step_works(kind: dict[str, object]) -> None:
    samples = [torch.randn(2, 9, 8), torch.randn(3, 12, 8)]
    model = Tagger(**kind).eval()
    model(samples[0])
    bench = pb.Bench(model, tracing_inputs=samples, calibration_inputs=samples)
    summary = bench.summary()
    assert summary.expected.megabytes < summary.expected.float_megabytes
    bench.compile()
    (run,) = bench.runs
    assert run.error == ""
    for layer in [row.fqn for row in run.report if row.quantized]:
        bench.inspecting.inspect(layer)
        assert bench.inspecting.wait(60).state == "ready"
    (picture,) = bench_widget(bench).children[1].children
    for layer in summary.layers:
        bench.select(layer.fqn)
        assert bench.selected == layer.fqn
        assert picture.selected == ["head" if layer.fqn == "head" else "rnn"]
    bench.set_precision([summary.layers[0].fqn], "float32")
    assert bench.summary().decisions[bench.summary().planned[0]].label == "float"
