"""What few bits cost a small trained language model: perplexity against float, for each algorithm and each peer.

A row is one way to quantize, a column one form of weights: ``w8a8`` (8 bits, activations too), 4 bits in blocks of 32
and 128, and 4 bits with a scale for each channel. A cell is the perplexity's distance from float in percent. One
process per row. Peers that are not installed are left out: NNCF needs the benchmark's environment.

``python -m tests.benchmarks.bench_few_bits [--rows "prepbench gptq" "NNCF awq sym"]`` runs a part of it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks.language_model import Predictor, perplexity, trained, windows

FORMS = ("w8a8", "w4 32", "w4 128", "w4 channel")
LIMITS = {"w8a8": 0.5, "w4 32": 0.5, "w4 128": 1.0, "w4 channel": 3.0}
ALGORITHMS = ("nearest", "hqq", "awq", "gptq")
CALIBRATION = 16
LIMIT = 3600

Logits = Callable[[torch.Tensor], torch.Tensor]
Cell = tuple[float, int]  # perplexity, bytes on disk
Row = Callable[[Predictor, str], Cell | None]


def _block(form: str) -> int:
    return {"w4 32": 32, "w4 128": 128}.get(form, 0)


def _ours(algorithm: str, deployment: str, symmetric: bool = True, tables: int | None = None) -> Row:
    import prepbench as pb

    reuse = pb.KeptStages()
    rules = {"Embedding": pb.LayerQuantizationSettings(weights_num_bits=tables)} if tables else None

    def run(model: Predictor, form: str) -> Cell | None:
        settings = pb.QuantizationSettings(weights_algorithm=algorithm)
        if form != "w8a8":
            settings = pb.QuantizationSettings(
                weights_num_bits=4, prefer_weights_only_quantization=True, weights_symmetric=symmetric,
                weights_only_quantization_block_size=_block(form), weights_algorithm=algorithm,
            )  # fmt: skip
        elif not symmetric:
            return None
        compiled = pb.compile_model(
            model,
            tracing_inputs=[windows(1)[0], windows(1)[0][:2, :96]],
            calibration_inputs=windows(CALIBRATION),
            deployment_settings=getattr(pb, deployment)(),
            quantization_settings=settings,
            layer_quantization_settings=rules if form != "w8a8" else None,
            reuse=reuse,
        )
        left = [row.fqn for row in compiled.report.layers if not row.quantized]
        if left:
            print(f"{len(left)} layers stay in float in {form}: {left[:3]}", flush=True)
        return perplexity(compiled), int(compiled.report.size_bytes or 0)

    return run


def _float_onnx(model: Predictor, folder: Path) -> Path:
    import prepbench as pb

    compiled = pb.compile_model(
        model,
        tracing_inputs=[windows(1)[0], windows(1)[0][:2, :96]],
        deployment_settings=pb.OnnxRuntimeDeployment(),
    )
    compiled.save(folder / "float")
    return next((folder / "float").rglob("model.onnx"))


def _session(path: Path) -> Logits:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda ids: torch.from_numpy(session.run(None, {name: ids.numpy()})[0])


def _folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _ort(algorithm: str, symmetric: bool = True) -> Row:
    def run(model: Predictor, form: str) -> Cell | None:
        import onnx
        from onnxruntime.quantization import QuantType, matmul_nbits_quantizer, quantize_dynamic

        folder = Path(tempfile.mkdtemp())
        path, out = _float_onnx(model, folder), folder / "out" / "model.onnx"
        out.parent.mkdir()
        if form == "w8a8":
            if algorithm != "default" or not symmetric:
                return None
            quantize_dynamic(str(path), str(out), per_channel=True, weight_type=QuantType.QInt8)
        else:
            block = _block(form) or 256  # it has no channels; this is its largest block
            if algorithm == "hqq":
                config = matmul_nbits_quantizer.HQQWeightOnlyQuantConfig(block_size=block, bits=4)
            else:
                config = matmul_nbits_quantizer.DefaultWeightOnlyQuantConfig(block_size=block, is_symmetric=symmetric)
            quantizer = matmul_nbits_quantizer.MatMulNBitsQuantizer(onnx.load(path), algo_config=config)
            quantizer.process()
            quantizer.model.save_model_to_file(str(out), use_external_data_format=True)
        return perplexity(_session(out)), _folder_bytes(out.parent)

    return run


def _nncf(algorithm: str, mode: str) -> Row:
    def run(model: Predictor, form: str) -> Cell | None:
        import nncf
        import openvino

        folder = Path(tempfile.mkdtemp())
        converted = openvino.Core().read_model(_float_onnx(model, folder))
        samples = nncf.Dataset([[batch.numpy()] for batch in windows(CALIBRATION)])
        if form == "w8a8":
            if (algorithm, mode) != ("plain", "sym"):
                return None
            converted = nncf.quantize(converted, samples, model_type=nncf.ModelType.TRANSFORMER)
        else:
            chosen = {"awq": {"awq": True}, "scale": {"scale_estimation": True}, "gptq": {"gptq": True}, "plain": {}}
            converted = nncf.compress_weights(
                converted,
                mode=getattr(nncf.CompressWeightsMode, f"INT4_{mode.upper()}"),
                group_size=_block(form) or -1,
                all_layers=True,
                ratio=1.0,
                dataset=samples if algorithm != "plain" else None,
                **chosen[algorithm],  # type: ignore[arg-type]
            )
        openvino.save_model(converted, folder / "out.xml", compress_to_fp16=False)
        compiled = openvino.compile_model(converted, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        return (
            perplexity(lambda ids: torch.from_numpy(compiled([ids.numpy()])[0])),
            (folder / "out.bin").stat().st_size,
        )

    return run


ROWS: dict[str, Callable[[], Row]] = {
    **{f"prepbench {name}": lambda name=name: _ours(name, "EagerDeployment") for name in ALGORITHMS},  # type: ignore[misc]
    **{f"prepbench {name} asym": lambda name=name: _ours(name, "EagerDeployment", False) for name in ALGORITHMS},  # type: ignore[misc]
    "prepbench ORT": lambda: _ours("auto", "OnnxRuntimeDeployment"),
    "prepbench ORT, tables 8": lambda: _ours("auto", "OnnxRuntimeDeployment", tables=8),
    "prepbench OpenVINO": lambda: _ours("auto", "OpenVinoDeployment"),
    "ORT MatMulNBits sym": lambda: _ort("default"),
    "ORT MatMulNBits asym": lambda: _ort("default", symmetric=False),
    "ORT MatMulNBits hqq": lambda: _ort("hqq", symmetric=False),
    **{
        f"NNCF {name} {mode}": lambda name=name, mode=mode: _nncf(name, mode)  # type: ignore[misc]
        for name in ("plain", "awq", "scale", "gptq")
        for mode in ("sym", "asym")
    },
}


def measure(row: str) -> None:
    """Print the cells of one row as JSON, one line each."""
    import logging

    logging.disable(logging.ERROR)
    model, run = trained(), ROWS[row]()
    for form in FORMS:
        start = time.perf_counter()
        try:
            cell: Any = run(model, form)
        except Exception as error:
            cell = f"{type(error).__name__}: {error}"
        print("\n" + json.dumps([form, cell, time.perf_counter() - start]), flush=True)


def _in_process(row: str) -> dict[str, tuple[Any, float]]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.bench_few_bits", "--one", "--rows", row]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
        end, output = f"ended with {done.returncode}: {done.stderr[-300:]}", done.stdout
    except subprocess.TimeoutExpired as error:
        end, output = f"over {LIMIT} s", (error.stdout or b"").decode()
    lines = [json.loads(line) for line in output.splitlines() if line.startswith('["')]
    cells = {form: (cell, seconds) for form, cell, seconds in lines}
    for line in output.splitlines():
        if "stay in float" in line:
            print(f"  {row}: {line}")
    return {form: cells.get(form, (end, 0.0)) for form in FORMS}


def main() -> None:
    """Print a row for each way, then the best of ours and of the peers for each form."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--one", action="store_true", help="measure the only row in this process")
    given = parser.parse_args()
    if given.one:
        measure(given.rows[0])
        return
    before = perplexity(trained())
    print(f"perplexity in float {before:.3f}\n{'':<24}" + "".join(f"{form:>26}" for form in FORMS), flush=True)
    far: dict[str, dict[str, float]] = {form: {} for form in FORMS}
    errors = []
    for row in given.rows:
        if row.startswith("NNCF") and importlib.util.find_spec("nncf") is None:
            continue
        texts = []
        for form, (cell, seconds) in _in_process(row).items():
            if isinstance(cell, str):
                errors.append(f"{row}, {form}: {cell}")
            if not isinstance(cell, list):
                texts.append("-" if cell is None else cell.split(":")[0])
                continue
            far[form][row] = 100 * (cell[0] / before - 1)
            texts.append(f"{far[form][row]:+.2f} % {cell[1] / 1e6:.1f} MB {seconds:.0f} s")
        print(f"{row:<24}" + "".join(f"{text:>26}" for text in texts), flush=True)
    for form, rows in far.items():
        peers = {row: value for row, value in rows.items() if not row.startswith("prepbench")}
        ours = {row: value for row, value in rows.items() if row.startswith("prepbench")}
        best = [f"{min(group, key=group.__getitem__)} {min(group.values()):+.2f} %" for group in (ours, peers) if group]
        print(f"{form}: limit {LIMITS[form]:+.2f} %; best {'; '.join(best)}")
    print(*errors, sep="\n")


if __name__ == "__main__":
    main()
