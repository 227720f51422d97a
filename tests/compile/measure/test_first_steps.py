"""Comparisons of models whose first step is another graph than the others: encoders, states, images."""

from __future__ import annotations

import pytest
import torch

import prepbench as pb
from prepbench.errors import InputError
from prepbench.generate.greedy import LONGER, NEXT, SAME, TOKENS, LaterSteps
from prepbench.measure.generation import NOTE
from tests.benchmarks.generation_families import Family


@pytest.fixture(scope="module")
def family() -> Family:
    return Family("t5")


@pytest.fixture(scope="module")
def compiled(family: Family) -> pb.CompiledModel:
    return pb.compile_model(family.model, tracing_inputs=family.steps(), deployment_settings=pb.OnnxRuntimeDeployment())


@pytest.mark.stress
def test_later_steps_run_in_processes_of_their_own(family: Family, compiled: pb.CompiledModel) -> None:
    prompts = family.prompts(2, 9)
    result = pb.compare({"PyTorch": family.model, "compiled": compiled}, pb.Generation(prompts, new_tokens=4), rounds=1)
    expected = family.generate(2, 9, 4)[:, -4:]
    for row in result.rows:
        assert row.generation is not None
        assert row.generation.tokens == (tuple(map(tuple, expected.tolist())),)
        assert row.timed_in == "own process", row.note
        assert row.note == NOTE
        assert len(row.times_ms) == 3
        assert 0 < row.generation.first_token_ms < 1000
    assert "forward" not in vars(family.model)


def test_later_steps_make_the_tokens_of_transformers(family: Family, compiled: pb.CompiledModel) -> None:
    steps = LaterSteps(compiled)
    begun = steps.begun(family.model, family.prompts(3, 8))
    tokens, times = steps.generate(begun, 6)
    assert len(times) == 6
    assert torch.equal(tokens, family.generate(3, 8, 7)[:, -6:])


def test_a_compiled_model_alone_needs_the_model(family: Family, compiled: pb.CompiledModel) -> None:
    words = "candidate 'int8': the first step of this model .* no candidate is a PyTorch model. Give the model itself"
    with pytest.raises(InputError, match=words):
        pb.compare({"int8": compiled}, pb.Generation(family.prompts(2, 9), 2))


def test_a_leaf_that_changes_in_an_unknown_way_is_refused(compiled: pb.CompiledModel) -> None:
    steps, one = LaterSteps(compiled), torch.ones(1, 3, dtype=torch.long)
    index = next(i for i, path in enumerate(compiled._call_spec.paths) if path == "attention_mask")
    assert steps._role(index, one, one) == SAME
    assert steps._role(index, one, one + 1) == NEXT
    assert steps._role(index, one, torch.ones(1, 4, dtype=torch.long)) == LONGER
    assert steps._role(compiled._call_spec.paths.index(steps._token_path), one, one) == TOKENS
    with pytest.raises(
        InputError, match=r"attention_mask: it changes between steps .* \(1, 3\) to \(1, 3\); known are"
    ):
        steps._role(index, one, one * 3)
