"""Operators that prepbench writes for speed on ONNX Runtime, beside what ``torch.onnx`` writes, on the same runtime.

One call on 64 channels of 56 by 56 numbers, or 3136 of them in a row. One process per candidate, turns taken in rounds;
times and ratios are those of the fastest turns. The last row is a small network: a convolution in float, then one in
8 bits behind a pool, beside ``quantize_static`` with the first convolution left out.

``python -m tests.benchmarks.bench_kernels [--operators mish]`` runs a part of it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tests.benchmarks.rounds import interleave, serve

LIMIT = 0.8
SIZES, ROW = (1, 64, 56, 56), (1, 64, 3136)


class Calls(nn.Module):
    """Calls one operator."""

    def __init__(self, operator: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.operator = operator

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.operator(x)


class PoolsFloats(nn.Module):
    """Two convolutions with a pool between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(64, 32, 1), nn.Conv2d(32, 32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(functional.max_pool2d(self.first(x).relu(), 3, 2))


OPERATORS: dict[str, tuple[Callable[[], Callable[..., torch.Tensor]], tuple[int, ...]]] = {
    "prelu": (lambda: nn.PReLU(64), SIZES),
    "mish": (nn.Mish, SIZES),
    "softplus": (nn.Softplus, SIZES),
    "x.abs() ** 0.5": (lambda: lambda x: x.abs() ** 0.5, SIZES),
    "softmax over channels": (lambda: nn.Softmax(1), SIZES),
    "bicubic resizing": (
        lambda: lambda x: functional.interpolate(x, scale_factor=2.0, mode="bicubic"),
        SIZES,
    ),
    "long depthwise conv": (lambda: nn.Conv1d(64, 64, 31, padding=15, groups=64), ROW),
    "float pool before int8": (PoolsFloats, SIZES),
}
CANDIDATES = ("torch.onnx", "prepbench")


def _inputs(sizes: tuple[int, ...], count: int = 1) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(sizes, generator=generator) * 2 for _ in range(count)]


def _peer(model: nn.Module, x: torch.Tensor) -> Callable[[], object]:
    import onnxruntime

    file = Path(tempfile.mkdtemp()) / "model.onnx"
    torch.onnx.export(model, (x,), str(file), dynamo=False, input_names=["x"], opset_version=20)
    if isinstance(model, PoolsFloats):
        from onnxruntime.quantization import CalibrationDataReader, quantize_static

        class Reader(CalibrationDataReader):
            def __init__(self) -> None:
                self._calls = iter(_inputs(tuple(x.shape), 4))

            def get_next(self) -> Any:
                call = next(self._calls, None)
                return None if call is None else {"x": call.numpy()}

        quantize_static(
            str(file), str(file.with_name("int8.onnx")), Reader(), per_channel=True, nodes_to_exclude=["/first/Conv"]
        )
        file = file.with_name("int8.onnx")
    session, feeds = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"]), {"x": x.numpy()}
    return lambda: session.run(None, feeds)


def _ours(model: nn.Module, x: torch.Tensor) -> Callable[[], object]:
    import prepbench as pb

    samples = _inputs(tuple(x.shape), 4)
    is_quantized = isinstance(model, PoolsFloats)
    compiled = pb.compile_model(
        model,
        tracing_inputs=samples,
        calibration_inputs=samples if is_quantized else None,
        deployment_settings=pb.OnnxRuntimeDeployment(),
        quantization_settings=pb.QuantizationSettings() if is_quantized else None,
        layer_quantization_settings={"first": pb.LayerQuantizationSettings(skip_quantization=True)}
        if is_quantized
        else None,
    )
    if not is_quantized:
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-3, atol=1e-4)
    return lambda: compiled(x)


def work(operator: str, candidate: str) -> None:
    """Be the worker of a candidate."""
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    make, sizes = OPERATORS[operator]
    made = make()
    model = (made if isinstance(made, nn.Module) else Calls(made)).eval()
    serve({"torch.onnx": _peer, "prepbench": _ours}[candidate](model, _inputs(sizes)[0]))


def main() -> None:
    """Print a row for each operator, with the ratio to the peer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--operators", nargs="+", choices=OPERATORS, default=list(OPERATORS))
    parser.add_argument("--one", nargs=2, help="operator and candidate of this worker")
    given = parser.parse_args()
    if given.one:
        work(*given.one)
        return
    print(f"{'ms a call':<24}" + "".join(f"{name:>14}" for name in CANDIDATES) + f"{'ratio':>9}")
    for operator in given.operators:
        module = "tests.benchmarks.bench_kernels"
        rounds = interleave({name: ("-m", module, "--one", operator, name) for name in CANDIDATES})
        peer, ours = (min(rounds[name], default=float("nan")) for name in CANDIDATES)
        print(f"{operator:<24}{peer:>14.3f}{ours:>14.3f}{ours / peer:>8.2f}x", flush=True)
        if not ours / peer <= LIMIT:
            print(f"{operator}: {ours / peer:.2f}x is above {LIMIT}x", file=sys.stderr)


if __name__ == "__main__":
    main()
