"""Leaf modules whose results are of several structures: the call runs in Python, and equals eager on every branch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import prepbench as pb


class TwoBranches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(10, 10), nn.Dropout()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return self.dropout(self.linear(x))
        return torch.zeros(10)


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.branches = nn.Hardtanh(), TwoBranches()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.branches(self.before(x)).relu()


ABOVE, BELOW = [torch.ones(2, 10), torch.ones(3, 10)], [-torch.ones(2, 10), -torch.ones(3, 10)]


@pytest.mark.parametrize("samples", [ABOVE, [ABOVE[0], BELOW[1]], [*BELOW, *ABOVE]], ids=["one", "both", "all"])
@pytest.mark.parametrize("make", [TwoBranches, Around])
def test_both_branches_equal_eager(make: type[nn.Module], samples: list[torch.Tensor]) -> None:
    model = make()
    compiled = pb.compile_model(model, tracing_inputs=samples, fullgraph=False)
    eager = model.eval()
    model.train()  # what runs in Python was compiled in evaluation mode, too
    for x in (*ABOVE, *BELOW, torch.ones(7, 10), -torch.ones(7, 10)):
        result = compiled(x)
        eager.eval()
        torch.testing.assert_close(result, eager(x))
        eager.train()


def test_it_says_that_nothing_is_compiled_and_which_line_is_to_blame() -> None:
    compiled = pb.compile_model(TwoBranches(), tracing_inputs=[ABOVE[0], BELOW[1]], fullgraph=False)
    assert compiled.report.leaves == ("",)
    assert "nothing is compiled" in repr(compiled.report)
    assert "test_uncompiled.py:" in repr(compiled.report)


def test_what_needs_a_graph_is_a_typed_error_with_the_reason(tmp_path: Path) -> None:
    compiled = pb.compile_model(TwoBranches(), tracing_inputs=[ABOVE[0], BELOW[1]], fullgraph=False)
    for call, kind in (
        (lambda: compiled.save(tmp_path / "saved"), pb.errors.TargetError),
        (lambda: compiled.export(tmp_path / "model.onnx"), pb.errors.TargetError),
        (lambda: compiled.document(), pb.errors.DocumentError),
        (lambda: compiled.initialize_algorithms(ABOVE), pb.errors.SettingsError),
    ):
        with pytest.raises(kind, match=r"Nothing is compiled.*data-dependent branch"):
            call()
    assert compiled(*compiled.generate_dummy_inputs().args).shape == (2, 10)


def test_quantizing_it_says_why_there_is_nothing_to_quantize() -> None:
    with pytest.raises(pb.errors.SettingsError, match=r"Nothing would be quantized.*data-dependent branch"):
        pb.compile_model(
            TwoBranches(),
            calibration_inputs=[*ABOVE, *BELOW],
            deployment_settings=pb.OnnxRuntimeDeployment(),
            quantization_settings=pb.QuantizationSettings(),
            fullgraph=False,
        )


def test_every_public_part_of_it_answers_or_says_why_it_cannot() -> None:
    compiled = pb.compile_model(TwoBranches(), tracing_inputs=[ABOVE[0], BELOW[1]], fullgraph=False)
    assert "target=" in repr(compiled)
    for name in set(dir(pb.CompiledModel)) - set(dir(nn.Module)) | {"extra_repr"}:
        getattr(compiled, name)  # a property that reads what is not there raises AttributeError
    assert compiled.conditions == compiled.variants == ()
    for call in (compiled.diagram, lambda: compiled.attached(nn.Linear(1, 1))):
        with pytest.raises(pb.errors.PrepbenchError, match=r"Nothing is compiled"):
            call()
    assert not pb.profile(compiled, ABOVE).table().empty
    assert "compiled" in repr(pb.compare({"float": TwoBranches(), "compiled": compiled}, ABOVE, rounds=1))


def test_as_a_writer_of_text_it_is_what_its_model_is() -> None:
    compiled = pb.compile_model(TwoBranches(), tracing_inputs=[ABOVE[0], BELOW[1]], fullgraph=False)
    texts = []
    for candidate in (TwoBranches(), compiled):
        with pytest.raises(pb.errors.InputError) as caught:
            pb.compare({"it": candidate}, pb.Generation([torch.randint(0, 11, (1, 5))], new_tokens=3))
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
