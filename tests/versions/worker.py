"""Runs in each environment: the zoo's trace, prepare, capture and compile, the bench, and what others saved.

``python -m tests.versions.worker OUT [--short] [--part N OF] [--save FOLDER] [--load FOLDER ...]`` appends a line of
JSON to OUT for each check: its name and what came out. Which check begins is written first, so that a process that dies
says where. What stands in OUT already is not run again.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# one that NumPy, torch and OpenVINO take at their start
os.environ.setdefault("OMP_NUM_THREADS", "1")
# what calibrates, in the tests of targets
NETWORKS = (
    "experts_by_einsum", "selective_scan_of_fixed_length", "attention_over_lengths", "feature_pyramid",
    "tied_weights_and_loss", "vision_transformer_of_any_size", "shifted_windows", "diffusion_step",
)  # fmt: skip
ARCHITECTURES = ("llama", "bert", "t5", "vit", "gemma3", "mixtral", "whisper", "gpt2")
TARGETS = ("Eager", "OnnxRuntime", "OpenVino", "TensorRt", "ExecuTorch", "Inductor")
# these never come from a user's model here: something of another version was used that is not there
RAW = "RAW"


def checks(short: bool, save: Path | None, load: list[Path]) -> Iterator[tuple[str, Callable[[], str]]]:
    """Names and functions of all checks; each function returns what came out, and raises only by mistake."""
    from tests.zoo import ZOO

    for number, (name, case) in enumerate(ZOO.items()):
        if short and number % 3:
            continue
        yield f"trace {name}", lambda case=case: _trace(case)
        yield f"prepare {name}", lambda case=case: _prepare(case)
        yield f"capture {name}", lambda case=case: _capture(case)
    for row, name in enumerate(NETWORKS):
        for column, target in enumerate(TARGETS):
            # Inductor builds each of its kernels with a C++ compiler, which takes as long as all else
            if (not short and target != "Inductor") or row % len(TARGETS) == column:
                yield f"compile {name} {target}", lambda case=ZOO[name], target=target: _compile(case, target)
    for number, name in enumerate(ARCHITECTURES):
        if not short or number % 2 == 0:
            yield f"transformers {name}", lambda name=name: _architecture(name)
    yield "generate", lambda: _generate(later_steps=False)
    yield "generate, first step in PyTorch", lambda: _generate(later_steps=True)
    yield "bench", _bench
    yield "torch.compile backend", _backend
    for target in TARGETS:
        if save is not None:
            yield f"save {target}", lambda target=target: _save(target, save / target)
    for folder in load:
        for path in sorted(path for path in folder.iterdir() if path.suffix != ".sqlite"):
            yield f"load {path.name} of {folder.name}", lambda path=path: _load(path)


def _trace(case: Any) -> str:
    import torch

    import prepbench as pb
    from prepbench.objects.compare import ROUNDED, difference
    from prepbench.running.given_samples import normalize_samples

    model = _model(case)
    collection = pb.recursive_trace(model, inputs=copy.deepcopy(case.samples))
    failed = ", ".join(f"{failure.fqn or '(model)'}: {failure.kind}" for failure in collection.failures)
    if "" not in case.failed and not case.assumes and case.failed != ("0",):  # an iterator cannot be compared
        graph = copy.deepcopy(collection.graph_module())
        for sample in normalize_samples(model, [*case.samples, *case.unseen]):
            torch.manual_seed(0)
            expected = copy.deepcopy(sample).call(model)
            torch.manual_seed(0)
            found = difference(expected, copy.deepcopy(sample).call(graph), ROUNDED)
            if not found.equal:
                raise Different(found.text)
    # what the samples answer differently fails, too, though the model itself keeps the graph of the first
    expected = case.failed or (("",) if case.assumes else ())
    kinds = case.kinds or (("shape specialisation",) if case.assumes else ())
    found = tuple((failure.fqn, failure.kind) for failure in collection.failures)
    return "ok" if found == tuple(zip(expected, kinds, strict=True)) else f"failures: {failed or 'none'}"


def _prepare(case: Any) -> str:
    import torch

    import prepbench as pb

    model = _model(case)
    if not isinstance(model, torch.nn.Module):
        return "ok"
    try:
        prepared = pb.prepare_model(model, inputs=copy.deepcopy(case.samples))
    except (pb.errors.CaptureError, pb.errors.InputError):
        if "" in case.failed or case.assumes:
            return "ok"
        raise
    if "" in case.failed or case.assumes:
        return "prepared, which it cannot be"
    return "ok" if prepared.preparation_report.largest_difference <= 1e-5 else "differs from the model"


def _capture(case: Any) -> str:
    import prepbench as pb

    model = _model(case)
    try:
        captured = pb.capture(model, copy.deepcopy(case.samples), fullgraph=False)
    except pb.errors.CaptureError:
        if case.refused:
            return "ok"
        raise
    _assert_equal(model, captured.program.module(), [*case.samples, *case.unseen])
    leaves = tuple(leaf.fqn for leaf in captured.leaves)
    return "ok" if leaves == case.leaves else f"leaves: {', '.join(map(repr, leaves)) or 'none'}"


def _architecture(name: str) -> str:
    """One of transformers: traced, and captured with its caches."""
    import prepbench as pb
    from tests.zoo.huggingface import build

    model, samples = build(name)
    failures = pb.recursive_trace(model, inputs=samples).failures
    captured = pb.capture(model, samples, fullgraph=False)
    found = [*(failure.fqn for failure in failures), *(leaf.fqn for leaf in captured.leaves)]
    return f"not captured: {', '.join(map(repr, found))}" if found else "ok"


def _compile(case: Any, target: str) -> str:
    import torch

    import prepbench as pb
    from prepbench.running.given_samples import normalize_samples

    model = _model(case)
    arguments: dict[str, Any] = {"tracing_inputs": case.samples, "deployment_settings": _settings(target)}
    arguments |= {"calibration_inputs": case.samples, "quantization_settings": pb.QuantizationSettings()}
    compiled = pb.compile_model(model.eval(), **arguments, fullgraph=False)
    layers = compiled.report.layers
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        compiled.save(Path(folder, "saved"))
        loaded = pb.load_compiled(Path(folder, "saved"), allow_code=True)
        for sample in normalize_samples(model, case.samples[:1]):
            once, again = sample.call(compiled), sample.call(loaded)
            _assert_close(once, again, "the loaded model")
    in_float = sum(not layer.quantized for layer in layers)
    return f"ok, {in_float} of {len(layers)} layers in float"


def _generate(*, later_steps: bool) -> str:
    import torch
    import transformers

    import prepbench as pb

    torch.manual_seed(0)
    configuration = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(configuration).eval()
    tokens = torch.randint(0, 64, (1, 5))
    with pb.record_inputs(model) as samples:
        expected = model.generate(tokens, max_new_tokens=6, do_sample=False)
        model.generate(tokens[:, :3].repeat(2, 1), max_new_tokens=3, do_sample=False)
    if later_steps:
        samples = [sample for sample in samples if sample.kwargs["input_ids"].shape[1] == 1]
    compiled = pb.compile_model(
        model, tracing_inputs=samples, deployment_settings=pb.OnnxRuntimeDeployment(), discard_input_model=False
    )
    with compiled.attached(model):
        got = model.generate(tokens, max_new_tokens=6, do_sample=False)
    return "ok" if torch.equal(expected, got) else "other tokens"


def _bench() -> str:
    import torch
    from torch import nn

    import prepbench as pb

    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(4)).eval()
    samples = [torch.randn(2, 3, 8, 8), torch.randn(3, 3, 8, 8)]
    model(samples[0])
    bench = pb.Bench(model, tracing_inputs=samples, calibration_inputs=samples)
    compile(bench.code(), "code of the bench", "exec")
    bundle = bench._repr_mimebundle_()
    return "ok" if bundle else "shows nothing"


def _backend() -> str:
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU()).eval()
    with torch.no_grad():
        compiled = torch.compile(model, backend="prepbench")
        x = torch.randn(3, 4)
        return "ok" if torch.allclose(compiled(x), model(x), atol=1e-5) else "differs from the model"


def _save(target: str, path: Path) -> str:
    """A small quantized model, with an input and what came out for it beside it."""
    from safetensors.torch import save_file

    import prepbench as pb

    samples = _small_samples()
    compiled = pb.compile_model(
        _small_model(),
        tracing_inputs=samples,
        calibration_inputs=samples,
        deployment_settings=_settings(target),
        quantization_settings=pb.QuantizationSettings(),
    )
    path.mkdir(parents=True)
    compiled.save(path / "model")
    save_file({"x": samples[1], "y": compiled(samples[1]).detach().contiguous()}, path / "call.safetensors")
    return "ok"


def _load(path: Path) -> str:
    """A folder of ``_save``, a document or a bench."""
    import torch
    from safetensors.torch import load_file

    import prepbench as pb
    from prepbench.document.codec import from_json

    if path.name.endswith(".graph.json"):
        return "ok" if from_json(path.read_text(encoding="utf-8")).graphs else "no graphs"
    if path.name.endswith(".bench.json"):
        bench = pb.Bench.load(path, model=_small_model(), tracing_inputs=_small_samples())
        return "ok" if bench.code() else "no code"
    call = load_file(path / "call.safetensors")
    loaded = pb.load_compiled(path / "model", allow_code=True)
    with torch.no_grad():
        _assert_close(call["y"], loaded(call["x"]), "the loaded model")
    return "ok"


def _small_model() -> Any:
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(nn.Conv1d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv1d(4, 4, 3), nn.Flatten()).eval()


def _small_samples() -> list[Any]:
    import torch

    torch.manual_seed(1)
    return [torch.randn(2, 2, 8), torch.randn(3, 2, 8)]


class Different(Exception):
    """A result is not what it should be."""


def _model(case: Any) -> Any:
    import torch

    torch.manual_seed(0)
    return case.make()


def _settings(target: str) -> Any:
    import prepbench as pb

    kind = getattr(pb, f"{target}Deployment")
    return kind(inference_precision="f32") if target == "OpenVino" else kind()


def _assert_equal(model: Any, graph: Any, samples: list[Any]) -> None:
    import torch

    from prepbench.objects.compare import ROUNDED, difference
    from prepbench.running.given_samples import normalize_samples
    from prepbench.running.unchanged import outcome

    for sample in normalize_samples(model, samples):
        torch.manual_seed(0)
        found = difference(outcome(model, sample, model), outcome(graph, sample, model), ROUNDED)
        if not found.equal:
            raise Different(found.text)


def _assert_close(expected: Any, got: Any, what: str) -> None:
    import torch
    from torch.utils import _pytree as pytree

    for one, other in zip(pytree.tree_leaves(expected), pytree.tree_leaves(got), strict=True):
        if isinstance(one, torch.Tensor) and not torch.allclose(one, other, rtol=0.1, atol=0.1, equal_nan=True):
            raise Different(f"{what} gives {other.flatten()[:3]} for {one.flatten()[:3]}")


def result_of(check: Callable[[], str]) -> tuple[str, str]:
    """What came out of a check, and the whole error where there was one."""
    from prepbench.errors import PrepbenchError

    try:
        return check(), ""
    except Different as error:
        return f"WRONG {error}".splitlines()[0], traceback.format_exc()
    except PrepbenchError as error:
        return f"{type(error).__name__}", traceback.format_exc()
    except Exception as error:
        return f"{RAW} {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[
            :160
        ], traceback.format_exc()


def main() -> int:
    """Run what has no result yet."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), help="which of how many shares of the checks")
    parser.add_argument("--save", type=Path)
    parser.add_argument("--load", type=Path, nargs="*", default=[])
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    done = set()
    if options.out.exists():
        lines = [json.loads(line) for line in options.out.read_text(encoding="utf-8").splitlines()]
        done = {line["check"] for line in lines}
    with options.out.open("a", encoding="utf-8") as out:
        part, parts = options.part
        for number, (name, check) in enumerate(checks(options.short, options.save, options.load)):
            if number % parts != part or name in done or options.only not in name:
                continue
            print(f"begin {name}", file=sys.stderr, flush=True)
            result, error = result_of(check)
            out.write(json.dumps({"check": name, "result": result, "error": error}) + "\n")
            out.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
