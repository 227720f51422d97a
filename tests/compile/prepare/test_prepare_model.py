"""``prepare_model``: what it promises on models written for it, most of them things that other tools get wrong."""

from __future__ import annotations

import copy
from math import sqrt
from typing import Any

import pytest
import torch
from torch import nn

from prepbench.errors import CaptureError, InputError
from prepbench.prepare import prepare_model
from prepbench.prepare.modules import Add, Operator
from tests.compile.prepare.models import (
    Branches,
    Custom,
    Functional,
    Gate,
    Holds,
    Residual,
    Reused,
    SharedLinear,
    Wraps,
    assert_prepared,
    until_large,
    x,
)

torch.fx.wrap("len")
torch.fx.wrap("sqrt")


def test_functions_and_methods_become_modules() -> None:
    prepared = assert_prepared(Functional().eval(), x(1, 3, 32, 32))
    names = ["module_relu", "module_relu_1", "module_relu_2", "module_relu_3"]
    assert all(type(getattr(prepared, name)) is nn.ReLU for name in names)
    assert type(prepared.module_flatten) is nn.Flatten
    assert not any(node.op in ("call_function", "call_method") for node in prepared.graph.nodes)
    # one sample is enough for another batch
    assert prepared(x(5, 3, 32, 32)).shape == (5, 10)


def test_reused_modules_become_instances() -> None:
    model = Reused().eval()
    prepared = assert_prepared(model, x(1, 3, 32, 32))
    instances = [prepared.relu, prepared.module_relu_1, prepared.module_relu_2, prepared.module_relu_3]
    assert len({id(module) for module in instances}) == 4
    assert all(type(module) is nn.ReLU for module in instances)
    assert prepared.preparation_report.renames == {f"module_relu_{n}": "relu" for n in (1, 2, 3)}


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5, bias=False), nn.Conv2d(3, 6, 5)

    def forward(self, *inputs):
        return self.conv1(inputs[0]) + self.conv2(inputs[1])


def test_any_number_of_inputs_and_elementwise_add() -> None:
    prepared = assert_prepared(TwoInputs().eval(), (x(1, 3, 9, 9), x(2, 3, 9, 9)[:1]))
    assert isinstance(prepared.module_add, Add)


def test_one_tensor_given_twice_is_two_inputs() -> None:
    model, same = TwoInputs().eval(), x(1, 3, 9, 9)
    prepared = prepare_model(model, inputs=[(same, same)])
    other = x(2, 3, 9, 9)[1:]
    torch.testing.assert_close(prepared(same, other), model(same, other))


@pytest.mark.parametrize("inputs", [None, [x(1, 3, 5, 5)]])
def test_excluded_modules_stay_whole(inputs: Any) -> None:
    model = Custom().eval()
    expanded = prepare_model(model, inputs=inputs)
    assert [name for name, _ in expanded.custom.named_children()] == ["module_softplus", "module_sigmoid", "module_mul"]
    for given in ({"modules_to_exclude": [model.custom]}, {"module_classes_to_exclude": [Gate]}):
        prepared = prepare_model(model, **given, inputs=inputs)
        assert prepared.custom is model.custom
        assert [node.target for node in prepared.graph.nodes if node.op == "call_module"] == ["conv1", "custom"]
        (kept,) = prepared.preparation_report.kept
        assert kept.fqn == "custom"
        assert next(iter(given)) in kept.why


def test_names_follow_the_module_they_came_from() -> None:
    prepared = assert_prepared(Residual().eval(), x(1, 4, 6, 6))
    again = prepared.get_submodule("layer1.0.module_relu_1")
    assert type(again) is nn.ReLU
    assert again.inplace
    assert isinstance(prepared.get_submodule("layer1.0.module_add"), Add)
    assert prepared.get_submodule("layer1.0.module_add").inplace
    assert isinstance(prepared.get_submodule("layer1.1.module_add_1"), Add)
    assert isinstance(prepared.get_submodule("layer2.1.1.module_add_3"), Add)
    # lists and sequences keep their members
    assert len(prepared.layer1) == 2
    assert len(prepared.layer2) == 2


def test_reused_state_stays_one_state() -> None:
    model = SharedLinear()
    prepared = assert_prepared(model, x(5, 4), without=False)
    again = prepared.get_submodule("module_blocks_0_1")
    assert again is not model.blocks[0]
    assert again.weight is model.blocks[0].weight
    assert [c.why for c in prepared.preparation_report.changes if c.module == "module_norm_1"] == [
        "called again; shares parameters and buffers with norm"
    ]
    moved = copy.deepcopy(prepared).double()
    assert moved.get_submodule("module_norm_2").running_mean is moved.norm.running_mean
    assert moved.get_submodule("module_norm_2").running_mean.dtype is torch.float64
    # three updates of one running mean
    reference = copy.deepcopy(model)
    reference(x(5, 4))
    trained = copy.deepcopy(prepared)
    trained(x(5, 4))
    torch.testing.assert_close(trained.norm.running_mean, reference.norm.running_mean)
    assert trained.norm.num_batches_tracked == 3


def test_gradients_equal_the_originals() -> None:
    model = Residual()
    prepared = copy.deepcopy(prepare_model(model, inputs=[x(2, 4, 6, 6)]))
    inputs = x(2, 4, 6, 6)
    model(inputs).square().sum().backward()
    prepared(inputs).square().sum().backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    for name, parameter in prepared.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-5, atol=1e-6)


class Lengths(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, kernel_size=2, stride=2, padding=2, bias=False)

    def forward(self, *inputs):
        x = self.conv(inputs[0])
        return x / sqrt(len(x))


