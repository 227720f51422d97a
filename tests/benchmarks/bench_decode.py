"""What a token costs with weights of 4 bits: ms per token after a cache of 256, and ms of a prompt of 128.

Random models like Llama with their cache as inputs and outputs: of 60 million parameters, where what surrounds the
runtime weighs most, of 120 million, and with ``--models "a billion"`` of that. Every candidate runs in a
process of its own, in rounds that take turns, and returns its cache as arrays, without copies where its runtime can do
that. Beside each time stands the share of the limit that memory sets: bytes of weights by the bandwidth that a sum over
a large array reaches, which is what one token at least takes. Candidates of one runtime are compared; a ratio of ours
to the best peer above 1.05 is marked. OpenVINO computes what is not quantized in bfloat16 by itself where the CPU has
instructions for it, and prepbench in float32 unless it is asked, so each precision is compared with its like. Peers
that are not installed are left out: NNCF needs the benchmark's environment.

``python -m tests.benchmarks.bench_decode [--models "120 million"] [--rows "prepbench ORT" "ORT MatMulNBits"]`` runs a
part of it.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.benchmarks import bench_real_sizes
from tests.benchmarks.rounds import interleave, serve

Sizes = dict[str, Any]
SMALL = {
    "vocab_size": 8000, "hidden_size": 640, "intermediate_size": 1792, "num_hidden_layers": 11,
    "num_attention_heads": 10, "num_key_value_heads": 5,
}  # fmt: skip
REAL = {"vocab_size": bench_real_sizes.VOCABULARY, "num_key_value_heads": 4}
MODELS: dict[str, Sizes] = {
    "60 million": SMALL,
    "120 million": {**REAL, **bench_real_sizes.SIZES},
    "a billion": {**REAL, **bench_real_sizes.LONG},
}
BLOCK, LIMIT = 32, 1.05
# new tokens, and tokens in the cache
STAGES = {"decode": (1, 256), "prefill": (128, 0)}
BANDWIDTH_BYTES = 2**28

Call = Callable[[], object]


def configuration(sizes: Sizes) -> Any:
    """Of the model."""
    from transformers import LlamaConfig

    return LlamaConfig(**sizes, max_position_embeddings=1024, tie_word_embeddings=False)


def language_model(sizes: Sizes) -> nn.Module:
    """The model, with random weights."""
    from transformers import LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(configuration(sizes)).eval()


def sample(sizes: Sizes, batch: int, new: int, past: int) -> dict[str, Any]:
    """A call with ``new`` tokens after ``past`` others."""
    from transformers import DynamicCache

    cache = DynamicCache(config=configuration(sizes))
    shape = (batch, *_cached(sizes, past))
    for layer in range(sizes["num_hidden_layers"]):
        cache.update(torch.randn(shape), torch.randn(shape), layer)
    return {"input_ids": torch.randint(0, sizes["vocab_size"], (batch, new)), "past_key_values": cache}


def _cached(sizes: Sizes, past: int) -> tuple[int, int, int]:
    """The shape of a layer's keys, without the batch."""
    return sizes["num_key_value_heads"], past, sizes["hidden_size"] // sizes["num_attention_heads"]


