"""SmoothQuant: where the division goes, that the function stays, and that it helps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from prepbench.jobs import Cancelled, Progress
from prepbench.quantize.algorithms import smooth
from prepbench.quantize.algorithms.constants import Constants
from tests.compile.quantize.transformed import (
    export,
    layers_of,
    operators,
    samples_of,
    simulated_sqnr,
    unchanged,
)

aten = torch.ops.aten


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.o(nn.functional.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x)))


class Block(nn.Module):
    """A pre-norm transformer block, as it is in most large models."""

    def __init__(self, width: int = 32, activation: Callable[[torch.Tensor], torch.Tensor] = nn.functional.gelu):
        super().__init__()
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.one(x))
        return x + self.down(self.activation(self.up(self.two(x))))


def with_outliers(block: Block, factor: float = 60) -> Block:
    with torch.no_grad():
        for channel, norm in ((3, block.one), (7, block.two)):
            norm.weight[channel] = factor
            norm.bias[channel] = factor / 10
    return block


def test_a_norm_takes_the_scales_and_nothing_runs_in_addition() -> None:
    model = with_outliers(Block())
    x = torch.randn(4, 6, 32)
    graph = export(model, x)
    before = operators(graph)
    with unchanged(model, graph, x):
        changed = smooth(graph, layers_of(graph, model), samples_of(x, torch.randn(3, 6, 32)))
    assert changed == ["attention.q", "attention.k", "attention.v", "up"]
    assert operators(graph) == before
    assert graph.one.weight[3] < 20
    assert graph.get_parameter("attention.q.weight").requires_grad


def test_smoothing_helps_where_channels_stand_out() -> None:
    model = with_outliers(Block())
    data = [torch.randn(4, 6, 32) for _ in range(4)]
    graph = export(model, data[0])
    before = simulated_sqnr(model, graph, data, per_channel=True)
    smooth(graph, layers_of(graph, model), samples_of(*data))
    after = simulated_sqnr(model, graph, data, per_channel=True)
    assert after > before + 9


class PostNorm(nn.Module):
    """The norm's result goes into the residual sum too, as in BERT."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm, self.attention, self.pool = nn.LayerNorm(width), Attention(width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        first = x[:, 0]
        return self.attention(x) + x + (self.pool(first) + first).unsqueeze(1)


