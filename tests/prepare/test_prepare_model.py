"""``prepare_model``: what it promises on models written for it, most of them things that other tools get wrong."""

from __future__ import annotations

import copy
import io
import math
from dataclasses import dataclass
from math import sqrt
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import prepbench as pb
from prepbench.errors import CaptureError, InputError, PreparationError
from prepbench.prepare import PreparedModel, fold_batch_norm_, prepare_model, run_passes
from prepbench.prepare.modules import Add, Concat, MatMul, Multiply, Operator

torch.fx.wrap("len")
torch.fx.wrap("sqrt")


def x(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def assert_prepared(model: nn.Module, *samples: Any, without: bool = True) -> PreparedModel:
    """Prepared with and without samples, equal on all of them, the original untouched; returns the one with samples."""
    before = fingerprint(model)
    with_inputs = prepare_model(model, inputs=list(samples))
    assert with_inputs.preparation_report.largest_difference == 0
    variants = [with_inputs, prepare_model(model)] if without else [with_inputs]
    assert fingerprint(model) == before
    for prepared in variants:
        prepared.graph.lint()
        for sample in samples:
            args = sample if isinstance(sample, tuple) else (sample,)
            torch.manual_seed(0)
            expected = copy.deepcopy(model)(*copy.deepcopy(args))
            torch.manual_seed(0)
            torch.testing.assert_close(copy.deepcopy(prepared)(*copy.deepcopy(args)), expected, rtol=0, atol=0)
        assert [key for key in prepared.state_dict() if key in model.state_dict()] == list(model.state_dict())
    return with_inputs


def fingerprint(model: nn.Module) -> Any:
    """Everything by which one could tell that a model was touched."""
    return [
        (name, type(module), sorted((key, id(value)) for key, value in vars(module).items()), list(module._modules))
        for name, module in model.named_modules()
    ] + [(key, value.sum().item()) for key, value in model.state_dict().items()]


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        return self.fc2(x).relu()


def test_functions_and_methods_become_modules() -> None:
    prepared = assert_prepared(Functional().eval(), x(1, 3, 32, 32))
    names = ["module_relu", "module_relu_1", "module_relu_2", "module_relu_3"]
    assert all(type(getattr(prepared, name)) is nn.ReLU for name in names)
    assert type(prepared.module_flatten) is nn.Flatten
    assert not any(node.op in ("call_function", "call_method") for node in prepared.graph.nodes)
    # one sample is enough for another batch
    assert prepared(x(5, 3, 32, 32)).shape == (5, 10)


class Reused(Functional):
    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU()

    def forward(self, x):
        x = self.relu(self.conv1(x))
        x = torch.flatten(self.relu(self.conv2(x)), 1)
        return self.relu(self.fc2(self.relu(self.fc1(x))))


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


class Gate(nn.Module):
    @staticmethod
    def forward(x):
        return x * F.softplus(x).sigmoid()


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.custom = nn.Conv2d(3, 8, kernel_size=2), Gate()

    def forward(self, inputs):
        return self.custom(self.conv1(inputs))


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


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        out = self.conv2(self.relu(self.conv1(x)))
        out += x
        return self.relu(out)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer1 = nn.Sequential(Block(), Block())
        self.layer2 = nn.ModuleList([Block(), nn.Sequential(nn.ReLU(), Block())])

    def forward(self, x):
        x = self.layer1(x)
        for block in self.layer2:
            x = block(x)
        return x


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


class SharedLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4)])
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x, scale=2.0):
        for _ in range(3):
            x = self.norm(self.blocks[0](input=x)) * scale
        return x


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


# -- the four documented limitations of symbolic preparation


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


@torch.fx.wrap
def until_large(x, y):
    while x.abs().sum() < 100:
        x = x + y
    return x * x


class Wraps(nn.Module):
    def forward(self, x):
        return until_large(x, x.abs() + 1) + 1


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
    with pytest.raises(InputError, match=r"flagg.*flag"):
        prepare_model(model, concrete_args={"flagg": True})


