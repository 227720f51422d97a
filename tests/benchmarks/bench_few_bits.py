"""What few bits cost small trained language models: perplexity against float, for each algorithm and each peer.

A row is one way to quantize, a column one form of weights: ``w8a8`` (8 bits, activations too), 4 bits in blocks of 32
and 128, and 4 bits with a scale for each channel. A cell is the perplexity's distance from float in percent, and the
divergence of the predictions from those in float in thousandths of a nat. Errors of weights move the perplexity of
one text up or down by chance, which is why it may be below that in float; they only ever add to the divergence. To
leave less to chance, all rows quantize several models, trained from other weights and in another order of the text, and
cells are means over these. The distance of ours to the best peer has its standard error, from pairs of pieces of text.
The exit status is 1 if ours is over a limit, or above the best peer of its runtime. One process per row. Peers that are
not installed are left out: NNCF needs the benchmark's environment.

``python -m tests.benchmarks.bench_few_bits [--rows "prepbench gptq" "NNCF awq sym"] [--model deep] [--seeds 1]`` runs a
part of it; of our own, the rows with other settings than the default, such as ``prepbench gptq``, run only if they are
named.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tests.benchmarks.few_bits_peers import CALIBRATION, FOLDER, Cell, Row, block_size, nncf, ort, torchao
from tests.benchmarks.language_model import Predictor, losses, predictions, trained, windows

FORMS = ("w8a8", "w4 32", "w4 128", "w4 channel")
LIMITS = {"w8a8": 0.5, "w4 32": 0.5, "w4 128": 1.0, "w4 channel": 3.0}
ALGORITHMS = ("nearest", "hqq", "awq", "gptq", "adaround")
LIMIT = 3600
# a second model says whether something was fitted to the first one
MODELS: dict[str, dict[str, object]] = {
    "wide": {},
    "deep": {
        "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_key_value_heads": 4,
    },
}  # fmt: skip


def _ours(
    algorithm: str, deployment: str, symmetric: bool = True, tables: int | None = None, smooth: float = 0.0
) -> Row:
    import prepbench as pb

    reuse = pb.KeptStages()
    rules = {"Embedding": pb.LayerQuantizationSettings(weights_num_bits=tables)} if tables else None

    def run(model: Predictor, form: str) -> Cell | None:
        settings = pb.QuantizationSettings(weights_algorithm=algorithm)
        if form != "w8a8":
            settings = pb.QuantizationSettings(
                weights_num_bits=4, prefer_weights_only_quantization=True, weights_symmetric=symmetric,
                weights_only_quantization_block_size=block_size(form), weights_algorithm=algorithm,
            )  # fmt: skip
        elif not symmetric:
            return None
        if smooth and form != "w8a8":
            return None
        compiled = pb.compile_model(
            model,
            tracing_inputs=[windows(1)[0], windows(1)[0][:2, :96]],
            calibration_inputs=windows(CALIBRATION),
            deployment_settings=getattr(pb, deployment)(),
            quantization_settings=settings,
            layer_quantization_settings=rules if form != "w8a8" else None,
            compile_options=pb.CompileOptions(smooth_quant=True, smooth_quant_strength=smooth) if smooth else None,
            reuse=reuse,
        )
        left = [row.fqn for row in compiled.report.layers if not row.quantized]
        if left:
            print(f"{len(left)} layers stay in float in {form}: {left[:3]}", flush=True)
        return compiled, int(compiled.report.size_bytes or 0)

    return run


ROWS: dict[str, Callable[[], Row]] = {
    **{f"prepbench {name}": lambda name=name: _ours(name, "EagerDeployment") for name in ALGORITHMS},  # type: ignore[misc]
    **{f"prepbench {name} asym": lambda name=name: _ours(name, "EagerDeployment", False) for name in ALGORITHMS},  # type: ignore[misc]
    "prepbench ORT": lambda: _ours("auto", "OnnxRuntimeDeployment"),
    "prepbench ORT, tables 4": lambda: _ours("auto", "OnnxRuntimeDeployment", tables=4),
    "prepbench OpenVINO": lambda: _ours("auto", "OpenVinoDeployment"),
    "prepbench ORT asym": lambda: _ours("auto", "OnnxRuntimeDeployment", False),
    "prepbench ORT smooth": lambda: _ours("auto", "OnnxRuntimeDeployment", smooth=0.8),
    "prepbench OpenVINO smooth": lambda: _ours("auto", "OpenVinoDeployment", smooth=0.8),
    "prepbench OpenVINO asym": lambda: _ours("auto", "OpenVinoDeployment", False),
    "ORT MatMulNBits sym": lambda: ort("default"),
    "ORT MatMulNBits asym": lambda: ort("default", symmetric=False),
    "ORT MatMulNBits hqq": lambda: ort("hqq", symmetric=False),
    "ORT MatMulNBits k_quant": lambda: ort("k_quant", symmetric=False),
    "ORT MatMulNBits gptq": lambda: ort("gptq", symmetric=False),
    "torchao int4": lambda: torchao,
    **{
        f"NNCF {name} {mode}": functools.partial(nncf, name, mode)
        for name in ("plain", "awq", "scale", "gptq")
        for mode in ("sym", "asym")
    },
}


DEFAULT = ("prepbench ORT", "prepbench OpenVINO", *(row for row in ROWS if not row.startswith("prepbench")))


def measure(row: str, sizes: str, seeds: int) -> None:
    """Print the cells of one row as JSON, one line each: losses in all models, mean divergence, bytes of one."""
    import logging

    logging.disable(logging.ERROR)
    models, run = [trained(seed, **MODELS[sizes]) for seed in range(seeds)], ROWS[row]()
    before = [predictions(model) for model in models]
    for form in FORMS:
        start = time.perf_counter()
        cell: Any = None
        try:
            for model, expected in zip(models, before, strict=True):
                found = run(model, form)
                if found is None:
                    break
                after = predictions(found[0])
                divergence = float((expected.exp() * (expected - after)).sum(-1).mean()) / seeds
                cell = cell or [[], 0.0, found[1]]
                cell = [cell[0] + losses(after).tolist(), cell[1] + divergence, cell[2]]
        except Exception as error:
            cell = f"{type(error).__name__}: {error}"
        print("\n" + json.dumps([form, cell, time.perf_counter() - start]), flush=True)


def _in_process(row: str, sizes: str, seeds: int) -> dict[str, tuple[Any, float]]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.bench_few_bits", "--one"]
    command += ["--rows", row, "--model", sizes, "--seeds", str(seeds)]
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


TARGETS = {"ORT": "ORT", "OpenVINO": "NNCF"}


def _compare(form: str, before: torch.Tensor, rows: Mapping[str, Any]) -> bool:
    """Print the best of ours beside the best peer of the same runtime, by perplexity and by divergence.

    Returns:
        Whether ours is within the limit, and not above that peer.
    """
    is_met = True
    for target, peer in TARGETS.items():
        ours = {row: cell for row, cell in rows.items() if row.startswith(f"prepbench {target}")}
        peers = {row: cell for row, cell in rows.items() if row.startswith(peer)}
        if not ours or not peers:
            continue
        one, other = (min(group, key=lambda row: sum(group[row][0])) for group in (ours, peers))
        far = torch.tensor(ours[one][0]) - torch.tensor(peers[other][0])
        percent = _percent(before, ours[one][0])
        words = ["" if percent <= LIMITS[form] else " OVER", "" if float(far.mean()) <= 0 else " ABOVE"]
        is_met = is_met and not any(words)
        near, nearest = (min(group, key=lambda row: group[row][1]) for group in (ours, peers))
        print(
            f"{form}, limit {LIMITS[form]:+.2f} %: {one} {percent:+.2f} %{words[0]}, {other} "
            f"{_percent(before, peers[other][0]):+.2f} %, difference {100 * float(far.mean()):+.2f} "
            f"± {100 * float(far.std()) / len(far) ** 0.5:.2f} %{words[1]}; divergence {near} "
            f"{1e3 * ours[near][1]:.2f}, {nearest} {1e3 * peers[nearest][1]:.2f}"
        )
    return is_met


def _percent(before: torch.Tensor, after: Sequence[float]) -> float:
    return 100 * (float((torch.tensor(after).mean() - before.mean()).exp()) - 1)


def main() -> int:
    """Print a row for each way, then the best of ours and of the peers for each form; returns 1 for a missed limit."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=DEFAULT)
    parser.add_argument("--model", choices=MODELS, default="wide")
    parser.add_argument("--seeds", type=int, default=3, help="how many models are trained")
    parser.add_argument("--one", action="store_true", help="measure the only row in this process")
    given = parser.parse_args()
    if given.one:
        measure(given.rows[0], given.model, given.seeds)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ[FOLDER] = folder
        return not _print_table(given.rows, given.model, given.seeds)


