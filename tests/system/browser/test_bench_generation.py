"""Generation on the bench: text as it comes, side by side, and what is in it harms nobody; axes of caches in groups."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.system.browser.fake_bench import generated, give, open_bench, sent, text, traits, turn_to, writing
from tests.system.browser.lab import Lab
from tests.system.browser.measures import turn_to as turn_bench_to
from tests.system.browser.models import UNTIMED
from tests.system.browser.notebooks import open_notebook, outputs_of, run_cell

pytestmark = pytest.mark.timeout(400)

HARM = "<img src=x onerror=window.harmed=1>"
MODEL = f"""
import torch, prepbench as pb
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(3)
config = LlamaConfig(vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
                     num_key_value_heads=1, max_position_embeddings=64, eos_token_id=None)
model = LlamaForCausalLM(config).eval()

def sample(batch, past, new):
    cache = model(input_ids=torch.ones(batch, past, dtype=torch.long)).past_key_values
    return {{"input_ids": torch.ones(batch, new, dtype=torch.long),
            "attention_mask": torch.ones(batch, past + new, dtype=torch.long), "past_key_values": cache}}

class Words:
    def decode(self, tokens):
        return "".join("{HARM}" if token % 2 else f" w{{token}}" for token in tokens)

with torch.no_grad():
    samples = [sample(2, 3, 5), sample(3, 11, 1)]
