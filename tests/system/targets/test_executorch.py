"""ExecuTorch: what XNNPACK runs in int8, numerics, sizes never seen and their bounds, saving, threads, refusals."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import prepbench as pb
from prepbench.errors import InputError, MissingPackageError, SettingsError, TargetError
from prepbench.targets.eager import EagerTarget
from prepbench.targets.executorch import ExecuTorchTarget

pytest.importorskip("executorch")


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def sqnr(expected: torch.Tensor, value: torch.Tensor) -> float:
    return float(10 * torch.log10(expected.pow(2).sum() / (expected - value).pow(2).sum()))


class Residual(nn.Module):
    """Convolutions of each kind, an addition, and a head that needs a view."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.project = nn.Conv2d(8, 8, 1)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.bn(self.stem(x)))
        x = F.relu(self.project(F.relu6(self.depthwise(x))) + x)
        return self.head(x.mean((2, 3)))


class Gated(nn.Module):
    """A convolution's result is read by an integer kernel and by a product with numbers in float."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.gate, self.out = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.stem(x))
        return self.out(x * self.gate(x.mean((2, 3), keepdim=True)).sigmoid())


class Attention(nn.Module):
    """A transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.query, self.key, self.value, self.out = (nn.Linear(64, 64) for _ in range(4))
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [
            part(self.norm(x)).unflatten(-1, (4, 16)).transpose(1, 2) for part in (self.query, self.key, self.value)
        ]
        x = x + self.out(F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(x)))


class Squares(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) + x.norm(dim=-1, keepdim=True)


class BothOf(nn.Module):
    """What two models make of an input: compiled as one, which takes less long."""

    def __init__(self, one: nn.Module, two: nn.Module) -> None:
        super().__init__()
        self.one, self.two = one, two

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.one(x), self.two(x)


class Mixed(nn.Module):
    """Whole numbers and truth values in and out; changes an argument and a buffer on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.register_buffer("calls", torch.zeros(()))
        self.calls: torch.Tensor

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.calls.add_(1)
        scale.mul_(2)
        return self.embedding(ids) * mask.unsqueeze(-1) * scale, ids + 1, ~mask


def compiled(net: nn.Module, *shape: int, target: pb.DeploymentSettings | None = None, **settings: Any) -> Any:
    torch.manual_seed(0)
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.3)
    return pb.compile_model(
        net.eval(),
        tracing_inputs=[noise(2, *shape), noise(3, *shape)],
        calibration_inputs=[noise(16, *shape)] if settings else None,
        deployment_settings=target or pb.ExecuTorchDeployment(),
        quantization_settings=pb.QuantizationSettings(**settings) if settings else None,
    )


def kernels(model: pb.CompiledModel, folder: Path) -> set[str]:
    """The operators that XNNPACK did not take."""
    from executorch.exir._serialize._program import deserialize_pte_binary

    model.save(folder / "saved")
    program = deserialize_pte_binary((folder / "saved" / "model.pte").read_bytes()).program
    return {operator.name for operator in program.execution_plan[0].operators}


@pytest.fixture(scope="module")
def int8() -> pb.CompiledModel:
    model: pb.CompiledModel = compiled(Residual(), 3, 8, 8, weights_num_bits=8)
    return model


def test_nothing_of_a_convolutional_net_is_left_to_portable_kernels(int8: pb.CompiledModel, tmp_path: Path) -> None:
    assert kernels(int8, tmp_path) == {"aten::mean"}


def test_stored_bits_count_constants_and_not_the_code_around(int8: pb.CompiledModel) -> None:
    assert 8 < int8.report.bits_per_weight < 8 * int8.size_bytes / sum(p.numel() for p in Residual().parameters())


@pytest.mark.parametrize(
    "settings",
    [{"weights_num_bits": 8}, pytest.param({"prefer_weights_only_quantization": True}, marks=pytest.mark.stress)],
)
def test_the_layers_of_a_transformer_run_in_int8(settings: Any, tmp_path: Path) -> None:
    net = Attention()
    model = compiled(net, 5, 64, **settings)
    left = kernels(model, tmp_path)
    assert not any("quantize" in name or name in ("aten::linear", "aten::addmm", "aten::mm") for name in left)
    weights = sum(p.numel() for p in net.parameters() if p.ndim == 2)
    assert model.size_bytes < 2 * weights  # the graph is some 40 kB
    x = noise(4, 5, 64)
    assert sqnr(net(x), model(x)) > 25


class Repeated(nn.Module):
    """A layer and a convolution that are called on values of very different sizes: so their biases have two scales."""

    def __init__(self) -> None:
        super().__init__()
        self.same, self.conv, self.head = nn.Linear(8, 8), nn.Conv2d(3, 3, 3, padding=1), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.conv(30 * F.relu(self.conv(x))))
        return self.head(F.relu(self.same(0.01 * F.relu(self.same(x)))))


@pytest.mark.parametrize(
    "net, shape, settings",
    [
        (Repeated(), (3, 8, 8), {"weights_num_bits": 8}),
        (Gated(), (3, 8, 8), {"weights_num_bits": 8}),
        (Residual(), (3, 8, 8), {"prefer_weights_only_quantization": True}),
        (nn.Sequential(nn.Linear(15, 32), nn.GELU(), nn.Linear(32, 4)), (15,), {"per_channel": False}),
    ],
    ids=["repeated", "gated", "weights-only", "per-tensor"],
)
def test_it_computes_what_the_converted_graph_computes(
    net: nn.Module, shape: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EagerTarget, "placement", ExecuTorchTarget.placement)
    reference = compiled(net, *shape, target=pb.EagerDeployment(), **settings)
    model = compiled(net, *shape, **settings)
    for batch in (1, 7):
        x = noise(batch, *shape)
        assert sqnr(reference(x), model(x)) > 35


def test_int8_computes_what_the_converted_graph_computes(
    int8: pb.CompiledModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EagerTarget, "placement", ExecuTorchTarget.placement)
    reference = compiled(Residual(), 3, 8, 8, target=pb.EagerDeployment(), weights_num_bits=8)
    for batch in (1, 7):
        x = noise(batch, 3, 8, 8)
        assert sqnr(reference(x), int8(x)) > 35


class Padded(nn.Module):
    """What an integer kernel makes is padded for a layer in float."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(F.pad(F.relu(self.one(x)), (0, 1, 0, 1)))


