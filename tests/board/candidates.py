"""The candidates of the board: ways from a task to something that runs, one process each."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.board.entry import Call, Entry, Outputs, Task

MIN_SQNR = 20.0  # dB that int8 is asked for by default


@dataclass(frozen=True)
class Made:
    """A candidate that is ready.

    Attributes:
        run: computes one call; its results are arrays.
        megabytes: of its files; None where the tool writes none.
        seconds: how long it took to make.
        remark: what a reader should know.
        timed: the call as its user makes it, whose results stay of the kind that it gives; ``run`` if there is none.
    """

    run: Callable[[Call], Outputs]
    megabytes: float | None
    seconds: float
    remark: str = ""
    timed: Callable[[Call], object] | None = None


def _exported(task: Task, folder: Path) -> Path:
    """Write the network as torch's own exporter does."""
    file = folder / "float.onnx"
    call = task.timed
    names = [f"x{index}" for index in range(len(call))]
    with torch.no_grad():
        torch.onnx.export(task.model, call, str(file), dynamo=False, input_names=names, opset_version=17)
    return file


def _session(file: Path) -> Callable[[Call], Outputs]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    feeds = lambda call: {name: value.numpy() for name, value in zip(names, call, strict=False)}  # noqa: E731
    return lambda call: session.run(None, feeds(call))


def _float(entry: Entry, task: Task) -> Made:
    folder = Path(tempfile.mkdtemp())
    start = time.perf_counter()
    file = _exported(task, folder)
    seconds = time.perf_counter() - start
    return Made(_session(file), file.stat().st_size / 1e6, seconds, "torch's export")


def _static(entry: Entry, task: Task) -> Made:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    folder = Path(tempfile.mkdtemp())
    file = _exported(task, folder)
    start = time.perf_counter()
    ready, result = folder / "ready.onnx", folder / "int8.onnx"
    with contextlib.suppress(Exception):  # the tool refuses some graphs here, and its guide allows to leave it out
        quant_pre_process(str(file), str(ready), skip_symbolic_shape=True)

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self._calls = iter(task.calibration)

        def get_next(self) -> Any:
            call = next(self._calls, None)
            return None if call is None else {f"x{index}": value.numpy() for index, value in enumerate(call)}

    quantize_static(
        str(ready if ready.exists() else file),
        str(result),
        Reader(),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        reduce_range=_saturates(),
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    seconds = time.perf_counter() - start
    return Made(_session(result), result.stat().st_size / 1e6, seconds, "QDQ, a scale per channel")


def _dynamic(entry: Entry, task: Task) -> Made:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    folder = Path(tempfile.mkdtemp())
    file = _exported(task, folder)
    start = time.perf_counter()
    result = folder / "dynamic.onnx"
    quantize_dynamic(str(file), str(result), per_channel=False, weight_type=QuantType.QInt8, reduce_range=_saturates())
    seconds = time.perf_counter() - start
    return Made(_session(result), result.stat().st_size / 1e6, seconds)


def _saturates() -> bool:
    from prepbench._torch_compat.cpu import byte_sums_saturate

    return byte_sums_saturate()


# --- OpenVINO ---


def _openvino_model(task: Task, folder: Path) -> Any:
    """Read the network as torch's exporter writes it; the reader for PyTorch lacks operators of some of them."""
    import openvino

    return openvino.Core().read_model(_exported(task, folder))


def _openvino_call(model: Any, folder: Path, start: float, remark: str, **settings: str) -> Made:
    import openvino

    compiled = openvino.compile_model(model, "CPU", {"PERFORMANCE_HINT": "LATENCY", **settings})
    seconds = time.perf_counter() - start
    openvino.save_model(model, folder / "model.xml", compress_to_fp16=False)
    run = lambda call: list(compiled([value.numpy() for value in call]).values())  # noqa: E731
    return Made(run, (folder / "model.bin").stat().st_size / 1e6, seconds, remark)


def _openvino_float(entry: Entry, task: Task) -> Made:
    folder, start = Path(tempfile.mkdtemp()), time.perf_counter()
    # its default is bfloat16 on CPUs that have it, which would be another comparison
    return _openvino_call(_openvino_model(task, folder), folder, start, "", INFERENCE_PRECISION_HINT="f32")


def _nncf(entry: Entry, task: Task) -> Made:
    import nncf

    folder = Path(tempfile.mkdtemp())
    model = _openvino_model(task, folder)
    start = time.perf_counter()
    kind = nncf.ModelType.TRANSFORMER if entry.transformer else None
    data = nncf.Dataset([[value.numpy() for value in call] for call in task.calibration])
    result = nncf.quantize(model, data, model_type=kind, subset_size=len(task.calibration))
    return _openvino_call(result, folder, start, "its settings for transformers" if kind else "")


# --- Inductor ---


def _inductor_call(model: Any, start: float, task: Task) -> Made:
    torch._inductor.config.freezing = True
    compiled = torch.compile(model)
    compiled(*task.timed)
    return Made(
        lambda call: _arrays(compiled(*call)), None, time.perf_counter() - start, "", lambda call: compiled(*call)
    )


def _inductor_float(entry: Entry, task: Task) -> Made:
    return _inductor_call(task.model, time.perf_counter(), task)


def _pt2e(entry: Entry, task: Task) -> Made:
    """PT2E with X86InductorQuantizer as in torchao's tutorial."""
    import torchao.quantization.pt2e.quantizer.x86_inductor_quantizer as x86
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    start = time.perf_counter()
    program = torch.export.export(task.model, task.timed)
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
    prepared = prepare_pt2e(program.module(), quantizer)
    for call in task.calibration:
        prepared(*call)
    return _inductor_call(convert_pt2e(prepared), start, task)


# --- prepbench ---


def _ours(target: str, bits: int = 8) -> Callable[[Entry, Task], Made]:
    def make(entry: Entry, task: Task) -> Made:
        import prepbench as pb

        weights_only = {"prefer_weights_only_quantization": True, "weights_only_quantization_block_size": 32}
        settings = pb.QuantizationSettings(weights_num_bits=bits, **({} if bits == 8 else weights_only))
        further = {"deployment_settings": getattr(pb, target)(), "quantization_settings": settings}
        return _compiled(task, time.perf_counter(), further | dict(entry.settings or {} if bits == 8 else {}))

    return make


def _searched(entry: Entry, task: Task) -> Made:
    """The fastest mixture on ONNX Runtime that is as near to float as int8 is asked to be."""
    import prepbench as pb

    start = time.perf_counter()
    options = dict(entry.settings or {}).get("compile_options", pb.CompileOptions())
    found = pb.search(
        task.model,
        list(task.calibration),
        budget=pb.Budget(min_metric=options.model_sqnr_floor or MIN_SQNR),
        targets=[pb.OnnxRuntimeDeployment()],
        compile_options=options,
    )
    made = _compiled(task, start, found.settings)
    return replace(made, remark=", ".join(filter(None, (found.best.name, made.remark))))


def _compiled(task: Task, start: float, settings: Mapping[str, Any]) -> Made:
    import prepbench as pb

    compiled = pb.compile_model(task.model, calibration_inputs=list(task.calibration), **settings)
    seconds = time.perf_counter() - start
    folder = Path(tempfile.mkdtemp()) / "model"
    compiled.save(folder)
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.suffix in {".onnx", ".data", ".bin"}]
    rows = compiled.report.layers
    in_float = [row.fqn for row in rows if row.summary.startswith("float")]
    weights = [row.fqn for row in rows if row.summary.endswith("weights")]
    sqnr = compiled.report.model_sqnr
    remark = ", ".join(
        text
        for text in (
            f"{sqnr:.1f} dB" if sqnr is not None and len(in_float) < len(rows) else "",
            f"{len(in_float)} of {len(rows)} layers in float" if in_float else "",
            f"{len(weights)} in weights alone" if 0 < len(weights) < len(rows) - len(in_float) else "",
        )
        if text
    )
    size = sum(sizes) / 1e6 if sizes else None
    return Made(lambda call: _arrays(compiled(*call)), size, seconds, remark, lambda call: compiled(*call))


