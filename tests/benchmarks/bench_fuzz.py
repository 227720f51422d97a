"""How random programs end on each target: the results that ``python -m tests.fuzz --results`` has kept, added up."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.fuzz.__main__ import NOTHING, REFUSED, read, summed

ROWS = Path(__file__).parents[1] / "fuzz" / "results.jsonl"
PROGRAMS = 2000
MOST_REFUSED = 0.15  # of the programs on a target


def main() -> int:
    """Print the table and the commonest reasons; returns 1 where an answer is wrong, or a limit is missed."""
    rows = read(ROWS)
    revisions = {row["revision"] for row in rows}
    judged = [row for row in rows if row["kind"] != NOTHING]
    print(
        f"{len({row['seed'] for row in rows})} programs, of {len(revisions)} revisions; rounding decides the results of"
    )
    print(f"{len({row['seed'] for row in rows} - {row['seed'] for row in judged})}, which judge nothing\n")
    is_wrong = summed(rows, reasons=12)
    counts = Counter(row["target"] for row in judged)
    refused = Counter(row["target"] for row in judged if row["kind"] == REFUSED)
    most = max(counts, key=lambda target: refused[target] / counts[target])
    print(f"no wrong answer: {'no' if is_wrong else 'yes'}")
    print(f"most refused: {refused[most] / counts[most]:.1%} on {most}    (limit {MOST_REFUSED:.0%})")
    print(f"programs judged on each target: {min(counts.values())}    (at least {PROGRAMS})")
    return int(bool(is_wrong) or refused[most] > MOST_REFUSED * counts[most] or min(counts.values()) < PROGRAMS)


if __name__ == "__main__":
    raise SystemExit(main())
