"""Words of the bench: errors, slow results, sizes that are unknown."""

from __future__ import annotations

import pytest
import torch

import prepbench as pb
from prepbench.bench.captures import LEAF_LABEL, error_card, size_words, slower_because
from prepbench.errors import SettingsError, TargetError
from prepbench.results.speed_up import SpeedUp


def test_an_error_names_the_checkbox_in_place_of_the_argument() -> None:
    error = TargetError("ExecuTorch does not support: sort. With fullgraph=False these run in PyTorch.")
    card = error_card(error, leaf_wrap=False)
    assert card.text == "ExecuTorch does not support: sort"
    assert LEAF_LABEL in card.details
    assert "fullgraph" not in card.details
    assert card.can_be_leaf
    assert not error_card(error, leaf_wrap=True).can_be_leaf


def test_where_the_model_itself_fails_its_lines_can_be_a_leaf() -> None:
    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.fc(x)
            while x.norm() > 1:
                x = x / 2
            return x

    bench = pb.Bench(Whole().eval(), calibration_inputs=[torch.randn(2, 4), torch.randn(2, 4)])
    bench.set_target("PyTorch eager")
    assert bench.summary().steps[0].kind == "bad"
    with pytest.raises(pb.PrepbenchError) as caught:
        bench.compile()
    card = error_card(caught.value, leaf_wrap=False)
    assert card.text == "The model itself cannot be captured: data-dependent branch"
    assert card.troubles[0].code == "while x.norm() > 1:"
    assert card.can_be_leaf
    bench.set_leaf_wrap(True)
    (leaf,) = bench.compile().report.leaves
    assert leaf.startswith("lines ")


def test_a_long_error_has_a_short_title_and_all_of_it_folded() -> None:
    card = error_card(SettingsError("x" * 1000), leaf_wrap=False)
    assert len(card.text) < 200
    assert card.details == "x" * 1000
    assert error_card(KeyError("name"), leaf_wrap=False).text == "KeyError: 'name'"


FASTER, ALIKE, SLOWER = (SpeedUp(value * 0.9, value, value * 1.1, "PyTorch eager") for value in (1.2, 0.95, 0.5))


@pytest.mark.parametrize(
    ("found", "fallbacks", "leaves", "quantized", "word"),
    [
        (None, (), (), True, ""),
        (FASTER, (), (), True, ""),
        (ALIKE, (), (), True, ""),
        (SLOWER, ("a", "b"), (), True, "2 operators in PyTorch"),
        (SLOWER, (), ("gate",), True, "1 leaf in Python"),
        (SLOWER, (), (), True, "between int8 and float"),
        (SLOWER, (), (), False, "calling the target"),
    ],
)
def test_slower_results_say_why(
    found: SpeedUp | None, fallbacks: tuple[str, ...], leaves: tuple[str, ...], quantized: bool, word: str
) -> None:
    said = slower_because(found, fallbacks=fallbacks, leaves=leaves, quantized=quantized)
    assert word in said
    assert bool(said) == bool(word)
    assert said.startswith("Slower than PyTorch eager") == bool(word)


def test_an_unknown_size_is_not_zero() -> None:
    assert size_words("1.2", note="") == "1.2 MB"
    assert "cannot be saved" in size_words("0*", note="")
    assert size_words("–", note="no room left. More words") == "size – (no room left)"
