"""Every hard model traces to a graph that equals the model, also at sizes never shown."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch

from prepbench.capture.modules.collection import GraphCollection, recursive_trace
from prepbench.errors import InputError
from prepbench.objects.flatten import collect
from prepbench.running.given_samples import normalize_samples
from tests.fingerprint import left_as_it_was
from tests.turns import in_turns
from tests.zoo import ZOO


@cache
def traced(name: str) -> tuple[Any, GraphCollection]:
    """The model and its graphs; traced once for all tests, which do not change them."""
    case = ZOO[name]
    torch.manual_seed(0)
    model = case.make()
    with left_as_it_was(model):
        collection = recursive_trace(model, inputs=copy.deepcopy(case.samples))
        collection.document()
    return model, collection


def run(function: Any, sample: Any) -> Any:
    torch.manual_seed(0)
    return copy.deepcopy(sample).call(function)


def assert_same(got: Any, expected: Any) -> None:
    assert type(got) is type(expected)
    for left, right in zip(collect(got), collect(expected), strict=True):
        torch.testing.assert_close(left, right)


@pytest.mark.parametrize("name", ZOO)
def test_failures_are_exactly_those_that_depend_on_data_and_the_model_is_left_as_it_was(name: str) -> None:
    case = ZOO[name]
    _, collection = traced(name)
    # what the samples answer differently fails, too, though the model itself keeps the graph of the first
    assert tuple(failure.fqn for failure in collection.failures) == (case.failed or (("",) if case.assumes else ()))
    assert tuple(failure.kind for failure in collection.failures) == (
        case.kinds or (("shape specialisation",) if case.assumes else ())
    )
    for failure in collection.failures:
        assert failure.source is not None
        assert "zoo" in failure.source.file
        assert failure.remedy


@pytest.mark.parametrize("name", [name for name, case in ZOO.items() if "" not in case.failed])
def test_graph_equals_model(name: str) -> None:
    case = ZOO[name]
    model, collection = traced(name)
    graph = copy.deepcopy(collection.graph_module())
    graph.graph.lint()
    inputs = case.samples[:1] if case.assumes else [*case.samples, *case.unseen]
    for sample in normalize_samples(model, inputs):
        if case.failed == ("0",):
            continue  # an iterator cannot be compared
        assert_same(run(graph, sample), run(model, sample))


@pytest.mark.parametrize("name", [name for name, case in ZOO.items() if case.assumes])
def test_sizes_that_were_fixed_are_reported_and_refused(name: str) -> None:
    case = ZOO[name]
    model, collection = traced(name)
    assert any(case.assumes in line for line in collection.assumptions)
    for sample in normalize_samples(model, case.unseen):
        with pytest.raises(InputError, match="was traced for"):
            sample.call(collection.graph_module())


@pytest.mark.parametrize("name", in_turns(ZOO, 1, 3))
def test_without_samples_too_the_model_is_left_as_it_was(name: str) -> None:
    torch.manual_seed(0)
    model = ZOO[name].make()
    with left_as_it_was(model):
        recursive_trace(model).document()


@pytest.mark.parametrize("name", [name for name, case in ZOO.items() if case.symbolic_failed is not None])
def test_failures_without_inputs(name: str) -> None:
    case = ZOO[name]
    torch.manual_seed(0)
    collection = recursive_trace(case.make())
    assert tuple(failure.fqn for failure in collection.failures) == case.symbolic_failed
