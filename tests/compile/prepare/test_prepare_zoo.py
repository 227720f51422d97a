"""All hard models are prepared and equal at two sizes; those whose own forward decides on data say so."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from prepbench.errors import CaptureError, InputError
from prepbench.objects.compare import REWRITTEN, difference
from prepbench.prepare import PreparedModel, prepare_model
from prepbench.running.given_samples import normalize_samples
from tests.turns import in_turns
from tests.zoo import ZOO

MODULES = [name for name, case in ZOO.items() if isinstance(case.make(), torch.nn.Module)]
TRACEABLE = [name for name in MODULES if "" not in ZOO[name].failed]


def prepared(name: str) -> tuple[torch.nn.Module, PreparedModel]:
    torch.manual_seed(0)
    model = ZOO[name].make()
    return model, prepare_model(model, inputs=copy.deepcopy(ZOO[name].samples))


def own_copy(model: torch.nn.Module) -> Any:
    """A copy, so that counted buffers are counted once; hooks that close over the model cannot be copied."""
    return model if any(module._forward_hooks for module in model.modules()) else copy.deepcopy(model)


def run(function: Any, sample: Any) -> Any:
    torch.manual_seed(0)
    return copy.deepcopy(sample).call(function)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", in_turns([name for name in TRACEABLE if not ZOO[name].assumes], 0, 3, order=ZOO))
def test_prepared_and_equal_at_sizes_never_shown(name: str) -> None:
    case = ZOO[name]
    model, made = prepared(name)
    assert made.preparation_report.largest_difference <= 1e-5
    reference, made = own_copy(model), own_copy(made)
    for sample in normalize_samples(model, [*case.samples, *case.unseen]):
        if case.refused:
            continue  # an iterator cannot be compared
        expected, got = run(reference, sample), run(made, sample)
        assert type(got) is type(expected)
        found = difference(expected, got, REWRITTEN)
        assert found.equal, found.text


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", in_turns([name for name in TRACEABLE if not ZOO[name].assumes], 1, 3, order=ZOO))
def test_gradients_are_those_of_the_original(name: str) -> None:
    case = ZOO[name]
    model, made = prepared(name)
    reference, made = own_copy(model), own_copy(made)
    sample = normalize_samples(model, case.samples)[0]
    grads = []
    for each in (reference, made):
        outputs = torch.utils._pytree.tree_leaves(run(each, sample))
        total = [o.abs().sum() for o in outputs if isinstance(o, torch.Tensor) and o.requires_grad]
        if total:
            torch.stack([part.double() for part in total]).sum().backward()
        grads.append({name: p.grad for name, p in each.named_parameters()})
    for key, grad in grads[0].items():
        if name == "reentrant_checkpoint":
            continue  # without an input that needs gradients torch's checkpoint gives none
        if grad is None:
            assert grads[1][key] is None
        else:
            torch.testing.assert_close(grads[1][key], grad, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in TRACEABLE if ZOO[name].assumes])
def test_samples_that_need_two_graphs_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="was traced for"):
        prepared(name)
    model = ZOO[name].make()
    assert prepare_model(model, inputs=copy.deepcopy(ZOO[name].samples[:1])).preparation_report.largest_difference == 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in MODULES if "" in ZOO[name].failed])
def test_a_forward_that_cannot_be_traced_says_why(name: str) -> None:
    with pytest.raises(CaptureError, match="cannot be prepared, because its own forward cannot be traced"):
        prepared(name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", in_turns(TRACEABLE, 2, 3, order=ZOO))
def test_what_is_left_has_a_reason_and_nothing_is_called_twice(name: str) -> None:
    case = ZOO[name]
    torch.manual_seed(0)
    made = prepare_model(case.make(), inputs=copy.deepcopy(case.samples[:1]))
    assert all(kept.why and "not replaced" not in kept.why for kept in made.preparation_report.kept)
    targets = [made.get_submodule(str(node.target)) for node in made.graph.nodes if node.op == "call_module"]
    scripted = [module for module in targets if isinstance(module, torch.jit.ScriptModule)]
    others = [id(module) for module in targets if module not in scripted]
    assert len(set(others)) == len(others)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODULES)
def test_without_samples_nothing_is_wrong_in_silence(name: str) -> None:
    """Prepared and equal, or an error: at preparation, or when the prepared model is called with what it is not for."""
    case = ZOO[name]
    if case.refused:
        return  # an iterator cannot be compared
    torch.manual_seed(0)
    model = case.make()
    try:
        made = prepare_model(model)
    except CaptureError:
        return
    for sample in normalize_samples(model, [*case.samples, *case.unseen]):
        try:
            expected = run(own_copy(model), sample)
            got = run(own_copy(made), sample)
        except Exception:
            return
        found = difference(expected, got, REWRITTEN)
        assert found.equal, found.text
