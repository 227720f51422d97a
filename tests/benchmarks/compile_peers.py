"""Candidates of the compile benchmark: ways to make a function from a float model, all from the same inputs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import prepbench as pb
from tests.benchmarks.compile_models import Case

Call = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Candidate:
    """One way to run a model.

    Attributes:
        name: what the table calls it.
        runtime: what runs it; candidates of one runtime are compared.
        build: makes the function, which takes and returns tensors, from the model.
        ours: whether prepbench made it.
        static: whether it is another's int8 with ranges that calibration fixed: prepbench shall be as close to float.
        for_all: False for what is meant for transformers only.
    """

    name: str
    runtime: str
    build: Callable[[Case], Call]
    ours: bool = False
    static: bool = False
    for_all: bool = True


def _eager(case: Case) -> Call:
    return case.model


# --- ONNX Runtime ---


def _onnx_file(case: Case, folder: Path) -> Path:
    path = folder / "float.onnx"
    batch = torch.export.Dim("batch")
    torch.onnx.export(
        case.model,
        case.tracing[1],
        str(path),
        dynamo=True,
        dynamic_shapes=tuple({0: batch} for _ in case.input_names),
        input_names=list(case.input_names),
        verbose=False,
    )
    return path


def _onnx_session(path: Path, names: tuple[str, ...]) -> Call:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def call(*inputs: torch.Tensor) -> torch.Tensor:
        feeds = {name: value.numpy() for name, value in zip(names, inputs, strict=True)}
        return torch.from_numpy(session.run(None, feeds)[0])

    return call


def _onnx_float(case: Case) -> Call:
    return _onnx_session(_onnx_file(case, Path(tempfile.mkdtemp())), case.input_names)


def _onnx_static(case: Case) -> Call:
    """ONNX Runtime's own quantizer with its recommended settings: preprocessed, QDQ, per channel, U8S8."""
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.rest = iter(case.calibration)

        def get_next(self) -> dict[str, np.ndarray] | None:
            inputs = next(self.rest, None)
            return inputs and {n: x.numpy() for n, x in zip(case.input_names, inputs, strict=True)}

    folder = Path(tempfile.mkdtemp())
    ready, int8 = folder / "ready.onnx", folder / "int8.onnx"
    quant_pre_process(str(_onnx_file(case, folder)), str(ready))
    quantize_static(
        str(ready),
        str(int8),
        Reader(),
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    return _onnx_session(int8, case.input_names)


def _onnx_dynamic(case: Case) -> Call:
    """ONNX Runtime's dynamic quantizer, which it recommends for transformers."""
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    folder = Path(tempfile.mkdtemp())
    ready, int8 = folder / "ready.onnx", folder / "int8.onnx"
    quant_pre_process(str(_onnx_file(case, folder)), str(ready))
    quantize_dynamic(
        str(ready), str(int8), op_types_to_quantize=["MatMul", "Gemm"], per_channel=True, weight_type=QuantType.QInt8
    )
    return _onnx_session(int8, case.input_names)


# --- OpenVINO ---


def _openvino_model(case: Case) -> Any:
    import openvino

    shapes = {i: [-1, *x.shape[1:]] for i, x in enumerate(case.tracing[0])}
    try:
        model = openvino.convert_model(case.model, example_input=case.tracing[1])
        model.reshape(shapes)
    except Exception:  # its errors have no common base; what its reader for PyTorch gets wrong, that for ONNX may take
        model = openvino.Core().read_model(_onnx_file(case, Path(tempfile.mkdtemp())))
        model.reshape(shapes)
    return model


def _openvino_compile(model: Any, **settings: str) -> Call:
    import openvino

    compiled = openvino.compile_model(model, "CPU", {"PERFORMANCE_HINT": "LATENCY", **settings})
    return lambda *inputs: torch.from_numpy(compiled([x.numpy() for x in inputs])[0])


def _openvino_float(case: Case) -> Call:
    # its default is bfloat16 on CPUs that have it, which would be another comparison
    return _openvino_compile(_openvino_model(case), INFERENCE_PRECISION_HINT="f32")


def _openvino_nncf(case: Case) -> Call:
    """NNCF's post-training quantization of the converted model, with its settings for transformers where it is one."""
    import nncf

    samples = [[x[i : i + 1].numpy() for x in inputs] for inputs in case.calibration for i in range(len(inputs[0]))]
    model_type = nncf.ModelType.TRANSFORMER if case.transformer else None
    model = nncf.quantize(_openvino_model(case), nncf.Dataset(samples), model_type=model_type)
    return _openvino_compile(model)


# --- Inductor ---


def _inductor_float(case: Case) -> Call:
    torch._inductor.config.freezing = True
    return torch.compile(case.model)


def _inductor_x86(case: Case) -> Call:
    """PT2E with X86InductorQuantizer as in torchao's tutorial, compiled with freezing."""
    import torchao.quantization.pt2e.quantizer.x86_inductor_quantizer as x86
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    batch = torch.export.Dim("batch")
    shapes = tuple({0: batch} for _ in case.input_names)
    program = torch.export.export(case.model, case.tracing[1], dynamic_shapes=shapes)
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
    prepared = prepare_pt2e(program.module(), quantizer)
    for inputs in case.calibration:
        prepared(*inputs)
    torch._inductor.config.freezing = True
    return torch.compile(convert_pt2e(prepared))


# --- prepbench ---


def _ours(deployment: str) -> Callable[[Case], Call]:
    def build(case: Case) -> Call:
        return pb.compile_model(
            case.model,
            tracing_inputs=case.tracing,
            calibration_inputs=case.calibration,
            deployment_settings=getattr(pb, deployment)(),
            quantization_settings=pb.QuantizationSettings(),
        )

    return build


CANDIDATES: dict[str, Candidate] = {
    candidate.name: candidate
    for candidate in (
        Candidate("eager float", "eager", _eager),
        Candidate("ORT float", "ORT", _onnx_float),
        Candidate("ORT quantize_static", "ORT", _onnx_static, static=True),
        Candidate("ORT quantize_dynamic", "ORT", _onnx_dynamic, for_all=False),
        Candidate("prepbench ORT", "ORT", _ours("OnnxRuntimeDeployment"), ours=True),
        Candidate("Inductor float", "Inductor", _inductor_float),
        Candidate("Inductor PT2E X86", "Inductor", _inductor_x86, static=True),
        Candidate("prepbench Inductor", "Inductor", _ours("InductorDeployment"), ours=True),
        Candidate("OpenVINO float", "OpenVINO", _openvino_float),
        Candidate("OpenVINO NNCF", "OpenVINO", _openvino_nncf, static=True),
        Candidate("prepbench OpenVINO", "OpenVINO", _ours("OpenVinoDeployment"), ours=True),
    )
}
