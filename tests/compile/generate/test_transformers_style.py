"""``compiled.export(folder, style="transformers")``: files, names, and what another runtime makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import prepbench as pb
from prepbench.errors import ArtifactError, SettingsError, StorageError, TargetError
from tests.compile.generate.generating import PROMPTS, TARGETS, compile_for, make_model, make_samples

FILES = {
    "ONNX Runtime": ["model.onnx", "model.onnx.conditions.json"],
    "OpenVINO": ["openvino_model.bin", "openvino_model.xml", "openvino_model.xml.conditions.json"],
}
INPUTS = {
    "input_ids": ["batch", "sequence"],
    "attention_mask": ["batch", "total"],
    "position_ids": ["batch", "sequence"],
    **{f"past_key_values.{n}.{kind}": ["batch", 1, "past", 8] for n in range(2) for kind in ("key", "value")},
}
OUTPUTS = {
    "logits": ["batch", "sequence", 40],
    **{f"present.{n}.{kind}": ["batch", 1, "past + sequence", 8] for n in range(2) for kind in ("key", "value")},
}


@pytest.fixture(scope="module")
def model() -> Any:
    return make_model()


@pytest.fixture(scope="module")
def compiled(model: Any) -> dict[str, pb.CompiledModel]:
    return compile_for(model, positions=True)


def run_onnx(folder: Path) -> Any:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    outputs = [end.name for end in session.get_outputs()]
    return lambda feeds: dict(zip(outputs, session.run(outputs, feeds), strict=True))


def run_openvino(folder: Path) -> Any:
    import openvino

    model = openvino.Core().read_model(folder / "openvino_model.xml")
    loaded = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    names = [end.get_any_name() for end in model.outputs]
    return lambda feeds: {name: loaded(feeds)[name] for name in names}


def generated(run: Any, steps: int, layers: int = 2) -> list[list[int]]:
    """Greedy generation on arrays, with an empty cache first."""
    import numpy as np

    tokens = PROMPTS.numpy()
    caches = [f"past_key_values.{n}.{kind}" for n in range(layers) for kind in ("key", "value")]
    feeds = {name: np.zeros((2, 1, 0, 8), np.float32) for name in caches}
    new = tokens
    for _ in range(steps):
        length = tokens.shape[1]
        positions = np.arange(length - new.shape[1], length)[None].repeat(2, 0)
        results = run({**feeds, "input_ids": new, "attention_mask": np.ones_like(tokens), "position_ids": positions})
        feeds = {name: results[name.replace("past_key_values", "present")] for name in feeds}
        new = results["logits"][:, -1].argmax(-1)[:, None]
        tokens = np.concatenate([tokens, new], 1)
    return tokens.tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(("target", "reader"), [("ONNX Runtime", run_onnx), ("OpenVINO", run_openvino)])
def test_another_program_generates_the_tokens_of_eager(
    target: str, reader: Any, model: Any, compiled: Any, tmp_path: Path
) -> None:
    folder = compiled[target].export(tmp_path / "new" / "model", style="transformers")
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [*FILES[target], "config.json", "generation_config.json", *["genai_config.json"] * (target == "ONNX Runtime")]
    )
    expected = model.generate(PROMPTS, max_new_tokens=8, min_new_tokens=8, do_sample=False)
    assert generated(reader(folder), 8) == expected.tolist()


def test_names_and_sizes_are_those_that_optimum_reads(compiled: Any, tmp_path: Path) -> None:
    import onnxruntime

    folder = compiled["ONNX Runtime"].export(tmp_path / "model", style="transformers")
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    assert {end.name: end.shape for end in session.get_inputs()} == INPUTS
    assert {end.name: end.shape for end in session.get_outputs()} == OUTPUTS
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "llama"
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["use_cache"] is json.loads((folder / "generation_config.json").read_text())["use_cache"] is True


def test_another_reader_of_onnx_finds_names_and_sizes(compiled: Any, tmp_path: Path) -> None:
    folder = compiled["ONNX Runtime"].export(tmp_path / "model", style="transformers")
    model = json.loads((folder / "genai_config.json").read_text())["model"]
    decoder = model["decoder"]
    assert (folder / decoder["filename"]).is_file()
    assert (model["vocab_size"], model["context_length"]) == (40, 64)
    assert (decoder["num_hidden_layers"], decoder["num_key_value_heads"], decoder["head_size"]) == (2, 1, 8)
    names = [name % n if "%d" in name else name for name in decoder["inputs"].values() for n in range(2)]
    assert set(names) == set(INPUTS)
    names = [name % n if "%d" in name else name for name in decoder["outputs"].values() for n in range(2)]
    assert set(names) == set(OUTPUTS)


def test_the_configuration_is_one_that_transformers_reads(model: Any, compiled: Any, tmp_path: Path) -> None:
    from transformers import AutoConfig, GenerationConfig

    folder = compiled["OpenVINO"].export(tmp_path / "model", style="transformers")
    found = AutoConfig.from_pretrained(folder)
    assert type(found) is type(model.config)
    assert found.num_hidden_layers == 2
    assert GenerationConfig.from_pretrained(folder).bos_token_id == model.generation_config.bos_token_id


def test_a_loaded_model_is_exported_with_its_configuration(model: Any, compiled: Any, tmp_path: Path) -> None:
    compiled["ONNX Runtime"].save(tmp_path / "saved")
    loaded = pb.load_compiled(tmp_path / "saved")
    folder = loaded.export(tmp_path / "model", style="transformers")
    expected = model.generate(PROMPTS, max_new_tokens=4, min_new_tokens=4, do_sample=False)
    assert generated(run_onnx(folder), 4) == expected.tolist()
    manifest = json.loads((tmp_path / "saved" / "manifest.json").read_text())
    manifest["configuration"]["../config.json"] = "{}"
    (tmp_path / "saved" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match=r"configuration may hold config\.json and generation_config\.json"):
        pb.load_compiled(tmp_path / "saved")


@pytest.mark.parametrize(
    ("target", "reader"),
    [pytest.param("ONNX Runtime", run_onnx, marks=pytest.mark.stress), ("OpenVINO", run_openvino)],
)
def test_ends_in_bfloat16_become_float32(target: str, reader: Any, tmp_path: Path) -> None:
    half = make_model(layers=1).to(torch.bfloat16)
    made = compile_for(half, {target: TARGETS[target]}, positions=True)[target]
    assert made(**make_samples(half, positions=True)[1]).logits.dtype == torch.bfloat16
    tokens = generated(reader(made.export(tmp_path / "model", style="transformers")), 4, layers=1)
    with made.attached(half):
        assert tokens == half.generate(PROMPTS, max_new_tokens=4, min_new_tokens=4, do_sample=False).tolist()


def test_files_beside_an_earlier_export_stay(compiled: Any, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    compiled["OpenVINO"].export(folder, style="transformers")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "config.json").write_text("{}")
    compiled["OpenVINO"].export(folder, style="transformers")
    assert (folder / "tokenizer.json").read_text() == "{}"
    assert "llama" in (folder / "config.json").read_text()


def test_what_is_there_is_left_alone(compiled: Any, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ArtifactError, match="something other than an earlier export"):
        compiled["OpenVINO"].export(tmp_path, style="transformers")
    with pytest.raises(StorageError, match="cannot be written"):
        compiled["OpenVINO"].export(tmp_path / "notes.txt" / "model", style="transformers")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_what_cannot_be_exported_is_said(compiled: Any, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"eager has no files that other tools read.*OnnxRuntimeDeployment\(\)"):
        compiled["eager"].export(tmp_path / "model", style="transformers")
    plain = pb.compile_model(torch.nn.Linear(4, 2), tracing_inputs=[torch.ones(1, 4), torch.ones(2, 4)])
    with pytest.raises(SettingsError, match="has no configuration of transformers"):
        plain.export(tmp_path / "model", style="transformers")
    with pytest.raises(SettingsError, match="style must be one of 'onnx', 'transformers', got 'optimum'"):
        plain.export(tmp_path / "model", style="optimum")
    with pytest.raises(SettingsError, match="style='transformers' has names of its own"):
        plain.export(tmp_path / "model", style="transformers", input_names=["x"])
    assert not list(tmp_path.iterdir())


class Nested(torch.nn.Module):
    """A model with a configuration whose call is told by ``kind``."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        from transformers import LlamaConfig

        self.config, self.kind = LlamaConfig(), kind

    def forward(self, **given: Any) -> Any:
        first = given.pop("input_ids") * 2.0
        rest = sum(next(iter(value.values())).sum() for value in given.values())
        return first + rest if self.kind == "result" else {"logits": first + rest}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("result", "output: style='transformers' needs logits or"), ("input", r"parts\['a'\]: style=.* has no name for")],
)
def test_inputs_and_results_without_names_are_named(kind: str, expected: str, tmp_path: Path) -> None:
    rest = {"parts": {"a": torch.ones(3)}} if kind == "input" else {}
    samples = [{"input_ids": torch.ones(batch, 4), **rest} for batch in (2, 3)]
    made = pb.compile_model(Nested(kind), tracing_inputs=samples)
    with pytest.raises(SettingsError, match=expected):
        made.export(tmp_path / "model", style="transformers")


def test_a_model_without_a_cache_says_so_in_its_configuration(tmp_path: Path) -> None:
    model = make_model(layers=1)
    samples = [{"input_ids": PROMPTS, "use_cache": False}, {"input_ids": PROMPTS[:1, :3], "use_cache": False}]
    folder = pb.compile_model(model, tracing_inputs=samples).export(tmp_path / "model", style="transformers")
    assert json.loads((folder / "config.json").read_text())["use_cache"] is False
    logits = run_onnx(folder)({"input_ids": PROMPTS.numpy()})["logits"]
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(logits), model(PROMPTS).logits, rtol=1e-4, atol=1e-4)
