"""Families of models that generate: 16 tokens after prompts of sizes that no sample had, compiled against eager.

A cell is ``equal`` with the number of steps that ran compiled, or ``WRONG`` with the first place that differs, or the
error. Models whose first step computes other things (encoders, states, images) run it in PyTorch. The exit status is 1
if a cell is not ``equal``.

With ``--type bfloat16`` the models are in that type. Targets compute it in float32, and PyTorch rounds after each
operator, so tokens may differ where logits are close. Then a cell is ``equal in float32`` where the tokens are those of
the same weights in float32, else ``near``, and has the share that agrees with the model in half precision.
Results of another type than the model's are ``WRONG``. With ``--bits 4`` or ``8``, weights are quantized and every
cell that generates is ``near``.

``python -m tests.benchmarks.bench_generation [--families llama t5] [--targets onnxruntime]`` runs a part of it.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

import prepbench as pb
from tests.benchmarks.generation_families import FAMILIES, NEW_TOKENS, Family
from tests.benchmarks.table import print_cells, print_table

TARGETS: dict[str, Any] = {
    "onnxruntime": pb.OnnxRuntimeDeployment,
    "openvino": pb.OpenVinoDeployment,
    "eager": pb.EagerDeployment,
    "inductor": pb.InductorDeployment,
}


def cell(family: Family, steps: list[pb.Sample], target: str, reuse: pb.KeptStages, bits: int = 0) -> str:
    """What generation on a target gives: ``equal (16 steps)``, or what differs."""
    expected = family.generate(2, 9)
    options: dict[str, Any] = {}
    if bits:
        settings = pb.QuantizationSettings(prefer_weights_only_quantization=True, weights_num_bits=bits)
        options = {"quantization_settings": settings, "calibration_inputs": steps}
    compiled = pb.compile_model(
        family.model, tracing_inputs=steps, deployment_settings=TARGETS[target](), reuse=reuse, **options
    )
    types: list[torch.dtype] = []
    hook = compiled.register_forward_hook(lambda _model, _args, result: types.append(result.logits.dtype))
    with compiled.attached(family.model):
        found = family.generate(2, 9)
    hook.remove()
    if len(types) < NEW_TOKENS - 1:
        return f"WRONG: {len(types)} steps compiled"
    if set(types) != {family.logits_type}:
        return f"WRONG: logits in {types[0]}, not {family.logits_type}"
    if torch.equal(found, expected):
        return f"equal ({len(types)} steps)"
    share = f"{float((found == expected)[:, -NEW_TOKENS:].float().mean()):.0%} agree"
    if bits:
        return f"near ({share}, {sum(row.quantized for row in compiled.report.layers)} layers)"
    if family.dtype != torch.float32:
        is_exact = torch.equal(found, family.in_float32().generate(2, 9))
        return f"{'equal in float32' if is_exact else 'near'} ({share})"
    row, place = (int(index) for index in (found != expected).nonzero()[0])
    return f"WRONG: row {row}, token {place}: {int(found[row, place])} for {int(expected[row, place])}"


def measure(name: str, targets: list[str], dtype: torch.dtype, bits: int) -> None:
    """Print the cells of one family."""
    import logging

    logging.disable(logging.ERROR)
    torch.set_num_threads(1)
    family, reuse = Family(name, dtype), pb.KeptStages()
    steps = family.steps()
    print_cells(targets, lambda target: cell(family, steps, target, reuse, bits))


def main() -> int:
    """Print a row for each family, then each error in full; returns 1 if there is one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=["onnxruntime", "openvino"])
    parser.add_argument("--type", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--bits", type=int, choices=(0, 4, 8), default=0, help="of weights; 0 for float")
    parser.add_argument("--one", action="store_true", help="measure the only family in this process")
    given = parser.parse_args()
    if given.one:
        measure(given.families[0], given.targets, getattr(torch, given.type), given.bits)
        return 0
    rows = {name: FAMILIES[name] for name in given.families}
    further = ("--type", given.type, "--bits", str(given.bits))
    errors = print_table("tests.benchmarks.bench_generation", rows, given.targets, further, width=34)
    return any(
        not (error.split(": ", 1)[1].startswith("near") and (given.bits or given.type != "float32")) for error in errors
    )


if __name__ == "__main__":
    raise SystemExit(main())
