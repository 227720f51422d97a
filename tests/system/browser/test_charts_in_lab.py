"""Charts in a notebook: their texts are as easy to read as those of the page."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.system.browser.lab import Lab, watch
from tests.system.browser.notebooks import looks, open_notebook, run_cell

CHART = """
import torch, prepbench as pb
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
compiled = pb.compile_model(net, tracing_inputs=[torch.randn(4, 8)], deployment_settings=pb.OnnxRuntimeDeployment())
pb.compare({"float32": net, "onnx": compiled}, [torch.randn(4, 8)], rounds=1)
"""
# plotly writes the opacity of a text apart from its colour, and the ground lies below what is transparent
LEAST_CONTRAST = """() => {
  const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [[r, .2126], [g, .7152], [b, .0722]].reduce((sum, [part, share]) => {
    const value = part / 255;
    return sum + share * (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  }, 0);
  const ground = numbers(getComputedStyle(document.querySelector('.jp-Notebook')).backgroundColor);
  const texts = [...document.querySelectorAll('.js-plotly-plot .main-svg text')].filter(text => text.textContent);
  const ratios = texts.map(text => {
    const [r, g, b, alpha = 1] = numbers(getComputedStyle(text).fill);
    const seen = [r, g, b].map((part, at) => alpha * part + (1 - alpha) * ground[at]);
    const [one, other] = [light(seen), light(ground)];
    return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
  });
  return [ratios.length, Math.min(...ratios)];
}"""


def test_texts_of_a_chart_follow_the_theme(page: Page, lab: Lab) -> None:
    problems, outside = watch(page, lab.url)
    open_notebook(page, lab, "charts", [CHART])
    run_cell(page, 0)
    expect(page.locator(".js-plotly-plot .main-svg text").first).to_be_visible(timeout=60_000)
    for look in looks(page):
        count, least = page.evaluate(LEAST_CONTRAST)
        assert count > 5, look
        assert least >= 4.5, look
    assert not problems
    assert not outside
