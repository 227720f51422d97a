"""Names that Python reads otherwise: of modules and tensors, in graphs that are written as Python code."""

from __future__ import annotations

import contextlib
import tempfile
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

import prepbench as pb
from prepbench.errors import InputError

REFUSED = ["class", "None", "lambda", '"q"', "back\\slash", "two\nlines", "\uff43\uff4c\uff41\uff53\uff53"]
TAKEN = [
    "<b>x</b>",
    "ünï",
    "a-b",
    "1",
    "it's",
    "x y",
    "{z}",
    "$H",
    "self",
    "input",
    "print",
    "match",
    "__x__",
    "é" * 200,
]
X = [torch.randn(2, 4), torch.randn(3, 4)]


class Named(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.inner = nn.Module()
        self.inner.add_module(name, nn.Linear(4, 4))
        self.add_module(name, nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        own, inner = list(self.children())[::-1]
        return torch.relu(next(inner.children())(own(x)))


@pytest.mark.parametrize("name", REFUSED)
def test_names_that_code_cannot_hold_are_refused(name: str) -> None:
    model = Named(name)
    for call in (lambda: pb.capture(model, X), lambda: pb.prepare_model(model, inputs=X)):
        with pytest.raises(InputError, match=r"torch cannot write into the code of a graph.* another name, such as"):
            call()
    assert pb.recursive_trace(model, inputs=X).failures == ()


def test_so_are_names_of_tensors() -> None:
    model = nn.Linear(4, 4)
    model.register_buffer("class", torch.ones(1))
    with pytest.raises(InputError, match=r"Linear has a part that is called 'class'.*'class_'"):
        pb.compile_model(model, tracing_inputs=X)


@pytest.mark.parametrize("name", TAKEN)
def test_other_names_are_taken(name: str) -> None:
    model = Named(name)
    for found in (pb.capture(model, X).program.module(), pb.prepare_model(model, inputs=X)):
        torch.testing.assert_close(found(X[1]), model(X[1]))
    assert pb.recursive_trace(model, inputs=X).failures == ()


@pytest.mark.parametrize("name", ["a..b", ".", "a.b", "\ud800"])
def test_a_name_in_the_table_of_modules_that_torch_itself_would_not_take_is_refused(name: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    model._modules[name] = nn.Linear(4, 4)
    with pytest.raises(InputError, match=r"has a part that is called .* another name, such as"):
        pb.compile_model(
            model,
            calibration_inputs=X,
            deployment_settings=pb.EagerDeployment(),
            quantization_settings=pb.QuantizationSettings(),
        )


# what torch takes for a name, and what can be between quotes
CHARACTERS = st.characters(exclude_categories=["Cc", "Cs"], exclude_characters='."\\')
NAMES = st.text(CHARACTERS, min_size=1, max_size=8).filter(lambda name: not hasattr(nn.Module(), name))


def saved_and_loaded(name: str, target: Any) -> None:
    """Compile a model with a layer of this name, save it and load it: it computes the same, with the same layers."""
    model = Named(name).eval()
    compiled = pb.compile_model(
        model,
        calibration_inputs=X,
        deployment_settings=target,
        quantization_settings=pb.QuantizationSettings(),
    )
    with tempfile.TemporaryDirectory() as folder:
        compiled.save(f"{folder}/model")
        loaded = pb.load_compiled(f"{folder}/model", allow_code=True)
        assert torch.equal(loaded(X[1]), compiled(X[1]))
        assert [row.fqn for row in loaded.report.layers] == [f"inner.{name}", name]


@pytest.mark.parametrize("target", [pb.EagerDeployment(), pb.OnnxRuntimeDeployment(), pb.OpenVinoDeployment()])
@settings(max_examples=2, deadline=None)
@given(name=NAMES)
@example(name="conv (1)")
@example(name="conv [0]")
@example(name="\u00aa \u218a")
@example(name="it's")
@example(name="\u202eevil \u2028 {}")
def test_compiled_models_are_saved_with_whatever_names(name: str, target: Any) -> None:
    if target.__class__.__name__ == "OpenVinoDeployment":
        pytest.importorskip("openvino")
    with contextlib.suppress(InputError):  # names that the tests above are about
        saved_and_loaded(name, target)
