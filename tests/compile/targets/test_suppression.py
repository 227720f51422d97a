"""Suppression of boxes: torchvision's operator inside the graph of ONNX targets, and a loop that stays in PyTorch."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import prepbench as pb

LIMIT = 0.3
TARGETS = {"onnxruntime": pb.OnnxRuntimeDeployment, "openvino": pb.OpenVinoDeployment}


def suppressed(dets: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """What torchvision's kernel computes, the ties and the limit in float64 included."""
    areas, gone, kept = (dets[:, 2:] - dets[:, :2]).prod(1), torch.zeros(len(dets), dtype=torch.bool), []
    for place in scores.argsort(descending=True, stable=True).tolist():
        if not gone[place]:
            kept.append(place)
            low, high = torch.maximum(dets[place, :2], dets[:, :2]), torch.minimum(dets[place, 2:], dets[:, 2:])
            shared = (high - low).clamp(min=0).prod(1)
            gone |= (shared / (areas[place] + areas - shared)).double() > iou_threshold
    return torch.tensor(kept, dtype=torch.int64)


if importlib.util.find_spec("torchvision") is not None:
    import torchvision  # noqa: F401
else:
    LIBRARY = torch.library.Library("torchvision", "DEF")
    LIBRARY.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    LIBRARY.impl("nms", suppressed, "CPU")
    torch.library.register_fake(
        "torchvision::nms",
        lambda dets, scores, limit: dets.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.int64),
        lib=LIBRARY,
    )


class Suppression(nn.Module):
    """Boxes of different classes lie apart, as in ``torchvision.ops.batched_nms``."""

    def __init__(self) -> None:
        super().__init__()
        self.apart = nn.Parameter(torch.tensor(1000.0))

    def forward(self, boxes: torch.Tensor, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.ops.torchvision.nms(boxes + (labels * self.apart)[:, None], scores, LIMIT)


class Detector(nn.Module):
    """Boxes of one image, decoded and suppressed; a blank image has none."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Conv2d(3, 5, 3, padding=1)
        nn.init.constant_(self.net.bias, -0.3)

    def found(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cells = self.net(image)[0].flatten(1).mT
        middles, halves, scores = cells[:, :2] * 4 + 8, cells[:, 2:4].exp(), cells[:, 4]
        is_box = scores > 0
        return torch.cat([middles - halves, middles + halves], 1)[is_box], scores[is_box]

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        boxes, scores = self.found(image)
        kept = torch.ops.torchvision.nms(boxes, scores, LIMIT)
        return boxes[kept], scores[kept]


class Loop(Detector):
    """The same, written by hand."""

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        boxes, scores = self.found(image)
        left, kept = scores.argsort(descending=True), []
        while left.numel() > 0:
            best, rest = left[0], left[1:]
            kept.append(best)
            low = torch.maximum(boxes[best, :2], boxes[rest, :2])
            high = torch.minimum(boxes[best, 2:], boxes[rest, 2:])
            shared = (high - low).clamp(min=0).prod(-1)
            areas = (boxes[best, 2:] - boxes[best, :2]).prod() + (boxes[rest, 2:] - boxes[rest, :2]).prod(-1)
            left = rest[shared / (areas - shared) <= LIMIT]
        places = torch.stack(kept) if kept else torch.zeros(0, dtype=torch.int64)
        return boxes[places], scores[places]


def images() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(1, 3, 6, 6, generator=generator) for _ in range(3)]


def boxes_of(rows: list[Any]) -> tuple[torch.Tensor, ...]:
    corners = torch.tensor([row[:4] for row in rows], dtype=torch.float32).reshape(-1, 4)
    return corners, torch.tensor([row[4] for row in rows]).float() / 3, torch.tensor([row[5] for row in rows]).long()


@pytest.fixture(scope="module", params=TARGETS)
def suppression(request: pytest.FixtureRequest) -> Any:
    if request.param == "openvino":
        pytest.importorskip("openvino")
    samples = [boxes_of([(0, 0, 1 + place, 2, place, 0) for place in range(count)]) for count in (4, 7)]
    return pb.compile_model(Suppression(), tracing_inputs=samples, deployment_settings=TARGETS[request.param]())


CORNER = st.integers(0, 5)  # few values, so that boxes are equal, touch, are empty, or have their corners exchanged
ROW = st.tuples(CORNER, CORNER, CORNER, CORNER, st.integers(-3, 3), st.integers(0, 2))


@settings(max_examples=80, deadline=None)
@given(rows=st.one_of(st.lists(ROW, max_size=24), st.lists(st.just((0, 0, 3, 3, 1, 1)), max_size=6)))
def test_the_same_boxes_are_kept_in_the_same_order(suppression: Any, rows: list[Any]) -> None:
    given_boxes = boxes_of(rows)
    with torch.no_grad():
        assert suppression(*given_boxes).tolist() == Suppression()(*given_boxes).tolist()


def test_one_limit_in_float32_is_that_in_float64(suppression: Any) -> None:
    # an overlap of 3 / 10, which is more than 0.3 in float32
    given_boxes = boxes_of([(0, 0, 10, 1, 3, 0), (0, 0, 3, 1, 2, 0)])
    assert suppression(*given_boxes).tolist() == Suppression()(*given_boxes).tolist() == [0]


@pytest.mark.parametrize("target", TARGETS)
def test_a_detector_with_suppression_in_its_graph(target: str) -> None:
    if target == "openvino":
        pytest.importorskip("openvino")
    model = Detector().eval()
    compiled = pb.compile_model(model, tracing_inputs=images(), deployment_settings=TARGETS[target]())
    assert not compiled.report.fallbacks
    assert any("suppressed inside the graph" in remark for remark in compiled.report.remarks)
    _same(model, compiled)


@pytest.mark.parametrize("target", TARGETS)
def test_a_loop_by_hand_stays_in_pytorch(target: str) -> None:
    if target == "openvino":
        pytest.importorskip("openvino")
    model = Loop().eval()
    settings = TARGETS[target]()
    compiled = pb.compile_model(model, tracing_inputs=images(), deployment_settings=settings, fullgraph=False)
    assert any("line" in name for name in compiled.report.fallbacks)
    _same(model, compiled)


def _same(model: nn.Module, compiled: Any) -> None:
    counts = []
    for image in (*images(), torch.zeros(1, 3, 6, 6)):
        with torch.no_grad():
            expected, found = model(image), compiled(image)
        for one, other in zip(expected, found, strict=True):
            torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-4)
        counts.append(len(expected[0]))
    assert counts[-1] == 0
    assert all(counts[:-1])
