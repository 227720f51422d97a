"""Training back and pruning on the page: the form, the curve that fills, the stop, and layers that are pruned."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.system.browser.fake_bench import give, open_bench, sent, training, traits, turn_to

pytestmark = pytest.mark.timeout(120)


def test_a_training_is_asked_for_followed_and_stopped(page: Page) -> None:
    page.set_viewport_size({"width": 700, "height": 900})
    given = traits()
    open_bench(page, given)
    turn_to(page, "recover")
    step = page.locator(".pbb-recover")
    step.get_by_role("textbox", name="Steps at most").fill("50")
    step.get_by_role("checkbox", name="Learn from the float model").uncheck()
    step.get_by_role("combobox", name="Keep the weights with the best").select_option("loss")
    step.get_by_role("textbox", name="Learning rate").fill("0,01")
    step.get_by_role("button", name="Train back and compile").click()
    wanted = {"steps": "50", "distill": False, "by_metric": False, "learning_rate": "0,01"}
    assert sent(page) == [{"action": "train_back", **wanted}]
    expect(step.get_by_role("button", name="Stop and keep the best")).to_be_hidden()
    give(page, training(given))
    curve = step.get_by_role("img", name="Training: 120 of 300 steps")
    expect(curve).to_be_visible()
    expect(curve.locator("circle")).to_have_count(5)
    step.get_by_role("button", name="Stop and keep the best").click()
    assert sent(page) == [{"action": "stop_training"}]
    give(page, {**training(given, ended=True), "running": False})
    expect(curve.locator("circle.pbb-best")).to_have_count(0)  # the name has changed with its numbers
    expect(step.locator("circle.pbb-best")).to_have_count(1)
    expect(step).to_contain_text("0.98 after 275 of 300 steps")
    step.get_by_role("button", name="Compile without training").click()
    assert sent(page) == [{"action": "no_training"}]
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), "nothing is cut off"


def test_losses_of_one_unit_share_an_axis_and_no_label_is_cut(page: Page) -> None:
    given = traits()
    open_bench(page, given)
    turn_to(page, "recover")
    shown = training(given, ended=True)
    small = {"losses": [0.00443 - 1e-5 * at for at in range(300)], "scores": [-1.57e-4 - 3e-4 * at for at in range(13)]}
    texts = "e => [...e.querySelectorAll('text.dim')].map(each => [each.getAttribute('text-anchor'), each.getBBox()])"
    cut = """e => [...e.querySelectorAll('text')].filter(each =>
        each.getBBox().x < 0 || each.getBBox().x + each.getBBox().width > 720).map(each => each.textContent)"""
    for by_loss in (False, True):
        words = {"metric": "loss in evaluation" if by_loss else "accuracy", "by_loss": by_loss}
        give(page, {**shown, "training": {**shown["training"], **small, **words}})
        curve = page.locator(".pbb-curve svg")
        expect(curve).to_contain_text(words["metric"])
        assert curve.evaluate(cut) == []
        assert any(anchor == "start" for anchor, _ in curve.evaluate(texts)) != by_loss, "a second axis"


def test_layers_show_what_is_pruned_and_change_it(page: Page) -> None:
    given = traits()
    pruned = {"pruning": "50% channels", "pruned_by": "lm_head", "mask": "channels", "amount": "50"}
    given["decisions"][2] |= {**pruned, "score": "magnitude"}
    given["rules"].append({"pattern": "lm_head", "label": "50% channels", "layers": 1, "prunes": True})
    masks = {"name": "mask", "title": "Pruning", "help": "What goes", "kind": "choice", "refused": []}
    given["settings"].append({**masks, "choices": ["none", "1:1", "2:4", "channels"]})
    open_bench(page, {**given, "selected": "lm_head"})
    turn_to(page, "precision")
    expect(page.locator(".pbb-layers tr[data-fqn='lm_head']")).to_contain_text("50% channels")
    sent(page)
    page.get_by_role("button", name="More settings").click()
    page.get_by_role("radio", name="Pruning 2:4").click()
    page.get_by_role("button", name="Use default").click()
    page.get_by_role("button", name="Remove the rule lm_head of pruning").click()
    assert sent(page) == [
        {"action": "set_layers", "pattern": ["lm_head"], "field": "mask", "value": "2:4"},
        {"action": "clear_rules", "pattern": ["lm_head"]},
        {"action": "clear_pruning", "pattern": ["lm_head"]},
        {"action": "clear_pruning", "pattern": ["lm_head"]},
    ]


@pytest.mark.parametrize("width", [1440, 1150, 800, 400])
def test_no_setting_leaves_the_panel(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    given = traits(2)
    masks = {"name": "mask", "title": "Pruning", "help": "What goes", "kind": "choice", "refused": []}
    masks["choices"] = ["none", "weights", "2:4", "channels"]
    open_bench(page, {**given, "settings": [*given["settings"], masks]})
    turn_to(page, "precision")
    page.get_by_role("button", name="More settings").click()
    page.locator(".pbb-editor").evaluate("e => { e.style.width = `${Math.min(e.clientWidth, 465)}px`; }")
    over = """e => [...e.querySelectorAll('button, select')].filter(each =>
        each.getBoundingClientRect().right > e.getBoundingClientRect().right - 4).map(each => each.textContent)"""
    assert page.locator(".pbb-editor").evaluate(over) == []
