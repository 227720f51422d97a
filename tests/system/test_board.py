"""The harness of the board, on a small network that is trained here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.board import digits, measure, page, shipped, training
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
