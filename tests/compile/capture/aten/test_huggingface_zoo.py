"""Hugging Face architectures for which nothing was prepared: captured, equal at unseen sizes, with known leaves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from prepbench.capture.aten.capture import capture
from prepbench.capture.modules.collection import recursive_trace
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.capture.sizes.resizing import linked_axes, resized
from prepbench.inputs import Sample
from prepbench.objects.compare import ROUNDED, difference
from prepbench.running.given_samples import normalize_samples
from prepbench.running.unchanged import run
from tests.turns import in_turns
from tests.zoo.huggingface import ARCHITECTURES, LEAVES, LOOPS, build, without_log_lines

pytest.importorskip("transformers")

# one of each kind; the others are in the coverage benchmark
TRACED = ("bert", "modernbert", "gpt2", "mixtral", "rwkv", "t5", "dinov2", "whisper", "clip", "llava")
CAPTURED = (
    *TRACED, "albert", "convbert", "deberta_v2", "roformer", "longformer", "llama", "mistral", "gemma2", "gpt_oss",
    "deepseek_v3", "mamba", "bart", "switch_transformers", "vit", "swin", "convnext", "segformer", "detr", "wav2vec2",
    "audio_spectrogram",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with without_log_lines():
        yield


def test_the_list_covers_thirty_architectures() -> None:
    assert len(set(CAPTURED)) >= 30
    assert set(CAPTURED) <= set(ARCHITECTURES)


@pytest.mark.parametrize("name", in_turns(CAPTURED, 1, 4, order=ARCHITECTURES))
def test_captured_and_equal_at_unseen_sizes(name: str) -> None:
    model, samples = build(name)
    captured = capture(model, samples, fullgraph=False)
    assert {leaf.fqn for leaf in captured.leaves} == set(() if name in LOOPS else LEAVES.get(name, ()))
    report = captured.verify()
    assert not report.problems, report
    for axis in report.axes:
        # other sizes than those of the samples; a bound is the model's own when it says why
        assert axis.held, report
        assert axis.status == "holds" or (axis.status == "bounded" and axis.reason), report


@pytest.mark.parametrize("name", in_turns(TRACED, 2, 4, order=ARCHITECTURES))
def test_traced_and_equal_at_unseen_sizes(name: str) -> None:
    model, samples = build(name)
    collection = recursive_trace(model, inputs=samples)
    assert not collection.is_failed(model), collection
    graph = collection.graph_module()
    if not LEAVES.get(name):
        assert collection.failures == ()
    for sample in [*normalize_samples(model, samples), *_unseen(model, samples)]:
        found = difference(run(model, sample, model), run(graph, sample, model), ROUNDED)
        assert found.equal, found.text


def _unseen(model: torch.nn.Module, inputs: Any) -> list[Sample]:
    """For each size that varies, the last sample with another size that the model takes."""
    samples = normalize_samples(model, inputs)
    groups = linked_axes(DynamicAxes.infer(inputs, model))
    found = []
    for symbol in groups:
        for step in (1, 2, 4, 8, 32):
            sample = resized(model, samples[-1], {symbol: step}, groups)
            try:
                run(model, sample, model)
            except Exception:
                continue
            found.append(sample)
            break
    return found
