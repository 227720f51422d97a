"""Candidates of ``pb.sensitivity`` that prune, by themselves and with bits."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import SettingsError
from prepbench.objects.compare import sqnr
from tests.compile.adapt.models import digits, loss, samples, trained

INT8 = pb.QuantizationSettings()
HALF = pb.PruningSettings(mask_type="channels")
FEW = pb.PruningSettings(mask_type="channels", amount=0.25)
MASK = pb.PruningSettings(mask_type="2:4")
CANDIDATES = {"int8": INT8, "half": HALF, "quarter": FEW, "2:4": MASK, "int8 2:4": (INT8, MASK)}


@pytest.fixture(scope="module")
def found() -> pb.Sensitivity:
    return pb.sensitivity(trained("conv"), samples(trained("conv")), candidates=CANDIDATES)


def test_what_a_candidate_costs_is_what_pruning_that_layer_does(found: pb.Sensitivity) -> None:
    model = trained("conv")
    x = samples(model)
    effects = {(row.fqn, row.candidate): row.effect for row in found.rows}
    assert [row.candidate for row in found["stem"]] == list(CANDIDATES)
    for name, settings in (("half", HALF), ("2:4", MASK)):
        # stem and branch meet in an addition, so that their channels go together
        rules = {"head": pb.LayerPruningSettings(skip_pruning=True)}
        if name == "2:4":
            rules["stem"] = pb.LayerPruningSettings(skip_pruning=True)
        pruned = pb.prune(model, x, settings, rules).model.eval()
        with torch.no_grad():
            expected = sqnr(torch.cat([model(each) for each in x]), torch.cat([pruned(each) for each in x]))
        assert math.isclose(expected, effects["branch", name], abs_tol=0.2)
    assert effects["branch", "half"] < effects["branch", "quarter"] < effects["branch", "int8"]
    assert effects["branch", "int8 2:4"] <= effects["branch", "2:4"] + 0.1


def test_refusals_and_bytes(found: pb.Sensitivity) -> None:
    rows = {(row.fqn, row.candidate): row for row in found.rows}
    assert "cannot be divided by 4" in rows["stem", "2:4"].refusal
    assert "returns" in rows["head", "half"].refusal or "output" in rows["head", "half"].refusal
    whole = 4 * 12 * 12 * 9
    assert rows["branch", "2:4"].weights_bytes == whole // 2 + whole // 4 // 8
    assert rows["branch", "half"].weights_bytes == whole // 4
    assert rows["branch", "int8 2:4"].weights_bytes < rows["branch", "2:4"].weights_bytes / 2
    assert "half" in repr(found)
    assert set(found.table().filter(like="2:4").columns) == {"2:4 SQNR", "int8 2:4 SQNR"}


def test_a_metric_and_a_list() -> None:
    model = trained("transformer")
    data = [(x.view(-1, 8, 8), y) for x, y in zip(digits()[2][:64].split(32), digits()[3][:64].split(32), strict=True)]
    found = pb.sensitivity(
        model,
        samples(model),
        candidates=[HALF, (INT8, HALF)],
        data=data,
        metric=lambda output, target: -float(loss(output, target)),
        exact=True,
    )
    measured = [row for row in found.rows if row.metric is not None]
    assert measured == [row for row in found.rows if not row.refusal]
    assert "up" in {row.fqn for row in measured}
    assert {row.candidate for row in found.rows} == {
        "50% of the channels pruned",
        "int8, 50% of the channels pruned",
    }
    assert found.worst(1)[0].drop == max(row.drop for row in measured if row.drop is not None)


@pytest.mark.parametrize(
    ("candidates", "exact", "message"),
    [
        ({"half": HALF}, False, "exact=False"),
        ({"pair": (HALF, INT8)}, "auto", "pair of bits and pruning"),
        ({"pair": (pb.QuantizationSettings(weights_num_bits=[4, 8]), HALF)}, "auto", "several values"),
        ({"half": HALF, "text": "int8"}, "auto", "QuantizationSettings"),
    ],
)
def test_candidates_that_cannot_be(candidates: dict[str, object], exact: object, message: str) -> None:
    net = nn.Linear(4, 4)
    with pytest.raises(SettingsError, match=message):
        pb.sensitivity(net, [torch.zeros(2, 4), torch.zeros(3, 4)], candidates=candidates, exact=exact)  # type: ignore[arg-type]
