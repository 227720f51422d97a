"""Generates with optimum's own classes; runs in an environment without prepbench.

``python optimum_client.py onnx|openvino FOLDER`` reads a JSON list of ``{"ids", "mask", "options"}`` from standard
input and prints a line of JSON: the tokens of each.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch


def load(kind: str, folder: str) -> Any:
    """The model as optimum loads it, without compiling anything for transformers."""
    if kind == "onnx":
        from optimum.onnxruntime import ORTModelForCausalLM

        return ORTModelForCausalLM.from_pretrained(folder)
    from optimum.intel import OVModelForCausalLM

    # its default is bfloat16 where the CPU has it
    return OVModelForCausalLM.from_pretrained(folder, ov_config={"INFERENCE_PRECISION_HINT": "f32"})


def main() -> None:
    """Generate and print."""
    kind, folder = sys.argv[1:]
    model = load(kind, folder)
    found = [
        model.generate(torch.tensor(task["ids"]), attention_mask=torch.tensor(task["mask"]), **task["options"]).tolist()
        for task in json.load(sys.stdin)
    ]
    print("\n" + json.dumps(found))


if __name__ == "__main__":
    main()
