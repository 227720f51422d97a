from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx, nn

from prepbench.inputs import Sample
from prepbench.jobs import Cancelled, Progress
from prepbench.quantize.algorithms import equalize, smooth
from prepbench.quantize.layer_nodes import LayerNode, layer_nodes
from prepbench.running.sqnr import sqnr

aten = torch.ops.aten
Tensors = Sequence[torch.Tensor]


def export(model: nn.Module, *inputs: torch.Tensor) -> fx.GraphModule:
    shapes = tuple({0: torch.export.Dim.DYNAMIC} for _ in inputs)
    return torch.export.export(model.eval(), inputs, dynamic_shapes=shapes).module(check_guards=False)


def calls_of(graph: fx.GraphModule, model: nn.Module) -> list[LayerNode]:
    return layer_nodes(graph.graph, dict(model.named_modules()))


def samples_of(*inputs: torch.Tensor) -> list[Sample]:
    return [Sample((x,), {}, index) for index, x in enumerate(inputs)]


def operators(graph: fx.GraphModule) -> list[str]:
    return [str(node.target).split(".")[1] for node in graph.graph.nodes if node.op == "call_function"]


@contextmanager
def unchanged(model: nn.Module, graph: fx.GraphModule, *inputs: torch.Tensor, decibels: float = 100) -> Iterator[None]:
    """The function of the graph stays (also for another batch), so do all tensors of the model, and meta is there."""
    tensors = {name: (value.data_ptr(), value.clone()) for name, value in model.state_dict(keep_vars=True).items()}
    others = [torch.cat([x, x[:1]]) for x in inputs]
    with torch.no_grad():
        before = [graph(*inputs), graph(*others)]
    yield
    for name, value in model.state_dict(keep_vars=True).items():
        assert value.data_ptr() == tensors[name][0]
        assert torch.equal(value, tensors[name][1])
    graph.graph.lint()
    graph.recompile()
    with torch.no_grad():
        for reference, value in zip(before, [graph(*inputs), graph(*others)], strict=True):
            assert sqnr(reference, value) > decibels
    for node in graph.graph.nodes:
        assert node.op == "output" or isinstance(node.meta["val"], torch.Tensor | torch.SymInt)
        assert node.op != "call_function" or "nn_module_stack" in node.meta or node.target is aten.sym_size.int


# --- a plain simulation of int8, to see whether the algorithms help


def rounded(x: torch.Tensor, low: torch.Tensor, high: torch.Tensor, levels: int) -> torch.Tensor:
    step = ((high - low) / levels).clamp_min(1e-30)
    return ((x - low) / step).round().clamp(0, levels) * step + low


class Simulated(fx.Interpreter):
    """The graph with uint8 inputs of its layers, per tensor, and int8 weights, per tensor or per output channel."""

    def __init__(self, graph: fx.GraphModule, calls: Sequence[LayerNode], per_channel: bool) -> None:
        super().__init__(graph)
        self.calls = {call.node: call for call in calls}
        self.per_channel = per_channel
        self.ranges: dict[fx.Node, tuple[torch.Tensor, torch.Tensor]] = {}
        self.rounding = False

    def run_node(self, n: fx.Node) -> object:
        call = self.calls.get(n)
        if call is None:
            return super().run_node(n)
        x, weight = self.env[call.input], self.env[call.weight]
        if self.rounding:
            low, high = self.ranges[n]
            dims = [d for d in range(weight.ndim) if d != call.axis] if self.per_channel else None
            bound = weight.abs().amax(dims, keepdim=True) if dims else weight.abs().max()
            self.env[call.input], self.env[call.weight] = (
                rounded(x, low, high, 255),
                rounded(weight, -bound, bound, 254),
            )
        else:
            seen = self.ranges.get(n, (torch.zeros(()), torch.zeros(())))
            self.ranges[n] = (torch.minimum(seen[0], x.min()), torch.maximum(seen[1], x.max()))
        try:
            return super().run_node(n)
        finally:
            self.env[call.input], self.env[call.weight] = x, weight


def simulated_sqnr(model: nn.Module, graph: fx.GraphModule, data: Tensors, per_channel: bool) -> float:
    simulation = Simulated(graph, calls_of(graph, model), per_channel)
    simulation.garbage_collect_values = False
    with torch.no_grad():
        for x in data:
            simulation.run(x)
        simulation.rounding = True
        pairs = [(model(x), simulation.run(x)) for x in data]
    return sqnr(torch.cat([reference for reference, _ in pairs]), torch.cat([value for _, value in pairs]))


