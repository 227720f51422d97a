"""How random programs end on each target: the results that ``python -m tests.fuzz --results`` has kept, added up."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.fuzz.__main__ import REFUSED, read, summed

ROWS = Path(__file__).parents[1] / "fuzz" / "results.jsonl"
PROGRAMS = 2000
MOST_REFUSED = 0.15  # of the programs on a target


def main() -> int:
    """Print the table and the commonest reasons; returns 1 where an answer is wrong, or a limit is missed."""
    rows = read(ROWS)
    revisions = Counter(row["revision"].removesuffix("-dirty") for row in rows)
    print(f"{len({row['seed'] for row in rows})} programs, of {len(revisions)} revisions")
    is_wrong = summed(rows, reasons=12)
    targets = {row["target"] for row in rows}
    shares = {
        target: sum(row["kind"] == REFUSED for row in rows if row["target"] == target)
        / sum(row["target"] == target for row in rows)
        for target in sorted(targets)
    }
    most = max(shares, key=shares.__getitem__)
    print(f"no wrong answer: {'no' if is_wrong else 'yes'}")
    print(f"most refused: {shares[most]:.1%} on {most}    (limit {MOST_REFUSED:.0%})")
    seeds = min(len({row["seed"] for row in rows if row["target"] == target}) for target in targets)
    print(f"programs on each target: {seeds}    (at least {PROGRAMS})")
    return int(bool(is_wrong) or shares[most] > MOST_REFUSED or seeds < PROGRAMS)


if __name__ == "__main__":
    raise SystemExit(main())
