"""``python -m tests.board [NAMES]`` measures entries and keeps them in docs/board.json; ``--write`` writes the page."""

from __future__ import annotations

import argparse
import sys

from tests.board.measure import measured
from tests.board.networks import NETWORKS
from tests.board.page import keep, write_page


def main() -> None:
    """Measure the entries that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.board", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NETWORKS)}; all by default")
    parser.add_argument("--write", action="store_true", help="only write the page from what was kept")
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in NETWORKS]:
        parser.error(f"no network {unknown[0]!r} on the board: {', '.join(NETWORKS)}")
    for name in () if given.write else given.names or NETWORKS:
        print(name, file=sys.stderr, flush=True)
        keep(name, measured(name))
    write_page()


if __name__ == "__main__":
    main()
