"""Inductor: int8 kernels, a dynamic batch, a fresh process, leaves, and what is missing."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import prepbench as pb
from prepbench.errors import ArtifactError, MissingPackageError, TargetError
from prepbench.targets.eager import EagerTarget
from prepbench.targets.inductor import InductorTarget, Package
from prepbench.targets.inductor.passes import fit_to_inductor


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def small_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 8)
    ).eval()


@pytest.fixture(scope="module")
def compiled() -> pb.CompiledModel:
    return pb.compile_model(
        small_net(),
        tracing_inputs=[noise(2, 3, 8, 8), noise(3, 3, 8, 8)],
        calibration_inputs=[noise(16, 3, 8, 8)],
        deployment_settings=pb.InductorDeployment(),
        quantization_settings=pb.QuantizationSettings(),
    )


def test_int8_is_close_at_batches_never_shown(compiled: pb.CompiledModel) -> None:
    net = small_net()
    for batch in (1, 7):
        x = noise(batch, 3, 8, 8)
        expected = net(x)
        assert float((compiled(x) - expected).pow(2).sum() / expected.pow(2).sum()) < 10**-2.5


def calls_of(model: pb.CompiledModel, folder: Path, *names: str) -> list[int]:
    """How often the compiled code calls kernels whose names have these words in them."""
    model.save(folder / "saved")
    with zipfile.ZipFile(folder / "saved" / "model.pt2") as archive:
        code = b"".join(archive.read(name) for name in archive.namelist() if name.endswith(".wrapper.cpp")).decode()
    return [sum(line.lstrip().startswith("AOTI") and name in line for line in code.splitlines()) for name in names]


def test_int8_kernels_do_the_work(compiled: pb.CompiledModel, tmp_path: Path) -> None:
    assert calls_of(compiled, tmp_path, "qconv_pointwise", "qlinear_pointwise") == [1, 1]


def test_stored_bits_count_constants_and_not_the_code_around(compiled: pb.CompiledModel) -> None:
    assert (
        8 < compiled.report.bits_per_weight < 8 * compiled.size_bytes / sum(p.numel() for p in small_net().parameters())
    )


def test_a_fresh_process_computes_the_same(compiled: pb.CompiledModel, in_fresh_process: Callable[..., Any]) -> None:
    x = noise(5, 3, 8, 8)
    torch.testing.assert_close(in_fresh_process(compiled, x), compiled(x))


class Branches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


def test_a_graph_with_leaves_compiles_and_keeps_its_batch_dynamic() -> None:
    net = nn.Sequential(nn.Linear(4, 4), Branches(), nn.Linear(4, 2)).eval()
    compiled = pb.compile_model(
        net,
        tracing_inputs=[noise(2, 4), noise(3, 4)],
        deployment_settings=pb.InductorDeployment(),
        fullgraph=False,
    )
    inputs = [noise(1 + i % 7, 4) for i in range(20)]
    with ThreadPoolExecutor(4) as pool:
        for x, got in zip(inputs, pool.map(compiled, inputs), strict=True):
            torch.testing.assert_close(got, net(x))


class Projection(nn.Module):
    """A linear layer that keeps its weight with inputs first, as GPT-2 does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(noise(16, 32) / 4), nn.Parameter(noise(32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias, x.flatten(0, 1), self.weight).unflatten(0, x.shape[:2])


def both(
    net: nn.Module, *shape: int, layers: Mapping[str, pb.LayerQuantizationSettings] | None = None, **settings: Any
) -> tuple[pb.CompiledModel, pb.CompiledModel]:
    """The same quantized graph in Inductor and in PyTorch itself."""
    first, second = pb.InductorDeployment(), pb.EagerDeployment()
    return quantized(net, first, *shape, layers=layers, **settings), quantized(
        net, second, *shape, layers=layers, **settings
    )


def quantized(
    net: nn.Module,
    target: pb.DeploymentSettings,
    *shape: int,
    layers: Mapping[str, pb.LayerQuantizationSettings] | None = None,
    **settings: Any,
) -> pb.CompiledModel:
    return pb.compile_model(
        net.eval(),
        tracing_inputs=[noise(2, *shape), noise(3, *shape)],
        calibration_inputs=[noise(16, *shape)],
        deployment_settings=target,
        quantization_settings=pb.QuantizationSettings(**settings),
        layer_quantization_settings=layers,
        compile_options=pb.CompileOptions(keep_ruined_layers_in_float=False),
    )


# settings of a layer, and how many int8 kernels it then takes
WAYS: list[tuple[dict[str, Any], int]] = [
    ({"per_channel": False}, 1),
    ({"weights_num_bits": 4}, 1),
    ({"activations_symmetric": True}, 1),
    ({"weights_num_bits": 4, "activations_num_bits": 16}, 0),
    ({"prefer_weights_only_quantization": True, "weights_symmetric": False}, 0),
    ({"prefer_weights_only_quantization": True, "weights_num_bits": 4}, 0),
]


class Ways(nn.Module):
    """A projection for each of ``WAYS``: all in one model, because a compile takes longer than all else."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Sequential(Projection(), nn.Tanh()) for _ in WAYS)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [part(x) for part in self.parts]


def test_every_pass_computes_what_the_converted_graph_computes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(EagerTarget, "placement", InductorTarget.placement)
    layers = {f"parts.{n}.0": pb.LayerQuantizationSettings(**settings) for n, (settings, _) in enumerate(WAYS)}
    model, reference = both(Ways(), 5, 16, layers=layers)
    for batch in (1, 7):
        x = noise(batch, 5, 16)
        for (settings, _), result, expected in zip(WAYS, model(x), reference(x), strict=True):
            assert float((result - expected).pow(2).sum() / expected.pow(2).sum()) < 10**-4, settings
    assert calls_of(model, tmp_path, "qlinear_pointwise") == [sum(kernels for _, kernels in WAYS)]


class Sums(nn.Module):
    """The results of linear layers, and to each is added something that is there before and after the call."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in OUTLIVING)
        self.weights = nn.ParameterList(torch.randn(5, 16) for _ in OUTLIVING)
        self.register_buffer("table", torch.randn(5, 16))

    def forward(self, x: torch.Tensor, *others: torch.Tensor) -> list[torch.Tensor]:
        parts = zip(OUTLIVING.values(), self.layers, self.weights, others, strict=True)
        return [add(self.table, weight, layer(x), other) for add, layer, weight, other in parts]


def in_place(table: torch.Tensor, weight: torch.Tensor, result: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    view = result.view(-1)
    result += y.view(5, 16)
    return result + 2 * view.view(5, 16)


# all in one model, because a compile takes longer than all else
OUTLIVING: dict[str, Callable[..., torch.Tensor]] = {
    "input": lambda table, weight, result, y: result + y.view(-1, 16),
    "input first": lambda table, weight, result, y: y.view(5, 16) + result,
    "part of input": lambda table, weight, result, y: result + y.view(5, 16).chunk(1)[0],
    "parameter": lambda table, weight, result, y: result + weight,
    "view of a buffer": lambda table, weight, result, y: table.t().t() + result,
    "computed from a parameter, folded": lambda table, weight, result, y: result + torch.relu(weight),
    "in place": in_place,
}


@pytest.mark.stress
def test_what_outlives_a_call_is_not_changed_where_kernels_add_in_place() -> None:
    model = Sums().eval()
    x, others = noise(5, 16), [noise(5, 4, 4) + index for index in range(len(OUTLIVING))]
    compiled = pb.compile_model(
        model,
        tracing_inputs=[(x, *others)],  # of one size: kernels for dynamic sizes add elsewhere
        calibration_inputs=[(x, *others)],
        deployment_settings=pb.InductorDeployment(),
        quantization_settings=pb.QuantizationSettings(),
    )
    kept = [y.clone() for y in others]
    with torch.no_grad():
        expected = model(x, *others)
    for _ in range(3):
        for name, one, other, y, before in zip(OUTLIVING, expected, compiled(x, *others), others, kept, strict=True):
            assert float((other - one).square().sum() / one.square().sum()) < 10**-3, name
            assert torch.equal(y, before), name


def test_linear_layers_read_matrices_where_sizes_are_dynamic(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Inductor takes for transposed, because it is part of an image, stops its patterns otherwise."""
    monkeypatch.setattr(EagerTarget, "placement", InductorTarget.placement)
    net = nn.Sequential(nn.Linear(16, 16), nn.Hardswish(), nn.Linear(16, 8)).eval()
    int8 = quantized(net, pb.EagerDeployment(), 16, 16)
    program = fit_to_inductor(int8._origin.lowering.program)  # type: ignore[union-attr]
    linears = program.graph.find_nodes(op="call_function", target=torch.ops.aten.linear.default)
    assert [node.args[0].meta["val"].ndim for node in linears] == [2, 2]


class Lines(nn.Module):
    """Convolutions over a line, whose result has learned positions added and is averaged; and over it as an image.

    The image is pooled in a window much larger than itself, which would be walked through value by value.
    """

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv1d(3, 8, 3, padding="same"), nn.Conv1d(8, 8, 3, 2, padding=1, groups=4)
        self.positions = nn.Parameter(torch.randn(10, 8))
        self.image = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding="valid"), nn.ReLU(), nn.AvgPool2d(500, ceil_mode=True), nn.Flatten()
        )
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = F.gelu(self.two(F.gelu(self.one(x)))).permute(0, 2, 1)
        return (y + self.positions).mean(1), self.head(self.image(x.unflatten(2, (4, 5))))


@pytest.mark.stress
def test_convolutions_over_lines_and_pooling_of_a_whole_image(tmp_path: Path) -> None:
    """Sizes of results are right, padding is taken by its name, and the pooling is a mean."""
    model = Lines()
    int8, reference = both(model, 3, 20)
    x = noise(5, 3, 20)
    with torch.no_grad():
        for found, same, exact in zip(int8(x), reference(x), model(x), strict=True):
            assert float((found - same).square().sum() / same.square().sum()) < 10**-3
            assert float((found - exact).square().sum() / exact.square().sum()) < 10**-2
    assert calls_of(int8, tmp_path, "qconv_pointwise") == [3]
    program = int8._origin.lowering.program  # type: ignore[union-attr]
    operators = [node.target for node in fit_to_inductor(program).graph.nodes]
    assert torch.ops.aten.avg_pool2d.default not in operators
    assert operators.count(torch.ops.aten.mean.dim) == 2


def test_packed_weights_of_convolutions_lie_on_cache_lines(compiled: pb.CompiledModel, tmp_path: Path) -> None:
    compiled.save(tmp_path / "saved")
    loaded: Any = pb.load_compiled(tmp_path / "saved", allow_code=True)
    package = loaded._runtime._package
    constants = package._runner.extract_constants_map(False)
    packed = [name for name, value in constants.items() if value.is_mkldnn]
    aligned = all(value.data_ptr() % 64 == 0 for value in constants.values() if not value.is_mkldnn)
    assert packed
    assert aligned or set(packed) == set(package._weights)


@torch.library.custom_op("prepbench_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _twice_of_nothing(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Doubles(nn.Module):
    """``forward(x)``: calls an operator that Inductor has no code for."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return twice(x) + 1


def test_a_loaded_package_finds_operators_that_were_registered(tmp_path: Path) -> None:
    compiled = pb.compile_model(
        Doubles(), tracing_inputs=[noise(2, 4), noise(3, 4)], deployment_settings=pb.InductorDeployment()
    )
    compiled.save(tmp_path / "saved")
    assert torch.equal(pb.load_compiled(tmp_path / "saved", allow_code=True)(noise(5, 4)), noise(5, 4) * 2 + 1)


def test_a_package_without_machine_code_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "empty.pt2", "w") as archive:
        archive.writestr("model/version", "1")
    with pytest.raises(ArtifactError, match="holds 0 libraries"):
        Package(tmp_path / "empty.pt2")


def test_blocks_of_weights_are_looked_into() -> None:
    net = nn.Linear(64, 8)
    settings = {"prefer_weights_only_quantization": True, "weights_only_quantization_block_size": 32}
    model, reference = both(net, 64, weights_num_bits=4, **settings)
    torch.testing.assert_close(model(noise(5, 64)), reference(noise(5, 64)))


def test_many_threads_get_their_own_results(compiled: pb.CompiledModel) -> None:
    inputs = [noise(1 + i % 5, 3, 8, 8) * (1 + i) for i in range(40)]
    expected = [compiled(x) for x in inputs]
    with ThreadPoolExecutor(8) as pool:
        for right, got in zip(expected, pool.map(compiled, inputs), strict=True):
            torch.testing.assert_close(got, right)


def test_without_a_compiler_the_error_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import cpp_builder

    def none() -> str:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", none)
    with pytest.raises(MissingPackageError, match=r"needs a C\+\+ compiler.*apt-get install g\+\+.*CXX"):
        pb.compile_model(nn.Linear(2, 2), tracing_inputs=[noise(2, 2)], deployment_settings=pb.InductorDeployment())


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
        pb.compile_model(Counts(), tracing_inputs=[torch.ones(2, 3)], deployment_settings=pb.InductorDeployment())


class ShortensRows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(10, 4, max_norm=0.5), nn.Linear(4, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.table(ids))


def test_rows_of_a_table_are_shortened_without_a_further_result() -> None:
    torch.manual_seed(0)
    model, ids = ShortensRows().eval(), torch.tensor([[1, 2, 9], [2, 2, 0]])
    program = torch.export.export(model, (ids,))
    fitted = fit_to_inductor(program).run_decompositions({})
    assert [str(one.kind) for one in fitted.graph_signature.output_specs] == ["OutputKind.USER_OUTPUT"]
    torch.testing.assert_close(pytree.tree_leaves(fitted.module()(ids)), [model(ids)])
