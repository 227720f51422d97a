"""What removing half of the channels of a ResNet-18 gains in int8, against the dense int8 model.

Prints the median milliseconds for one image, and the ratio: at most 0.6 on ONNX Runtime and OpenVINO. Weights are
random, because they do not decide the time. ``python -m tests.benchmarks.bench_pruning``
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

import prepbench as pb
from tests.benchmarks.compile_models import build
from tests.benchmarks.rounds import interleave, serve

LIMIT = 0.6
TARGETS = {"onnxruntime": pb.OnnxRuntimeDeployment, "openvino": pb.OpenVinoDeployment}


def compile_to(folder: Path, target: str, *, pruned: bool) -> float:
    """Compile and save one candidate; returns the share of the weights that is gone."""
    case = build("resnet")
    compiled = pb.compile_model(
        case.model,
        tracing_inputs=case.tracing,
        calibration_inputs=case.calibration,
        deployment_settings=TARGETS[target](),
        quantization_settings=pb.QuantizationSettings(),
        pruning_settings=pb.PruningSettings(mask_type="channels", amount=0.5) if pruned else None,
        compile_options=pb.CompileOptions(keep_ruined_layers_in_float=False),
    )
    compiled.save(folder)
    rows = compiled.report.pruned
    return 1 - sum(row.left for row in rows) / sum(row.parameters for row in rows) if rows else 0.0


def work(folder: str) -> None:
    """Worker: answer with the time of one image."""
    compiled, (image, *_) = pb.load_compiled(folder), build("resnet").evaluation
    serve(lambda: compiled(*image))


def main() -> int:
    """Compile, time, print; returns 1 where a ratio is above the limit."""
    failed = False
    with tempfile.TemporaryDirectory() as made:
        folders = {
            f"{target} {kind}": Path(made) / f"{target}-{kind}" for target in TARGETS for kind in ("dense", "half")
        }
        gone = {
            name: compile_to(folder, name.split()[0], pruned=name.endswith("half")) for name, folder in folders.items()
        }
        commands = {
            name: ("-m", "tests.benchmarks.bench_pruning", "--work", str(folder)) for name, folder in folders.items()
        }
        times = {name: statistics.median(rounds) for name, rounds in interleave(commands).items()}
    for target in TARGETS:
        dense, half = times[f"{target} dense"], times[f"{target} half"]
        failed |= half > LIMIT * dense
        share = gone[f"{target} half"]
        print(
            f"{target}: int8 {dense:.2f} ms, with half of the channels ({share:.0%} of the weights gone) {half:.2f} "
            f"ms, {half / dense:.2f}x (at most {LIMIT}x)"
        )
    return int(failed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2])
    else:
        sys.exit(main())
