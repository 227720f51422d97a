"""The stages one by one: what they leave unchanged, how they report, and what they refuse."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

from prepbench.document.model import Failure, with_lines
from prepbench.errors import CalibrationError, SettingsError
from prepbench.jobs import Cancelled, Progress
from prepbench.quantize import Observed, Placement, calibrate, check_calibration, convert, insert_observers
from prepbench.running.given_samples import normalize_samples
from prepbench.settings import LayerQuantizationSettings, QuantizationSettings, explain_settings
from prepbench.targets.base import NO_TRANSPOSED


class Tail(nn.Module):
    """Layers that stay in float, each for its own reason."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.unused = nn.Linear(4, 4)
        self.up = nn.ConvTranspose1d(4, 4, 1)
        self.brief = nn.Linear(4, 4).bfloat16()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.up(self.body(x).unsqueeze(-1)).squeeze(-1)
        return y + self.brief(x.bfloat16()).float()


def observe(model: nn.Module, x: torch.Tensor, **keywords: Any) -> Observed:
    program = torch.export.export(model.eval(), (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},), strict=False)
    explained = explain_settings(model, QuantizationSettings(), keywords.pop("rules", None))
    return insert_observers(program, model, explained, Placement(constraints=(NO_TRANSPOSED,)), **keywords)


def test_every_layer_that_stays_float_says_why() -> None:
    rows = {row.fqn: row.summary for row in observe(Tail(), torch.randn(2, 4)).layers}
    assert rows == {
        "body": "int8",
        "unused": "float: not called on the tracing inputs",
        "up": "float: no int8 form of transposed convolutions for this target",
        "brief": "float: its weight is bfloat16; only float32 is quantized (model.float())",
    }


