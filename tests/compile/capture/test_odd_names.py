"""Names that Python reads otherwise: of modules and tensors, in graphs that are written as Python code."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import InputError

REFUSED = ["class", "None", "lambda", '"q"', "back\\slash", "two\nlines"]
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
