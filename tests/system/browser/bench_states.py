"""The states that the page of the bench can be in, one by one, for whoever looks at all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Page

from tests.system.browser import fake_samples, fake_search
from tests.system.browser.fake_bench import (
    after_run,
    captured,
    elsewhere,
    failure,
    generated,
    layer_costs,
    open_bench,
    run,
    training,
    traits,
    turn_to,
    writing,
)

_RUNNING = {
    "running": True, "about": "compile",
    "stage": "Choosing scales from samples", "done": 3, "total": 8, "fraction": 0.4, "elapsed_s": 12.0,
    "remaining_s": 20.0, "then": ["OpenVINO"], "is_queued": True, "log": ["captured in 1.2 s", "calibrating"],
}  # fmt: skip
_QUEUE = [
    {
        "id": "q1",
        "name": "mixed int8",
        "target": "ONNX Runtime, OpenVINO",
        "settings": "40 int8 · 1 float · batch dynamic",
    },
    {"id": "q2", "name": "int4 weights", "target": "ONNX Runtime", "settings": "41 int4 weights · all sizes static"},
]
_TROUBLE = {
    "fqn": "layers.3.gate", "type": "Gate", "reason": "branch on a tensor value", "place": "model.py:88",
    "code": "if x.sum() > 0:", "remedy": "Write the branch with torch.where.", "file": "/tmp/model.py", "line": 88,
}  # fmt: skip
_ERROR = {
    "kind": "error", "text": "layers.3.gate cannot be captured: branch on a tensor value", "troubles": [_TROUBLE],
    "details": "Traceback (most recent call last): …", "about": "compile", "outcomes": [],
    "buttons": [{"label": "Keep it in PyTorch and compile", "action": "keep_in_pytorch", "value": "",
                 "again": "compile"}],
}  # fmt: skip
_DIFFERENCE = {
    "first": "int8 ONNX Runtime 0", "second": "int8 ONNX Runtime 2",
    "results": [{"what": "Score", "first": "97.3 %", "second": "97.1 %"}],
    "settings": [{"what": "Weights of layers.*.up_proj", "first": "8", "second": "4"}],
    "layers": [{"what": f"layers.{at}.up_proj", "first": "int8", "second": "int4"} for at in range(4)],
    "note": "The second is 1.4 times as fast, and 0.2 % worse.",
    "colours": {"title": "SQNR lost from int8 ONNX Runtime 0 to int8 ONNX Runtime 2; below 0 is gained", "unit": "dB",
                "fqns": ["layers.0.up_proj"], "values": [-14.2]},
    "samples": fake_samples.both(),
}  # fmt: skip
_STALE = "2 layers had another precision"


def _nothing(page: Page) -> None:
    """Leave the step as it opens."""


@dataclass(frozen=True)
class State:
    """A state: the step that is shown, what Python set, and what the person did then."""

    name: str
    step: str
    traits: dict[str, Any] = field(default_factory=dict)
    act: Callable[[Page], None] = _nothing

    def show(self, page: Page, *, dark: bool = False) -> None:
        """Open the bench in this state."""
        open_bench(page, {**traits(), **self.traits}, dark=dark)
        turn_to(page, self.step)
        self.act(page)
        page.mouse.move(0, 0)


def _press(name: str, role: Any = "button") -> Callable[[Page], None]:
    return lambda page: page.get_by_role(role, name=name, exact=True).first.click()


def _mark(page: Page) -> None:
    page.locator(".pbb-layers tr[data-at='1']").click()
    page.get_by_role("button", name="More settings").click()


def _unfold_all(page: Page) -> None:
    for summary in page.locator(".pbb summary:visible").all():
        summary.click()


def _search(page: Page) -> None:
    page.get_by_role("searchbox", name="Filter layers").fill("encoder.*")


def _empty() -> dict[str, Any]:
    plain = {"status": "", "kind": ""}
    return {
        "failures": [], "assumptions": [], "axes": [], "layers": [], "planned": [], "decisions": [], "rules": [],
        "sentence": "no layers · ONNX Runtime", "steps": [{**step, **plain} for step in traits()["steps"]],
    }  # fmt: skip


def _after(**more: Any) -> dict[str, Any]:
    return {**after_run(traits()), **more}


_FIXABLE = [
    failure("router", can_fix=True, diff="-a\n+b", proof="✓ equal on 48 calls", count=3),
    failure("head.gate", can_fix=True, diff="-c\n+d", proof="✓ equal on 50 calls"),
    failure("layers.3.gate"),
]
_FIXED = [
    failure("router", can_fix=True, fixed=True, diff="-a\n+b"),
    failure("layers.3.gate", is_leaf=True),
    failure("stem", title="shape specialisation", graphs=2),
]

STATES = (
    State("capture, failing", "capture"),
    State("capture, fixes", "capture", {"failures": _FIXABLE}),
    State("capture, looking", "capture", {"fixes_known": False}),
    State("capture, dealt with", "capture", {"failures": _FIXED, "leaves": ["layers.3.gate"], "selected": "head"}),
    State("capture, empty", "capture", _empty()),
    State("capture, first time", "capture", captured()),
    State("axes", "axes"),
    State("axes, edited", "axes", act=_press("Name and range of ids dim 1")),
    State("axes, empty", "axes", _empty()),
    State("precision, planned", "precision"),
    State("precision, marked", "precision", act=_mark),
    State("precision, applied", "precision", _after()),
    State("precision, stale", "precision", _after(stale=_STALE)),
    State("precision, measured", "precision", layer_costs(traits())),
    State("precision, nothing found", "precision", act=_search),
    State("precision, empty", "precision", _empty()),
    State("run, ready", "run", act=_unfold_all),
    State("run, running", "run", _RUNNING, _unfold_all),
    State("run, queued", "run", {**_RUNNING, "is_queued": False, "turn": "1 of 3", "queue": _QUEUE}),
    State("run, writing", "run", {**_RUNNING, "stage": "Generating text · int4 weights", **writing()}),
    State("run, searched", "run", fake_search.done()),
    State("run, cancelling", "run", {**_RUNNING, "cancelling": True}),
    State("run, failed", "run", {"message": _ERROR}),
    State("run, done", "run", _after(elapsed_s=40.0)),
    State("run, stale", "run", _after(stale=_STALE)),
    State("recover", "recover"),
    State("recover, training", "recover", training(traits())),
    State("recover, ended", "recover", training(traits(), ended=True)),
    State("results, empty", "results"),
    State("results", "results", _after()),
    State("results, stale", "results", _after(shown_run="r0", staleness=[{"texts": [_STALE]}], stale_of=[0] * 6)),
    State("results, a failed run", "results", _after(shown_run="r4")),
    State("results, compared", "results", _after(difference=_DIFFERENCE)),
    State("results, generated", "results", generated(traits())),
    State("results, from elsewhere", "results", elsewhere(traits())),
    State("results, one run", "results", _after(runs=[run(1)], stale_of=[0])),
    State("code", "results", act=_press("Code")),
)
