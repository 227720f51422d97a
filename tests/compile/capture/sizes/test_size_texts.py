"""Sizes in shapes are short, and the legend says what they stand for, alike in both graphs of a model."""

from __future__ import annotations

import re

import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import prepbench as pb
from prepbench.capture.sizes.axis import SizeTexts

NAMES = {"s0": "B", "s1": "H", "s2": "past"}
INPUTS = {"B": "x.shape[0]", "H": "x.shape[2]", "past": "c.shape[2]"}


def test_numbers_names_and_one_operator_stay_and_longer_formulas_get_names() -> None:
    texts = SizeTexts(INPUTS)
    s0, s1, s2 = sympy.symbols("s0 s1 s2", integer=True, positive=True)
    assert texts.shape((s0, 3, s1), NAMES) == "B×3×H"
    assert texts.shape((), NAMES) == "scalar"
    assert texts.shape((s1 + s2, 2 * s0), NAMES) == "(H + past)×(2*B)"
    assert texts.shape(("((((s1 - 1)//2)) + 1)",), NAMES) == "H1"
    assert texts.shape(("(((s1 - 1)//2) + 1)*s0",), NAMES) == "(B*H1)"
    assert texts.shape(("(((s1 - 1)//2) + 1)*s0*16", "Max(2, u0 + 1)"), NAMES) == "N1×u0_1"
    assert texts.shape(("(s1 - 1)//2 + 1", "(H - 1)//2 + 2"), NAMES) == "H1×H2"
    assert {size.name: size.meaning for size in texts.legend()} == {
        **INPUTS,
        "H1": "(H - 1)//2 + 1",
        "N1": "16*B*H1",
        "u0_1": "Max(2, u0 + 1)",
        "H2": "(H - 1)//2 + 2",
    }


def test_the_order_of_a_sum_makes_no_difference() -> None:
    texts = SizeTexts(INPUTS)
    assert texts.shape(("s2 + s1", "s1 + s2"), NAMES) == "(H + past)×(H + past)"
    assert texts.shape(("2*(s2 + s1)", "(s1 + s2)*2"), NAMES) == "N1×N1"


formulas = st.recursive(
    st.sampled_from(["s0", "s1", "s2", "1", "2", "3"]),
    lambda inner: st.tuples(inner, st.sampled_from(["+", "*", "//", "-"]), inner).map(lambda t: f"({' '.join(t)})"),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(st.lists(formulas, min_size=1, max_size=4), st.integers(5, 60), st.integers(5, 60), st.integers(5, 60))
def test_a_legend_says_the_same_as_the_formula(sizes: list[str], b: int, h: int, past: int) -> None:
    texts = SizeTexts(INPUTS)
    shape = texts.shape(sizes, NAMES).split("×")
    values = {"B": b, "H": h, "past": past}
    meanings = {size.name: size.meaning for size in texts.legend() if size.name not in INPUTS}
    for raw, text in zip(sizes, shape, strict=True):
        assert len(re.findall(r"[-+*/]+", text)) <= 1
        try:
            wanted = eval(raw, {"s0": b, "s1": h, "s2": past})  # noqa: S307 - a formula made above
        except ZeroDivisionError:
            continue
        assert eval(_expanded(text, meanings), dict(values)) == wanted  # noqa: S307


def _expanded(text: str, meanings: dict[str, str]) -> str:
    while any(re.search(rf"\b{name}\b", text) for name in meanings):
        for name, meaning in meanings.items():
            text = re.sub(rf"\b{name}\b", f"({meaning})", text)
    return text


class Strided(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = torch.nn.Sequential(*(torch.nn.Conv2d(3, 3, 3, stride=2, padding=1) for _ in range(3)))
        self.head = torch.nn.Conv2d(3, 4, 5, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.convs(x)).flatten(1)


def test_both_graphs_of_a_model_have_the_same_names() -> None:
    model, samples = Strided().eval(), [torch.randn(2, 3, 64, 64), torch.randn(3, 3, 80, 72)]
    levels = [pb.recursive_trace(model, inputs=samples).document(), pb.capture(model, samples).document()]
    shapes, legends = [], []
    for document in levels:
        (graph,) = document.graphs
        shapes.append({node.fqn: node.shapes for node in graph.nodes if node.fqn.startswith(("convs.", "head"))})
        legends.append(document.sizes)
        assert all(len(shape) < 24 for node in graph.nodes for shape in node.shapes)
    assert shapes[0] == shapes[1]
    assert shapes[0]["convs.0"] == ("B×3×H1×W1",)
    assert legends[0] == legends[1]
    assert {size.name: size.meaning for size in legends[0]}["H1"] == "(H - 1)//2 + 1"


def test_a_compiled_model_shows_them_too() -> None:
    model, samples = Strided().eval(), [torch.randn(2, 3, 64, 64), torch.randn(3, 3, 80, 72)]
    compiled = pb.compile_model(model, tracing_inputs=samples)
    texts = {shape for graph in compiled.document().graphs for node in graph.nodes for shape in node.shapes}
    assert "B×3×H1×W1" in texts
    assert not [text for text in texts if re.search(r"\bs\d+\b", text)]