words = Words()
prompts = pb.Generation(torch.tensor([[5, 9, 2, 17, 30], [7, 7, 21, 4, 11]]), new_tokens=12)
{UNTIMED}
bench = pb.Bench(model, tracing_inputs=samples, calibration_inputs=samples, data=prompts, decode=words.decode)
bench.set_target("PyTorch eager")
bench.set_precision("*", "int4 weights")
"""


def test_text_comes_in_and_the_first_other_token_is_marked(page: Page) -> None:
    open_bench(page, traits())
    turn_to(page, "run")
    now = writing()
    expect(page.locator(".pbb-written")).to_be_hidden()
    give(
        page,
        {
            "running": True,
            "about": "compile",
            "workload": now["workload"],
            "prompts": now["prompts"],
            "writing": now["writing"][:1],
        },
    )
    expect(page.get_by_text("Compared by what they generate: 16 tokens after each of 2 prompts.")).to_be_visible()
    expect(page.locator(".pbb-text-card")).to_have_count(2)
    give(page, {"writing": now["writing"]})
    card = page.get_by_role("group", name="int4 weights ONNX Runtime").first
    expect(card.locator("mark")).to_have_text(" -")
    expect(card).to_contain_text("≠ from token 10 of 11")
    expect(card.locator("p")).to_have_text("def add(first, second):\n    ret - second", use_inner_text=True)
    place = card.locator("p").element_handle()
    further = {**now["writing"][1], "texts": [text("def add(", " -", " second, third", agree=3, tokens=12)] * 2}
    give(page, {"writing": [now["writing"][0], further]})
    expect(card.locator("p")).to_contain_text("third")
    assert card.locator("p").evaluate("(now, before) => now === before", place)  # what was marked in it stays so


def test_text_of_models_is_text(page: Page) -> None:
    open_bench(page, {**traits(), **writing()})
    for step, change in (("run", {}), ("results", generated(traits()))):
        give(page, change)
        turn_to(page, step)
        for summary in page.locator(".pbb-written details:not([open]) > summary:visible").all():
            summary.click()
        expect(page.locator(".pbb-prompt:visible").last).to_have_text(HARM)
        expect(page.locator(".pbb-text:visible mark:not([hidden])").last).to_have_text(HARM)
    assert page.locator(".pbb-written img, .pbb-written b b, .pbb-text b").count() == 0
    assert page.evaluate("() => window.harmed") is None


def test_results_say_what_generating_costs(page: Page) -> None:
    page.set_viewport_size({"width": 700, "height": 900})
    open_bench(page, {**traits(), **generated(traits())})
    turn_to(page, "results")
    heads = page.locator(".pbb-runs thead th").all_text_contents()
    assert heads[2:8] == ["Score", "Speed-up", "First (ms)", "Token (ms)", "Tokens/s", "Peak (MB)"]
    cells = page.locator(".pbb-runs tbody tr").first.locator("td").all_text_contents()
    assert cells[3:5] == ["12.4", "2.41(2.30 to 2.55)"]  # the interval in a line of its own
    assert cells[5] == "119"
    same = page.get_by_role("group", name="int8 weights ONNX Runtime with a long name").first
    expect(same).to_contain_text("✓ same 16 tokens")
    long = generated(traits())
    long["written"][1]["texts"] = [text("word " * 200)] * 2
    give(page, {"prompts": ["prompt " * 100] * 2, "written": long["written"]})
    for place in page.locator(".pbb-written, .pbb-text-card").all():  # nothing is cut off at the side
        right = place.evaluate("place => place.getBoundingClientRect().right")
        assert right <= 700
        assert place.evaluate("place => place.scrollWidth <= place.clientWidth")
    give(page, {"runs": [{**each, "first": ""} for each in generated(traits())["runs"]], "written": []})
    assert "Against float" in page.locator(".pbb-runs thead th").all_text_contents()
    expect(page.get_by_text("What candidates wrote")).to_be_hidden()


def test_a_cache_is_one_line_with_one_switch(page: Page) -> None:
    given = traits()
    cache = [axis for axis in given["axes"] if axis["path"] == "past.*"]
    for axis in cache:
        axis["paths"] = ["past[0].*", "past[2].*"]
    open_bench(page, given)
    turn_to(page, "axes")
    assert page.locator(".pbb-axes-row > code").all_text_contents() == ["ids", "mask", "past.* (48)"]
    page.locator("[aria-label^='past.* dim 2:']").click()
    assert sent(page) == [{"action": "set_axis", "path": ["past[0].*", "past[2].*"], "dim": 2, "dynamic": True}]


def test_equal_reasons_are_one_line_that_unfolds(page: Page) -> None:
    given = traits()
    count = len(given["layers"])
    why = [f"its output would be at {at % 7}.5 dB, below the floor of 8 dB" for at in range(7)]
    outcomes = [{"label": "float", "why": each} for each in why] + [{"label": "int8", "why": ""}]
    applied = [at if at < 7 else 7 for at in range(count)]
    open_bench(page, {**given, "outcomes": outcomes, "applied": applied})
    turn_to(page, "precision")
    reasons = page.get_by_role("region", name="Why layers differ from the plan").locator("details")
    expect(reasons).to_have_count(1)
    expect(reasons).to_contain_text("its output would be at 0.5 to 6.5 dB, below the floor of 8 dB")
    expect(reasons).to_contain_text("7 layers (layers.*.q_proj, layers.*.k_proj, layers.*.v_proj and 4 more)")
    reasons.locator("summary").click()
    reasons.get_by_role("button", name="layers.0.v_proj").click()
    assert sent(page) == [{"action": "select", "fqn": "layers.0.v_proj"}]


def test_a_reason_goes_when_the_plan_becomes_what_was_applied(page: Page) -> None:
    given = traits()
    outcomes = [{"label": "int4 weights", "why": "weights only, by the settings"}]
    open_bench(page, {**given, "outcomes": outcomes, "applied": [0] * len(given["layers"])})
    turn_to(page, "precision")
    reasons = page.get_by_role("region", name="Why layers differ from the plan").locator("details")
    expect(reasons).to_have_count(1)
    decisions = [{**each, "label": "int4 weights", "formats": ""} for each in given["decisions"]]
    give(page, {"decisions": decisions})
    expect(reasons).to_have_count(0)


def test_what_a_target_lacks_cannot_be_chosen(page: Page) -> None:
    given = traits()
    for setting in given["settings"]:
        if setting["name"] == "weights":
            setting["refused"] = ["", "", "ExecuTorch lacks it"]
    open_bench(page, given)
    turn_to(page, "precision")
    page.locator(".pbb-layers tr[data-at='0']").click()
    page.get_by_role("button", name="More settings").click()
    four = page.get_by_role("radio", name="Weights (bits) 4")
    expect(four).to_be_disabled()
    expect(four).to_have_attribute("title", "ExecuTorch lacks it")
    expect(page.locator("option", has_text="hqq (OpenVINO lacks it)")).to_be_disabled()
    sent(page)
    page.get_by_role("combobox", name="Algorithm").select_option("awq")
    page.get_by_role("combobox", name="Block size").select_option("64")
    patterns = {"pattern": ["layers.*.q_proj"]}
    assert sent(page) == [
        {"action": "set_layers", **patterns, "field": "algorithm", "value": "awq"},
        {"action": "set_layers", **patterns, "field": "block", "value": "64"},
    ]


@pytest.mark.stress
def test_generation_in_jupyterlab(page: Page, lab: Lab) -> None:
    """A click compiles and generates; the text is side by side, in the saved output, and its code runs in a cell."""
    code = "exec(bench.code())\nlist(written.columns), len(written)"
    open_notebook(page, lab, "generation", [MODEL, "bench", code])
    assert not any(output["output_type"] == "error" for output in run_cell(page, 0))
    run_cell(page, 1)
    bench = page.locator(".jp-Notebook .pbb-box")
    expect(bench).to_be_visible(timeout=60_000)
    turn_bench_to(bench, "axes")
    expect(bench.locator(".pbb-axes-row > code")).to_have_text(["input_ids", "attention_mask", "past_key_values.* (4)"])
    shots(page, bench, "axes")
    turn_bench_to(bench, "run")
    bench.get_by_role("button", name="Compile", exact=True).click()
    step = bench.locator(".pbb-run")
    expect(step.get_by_role("group", name="float32").first).to_contain_text("w", timeout=60_000)
    shots(page, bench, "writing")
    turn_bench_to(bench, "results")
    cards = bench.locator(".pbb-results .pbb-text-card:visible")
    expect(cards).to_have_count(2, timeout=240_000)
    expect(cards.nth(1)).to_contain_text("token")
    expect(cards.nth(0)).to_contain_text(HARM)
    shots(page, bench, "results")
    assert page.evaluate("() => window.harmed") is None
    said: Any = run_cell(page, 2)
    assert said == outputs_of(page, 2)
    assert "int4 weights PyTorch eager" in str(said)


def shots(page: Page, bench: Locator, name: str) -> None:
    """Pictures for people, in both themes, wide and narrow."""
    folder = os.environ.get("SCREENSHOTS")
    for width in (1100, 700) if folder else ():
        page.set_viewport_size({"width": width, "height": 1000})
        for theme in ("Light", "Dark"):
            command = "theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})"
            page.evaluate(command, f"JupyterLab {theme}")
            page.wait_for_timeout(500)
            bench.screenshot(path=Path(str(folder)) / f"lab_{name}_{width}_{theme}.png")