def _arrays(result: Any) -> Outputs:
    found: Sequence[Any] = torch.utils._pytree.tree_leaves(result)
    return [np.asarray(value.detach() if isinstance(value, torch.Tensor) else value) for value in found]


CANDIDATES: dict[str, Callable[[Entry, Task], Made]] = {
    "float on ORT": _float,
    "ORT static": _static,
    "ORT dynamic": _dynamic,
    "prepbench int8": _ours("OnnxRuntimeDeployment"),
    "prepbench 4 bits": _ours("OnnxRuntimeDeployment", 4),
    "prepbench searched": _searched,
    "float on OpenVINO": _openvino_float,
    "NNCF": _nncf,
    "prepbench int8 on OpenVINO": _ours("OpenVinoDeployment"),
    "float on Inductor": _inductor_float,
    "PT2E": _pt2e,
    "prepbench int8 on Inductor": _ours("InductorDeployment"),
}


@dataclass(frozen=True)
class Runtime:
    """The candidates of a runtime that are compared.

    Attributes:
        name: of the runtime.
        float: the network without quantization.
        peers: the runtime's own tools.
        ours: prepbench's int8.
    """

    name: str
    float: str
    peers: tuple[str, ...]
    ours: str


ORT = Runtime("ONNX Runtime", "float on ORT", ("ORT static", "ORT dynamic"), "prepbench int8")
RUNTIMES = (
    ORT,
    Runtime("OpenVINO", "float on OpenVINO", ("NNCF",), "prepbench int8 on OpenVINO"),
    Runtime("Inductor", "float on Inductor", ("PT2E",), "prepbench int8 on Inductor"),
)
