"""Runs the quickstart notebook from top to bottom, prints its comparison table, and says where the executed notebook
and its HTML lie.

Used by ``make demo``; everything it writes goes to ``demo-output/``.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbconvert import HTMLExporter

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / "notebooks" / "01_quickstart.ipynb"
OUTPUT = ROOT / "demo-output"


def main() -> int:
    """Execute, export, report; returns the process's exit status."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    started = time.perf_counter()
    print(f"Running {NOTEBOOK.relative_to(ROOT)} ...", flush=True)
    # charts for the HTML carry plotly.js with them: the page works offline
    notebook.cells.insert(0, nbformat.v4.new_code_cell(_RENDERER))
    try:
        NotebookClient(
            notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}}
        ).execute()
    except CellExecutionError as error:
        print(error, file=sys.stderr)
        return 1
    seconds = time.perf_counter() - started
    del notebook.cells[0]
    OUTPUT.mkdir(exist_ok=True)
    nbformat.write(notebook, OUTPUT / NOTEBOOK.name)
    page, _ = HTMLExporter(embed_images=True).from_notebook_node(notebook)
    html = OUTPUT / NOTEBOOK.with_suffix(".html").name
    html.write_text(page)
    print(_comparison(notebook))
    print(f"\nDone in {seconds:.0f} s. Open {html} in a browser, or run `make lab` to work with the notebook.")
    return 0


_RENDERER = """
import plotly.io
plotly.io.renderers.default = "plotly_mimetype+notebook"
"""


def _comparison(notebook: nbformat.NotebookNode) -> str:
    """The text of the cell that shows the comparison."""
    for cell in notebook.cells:
        if cell.cell_type == "code" and cell.source.rstrip().endswith("\ncomparison"):
            for output in cell.outputs:
                if "text/plain" in output.get("data", {}):
                    return str(output["data"]["text/plain"])
    raise LookupError(f"{NOTEBOOK.name} has no cell that ends with `comparison`")


if __name__ == "__main__":
    raise SystemExit(main())
