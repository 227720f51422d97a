"""What ``export(style="transformers")`` writes, read by others: tokens of their own classes against those of eager.

optimum needs other versions of transformers than prepbench, and two of them, so each of its packages is in an
environment of its own, which ``make bench`` makes: ``.bench-onnx-venv`` and ``.bench-openvino-venv``. ONNX Runtime
GenAI has one, too, ``.bench-genai-venv``; it generates greedily from prompts of one length. The exit status is 1 if a
token differs or an environment is missing.

``python -m tests.benchmarks.bench_optimum [--families llama] [--kinds onnx]`` runs a part of it.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch

import prepbench as pb
from tests.benchmarks.generation_families import NEW_TOKENS, Family
from tests.compile.generate.generating import make_samples

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = {"onnx": ".bench-onnx-venv", "openvino": ".bench-openvino-venv", "genai": ".bench-genai-venv"}
TARGETS: dict[str, Any] = {
    "onnx": pb.OnnxRuntimeDeployment,
    "openvino": pb.OpenVinoDeployment,
    "genai": pb.OnnxRuntimeDeployment,
}
FAMILIES = ("llama", "qwen2", "qwen3", "gpt2", "gpt_neox")
IDS = [[5, 9, 2, 17, 30], [7, 7, 21, 4, 11]]
GREEDY = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS, "do_sample": False}
TASKS: dict[str, dict[str, Any]] = {
    "greedy": {"ids": IDS, "mask": [[1] * 5] * 2, "options": GREEDY},
    "beams": {"ids": IDS, "mask": [[1] * 5] * 2, "options": {**GREEDY, "num_beams": 3}},
    "padded": {"ids": IDS, "mask": [[0, 0, 1, 1, 1], [1] * 5], "options": GREEDY},
}


def tasks(kind: str) -> list[dict[str, Any]]:
    """What a reader can do."""
    return [task for name, task in TASKS.items() if kind != "genai" or name == "greedy"]


def cells(name: str, kind: str, reuse: pb.KeptStages, family: Family, python: Path) -> list[str]:
    """For each task ``equal``, or the first token that differs."""
    model = family.model
    samples = make_samples(model, positions=True)
    compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=TARGETS[kind](), reuse=reuse)
    expected = [
        model.generate(torch.tensor(task["ids"]), attention_mask=torch.tensor(task["mask"]), **task["options"])
        for task in tasks(kind)
    ]
    with tempfile.TemporaryDirectory() as place:
        folder = compiled.export(Path(place) / name, style="transformers")
        client = Path(__file__).with_name("genai_client.py" if kind == "genai" else "optimum_client.py")
        command = [str(python), "-W", "ignore", str(client), kind, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, input=json.dumps(tasks(kind)), timeout=900)
    if done.returncode:
        return [f"ended with {done.returncode}: {done.stderr.strip().splitlines()[-1]}"]
    return [_compared(*pair) for pair in zip(expected, json.loads(done.stdout.splitlines()[-1]), strict=True)]


def _compared(expected: torch.Tensor, found: list[list[int]]) -> str:
    given = torch.tensor(found)
    if given.shape != expected.shape:
        return f"WRONG: {tuple(given.shape)} tokens for {tuple(expected.shape)}"
    if torch.equal(given, expected):
        return "equal"
    row, place = (int(index) for index in (given != expected).nonzero()[0])
    return f"WRONG: row {row}, token {place}"


def main() -> int:
    """Print a row for each family and package; returns 1 if a cell is not ``equal``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--kinds", nargs="+", choices=ENVIRONMENTS, default=list(ENVIRONMENTS))
    parser.add_argument("--root", type=Path, default=ROOT, help="where the environments are")
    given = parser.parse_args()
    logging.disable(logging.ERROR)
    pythons = {kind: given.root / ENVIRONMENTS[kind] / "bin" / "python" for kind in given.kinds}
    missing = [str(python) for python in pythons.values() if not python.exists()]
    if missing:
        print(f"Not there: {', '.join(missing)}. `make bench` makes these environments.")
        return 1
    print(f"{'family':<12}{'read by':<14}" + "".join(f"{task:<20}" for task in TASKS))
    wrong = False
    for name in given.families:
        family, reuse = Family(name), pb.KeptStages()
        for kind in given.kinds:
            row = cells(name, kind, reuse, family, pythons[kind])
            wrong |= any(text != "equal" for text in row)
            print(f"{name:<12}{kind:<14}" + "".join(f"{text:<20}" for text in row), flush=True)
    return wrong


if __name__ == "__main__":
    raise SystemExit(main())
