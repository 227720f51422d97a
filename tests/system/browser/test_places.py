"""Where notebooks are read without their kernel: files that were really made there, looked at in Chromium.

What each place shows is a table in the docs, which these tests hold to what they see.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.system.browser.lab import READY, ROOT, watch

pytestmark = pytest.mark.timeout(600)

GUIDE = ROOT / "docs" / "guides" / "pages-and-books.md"
SETUP = """
import torch
import prepbench as pb
from prepbench.measure.comparison import CandidateResult, Comparison

class Wide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.ways = torch.nn.ModuleList(torch.nn.Linear(4, 8) for _ in range(3))
        self.head = torch.nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.ways[0](x) + self.ways[1](x) + self.ways[2](x))

net = Wide().eval()
samples = [torch.ones(2, 4), torch.ones(3, 4)]
of = ("saved artifact", "eager", "own process")
rows = [CandidateResult(name, 0.9, 0.0, 3.0, 4.0, None, 10**6, *of) for name in ("float", "int8")]
compiled = pb.compile_model(net, tracing_inputs=samples, deployment_settings=pb.EagerDeployment(),
                            discard_input_model=False)
graph = pb.recursive_trace(net, inputs=samples)
"""
DISPLAYS = {
    "graph": "graph",
    "diagram": "graph.diagram()",
    "two graphs": "pb.diagram(graph, compiled)",
    "comparison": "Comparison(tuple(rows), 'accuracy', '', True, 64, 8, 10, 2)",
    "bench": "pb.Bench(net, calibration_inputs=samples)",
}
SAW = r"""outputs => outputs.map(output => {
  const seen = (e) => e.getBoundingClientRect().width >= 200 && e.getBoundingClientRect().height >= 20;
  const smallest = (image) => {
    const text = image.src.startsWith('data:') ? atob(image.src.split(',')[1]) : '';
    const sizes = [...text.matchAll(/font-size="([\d.]+)"/g)].map(found => Number(found[1]) * 4 / 3);
    return Math.min(...sizes, 99) * image.getBoundingClientRect().width / image.naturalWidth;
  };
  const small = [...output.querySelectorAll('td, th, p, pre, small')].filter(e => e.innerText.trim())
    .filter(e => parseFloat(getComputedStyle(e).fontSize) < 9);
  const text = output.innerText;
  if (/Error displaying|<\/?[a-z]+\b|\{[a-z-]+:/.test(text)) return 'markup';
  if (small.length) return 'small text';
  if ([...output.querySelectorAll('.pbd')].some(seen)) return 'live';
  const images = [...output.querySelectorAll('img')].filter(seen);
  if (images.some(image => smallest(image) < 9)) return 'small picture';
  if (images.length) return 'picture';
  return [...output.querySelectorAll('table')].some(seen) ? 'table' : text.trim() ? 'text' : 'nothing';
})"""
OUTPUTS = ".jp-OutputArea-output.jp-OutputArea-executeResult, .output_execute_result, .cell_output, .github > *"


def run(folder: Path, *command: str, **environment: str) -> None:
    """Run a tool of this environment."""
    variables = {**os.environ, **environment}
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


def write(folder: Path) -> Path:
    """The notebook that is read everywhere; nothing was run."""
    cells = [nbformat.v4.new_markdown_cell("# Results"), *map(nbformat.v4.new_code_cell, (SETUP, *DISPLAYS.values()))]
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    path = folder / "results.ipynb"
    nbformat.write(notebook, path)
    return path


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The notebook as a program has run it, by the value of ``PREPBENCH_STATIC``."""
    made: dict[str, Path] = {}

    def find(static: str) -> Path:
        if static not in made:
            path = write(tmp_path_factory.mktemp("executed"))
            run(
                path.parent,
                "nbconvert",
                "--to",
                "notebook",
                "--execute",
                "--inplace",
                path.name,
                PREPBENCH_STATIC=static,
            )
            made[static] = path
        return made[static]

    return find


def converted(notebook: Path, *options: str) -> Path:
    run(notebook.parent, "nbconvert", *options, "--output", "page", notebook.name)
    (found,) = notebook.parent.glob("page*.html")
    return found.rename(notebook.parent / f"{len(list(notebook.parent.iterdir()))}.html")


def book(notebook: Path, folder: Path) -> Path:
    """The page of a book; a warning is an error."""
    (folder / "results.ipynb").write_text(notebook.read_text())
    (folder / "conf.py").write_text("extensions = ['myst_nb']\nnb_execution_mode = 'off'\n")
    (folder / "index.md").write_text("# Book\n\n```{toctree}\nresults\n```\n")
    run(folder, "sphinx", "-q", "-W", "-b", "html", ".", "html")
    return folder / "html" / "results.html"


def stripped(notebook: Path, folder: Path) -> Path:
    """The outputs as viewers show them that take away scripts, styles and what is foreign to HTML."""
    shown = []
    for cell in nbformat.read(notebook, 4).cells[2:]:
        data = cell.outputs[-1]["data"]
        picture = base64.b64encode(data.get("image/svg+xml", "").encode()).decode()
        text = data.get("text/html", f'<img src="data:image/svg+xml;base64,{picture}"/>')
        text = re.sub(r"<(style|script|foreignObject)\b.*?</\1>", "", text, flags=re.DOTALL)
        text = re.sub(r' (style|class|id|on[a-z]+)="[^"]*"', "", text)
        shown.append(f"<div>{text}</div>")
    path = folder / "github.html"
    path.write_text(f'<meta charset="utf-8"><div class="github">{"".join(shown)}</div>')
    return path


PLACES: dict[str, Callable[[Callable[[str], Path], Path], Path]] = {
    "`nbconvert --to html`": lambda executed, _: converted(executed(""), "--to", "html"),
    "`--template classic`": lambda executed, _: converted(executed(""), "--to", "html", "--template", "classic"),
    "`--no-input`": lambda executed, _: converted(executed(""), "--to", "html", "--no-input"),
    "`--to slides`": lambda executed, _: converted(executed(""), "--to", "slides"),
    "`--sanitize-html`": lambda executed, _: converted(executed(""), "--to", "html", "--sanitize-html"),
    "`--template classic --sanitize-html`": lambda executed, _: converted(
        executed(""), "--to", "html", "--template", "classic", "--sanitize-html"
    ),
    "Sphinx with myst-nb": lambda executed, folder: book(executed("1"), folder),
    "without scripts and styles": lambda executed, folder: stripped(executed(""), folder),
}


def told() -> dict[str, dict[str, str]]:
    """The guide's table: what each place shows of each display."""
    lines = [line.strip("| ").split(" | ") for line in GUIDE.read_text().splitlines() if line.startswith("| ")]
    (head,) = (line for line in lines if line[0] == "place")
    rows = (line for line in lines if line[0] in PLACES or line[0].startswith("JupyterLab"))
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}


