"""What ONNX Runtime GenAI reads beside a graph: the names of its inputs and outputs, and the sizes of its cache."""

from __future__ import annotations

import json
from typing import Any

from prepbench.compile.call_spec import CallSpec
from prepbench.compile.configuration import CONFIG, GENERATION, Configuration
from prepbench.targets import EndNames

GENAI = "genai_config.json"

# it calls a decoder so whose cache has a tensor of keys and one of values for each layer
_TYPE = "llama"
_FURTHER = ("input_ids", "attention_mask", "position_ids")
_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len")
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


def genai_configuration(spec: CallSpec, names: EndNames, configuration: Configuration) -> str:
    """The text of ``genai_config.json``; "" where the graph is no decoder of the kind that the package runs.

    Args:
        spec: the calls of the compiled model.
        names: of the inputs and outputs in the exported file.
        configuration: of the model that was compiled.

    Example:
        >>> GENAI
        'genai_config.json'
    """
    inputs, outputs = set(names.inputs.values()), set(names.outputs)
    layers = sum(name.endswith(".key") for name in inputs)
    caches = {f"{kind}.{layer}.{part}" for kind in ("past_key_values", "present") for layer in range(layers)
              for part in ("key", "value")}  # fmt: skip
    sizes = {
        _heads_and_size(spec, index) for index, path in enumerate(spec.paths) if path.startswith("past_key_values")
    }
    is_decoder = layers and "input_ids" in inputs and "logits" in outputs and len(sizes) == 1 and None not in sizes
    if not is_decoder or inputs | outputs != caches | {"logits"} | inputs.intersection(_FURTHER):
        return ""
    (heads, size) = next(iter(sizes)) or (0, 0)
    config = json.loads(configuration[CONFIG])
    generation = json.loads(configuration.get(GENERATION, "{}"))
    length = next((config[name] for name in _LENGTHS if isinstance(config.get(name), int)), 2048)
    tokens = {name: generation.get(name, config.get(name)) for name in _TOKENS}
    decoder = {
        "filename": "model.onnx",
        "head_size": size,
        "hidden_size": config.get("hidden_size", config.get("n_embd", heads * size)),
        "num_attention_heads": config.get("num_attention_heads", config.get("n_head", heads)),
        "num_hidden_layers": layers,
        "num_key_value_heads": heads,
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
        "inputs": {
            **{name: name for name in _FURTHER if name in inputs},
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
    }
    found = {
        "model": {
            "type": _TYPE,
            "vocab_size": config.get("vocab_size"),
            "context_length": length,
            **{name: value for name, value in tokens.items() if value is not None},
            "decoder": decoder,
        },
        # the graph makes larger tensors for keys and values in each step
        "search": {"max_length": length, "do_sample": False, "past_present_share_buffer": False},
    }
    return json.dumps(found, indent=2, sort_keys=True) + "\n"


def _heads_and_size(spec: CallSpec, index: int) -> tuple[int, int] | None:
    """Of a tensor of keys or values; None where its shape is another one, or not known."""
    shape: list[Any] = (spec.tensors[index] or {}).get("shape", [])
    if len(shape) != 4 or not all(isinstance(shape[dim], int) for dim in (1, 3)):
        return None
    return shape[1], shape[3]