def _print_table(rows: Sequence[str], sizes: str, seeds: int) -> bool:
    before = torch.cat([losses(predictions(trained(seed, **MODELS[sizes]))) for seed in range(seeds)])
    head = "".join(f"{form:>30}" for form in FORMS)
    each = ", ".join(f"{float(part.mean().exp()):.3f}" for part in before.chunk(seeds))
    print(f"perplexity in float {each}\n{'':<24}{head}", flush=True)
    found: dict[str, dict[str, Any]] = {form: {} for form in FORMS}
    errors = []
    for row in rows:
        if row.startswith("NNCF") and importlib.util.find_spec("nncf") is None:
            continue
        texts = []
        for form, (cell, seconds) in _in_process(row, sizes, seeds).items():
            if isinstance(cell, str):
                errors.append(f"{row}, {form}: {cell}")
            if not isinstance(cell, list):
                texts.append("-" if cell is None else cell.split(":")[0])
                continue
            found[form][row] = cell
            percent = _percent(before, cell[0])
            texts.append(f"{percent:+.2f} % {1e3 * cell[1]:.2f} {cell[2] / 1e6:.1f} MB {seconds:.0f} s")
        print(f"{row:<24}" + "".join(f"{text:>30}" for text in texts), flush=True)
    met = [_compare(form, before, cells) for form, cells in found.items()]
    print(*errors, sep="\n")
    return all(met) and not any(error.startswith("prepbench") for error in errors)


if __name__ == "__main__":
    raise SystemExit(main())