class Builds(nn.Module):
    def forward(self, x):
        steps = torch.arange(x.shape[0], device=x.device)
        return x + steps[:, None], x.new_zeros(x.size(1)), x.view(x.size(0), -1)


def test_constructors_from_sizes() -> None:
    prepared = assert_prepared(Builds(), x(2, 3), x(4, 5), without=False)
    assert {"module_arange", "module_new_zeros", "module_view"} <= set(prepared._modules)
    torch.testing.assert_close(prepared(x(7, 9)), Builds()(x(7, 9)))


# -- what others get wrong in silence


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


class Modes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.3)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("var", torch.ones(4))
        self.p = 0.25

    def forward(self, x):
        x = F.batch_norm(x, self.mean, self.var, training=self.training)
        x = F.dropout(x, 0.5, self.training) + F.dropout(self.drop(x), 0.5)
        q = x.unsqueeze(0)
        return F.scaled_dot_product_attention(q, q, q, dropout_p=self.p if self.training else 0.0)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("with_inputs", [True, False])
def test_the_training_flag_keeps_acting(training: bool, with_inputs: bool) -> None:
    model = Modes().train(training)
    prepared = prepare_model(model, inputs=[x(6, 4)] if with_inputs else None)
    assert type(prepared.module_dropout) is nn.Dropout
    assert type(prepared.module_dropout_1) is not nn.Dropout  # without an argument it is always on
    for mode in (True, False, True):
        model, prepared = copy.deepcopy(model).train(mode), copy.deepcopy(prepared).train(mode)
        torch.manual_seed(1)
        expected = model(x(6, 4))
        torch.manual_seed(1)
        torch.testing.assert_close(prepared(x(6, 4)), expected)
        torch.testing.assert_close(prepared.mean, model.mean)


class DropPath(nn.Module):
    def forward(self, x):
        if not self.training:
            return x
        return x * torch.rand(x.shape[0], 1).round()


class Stochastic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.drop_path = nn.Linear(4, 4), DropPath()

    def forward(self, x):
        return x + self.drop_path(F.relu(self.linear(x)))


def test_a_small_module_that_branches_on_training_stays_whole() -> None:
    model = Stochastic().eval()
    prepared = assert_prepared(model, x(3, 4))
    (kept,) = [kept for kept in prepared.preparation_report.kept if kept.fqn]
    assert kept.fqn == "drop_path"
    assert "in training" in kept.why
    torch.manual_seed(0)
    expected = model.train()(x(3, 4))
    torch.manual_seed(0)
    torch.testing.assert_close(prepared.train()(x(3, 4)), expected)


