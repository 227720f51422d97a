"""Weights under any name, in any container, computed from others or stacked: layers that are quantized."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.objects.compare import sqnr
from prepbench.quantize import Account, Observed, Placement, calibrate, convert, insert_observers
from prepbench.quantize.report import BY_RULE, FLOAT, NOT_REACHED, QUANTIZED, TensorReport
from prepbench.running.given_samples import normalize_samples
from prepbench.settings import LayerQuantizationSettings, QuantizationSettings, explain_settings

WEIGHTS_ONLY = QuantizationSettings(prefer_weights_only_quantization=True)


class Holder(nn.Module):
    """Tensors of any kind and a function that uses them; a linear layer beside them is always quantized."""

    def __init__(self, made: Callable[[nn.Module], None], run: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)
        made(self)
        self._run = run

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._run(self, self.body(x))


def matrix(*sizes: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*sizes or (8, 8)))


def one(name: str) -> Callable[[Any], None]:
    return lambda module: setattr(module, name, matrix())


def listed(module: Any) -> None:
    module.kernels = nn.ParameterList([matrix(), matrix(8, 6)])


def keyed(module: Any) -> None:
    module.table = nn.ParameterDict({"proj": matrix()})


def buffered(module: Any) -> None:
    module.register_buffer("filters", torch.randn(5, 8))


def stacked(module: Any) -> None:
    module.experts = matrix(3, 8, 4)


def heads(module: Any) -> None:
    module.split, module.join = matrix(8, 2, 3), matrix(2, 3, 5)


def normed(module: Any) -> None:
    module.dense = nn.utils.parametrizations.weight_norm(nn.Linear(8, 5))


def spectral(module: Any) -> None:
    module.conv = nn.utils.spectral_norm(nn.Conv1d(8, 4, 3))


def symmetric(module: Any) -> None:
    module.dense = nn.Linear(8, 8)
    nn.utils.parametrize.register_parametrization(module.dense, "weight", Symmetric())


class Symmetric(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.triu() + weight.triu(1).T


def eight_bit_floats(module: Any) -> None:
    module.dense = nn.Linear(8, 8, bias=False)
    module.dense.weight = nn.Parameter(torch.randn(8, 8).to(torch.float8_e4m3fn), requires_grad=False)
    module.dense.scale = nn.Parameter(torch.rand(8, 1) + 0.5)


def in_integers(module: Any) -> None:
    module.packed = nn.Module()
    module.packed.register_buffer("integers", torch.randint(-8, 8, (8, 6), dtype=torch.int32))
    module.packed.register_buffer("scales", torch.rand(2, 6) + 0.5)


def unpacked(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x @ (self.packed.integers.reshape(2, 4, 6) * self.packed.scales.unsqueeze(1)).reshape(8, 6)


def low_rank(module: Any) -> None:
    module.down, module.up = matrix(8, 2), matrix(2, 8)


def by_expert(self: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.bmm(x.expand(3, *x.shape[-2:]), self.experts)


CASES: dict[str, tuple[Callable[[Any], None], Callable[[Any, torch.Tensor], torch.Tensor], set[str]]] = {
    "w": (one("w"), lambda self, x: x @ self.w, {"w"}),
    "kernel": (one("kernel"), lambda self, x: nn.functional.linear(x, self.kernel), {"kernel"}),
    "transposed": (one("proj"), lambda self, x: x @ self.proj.T, {"proj"}),
    "einsum": (one("m"), lambda self, x: torch.einsum("bi,oi->bo", x, self.m), {"m"}),
    "einsum the other way": (one("m"), lambda self, x: torch.einsum("bi,io->bo", x, self.m), {"m"}),
    "einsum to heads and back": (
        heads,
        lambda self, x: torch.einsum("bhd,hdo->bo", torch.einsum("bi,ihd->bhd", x, self.split), self.join),
        {"split", "join"},
    ),
    "einsum, the weight first": (one("m"), lambda self, x: torch.einsum("oi,bi->bo", self.m, x), {"m"}),
    "list": (listed, lambda self, x: x @ self.kernels[0] @ self.kernels[1], {"kernels.0", "kernels.1"}),
    "dict": (keyed, lambda self, x: x @ self.table["proj"], {"table.proj"}),
    "buffer": (buffered, lambda self, x: nn.functional.linear(x, self.filters), {"filters"}),
    "weight norm": (normed, lambda self, x: self.dense(x), {"dense"}),
    "spectral norm": (spectral, lambda self, x: self.conv(x.T.unsqueeze(0)), {"conv"}),
    "parametrization": (symmetric, lambda self, x: self.dense(x), {"dense"}),
    "product": (low_rank, lambda self, x: x @ (self.down @ self.up), {"down"}),
    "scaled": (one("w"), lambda self, x: nn.functional.linear(x, self.w * 0.5), {"w"}),
    "float8 with scales": (
        eight_bit_floats,
        lambda self, x: nn.functional.linear(x, self.dense.weight.to(x.dtype) * self.dense.scale),
        {"dense"},
    ),
    "integers with scales": (in_integers, unpacked, {"packed"}),
    "one of a stack": (stacked, lambda self, x: x @ self.experts[0] + x @ self.experts[2], {"experts"}),
    "stack": (stacked, by_expert, {"experts"}),
}


def observe(model: nn.Module, x: torch.Tensor, settings: Any = WEIGHTS_ONLY, rules: Any = None) -> tuple[Any, Any]:
    program = torch.export.export(model.eval(), (x,), strict=False)
    explained = explain_settings(model, settings, rules)
    observed = insert_observers(program, model, explained, Placement())
    account = Account(program, model, (), explained, observed.layers, observed.plan)
    return observed, {row.fqn: row for row in account.rows()}


def converted(observed: Observed, x: torch.Tensor) -> torch.Tensor:
    graph = convert(calibrate(observed, normalize_samples(observed.graph, [x])))
    for name, value in [*graph.named_parameters(), *graph.named_buffers()]:
        assert value.dtype == torch.int8 or value.ndim < 2 or "scale" in name, f"{name} stays in float"
    result: torch.Tensor = graph(x)
    return result


@pytest.mark.parametrize("name", CASES)
def test_a_constant_that_is_multiplied_by_is_a_layer(name: str) -> None:
    made, run, layers = CASES[name]
    torch.manual_seed(0)
    model, x = Holder(made, run).eval(), torch.randn(7, 8)
    expected = model(x)
    observed, rows = observe(model, x)
    assert {row.fqn for row in observed.layers if row.quantized} == {"body", *layers}
    assert_adds_up(model, rows)
    assert all(row.outcome == QUANTIZED for row in rows.values() if row.elements > 8)
    torch.testing.assert_close(converted(observed, x), expected, atol=0.1 * float(expected.abs().max()), rtol=0)


def assert_adds_up(model: nn.Module, rows: dict[str, TensorReport]) -> None:
    tensors = [*model.parameters(), *model.buffers()]
    counted = [row.bytes for row in rows.values() if row.kind != "constant"]
    assert sum(counted) == sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    assert len(counted) == len(tensors)


def test_computed_weights_say_what_they_are_computed_from() -> None:
    observed, rows = observe(Holder(low_rank, CASES["product"][1]), torch.randn(7, 8))
    assert "computed once, from down, up" in next(row.note for row in observed.layers if row.fqn == "down")
    assert (rows["up"].layer, rows["up"].reason) == ("down", "computed with others to a weight")


def test_a_stack_has_scales_for_each_of_its_matrices() -> None:
    observed, _ = observe(Holder(stacked, by_expert), torch.randn(7, 8))
    assert "3 matrices of experts" in next(row.note for row in observed.layers if row.fqn == "experts")
    nodes = observed.plan.nodes["experts"]
    assert [node.weight.meta["val"].shape for node in nodes] == [(4, 8)] * 3
    assert len({node.weight.target for node in nodes}) == 3


def test_rules_name_tensors_like_layers() -> None:
    rules = {"kernels.1": LayerQuantizationSettings(skip_quantization=True)}
    observed, rows = observe(Holder(listed, CASES["list"][1]), torch.randn(7, 8), rules=rules)
    assert {row.fqn: row.quantized for row in observed.layers} == {
        "body": True,
        "kernels.0": True,
        "kernels.1": False,
    }
    assert (rows["kernels.1"].outcome, rows["kernels.1"].reason) == (BY_RULE, "skipped by rule 'kernels.1'")


def test_a_table_without_a_module_is_quantized_where_weights_alone_are() -> None:
    def looked_up(self: Any, x: torch.Tensor) -> torch.Tensor:
        return x + nn.functional.embedding(x.argmax(-1), self.codes)

    model, x = Holder(one("codes"), looked_up), torch.randn(7, 8)
    observed, _ = observe(model, x)
    assert {row.fqn: row.summary for row in observed.layers} == {"body": "int8 weights", "codes": "int8 weights"}
    observed, rows = observe(model, x, QuantizationSettings())
    assert {row.fqn: row.quantized for row in observed.layers} == {"body": True, "codes": False}
    assert rows["codes"].reason == "a table that is looked up in is quantized only where weights alone are"


class Rest(nn.Module):
    """What is no layer: added, written to, not used, of integers, tied."""

    positions: torch.Tensor
    seen: torch.Tensor
    steps: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body, self.unused = nn.Linear(8, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 8, bias=False)
        self.head.weight = self.body.weight
        self.register_buffer("positions", torch.randn(4, 8), persistent=False)
        self.register_buffer("seen", torch.zeros(4, 8))
        self.register_buffer("steps", torch.zeros(4, 8, dtype=torch.int64))
        self.mixing = torch.randn(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(x)
        return self.head(self.body(x) + self.positions + self.steps) @ self.mixing + self.seen


def test_what_is_not_quantized_says_why() -> None:
    model = Rest()
    observed, rows = observe(model, torch.randn(4, 8))
    assert_adds_up(model, rows)
    assert [row.fqn for row in observed.layers] == ["body", "unused", "head"]  # no row for what is only added
    assert rows["body.weight"].names == ("head.weight",)
    assert {name: row.outcome for name, row in rows.items()} == {
        "body.weight": QUANTIZED,
        "body.bias": FLOAT,
        "unused.weight": NOT_REACHED,
        "unused.bias": NOT_REACHED,
        "positions": FLOAT,
        "seen": FLOAT,
        "steps": FLOAT,
        "mixing": FLOAT,
    }
    assert rows["positions"].reason == "no integer form of aten.add.Tensor with it"
    assert rows["seen"].reason == "the graph writes to it"
    assert rows["steps"].reason == "holds int64, which is kept as it is"
    assert "register_buffer" in rows["mixing"].reason
    assert rows["unused.weight"].reason == "nothing reads it on the tracing inputs"


class Picked(nn.Module):
    """Experts as one tensor, of which each row has one, chosen by a number; negative numbers count from the end."""

    def __init__(self, pick: Any, multiply: Any, *shape: int) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(8, 3), nn.Parameter(torch.randn(3, *shape))
        self.pick, self.multiply = pick, multiply

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen: torch.Tensor = self.multiply(x, self.pick(self.experts, self.router(x).argmax(1)))
        return chosen


PICKED = [torch.randn(n, 8, generator=torch.Generator().manual_seed(n)) for n in (4, 6)]


def compiled_picked(model: nn.Module, target: pb.DeploymentSettings, **settings: Any) -> Any:
    return pb.compile_model(
        model.eval(),
        tracing_inputs=PICKED,
        calibration_inputs=PICKED,
        deployment_settings=target,
        quantization_settings=QuantizationSettings(**settings),
        layer_quantization_settings={"router": LayerQuantizationSettings(skip_quantization=True)},
        is_model_pretrained=False,
    )


@pytest.mark.parametrize(
    "pick",
    [
        lambda w, chosen: w[chosen],
        lambda w, chosen: w[chosen - 3],
        lambda w, chosen: w.index_select(0, chosen),
        lambda w, chosen: torch.stack([w, -w])[0][chosen.int()],
    ],
    ids=["index", "from the end", "index_select", "computed"],
)
@pytest.mark.parametrize(
    "multiply",
    [
        lambda x, w: torch.bmm(x[:, None], w)[:, 0],
        lambda x, w: torch.einsum("ti,tio->to", x, w),
        lambda x, w: (x[:, None] @ w).squeeze(1),
    ],
    ids=["bmm", "einsum", "matmul"],
)
def test_experts_picked_by_numbers_have_scales_for_their_rows(pick: Any, multiply: Any) -> None:
    torch.manual_seed(0)
    model = Picked(pick, multiply, 8, 8)
    compiled = compiled_picked(model, pb.EagerDeployment())
    row = next(row for row in compiled.report.layers if row.fqn == "experts")
    assert (row.summary, row.reason) == (
        "int8 weights",
        "weights only: no kernel multiplies integers by matrices that an index selects",
    )
    assert next(row for row in compiled.report.tensors if row.fqn == "experts").outcome == QUANTIZED
    for x in (*PICKED, torch.randn(9, 8)):
        assert sqnr(model(x), compiled(x)) > 30


@pytest.mark.parametrize("target", [pb.OnnxRuntimeDeployment(), pb.OpenVinoDeployment()])
def test_picked_experts_of_several_axes_are_stored_in_four_bits(target: pb.DeploymentSettings) -> None:
    torch.manual_seed(0)
    model = Picked(lambda w, i: w[i], lambda x, w: torch.einsum("ti,thio->tho", x, w), 2, 8, 32)
    compiled = compiled_picked(model, target, weights_num_bits=4)
    row = next(row for row in compiled.report.layers if row.fqn == "experts")
    assert (row.weights_bits, row.stored_bits) == (4, 4)
    for x in (*PICKED, torch.randn(9, 8)):
        assert sqnr(model(x), compiled(x)) > 12


def test_experts_picked_in_other_ways_have_a_row_with_the_reason() -> None:
    model = Picked(
        lambda w, chosen: torch.gather(w, 0, chosen[:, None, None].expand(-1, *w.shape[1:])),
        lambda x, w: torch.bmm(x[:, None], w)[:, 0],
        8, 8,
    )  # fmt: skip
    _, rows = observe(model, PICKED[0], QuantizationSettings())
    assert (rows["experts"].outcome, rows["experts"].reason) == (FLOAT, "no integer form of aten.gather with it")


def test_tables_that_are_looked_up_in_say_how_they_are_quantized() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(50, 8), nn.Linear(8, 4)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.head(self.words(ids))
            return scores

    model = Words().eval()
    _, rows = observe(model, torch.randint(0, 50, (2, 3)), QuantizationSettings())
    assert rows["words.weight"].reason == (
        "tables that are looked up in are quantized only where weights alone are, by the settings or by a rule"
    )


class TiedTwice(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.first(x)
        return hidden, self.second(hidden.relu())


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("skipped", ["first", "second"])
def test_a_skipped_layer_is_in_float_though_its_weight_is_tied(skipped: str, weights_only: bool) -> None:
    torch.manual_seed(0)
    model, sample = TiedTwice().eval(), torch.randn(16, 32)
    compiled = pb.compile_model(
        model,
        calibration_inputs=[sample],
        deployment_settings=pb.EagerDeployment(),
        quantization_settings=pb.QuantizationSettings(prefer_weights_only_quantization=weights_only),
        layer_quantization_settings={skipped: pb.LayerQuantizationSettings(skip_quantization=True)},
    )
    bits = {layer.fqn: layer.weights_bits for layer in compiled.report.layers}
    assert bits == {"first": 8, "second": 8, skipped: 32}
    hidden, result = compiled(sample)
    wanted_hidden, wanted = model(sample)
    if skipped == "first":
        assert torch.equal(hidden, wanted_hidden)
        assert not torch.equal(result, wanted)
    else:
        assert not torch.equal(hidden, wanted_hidden)
        in_float = model.second(hidden.relu())
        torch.testing.assert_close(result, in_float)


class NamedTwice(nn.Module):
    """A block with a layer, both of which have further names; a second layer has the same weight.

    Args:
        by_other_names: whether calls go by the further names; the model computes the same.
    """

    def __init__(self, by_other_names: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.block = nn.Sequential(nn.Linear(32, 32), nn.ReLU())
        self.tied = nn.Linear(32, 32)
        self.tied.weight = self.block[0].weight
        self.again, self.layers = self.block, nn.ModuleList([self.block[0]] * 2)
        self.by_other_names = by_other_names

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        block, layer = (self.again, self.layers[1]) if self.by_other_names else (self.block, self.block[0])
        result: torch.Tensor = layer(block(self.tied(self.block(x))))
        return result


def compiled_by_names(by_other_names: bool, weights_only: bool, skipped: str = "") -> Any:
    return pb.compile_model(
        NamedTwice(by_other_names).eval(),
        calibration_inputs=[torch.linspace(-1, 1, 512).reshape(16, 32)],
        deployment_settings=pb.EagerDeployment(),
        quantization_settings=pb.QuantizationSettings(prefer_weights_only_quantization=weights_only),
        layer_quantization_settings=(
            {skipped: pb.LayerQuantizationSettings(skip_quantization=True)} if skipped else None
        ),
    )


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("skipped", ["", "again", "layers.1", "tied"])
def test_a_module_is_one_layer_by_whatever_name_it_is_called(skipped: str, weights_only: bool) -> None:
    compiled = compiled_by_names(True, weights_only, skipped)
    same = compiled_by_names(False, weights_only, skipped)
    sample = torch.linspace(-1, 1, 512).reshape(16, 32)
    assert torch.equal(compiled(sample), same(sample))
    assert compiled.size_bytes == same.size_bytes
    bits = {layer.fqn: layer.weights_bits for layer in compiled.report.layers}
    in_float = "tied" if skipped == "tied" else "block.0" if skipped else ""
    assert bits == {fqn: 32 if fqn == in_float else 8 for fqn in ("block.0", "tied")}


def test_a_layer_with_several_names_is_measured_and_trained_as_one() -> None:
    sample = torch.linspace(-1, 1, 512).reshape(16, 32)
    outputs, noises, times = [], [], []
    for by_other_names in (False, True):
        model = NamedTwice(by_other_names).eval()
        settings: Any = {
            "deployment_settings": pb.EagerDeployment(),
            "quantization_settings": pb.QuantizationSettings(),
        }
        trained = pb.trainable(model, calibration_inputs=[sample], **settings)
        assert list(trained.state_dict()) == list(model.state_dict())
        compiled = pb.compile_model(trained, deployment_settings=pb.EagerDeployment())
        torch.testing.assert_close(compiled(sample), trained(sample), rtol=1e-4, atol=1e-4)
        outputs.append(compiled(sample))
        sensitivity = pb.sensitivity(model, [sample], deployment_settings=pb.EagerDeployment())
        noises.append([(row.fqn, row.candidate, row.exact) for row in sensitivity.rows])
        profile = pb.profile(compiled, sample, rounds=2)
        times.append({row.name for row in profile.rows})
    assert torch.equal(*outputs)
    assert noises[0] == noises[1]
    assert times[0] == times[1]
