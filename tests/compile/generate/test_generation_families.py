"""A short form of ``bench_generation``: models whose first step is another graph than the others."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import prepbench as pb
from prepbench.errors import InputError
from tests.benchmarks.bench_generation import cell
from tests.benchmarks.generation_families import Family
from tests.turns import in_turns


@pytest.fixture(scope="module")
def t5() -> Family:
    return Family("t5")


@pytest.mark.parametrize("name", in_turns(["t5", "mamba", "llava"], 1))
def test_the_first_step_runs_in_pytorch_and_the_others_compiled(name: str, t5: Family) -> None:
    family = t5 if name == "t5" else Family(name)
    steps = [step for step in family.steps() if step.kwargs]
    assert cell(family, steps, "onnxruntime", pb.KeptStages()) == "equal (15 steps)"


def test_samples_of_both_kinds_are_refused_by_the_mark_that_differs(t5: Family) -> None:
    with pb.record_inputs(t5.model) as recorded:
        t5.generate(2, 5, 3)
    with pytest.raises(
        InputError, match=r"'past_key_values.is_updated\[0\]' is False in sample 0 and True in sample 1"
    ):
        pb.capture(t5.model, recorded)


def test_a_cache_that_is_not_begun_is_refused_where_the_graph_reads_it(t5: Family) -> None:
    steps = t5.steps()
    compiled = pb.compile_model(t5.model, tracing_inputs=steps, deployment_settings=pb.EagerDeployment())
    with pb.record_inputs(t5.model, max_samples=1) as recorded:
        t5.generate(2, 5, 3)
    first: Any = recorded.samples[0]
    with pytest.raises(InputError, match=r"past_key_values.is_updated\[0\] was True when the model was compiled"):
        compiled(*first.args, **first.kwargs)
    with torch.no_grad():
        expected = t5.model(*first.args, **first.kwargs).logits
    with compiled.attached(t5.model), torch.no_grad():
        again = pb.record_inputs(t5.model, max_samples=1)
        with again:
            t5.generate(2, 5, 3)
        found = t5.model(*again.samples[0].args, **again.samples[0].kwargs).logits
    torch.testing.assert_close(found, expected)
