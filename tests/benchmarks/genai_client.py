"""Generates with ONNX Runtime GenAI; runs in an environment without prepbench and torch.

``python genai_client.py genai FOLDER`` reads a JSON list of ``{"ids", "options"}`` from standard input and prints
a line of JSON: the tokens of each.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np


def generated(model: Any, ids: list[list[int]], options: dict[str, Any]) -> list[list[int]]:
    """The prompts and what follows each, greedily."""
    import onnxruntime_genai

    length = len(ids[0]) + options["max_new_tokens"]
    parameters = onnxruntime_genai.GeneratorParams(model)
    parameters.set_search_options(batch_size=len(ids), max_length=length, min_length=length, do_sample=False)
    generator = onnxruntime_genai.Generator(model, parameters)
    generator.append_tokens(np.array(ids, dtype=np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    return [[int(token) for token in generator.get_sequence(row)] for row in range(len(ids))]


def main() -> None:
    """Generate and print."""
    import onnxruntime_genai

    model = onnxruntime_genai.Model(sys.argv[2])
    print("\n" + json.dumps([generated(model, task["ids"], task["options"]) for task in json.load(sys.stdin)]))


if __name__ == "__main__":
    main()
