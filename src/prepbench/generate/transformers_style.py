"""Export a compiled model as a folder with the file names that ``optimum`` expects of ``transformers`` models."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from prepbench.calls.call_spec import CallSpec
from prepbench.calls.checked_conditions import FileConditions, write_beside, write_conditions
from prepbench.checks import described
from prepbench.errors import ArtifactError, SettingsError, TargetError
from prepbench.running.tracing import tracing
from prepbench.storage import temporary_space, write_file, write_folder
from prepbench.targets import EndNames, Runtime, Target
from prepbench.targets.partition import is_partitioned

# The configuration files of a ``transformers`` model that belong to a checkpoint.


SECTION = "configuration"
"""Its name in a manifest."""
CONFIG, GENERATION = "config.json", "generation_config.json"

Configuration = Mapping[str, str]
"""The text of each file by its name; empty for a model without a configuration."""
NO_CONFIGURATION: Configuration = MappingProxyType({})


def configuration_of(model: Any) -> Configuration:
    """Return the files that ``save_pretrained`` would write of a model with a ``config``, apart from the weights."""
    config = _table(getattr(model, "config", None))
    if config is None:
        return NO_CONFIGURATION
    if not config.get("architectures"):
        config["architectures"] = [type(model).__name__]
    files = {CONFIG: _text(config)}
    generation = _table(getattr(model, "generation_config", None))
    return files if generation is None else {**files, GENERATION: _text(generation)}


def with_cache(configuration: Configuration, *, has_cache: bool) -> Configuration:
    """Return the files with a flag for whether the graph takes and returns a cache, which generation asks for."""
    return {name: _text({**json.loads(text), "use_cache": has_cache}) for name, text in configuration.items()}


def check_configuration(files: Any) -> None:
    """Raise ``ValueError`` unless this is a result of :func:`configuration_of`."""
    if not isinstance(files, dict) or not files.keys() <= {CONFIG, GENERATION}:
        raise ValueError(f"{SECTION} may hold {CONFIG} and {GENERATION}")
    if not all(isinstance(text, str) and isinstance(json.loads(text), dict) for text in files.values()):
        raise ValueError(f"{SECTION} must hold the text of JSON objects")


def _table(config: Any) -> dict[str, Any] | None:
    """Return a configuration as JSON data; None for other objects of that attribute name."""
    write = getattr(config, "to_json_string", None)
    if not callable(write):
        return None
    try:
        table = json.loads(write())
    except Exception:  # a third-party class, not necessarily of transformers
        return None
    return table if isinstance(table, dict) else None


def _text(table: Mapping[str, Any]) -> str:
    return json.dumps(table, indent=2, sort_keys=True) + "\n"


# The configuration of ONNX Runtime GenAI for a graph: the names of its inputs and outputs, and the sizes of its cache.


GENAI = "genai_config.json"

# its name for a decoder whose cache has a tensor of keys and one of values for each layer
_TYPE = "llama"
_FURTHER = ("input_ids", "attention_mask", "position_ids")
_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len")
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


def genai_configuration(spec: CallSpec, names: EndNames, configuration: Configuration) -> str:
    """Return the text of ``genai_config.json``; "" if the graph is not a decoder that the package supports.

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
    """Return heads and size of a tensor of keys or values; None if its shape differs or is unknown."""
    shape: list[Any] = (spec.tensors[index] or {}).get("shape", [])
    if len(shape) != 4 or not all(isinstance(shape[dim], int) for dim in (1, 3)):
        return None
    return shape[1], shape[3]


TRANSFORMERS = "transformers"
STYLES = ("onnx", TRANSFORMERS)

_PAST = re.compile(r"past_key_values(?:\.layers)?\[(\d+)\](?:\.(key|value)s|\[([01])\])")
_RESULTS = ("logits", "last_hidden_state")
# the prefixes of file names that tools take for a model
_MODELS = ("model.onnx", "openvino_model.", CONFIG, GENERATION, GENAI)


def check_style(style: object, *names: object) -> str:
    """Check which files to write; only a single ONNX file can have user-chosen names."""
    if not isinstance(style, str) or style not in STYLES:
        raise SettingsError(
            f"style must be one of {', '.join(map(repr, STYLES))}, got {described(style)}. Leave it out for one ONNX "
            "file."
        )
    if style == TRANSFORMERS and any(name is not None for name in names):
        raise SettingsError(
            "style='transformers' has names of its own: leave out input_names, output_names, dynamic_axes and "
            "keep_outputs_at_idx, or the style."
        )
    return style


