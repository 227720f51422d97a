"""What waiting costs: a first compile in a fresh process, a second one with other bits in three layers, and its stages.

``python -m tests.benchmarks.bench_reuse``. Each model and target is a process of its own. The second compile reuses the
stages of the first one; a compile that reuses nothing, after both, says what the process's own warming up brings.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import torch
from torch import nn

import prepbench as pb

SHARE = 1 / 3  # of the first compile's time, that the second one may take
FIRST, AFTER = 6.0, 2.0  # seconds of a network of ten layers for ONNX Runtime, on an idle machine
TARGETS = {"onnxruntime": pb.OnnxRuntimeDeployment, "openvino": pb.OpenVinoDeployment}
MODELS = ("ten layers", "bert")


class Block(nn.Module):
    """Two convolutions and a residual addition."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.first, self.second = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.second(self.two(torch.relu(self.first(self.one(x))))))


class TenLayers(nn.Module):
    """Nine convolutions and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.blocks = nn.Sequential(*(Block(16) for _ in range(4)))
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(torch.relu(self.stem(x))).mean((2, 3)))


def build(model: str) -> tuple[nn.Module, list[Any], list[str]]:
    """A model, its samples, and three of its layers."""
    torch.manual_seed(0)
    if model == "bert":
        from transformers import BertConfig, BertModel

        sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
        attention = [f"encoder.layer.{layer}.attention.self" for layer in range(2)]
        samples = [
            {"input_ids": torch.randint(0, 200, size), "attention_mask": torch.ones(size, dtype=torch.int64)}
            for size in ((2, 7), (3, 9), (4, 12))
        ]
        layers = [f"{attention[0]}.query", f"{attention[0]}.key", f"{attention[1]}.query"]
        return BertModel(BertConfig(vocab_size=200, **sizes)).eval(), samples, layers
    images = [(torch.randn(batch, 3, 16, 16),) for batch in (2, 3, 8, 8)]
    return TenLayers().eval(), images, [f"blocks.{block}.one" for block in range(3)]


def measure(model: str, target: str) -> dict[str, Any]:
    """Seconds of each compile with those of its stages, and what was reused."""
    network, samples, changed = build(model)
    kept = pb.KeptStages()
    four = {name: pb.LayerQuantizationSettings(weights_num_bits=4) for name in changed}
    result = {}
    for name, layers, reuse in (("first", {}, kept), ("second", four, kept), ("nothing reused", four, None)):
        start = time.perf_counter()
        report = pb.compile_model(
            network,
            tracing_inputs=samples,
            calibration_inputs=samples,
            deployment_settings=TARGETS[target](),
            quantization_settings=pb.QuantizationSettings(),
            layer_quantization_settings=layers,
            reuse=reuse,
        ).report
        bits = [row.weights_bits for row in report.layers if row.fqn in changed]
        result[name] = {"seconds": time.perf_counter() - start, "stages": report.seconds, "reused": report.reused}
        result[name]["bits"] = bits
    return result


def verdict(passed: bool, text: str) -> None:
    """Print a limit and whether it is kept."""
    print(f"  {'PASS' if passed else 'FAIL'}  {text}", flush=True)


def main() -> None:
    """Print each compile with its stages, and the limits."""
    for model in MODELS:
        for target in TARGETS:
            command = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.bench_reuse", model, target]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                verdict(False, f"{model} {target}: {done.stderr.strip().splitlines()[-1]}")
                continue
            found = json.loads(done.stdout.splitlines()[-1])
            for name, one in found.items():
                stages = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in one["stages"].items())
                bits = "/".join(map(str, one["bits"]))
                print(f"{model} {target}: {name} ({bits} bits): {one['seconds']:.2f} s: {stages}", flush=True)
            print(f"  reused: {'; '.join(found['second']['reused'])}")
            first, second = found["first"]["seconds"], found["second"]["seconds"]
            verdict(second <= SHARE * first, f"the second takes {second / first:.2f} of the first (limit {SHARE:.2f})")
            if (model, target) == ("ten layers", "onnxruntime"):
                verdict(first < FIRST, f"the first takes {first:.1f} s (limit {FIRST:g} s)")
                verdict(second < AFTER, f"the second takes {second:.1f} s (limit {AFTER:g} s)")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(*sys.argv[1:])))
    else:
        main()
