"""What a token costs with weights of 4 bits: ms per token after a cache of 256, and ms of a prompt of 128.

A random model like Llama of some 60 million parameters, with its cache as inputs and outputs. Every candidate runs in a
process of its own, in rounds that take turns, and returns its cache as arrays, without copies where its runtime can do
that. Beside each time stands the share of the limit that memory sets: bytes of weights by the bandwidth that a sum over
a large array reaches, which is what one token at least takes. Candidates of one runtime are compared; a ratio of ours
to the best peer above 1.05 is marked. OpenVINO computes what is not quantized in bfloat16 by itself where the CPU has
instructions for it, and prepbench in float32 unless it is asked, so each precision is compared with its like. Peers
that are not installed are left out: NNCF needs the benchmark's environment.

``python -m tests.benchmarks.bench_decode [--rows "prepbench ORT" "ORT MatMulNBits"]`` runs a part of it.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.benchmarks.rounds import interleave, serve

SIZES = {
    "vocab_size": 8000, "hidden_size": 640, "intermediate_size": 1792, "num_hidden_layers": 11,
    "num_attention_heads": 10, "num_key_value_heads": 5, "max_position_embeddings": 1024, "tie_word_embeddings": False,
}  # fmt: skip
BLOCK, LIMIT = 32, 1.05
# new tokens, and tokens in the cache
STAGES = {"decode": (1, 256), "prefill": (128, 0)}
BANDWIDTH_BYTES = 2**28

Call = Callable[[], object]


def language_model() -> nn.Module:
    """The model, with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES)).eval()


def sample(batch: int, new: int, past: int) -> dict[str, Any]:
    """A call with ``new`` tokens after ``past`` others."""
    from transformers import DynamicCache, LlamaConfig

    cache = DynamicCache(config=LlamaConfig(**SIZES))
    heads, size = SIZES["num_key_value_heads"], SIZES["hidden_size"] // SIZES["num_attention_heads"]
    for layer in range(SIZES["num_hidden_layers"]):
        cache.update(torch.randn(batch, heads, past, size), torch.randn(batch, heads, past, size), layer)
    return {"input_ids": torch.randint(0, SIZES["vocab_size"], (batch, new)), "past_key_values": cache}


def _compiled(name: str, folder: Path, bits: int | None) -> None:
    import prepbench as pb

    settings = None
    if bits is not None:
        settings = pb.QuantizationSettings(
            weights_num_bits=bits, prefer_weights_only_quantization=True, weights_only_quantization_block_size=BLOCK,
            weights_algorithm="nearest",
        )  # fmt: skip
    samples = [sample(2, 3, 4), sample(2, 5, 6), sample(1, 1, 8)]
    compiled = pb.compile_model(
        language_model(),
        tracing_inputs=samples,
        calibration_inputs=samples if bits else None,
        deployment_settings=pb.OpenVinoDeployment(inference_precision="bf16" if "bf16" in name else None)
        if "OpenVINO" in name
        else pb.OnnxRuntimeDeployment(),
        quantization_settings=settings,
    )
    compiled.save(folder)


def _prepare_peer(name: str, folder: Path) -> None:
    folder.mkdir()
    source = next((folder.parent / "float").rglob("model.onnx"))
    if name.startswith("ORT"):
        import onnx
        from onnxruntime.quantization import matmul_nbits_quantizer

        config = matmul_nbits_quantizer.DefaultWeightOnlyQuantConfig(
            block_size=BLOCK, is_symmetric=True, accuracy_level=4 if "int8" in name else None
        )
        quantizer = matmul_nbits_quantizer.MatMulNBitsQuantizer(onnx.load(source), algo_config=config)
        quantizer.process()
        quantizer.model.save_model_to_file(str(folder / "model.onnx"), use_external_data_format=True)
        return
    import nncf
    import openvino

    model = openvino.Core().read_model(source)
    mode = nncf.CompressWeightsMode.INT4_SYM
    model = nncf.compress_weights(model, mode=mode, group_size=BLOCK, ratio=1.0, all_layers="all" in name)
    openvino.save_model(model, folder / "model.xml", compress_to_fp16=False)


def _arrays(ends: list[tuple[str, int]], new: int, past: int) -> dict[str, Any]:
    """Inputs of a file by name: ids have two dims, keys and values have four."""
    call = sample(1, new, past)
    heads, size = SIZES["num_key_value_heads"], SIZES["hidden_size"] // SIZES["num_attention_heads"]
    return {
        name: call["input_ids"].numpy() if rank == 2 else torch.randn(1, heads, past, size).numpy()
        for name, rank in ends
    }


def _call(name: str, folder: Path, new: int, past: int) -> Call:
    if name.startswith("prepbench"):
        import prepbench as pb

        compiled = pb.load_compiled(folder)
        given = sample(1, new, past)
        return lambda: compiled(**given)
    if name.startswith("ORT"):
        import onnxruntime

        session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
        feeds = _arrays([(end.name, len(end.shape)) for end in session.get_inputs()], new, past)
        return lambda: session.run(None, feeds)
    if name.startswith("NNCF"):
        import openvino

        config = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "bf16" if "bf16" in name else "f32"}
        model = openvino.Core().compile_model(folder / "model.xml", "CPU", config)
        ends = [(end.get_any_name(), len(end.get_partial_shape())) for end in model.inputs]
        given = _arrays(ends, new, past)
        return lambda: model(given, share_outputs=True)
    model = language_model()
    if "bfloat16" in name:
        model = model.bfloat16()
    if name.startswith("torchao"):
        # the packing that torch's kernels for the CPU read is a prototype in torchao
        from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig
        from torchao.quantization import quantize_

        model = model.bfloat16()
        quantize_(model, PrototypeInt4WeightOnlyConfig(group_size=BLOCK, set_inductor_config=False))
    given = sample(1, new, past)
    ids = given["input_ids"]
    layers = [(layer.keys.to(model.dtype), layer.values.to(model.dtype)) for layer in given["past_key_values"].layers]

    def call() -> object:
        from transformers import DynamicCache

        with torch.no_grad():
            return model(input_ids=ids, past_key_values=DynamicCache(layers))

    return call