def test_integers_are_padded_for_a_layer_in_float() -> None:
    net = Padded().eval()
    model = pb.compile_model(
        net,
        tracing_inputs=[noise(2, 3, 8, 8), noise(3, 3, 8, 8)],
        calibration_inputs=[noise(16, 3, 8, 8)],
        deployment_settings=pb.ExecuTorchDeployment(),
        quantization_settings=pb.QuantizationSettings(),
        layer_quantization_settings={"two": pb.LayerQuantizationSettings(skip_quantization=True)},
    )
    x = noise(4, 3, 8, 8)
    assert sqnr(net(x), model(x)) > 25


class FlatProjection(nn.Module):
    """Attention whose result is projected as a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(16, 8) / 4), nn.Parameter(torch.randn(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = x.unflatten(-1, (4, 4)).transpose(1, 2)
        y = F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).reshape(*x.shape).contiguous()
        return torch.addmm(self.bias, y.view(-1, 16), self.weight).view(*x.shape[:2], 8)


def test_attention_goes_into_a_flat_projection_at_any_size() -> None:
    net = FlatProjection()
    model = pb.compile_model(
        net, tracing_inputs=[noise(2, 5, 16), noise(3, 6, 16)], deployment_settings=pb.ExecuTorchDeployment()
    )
    x = noise(4, 9, 16)
    torch.testing.assert_close(model(x), net(x), rtol=1e-4, atol=1e-5)


def test_powers_have_a_kernel() -> None:
    """Root mean square normalisation, as in language models."""
    net = Attention()
    net.norm = nn.RMSNorm(64)  # type: ignore[assignment]
    both = BothOf(net, Squares())
    found, expected = compiled(both, 5, 64)(noise(4, 5, 64)), both(noise(4, 5, 64))
    torch.testing.assert_close(found[0], expected[0], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(found[1], expected[1])


def test_a_fresh_process_computes_the_same(
    int8: pb.CompiledModel, in_fresh_process: Callable[..., torch.Tensor]
) -> None:
    x = noise(5, 3, 8, 8)
    assert torch.equal(in_fresh_process(int8, x), int8(x))


def test_many_threads_get_their_own_results(int8: pb.CompiledModel) -> None:
    inputs = [noise(1 + i % 5, 3, 8, 8) * (1 + i) for i in range(40)]
    expected = [int8(x) for x in inputs]
    with ThreadPoolExecutor(8) as pool:
        for right, got in zip(expected, pool.map(int8, inputs), strict=True):
            assert torch.equal(right, got)


def test_results_are_not_overwritten_by_the_next_call(int8: pb.CompiledModel) -> None:
    first = int8(noise(2, 3, 8, 8))
    kept = first.clone()
    int8(noise(3, 3, 8, 8))
    assert torch.equal(first, kept)


def test_other_number_types_and_changes_in_place() -> None:
    net = Mixed().eval()

    def sample(batch: int, length: int) -> tuple[torch.Tensor, ...]:
        return torch.arange(batch * length).reshape(batch, length) % 16, noise(batch, length) > 0, torch.ones(1)

    model = pb.compile_model(
        net, tracing_inputs=[sample(2, 5), sample(3, 6)], deployment_settings=pb.ExecuTorchDeployment()
    )
    for batch, length in ((1, 1), (4, 9)):
        *whole, scale = sample(batch, length)
        results = model(*whole, scale)
        assert torch.equal(scale, torch.ones(1))  # a runtime changes no inputs
        for expected, result in zip(net(*whole, scale.clone()), results, strict=True):
            torch.testing.assert_close(result, expected)


def test_a_size_beyond_the_plan_is_an_error_with_the_bound(int8: pb.CompiledModel) -> None:
    int8(noise(100, 3, 8, 8))
    with pytest.raises(InputError, match=r"Size 1000 in dim 0 of input 0 is more than the 128 .*max_size_factor"):
        int8(noise(1000, 3, 8, 8))


class PoolsToOne(nn.Module):
    """Computes a size that is 1 for the first sample, for which torch asks in which order a tensor lies in memory."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        resized = nn.functional.interpolate(x[:, None], size=x.shape[0], mode="linear")
        return nn.functional.avg_pool1d(resized, 2, 3, ceil_mode=True)