def seen(page: Page) -> dict[str, str]:
    page.wait_for_function("() => [...document.images].every(image => image.complete)", timeout=20_000)
    return dict(zip(DISPLAYS, page.locator(OUTPUTS).evaluate_all(SAW), strict=True))


@pytest.mark.parametrize("place", PLACES)
def test_a_file_shows_what_the_guide_says(
    place: str, executed: Callable[[str], Path], browser: Browser, tmp_path: Path
) -> None:
    context = browser.new_context(offline=True, viewport={"width": 1200, "height": 900})
    page = context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"file://{PLACES[place](executed, tmp_path)}")
    assert seen(page) == told()[place]
    assert not [url for url in asked if "widgets" in url or "prepbench" in url.lower()], asked
    context.close()


def test_a_notebook_saved_in_jupyterlab_shows_the_same_without_its_kernel(
    page: Page, lab: Any, browser: Browser
) -> None:
    problems, outside = watch(page, lab.url)
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    path = write(lab.folder)
    page.goto(f"{lab.url}/lab/tree/{path.name}?reset")
    page.wait_for_function(READY, timeout=90_000)
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-all-cells')")
    expect(page.locator(".pbl-bench-output .jupyter-widgets").first).to_be_visible(timeout=120_000)
    expect(page.locator(".pbd svg g.node").last).to_be_visible(timeout=60_000)
    expect(page.get_by_text("No kernel")).to_have_count(0)
    page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
    page.wait_for_timeout(2000)
    saved = json.loads(path.read_text())
    for cell in saved["cells"][2:]:
        assert "application/vnd.jupyter.widget-view+json" not in cell["outputs"][-1]["data"]
    assert "widgets" not in saved["metadata"]
    page.evaluate("() => window.jupyterapp.serviceManager.sessions.shutdownAll()")
    page.reload()
    page.wait_for_function(READY, timeout=90_000)
    notes = page.get_by_text("No kernel has this diagram: it is shown as it was saved.")
    expect(notes).to_have_count(2, timeout=30_000)
    expect(page.get_by_text("Its controls need a kernel")).to_be_visible()
    expect(page.locator(".pbl-bench-output .pbd svg g.node").first).to_be_visible(timeout=60_000)
    table = told()["JupyterLab without the kernel"]
    shown = dict(zip(DISPLAYS, page.locator(".jp-OutputArea-executeResult").evaluate_all(SAW), strict=True))
    assert {**shown, "comparison": table["comparison"]} == table  # a chart of plotly, which has a test of its own
    expect(page.get_by_text("Error displaying widget")).to_have_count(0)
    assert not problems, problems
    assert not outside, outside
    elsewhere = browser.new_context(offline=True, viewport={"width": 1200, "height": 900})
    copy = elsewhere.new_page()
    copy.goto(f"file://{converted(path, '--to', 'html')}")
    assert seen(copy) == told()["`nbconvert --to html`"]
    elsewhere.close()
    page.close()