class OtherInTraining(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.main, self.auxiliary = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        y = F.relu(self.main(x))
        return (y, self.auxiliary(y)) if self.training else y


def test_a_model_that_differs_in_training_refuses_the_other_mode() -> None:
    prepared = assert_prepared(OtherInTraining().eval(), x(3, 4))
    assert any("evaluation only" in note for note in prepared.preparation_report.notes)
    with pytest.raises(PreparationError, match=r"prepared in eval\(\) mode and is in train\(\) mode"):
        prepared.train()(x(3, 4))


class Averaged(nn.Module):
    """The same operations on other tensors in evaluation, which are equal to begin with."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(x(3, 4))
        self.register_buffer("average", self.weight.detach().clone())

    def forward(self, x):
        return F.linear(x, self.weight if self.training else self.average)


@pytest.mark.parametrize("with_inputs", [True, False])
def test_other_tensors_in_training_are_not_taken_for_the_same(with_inputs: bool) -> None:
    prepared = prepare_model(Averaged().eval(), inputs=[x(2, 4)] if with_inputs else None)
    with pytest.raises(PreparationError, match="mode"):
        prepared.train()(x(2, 4))


def test_both_modes_are_compared() -> None:
    report = prepare_model(Modes().eval(), inputs=[x(6, 4)]).preparation_report
    assert [c.largest for c in report.compared if c.inputs.endswith("in training")] == [0.0]


# -- structures, hooks, attributes


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


# -- sizes


class Fixes(nn.Module):
    def forward(self, x):
        return F.interpolate(x, size=(x.size(2) * 2, x.size(3))), x.view(x.size(0), -1)


def test_sizes_that_one_sample_fixes_are_refused() -> None:
    prepared = prepare_model(Fixes(), inputs=[x(1, 3, 4, 6)])
    torch.testing.assert_close(prepared(x(5, 3, 4, 6)), Fixes()(x(5, 3, 4, 6)))
    with pytest.raises(InputError, match=r"x.shape\[2\] is 8, but.*always 4.*two sizes"):
        prepared(x(1, 3, 8, 6))
    free = prepare_model(Fixes(), inputs=[x(1, 3, 4, 6), x(2, 3, 8, 10)])
    torch.testing.assert_close(free(x(3, 3, 7, 5)), Fixes()(x(3, 3, 7, 5)))


# -- errors


class Branches(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Holds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = Branches()

    def forward(self, x):
        return F.relu(self.gate(x))


def test_what_cannot_be_traced_is_said() -> None:
    with pytest.raises(CaptureError, match=r"(?s)Branches cannot be prepared.*data-dependent branch.*torch.where"):
        prepare_model(Branches(), inputs=[x(2, 2)])
    prepared = assert_prepared(Holds(), x(2, 2))
    (kept,) = prepared.preparation_report.kept
    assert kept.fqn == "gate"
    assert "data-dependent branch" in kept.why


def test_an_inequality_names_the_first_node_that_differs() -> None:
    class Lies(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x):
            return F.relu(self.inner(x) + 1)

    class Inner(nn.Module):
        def forward(self, x):
            # another value while it is traced, which is what every hidden state amounts to
            scale = 2.0 if isinstance(x, torch._subclasses.FakeTensor) else 3.0
            return torch.sigmoid(x) * scale

    with pytest.raises(PreparationError) as error:
        prepare_model(Lies(), inputs=[x(2, 2)])
    assert "inner.module_mul" in str(error.value)
    assert "torch.sigmoid(x) * scale" in str(error.value)
    assert "inputs[0]" in str(error.value)
    assert "modules_to_exclude=[model.get_submodule('inner')]" in str(error.value)


def test_bad_arguments() -> None:
    model = Custom()
    with pytest.raises(InputError, match="modules_to_exclude is a list, got Gate"):
        prepare_model(model, modules_to_exclude=model.custom)
    with pytest.raises(InputError, match="passes is a list"):
        run_passes(prepare_model(model), fold_batch_norm_)
    with pytest.raises(InputError, match="run_passes takes what prepare_model returns, got Custom"):
        run_passes(model, [fold_batch_norm_])
    with pytest.raises(InputError, match=r"prepare_model takes a torch\.nn\.Module"):
        prepare_model(lambda x: x)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"modules_to_exclude\[0\], a Gate, is not part of this Custom"):
        prepare_model(model, modules_to_exclude=[Gate()])
    with pytest.raises(InputError, match=r"modules_to_exclude\[0\] is 'custom'.*get_submodule"):
        prepare_model(model, modules_to_exclude=["custom"])  # type: ignore[list-item]
    with pytest.raises(InputError, match=r"module_classes_to_exclude\[0\], Block, is the class of no submodule"):
        prepare_model(model, module_classes_to_exclude=[Block])
    with pytest.raises(InputError, match=r"inputs\[1\]"):
        prepare_model(model, inputs=[x(1, 3, 5, 5), (x(1, 3, 5, 5), 3)])
    with pytest.raises(CaptureError, match=r"itself raises on inputs\[0\]"):
        prepare_model(model, inputs=[x(1, 5, 5, 5)])


# -- arguments survive


FORMS: dict[str, Any] = {
    "F.elu(x, 0.5)": lambda x: F.elu(x, 0.5),
    "F.softmax(x, dim=-1, dtype)": lambda x: F.softmax(x, dim=-1, dtype=torch.float32),
    "x.softmax(-1)": lambda x: x.softmax(-1),
    "torch.softmax(x, 1)": lambda x: torch.softmax(x, 1),
    "F.softplus(x, 2., 20.)": lambda x: F.softplus(x, 2.0, 20.0),
    "F.gelu(approximate)": lambda x: F.gelu(x, approximate="tanh"),
    "F.leaky_relu(x, .3, True)": lambda x: F.leaky_relu(x * 1, 0.3, True),
    "F.hardtanh": lambda x: F.hardtanh(x, -2, 2),
    "F.glu(x, 1)": lambda x: F.glu(x, 1),
    "F.threshold": lambda x: F.threshold(x, 0.1, 20),
    "relu_": lambda x: (x * 1).relu_(),
    "1 - x": lambda x: 1 - x,
    "2 ** x": lambda x: 2**x,
    "7.1 - x": lambda x: 7.1 - x,
    "x // 2": lambda x: x // 2,
    "x % 3": lambda x: x % 3,
    "rsub": lambda x: torch.rsub(x, 3),
    "add alpha": lambda x: torch.add(x, x, alpha=3),
    "x.add alpha": lambda x: x.add(x, alpha=3),
    "add out": lambda x: torch.add(x, 1, out=torch.empty_like(x)),
    "tensor + x": lambda x: torch.tensor(5.0) + x,
    "4 * x": lambda x: 4 * x,
    "torch.mul(2, x)": lambda x: torch.mul(2, x),
    "comparison": lambda x: (x > 0) * x,
    "cat keyword": lambda x: torch.cat(tensors=[x, x], dim=1),
    "cat tuple": lambda x: torch.cat((x, x, x), -1),
    "cat default": lambda x: torch.cat([x, x * 2]),
    "cat one": lambda x: torch.cat([x]),
    "concat": lambda x: torch.concat([x, x], dim=0),
    "stack": lambda x: torch.stack([x, x], dim=2),
    "cat of parts": lambda x: torch.cat(x.split(1, 1), 1),
    "mean dims": lambda x: x.mean((1, 2), keepdim=True),
    "mean keyword": lambda x: torch.mean(x, dim=1),
    "sum": lambda x: x.sum(-1),
    "sum dtype": lambda x: x.sum(dtype=torch.float64),
    "python sum": lambda x: sum([x, x * 2]),
    "max": lambda x: torch.max(x, 1),
    "max part": lambda x: x.max(dim=1)[0],
    "norm": lambda x: x.norm(p=1, dim=1),
    "cumsum": lambda x: torch.cumsum(x, 1, dtype=torch.float64),
    "matmul": lambda x: x @ x.transpose(1, 2),
    "einsum": lambda x: torch.einsum("bij,bkj->bik", x, x),
    "topk": lambda x: x.topk(2, dim=1),
    "index": lambda x: x[:, 1:, None, ..., 0],
    "index tensor": lambda x: x[:, torch.tensor([1, 0])],
    "gather": lambda x: torch.gather(x, 1, (x > 0).long()),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "clamp": lambda x: x.clamp(min=-0.5, max=0.5),
    "sdpa": lambda x: F.scaled_dot_product_attention(x, x, value=x, attn_mask=torch.eye(4)),
    "sdpa causal": lambda x: F.scaled_dot_product_attention(query=x, key=x, value=x, is_causal=True),
    "max_pool": lambda x: F.max_pool2d(x, 2, return_indices=True),
    "max_pool stride": lambda x: F.max_pool2d(x, kernel_size=2, stride=1),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, (2, 1)),
    "pad": lambda x: F.pad(x, (1, 2), mode="constant", value=3.0),
    "interpolate": lambda x: F.interpolate(x, scale_factor=2, mode="linear", align_corners=True),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "normalize": lambda x: F.normalize(x, p=1.0, dim=1),
    "chunk": lambda x: x.chunk(2, dim=1)[1],
    "item assignment": lambda x: assigned(x),
    "mT": lambda x: x.mT * 2,
    "masked_fill": lambda x: x.masked_fill(x > 0, -math.inf),
    "divmod": lambda x: x.div(3, rounding_mode="floor"),
}


def assigned(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, 0] = 1.0
    return y


class Form(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize("name", FORMS)
def test_arguments_survive(name: str) -> None:
    symbolic = name not in ("layer_norm", "cat of parts", "add out")
    assert_prepared(Form(FORMS[name]), x(2, 4, 4), x(3, 4, 4), without=symbolic)


class Weights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.b1 = nn.Parameter(x(10, 3, 1, 1)), nn.Parameter(x(10))
        self.register_buffer("w2", x(10, 1, 1, 1))
        self.slope, self.table = nn.Parameter(torch.tensor([0.2])), nn.Parameter(x(5, 3))

    def forward(self, x):
        y = F.conv2d(x, self.w1, self.b1) + F.conv2d(input=x, weight=self.w1, bias=None, stride=1)
        y = F.conv2d(y, self.w2, groups=10, padding=(0, 0))
        y = F.prelu(y, self.slope)
        z = F.conv2d(x[:1], x[1:2, :, :1, :1])
        return y, z, F.linear(x, x[0, 0]), F.embedding((x[:, 0] > 0).long(), self.table)


def test_weights_may_be_parameters_buffers_or_activations() -> None:
    model = Weights()
    prepared = assert_prepared(model, x(2, 3, 4, 4))
    assert prepared.w1 is model.w1
    assert dict(prepared.named_parameters()).keys() == dict(model.named_parameters()).keys()


def test_functions_with_weights_are_layers_to_quantize() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.l = nn.Parameter(x(8, 3, 3, 3)), nn.Parameter(x(4, 8))

        def forward(self, x):
            return F.linear(F.relu(F.conv2d(x, self.w)).mean((2, 3)), self.l)

    samples = [x(2, 3, 8, 8), x(3, 3, 8, 8)]
    compiled = pb.compile_model(
        prepare_model(Net().eval(), inputs=samples),
        tracing_inputs=samples,
        calibration_inputs=samples,
        deployment_settings=pb.EagerDeployment(),
        quantization_settings=pb.QuantizationSettings(),
        layer_quantization_settings={"module_linear": pb.LayerQuantizationSettings(skip_quantization=True)},
    )
    assert {row.fqn: row.quantized for row in compiled.report.layers} == {"module_conv2d": True, "module_linear": False}


def test_the_report_is_data_and_shows_itself() -> None:
    prepared = prepare_model(Reused().eval(), inputs=[x(1, 3, 32, 32)])
    report = prepared.preparation_report
    table = report.table()
    assert list(table["kind"]).count("reused module") == 3
    assert all(table["file"].str.endswith("test_prepare_model.py"))
    assert repr(report).splitlines()[0] == "Preparation of Reused: 1 operation to module, 3 reused modules"
    bundle = report._repr_mimebundle_()
    assert "module_relu_1" in bundle["text/html"]
    assert report.kept_table().empty


def test_validate_model_lists_what_is_left() -> None:
    model = Reused().eval()
    report = pb.validate_model(model)
    assert [violation.kind for violation in report.violations] == [
        "reused module", "operation without module", "reused module", "reused module",
    ]  # fmt: skip
    assert len(report.table()) == 4
    assert not report
    assert "relu" in repr(report)
    for inputs in (None, [x(1, 3, 32, 32)]):
        assert pb.validate_model(prepare_model(model, inputs=inputs), inputs=inputs).passed
    (violation,) = pb.validate_model(Wraps(), inputs=[x(2, 3)]).violations[:1]
    assert violation.kind == "operation without module"
    untraced = pb.validate_model(Holds(), inputs=[x(2, 2)])
    assert untraced.violations[0].kind == "not traced"


def test_standalone_modules() -> None:
    torch.testing.assert_close(Concat(dim=1)(x(2, 3), x(2, 3)), torch.cat([x(2, 3), x(2, 3)], 1))
    torch.testing.assert_close(MatMul()(x(2, 3), x(3, 2)), x(2, 3) @ x(3, 2))
    assert repr(Multiply(2)) == "Multiply(2)"
