"""The harness of the board, on a small network that is trained here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import prepbench as pb
from tests import detector
from tests.board import digits, faces, measure, page, photographs, shipped, training
from tests.board.candidates import CANDIDATES
from tests.board.entry import Entry
from tests.board.networks import NETWORKS

SMALL = "digits, ResNet"
FEW = ("float on ORT", "ORT static", "prepbench int8")


def test_an_entry_is_measured_kept_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = measure.measured(SMALL, FEW)
    assert set(found) == set(FEW)
    assert not [cell["failed"] for cell in found.values() if "failed" in cell]
    reference, ours = found["float on ORT"], found["prepbench int8"]
    assert reference["metric"] > 0.9, "it is not trained"
    assert set(ours["against"]) == {"ORT static"}
    low, high = ours["difference"]
    assert -0.03 < low <= ours["metric"] - reference["metric"] <= high < 0.03
    assert ours["megabytes"] < 0.5 * reference["megabytes"]
    for name in ("FILE", "PAGE"):
        monkeypatch.setattr(page, name, tmp_path / getattr(page, name).name)
    page.PAGE.write_text("# Board\n\n<!-- board -->\nold\n<!-- end of board -->\n")
    page.keep(SMALL, found)
    page.write_page()
    written = page.PAGE.read_text()
    assert f"\n## {SMALL}" in written
    assert "old" not in written
    assert f"| prepbench int8 | {ours['metric']:.4f} |" in written
    assert json.loads(page.FILE.read_text())[SMALL]["metric"] == "accuracy"


def test_the_page_shows_what_is_kept() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert f"<!-- board -->\n{page.table(page.kept())}<!-- end of board -->" in text, "python -m tests.board --write"
    assert set(page.kept()) <= set(NETWORKS)


def _cell(metric: float, spread: float = 0.01) -> dict[str, Any]:
    return {"metric": metric, "difference": [-spread, spread]}


def test_a_loss_outside_the_interval_is_named() -> None:
    def board(ours: float, peer: float) -> dict[str, Any]:
        cells = {"float on ORT": {"metric": 0.9}, "ORT static": _cell(peer), "prepbench int8": _cell(ours)}
        return {SMALL: {"found": cells}, "speaker embedding": {"found": cells}}

    # less is better for the second
    assert page.losses(board(0.85, 0.9)) == [SMALL]
    assert page.losses(board(0.9, 0.85)) == ["speaker embedding"]
    assert page.losses(board(0.9, 0.895)) == []


def test_both_are_compared_over_the_same_draws() -> None:
    def board(low: float, high: float) -> dict[str, Any]:
        ours = _cell(0.85) | {"against": {"ORT static": [low, high]}}
        cells = {"float on ORT": {"metric": 0.9}, "ORT static": _cell(0.86), "prepbench int8": ours}
        return {SMALL: {"found": cells}, "speaker embedding": {"found": cells}}

    assert page.losses(board(-0.02, 0.001)) == []
    assert page.losses(board(-0.02, -0.001)) == [SMALL]
    assert page.losses(board(0.001, 0.02)) == ["speaker embedding"]


def test_intervals_pair_the_items() -> None:
    random = np.random.default_rng(0)
    hits = random.random((400, 1)) < 0.7
    rows = {
        "float on ORT": hits.astype(float),
        "same": hits.astype(float),
        "worse": hits * (random.random((400, 1)) > 0.1),
    }
    assert measure.interval(rows, lambda drawn: float(drawn.mean()), "same") == (0.0, 0.0)
    low, high = measure.interval(rows, lambda drawn: float(drawn.mean()), "worse")
    assert low < rows["worse"].mean() - hits.mean() < high < 0


def test_metrics() -> None:
    scores = np.array([[0.9, 1], [0.8, 0], [0.7, 1], [0.1, 0]])
    assert shipped.area_under_curve(scores) == 0.75
    apart = np.eye(4)[[0, 0, 1, 1]] + 1e-3 * np.random.default_rng(0).random((4, 4))
    apart /= np.linalg.norm(apart, axis=1, keepdims=True)
    assert shipped.equal_error_rate(np.hstack([apart, [[0], [0], [1], [1]]])) == 0
    assert shipped.equal_error_rate(np.hstack([apart, [[0], [1], [0], [1]]])) > 0.4


def test_mean_precision_is_that_of_the_metric() -> None:
    _, targets = detector.scenes(12, seed=2)
    random = torch.Generator().manual_seed(0)
    results = []
    for target in targets:
        boxes = target["boxes"].repeat(2, 1) + torch.randn(2 * len(target["boxes"]), 4, generator=random)
        boxes, labels = (
            torch.cat([boxes, torch.ones(1, 4)]),
            torch.cat([target["labels"].repeat(2), torch.tensor([-1])]),
        )
        results.append([boxes[None].numpy(), torch.rand(1, len(boxes), generator=random).numpy(), labels[None].numpy()])
    found = [dict(zip(("boxes", "scores", "labels"), (part[0] for part in each), strict=True)) for each in results]
    wanted = pb.metrics.mean_average_precision(
        [{key: value[each["labels"] >= 0] for key, value in each.items()} for each in found], targets
    )
    assert 0.2 < wanted < 0.9
    assert photographs.mean_precision(photographs.detection_rows(results, targets)) == pytest.approx(wanted)


def test_what_a_better_box_hides_is_that_of_a_loop() -> None:
    random = torch.Generator().manual_seed(0)
    for _ in range(20):
        corners = torch.rand(12, 2, generator=random) * 10
        boxes = torch.cat([corners, corners + 4 + torch.rand(12, 2, generator=random)], 1)
        scores = 0.1 + torch.rand(12, generator=random)
        order = scores.argsort(descending=True)
        labels = torch.zeros(1, 12, dtype=torch.int64)
        wanted = detector.suppressed(boxes[order][None], scores[order][None], labels)[0] == 0
        assert faces.kept(boxes, scores, detector.OVERLAP)[order].tolist() == wanted.tolist()


def test_parts_of_an_image_are_where_their_boxes_are() -> None:
    image = torch.rand(1, 3, faces.SIZE, faces.SIZE)
    found = faces.parts(image, torch.tensor([[8.0, 16.0, 32.0, 40.0], [-24.0, 0.0, 0.0, 24.0]]), 24)
    assert torch.allclose(found[0], image[0, :, 16:40, 8:32], atol=1e-4)
    assert torch.allclose(found[1], torch.tensor(-1.0))  # black


def test_a_runtime_has_its_own_overview_once_it_was_measured() -> None:
    cells = {"float on ORT": {"metric": 0.9}, "prepbench int8": _cell(0.89)}
    on_openvino = {"NNCF": _cell(0.8), "prepbench int8 on OpenVINO": _cell(0.9) | {"ms": 2.0}}
    one = {"date": "2026-01-01", "machine": "any", "metric": "accuracy", "found": cells}
    assert "## OpenVINO" not in page.table({SMALL: _complete(one)})
    with_both = _complete(one | {"found": cells | on_openvino})
    assert f"| {SMALL} | accuracy |  | 0.8000 | 0.9000 |  |  |" in page.table({SMALL: with_both})
    failed = _complete(one | {"found": cells | on_openvino | {"NNCF": {"failed": "no"}}})
    assert f"| {SMALL} | accuracy |  |  | 0.9000 |  | NNCF failed |" in page.table({SMALL: failed})


def _complete(one: dict[str, Any]) -> dict[str, Any]:
    rest = {"ms": None, "megabytes": 1.0, "seconds": 1.0, "remark": ""}
    return one | {"found": {name: cell if "failed" in cell else rest | cell for name, cell in one["found"].items()}}


def test_metrics_of_maps() -> None:
    assert photographs.peak_ratio(np.array([0.01, 0.03])) == pytest.approx(16.99, abs=0.01)
    # both classes of two images: (both, either)
    assert digits.mean_intersection(np.array([[8, 10, 1, 2], [8, 10, 1, 6]])) == pytest.approx((0.8 + 0.25) / 2)


@pytest.mark.parametrize("name", ["breast cancer, tabular transformer", "diabetes, residual network", SMALL])
def test_int8_is_as_good_as_float(name: str) -> None:
    entry = NETWORKS[name]
    task, rows = entry.load(), {}
    for candidate in ("float on ORT", "prepbench int8"):
        made = CANDIDATES[candidate](entry, task)
        rows[candidate] = task.parts([made.run(call) for call in task.test])
    assert task.metric(rows["float on ORT"]) > 0.6, "it is not trained"
    assert measure.interval(rows, task.metric, "prepbench int8")[0] > -0.01


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> Any:
        return shipped.installed_file("no_such_package", "x.pt", "no-such-package")

    monkeypatch.setitem(NETWORKS, "absent", Entry("kind", "weights", "licence", "data", "metric", load))
    assert measure.measured("absent") == {"missing": "no-such-package is not installed (make board installs it)"}


def test_training_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "KEPT", tmp_path)
    first, second = digits.resnet(epochs=1), digits.resnet(epochs=1)
    assert len(list(tmp_path.iterdir())) == 1
    for name, value in first.model.state_dict().items():
        assert value.equal(second.model.state_dict()[name])