PEERS = {
    "prepbench ORT": ("ORT MatMulNBits", "ORT MatMulNBits int8"),
    "prepbench OpenVINO": ("NNCF INT4", "NNCF INT4 all layers"),
    "prepbench OpenVINO bf16": ("NNCF INT4 bf16", "NNCF INT4 all layers bf16"),
}
ROWS = (
    *PEERS,
    *(peer for peers in PEERS.values() for peer in peers),
    "eager float32",
    "eager bfloat16",
    "torchao int4",
)


def prepare(name: str, folder: Path) -> None:
    """Write a candidate's files."""
    if name == "float" or name in PEERS:
        _compiled(name, folder, None if name == "float" else 4)
    elif name.startswith(("ORT", "NNCF")):
        _prepare_peer(name, folder)


def bandwidth() -> float:
    """Bytes in a second that a sum over a large array reads, at best."""
    import time

    values = torch.ones(BANDWIDTH_BYTES // 4)
    values.sum()
    times = []
    for _ in range(20):
        start = time.perf_counter()
        values.sum()
        times.append(time.perf_counter() - start)
    return BANDWIDTH_BYTES / min(times)


def _folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _weights_bytes(name: str, folder: Path) -> int:
    if folder.exists():
        return _folder_bytes(folder)
    parameters = sum(value.numel() for value in language_model().parameters())
    return parameters * {"eager float32": 4, "eager bfloat16": 2}.get(name, 1)


def _is_there(name: str) -> bool:
    package = "nncf" if name.startswith("NNCF") else "torchao" if name.startswith("torchao") else "torch"
    return importlib.util.find_spec(package) is not None


def measure(rows: list[str], root: Path) -> int:
    """Prepare, time and print; returns 1 if a ratio is above the limit."""
    this = ["-m", "tests.benchmarks.bench_decode"]
    there = []
    for name in ["float", *rows]:
        done = root / name.replace(" ", "-")
        if not done.exists():
            command = [sys.executable, "-W", "ignore", *this, "--prepare", name, "--folder", str(done)]
            ended = subprocess.run(command, capture_output=True, text=True)
            if ended.returncode:
                print(f"{name}: {ended.stderr.strip().splitlines()[-1:]}", flush=True)
                continue
        there += [name] if name != "float" else []
    speed, times = bandwidth(), {}
    for stage in STAGES:
        commands = {
            name: [*this, "--serve", stage, "--rows", name, "--folder", str(root / name.replace(" ", "-"))]
            for name in there
        }
        times[stage] = interleave(commands)
    print(f"{speed / 1e9:.1f} GB/s\n{'':<24}{'MB':>8}" + "".join(f"{stage + ' ms':>24}" for stage in STAGES))
    for name in there:
        size = _weights_bytes(name, root / name.replace(" ", "-"))
        cells = []
        for stage in STAGES:
            rounds = times[stage][name]
            best = statistics.median(rounds) if rounds else float("nan")
            cells.append(f"{best:.2f} ({100 * size / speed * 1e3 / best:.0f} % of limit)")
        print(f"{name:<24}{size / 1e6:>8.1f}" + "".join(f"{cell:>24}" for cell in cells), flush=True)
    return _compare(times)


def _compare(times: dict[str, dict[str, list[float]]]) -> int:
    missed = 0
    for ours, peers in PEERS.items():
        for stage, found in times.items():
            ratios = {
                peer: statistics.median(a / b for a, b in zip(found[ours], found[peer], strict=True))
                for peer in peers
                if found.get(peer) and found.get(ours)
            }
            if ratios:
                peer = max(ratios, key=ratios.__getitem__)
                mark = " ABOVE" if ratios[peer] > LIMIT else ""
                missed += bool(mark)
                print(f"{ours}, {stage}: {ratios[peer]:.2f}x {peer}{mark}")
    return missed > 0


def main() -> int:
    """Print a row for each candidate, then the ratios of ours to the best peer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--folder", type=Path, help="where files of candidates are kept and taken from")
    parser.add_argument("--prepare", help="write the files of one candidate in this process")
    parser.add_argument("--serve", choices=STAGES, help="time the only row in this process")
    given = parser.parse_args()
    if given.prepare:
        prepare(given.prepare, given.folder)
        return 0
    if given.serve:
        serve(_call(given.rows[0], given.folder, *STAGES[given.serve]))
        return 0
    rows = [name for name in given.rows if _is_there(name)]
    if given.folder:
        return measure(rows, given.folder)
    with tempfile.TemporaryDirectory() as folder:
        return measure(rows, Path(folder))


if __name__ == "__main__":
    raise SystemExit(main())
