"""What the board keeps in docs/board.json, and the page docs/board.md that shows it."""

from __future__ import annotations

import json
import re
import textwrap
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from prepbench.command_line.info import machine
from prepbench.packages import installed
from tests.board.candidates import ORT, RUNTIMES, Runtime
from tests.board.entry import Entry
from tests.board.networks import NETWORKS

FURTHER = ("prepbench 4 bits", "prepbench searched")  # of ONNX Runtime, in its overview
DOCS = Path(__file__).parents[2] / "docs"
FILE, PAGE = DOCS / "board.json", DOCS / "board.md"
PLACE = re.compile(r"(<!-- board -->\n).*?(<!-- end of board -->)", re.DOTALL)
PACKAGES = ("torch", "onnxruntime", "openvino", "nncf", "torchao")


def kept() -> dict[str, Any]:
    """The entries that were measured, by name."""
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    return found


def keep(name: str, found: Mapping[str, Any]) -> None:
    """Keep what was measured of an entry, with the day, the machine and the versions."""
    facts = machine()
    entry = NETWORKS[name]
    everything = kept() | {
        name: {
            "date": time.strftime("%Y-%m-%d"),
            "machine": f"{facts['processor']}, {facts['cores']} cores",
            "versions": {package: installed(package) for package in PACKAGES if installed(package)},
            "metric": entry.metric,
            "found": dict(found),
        }
    }
    ordered = {one: everything[one] for one in NETWORKS if one in everything}
    FILE.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


def write_page() -> None:
    """Put the table into the page."""
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(PLACE.sub(lambda place: f"{place[1]}{table(kept())}{place[2]}", text), encoding="utf-8")


def table(everything: Mapping[str, Any]) -> str:
    """The Markdown of all entries: an overview, then for each what it is, and a row for each candidate."""
    measured = {name: everything[name] for name in NETWORKS if name in everything}
    overviews = [_overview(runtime, measured) for runtime in RUNTIMES]
    return "".join(overviews) + "".join(_section(name, one) for name, one in measured.items())


def _overview(runtime: Runtime, measured: Mapping[str, Any]) -> str:
    """Return the table of a runtime; empty where nothing was measured on it."""
    further = [name for name in FURTHER if runtime is ORT]
    shown = {name: one for name, one in measured.items() if runtime is ORT or runtime.ours in one["found"]}
    if not shown:
        return ""
    behind = losses(shown, runtime)
    tools = "best of ORT's tools" if runtime is ORT else " or ".join(runtime.peers)
    ours = ["prepbench int8", *(name.removeprefix("prepbench ") for name in further)]
    lines = [
        f"\n## {runtime.name}\n",
        f"| {' | '.join(['network', 'metric', 'float', tools, *ours, 'speed', 'remarks'])} |",
        f"|{'---|' * (7 + len(further))}",
    ]
    for name, one in shown.items():
        found, entry = one["found"], NETWORKS[name]
        best = _best_peer(found, runtime, 1 if entry.higher_is_better else -1)
        cells = [_metric(found, each) for each in (runtime.float, best, runtime.ours, *further)]
        metric = entry.metric + ("" if entry.higher_is_better else ", less is better")
        ends = [_speed(found, runtime), _remark(found, runtime, is_behind=name in behind)]
        lines.append(f"| {' | '.join([name, metric, *cells, *ends])} |")
    return "\n".join(lines) + "\n"


def _remark(found: Mapping[str, Any], runtime: Runtime, *, is_behind: bool) -> str:
    if "missing" in found:
        return "not measured"
    if "failed" in found.get(runtime.ours, {}):
        return "prepbench failed"
    failed = [peer for peer in runtime.peers if "failed" in found.get(peer, {})]
    return "behind" if is_behind else f"{', '.join(failed)} failed" if failed else ""


def _metric(found: Mapping[str, Any], candidate: str) -> str:
    cell = found.get(candidate, {})
    return f"{cell['metric']:.4f}" if "metric" in cell else ""


def _speed(found: Mapping[str, Any], runtime: Runtime) -> str:
    """Return how fast int8 is beside the fastest of the runtime's own tools; empty where no times were measured."""
    ours = found.get(runtime.ours, {}).get("ms")
    peers = [ms for peer in runtime.peers if (ms := found.get(peer, {}).get("ms")) is not None]
    return f"{min(peers) / ours:.2f}x" if ours and peers else ""


def _best_peer(found: Mapping[str, Any], runtime: Runtime, sign: int) -> str:
    """Return the name of the runtime's own tool that does best; empty where none works."""
    working = [peer for peer in runtime.peers if "metric" in found.get(peer, {})]
    return max(working, key=lambda peer: found[peer]["metric"] * sign, default="")


def _section(name: str, one: Mapping[str, Any]) -> str:
    entry = NETWORKS[name]
    about = textwrap.fill(f"{_about(entry)} Measured on {one['date']}, {one['machine']}.", 120, break_long_words=False)
    head = f"\n## {name}\n\n{about}\n\n"
    if "missing" in one["found"]:
        return f"{head}Not measured: {one['found']['missing']}\n"
    arrow = "more is better" if entry.higher_is_better else "less is better"
    rows = "\n".join(" | ".join(["", *cells, ""]).strip() for cells in _rows(one["found"]))
    columns = (f"{entry.metric} ({arrow})", "minus float", "ms", "MB", "minutes to make", "remarks")
    return f"{head}| candidate | {' | '.join(columns)} |\n|---|---|---|---|---|---|---|\n{rows}\n"


def _about(entry: Entry) -> str:
    texts = (f"{entry.kind}; {entry.weights} ({entry.licence}); {entry.data}.", entry.remark)
    return " ".join(text for text in texts if text)


def _rows(found: Mapping[str, Any]) -> Iterator[list[str]]:
    for name, cell in found.items():
        if "failed" in cell:
            yield [name, "failed", "", "", "", "", _plain(cell["failed"])]
            continue
        low, high = cell.get("difference", (None, None))
        yield [
            name,
            f"{cell['metric']:.4f}",
            "" if low is None else f"{low:+.4f} to {high:+.4f}",
            "busy" if cell["ms"] is None else f"{cell['ms']:.2f}",
            "" if cell["megabytes"] is None else f"{cell['megabytes']:.2f}",
            f"{cell['seconds'] / 60:.1f}",
            _plain(cell["remark"]),
        ]


def _plain(text: str) -> str:
    return re.sub(r"[|<>\n]", " ", text)[:120]


def losses(everything: Mapping[str, Any], runtime: Runtime = ORT) -> list[str]:
    """The entries in which one of the runtime's own tools beats prepbench's int8 outside the interval."""
    result = []
    for name, one in everything.items():
        found, sign = one["found"], 1 if NETWORKS[name].higher_is_better else -1
        ours, peers = found.get(runtime.ours, {}), [peer for peer in runtime.peers if "metric" in found.get(peer, {})]
        if "failed" in ours or any(_is_behind(ours, found[peer], peer, sign) for peer in peers if ours):
            result.append(name)
    return result


def _is_behind(ours: Mapping[str, Any], other: Mapping[str, Any], peer: str, sign: int) -> bool:
    low, high = ours.get("against", {}).get(peer, (None, None))
    if low is not None:
        return (high if sign > 0 else -low) < 0
    low, high = ours.get("difference", (0, 0))  # kept before both were compared over the same draws
    return (other["metric"] - ours["metric"]) * sign > (high - low) / 2