class Opaque(nn.Module):
    """A submodule whose layer does not show in the graph, as inside a leaf-wrapped module."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.sorts = nn.Linear(4, 4), nn.ModuleDict({"inner": nn.Linear(4, 4)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x).sort().values


def test_a_layer_inside_a_leaf_wrapped_module_says_so() -> None:
    leaf = Failure("sorts", "ModuleDict", "data decides", "", "")
    rows = {row.fqn: row.summary for row in observe(Opaque(), torch.randn(2, 4), leaves=[leaf]).layers}
    assert rows == {"body": "int8", "sorts.inner": "float: inside the leaf module sorts (data decides)"}


def test_a_layer_that_only_lines_which_are_a_leaf_may_call_says_so() -> None:
    leaf = with_lines(Failure("sorts", "ModuleDict", "data decides", "", ""), (3, 4))
    rows = {row.fqn: row.summary for row in observe(Opaque(), torch.randn(2, 4), leaves=[leaf]).layers}
    assert rows["sorts.inner"].startswith("float: not called on the tracing inputs, or only by lines 3 to 4 of sorts")


def test_attention_and_recurrent_layers_are_layers_too() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
            self.memory = nn.LSTM(4, 4, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.memory(self.attention(x, x, x)[0])[0]

    rows = {row.fqn: row.summary for row in observe(Mixed(), torch.randn(2, 3, 4)).layers}
    assert rows == {
        "attention": "int8",
        "attention.out_proj": "int8",
        "memory": "float: no int8 form of aten.lstm.input",
    }


def test_skipping_the_projection_of_attention_leaves_the_rest() -> None:
    net = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    skip = LayerQuantizationSettings(skip_quantization=True)
    rows = {row.fqn: row.quantized for row in observe(net, torch.randn(2, 3, 4), rules={"*.out_proj": skip}).layers}
    assert rows == {"self_attn": True, "self_attn.out_proj": False, "linear1": True, "linear2": True}


def test_the_model_and_the_program_stay_unchanged() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU()).eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    program = torch.export.export(net, (torch.randn(2, 3, 4, 4),), strict=False)
    text = str(program)
    observed = insert_observers(program, net, explain_settings(net, QuantizationSettings()), Placement(True, True))
    calibrate(observed, normalize_samples(net, [torch.randn(2, 3, 4, 4)]))
    convert(observed)
    assert str(program) == text
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(p.requires_grad for p in net.parameters())


@pytest.mark.parametrize(
    "net, rules, reason",
    [
        (nn.Sequential(nn.LayerNorm(4)), None, "no layer with a weight matrix"),
        (
            nn.Sequential(nn.Linear(4, 4)),
            {"0": LayerQuantizationSettings(skip_quantization=True)},
            "skipped by rule '0'",
        ),
    ],
)
def test_quantizing_nothing_is_an_error_with_the_reasons(net: nn.Module, rules: Any, reason: str) -> None:
    with pytest.raises(SettingsError) as caught:
        observe(net, torch.randn(2, 4), rules=rules)
    assert "Nothing would be quantized" in str(caught.value)
    assert reason in str(caught.value)
    assert "quantization_settings=None" in str(caught.value)


def test_nan_in_a_sample_is_named_by_index_and_argument() -> None:
    net = nn.Linear(4, 4)
    bad = torch.full((2, 4), float("nan"))
    with pytest.raises(CalibrationError, match=r"calibration_inputs\[1\]: input holds 8 NaN \(of 8 values\)"):
        check_calibration(net, normalize_samples(net, [torch.ones(2, 4), bad]))


def test_infinity_in_a_sample_is_named_by_index_and_argument() -> None:
    net = nn.Linear(4, 4)
    bad = torch.full((2, 4), float("inf"))
    with pytest.raises(CalibrationError, match=r"calibration_inputs\[1\]: input holds infinite values"):
        calibrate(observe(net, torch.randn(2, 4)), normalize_samples(net, [torch.ones(2, 4), bad]))


def test_infinity_made_by_the_model_is_named_by_place() -> None:
    class Divides(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(1 / x)

    net = Divides()
    with pytest.raises(
        CalibrationError,
        match=r"\[0\] gives NaN or infinite.*first in reciprocal in the model \(.*test_stages.py:\d+\)",
    ):
        calibrate(observe(net, torch.ones(2, 4)), normalize_samples(net, [torch.zeros(2, 4)]))


def test_a_sample_on_which_the_graph_cannot_run_is_named_with_its_shapes() -> None:
    net = nn.Linear(4, 4)
    samples = normalize_samples(net, [torch.ones(2, 4), torch.ones(2, 5)])
    with pytest.raises(CalibrationError, match=r"cannot run on calibration_inputs\[1\] \(input \(2, 5\)\)"):
        calibrate(observe(net, torch.randn(2, 4)), samples)


def test_progress_counts_the_samples() -> None:
    net, seen = nn.Linear(4, 4), []
    samples = normalize_samples(net, [torch.ones(2, 4)] * 3)
    calibrate(observe(net, torch.randn(2, 4)), samples, seen.append)
    assert seen == [Progress("calibrate", done, 3) for done in range(4)]


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, Cancelled])
def test_an_interrupted_calibration_can_be_repeated_as_if_it_never_ran(interruption: type[BaseException]) -> None:
    net = nn.Linear(4, 4)
    once, twice = observe(net, torch.randn(2, 4)), observe(net, torch.randn(2, 4))
    small = normalize_samples(net, [torch.randn(2, 4)])

    def interrupt(progress: Progress) -> None:
        if progress.done == 1:
            raise interruption

    with pytest.raises(interruption):
        calibrate(twice, normalize_samples(net, [torch.ones(2, 4) * 1000] * 2), interrupt)
    for observed in (once, twice):
        calibrate(observed, small)
    assert torch.equal(convert(once)(small[0].args[0]), convert(twice)(small[0].args[0]))


def test_the_output_stays_clean() -> None:
    code = "from prepbench._torchao_compat import pt2e; pt2e()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert done.stderr == ""


def test_torchao_is_loaded_by_the_first_quantization_and_not_before() -> None:
    code = "import sys, prepbench.quantize; print('torchao' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_quantizing_draws_no_numbers_from_the_generator_of_all_threads(quantize: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    state = torch.get_rng_state()
    assert "q" in quantize(model, [torch.ones(2, 4)]).operators()
    assert torch.equal(torch.get_rng_state(), state)
