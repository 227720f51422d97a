"""int8 by prepbench against each target's own tool: latency (one process each, interleaved) and distance from
float (SQNR of the outputs).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import prepbench as pb
from tests.benchmarks.models import build
from tests.benchmarks.rounds import interleave, serve

BATCH = 4


def _input(name: str, batch: int = BATCH) -> torch.Tensor:
    torch.manual_seed(7)
    shape = tuple(build(name)[1][0].shape[1:])
    return torch.randn(batch, *shape)


def _calibration(name: str) -> list[torch.Tensor]:
    torch.manual_seed(3)
    shape = tuple(build(name)[1][0].shape[1:])
    return [torch.randn(8, *shape) for _ in range(8)]


def _prepbench(name: str, target: pb.DeploymentSettings) -> nn.Module:
    model, samples = build(name)
    return pb.compile_model(
        model,
        tracing_inputs=samples,
        calibration_inputs=_calibration(name),
        deployment_settings=target,
        quantization_settings=pb.QuantizationSettings(),
    )


def _ort_session(path: str) -> Any:
    import onnxruntime as ort

    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0])


def _ort_static(name: str) -> Any:
    """ONNX Runtime's own quantizer with its recommended settings: preprocessed, QDQ, per channel, int8."""
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    model, samples = build(name)
    folder = Path(tempfile.mkdtemp())
    float_path, ready, int8 = (str(folder / f) for f in ("float.onnx", "ready.onnx", "int8.onnx"))
    torch.onnx.export(
        model,
        (samples[0],),
        float_path,
        dynamo=True,
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        input_names=["x"],
        verbose=False,
    )
    quant_pre_process(float_path, ready)

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.rest = iter([{"x": x.numpy()} for x in _calibration(name)])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.rest, None)

    quantize_static(
        ready, int8, Reader(), per_channel=True, activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8
    )
    return _ort_session(int8)


def _x86_inductor(name: str) -> Any:
    """torchao's PT2E with X86InductorQuantizer as in its tutorial, compiled by Inductor with freezing."""
    import torchao.quantization.pt2e.quantizer.x86_inductor_quantizer as x86
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    model, samples = build(name)
    program = torch.export.export(model, (samples[0],), dynamic_shapes=({0: torch.export.Dim("batch")},), strict=False)
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
    prepared = prepare_pt2e(program.module(), quantizer)
    for x in _calibration(name):
        prepared(x)
    torch._inductor.config.freezing = True
    return torch.compile(convert_pt2e(prepared))


CANDIDATES: dict[str, Any] = {
    "eager float32": lambda name: build(name)[0],
    "ORT quantize_static": _ort_static,
    "prepbench ORT int8": lambda name: _prepbench(name, pb.OnnxRuntimeDeployment()),
    "PT2E X86 Inductor": _x86_inductor,
    "prepbench Inductor int8": lambda name: _prepbench(name, pb.InductorDeployment()),
}


def _sqnr(reference: torch.Tensor, value: torch.Tensor) -> float:
    return float(10 * torch.log10(reference.pow(2).sum() / (reference - value).pow(2).sum()))


def worker(candidate: str, name: str) -> None:
    """Measure one candidate: SQNR first, then latency on request."""
    x = _input(name)
    with torch.no_grad():
        call = CANDIDATES[candidate](name)
        reference = build(name)[0](x)
        Path(sys.argv[3]).write_text(str(_sqnr(reference, call(x))))
        serve(lambda: call(x))


def main() -> None:
    """Print one row per candidate; the last column is the ratio to the target's own tool."""
    print(f"batch {BATCH}; ms: median of interleaved rounds; SQNR of the outputs against float32 in dB")
    print(f"{'model':<11}{'candidate':<26}{'ms':>9}{'SQNR':>9}{'time/peer':>11}")
    for name in ("resnet", "mobilenet", "mlp"):
        folder = Path(tempfile.mkdtemp())
        files = {c: folder / f"{i}.txt" for i, c in enumerate(CANDIDATES)}
        times = interleave({c: ("-m", "tests.benchmarks.bench_quantize", c, name, str(files[c])) for c in CANDIDATES})
        peers = {"prepbench ORT int8": "ORT quantize_static", "prepbench Inductor int8": "PT2E X86 Inductor"}
        for candidate, ms in times.items():
            sqnr = float(files[candidate].read_text()) if files[candidate].exists() else float("nan")
            ratio = f"{ms / times[peers[candidate]]:.2f}" if candidate in peers else ""
            print(f"{name:<11}{candidate:<26}{ms:>9.2f}{sqnr:>9.1f}{ratio:>11}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 4:
        worker(sys.argv[1], sys.argv[2])
    else:
        main()
