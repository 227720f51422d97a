"""The candidates of the board: ways from a task to something that runs, one process each."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.board.entry import Call, Entry, Outputs, Task


@dataclass(frozen=True)
class Made:
    """A candidate that is ready.

    Attributes:
        run: computes one call; its results are arrays.
        megabytes: of its files.
        seconds: how long it took to make.
        remark: what a reader should know.
        timed: the call as its user makes it, whose results stay of the kind that it gives; ``run`` if there is none.
    """

    run: Callable[[Call], Outputs]
    megabytes: float
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


def _ours(bits: int) -> Callable[[Entry, Task], Made]:
    def make(entry: Entry, task: Task) -> Made:
        import prepbench as pb

        start = time.perf_counter()
        settings = (
            pb.QuantizationSettings()
            if bits == 8
            else pb.QuantizationSettings(
                weights_num_bits=bits, prefer_weights_only_quantization=True, weights_only_quantization_block_size=32
            )
        )
        compiled = pb.compile_model(
            task.model,
            calibration_inputs=list(task.calibration),
            deployment_settings=pb.OnnxRuntimeDeployment(),
            quantization_settings=settings,
            **(entry.settings or {} if bits == 8 else {}),
        )
        seconds = time.perf_counter() - start
        folder = Path(tempfile.mkdtemp()) / "model"
        compiled.save(folder)
        size = sum(path.stat().st_size for path in folder.rglob("*.onnx*")) / 1e6
        rows = compiled.report.layers
        in_float = [row.fqn for row in rows if row.summary.startswith("float")]
        weights = [row.fqn for row in rows if row.summary.endswith("weights")] if bits == 8 else []
        remark = ", ".join(
            text
            for text in (
                f"{compiled.report.model_sqnr:.1f} dB" if compiled.report.model_sqnr is not None else "",
                f"{len(in_float)} of {len(rows)} layers in float" if in_float else "",
                f"{len(weights)} in weights alone" if weights else "",
            )
            if text
        )
        return Made(lambda call: _arrays(compiled(*call)), size, seconds, remark, lambda call: compiled(*call))

    return make


def _arrays(result: Any) -> Outputs:
    found: Sequence[Any] = torch.utils._pytree.tree_leaves(result)
    return [np.asarray(value.detach() if isinstance(value, torch.Tensor) else value) for value in found]


CANDIDATES: dict[str, Callable[[Entry, Task], Made]] = {
    "float on ORT": _float,
    "ORT static": _static,
    "ORT dynamic": _dynamic,
    "prepbench int8": _ours(8),
    "prepbench 4 bits": _ours(4),
}
PEERS = ("ORT static", "ORT dynamic")
FLOAT, OURS = "float on ORT", "prepbench int8"
