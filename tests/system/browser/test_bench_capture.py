"""The step of capture in the page: fixes one by one and together, drafts as cells, and remedies as they are meant."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.system.browser.fake_bench import DIFF, card, failure, give, open_bench, sent, traits, turn_to

pytestmark = pytest.mark.timeout(120)

ANSWER = "answer => window.bench.tell(answer)"
IN_LAB = "() => { window.inserted = []; window[Symbol.for('prepbench')].insertBelow = c => window.inserted.push(c); }"


def test_all_fixes_are_applied_at_once(page: Page) -> None:
    proven = [failure(name, diff=DIFF, can_fix=True, proof="✓ equal on `3` samples") for name in ("a", "b")]
    open_bench(page, {**traits(), "failures": [*proven, failure("c")]})
    turn_to(page, "capture")
    page.get_by_role("button", name="Apply all 2 fixes").click()
    page.get_by_role("button", name="Apply fix to b").click()
    assert [each["action"] for each in sent(page)] == ["apply_fixes", "apply_fix"]
    give(page, {"failures": [{**proven[0], "fixed": True}, proven[1], failure("c")]})
    expect(page.get_by_role("button", name="Apply all")).to_have_count(0)


def test_what_takes_something_for_granted_has_a_button_of_its_own(page: Page) -> None:
    assumption = "the loop on line 7 needs at most 2 iterations"
    draft = failure(
        "b", diff=DIFF, has_draft=True, assumption=assumption, proof=f"it takes for granted that {assumption}"
    )
    open_bench(page, {**traits(), "failures": [failure("a", diff=DIFF, can_fix=True, proof="✓ equal"), draft]})
    turn_to(page, "capture")
    expect(page.get_by_role("button", name="Apply all")).to_have_count(0)  # one alone is not all
    expect(page.get_by_role("article", name="b: ")).to_contain_text(f"takes for granted that {assumption}")
    page.get_by_role("button", name="Apply the fix of b anyway").click()
    assert [(each["action"], each["fqn"]) for each in sent(page)] == [("apply_fix_anyway", "b")]
    give(page, {"failures": [{**draft, "fixed": True}]})
    expect(page.get_by_role("button", name="Apply the fix of b anyway")).to_have_count(0)


def test_a_draft_is_edited_in_a_cell_of_the_view_that_asked(page: Page) -> None:
    draft = failure("a", diff=DIFF, has_draft=True, proof="no sample takes the side")
    open_bench(page, {**traits(), "failures": [draft]})
    turn_to(page, "capture")
    expect(page.get_by_role("button", name="Edit in a cell below")).to_have_count(0)  # there are no cells here
    page.evaluate(IN_LAB)
    give(page, {"failures": [{**draft, "count": 2}]})
    page.evaluate(ANSWER, {"action": "draft", "code": "of another view"})
    page.get_by_role("button", name="Edit in a cell below: a").click()
    assert [(each["action"], each["fqn"]) for each in sent(page)] == [("edit_draft", "a")]
    page.evaluate(ANSWER, {"action": "draft", "code": "model = net"})
    page.evaluate(ANSWER, {"action": "draft", "code": "of another view"})
    assert page.evaluate("() => window.inserted") == ["model = net"]


def test_a_module_selected_in_the_diagram_shows_its_card(page: Page) -> None:
    page.set_viewport_size({"width": 1440, "height": 700})
    failures = [failure(f"blocks.{at}", diff=DIFF, fqns=[f"blocks.{at}", f"more.{at}"]) for at in range(6)]
    open_bench(page, {**traits(), "failures": failures})
    turn_to(page, "capture")
    card = page.get_by_role("article", name="blocks.4: ")
    expect(card).not_to_be_in_viewport()
    page.locator(".pbb-picture").hover()
    for name in ("blocks.4", "more.4"):
        page.evaluate("() => scrollTo(0, 0)")
        give(page, {"selected": name})
        expect(card).to_be_in_viewport(ratio=1)
        expect(page.locator("[aria-current='true']")).to_have_count(1)
        expect(card).to_have_attribute("aria-current", "true")
    page.evaluate("() => scrollTo(0, 0)")
    page.mouse.move(0, 0)
    give(page, {"selected": "blocks.5"})  # in another view of the bench, which moves nothing here
    expect(page.get_by_role("article", name="blocks.5: ")).to_have_attribute("aria-current", "true")
    assert page.evaluate("() => scrollY") == 0


@pytest.mark.parametrize("width", [1440, 500])
def test_a_refusal_is_seen_from_any_place_of_the_step(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 700})
    open_bench(page, {**traits(), "failures": [failure(f"blocks.{at}", diff=DIFF) for at in range(9)]})
    turn_to(page, "capture")
    page.get_by_role("article", name="blocks.7: ").scroll_into_view_if_needed()
    give(page, {"message": card("error", "The draft does not fit any more. Capture again to get a new one.")})
    notice = page.get_by_role("alert")
    expect(notice).to_be_in_viewport(ratio=1)
    rail = page.locator(".pbb-rail").bounding_box()
    box = notice.bounding_box()
    assert rail
    assert box
    assert box["y"] >= rail["y"] + rail["height"]
    page.get_by_role("button", name="Dismiss the message").click()
    expect(notice).to_be_hidden()
    give(page, {"message": card("error", "Another one.")})
    expect(notice).to_have_text(re.compile("Another one"))


def test_a_change_is_shown_whole(page: Page) -> None:
    open_bench(page, {**traits(), "failures": [failure("a", diff="\n".join(f"+line {at}" for at in range(60)))]})
    turn_to(page, "capture")
    assert page.locator(".pbb-diff").evaluate("e => e.scrollHeight - e.clientHeight") == 0


def test_backticks_mean_code(page: Page) -> None:
    remedy = "Use `torch.where`, or ``x[`` as ` it is."
    open_bench(page, {**traits(), "failures": [failure("a", remedy=remedy)]})
    turn_to(page, "capture")
    shown = page.locator(".pbb-remedy").first
    expect(shown).to_have_text("Use torch.where, or x[ as ` it is.")
    assert shown.locator("code").all_inner_texts() == ["torch.where", "x["]
    expect(shown.locator("code").first).to_be_visible()


def test_a_diagram_offers_what_its_bench_can_do(page: Page) -> None:
    proven = failure("a", diff=DIFF, can_fix=True, fqns=["a", "b"], count=2, proof="✓ equal")
    open_bench(page, {**traits(), "failures": [proven]})
    ask = """fqn => {
      const question = {fqn, offers: []};
      const event = new CustomEvent('prepbench:offers', {detail: question, bubbles: true});
      document.querySelector('.picture').dispatchEvent(event);
      question.offers.forEach(offer => offer.run());
      return question.offers.map(offer => offer.label);
    }"""
    assert page.evaluate(ask, "b") == ["Apply fix"]
    assert page.evaluate(ask, "c") == []
    assert [(each["action"], each["fqn"]) for each in sent(page)] == [("apply_fix", "a")]
    give(page, {"failures": [{**proven, "fixed": True}]})
    assert page.evaluate(ask, "a") == []


def test_files_come_in_pieces_and_only_to_the_view_that_asked(page: Page) -> None:
    open_bench(page, traits())
    turn_to(page, "results")
    away = page.get_by_role("region", name="Take away")
    page.evaluate(ANSWER, {"action": "written", "card": card("error", "of another view")})
    expect(away).not_to_contain_text("another view")
    away.get_by_role("button", name="Download report").click()
    page.evaluate(ANSWER, {"action": "download", "name": "net.html", "part": 1, "parts": 2})
    expect(away).to_contain_text("Receiving net.html: 50 %")
    with page.expect_download() as download:
        page.evaluate(ANSWER, {"action": "download", "name": "net.html", "part": 2, "parts": 2})
    assert download.value.path().read_text() == "piece 1, piece 2, "
    away.get_by_role("button", name="Save bench").click()
    button = {"label": "Download it", "action": "download", "value": "report", "again": ""}
    page.evaluate(ANSWER, {"action": "written", "card": {**card("error", "the disk is full"), "buttons": [button]}})
    expect(away.get_by_role("alert")).to_contain_text("the disk is full")
    sent(page)
    away.get_by_role("button", name="Download it").click()
    assert sent(page) == [{"action": "download", "what": "report"}]
    page.evaluate(ANSWER, {"action": "download", "name": "net.html", "part": 1, "parts": 1})
    expect(away).to_contain_text("net.html was downloaded")
