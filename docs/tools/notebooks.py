"""Notebooks as pages: outputs become live where no kernel is, and each says what it answers and what it takes."""

from __future__ import annotations

import base64
import datetime
import html
import json
import re
from pathlib import Path
from typing import Any

from prepbench.capture.failures.describe import REASONS
from prepbench.document.bench import BENCH_MIME_TYPE
from prepbench.document.model import MIME_TYPE
from prepbench.errors import page_of
from prepbench.views.page import packed

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "notebooks"
PLOTLY = "application/vnd.plotly.v1+json"

NEEDS = {
    "sklearn": "scikit-learn",
    "transformers": "transformers",
    "OpenVinoDeployment": "OpenVINO",
    "ExecuTorchDeployment": "ExecuTorch",
    "InductorDeployment": "a C++ compiler",
    "dask": "Dask",
    "LoraSettings": "PEFT",
}
"""What a notebook needs besides prepbench and JupyterLab, by the words of its code that tell so."""


def needs(notebook: dict[str, Any]) -> str:
    """What must be installed to run a notebook."""
    code = "\n".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code")
    return ", ".join(package for word, package in NEEDS.items() if re.search(rf"\b{word}\b", code)) or "nothing more"


def questions() -> dict[str, str]:
    """The question of each notebook, from the table in the README."""
    return dict(re.findall(r"^\| `([\w.]+\.ipynb)` \| (.*\?) \|$", (ROOT / "README.md").read_text(), re.MULTILINE))


def seconds(notebook: dict[str, Any]) -> float:
    """How long its last run took, by what the kernel noted in its cells."""
    runs = [cell["metadata"]["execution"] for cell in notebook["cells"] if cell["metadata"].get("execution")]
    begin = min(_time(run["iopub.execute_input"]) for run in runs)
    return (max(_time(run["shell.execute_reply"]) for run in runs) - begin).total_seconds()


def _time(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))


def duration(value: float) -> str:
    """Seconds as people say them."""
    return f"{round(value / 5) * 5 or 5} s" if value < 100 else f"{value / 60:.0f} min"


def title(notebook: dict[str, Any]) -> str:
    """The first heading."""
    first = "".join(notebook["cells"][0]["source"])
    return re.match(r"# (.*)", first)[1]  # type: ignore[index]


def stage(folder: Path) -> None:
    """Write all notebooks as pages with live outputs, and the page that lists them."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for name, question in questions().items():
        notebook = json.loads((NOTEBOOKS / name).read_text())
        takes = duration(seconds(notebook))
        facts = f"**{question}** Takes {takes} on two cores. Needs {needs(notebook)}. The file is `notebooks/{name}`."
        rows.append(f"| [{title(notebook)}]({name}) | {question} | {takes} | {needs(notebook)} |")
        note = {"cell_type": "markdown", "metadata": {}, "source": f'<div class="pb-facts">\n\n{facts}\n\n</div>'}
        notebook["cells"] = [*_head(notebook["cells"][0], note), *(_live_cell(cell) for cell in notebook["cells"][1:])]
        for number, cell in enumerate(notebook["cells"]):
            cell["id"] = f"cell-{number}"
            if cell["cell_type"] == "markdown":
                cell["source"] = "".join(cell["source"]).replace("](../docs/", "](../")
        notebook["metadata"].pop("widgets", None)  # their place is taken by what needs no kernel
        (folder / name).write_text(json.dumps(notebook))
    toc = "\n".join(questions())
    (folder / "index.md").write_text(_INDEX.format(rows="\n".join(rows), toc=toc))


_INDEX = """# Tutorials

Each is a notebook, shown here as it was committed and as the tests run it. Diagrams and charts are live: open modules,
search, colour. `make lab` opens the notebooks themselves.

| tutorial | question | takes | needs besides prepbench |
|---|---|---|---|
{rows}

```{{toctree}}
:hidden:

{toc}
```
"""


def _head(first: dict[str, Any], note: dict[str, Any]) -> list[dict[str, Any]]:
    """The title, the facts, and what else the first cell says."""
    heading, _, rest = "".join(first["source"]).partition("\n")
    cells = [{**first, "source": heading}, note]
    return [*cells, {**first, "source": rest}] if rest.strip() else cells


def _live_cell(cell: dict[str, Any]) -> dict[str, Any]:
    if cell["cell_type"] != "code":
        return cell
    outputs = [_live(output) for output in cell["outputs"]]
    return {**cell, "metadata": {}, "outputs": [output for output in outputs if output]}


def _live(output: dict[str, Any]) -> dict[str, Any]:
    """An output with what the site's script draws in the place of types that need an extension."""
    data = output.get("data")
    if data is None:
        return output
    page = "".join(data.get("text/html", ""))
    graph = data.get(MIME_TYPE) or data.get(BENCH_MIME_TYPE, {}).get("graph")
    if graph:
        page = live_html(graph, page)
    page = _KIND.sub(_linked, page)
    if PLOTLY in data:
        page = chart_html(data[PLOTLY]) + page
    if not page:
        kept = {kind: value for kind, value in data.items() if kind in ("text/plain", "image/svg+xml", "image/png")}
        return {**output, "data": kept}
    shown = {"text/html": _without_lone_lines(page), "text/plain": ""}
    return {"output_type": "display_data", "data": shown, "metadata": {}}


_KIND = re.compile(r"<td>([^<]+)<br/><small>")


def _linked(match: re.Match[str]) -> str:
    """The kind of a failure in a table, as a link to its explanation; names that are no kinds stay."""
    kind = html.unescape(match[1])
    known = any(reason.kind == kind for reason in REASONS)
    return f'<td><a href="../{page_of(kind)}">{match[1]}</a><br/><small>' if known else match[0]


_PICTURE = re.compile(r'<div class="pb-picture">.*?</div>', re.DOTALL)


def live_html(graph: dict[str, Any], saved: str) -> str:
    """HTML in which the diagram is live; its picture is there until it has been drawn, and where no script runs.

    Args:
        graph: the document, as an output holds it.
        saved: the HTML of the output, with one picture that the diagram replaces, or several.
    """
    document = f'<script type="text/plain">{packed_document(graph)}</script>'
    pictures = _PICTURE.findall(saved)
    if len(pictures) == 1:
        live = f'<div class="pb-live"><div class="pb-saved">{pictures[0]}</div>{document}</div>'
        return _PICTURE.sub(lambda _: live, saved)
    return f'<div class="pb-live"><div class="pb-saved">{saved}</div>{document}</div>'


def packed_document(graph: dict[str, Any]) -> str:
    """The document as gzipped JSON in base64."""
    return graph["gzip"] if "gzip" in graph else base64.b64encode(packed(json.dumps(graph))).decode()


def chart_html(chart: dict[str, Any]) -> str:
    """A chart that the site's script draws with plotly."""
    text = json.dumps(chart).replace("</", "<\\/")
    about = html.escape(str((chart.get("layout", {}).get("title") or {}).get("text", "a chart")))
    saved = f'<noscript class="pb-saved">{about}: this chart needs JavaScript.</noscript>'
    return f'<div class="pb-chart">{saved}<script type="text/plain">{text}</script></div>'


def _without_lone_lines(page: str) -> str:
    """One line for each line with text: a blank line would end the HTML for Markdown."""
    return "\n".join(line for line in page.splitlines() if line.strip())
