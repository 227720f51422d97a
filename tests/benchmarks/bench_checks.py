"""What the strict checks of lowered programs and of sizes cost: compiles beside a revision of before.

Both run in processes of their own that take turns. Processor time counts, because other programs do not change it; the
first compile of a process, which imports, does not count.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time

import prepbench as pb
from tests.benchmarks.models import build
from tests.benchmarks.revisions import ROOT, interleaved_trees, tree_of

BEFORE = "b04756b"
"""Then a lowered program was compared at 20 dB on two samples, and no size was tried that no sample has."""
LIMIT = 1.1
ROUNDS = 3
FLOAT, INTEGERS = "float", "8 bits"
DEPLOYMENTS = {"ONNX Runtime": pb.OnnxRuntimeDeployment, "OpenVINO": pb.OpenVinoDeployment}
MODELS = ("mlp", "resnet", "bert", "gpt2")
CASES = (
    *((FLOAT, name, target) for target in DEPLOYMENTS for name in MODELS),
    *((INTEGERS, name, "ONNX Runtime") for name in MODELS if name != "gpt2"),
)


def work(kind: str, name: str, target: str) -> None:
    """Worker side: answer each line on standard input with the milliseconds of processor time of one compile."""
    model, samples = build(name)
    quantized = {"calibration_inputs": samples, "quantization_settings": pb.QuantizationSettings()}

    def compile_once() -> None:
        pb.compile_model(
            model,
            tracing_inputs=samples,
            deployment_settings=DEPLOYMENTS[target](),
            discard_input_model=False,
            **(quantized if kind == INTEGERS else {}),
        )

    compile_once()
    print("ready", flush=True)
    for _ in sys.stdin:
        # a full collection takes a tenth of a small compile, and whether one falls into it is chance
        gc.collect()
        gc.freeze()
        start = time.process_time_ns()
        compile_once()
        print((time.process_time_ns() - start) / 1e6, flush=True)


def main() -> int:
    """Print a ratio for each case and their geometric mean; returns 1 if that is above the limit."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--targets", nargs="+", choices=DEPLOYMENTS, default=list(DEPLOYMENTS))
    given = parser.parse_args()
    print(f"{'compile':<32}{BEFORE:>12}{'now':>12}{'ratio':>9}    (ms of processor time, least of {ROUNDS} rounds)")
    ratios = []
    with tree_of(BEFORE) as other:
        for case in CASES:
            if case[1] not in given.models or case[2] not in given.targets:
                continue
            command = ["-m", "tests.benchmarks.bench_checks", "--work", *case]
            before, after = interleaved_trees(command, {BEFORE: other, "now": ROOT}, ROUNDS)
            name = ", ".join(case)
            if not before or not after:
                print(f"{name:<32} failed: {'now' if before else BEFORE}", flush=True)
                ratios.append(float("inf"))
                continue
            ratios.append(min(after) / min(before))
            print(f"{name:<32}{min(before):>12.0f}{min(after):>12.0f}{ratios[-1]:>9.2f}", flush=True)
    mean = statistics.geometric_mean(ratios)
    print(f"{'geometric mean':<32}{mean:>33.2f}    (limit {LIMIT})")
    return int(mean > LIMIT)


if __name__ == "__main__":
    if "--work" in sys.argv:
        work(*sys.argv[2:])
    else:
        raise SystemExit(main())
