"""A detector with decoding and non-maximum suppression in its graph: mAP in int8, beside the runtimes' own tools.

The detector of ``tests/detector``, trained here. ORT's ``quantize_static`` and NNCF get the same network and the same
calibration images; NNCF runs where it is installed. int8 has to be within half a point of mAP of float.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import prepbench as pb
from tests import detector

Call = Callable[[torch.Tensor], Any]
ALLOWED = 0.005  # of mAP
SCENES, CALIBRATION, BATCH = 480, 64, 16


def main() -> int:
    """Print a line for each tool; returns 1 if a limit is missed."""
    model = detector.Detector(detector.trained()).eval()
    data = detector.batches(SCENES, seed=2, size=BATCH)
    calibration = [images for images, _ in detector.batches(CALIBRATION, seed=3, size=BATCH)]
    exact = score(model, data)
    print(f"mAP over {SCENES} images; float in PyTorch {exact:.4f}")
    missed = 0
    for runtime, settings in (("ONNX Runtime", pb.OnnxRuntimeDeployment()), ("OpenVINO", pb.OpenVinoDeployment())):
        compiled = pb.compile_model(
            model,
            calibration_inputs=calibration,
            deployment_settings=settings,
            quantization_settings=pb.QuantizationSettings(),
        )
        rows = compiled.report.layers
        found = score(compiled, data)
        missed += found < exact - ALLOWED
        layers = f"{sum(row.quantized for row in rows)} of {len(rows)} layers"
        print(line(runtime, "prepbench int8", found, exact, timed(compiled, data[0][0]), layers))
        for remark in compiled.report.remarks:
            print(f"    {remark}")
    for runtime, tool, make in (
        ("ONNX Runtime", "ORT quantize_static", ort_static),
        ("OpenVINO", "NNCF quantize", nncf_quantize),
    ):
        try:
            call = make(model, calibration)
        except Exception as error:  # tools of others may raise anything
            print(f"{runtime:<14}{tool:<22}{type(error).__name__}: {str(error).splitlines()[0][:80]}")
            continue
        print(line(runtime, tool, score(call, data), exact, timed(call, data[0][0])))
    return int(missed > 0)


def score(call: Call, data: Sequence[tuple[torch.Tensor, Any]]) -> float:
    """mAP over all the data."""
    outputs: list[list[torch.Tensor]] = []
    with torch.no_grad():
        outputs = [list(call(images)) for images, _ in data]
    found = tuple(torch.cat(parts) for parts in zip(*outputs, strict=True))
    return pb.metrics.mean_average_precision(found, [target for _, targets in data for target in targets])


def timed(call: Call, images: torch.Tensor, rounds: int = 20) -> float:
    """The median time of a call in ms."""
    times = []
    with torch.no_grad():
        for _ in range(rounds):
            begun = time.perf_counter()
            call(images)
            times.append(time.perf_counter() - begun)
    return sorted(times)[rounds // 2] * 1e3


def line(runtime: str, tool: str, found: float, exact: float, milliseconds: float, further: str = "") -> str:
    """One row of the table."""
    points = (found - exact) * 100
    return f"{runtime:<14}{tool:<22}{found:.4f} ({points:+.2f} points) {milliseconds:7.2f} ms  {further}".rstrip()


def onnx_file(model: torch.nn.Module, images: torch.Tensor, folder: Path) -> Path:
    """The float network as PyTorch exports it."""
    path = folder / "float.onnx"
    torch.onnx.export(model, (images,), str(path), input_names=["images"], dynamo=True, external_data=False)
    return path


def ort_static(model: torch.nn.Module, calibration: Sequence[torch.Tensor]) -> Call:
    """ONNX Runtime's own quantizer with its recommended settings: preprocessed, QDQ, per channel, U8S8."""
    import onnxruntime
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.rest = iter(calibration)

        def get_next(self) -> dict[str, np.ndarray] | None:
            images = next(self.rest, None)
            return None if images is None else {"images": images.numpy()}

    folder = Path(tempfile.mkdtemp())
    ready, int8 = folder / "ready.onnx", folder / "int8.onnx"
    # its inference of symbolic shapes raises at TopK; the exporter's file has all shapes
    quant_pre_process(str(onnx_file(model, calibration[0], folder)), str(ready), skip_symbolic_shape=True)
    quantize_static(
        str(ready), str(int8), Reader(), per_channel=True, activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8
    )
    session = onnxruntime.InferenceSession(str(int8), providers=["CPUExecutionProvider"])
    return lambda images: [torch.from_numpy(each) for each in session.run(None, {"images": images.numpy()})]


def nncf_quantize(model: torch.nn.Module, calibration: Sequence[torch.Tensor]) -> Call:
    """NNCF's post-training quantization with its defaults."""
    import nncf
    import openvino

    # from ONNX, because its frontend for PyTorch lacks an operator of the detector
    network = openvino.convert_model(onnx_file(model, calibration[0], Path(tempfile.mkdtemp())))
    network.reshape(list(calibration[0].shape))
    images = nncf.Dataset([each.numpy() for each in calibration])
    compiled = openvino.compile_model(nncf.quantize(network, images), "CPU")
    return lambda given: [torch.from_numpy(value) for value in compiled(given.numpy()).values()]


if __name__ == "__main__":
    sys.exit(main())