def _compiled(sizes: Sizes, name: str, folder: Path, bits: int | None) -> None:
    import prepbench as pb

    settings = None
    if bits is not None:
        settings = pb.QuantizationSettings(
            weights_num_bits=bits, prefer_weights_only_quantization=True, weights_only_quantization_block_size=BLOCK,
            weights_algorithm="nearest",
        )  # fmt: skip
    samples = [sample(sizes, *each) for each in ((2, 3, 4), (2, 5, 6), (1, 1, 8))]
    compiled = pb.compile_model(
        language_model(sizes),
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


def _arrays(sizes: Sizes, ends: list[tuple[str, int]], new: int, past: int) -> dict[str, Any]:
    """Inputs of a file by name: ids have two dims, keys and values have four."""
    ids = torch.randint(0, sizes["vocab_size"], (1, new)).numpy()
    return {name: ids if rank == 2 else torch.randn(1, *_cached(sizes, past)).numpy() for name, rank in ends}


def _call(sizes: Sizes, name: str, folder: Path, new: int, past: int) -> Call:
    if name.startswith("prepbench"):
        import prepbench as pb

        compiled = pb.load_compiled(folder)
        given = sample(sizes, 1, new, past)
        return lambda: compiled(**given)
    if name.startswith("ORT"):
        import onnxruntime

        session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
        feeds = _arrays(sizes, [(end.name, len(end.shape)) for end in session.get_inputs()], new, past)
        return lambda: session.run(None, feeds)
    if name.startswith("NNCF"):
        import openvino

        config = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "bf16" if "bf16" in name else "f32"}
        model = openvino.Core().compile_model(folder / "model.xml", "CPU", config)
        ends = [(end.get_any_name(), len(end.get_partial_shape())) for end in model.inputs]
        given = _arrays(sizes, ends, new, past)
        return lambda: model(given, share_outputs=True)
    model = language_model(sizes)
    if "bfloat16" in name:
        model = model.bfloat16()
    if name.startswith("torchao"):
        # the packing that torch's kernels for the CPU read is a prototype in torchao
        from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig
        from torchao.quantization import quantize_

        model = model.bfloat16()
        quantize_(model, PrototypeInt4WeightOnlyConfig(group_size=BLOCK, set_inductor_config=False))
    given = sample(sizes, 1, new, past)
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


def prepare(sizes: Sizes, name: str, folder: Path) -> None:
    """Write a candidate's files."""
    if name == "float" or name in PEERS:
        _compiled(sizes, name, folder, None if name == "float" else 4)
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


def _weights_bytes(sizes: Sizes, name: str, folder: Path) -> float:
    """Of a candidate's files, or of the model in memory; nan where it is packed there."""
    if folder.exists():
        return _folder_bytes(folder)
    with torch.device("meta"):
        parameters = sum(value.numel() for value in language_model(sizes).parameters())
    return parameters * {"eager float32": 4, "eager bfloat16": 2}.get(name, math.nan)


def _is_there(name: str) -> bool:
    package = "nncf" if name.startswith("NNCF") else "torchao" if name.startswith("torchao") else "torch"
    return importlib.util.find_spec(package) is not None


def measure(which: str, rows: list[str], root: Path) -> int:
    """Prepare, time and print; returns 1 if a ratio is above the limit."""
    this = ["-m", "tests.benchmarks.bench_decode", "--models", which]
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
    print(f"{which}, {speed / 1e9:.1f} GB/s\n{'':<26}{'MB':>8}" + "".join(f"{stage + ' ms':>24}" for stage in STAGES))
    for name in there:
        size = _weights_bytes(MODELS[which], name, root / name.replace(" ", "-"))
        cells = []
        for stage in STAGES:
            rounds = times[stage][name]
            best = statistics.median(rounds) if rounds else math.nan
            cells.append(
                f"{best:.2f}" + ("" if math.isnan(size) else f" ({100 * size / speed * 1e3 / best:.0f} % of limit)")
            )
        written = "-" if math.isnan(size) else f"{size / 1e6:.1f}"
        print(f"{name:<26}{written:>8}" + "".join(f"{cell:>24}" for cell in cells), flush=True)
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
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["60 million", "120 million"])
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--folder", type=Path, help="where files of candidates are kept and taken from")
    parser.add_argument("--prepare", help="write the files of one candidate in this process")
    parser.add_argument("--serve", choices=STAGES, help="time the only row in this process")
    given = parser.parse_args()
    sizes = MODELS[given.models[0]]
    if given.prepare:
        prepare(sizes, given.prepare, given.folder)
        return 0
    if given.serve:
        serve(_call(sizes, given.rows[0], given.folder, *STAGES[given.serve]))
        return 0
    rows, missed = [name for name in given.rows if _is_there(name)], 0
    for which in given.models:
        with tempfile.TemporaryDirectory() as folder:
            missed += measure(which, rows, given.folder / which.replace(" ", "-") if given.folder else Path(folder))
    return missed > 0


if __name__ == "__main__":
    raise SystemExit(main())
