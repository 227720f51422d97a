"""A table of cells, one process for each row: what a row prints before its process ends badly is kept."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

LIMIT = 900


def print_cells(columns: Sequence[str], cell: Callable[[str], str]) -> None:
    """In the process of a row: compute each cell and print it as it comes; an error is a cell, too."""
    for column in columns:
        try:
            text = cell(column)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        print("\n" + json.dumps([column, text]), flush=True)


def print_table(
    module: str, rows: Mapping[str, str], columns: Sequence[str], further: Sequence[str] = (), width: int = 24
) -> list[str]:
    """Run ``python -m MODULE --one --families ROW --targets COLUMNS`` for each row, print it, and then each error.

    Args:
        module: whose ``main`` calls :func:`print_cells` when it gets ``--one``.
        rows: names, and what is printed beside them.
        columns: names.
        further: arguments for the processes.
        width: of a column, in characters.

    Returns:
        The cells that do not begin with ``equal``, in full, each with its place.
    """
    kinds = max(map(len, rows.values()), default=0) + 2
    names = max(map(len, rows), default=0) + 2
    print(" " * (names + kinds) + "".join(f"{column:<{width}}" for column in columns))
    errors = []
    for name, kind in rows.items():
        cells = _row(module, name, columns, further)
        shown = "".join(f"{(cells[column].splitlines() or [''])[0][: width - 2]:<{width}}" for column in columns)
        print(f"{name:<{names}}{kind:<{kinds}}{shown}", flush=True)
        errors += [f"{name}, {column}: {text}" for column, text in cells.items() if not text.startswith("equal")]
    print(*errors, sep="\n")
    return errors


def _row(module: str, name: str, columns: Sequence[str], further: Sequence[str]) -> dict[str, str]:
    command = [sys.executable, "-W", "ignore", "-m", module, "--one", "--families", name, "--targets", *columns]
    try:
        done = subprocess.run([*command, *further], capture_output=True, text=True, timeout=LIMIT)
        end, text = f"ended with {done.returncode}: {done.stderr[-300:]}", done.stdout
    except subprocess.TimeoutExpired as error:
        end, text = f"over {LIMIT} s", (error.stdout or b"").decode()
    cells = dict(json.loads(line) for line in text.splitlines() if line.startswith('["'))
    return {column: cells.get(column, end) for column in columns}
