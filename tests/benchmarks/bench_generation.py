"""Families of models that generate: 16 tokens after prompts of sizes that no sample had, compiled against eager.

A cell is ``equal`` with the number of steps that ran compiled, or ``WRONG`` with the first place that differs, or the
error. Models whose first step computes other things (encoders, states, images) run it in PyTorch. The exit status is 1
if a cell is not ``equal``.

``python -m tests.benchmarks.bench_generation [--families llama t5] [--targets onnxruntime]`` runs a part of it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

import torch

import prepbench as pb
from tests.benchmarks.generation_families import FAMILIES, NEW_TOKENS, Family

TARGETS: dict[str, Any] = {"onnxruntime": pb.OnnxRuntimeDeployment, "openvino": pb.OpenVinoDeployment}
LIMIT = 900


def cell(family: Family, steps: list[pb.Sample], target: str, reuse: pb.KeptStages) -> str:
    """What generation on a target gives: ``equal (16 steps)``, or what differs."""
    expected = family.generate(2, 9)
    compiled = pb.compile_model(family.model, tracing_inputs=steps, deployment_settings=TARGETS[target](), reuse=reuse)
    calls: list[None] = []
    hook = compiled.register_forward_hook(lambda *_: calls.append(None))
    with compiled.attached(family.model):
        found = family.generate(2, 9)
    hook.remove()
    if len(calls) < NEW_TOKENS - 1:
        return f"WRONG: {len(calls)} steps compiled"
    if not torch.equal(found, expected):
        row, place = (int(index) for index in (found != expected).nonzero()[0])
        return f"WRONG: row {row}, token {place}: {int(found[row, place])} for {int(expected[row, place])}"
    return f"equal ({len(calls)} steps)"


def measure(name: str, targets: list[str]) -> None:
    """Print the cells of one family as JSON, one line each."""
    import logging

    logging.disable(logging.ERROR)
    torch.set_num_threads(1)
    family, reuse = Family(name), pb.KeptStages()
    steps = family.steps()
    for target in targets:
        try:
            text = cell(family, steps, target, reuse)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        print("\n" + json.dumps([target, text]), flush=True)


def _in_process(name: str, targets: list[str]) -> dict[str, str]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.bench_generation", "--one"]
    command += ["--families", name, "--targets", *targets]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
        end, text = f"ended with {done.returncode}: {done.stderr[-300:]}", done.stdout
    except subprocess.TimeoutExpired as error:
        end, text = f"over {LIMIT} s", (error.stdout or b"").decode()
    cells = dict(json.loads(line) for line in text.splitlines() if line.startswith('["'))
    return {target: cells.get(target, end) for target in targets}


def main() -> int:
    """Print a row for each family, then each error in full; returns 1 if there is one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--one", action="store_true", help="measure the only family in this process")
    given = parser.parse_args()
    if given.one:
        measure(given.families[0], given.targets)
        return 0
    print(f"{'family':<14}{'kind':<28}" + "".join(f"{target:<24}" for target in given.targets))
    errors = []
    for name in given.families:
        cells = _in_process(name, given.targets)
        row = "".join(f"{cells[target].splitlines()[0][:22]:<24}" for target in given.targets)
        print(f"{name:<14}{FAMILIES[name]:<28}{row}", flush=True)
        errors += [f"{name}, {target}: {text}" for target, text in cells.items() if not text.startswith("equal")]
    print(*errors, sep="\n")
    return bool(errors)


if __name__ == "__main__":
    raise SystemExit(main())
