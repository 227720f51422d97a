"""The page of the bench without a kernel: layout, keyboard, what is sent, and how quick large tables are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from prepbench.bench import BenchSummary
from prepbench.bench.status import RunStatus
from prepbench.document.codec import read_object
from tests.system.browser import fake_samples
from tests.system.browser.bench_states import STATES
from tests.system.browser.fake_bench import after_run, give, open_bench, run, sent, traits, turn_to

pytestmark = pytest.mark.timeout(120)

STEPS = ("capture", "axes", "precision", "recover", "run", "results")
WIDE = "() => document.querySelector('.pbb-box').classList.contains('pbb-wide')"
SHIFT = """(since) => new Promise(done => {
  let sum = 0;
  new PerformanceObserver(list => { for (const e of list.getEntries()) if (e.startTime > since) sum += e.value; })
    .observe({type: 'layout-shift', buffered: true});
  setTimeout(() => done(sum), 300);
})"""
NAMELESS = """() => [...document.querySelectorAll('.pbb :is(button, input, select, [role=tab], [role=separator])')]
  .filter(e => e.checkVisibility() && !(e.ariaLabel || e.textContent.trim() || e.labels?.length))
  .map(e => e.outerHTML.slice(0, 120))"""


def row(page: Page, at: int) -> Locator:
    return page.locator(f".pbb-layers tr[data-at='{at}']")


def milliseconds(page: Page, act: str) -> float:
    """The least of five times that something in the page takes until it is drawn: others share the machine."""
    taken: float = page.evaluate(
        f"""async () => {{
          const times = [];
          for (let turn = 0; turn < 5; turn++) {{
            const start = performance.now();
            {act};
            document.body.offsetHeight;
            times.push(performance.now() - start);
            await new Promise(requestAnimationFrame);
          }}
          return Math.min(...times);
        }}"""
    )
    return taken


@pytest.fixture
def problems(page: Page) -> list[str]:
    found: list[str] = []
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on("console", lambda message: found.append(message.text) if message.type == "error" else None)
    return found


def test_what_is_shown_here_is_what_python_sends() -> None:
    given = traits()
    given.update(after_run(given))
    given["axes"] = [{**each, "min": 0, "max": 0} for each in given["axes"]]  # documents have no negative counts
    given["search_now"] = {**given["search_now"], "used": 0}
    given["training"] = {**given["training"], "best": 0}
    for kind in (BenchSummary, RunStatus):
        names = {field.name for field in fields(kind)}
        read_object({name: given.pop(name) for name in names}, kind, kind.__name__)
    assert not given


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1440, 1100, 800, 550])
def test_every_step_fits(page: Page, problems: list[str], width: int, dark: bool) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    given = traits()
    open_bench(page, given, dark=dark)
    give(page, after_run(given))
    assert page.evaluate(WIDE) == (width >= 1000)  # the bench is narrower than the page
    for step in STEPS:
        turn_to(page, step)
        panel = page.get_by_role("tabpanel")
        expect(panel).to_be_visible()
        assert not page.evaluate("() => document.documentElement.scrollWidth > innerWidth"), step
        assert not page.evaluate(NAMELESS), step
        box = panel.bounding_box()
        assert box
        assert box["x"] + box["width"] <= width, step
    assert not problems


def test_the_diagram_folds_where_the_page_is_narrow(page: Page) -> None:
    page.set_viewport_size({"width": 900, "height": 900})
    open_bench(page, traits())
    picture = page.locator(".pbb-picture")
    strip = page.get_by_role("button", name="Diagram")
    expect(picture).to_be_hidden()
    strip.click()
    expect(strip).to_have_attribute("aria-expanded", "true")
    expect(picture).to_be_visible()


@pytest.mark.parametrize("step", ["precision", "results"])
def test_the_diagram_ends_where_the_foot_begins(page: Page, step: str) -> None:
    page.set_viewport_size({"width": 1440, "height": 900})
    given = traits()
    open_bench(page, {**given, **after_run(given)})
    page.evaluate("() => document.body.insertAdjacentHTML('beforeend', '<div style=\"height: 2000px\"></div>')")
    turn_to(page, step)
    bottom = lambda place: page.locator(place).evaluate("e => e.getBoundingClientRect().bottom")  # noqa: E731
    for is_open in (False, True):
        if is_open:
            page.get_by_role("button", name="Code", exact=True).click()
        for at in (250, 500, 800):
            page.locator(".pbb-codes").evaluate("(e, at) => scrollBy(0, e.getBoundingClientRect().top - at)", at)
            page.wait_for_timeout(50)
            assert bottom(".pbb-picture") <= bottom(".pbb-step") + 1, (is_open, at)


@pytest.mark.parametrize("width", [1440, 800, 400])
def test_the_code_has_the_whole_width_and_whole_lines(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    lines = ["bench = pb.Bench(", f"    {'a_long_argument, ' * 20}", ")"]
    open_bench(page, {**traits(), "code": "\n".join(lines)})
    page.add_style_tag(content="pre { white-space: pre-wrap; word-break: break-all }")  # as JupyterLab has it
    page.get_by_role("button", name="Code", exact=True).click()
    code = page.get_by_role("region", name="Python code")
    button = page.get_by_role("button", name="Copy", exact=True)
    box, around, copy = (each.bounding_box() for each in (code, page.locator(".pbb-code"), button))
    assert box
    assert around
    assert copy
    assert box["width"] > around["width"] - 40
    assert copy["y"] + copy["height"] <= box["y"]
    assert code.evaluate("e => e.scrollWidth > e.clientWidth && e.clientHeight < 5 * 18 + 30")


def test_the_splitter_moves_by_key_and_by_pointer(page: Page) -> None:
    page.set_viewport_size({"width": 1440, "height": 900})
    open_bench(page, traits())
    splitter = page.get_by_role("separator")
    width = lambda: page.locator(".pbb-picture").bounding_box()["width"]  # type: ignore[index]  # noqa: E731
    before = width()
    splitter.press("ArrowRight")
    assert width() > before
    box = splitter.bounding_box()
    assert box
    page.mouse.move(box["x"] + 4, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(500, box["y"] + 100, steps=4)
    page.mouse.up()
    assert abs(width() - 488) < 12
    assert int(splitter.get_attribute("aria-valuenow") or 0) == pytest.approx(34, abs=2)


def test_steps_are_tabs(page: Page) -> None:
    open_bench(page, traits())
    capture = page.get_by_role("tab", name="Capture, 2 fail, failed")
    expect(capture).to_have_attribute("aria-selected", "true")  # where something is wrong
    capture.press("ArrowRight")
    expect(page.get_by_role("tab", name="Axes")).to_be_focused()
    expect(page.get_by_role("tabpanel")).to_have_attribute("data-shows", "axes")
    steps = traits()["steps"]
    give(
        page,
        {
            "steps": [
                *steps[:5],
                {**steps[5], "status": "1 run"},
            ]
        },
    )
    give(page, {"steps": [*steps[:5], {**steps[5], "status": "2 runs"}]})
    page.get_by_role("tab", name="Results, 2 runs, new").click()
    expect(page.get_by_role("tab", name="Results, 2 runs", exact=True)).to_be_visible()


def test_failures_are_dealt_with_in_one_click(page: Page) -> None:
    open_bench(page, traits())
    page.get_by_role("button", name="Apply fix to router").click()
    page.get_by_role("button", name="Keep it in PyTorch: layers.3.gate").click()
    page.get_by_role("button", name="router", exact=True).click()
    assert sent(page) == [
        {"action": "apply_fix", "fqn": "router"},
        {"action": "set_leaf", "fqn": "layers.3.gate", "leaf": True},
        {"action": "select", "fqn": "router"},
    ]


def test_axes_have_names_ranges_and_marks(page: Page) -> None:
    open_bench(page, traits())
    turn_to(page, "axes")
    expect(page.locator(".pbb-axis")).to_have_count(4)  # six dims, two of which go with others
    expect(page.locator("[aria-label^='ids dim 0:']")).to_contain_text("✓ 1, 2, 7")
    expect(page.locator("[aria-label^='past.* dim 2:']")).to_contain_text("sizes differ")
    page.get_by_role("button", name="Name and range of ids dim 0").click()
    name = page.get_by_role("textbox", name="Name of ids dim 0")
    expect(name).to_be_focused()
    name.fill("rows")
    give(page, {"axes": traits()["axes"]})  # while somebody types
    expect(name).to_have_value("rows")
    name.press("Tab")
    page.get_by_role("spinbutton", name="Largest size of ids dim 0").fill("64")
    page.keyboard.press("Enter")
    page.locator("[aria-label^='ids dim 1:']").click()
    assert sent(page) == [
        {"action": "name_axis", "path": "ids", "dim": 0, "name": "rows"},
        {"action": "limit_axis", "path": ["ids"], "dim": 0, "min": 0, "max": 64},
        {"action": "set_axis", "path": ["ids"], "dim": 1, "dynamic": False},
    ]


def test_a_folded_block_is_set_by_one_glob(page: Page) -> None:
    open_bench(page, traits())
    turn_to(page, "precision")
    expect(page.locator(".pbb-layers tr[data-at]")).to_have_count(8)  # 169 layers
    row(page, 0).click()
    chip = page.get_by_role("textbox", name="Selected layers")
    expect(chip).to_have_value("layers.*.q_proj")
    page.get_by_role("radio", name="int4 weights").click()
    row(page, 4).click()
    page.get_by_role("button", name="More settings").click()
    page.get_by_role("combobox", name="Block size").select_option("64")
    page.get_by_role("button", name="Use default").click()
    actions = [each for each in sent(page) if each["action"] != "select"]
    assert actions == [
        {"action": "set_precision", "pattern": ["layers.*.q_proj"], "precision": "int4 weights"},
        {"action": "set_layers", "pattern": ["layers.*.up_proj"], "field": "block", "value": "64"},
        {"action": "clear_rules", "pattern": ["layers.*.up_proj"]},
    ]


@pytest.mark.parametrize("width", [420, 700, 1100, 1440])
def test_names_of_layers_are_whole_where_there_is_room(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    given = traits(1)
    for layer in given["layers"]:
        layer["fqn"] = f"model.language.layers.0.attention.{layer['fqn'].rpartition('.')[2]}"
    open_bench(page, given)
    turn_to(page, "precision")
    name = row(page, 0).locator("th")
    needed, room = name.evaluate("e => [e.scrollWidth, e.clientWidth]")
    assert (needed <= room) == (width >= 700)
    assert page.locator(".pbb-layers .pbb-scroll").evaluate("e => e.scrollWidth <= e.clientWidth") == (width >= 700)


def test_rows_are_marked_by_keys_alone(page: Page) -> None:
    open_bench(page, traits())
    turn_to(page, "precision")
    filter_box = page.get_by_role("searchbox", name="Filter layers")
    filter_box.fill("layers.[01].*")
    filter_box.press("ArrowDown")
    page.keyboard.press("Home")
    page.keyboard.press("Shift+ArrowDown")
    expect(page.locator("tr[aria-selected='true']")).to_have_count(2)
    expect(page.locator(".pbb-editor")).to_contain_text("4 layers")
    page.keyboard.press("Control+a")
    expect(page.locator(".pbb-editor")).to_contain_text("14 layers")
    page.keyboard.press("Escape")
    expect(page.locator(".pbb-editor")).to_contain_text("14 layers")
    expect(page.get_by_role("textbox", name="Selected layers")).to_have_value("layers.[01].*")  # the filter
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    expect(row(page, 0)).to_have_attribute("aria-expanded", "true")
    expect(row(page, 1)).to_have_attribute("aria-level", "2")
    expect(row(page, 0)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("radio", name="int8", exact=True)).to_be_focused()


def test_a_selection_elsewhere_shows_its_row(page: Page) -> None:
    open_bench(page, traits(200))
    turn_to(page, "precision")
    give(page, {"selected": "layers.150.k_proj"})
    expect(page.locator("tr[data-fqn='layers.150.k_proj']")).to_be_in_viewport()
    expect(page.locator("tr[aria-selected='true']")).to_have_count(1)
    give(page, {"selected": "layers.3"})
    expect(page.locator(".pbb-editor")).to_contain_text("7 layers")
    assert not [each for each in sent(page) if each["action"] == "select"], "no echo"


def test_an_empty_search_says_how_to_widen_it(page: Page) -> None:
    open_bench(page, traits())
    turn_to(page, "precision")
    nothing = page.locator(".pbb-nothing")
    for text, said in (("encoder", "shorter part"), ("re:(", "cannot be read"), ("up_proj.*", "“*up_proj*”")):
        page.get_by_role("searchbox", name="Filter layers").fill(text)
        expect(nothing).to_contain_text(said)
    page.get_by_role("button", name="Show all layers").click()
    page.get_by_role("combobox", name="Status").select_option("differs")
    expect(nothing).to_contain_text("None of 169 layers is applied differs")


def test_cancel_answers_at_once_and_nothing_moves(page: Page) -> None:
    page.set_viewport_size({"width": 1440, "height": 900})
    given = traits()
    open_bench(page, given)
    turn_to(page, "run")
    page.get_by_role("button", name="Compile", exact=True).click()
    page.wait_for_timeout(700)  # what moves within half a second of a click is meant
    since = page.evaluate("() => performance.now()")
    running = {
        "running": True,
        "about": "compile",
        "stage": "Choosing scales from samples",
        "done": 3,
        "total": 8,
        "fraction": 0.4,
        "elapsed_s": 2.0,
    }
    give(page, {**running, "remaining_s": 20.0, "then": ["OpenVINO"], "log": ["captured"]})
    expect(page.locator(".pbb-running")).to_contain_text("Choosing scales from samples (3 of 8)")
    expect(page.locator(".pbb-running")).to_contain_text("about")
    assert page.locator("progress:visible").evaluate("e => e.value") == 0.4
    give(page, {"running": False, "then": [], **after_run(given)})
    assert page.evaluate(SHIFT, since) < 0.05
    give(page, running)
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("button", name="Cancelling …")).to_be_disabled()
    assert [each["action"] for each in sent(page)] == ["compile", "cancel"]


def test_runs_wait_and_can_be_removed(page: Page) -> None:
    given = {**traits(), **next(state for state in STATES if state.name == "run, queued").traits}
    open_bench(page, given)
    expect(page.locator(".pbb-foot")).to_contain_text("1 of 3 · Choosing scales from samples")
    turn_to(page, "run")
    expect(page.locator(".pbb-running")).to_contain_text("1 of 3 · Choosing scales from samples (3 of 8)")
    page.get_by_role("button", name="Add to the queue").click()
    waiting = page.get_by_role("region", name="Runs that wait")
    expect(waiting.get_by_role("listitem")).to_have_count(2)
    expect(waiting).to_contain_text("40 int8 · 1 float · batch dynamic")
    waiting.get_by_role("button", name="Remove int4 weights for ONNX Runtime").click()
    waiting.get_by_role("button", name="Cancel all").click()
    asked = sent(page)
    assert [each["action"] for each in asked] == ["compile", "remove_queued", "cancel_all"]
    assert asked[1]["id"] == "q2"
    give(page, {"is_queued": True, "queue": []})
    expect(page.get_by_role("button", name="Add to the queue")).to_be_disabled()
    expect(waiting).to_have_count(0)


def test_runs_are_renamed_restored_compared(page: Page) -> None:
    given = traits()
    open_bench(page, given)
    give(page, after_run(given))
    turn_to(page, "results")
    name = page.get_by_role("textbox", name="Name of the run")
    name.fill("the good one")
    name.press("Enter")
    for button in ("Restore", "Pin", "Delete int8 ONNX Runtime 1", "Delete int8 ONNX Runtime 1"):  # the last asks first
        page.get_by_role("button", name=button).click()
    for at in (0, 2):
        page.get_by_role("checkbox", name=f"Compare int8 ONNX Runtime {at}").check()
    expect(page.locator(".pbb-slower").last).to_contain_text("20 of 41 layers run in PyTorch")
    assert [each["action"] for each in sent(page)] == [
        "rename_run", "restore_run", "pin_run", "delete_run", "compare_runs", "compare_runs",
    ]  # fmt: skip
    rows = [{"what": "weights", "first": "8", "second": "4"}]
    empty: list[Any] = []
    difference = {"first": "a", "second": "b", "results": empty, "settings": rows, "layers": empty, "note": ""}
    colours = {"title": "SQNR, b minus a", "unit": "dB", "fqns": ["0"], "values": [-3.0]}
    difference |= {"colours": colours, "samples": fake_samples.both()}
    give(page, {"difference": difference})
    compared = page.locator(".pbb-compare")
    expect(compared).to_contain_text("b against a")
    expect(compared).to_contain_text("coloured by SQNR, b minus a.")
    samples = page.get_by_role("region", name="Samples on which they differ most")
    assert samples.locator("img").first.evaluate("image => image.decode().then(() => image.naturalWidth)") == 16
    assert samples.locator("rect title").all_text_contents() == ["class 3 91%", "class 5 52%"]
    expect(samples.locator("mark")).to_have_text(["sunny", "<img src=x onerror=window.harmed=1>"])
    assert page.evaluate("() => window.harmed") is None, "a text of a model is a text"
    sound = samples.locator("audio").first
    playable = "sound => new Promise(done => { sound.oncanplay = () => done(sound.duration); sound.load(); })"
    assert sound.evaluate(playable) > 0.4
    assert "M" in (samples.locator(".pbs-wave path").first.get_attribute("d") or "")


@pytest.mark.parametrize("width", [1440, 1100, 800])
def test_compared_samples_come_into_view_side_by_side(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    open_bench(page, {**traits(), **after_run(traits(), 2)})
    turn_to(page, "results")
    for at in (0, 1):
        page.locator(".pbb-runs input").nth(at).click()
    difference = traits()["difference"] | {"first": "a", "second": "b", "samples": fake_samples.both()}
    give(page, {"difference": difference})
    samples = page.locator(".pbs-sample")
    expect(samples).to_have_count(4)
    page.wait_for_timeout(100)
    first = samples.first.bounding_box()
    assert first is not None
    assert 0 <= first["y"] < 900 - first["height"], "one does not have to look for the answer"
    for each in samples.all():
        one, other = (each.locator(".pbs-side").nth(at).bounding_box() for at in (1, 2))
        assert one is not None
        assert other is not None
        assert one["y"] == other["y"]
        assert one["x"] + one["width"] < other["x"]


def test_files_are_written_and_a_point_restores_its_run(page: Page) -> None:
    given = traits()
    open_bench(page, given)
    page.evaluate("""() => {
      const plot = document.createElement('div');
      plot.className = 'jp-RenderedPlotly js-plotly-plot';
      plot.on = (event, call) => { window.point = call; };
      document.querySelector('.pbb-chart').append(plot);
    }""")
    give(page, after_run(given))
    turn_to(page, "results")
    # a scroll bar of its own would take the room that the chart is sized to
    expect(page.locator(".pbb-chart .jp-RenderedPlotly")).to_have_css("overflow", "hidden")
    away = page.get_by_role("region", name="Take away")
    away.get_by_role("textbox", name="File name").fill("here/net")
    for button in ("Save bench", "Report", "Download report"):
        away.get_by_role("button", name=button, exact=True).click()
        # saving changes where runs are: what was typed stays
        give(page, {"runs": [{**each, "name": f"{each['name']} {button}"} for each in after_run(given)["runs"]]})
    page.evaluate("() => window.point({points: [{customdata: 'r2'}]})")
    assert sent(page) == [
        {"action": "save", "path": "here/net.bench.json"},
        {"action": "report", "path": "here/net.html"},
        {"action": "download", "what": "report"},
        {"action": "restore_run", "id": "r2"},
    ]


def test_hostile_names_stay_text(page: Page, problems: list[str]) -> None:
    given = traits(1)
    name = "<img src=x onerror=alert(1)>.\"'`${}"
    given["layers"][0]["fqn"] = given["failures"][0]["fqn"] = given["axes"][0]["path"] = given["selected"] = name
    given["title"] = given["rules"][0]["pattern"] = given["targets"][0]["name"] = name
    open_bench(page, given)
    give(page, {"runs": [{**run(0), "name": name, "shown": True}]})
    for step in STEPS:
        turn_to(page, step)
    assert page.locator("img").count() == 0
    assert not problems


@pytest.mark.parametrize("blocks", [143, 1429])
def test_large_tables_are_quick(page: Page, blocks: int, record_property: Callable[[str, object], None]) -> None:
    given = traits(blocks)
    open_bench(page, given)
    give(page, after_run(given, runs=200))
    started = page.evaluate("() => performance.now()")
    turn_to(page, "precision")
    opened = page.evaluate("() => performance.now()") - started
    page.get_by_label("Rows").select_option("Single layers")
    assert page.locator(".pbb-layers tr[data-at]").count() < 60, "only rows in sight are in the page"
    header = "[...document.querySelectorAll('.pbb-layers thead button')]"
    taken = {f"sort {n}": milliseconds(page, f"{header}[{n}].click()") for n in (0, 1, 2, 3)}
    search = (
        "const box = document.querySelector('.pbb-layers input'); box.value = turn % 2 ? 're:[02468].up' : 'q_proj'"
    )
    taken["filter"] = milliseconds(page, f"{search}; box.dispatchEvent(new Event('input'))")
    taken["click"] = milliseconds(page, "document.querySelector(`.pbb-layers tr[data-at='${turn}']`).click()")
    taken["run"] = milliseconds(
        page, "window.bench.set({running: turn % 2 === 0, stage: 'Choosing scales from samples'})"
    )
    figures = ", ".join(f"{what} {ms:.1f}" for what, ms in taken.items())
    print(f"\n{len(given['layers'])} layers, ms: open {opened:.0f}, {figures}")  # noqa: T201
    record_property("milliseconds", figures)
    assert opened < 1500
    assert max(taken.values()) < 50


def test_a_short_error_shows_its_remedy_and_a_long_one_folds_it(page: Page) -> None:
    open_bench(page, traits())
    turn_to(page, "run")
    card = {**traits()["message"], "kind": "error", "text": "x.shape[0] is 5 and the axes fix it at 2"}
    give(page, {"message": {**card, "details": f"{card['text']}. Make it dynamic in `Axes`."}})
    error = page.locator(".pbb-error")
    expect(error.get_by_text("Make it dynamic in Axes.")).to_be_visible()
    expect(error.locator("code")).to_have_text("Axes")
    expect(error.locator("details")).to_have_count(0)
    give(page, {"message": {**card, "details": f"{card['text']}. {'A long story. ' * 60}"}})
    expect(error.locator("details")).to_have_count(1)
    expect(error.get_by_text("A long story.")).to_be_hidden()


@pytest.mark.parametrize("width", [1100, 1440])
def test_the_table_of_runs_shows_all_its_columns(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    given = traits()
    open_bench(page, given)
    give(page, after_run(given))
    turn_to(page, "results")
    assert page.locator(".pbb-history").evaluate("e => e.scrollWidth <= e.clientWidth")


def test_a_run_without_its_baseline_offers_it(page: Page) -> None:
    given = traits()
    open_bench(page, given)
    give(page, {**after_run(given), "shown_run": "r1"})
    turn_to(page, "results")
    button = page.get_by_role("button", name="Compare with float")
    expect(button).to_have_count(0)
    give(page, {"shown_run": "r2"})
    button.click()
    assert sent(page) == [{"action": "repair", "how": "compare_with_float", "value": "r2", "again": ""}]
    expect(page.get_by_role("tab", selected=True)).to_contain_text("Run")  # its progress and its outcome stand there
