"""What it takes to bring a model of a real size from bfloat16 to 4-bit weights: seconds and memory, beside the peers.

The model is like Llama, with random weights in bfloat16: 120 million parameters, or a billion with ``--long``. Peak
memory is that of the process beyond what it holds once the packages are loaded and the model is made, as a multiple of
the weights in bfloat16 and with them. One process per candidate; peers that are not installed are left out.

prepbench's own way looks at a layer's inputs (``gptq``), as two of NNCF's do; ``nearest`` is what the other peers do.

``python -m tests.benchmarks.bench_real_sizes [--rows "prepbench ORT"] [--long]`` runs a part of it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.benchmarks.few_bits_peers import openvino_model

SIZES = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 10, "num_attention_heads": 12}
LONG = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 18, "num_attention_heads": 16}
VOCABULARY, BLOCK = 32000, 32
# seconds that one row may take
LONGEST = 1200
# as much longer than the best peer, and for a billion parameters: seconds, and bytes per byte of weights in bfloat16
SLOWER, LONG_SECONDS, LONG_MEMORY = 1.5, 900, 2.5
LOOK_AT_INPUTS = ("NNCF GPTQ", "NNCF scale estimation")


class Logits(nn.Module):
    """Of shape (batch, length, vocabulary), for tokens of shape (batch, length)."""

    def __init__(self, sizes: dict[str, int]) -> None:
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(vocab_size=VOCABULARY, num_key_value_heads=4, tie_word_embeddings=False, **sizes)
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            self.model = LlamaForCausalLM(config).eval()
        finally:
            torch.set_default_dtype(before)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, use_cache=False).logits


def _ids(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(length))


def _ours(model: nn.Module, deployment: str, algorithm: str = "auto") -> dict[str, Any]:
    import prepbench as pb

    compiled = pb.compile_model(
        model,
        tracing_inputs=[_ids(2, 16), _ids(3, 24)],
        calibration_inputs=[_ids(2, 64), _ids(2, 48)],
        deployment_settings=getattr(pb, deployment)(),
        discard_input_model=True,
        quantization_settings=pb.QuantizationSettings(
            weights_num_bits=4, prefer_weights_only_quantization=True, weights_only_quantization_block_size=BLOCK,
            weights_algorithm=algorithm,
        ),
    )  # fmt: skip
    compiled(_ids(1, 8))
    report = compiled.report
    left = sum(not row.quantized for row in report.layers)
    stages = ", ".join(f"{stage} {seconds:.0f}" for stage, seconds in report.seconds.items())
    return {"bytes": report.size_bytes, "more": f"{left} of {len(report.layers)} layers in float; {stages}"}


def _onnx(model: nn.Module, folder: Path) -> Path:
    path = folder / "float.onnx"
    # ONNX Runtime multiplies no matrices of bfloat16
    torch.onnx.export(
        model.float(),
        (_ids(2, 16),),
        str(path),
        dynamo=True,
        dynamic_shapes=({0: torch.export.Dim("batch"), 1: torch.export.Dim("length")},),
        verbose=False,
    )
    return path


def _ort(model: nn.Module, folder: Path) -> dict[str, Any]:
    import onnx
    import onnxruntime
    from onnxruntime.quantization import matmul_nbits_quantizer

    config = matmul_nbits_quantizer.DefaultWeightOnlyQuantConfig(block_size=BLOCK, is_symmetric=True)
    quantizer = matmul_nbits_quantizer.MatMulNBitsQuantizer(onnx.load(_onnx(model, folder)), algo_config=config)
    quantizer.process()
    (folder / "out").mkdir()
    out = folder / "out" / "model.onnx"
    quantizer.model.save_model_to_file(str(out), use_external_data_format=True)
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    session.run(None, {session.get_inputs()[0].name: _ids(1, 8).numpy()})
    return {"bytes": sum(path.stat().st_size for path in out.parent.iterdir())}


def _nncf(model: nn.Module, folder: Path, source: str, **better: Any) -> dict[str, Any]:
    import nncf
    import openvino

    if source == "onnx":
        converted = openvino.Core().read_model(_onnx(model, folder))
    else:
        converted = openvino_model(model, _ids(2, 16))
    mode = nncf.CompressWeightsMode.INT4_SYM
    converted = nncf.compress_weights(converted, mode=mode, group_size=BLOCK, all_layers=True, ratio=1.0, **better)
    openvino.save_model(converted, folder / "out.xml", compress_to_fp16=False)
    openvino.compile_model(converted, "CPU")([_ids(1, 8).numpy()])
    return {"bytes": (folder / "out.bin").stat().st_size}


def _dataset() -> Any:
    import nncf

    return nncf.Dataset([[_ids(2, 64).numpy()], [_ids(2, 48).numpy()]])


ROWS: dict[str, Callable[[nn.Module, Path], dict[str, Any]]] = {
    "prepbench ORT": lambda model, _: _ours(model, "OnnxRuntimeDeployment"),
    "prepbench ORT nearest": lambda model, _: _ours(model, "OnnxRuntimeDeployment", "nearest"),
    "prepbench OpenVINO": lambda model, _: _ours(model, "OpenVinoDeployment"),
    "ORT MatMulNBits": _ort,
    "NNCF": lambda model, folder: _nncf(model, folder, "torch"),
    "NNCF through ONNX": lambda model, folder: _nncf(model, folder, "onnx"),
    "NNCF GPTQ": lambda model, folder: _nncf(model, folder, "torch", gptq=True, dataset=_dataset()),
    "NNCF scale estimation": lambda model, folder: _nncf(
        model, folder, "torch", scale_estimation=True, dataset=_dataset()
    ),
}


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _held() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def measure(row: str, *, long: bool) -> None:
    """Print what one candidate took, as JSON."""
    import logging

    import prepbench as pb  # noqa: F401 (loaded before memory is looked at)

    logging.disable(logging.ERROR)
    torch.manual_seed(0)
    model = Logits(LONG if long else SIZES)
    weights = sum(parameter.numel() * 2 for parameter in model.parameters())
    with tempfile.TemporaryDirectory() as folder:
        before, start = _held(), time.perf_counter()
        found = ROWS[row](model, Path(folder))
        seconds = time.perf_counter() - start
    found |= {"seconds": seconds, "weights": weights, "peak": _peak() - before + weights}
    print("\n" + json.dumps(found), flush=True)


def main() -> int:
    """Print a row for each candidate, and what was reached; returns 1 where a limit is missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--long", action="store_true", help="a billion parameters")
    parser.add_argument("--one", action="store_true", help="measure the only row in this process")
    given = parser.parse_args()
    if given.one:
        measure(given.rows[0], long=given.long)
        return 0
    found = {}
    print(f"{'':<24}{'seconds':>10}{'peak memory':>26}{'on disk':>12}")
    for row in given.rows:
        if row.startswith("NNCF") and importlib.util.find_spec("nncf") is None:
            continue
        found[row] = _printed(row, long=given.long)
    return _judged({row: one for row, one in found.items() if one is not None}, long=given.long)


