"""Few bits by other tools: ways to quantize a small language model, each at the settings that suit it best."""

from __future__ import annotations

import copy
import hashlib
import io
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.benchmarks.language_model import Predictor, windows

CALIBRATION = 16
# the variable of the environment that says where rows share files
FOLDER = "PREPBENCH_FEW_BITS"

Logits = Callable[[torch.Tensor], torch.Tensor]
Cell = tuple[Logits, int]  # the quantized model, bytes on disk
Row = Callable[[Predictor, str], Cell | None]


def block_size(form: str) -> int:
    """Weights with a scale of their own in this form; 0 for those of a channel."""
    return {"w4 32": 32, "w4 128": 128}.get(form, 0)


# --- ONNX Runtime ---


def ort(algorithm: str, symmetric: bool = True) -> Row:
    """ONNX Runtime's ``MatMulNBits``, and its dynamic quantizer for 8 bits."""

    def run(model: Predictor, form: str) -> Cell | None:
        import onnx
        from onnxruntime.quantization import QuantType, matmul_nbits_quantizer, quantize_dynamic

        path, out = _float_onnx(model), Path(tempfile.mkdtemp()) / "model.onnx"
        if form == "w8a8":
            if algorithm != "default" or not symmetric:
                return None
            quantize_dynamic(str(path), str(out), per_channel=True, weight_type=QuantType.QInt8)
            return _session(out), _folder_bytes(out.parent)
        if form == "w4 channel" and algorithm in ("k_quant", "gptq"):
            return None  # these pack zero points in pairs, and a layer of 256 inputs has one block of its largest size
        block = block_size(form) or 256  # it has no channels; this is its largest block
        config = _ort_config(algorithm, path, block, symmetric)
        # k_quant and gptq take the size of blocks from here, the others from their configuration
        quantizer = matmul_nbits_quantizer.MatMulNBitsQuantizer(
            onnx.load(path), block_size=block, is_symmetric=symmetric, algo_config=config
        )
        quantizer.process()
        quantizer.model.save_model_to_file(str(out), use_external_data_format=True)
        return _session(out), _folder_bytes(out.parent)

    return run


def _ort_config(algorithm: str, path: Path, block: int, symmetric: bool) -> Any:
    from onnxruntime.quantization import matmul_nbits_quantizer as quantizers

    if algorithm == "gptq":
        return quantizers.GPTQWeightOnlyQuantConfig(calibration_data_reader=_samples(path))
    if algorithm == "k_quant":
        return quantizers.KQuantWeightOnlyQuantConfig()
    if algorithm == "hqq":
        return quantizers.HQQWeightOnlyQuantConfig(block_size=block, bits=4)
    return quantizers.DefaultWeightOnlyQuantConfig(block_size=block, is_symmetric=symmetric)


def _samples(path: Path) -> Any:
    import onnx
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            name = onnx.load(path, load_external_data=False).graph.input[0].name
            self._rest = iter([{name: batch.numpy()} for batch in windows(CALIBRATION)])

        def get_next(self) -> dict[str, Any] | None:
            return next(self._rest, None)

    return Reader()


def _float_onnx(model: Predictor) -> Path:
    """The model in float as ONNX, written once for all rows."""
    import prepbench as pb

    digest = hashlib.sha256(model.model.lm_head.weight.detach().numpy().tobytes()).hexdigest()[:12]
    folder = Path(os.environ.get(FOLDER) or tempfile.mkdtemp()) / digest
    if found := list(folder.rglob("model.onnx")):
        return found[0]

    compiled = pb.compile_model(
        model,
        tracing_inputs=[windows(1)[0], windows(1)[0][:2, :96]],
        deployment_settings=pb.OnnxRuntimeDeployment(),
    )
    compiled.save(folder)
    return next(folder.rglob("model.onnx"))


def _session(path: Path) -> Logits:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda ids: torch.from_numpy(session.run(None, {name: ids.numpy()})[0])


def _folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


# --- OpenVINO ---


def openvino_model(model: nn.Module, ids: torch.Tensor) -> Any:
    """OpenVINO's form of a language model, with batch and length dynamic.

    Through ``torch.export``: OpenVINO reads no ``aten::diff`` that TorchScript finds in recent masks. Not through ONNX,
    whose matrix products have their weights the other way round: NNCF's GPTQ refuses these, and its scale estimation
    with blocks ruins the model.

    Args:
        model: of tokens to logits.
        ids: example tokens of shape (batch, length).
    """
    import openvino

    shapes = ({0: torch.export.Dim("batch"), 1: torch.export.Dim("length")},)
    return openvino.convert_model(torch.export.export(model, (ids,), dynamic_shapes=shapes))


def nncf(algorithm: str, mode: str) -> Row:
    """NNCF's compression of weights, and its post-training quantization for 8 bits."""

    def run(model: Predictor, form: str) -> Cell | None:
        import nncf
        import openvino

        if form == "w8a8" and (algorithm, mode) != ("plain", "sym"):
            return None
        converted = openvino_model(model, windows(1)[0])
        samples = nncf.Dataset([[batch.numpy()] for batch in windows(CALIBRATION)])
        if form == "w8a8":
            converted = nncf.quantize(converted, samples, model_type=nncf.ModelType.TRANSFORMER)
        else:
            chosen: dict[str, dict[str, Any]] = {
                "awq": {"awq": True},
                "scale": {"scale_estimation": True},
                "gptq": {"gptq": True},
                "plain": {},
            }
            converted = nncf.compress_weights(
                converted,
                mode=getattr(nncf.CompressWeightsMode, f"INT4_{mode.upper()}"),
                group_size=block_size(form) or -1,
                all_layers=True,
                ratio=1.0,
                dataset=samples if algorithm != "plain" else None,
                **chosen[algorithm],
            )
        folder = Path(tempfile.mkdtemp())
        openvino.save_model(converted, folder / "out.xml", compress_to_fp16=False)
        compiled = openvino.compile_model(converted, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        return (
            lambda ids: torch.from_numpy(compiled([ids.numpy()])[0]),
            (folder / "out.bin").stat().st_size,
        )

    return run


# --- torchao ---


def torchao(model: Predictor, form: str) -> Cell | None:
    """torchao's weights of 4 bits, in bfloat16 otherwise, which its kernels for the CPU ask for."""
    # the packing that torch's kernels for the CPU read is a prototype in torchao
    from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig
    from torchao.quantization import quantize_

    if form in ("w8a8", "w4 channel"):
        return None
    model = copy.deepcopy(model).bfloat16()
    quantize_(model, PrototypeInt4WeightOnlyConfig(group_size=block_size(form), set_inductor_config=False))
    saved = io.BytesIO()
    torch.save(model.state_dict(), saved)
    return (lambda ids: model(ids).float()), saved.tell()