def test_a_product_serves_all_layers_where_a_residual_reads_the_activation() -> None:
    model = PostNorm()
    with torch.no_grad():
        model.norm.weight[5] = 80
    data = [torch.randn(4, 6, 32) for _ in range(3)]
    graph = export(model, data[0])
    count = len(operators(graph))
    before = simulated_sqnr(model, graph, data, per_channel=True)
    with unchanged(model, graph, data[0]):
        changed = smooth(graph, layers_of(graph, model), samples_of(*data))
        torch.export.export(graph, (data[0],), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    assert changed == ["attention.q", "attention.k", "attention.v", "pool"]
    assert len(operators(graph)) == count + 2  # for the norm's result and for its first row
    assert len({call.input for call in layers_of(graph, model)[:3]}) == 1
    assert {call.fqn for call in layers_of(graph, model)} == {
        "attention.q",
        "attention.k",
        "attention.v",
        "attention.o",
        "pool",
    }
    after = simulated_sqnr(model, graph, data, per_channel=True)
    assert after > before + 14


def test_no_product_where_it_would_not_pay() -> None:
    model = PostNorm()
    x = torch.randn(4, 6, 32)
    graph = export(model, x)
    before = operators(graph)
    with unchanged(model, graph, x):
        assert smooth(graph, layers_of(graph, model), samples_of(x)) == []
    assert operators(graph) == before


class Gated(nn.Module):
    """RMS norm by hand and a gated product, as in LLaMA."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.gate, self.up, self.down = (
            nn.Linear(width, 24, bias=False),
            nn.Linear(width, 24, bias=False),
            nn.Linear(24, width, bias=False),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


def test_gated_products_and_rms_norms_take_scales() -> None:
    model = Gated()
    with torch.no_grad():
        model.weight[2] = 50
        model.up.weight[4] *= 50
    x = torch.randn(8, 16)
    graph = export(model, x)
    before, count = simulated_sqnr(model, graph, [x], per_channel=True), len(operators(graph))
    with unchanged(model, graph, x):
        assert smooth(graph, layers_of(graph, model), samples_of(x)) == ["gate", "up", "down"]
    assert len(operators(graph)) == count
    after = simulated_sqnr(model, graph, [x], per_channel=True)
    assert after > before + 6


class Affine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(16)), nn.Parameter(torch.randn(16))
        self.norm = nn.RMSNorm(16)
        self.one, self.two = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.one(torch.tanh(x) * self.scale + self.shift))
        return self.two(self.norm(x))


class Matrices(nn.Module):
    """Weights that count inputs first, as in GPT-2, over rows of a view."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.one, self.two = nn.Module(), nn.Module()
        self.one.weight, self.one.bias = nn.Parameter(torch.randn(16, 24)), nn.Parameter(torch.randn(24))
        self.two.weight = nn.Parameter(torch.randn(24, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.addmm(self.one.bias, self.norm(x).view(-1, 16), self.one.weight)
        return torch.mm(torch.relu(rows), self.two.weight).view(x.shape)


@pytest.mark.parametrize(
    ("model", "x", "norm", "changed"),
    [
        (Affine(), torch.randn(5, 16), "scale", ["one", "two"]),
        (Matrices(), torch.randn(5, 3, 16), "norm.weight", ["one", "two"]),
    ],
    ids=["affine", "matrices"],
)
def test_other_forms(model: nn.Module, x: torch.Tensor, norm: str, changed: list[str]) -> None:
    with torch.no_grad():
        model.get_parameter(norm)[2] = 50
        if isinstance(model, Affine):
            model.norm.weight[3] = 50
        else:
            model.one.weight[:, 4] *= 50
    graph = export(model, x)
    count = len(operators(graph))
    with unchanged(model, graph, x):
        assert smooth(graph, layers_of(graph, model), samples_of(x)) == changed
    assert len(operators(graph)) == count


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm, self.head = nn.Embedding(30, 16), nn.LayerNorm(16), nn.Linear(16, 30, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.table(ids)))


def test_a_head_is_untied_from_its_embedding() -> None:
    model = Tied()
    with torch.no_grad():
        model.norm.weight[2] = 50
    ids = torch.randint(0, 30, (4, 5))
    graph = export(model, ids)
    with unchanged(model, graph, ids):
        assert smooth(graph, layers_of(graph, model), samples_of(ids)) == ["head"]
    assert [call.fqn for call in layers_of(graph, model)] == ["head"]


class Recurrent(nn.Module):
    """One layer and one norm, each called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer, self.last = nn.LayerNorm(16), nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(self.norm(x))
        y = self.norm(x)
        return self.last(y) + self.layer(torch.tanh(x))


def test_a_layer_that_is_called_twice_keeps_its_weight_and_a_shared_norm_is_split() -> None:
    model = Recurrent()
    with torch.no_grad():
        model.norm.weight[2] = 50
    x = torch.randn(4, 16)
    graph = export(model, x)
    with unchanged(model, graph, x):
        assert smooth(graph, layers_of(graph, model), samples_of(x)) == ["last"]
    assert torch.equal(graph.get_parameter("layer.weight"), model.layer.weight)
    assert torch.equal(graph.get_parameter("norm.weight"), model.norm.weight)
    assert "mul" not in operators(graph)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        return self.layer(x[:, 0]) + self.layer(x[:, 1])


def test_all_calls_of_a_layer_may_be_in_one_group() -> None:
    model = Twice()
    with torch.no_grad():
        model.norm.weight[2] = 50
    x = torch.randn(4, 2, 16)
    graph = export(model, x)
    with unchanged(model, graph, x):
        assert smooth(graph, layers_of(graph, model), samples_of(x)) == ["layer"]
    assert "mul" not in operators(graph)


def test_layers_that_stay_float_are_not_touched() -> None:
    model = with_outliers(Block())
    x = torch.randn(4, 6, 32)
    graph = export(model, x)
    calls = [call for call in layers_of(graph, model) if call.fqn in ("attention.q", "attention.k")]
    with unchanged(model, graph, x):
        assert smooth(graph, calls, samples_of(x)) == ["attention.q", "attention.k"]
    assert operators(graph).count("mul") == 1
    assert torch.equal(graph.get_parameter("attention.v.weight"), model.attention.v.weight)


def test_channels_without_weights_or_values_stay_harmless() -> None:
    model = with_outliers(Block(activation=nn.functional.relu))
    with torch.no_grad():
        for layer in (model.attention.q, model.attention.k, model.attention.v, model.up):
            layer.weight[:, 11] = 0
        model.one.weight[13], model.one.bias[13] = 0, 0
        model.up.weight[3], model.up.bias[3] = 0, 0
        model.up.weight[4] *= 60
    data = [torch.randn(4, 6, 32) for _ in range(2)]
    graph = export(model, data[0])
    before = simulated_sqnr(model, graph, data, per_channel=True)
    with unchanged(model, graph, data[0]):
        assert "down" in smooth(graph, layers_of(graph, model), samples_of(*data))
    after = simulated_sqnr(model, graph, data, per_channel=True)
    assert after > before + 8


@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_cancelled_call_leaves_the_graph_as_it_was(step: int) -> None:
    model = with_outliers(Block())
    x = torch.randn(4, 6, 32)
    graph = export(model, x)
    code, state, modules = graph.code, dict(graph.state_dict(keep_vars=True)), [n for n, _ in graph.named_modules()]
    seen = []

    def cancel(progress: Progress) -> None:
        seen.append((progress.stage, progress.done, progress.total))
        if progress.done == step:
            raise Cancelled

    with pytest.raises(Cancelled):
        smooth(graph, layers_of(graph, model), samples_of(x, x), cancel)
    assert seen == [("smooth", done, 2) for done in range(step + 1)]
    assert graph.code == code
    assert [n for n, _ in graph.named_modules()] == modules
    now = graph.state_dict(keep_vars=True)
    assert now.keys() == state.keys()
    assert all(now[name] is value for name, value in state.items())


def test_infinite_values_leave_their_layers_alone() -> None:
    model = with_outliers(Block())
    x = torch.randn(2, 6, 32)
    x[0, 0, 0] = float("inf")
    graph = export(model, torch.randn(2, 6, 32))
    assert smooth(graph, layers_of(graph, model), samples_of(x)) == []


def test_constants_are_looked_through_once_whatever_the_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Constants] = []
    begin = Constants.__init__

    def counted(self: Constants, graph: torch.fx.GraphModule) -> None:
        made.append(self)
        begin(self, graph)

    monkeypatch.setattr(Constants, "__init__", counted)
    model = nn.Sequential(*(layer for _ in range(12) for layer in (nn.Linear(8, 8), nn.ReLU()))).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("weight"):
                weight[0] *= 60
                weight[:, 0] /= 60
    x = torch.randn(16, 8)
    graph = export(model, x)
    with unchanged(model, graph, x):
        assert len(smooth(graph, layers_of(graph, model), samples_of(x))) > 6
    assert len(made) == 1