def export_for_transformers(
    folder: Path, target: Target, runtime: Runtime, spec: CallSpec, configuration: Configuration, leaves: Sequence[str]
) -> Path:
    """Write the folder whole or not at all; other files of an earlier export stay.

    Raises:
        TargetError: the target has no such files, or parts of the model run in PyTorch.
        SettingsError: the model has no configuration, or takes or gives what has no name there.
        ArtifactError: the folder holds something else.
    """
    if leaves:
        raise TargetError(
            "A model with leaves cannot be exported, because they call back into Python: "
            f"{', '.join(leaf or 'the model itself' for leaf in leaves)}."
        )
    target.check_renaming()
    if not configuration:
        raise SettingsError(
            f"style='transformers' writes {CONFIG} beside the graph, and the model that was compiled has no "
            "configuration of transformers: its attribute `config`. Compile the model of transformers itself, or a "
            "module that has its config."
        )
    names = transformers_names(spec)
    _check_place(folder, target)

    def fill(place: Path) -> None:
        runtime.save(place)
        if is_partitioned(place):
            raise TargetError(
                "Parts of this model run in PyTorch, so no other tool can run it. The report's fallbacks name the "
                "operators: rewrite them, then compile with fullgraph=True."
            )
        target.rename_ends(place, names)
        inputs = [names.inputs.get(name, name) for name in spec.input_names]
        conditions = FileConditions(spec.conditions, inputs, spec.named_assertions)
        write_conditions(place / target.renamed_file, conditions)
        write_beside(place / target.renamed_file, conditions)
        for name, text in with_cache(configuration, has_cache=has_cache(spec)).items():
            write_file(place / name, text)
        if target.renamed_file.endswith(".onnx") and (text := genai_configuration(spec, names, configuration)):
            write_file(place / GENAI, text)
        # other files of an earlier export stay, such as those of a tokenizer
        for path in folder.iterdir() if folder.is_dir() else ():
            if not (place / path.name).exists() and not path.name.startswith(_MODELS):
                try:
                    os.link(path, place / path.name)
                except OSError:  # a file system without hard links
                    shutil.copy2(path, place / path.name)

    with tracing(), temporary_space():
        write_folder(folder, fill)
    return folder


def has_cache(spec: CallSpec) -> bool:
    """Return whether keys and values are inputs and outputs."""
    return any(map(_PAST.fullmatch, spec.paths))


def transformers_names(spec: CallSpec) -> EndNames:
    """Return the name of each input and output, by its name in a target's files.

    Raises:
        SettingsError: one of them has no name there; the message says which.
    """
    inputs = {
        name: _input_name(path)
        for i, (path, name) in enumerate(zip(spec.paths, spec.input_names, strict=True))
        if i not in spec.input_constants
    }
    outputs = [_output_name(name, inputs) for name in spec.output_names]
    if not any(name in outputs for name in _RESULTS):
        raise SettingsError(
            f"{', '.join(outputs)}: style='transformers' needs {' or '.join(_RESULTS)} among the results. Compile a "
            "model that returns what models of transformers return, with return_dict=True."
        )
    return EndNames(inputs, [*outputs, *spec.named_assertions])


def _input_name(path: str) -> str:
    if (found := _PAST.fullmatch(path)) is not None:
        return f"past_key_values.{int(found[1])}.{_kind(found)}"
    if path.isidentifier() and not path.startswith(("encoder_outputs", "decoder_")):
        return path
    raise SettingsError(
        f"{path}: style='transformers' has no name for this input. It writes one graph of a model that takes tensors "
        "such as input_ids and attention_mask, and a cache of keys and values, past_key_values.layers[N].keys and "
        ".values; encoders with decoders are several graphs there. Compile without it, or write export(path) without a "
        "style."
    )


def _kind(found: re.Match[str]) -> str:
    return found[2] or ("key", "value")[int(found[3])]


def _output_name(name: str, inputs: dict[str, str]) -> str:
    """Return the name of an output; a cache has the name of its input."""
    given = inputs.get(name, "")
    return given.replace("past_key_values", "present", 1) if given.startswith("past_key_values.") else name


def _check_place(folder: Path, target: Target) -> None:
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    earlier = folder.is_dir() and (folder / CONFIG).is_file() and (folder / target.renamed_file).is_file()
    if not earlier or any(not path.is_file() for path in folder.iterdir()):
        raise ArtifactError(
            f"{folder} exists and holds something other than an earlier export, so it is left alone. Choose another "
            "folder; a tokenizer can be saved into it afterwards."
        )