# --- models


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


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def spread(*layers: nn.Module, decades: float = 1.0) -> None:
    """Give the channels between neighbouring layers ranges that lie decades apart, the function staying the same."""
    with torch.no_grad():
        for one, two in pairwise(layers):
            factor = 10 ** ((torch.rand(len(one.weight)) * 2 - 1) * decades)
            one.weight *= factor.view([-1] + [1] * (one.weight.ndim - 1))
            if one.bias is not None:
                one.bias *= factor
            if getattr(two, "groups", 1) > 1:
                two.weight /= factor.repeat_interleave(len(two.weight) // len(factor)).view(-1, 1, 1, 1)
            else:
                two.weight /= factor.view([1, -1] + [1] * (two.weight.ndim - 2))


# --- SmoothQuant


def test_a_norm_takes_the_scales_and_nothing_runs_in_addition() -> None:
    model = with_outliers(Block())
    x = torch.randn(4, 6, 32)
    graph = export(model, x)
    before = operators(graph)
    with unchanged(model, graph, x):
        changed = smooth(graph, calls_of(graph, model), samples_of(x, torch.randn(3, 6, 32)))
    assert changed == ["attention.q", "attention.k", "attention.v", "up"]
    assert operators(graph) == before
    assert graph.one.weight[3] < 20
    assert graph.get_parameter("attention.q.weight").requires_grad


def test_smoothing_helps_where_channels_stand_out() -> None:
    model = with_outliers(Block())
    data = [torch.randn(4, 6, 32) for _ in range(4)]
    graph = export(model, data[0])
    before = simulated_sqnr(model, graph, data, per_channel=True)
    smooth(graph, calls_of(graph, model), samples_of(*data))
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
        changed = smooth(graph, calls_of(graph, model), samples_of(*data))
        torch.export.export(graph, (data[0],), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    assert changed == ["attention.q", "attention.k", "attention.v", "pool"]
    assert len(operators(graph)) == count + 2  # for the norm's result and for its first row
    assert len({call.input for call in calls_of(graph, model)[:3]}) == 1
    assert {call.fqn for call in calls_of(graph, model)} == {
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
        assert smooth(graph, calls_of(graph, model), samples_of(x)) == []
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
        assert smooth(graph, calls_of(graph, model), samples_of(x)) == ["gate", "up", "down"]
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
        assert smooth(graph, calls_of(graph, model), samples_of(x)) == changed
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
        assert smooth(graph, calls_of(graph, model), samples_of(ids)) == ["head"]
    assert [call.fqn for call in calls_of(graph, model)] == ["head"]


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
        assert smooth(graph, calls_of(graph, model), samples_of(x)) == ["last"]
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
        assert smooth(graph, calls_of(graph, model), samples_of(x)) == ["layer"]
    assert "mul" not in operators(graph)


def test_layers_that_stay_float_are_not_touched() -> None:
    model = with_outliers(Block())
    x = torch.randn(4, 6, 32)
    graph = export(model, x)
    calls = [call for call in calls_of(graph, model) if call.fqn in ("attention.q", "attention.k")]
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
        assert "down" in smooth(graph, calls_of(graph, model), samples_of(*data))
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
        smooth(graph, calls_of(graph, model), samples_of(x, x), cancel)
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
    assert smooth(graph, calls_of(graph, model), samples_of(x)) == []


# --- cross-layer equalisation


class Convolutions(nn.Module):
    """Convolution, depthwise convolution with two outputs per input, pool, pointwise, grouped, head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding="same")
        self.depthwise = nn.Conv2d(8, 16, 3, padding=1, groups=8)
        self.point = nn.Conv2d(16, 16, 1, bias=False)
        self.grouped = nn.Conv2d(16, 16, 3, groups=4)
        self.last = nn.Conv2d(16, 8, 1)
        self.one, self.two = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.leaky_relu(self.depthwise(torch.relu_(self.stem(x))))
        x = torch.relu(self.point(nn.functional.max_pool2d(x, 2)))
        x = self.last(self.grouped(x)).mean((2, 3))
        return self.two(torch.relu(self.one(x)))


def test_equalising_helps_where_channels_have_unlike_ranges() -> None:
    model = Convolutions()
    spread(model.stem, model.depthwise, model.point)
    spread(model.one, model.two)
    data = [torch.randn(4, 3, 12, 12) for _ in range(3)]
    graph = export(model, data[0])
    before = simulated_sqnr(model, graph, data, per_channel=False)
    code = graph.code
    with unchanged(model, graph, data[0]):
        changed = equalize(graph, calls_of(graph, model))
    assert changed == ["stem", "depthwise", "point", "grouped", "last", "one", "two"]
    assert graph.code == code
    after = simulated_sqnr(model, graph, data, per_channel=False)
    assert after > before + 15
    assert equalize(graph, calls_of(graph, model)) == []


def test_neighbouring_ranges_agree_afterwards() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.ReLU(), nn.Conv2d(8, 5, 1))
    spread(model[0], model[2])
    x = torch.randn(2, 3, 6, 6)
    graph = export(model, x)
    assert equalize(graph, calls_of(graph, model)) == ["0", "2"]
    outputs = graph.get_parameter("0.weight").abs().amax((1, 2, 3))
    torch.testing.assert_close(outputs, graph.get_parameter("2.weight").abs().amax((0, 2, 3)), rtol=5e-3, atol=0)


class Two(nn.Module):
    """Two layers and what lies between them."""

    def __init__(self, one: nn.Module, two: nn.Module, between: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.one, self.two, self.between = one, two, between

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.one(x)
        return self.two(self.between(y))


class Residual(Two):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.one(x))
        return self.two(y) + y


@pytest.mark.parametrize(
    "model",
    [
        Two(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1), nn.functional.relu6),
        Two(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1), nn.functional.hardtanh),
        Two(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1), nn.functional.gelu),
        Two(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1, groups=2), nn.functional.relu),
        Two(nn.Conv2d(3, 8, 1), nn.Linear(6, 6), nn.functional.relu),
        Residual(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1), nn.functional.relu),
    ],
    ids=["relu6", "hardtanh", "gelu", "groups", "linear", "residual"],
)
def test_what_is_no_pair_is_left_alone(model: Two) -> None:
    model.one.weight.data[0] *= 50
    x = torch.randn(2, 3, 6, 6)
    graph = export(model, x)
    assert equalize(graph, calls_of(graph, model)) == []


def test_shared_layers_are_not_equalised() -> None:
    shared = nn.Linear(8, 8)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), shared, nn.ReLU(), shared, nn.ReLU(), nn.Linear(8, 8))
    tied = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    tied[2].weight = tied[0].weight
    for net in (model, tied):
        net[0].weight.data[0] *= 50
        x = torch.randn(2, 8)
        graph = export(net, x)
        with unchanged(net, graph, x):
            assert equalize(graph, calls_of(graph, net)) == []


def test_a_shared_bias_is_split() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    model[2].bias = model[0].bias
    spread(model[0], model[2])
    x = torch.randn(2, 8)
    graph = export(model, x)
    with unchanged(model, graph, x):
        assert equalize(graph, calls_of(graph, model)) == ["0", "2"]


def test_dead_channels_with_a_bias_do_not_blow_up() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 1))
    with torch.no_grad():
        model[0].weight[0], model[0].bias[0] = 0, 1
        model[0].weight[1], model[0].bias[1] = 1e-12, 1
        model[0].weight[2], model[0].bias[2] = 1e-12, 0
        model[2].weight[:, 3] = 0
        model[2].weight[:, 4] = 1e-12
    data = [torch.randn(2, 3, 6, 6)]
    graph = export(model, data[0])
    before = simulated_sqnr(model, graph, data, per_channel=False)
    with unchanged(model, graph, data[0]):
        equalize(graph, calls_of(graph, model))
    assert simulated_sqnr(model, graph, data, per_channel=False) > before - 1
    assert all(bool(value.isfinite().all()) for value in graph.state_dict().values())


@st.composite
def chains(draw: st.DrawFn) -> nn.Sequential:
    """Linear layers with widths, activations, norms and outliers as they come."""
    between = {
        "none": nn.Identity,
        "relu": nn.ReLU,
        "leaky": nn.LeakyReLU,
        "relu6": nn.ReLU6,
        "gelu": nn.GELU,
        "dropout": nn.Dropout,
    }
    layers: list[nn.Module] = []
    width = 4
    for _ in range(draw(st.integers(1, 4))):
        after = draw(st.integers(2, 6))
        if draw(st.booleans()):
            layers.append(nn.LayerNorm(width))
            layers[-1].weight.data[draw(st.integers(0, width - 1))] = draw(st.sampled_from([0.0, 1e-3, 1.0, 80.0]))
        layer = nn.Linear(width, after, bias=draw(st.booleans()))
        layer.weight.data[:, draw(st.integers(0, width - 1))] *= draw(st.sampled_from([0.0, 1.0, 30.0]))
        layer.weight.data[draw(st.integers(0, after - 1))] *= draw(st.sampled_from([0.0, 1.0, 30.0]))
        layers += [layer, between[draw(st.sampled_from(sorted(between)))]()]
        width = after
    return nn.Sequential(*layers)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(chains(), st.floats(0, 1))
def test_the_function_stays_whatever_the_chain(model: nn.Sequential, strength: float) -> None:
    x = torch.randn(5, 4)
    graph = export(model, x)
    with unchanged(model, graph, x, decibels=80):
        equalize(graph, calls_of(graph, model))
        smooth(graph, calls_of(graph, model), samples_of(x), strength=strength)
