"""The page of a bench without a kernel: its script and styles around a model object that holds traits.

What it sends is kept in ``window.sent``; ``window.bench.set({...})`` sets traits as a message of Python does, and
``window.bench.tell({...})`` answers a question.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from playwright.sync_api import Page

from prepbench.document.bench import Chart
from prepbench.views.page import STATIC
from tests.system.browser import fake_samples, fake_search

_PAGE = """<!doctype html><html><head><style>%(css)s</style><style>
body {margin: 12px; background: %(ground)s; color-scheme: %(scheme)s; --jp-layout-color1: %(ground)s;
  --jp-layout-color2: %(soft)s; --jp-border-color2: %(line)s; --jp-ui-font-color1: %(text)s;
  --jp-ui-font-color2: %(dim)s}
.picture {height: 620px; background: repeating-linear-gradient(45deg, #8882 0 8px, transparent 8px 16px)}
</style></head><body data-jp-theme-light="%(light)s">
<div class="pbb-box"><div id="controls"></div><div class="pbb-picture"><div class="picture"></div></div>
<div class="pbb-chart"><div style="height: 300px">chart</div></div></div></body></html>"""
_START = """async ([code, traits]) => {
  const handlers = {};
  window.sent = [];
  const make = () => ({
    get: (name) => traits[name],
    on: (event, call) => (handlers[event] ??= []).push(call),
    off: (event, call) => { handlers[event] = (handlers[event] ?? []).filter(each => each !== call); },
    send: (content) => window.sent.push(content),
  });
  const tell = (answer) => {
    const piece = new DataView(new TextEncoder().encode(`piece ${answer.part}, `).buffer);
    for (const call of handlers['msg:custom'] ?? []) call(answer, answer.part ? [piece] : []);
  };
  window.bench = {all: () => structuredClone(traits), tell, set: (changes) => {
    Object.assign(traits, changes);
    for (const name of Object.keys(changes)) for (const call of handlers['change:' + name] ?? []) call();
  }};
  const url = URL.createObjectURL(new Blob([code], {type: 'text/javascript'}));
  const {default: widget} = await import(url);
  widget.render({model: make(), el: document.getElementById('controls')});
}"""
_LIGHT = {"scheme": "light", "light": "true", "ground": "#ffffff", "soft": "#eeeeee", "line": "#e0e0e0",
          "text": "rgba(0,0,0,.87)", "dim": "rgba(0,0,0,.6)"}  # fmt: skip
_DARK = {"scheme": "dark", "light": "false", "ground": "#111111", "soft": "#424242", "line": "#616161",
         "text": "rgba(255,255,255,1)", "dim": "rgba(255,255,255,.7)"}  # fmt: skip


def open_bench(page: Page, traits: dict[str, Any], *, dark: bool = False) -> None:
    """Show a bench with these traits."""
    css = (STATIC / "bench.css").read_text()
    page.set_content(_PAGE % {"css": css, **(_DARK if dark else _LIGHT)})
    page.evaluate(_START, [(STATIC / "bench.js").read_text(), json.loads(json.dumps(traits))])
    page.wait_for_timeout(50)


def sent(page: Page) -> list[dict[str, Any]]:
    """What the page has asked for, and forget it."""
    asked: list[dict[str, Any]] = page.evaluate("() => window.sent.splice(0)")
    return [each for each in asked if each["action"] not in ("shown", "inspect")]  # these come by themselves


def give(page: Page, changes: dict[str, Any]) -> None:
    """What a message of Python does."""
    page.evaluate("changes => window.bench.set(changes)", changes)


def turn_to(page: Page, step: str) -> None:
    """Show a step."""
    page.locator(f"[data-step='{step}']").click()


_FURTHER = [
    {"label": "See results", "action": "results", "value": "", "again": ""},
    {"label": "Export", "action": "export", "value": "", "again": ""},
    {"label": "Code", "action": "code", "value": "", "again": ""},
]


def card(kind: str = "", text: str = "", **more: Any) -> dict[str, Any]:
    """How an action ended."""
    plain = {"troubles": [], "details": "", "about": "", "outcomes": [], "buttons": []}
    return {"kind": kind, "text": text, **plain, **more}


def inspection(fqn: str, **more: Any) -> dict[str, Any]:
    """What is known of the layer that is looked at."""
    plain = {"state": "running", "stage": "", "failure": card(), "type": "", "decided": "", "why": "", "shown": "",
             "values": [], "error": {"sqnr": None, "channels": [], "together": 1, "reference": [], "quantized": []},
             "what_if": [], "facts": [], "place": "", "file": "", "line": 0, "code": "", "frame": "",
             "samples": ""}  # fmt: skip
    return {"fqn": fqn, **plain, **more}


def outcome(name: str) -> dict[str, Any]:
    """What a run came to."""
    facts = [
        {"label": "Speed", "value": "2.3× as fast", "note": "as float32 ONNX Runtime; 2.41 ms a batch"},
        {"label": "Accuracy", "value": "97.3 %", "note": "−0.2 % against float"},
        {"label": "Size", "value": "4.1 MB", "note": ""},
    ]
    return {"name": name, "facts": facts, "note": "", "is_doubtful": False}


def traits(blocks: int = 24) -> dict[str, Any]:
    """A language model of some blocks, with a failure, two inputs, targets and no run yet."""
    parts = ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "gate_proj", "down_proj"]
    names = [f"layers.{block}.{part}" for block in range(blocks) for part in parts] + ["lm_head"]
    layers = [{"fqn": fqn, "type": "Linear", "parameters": (at * 7919) % 65536 + 64} for at, fqn in enumerate(names)]
    shared = {"weights_only": "false", "block": "0", "observer": "minmax", "algorithm": "auto", "activations": "8"}
    shared |= {"formats": "", "equalised": "false"}
    shared |= {"pruning": "", "pruned_by": "", "mask": "none", "amount": "", "score": ""}
    return {
        "title": "LanguageModel",
        "sentence": f"2 modules cannot be captured · batch dynamic · {len(names)} layers int8 · ONNX Runtime",
        "notes": [],
        "steps": [
            {"name": "capture", "title": "Capture", "status": "2 fail", "kind": "bad"},
            {"name": "axes", "title": "Axes", "status": "B, seq", "kind": "good"},
            {"name": "precision", "title": "Precision", "status": f"{len(names)} int8", "kind": ""},
            {"name": "recover", "title": "Train back", "status": "off", "kind": ""},
            {"name": "run", "title": "Run", "status": "ready", "kind": ""},
            {"name": "results", "title": "Results", "status": "", "kind": ""},
        ],
        "selected": "",
        "fixes_known": True,
        "failures": [failure("layers.3.gate"), failure("router", diff=DIFF, can_fix=True, count=3)],
        "newer_code": "",
        "assumptions": ["seq ≤ 512: positions.weight has 512 rows", "B is the same in ids and mask"],
        "leaf_wrap": False,
        "leaf_label": "Keep what fails in PyTorch",
        "leaves": [],
        "axes": [
            axis("ids", 0, [2, 3], True, "B", linked=["mask dim 0"], verified="✓ 1, 2, 7"),
            axis("ids", 1, [16, 24], True, "seq", linked=["mask dim 1"], min=1, max=512),
            axis("mask", 0, [2, 3], True, "B"),
            axis("mask", 1, [16, 24], True, "seq"),
            axis("past.*", 0, [2, 3], True, "B2", verified="batch only 2", reason="model.py:12 fixes it", places=48),
            axis("past.*", 2, [5, 9], False, "past", problem="past dim 2 is static; sample 2 has 9.", places=48),
        ],
        "layers": layers,
        "decisions": [
            {**shared, "label": "int8", "rule": "global", "weights": "8", "quantized": True},
            {**shared, "label": "int4 weights, 32", "rule": "layers.*.up_proj", "weights": "4", "activations": "32",
             "weights_only": "true", "block": "32", "quantized": True},
            {**shared, "label": "float", "rule": "lm_head", "weights": "32", "activations": "32", "quantized": False},
        ],
        "planned": [2 if fqn == "lm_head" else int(fqn.endswith("up_proj")) for fqn in names],
        "outcomes": [],
        "applied": [],
        "columns": [],
        "measured": "",
        "search": fake_search.nothing(),
        "search_now": {"unavailable": "", "repairs": [], "is_searching": False, "stale": "", "used": -1},
        "is_measuring": False,
        "inspection": inspection("", state=""),
        "recovery": {"unavailable": "", "repairs": [], "on": False, "said": "Trains on the training data, with labels.",
                     "labelled": True, "metric": "accuracy", "steps": 300, "distill": True, "by_metric": True,
                     "learning_rate": 0.001},
        "expected": {"megabytes": 4.213, "float_megabytes": 16.78, "note": ""},
        "rules": [
            {"pattern": "layers.*.up_proj", "label": "int4 weights, 32", "layers": blocks, "prunes": False},
            {"pattern": "lm_head", "label": "float", "layers": 1, "prunes": False},
        ],
        "base": "int8",
        "settings": [{"refused": [], **each} for each in (
            field("weights", "Weights (bits)", ["32", "8", "4"]),
            field("activations", "Activations (bits)", ["32", "16", "8"]),
            field("weights_only", "Weights only", [], kind="switch"),
            field("block", "Block size", ["0", "16", "32", "64", "128", "256"]),
            {**field("algorithm", "Algorithm", ["auto", "nearest", "gptq", "awq", "hqq"]),
             "refused": ["", "", "", "", "OpenVINO lacks it"]},
            field("observer", "Observer", ["minmax", "percentile", "mse"]),
        )],
        "precisions": [
            {"name": name, "label": label, "explanation": f"{label} …", "enabled": True}
            for name, label in (("int8", "int8"), ("int8 weights", "int8 weights"), ("int4 weights", "int4 weights"),
                                ("float32", "float"))
        ],
        "targets": [
            target("ONNX Runtime", chosen=True, options=[
                {**field("opset", "Opset", ["", "20", "21"]), "value": ""},
                {**field("threads", "Threads", [], kind="number"), "value": "4"},
            ]),
            target("OpenVINO", problem="3 layers in 4 bits stay in float here"),
            target("Inductor"),
            target("ExecuTorch", unavailable="executorch is not installed"),
        ],
        "elsewhere": {"count": 0, "shown": True, "path": ""},
        "runs": [], "shown_run": "", "staleness": [], "stale_of": [],
        "chart": json.loads(json.dumps(asdict(Chart()))),
        "difference": {"first": "", "second": "", "results": [], "settings": [], "layers": [], "note": "",
                       "colours": {"title": "", "unit": "", "fqns": [], "values": []}, "samples": fake_samples.none()},
        "workload": "", "prompts": [], "written": [],
        "code": "bench = pb.compile_model(\n    model,\n    pb.OnnxRuntimeSettings(),\n)",
        "stale": "",
        "can_undo": True,
        "can_redo": False,
        "running": False, "cancelling": False, "stage": "", "done": 0, "total": 0, "fraction": 0.0,
        "elapsed_s": 0.0, "remaining_s": -1.0, "then": [], "log": [], "queue": [], "turn": "", "is_queued": False,
        "about": "",
        "message": card(),
        "writing": [],
        "training": {"total": 0, "step": 0, "losses": [], "every": 1, "metric": "", "by_loss": False,
                     "scored": [], "scores": [], "best": -1, "said": ""},
    }  # fmt: skip


def training(given: dict[str, Any], *, ended: bool = False) -> dict[str, Any]:
    """What a training sets while it goes on, or when it has ended."""
    step = 300 if ended else 120
    scored = list(range(0, step + 1, 25))
    curve = {
        "total": 300, "step": step, "losses": [0.2 + 2.1 * 0.98**at for at in range(step)], "every": 1,
        "metric": "accuracy", "by_loss": False, "scored": scored,
        "scores": [0.98 - 0.3 * 0.6**at for at in range(len(scored))],
    }  # fmt: skip
    recovery = {**given["recovery"], "on": True}
    if ended:
        said = "Accuracy 0.68 before, 0.98 after 275 of 300 steps (4.3 s, 3,382 numbers trained; all steps done)."
        return {"recovery": recovery, "training": {**curve, "best": 275, "said": said}}
    running = {
        "running": True, "about": "recover",
        "stage": "Training back · loss 0.24", "done": step, "total": 300, "fraction": 0.4, "elapsed_s": 12.0,
        "remaining_s": 20.0, "is_queued": True,
    }  # fmt: skip
    return {"recovery": recovery, "training": {**curve, "best": -1, "said": ""}, **running}


def captured() -> dict[str, Any]:
    """A bench in which nothing fails, and nothing has run."""
    made = traits(2)
    good = {"kind": "good", "status": "all captured"}
    steps = [{**step, **good} if step["name"] == "capture" else step for step in made["steps"]]
    sentence = made["sentence"].replace("2 modules cannot be captured", "all modules captured")
    return {**made, "failures": [], "steps": steps, "sentence": sentence}


def after_run(given: dict[str, Any], runs: int = 6) -> dict[str, Any]:
    """What a finished run changes."""
    count = len(given["layers"])
    return {
        "outcomes": [{"label": "int8", "why": "", "pruned": "", "note": ""},
                     {"label": "float", "why": "SQNR 8 dB is below the floor of 10 dB", "pruned": "", "note": ""},
                     {"label": "int4 weights, 32", "why": "", "pruned": "", "note": ""}],
        "applied": [1 if at % 11 == 5 else 2 if at % 7 == 4 else 0 for at in range(count)],
        "columns": [column("sqnr", "Own SQNR", "dB", [
            None if at % 13 == 0 else 20 + (at * 37 % 300) / 10 for at in range(count)], help="of the layer's output")],
        "runs": [run(at) for at in range(runs)], "shown_run": "r1",
        "staleness": [{"texts": []}, {"texts": ["2 layers had another precision"]}],
        "stale_of": [at % 2 for at in range(runs)],
        "message": card("info", "mixed int8 ONNX Runtime is ready.", about="compile", buttons=_FURTHER, outcomes=[
            outcome("mixed int8 ONNX Runtime")]),
    }  # fmt: skip


def column(key: str, title: str, unit: str, values: list[float | None], **more: Any) -> dict[str, Any]:
    """Numbers by layer."""
    plain = {"help": f"What {title} is", "worst": "", "stale": "", "notes": [], "noted": []}
    return {"key": key, "title": title, "unit": unit, "values": values, **plain, **more}


def elsewhere(given: dict[str, Any]) -> dict[str, Any]:
    """What runs of another machine, of another notebook, and of a file change."""
    after = after_run(given, runs=4)
    far = {"where": "gpu-box · train.ipynb", "is_far": True, "model": "LanguageModel"}
    after["runs"][1] |= {**far, "is_live": False}
    after["runs"][2] |= {"where": "other.ipynb", "is_live": False}
    after["runs"][3] |= {**far, "is_own": False, "is_live": False, "name": "mixed int8 OpenVINO"}
    return {**after, "elsewhere": {"count": 3, "shown": True, "path": "search.sqlite"}}


def layer_costs(given: dict[str, Any], stale: str = "") -> dict[str, Any]:
    """What measuring the layers changes."""
    count = len(given["layers"])
    costs = [None if at % 17 == 3 else 24 + (at * 53 % 411) / 10 for at in range(count)]
    shares = [0.0 if at % 19 == 4 else (at * 29 % 97) / 50 for at in range(count)]
    notes = ["int8 in this layer alone, measured", "not measured with these settings: measure layers again"]
    noted = [int(cost is None) for cost in costs]
    return {
        "columns": [
            column("sensitivity", "Model SQNR", "dB", costs, worst="least", stale=stale, notes=notes, noted=noted),
            column("time", "Time", "%", shares, worst="greatest"),
        ],
        "measured": "ONNX Runtime: SQNR of the model's output with one layer quantized; 24 of 169 measured, others "
        "estimated. Time of int8 ONNX Runtime: 2.41 ms a call under its profiler, 93% of it in layers.",
    }


def run(at: int) -> dict[str, Any]:
    """A run of the history."""
    slower = at % 3 == 1
    return {
        "id": f"r{at}", "name": f"int8 ONNX Runtime {at}", "target": "ONNX Runtime",
        "made": "2026-01-02T18:00:00", "pinned": at == 0, "score": "97.3 %", "spread": "96.9 to 97.8",
        "change": "−0.2 %", "p50": "2.41 (2.30 to 2.55)",
        "p90": "2.60", "speed": f"{0.81 if slower else 2.31}× of float32 ONNX Runtime", "size": "4.1", "slower": slower,
        "why": "Slower: 20 of 41 layers run in PyTorch." if slower else "",
        "error": "ValueError: no" if at == 4 else "",
        "is_live": at < 3, "eager": "PyTorch eager 4.55 (4.15 to 4.82) ms", "first": "", "rate": "", "peak": "",
        "beside": "", "where": "", "is_far": False, "is_own": True, "model": "", "lacks_float": at == 2,
    }  # fmt: skip


BASE = "def add(first, second):\n    return first + second\n\n\ndef scale("


def writing() -> dict[str, Any]:
    """What a generation sets while the second candidate writes."""
    said = text(BASE[:31], " -", " second", agree=9, tokens=11)
    return {
        "workload": "16 tokens after each of 2 prompts",
        "prompts": ["# A module of small functions\n", "<img src=x onerror=window.harmed=1>"],
        "writing": [
            {"name": "float32", "texts": [text(BASE), text("<b>bold</b>")], "numbers": ""},
            {"name": "int4 weights ONNX Runtime", "texts": [said, text("<b>", "<img src=x onerror=window.harmed=1>")],
             "numbers": ""},
        ],
    }  # fmt: skip


def generated(given: dict[str, Any]) -> dict[str, Any]:
    """What a finished run that generated changes."""
    now = writing()
    after = after_run(given, runs=2)
    costs = {"first": "12.4", "rate": "119", "peak": "412", "beside": "31 ms to the first token · 40 tokens/s"}
    after["runs"] = [
        {**each, **costs, "name": f"int4 weights ONNX Runtime{at}"} for at, each in enumerate(after["runs"])
    ]
    base, other = now["writing"]
    base = {**base, "numbers": "31.0 ms to the first token · 25.1 ms a token · 39.8 tokens/s · 612 MB peak"}
    other = {**other, "numbers": "12.4 ms to the first token · 8.4 ms a token · 119 tokens/s · 412 MB peak"}
    same = {**base, "name": "int8 weights ONNX Runtime with a long name"}
    return {**after, "workload": now["workload"], "prompts": now["prompts"], "written": [base, other, same]}


def text(same: str, other: str = "", rest: str = "", *, agree: int = 16, tokens: int = 16) -> dict[str, Any]:
    """The text of a candidate; with ``other`` it leaves that of the float model."""
    agree = min(agree, 3) if other and agree == tokens else agree
    return {"same": same, "other": other, "rest": rest, "agree": agree, "tokens": tokens}


def failure(fqn: str, **more: Any) -> dict[str, Any]:
    """A module that cannot be captured."""
    return {
        "fqn": fqn, "type": "Gate", "title": "branch on a tensor value", "place": "model.py:88",
        "code": "if x.sum() > 0:", "remedy": "Write the branch with torch.where, or keep the module in PyTorch.",
        "file": "/tmp/model.py", "line": 88, "diff": "", "proof": "", "can_fix": False, "assumption": "",
        "has_draft": False, "fixed": False, "is_leaf": False, "graphs": 0, "count": 1, "fqns": [fqn],
        "report": "all of it", **more,
    }  # fmt: skip


def axis(path: str, dim: int, sizes: list[int], dynamic: bool, symbol: str, **more: Any) -> dict[str, Any]:
    """A dim of an input."""
    return {
        "path": path, "dim": dim, "sizes": sizes, "dynamic": dynamic, "symbol": symbol, "name": symbol, "min": -1,
        "max": -1, "linked": [], "problem": "", "verified": "", "reason": "", "places": 1, "paths": [path],
        **more,
    }  # fmt: skip


def field(name: str, title: str, choices: list[str], kind: str = "choice") -> dict[str, Any]:
    """A setting that can be chosen."""
    return {"name": name, "title": title, "help": f"What {title} does", "kind": kind, "choices": choices}


def target(name: str, **more: Any) -> dict[str, Any]:
    """A target."""
    return {"name": name, "chosen": False, "unavailable": "", "problem": "", "options": [], **more}


DIFF = """--- a/model.py
+++ b/model.py
@@ -87,3 +87,2 @@
-        if x.sum() > 0:
-            return x
-        return -x
+        return torch.where(x.sum() > 0, x, -x)"""
