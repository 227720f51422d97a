"""Training back in a real JupyterLab: followed, stopped and taken away, while other cells run."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.system.browser.lab import watch
from tests.system.browser.models import UNTIMED
from tests.system.browser.notebooks import open_notebook, run_cell

pytestmark = pytest.mark.timeout(300)

MODEL = f"""import torch
from torch import nn
import prepbench as pb

torch.manual_seed(0)
points = torch.randn(600, 8)
classes = (points[:, :2] > 0).long() @ torch.tensor([1, 2])

def make():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))

net = make()
optimizer = torch.optim.Adam(net.parameters(), 1e-2)
for _ in range(200):
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(points[:400]), classes[:400]).backward()
    optimizer.step()
net.eval()
pairs = list(zip(points[:400].split(20), classes[:400].split(20)))
unseen = list(zip(points[400:].split(50), classes[400:].split(50)))
inputs = [points[:40], points[40:60]]
{UNTIMED}"""
BENCH = """bench = pb.Bench(
    net, calibration_inputs=inputs, data=unseen, metric=pb.metrics.accuracy, training_data=pairs,
    loss=nn.functional.cross_entropy,
)
bench.set_quantization(pb.QuantizationSettings(weights_num_bits=4, activations_num_bits=4))
bench"""
OTHER = "print(sum(range(10)), torch.ones(3))"
SAME = """kept = next(run for run in bench.runs if "trained back" in run.name)
right = (compiled(points[400:]).argmax(-1) == classes[400:]).float().mean().item()
print("as good" if right > kept.score - 0.05 else f"{right} and {kept.score}")  # it trains all steps"""


@pytest.mark.stress
def test_a_training_is_followed_stopped_and_pasted(page: Page, lab: Any) -> None:
    problems, outside = watch(page, lab.url)
    page.set_viewport_size({"width": 1100, "height": 900})
    open_notebook(page, lab, "training", [MODEL, BENCH, OTHER, SAME])
    run_cell(page, 0)
    problems.clear()  # what JupyterLab says while it starts
    run_cell(page, 1)
    bench = page.locator(".pbb-box")
    bench.locator("[data-step='recover']").click()
    step = bench.locator(".pbb-recover")
    expect(step).to_contain_text("Trains on the training data, with labels.")
    step.get_by_role("textbox", name="Steps at most").fill("6000")
    step.get_by_role("button", name="Train back and compile").dblclick()
    curve = step.get_by_role("img", name=re.compile(r"Training: \d+ of 6000 steps"))
    expect(curve).to_be_visible(timeout=60_000)
    before = curve.get_attribute("aria-label")
    assert "45" in str(run_cell(page, 2)[0].get("text", "")), "another cell runs beside it"
    expect(curve).not_to_have_attribute("aria-label", before or "", timeout=30_000)
    assert bench.evaluate("box => box.scrollWidth <= box.clientWidth"), "nothing is cut off"
    step.get_by_role("button", name="Stop and keep the best").click()
    expect(step).to_contain_text("interrupted", timeout=60_000)
    assert "after 0 of" not in step.inner_text(), "what was trained since the last check is kept if it is the best"
    bench.locator("[data-step='results']").click()
    rows = bench.locator(".pbb-runs tr[data-run]")
    expect(rows.filter(has_text="trained back")).to_have_count(1, timeout=120_000)
    expect(bench.locator(".pbb-running")).to_have_count(0, timeout=60_000)
    expect(rows.filter(has_text="trained back")).to_have_count(1)  # a double click is one training
    bench.get_by_role("button", name="Code", exact=True).click()
    page.get_by_role("button", name="Insert below").click()
    expect(page.locator(".jp-Notebook .jp-CodeCell")).to_have_count(5)
    pasted = run_cell(page, 2)
    assert not [each for each in pasted if each["output_type"] == "error"], pasted
    printed = run_cell(page, 4)
    assert printed[0].get("text", "") == "as good\n", printed
    assert not problems, problems
    assert not outside, outside
