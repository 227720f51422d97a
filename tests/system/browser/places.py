"""The places where notebooks are read, and the table of the guide that says what each shows of each display.

``python -m tests.system.browser.places --write`` makes the files, looks at them and writes the table. A place whose
tools are not installed keeps its row and is named. The row of JupyterLab is written by hand: its test opens a notebook
there and holds the row to what it sees.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import nbformat
from playwright.sync_api import Browser, Page, Playwright, sync_playwright

from tests.system.browser import pdf, voila, vscode
from tests.system.browser.chromium import CHROMIUM_FLAGS
from tests.system.browser.lab import ROOT

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
    "compiled": "compiled.report",
    "comparison": "Comparison(tuple(rows), 'accuracy', '', True, 64, 8, 10, 2)",
    "inspector": "pb.inspect_layer(net, samples, 'head')",
    "bench": "pb.Bench(net, calibration_inputs=samples)",
}
SAW = r"""outputs => outputs.map(output => {
  const seen = (e) => e.getBoundingClientRect().width >= 200 && e.getBoundingClientRect().height >= 20;
  const smallest = (image) => {
    const drawn = image.tagName === 'IMG' ? '' : image.outerHTML;
    const text = image.src?.startsWith('data:') ? atob(image.src.split(',')[1]) : drawn;
    const sizes = [...text.matchAll(/font-size="([\d.]+)"/g)].map(found => Number(found[1]) * 4 / 3);
    const scale = drawn ? image.getScreenCTM().a * 3 / 4 : image.getBoundingClientRect().width / image.naturalWidth;
    return Math.min(...sizes, 99) * scale;
  };
  const small = [...output.querySelectorAll('td, th, p, pre, small')].filter(e => e.innerText.trim())
    .filter(e => parseFloat(getComputedStyle(e).fontSize) < 9);
  const text = output.innerText;
  if (/Error displaying|<\/?[a-z]+\b|\{[a-z-]+:/.test(text)) return 'markup';
  if (small.length) return 'small text';
  const live = [output, ...output.querySelectorAll('*')].filter(e => e.matches('.pbd, .js-plotly-plot'));
  if (live.some(seen)) return 'live';
  const images = [...output.querySelectorAll('img, svg')].filter(seen);
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


def executed_once(folder: Path) -> Callable[[str], Path]:
    """The notebook as a program has run it, by the value of ``PREPBENCH_STATIC``."""
    made: dict[str, Path] = {}

    def find(static: str) -> Path:
        if static not in made:
            (folder / f"static{static}").mkdir()
            path = write(folder / f"static{static}")
            options = ("--to", "notebook", "--execute", "--inplace", path.name)
            run(path.parent, "nbconvert", *options, PREPBENCH_STATIC=static)
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
    rows = (line for line in lines if len(line) == len(head) and line is not head)
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}


def seen(page: Page) -> dict[str, str]:
    page.wait_for_function("() => [...document.images].every(image => image.complete)", timeout=20_000)
    return dict(zip(DISPLAYS, page.locator(OUTPUTS).evaluate_all(SAW), strict=True))


def seen_in_file(chromium: Browser, path: Path) -> dict[str, str]:
    context = chromium.new_context(offline=True, viewport={"width": 1200, "height": 900})
    page = context.new_page()
    page.goto(f"file://{path}")
    shown = seen(page)
    context.close()
    return shown


def seen_in_voila(chromium: Browser, folder: Path) -> dict[str, str]:
    page = chromium.new_context(viewport={"width": 1200, "height": 900}).new_page()
    with voila.served(write(folder)) as url:
        voila.show(page, url)
        shown = dict(zip(DISPLAYS, page.locator(voila.OUTPUTS).evaluate_all(SAW), strict=True))
        page.context.close()
    return shown


def seen_in_pdf(place: str, executed: Path, folder: Path, playwright: Playwright) -> dict[str, str]:
    notebook = Path(shutil.copy(executed, folder))
    return pdf.seen(pdf.made(place, notebook, playwright), list(DISPLAYS))


def seen_in_vscode(chromium: Browser, executed: Path, folder: Path) -> dict[str, str]:
    notebook = Path(shutil.copy(executed, folder))
    return dict(zip(DISPLAYS, vscode.seen(chromium, notebook, SAW, len(DISPLAYS)), strict=True))


def not_installed() -> dict[str, str]:
    """The places whose tools are not here, and which."""
    lacking = {place: ", ".join(pdf.missing(place)) for place in pdf.TOOLS}
    lacking |= {voila.PLACE: "" if voila.is_installed() else "voila"}
    lacking |= {vscode.PLACE: "" if vscode.is_installed() else "code-server"}
    return {place: tools for place, tools in lacking.items() if tools}


def write_table() -> None:
    """Make all files, look at them, and write their rows into the guide."""
    lacking, before = not_installed(), told()
    rows: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=CHROMIUM_FLAGS)
        executed = executed_once(Path(temporary))
        for number, place in enumerate([*PLACES, *pdf.TOOLS, voila.PLACE, vscode.PLACE]):
            folder = Path(temporary) / str(number)
            folder.mkdir()
            if place in lacking:
                sys.stderr.write(f"{place}: not installed: {lacking[place]}; its row stays as it is\n")
                rows |= {place: before[place]} if place in before else {}
            elif place in PLACES:
                rows[place] = seen_in_file(chromium, PLACES[place](executed, folder))
            elif place in pdf.TOOLS:
                rows[place] = seen_in_pdf(place, executed(""), folder, playwright)
            elif place == vscode.PLACE:
                rows[place] = seen_in_vscode(chromium, executed(""), folder)
            else:
                rows[place] = seen_in_voila(chromium, folder)
        chromium.close()
    by_hand = {place: row for place, row in before.items() if place not in rows}
    rows |= {place: {name: row.get(name, "live") for name in DISPLAYS} for place, row in by_hand.items()}
    lines = [["place", *DISPLAYS], *([place, *row.values()] for place, row in rows.items())]
    head, *body = (f"| {' | '.join(line)} |" for line in lines)
    table = "\n".join([head, "|---" * len(lines[0]) + "|", *body, ""])
    guide = re.sub(r"^\| place \|.*?\n(?=\n)", lambda _: table, GUIDE.read_text(), flags=re.DOTALL | re.MULTILINE)
    GUIDE.write_text(guide)


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("Usage: python -m tests.system.browser.places --write")
    write_table()