def test_wrapped_functions_stay_single_nodes() -> None:
    model = Lengths().eval()
    prepared = prepare_model(model)
    torch.testing.assert_close(prepared(x(2, 3, 4, 4)), model(x(2, 3, 4, 4)))
    reasons = {kept.operation: kept.why for kept in prepared.preparation_report.kept}
    assert "torch.fx.wrap" in reasons["len"]
    with_inputs = prepare_model(model, inputs=[x(2, 3, 4, 4)])
    for batch in (1, 2, 5):
        torch.testing.assert_close(with_inputs(x(batch, 3, 4, 4)), model(x(batch, 3, 4, 4)))


def test_a_wrapped_function_may_look_at_data() -> None:
    prepared = assert_prepared(Wraps(), x(2, 3), x(4, 3))
    assert [node.target for node in prepared.graph.nodes if node.op == "call_function"] == [until_large]


class Flag(nn.Module):
    def forward(self, x, flag, scale=3):
        return x * scale if flag else x


def test_concrete_args_decide_and_are_checked() -> None:
    model = Flag()
    with pytest.raises(CaptureError, match=r"(?s)branch.*prepare_model\(model, inputs=\[...\]\)"):
        prepare_model(model)
    for inputs in (None, [x(2, 3)]):
        if inputs is not None:
            with pytest.raises(InputError, match="flag"):
                prepare_model(model, inputs=inputs)
            inputs = [(x(2, 3), True)]
        prepared = prepare_model(model, concrete_args=None if inputs else {"flag": True}, inputs=inputs)
        torch.testing.assert_close(prepared(x(2, 3), True), 3 * x(2, 3))
        torch.testing.assert_close(prepared(x(2, 3), flag=True, scale=3), 3 * x(2, 3))
        with pytest.raises(InputError, match=r"flag=False was given.*prepared with flag=True"):
            prepared(x(2, 3), False)
        with pytest.raises(InputError, match=r"scale=4"):
            prepared(x(2, 3), True, 4)
    with pytest.warns(UserWarning, match=r"'flagg', which forward\(x, flag, scale\) does not take.*Nearest: 'flag'"):
        prepared = prepare_model(model, concrete_args={"flagg": True, "flag": True})
    torch.testing.assert_close(prepared(x(2, 3), True), 3 * x(2, 3))


class Builds(nn.Module):
    def forward(self, x):
        steps = torch.arange(x.shape[0], device=x.device)
        return x + steps[:, None], x.new_zeros(x.size(1)), x.view(x.size(0), -1)


def test_constructors_from_sizes() -> None:
    prepared = assert_prepared(Builds(), x(2, 3), x(4, 5), without=False)
    assert {"module_arange", "module_new_zeros", "module_view"} <= set(prepared._modules)
    torch.testing.assert_close(prepared(x(7, 9)), Builds()(x(7, 9)))


class Silent(nn.Module):
    """Type branches, ``masked_fill``, keyword-only defaults, user attributes with our names."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.module_add = "mine"

    def forward(self, x, *, mask=None, shift=1.0):
        if isinstance(x, torch.Tensor):
            x = self.linear(x) + shift
        if mask is not None:
            x = x.masked_fill(mask, 0.0)
        return x, x.masked_fill(x > 0, 1.0)


def test_silent_errors_of_others() -> None:
    model = Silent()
    prepared = assert_prepared(model, x(2, 4))
    assert prepared.module_add == "mine"
    assert isinstance(prepared.module_add_1, Operator)
    torch.testing.assert_close(prepared(x(2, 4), mask=None, shift=1.0), model(x(2, 4)))
    with pytest.raises(InputError, match=r"mask=a \(2, 4\) tensor was given"):
        prepared(x(2, 4), mask=x(2, 4) > 0)
    sample = {"x": x(2, 4), "mask": x(2, 4) > 0}
    masked = prepare_model(model, inputs=[sample])
    torch.testing.assert_close(masked(**sample), model(**sample))


def test_what_cannot_be_traced_is_said() -> None:
    with pytest.raises(CaptureError, match=r"(?s)Branches cannot be prepared.*data-dependent branch.*torch.where"):
        prepare_model(Branches(), inputs=[x(2, 2)])
    prepared = assert_prepared(Holds(), x(2, 2))
    (kept,) = prepared.preparation_report.kept
    assert kept.fqn == "gate"
    assert "data-dependent branch" in kept.why


def test_an_empty_result_may_have_the_same_shape_by_chance() -> None:
    class Even(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if x.shape[0] == 0 else nn.functional.pad(x, (0, 0, 0, x.shape[1] % 2))

    prepared = prepare_model(Even(), inputs=[torch.ones(2, 4, 2), torch.ones(3, 7, 2)])
    assert prepared(torch.ones(1, 3, 2)).shape == (1, 4, 2)
    with pytest.raises(InputError, match=r"x.shape\[0\] is 0, and the graph of this Even computes something else"):
        prepared(torch.ones(0, 3, 2))


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (1, r"x.shape\[0\] is 1, .* because of .*if x.shape\[0\] > limit"),
        (0, r"x.shape\[0\] is 0, and the graph of this Spread computes something else"),
        (-1, ""),
    ],
)
def test_sizes_that_tracing_takes_for_impossible_are_tried(limit: int, words: str) -> None:
    class Spread(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if x.shape[0] > limit else x.sum(1)

    model = Spread()
    prepared = prepare_model(model, inputs=[torch.randn(2, 4), torch.randn(3, 4)])
    x = torch.randn(max(limit, 0), 4)
    if not words:
        assert torch.equal(prepared(x), model(x))
        return
    with pytest.raises(InputError, match=words):
        prepared(x)
