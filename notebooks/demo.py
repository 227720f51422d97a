"""Runs the quickstart notebook from top to bottom, prints its comparison table, and says where the executed notebook
and its HTML lie.

Used by ``make demo``; everything it writes goes to ``demo-output/``.
"""

from __future__ import annotations

import copy
import json
import sys
import time
from pathlib import Path

import nbformat
import plotly.io
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbconvert import HTMLExporter

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / "notebooks" / "01_quickstart.ipynb"
OUTPUT = ROOT / "demo-output"
PLOTLY = "application/vnd.plotly.v1+json"


def main() -> int:
    """Execute, export, report; returns the process's exit status."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    started = time.perf_counter()
    print(f"Running {NOTEBOOK.relative_to(ROOT)} ...", flush=True)
    try:
        NotebookClient(
            notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}}
        ).execute()
    except CellExecutionError as error:
        print(error, file=sys.stderr)
        return 1
    seconds = time.perf_counter() - started
    OUTPUT.mkdir(exist_ok=True)
    nbformat.write(notebook, OUTPUT / NOTEBOOK.name)
    page, _ = HTMLExporter(embed_images=True).from_notebook_node(_with_charts(notebook))
    html = OUTPUT / NOTEBOOK.with_suffix(".html").name
    html.write_text(page)
    print(_comparison(notebook))
    print(f"\nDone in {seconds:.0f} s. Open {html} in a browser, or run `make lab` to work with the notebook.")
    return 0


def _with_charts(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """A copy in which plotly charts are HTML, with plotly.js in the first of them: the page works offline."""
    copied = copy.deepcopy(notebook)
    script: bool | str = "inline"
    for cell in copied.cells:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if PLOTLY in data:
                figure = plotly.io.from_json(json.dumps(data[PLOTLY]), skip_invalid=True)
                chart = plotly.io.to_html(figure, include_plotlyjs=script, full_html=False)
                data["text/html"] = chart + data.get("text/html", "")
                script = False
    return copied


def _comparison(notebook: nbformat.NotebookNode) -> str:
    """The text of the cell that shows the comparison."""
    for cell in notebook.cells:
        if cell.cell_type == "code" and cell.source.rstrip().endswith("\ncomparison"):
            for output in cell.outputs:
                # the bar of a call that took long is an output, too, and empty once it is done
                if output.output_type == "execute_result":
                    return str(output["data"]["text/plain"])
    raise LookupError(f"{NOTEBOOK.name} has no cell that ends with `comparison`")


if __name__ == "__main__":
    raise SystemExit(main())