def _printed(row: str, *, long: bool) -> dict[str, Any] | None:
    """Run and print one row; None where it did not end well."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.bench_real_sizes", "--one", "--rows", row]
    try:
        done = subprocess.run(
            [*command, *(["--long"] if long else [])], capture_output=True, text=True, timeout=LONGEST
        )
    except subprocess.TimeoutExpired:
        print(f"{row:<24}over {LONGEST} s", flush=True)
        return None
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"')]
    if not lines:
        why = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        print(f"{row:<24}ended with {done.returncode}: {why[:200]}", flush=True)
        return None
    found: dict[str, Any] = json.loads(lines[-1])
    memory = f"{found['peak'] / 1e9:.2f} GB ({found['peak'] / found['weights']:.1f}x bfloat16)"
    more = f"  {found['more']}" if "more" in found else ""
    print(f"{row:<24}{found['seconds']:>10.0f}{memory:>26}{found['bytes'] / 1e6:>9.0f} MB{more}", flush=True)
    return found


def _judged(found: dict[str, dict[str, Any]], *, long: bool) -> int:
    """Print how far each of ours is from its limits; returns 1 where one is missed."""
    peers = {row: one["seconds"] for row, one in found.items() if not row.startswith("prepbench")}
    alike = [seconds for row, seconds in peers.items() if row in LOOK_AT_INPUTS]
    missed = False
    for row, one in found.items():
        if not row.startswith("prepbench"):
            continue
        if peers:
            slower = one["seconds"] / min(peers.values())
            print(f"{row}: {slower:.2f}x the fastest peer (limit {SLOWER})")
            if alike and "nearest" not in row:
                print(f"{row}: {one['seconds'] / min(alike):.2f}x the fastest peer that looks at inputs, too")
            missed |= slower > SLOWER
        if long:
            memory = one["peak"] / one["weights"]
            print(f"{row}: {one['seconds']:.0f} s (limit {LONG_SECONDS}), {memory:.2f}x bfloat16 (limit {LONG_MEMORY})")
            missed |= one["seconds"] > LONG_SECONDS or memory > LONG_MEMORY
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