def test_a_computed_size_of_one_does_not_make_an_axis_static() -> None:
    net = PoolsToOne().eval()
    samples = [noise(2, 9), noise(4, 7)]
    compiled = pb.compile_model(net, tracing_inputs=samples, deployment_settings=pb.ExecuTorchDeployment())
    for x in (*samples, noise(7, 20), noise(3, 8)):
        torch.testing.assert_close(compiled(x), net(x))


def test_what_torch_cannot_export_again_is_an_error_of_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise ValueError("too many values to unpack (expected 2)")

    monkeypatch.setattr("prepbench.targets.weights.export_again", refuse)
    with pytest.raises(TargetError, match=r"cannot export the graph again .*: too many values.* Choose another target"):
        pb.compile_model(nn.Linear(4, 2), tracing_inputs=[noise(2, 4)], deployment_settings=pb.ExecuTorchDeployment())


def test_the_user_decides_how_far_sizes_may_grow() -> None:
    net = nn.Linear(4, 2).eval()
    settings = pb.ExecuTorchDeployment(max_size_factor=300)
    compiled = pb.compile_model(net, tracing_inputs=[noise(2, 4), noise(3, 4)], deployment_settings=settings)
    torch.testing.assert_close(compiled(noise(600, 4)), net(noise(600, 4)))
    with pytest.raises(InputError, match="Size 601 in dim 0"):
        compiled(noise(601, 4))
    with pytest.raises(SettingsError, match="max_size_factor must be None or a positive number, got 0"):
        pb.ExecuTorchDeployment(max_size_factor=0)


def test_memory_for_long_sequences_stays_bounded() -> None:
    from prepbench.targets.executorch import lower

    net = Attention().eval()
    dims = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    program = torch.export.export(net, (noise(2, 256, 64),), dynamic_shapes=(dims,))
    factor = lower._affordable(program.graph, program)
    assert 1 < factor < 64
    needed = lower.bytes_needed(program.graph, lower.LargestSizes(program, factor, program.graph))
    assert (
        needed
        <= 256 * 2**20
        < lower.bytes_needed(program.graph, lower.LargestSizes(program, 2 * factor, program.graph))
    )


def test_operators_without_a_kernel_are_named_with_their_module() -> None:
    class Inverts(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.inv(x)

    net = nn.Sequential(nn.Linear(4, 4), Inverts()).eval()
    with pytest.raises(TargetError, match=r"no kernel for aten::linalg_inv\S* \(in 1\)"):
        pb.compile_model(net, tracing_inputs=[noise(4, 4)], deployment_settings=pb.ExecuTorchDeployment())
    nodes = ExecuTorchTarget().unsupported_nodes(torch.export.export(net, (noise(4, 4),)))
    assert ["linalg_inv" in str(node.target) for node in nodes] == [True]


def test_a_kernel_that_refuses_says_why(capfd: pytest.CaptureFixture[str]) -> None:
    class Cuts(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.pad(x, (-1, -1)) + 1

    with pytest.raises(TargetError, match=r"cannot run the program.*Padding values must be non-negative"):
        pb.compile_model(Cuts(), tracing_inputs=[noise(2, 5)], deployment_settings=pb.ExecuTorchDeployment())
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_state_between_calls_is_refused() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))
            self.seen: torch.Tensor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen.add_(1)
            return x * self.seen

    with pytest.raises(TargetError, match=r"changes its buffers at each call.*seen"):
        pb.compile_model(Counts(), tracing_inputs=[noise(4)], deployment_settings=pb.ExecuTorchDeployment())


def test_leaves_run_between_partitions() -> None:
    class Branches(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    model = nn.Sequential(nn.Linear(4, 4), Branches()).eval()
    compiled = pb.compile_model(
        model,
        tracing_inputs=[noise(2, 4), noise(3, 4)],
        deployment_settings=pb.ExecuTorchDeployment(),
        fullgraph=False,
    )
    assert [text.partition(":")[0] for text in compiled.report.fallbacks] == ["1"]
    assert torch.allclose(compiled(noise(3, 4)), model(noise(3, 4)), atol=1e-5)


def test_a_missing_package_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "executorch" else find(name))
    with pytest.raises(MissingPackageError, match=r'pip install "prepbench\[executorch\]"'):
        pb.compile_model(nn.Linear(2, 2), tracing_inputs=[noise(2, 2)], deployment_settings=pb.ExecuTorchDeployment())
