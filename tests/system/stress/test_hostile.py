"""Damaged and hostile folders and documents: nothing runs, nothing dies, nothing hangs, and each error is typed."""

from __future__ import annotations

import collections
import itertools
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.stress import bench_files, damage, saved
from tests.system.stress.reader import Reader

Row = dict[str, Any]


def _folders(kinds: tuple[str, ...], place: Path) -> dict[str, Path]:
    folders = {kind: place / "intact" / kind for kind in kinds}
    for kind, folder in folders.items():
        saved.save(kind, folder)
    return folders


def _attacked_folders(folders: dict[str, Path], place: Path, generator: random.Random) -> Iterator[Row]:
    for number, kind in enumerate(itertools.cycle(folders)):
        folder = place / f"{number}-{kind}"
        shutil.copytree(folders[kind], folder)
        done, sealed = damage.attack(folder, place / "marker", generator)
        yield {"kind": kind, "folder": str(folder), "done": done, "sealed": sealed}


def _attacked_documents(texts: dict[str, Path], place: Path, generator: random.Random) -> Iterator[Row]:
    for number, kind in enumerate(itertools.cycle(texts)):
        file, text = place / f"{number}-{kind}", texts[kind].read_text()
        done = generator.choice(("json", "json", "json", "bytes", "nested"))
        if done == "json":
            file.write_bytes(damage.changed_json(text, place / "marker", generator).encode())
        elif done == "bytes":
            file.write_bytes(damage.changed_bytes(text.encode(), generator))
        else:
            file.write_text(damage.nested(generator))
        yield {"kind": kind, "file": str(file), "done": done, "sealed": True}


def _is_right(row: Row, found: Row) -> bool:
    """A typed error, or the same result; what was resealed as another model or document may be one."""
    return found["outcome"] in ("typed", "equal") or (found["outcome"] == "other" and row["sealed"])


def _told(row: Row) -> str:
    place = row.get("folder", row.get("file"))
    return f"{row['kind']}, {row['done']}, {place}: {row['outcome']}: {row['text'][-800:]}"


def _check(rows: Iterator[Row], intact: dict[str, Path], count: int, limit: float, place: Path) -> None:
    """Have a process read them all; prints what came of it."""
    reader = Reader(limit, {kind: str(path) for kind, path in intact.items()})
    outcomes: collections.Counter[tuple[str, str]] = collections.Counter()
    wrong, slowest = [], 0.0
    try:
        for row in itertools.islice(rows, count):
            found = reader.ask(row)
            outcomes[row["done"], found["outcome"]] += 1
            slowest = max(slowest, found.get("seconds", 0.0))
            is_run = (place / "marker").exists()
            if is_run or not _is_right(row, found):
                wrong.append({**row, **found, "outcome": "its code ran" if is_run else found["outcome"]})
                (place / "marker").unlink(missing_ok=True)
            elif "folder" in row:
                shutil.rmtree(row["folder"])
    finally:
        reader.close()
    text = ", ".join(f"{done} {outcome} {number}" for (done, outcome), number in sorted(outcomes.items()))
    sys.__stdout__.write(f"\n{count} read, {len(wrong)} wrong, slowest {slowest:.1f} s: {text}\n")
    assert not wrong, "\n\n".join(map(_told, wrong[:5]))


def _check_folders(kinds: tuple[str, ...], seed: int, count: int, limit: float, place: Path) -> None:
    sys.__stdout__.write(f"\nseed {seed}, {', '.join(kinds)}")
    folders = _folders(kinds, place)
    _check(_attacked_folders(folders, place, random.Random(seed)), folders, count, limit, place)


def _check_documents(seed: int, count: int, limit: float, place: Path) -> None:
    sys.__stdout__.write(f"\nseed {seed}, documents")
    files = {}
    for number, text in enumerate(saved.documents()):
        files[f"document {number}"] = place / f"intact {number}.json"
        files[f"document {number}"].write_text(text)
    _check(_attacked_documents(files, place, random.Random(seed)), files, count, limit, place)


def _check_benches(seed: int, count: int, limit: float, place: Path) -> None:
    sys.__stdout__.write(f"\nseed {seed}, benches and journals")
    (place / "intact").mkdir()
    files = bench_files.save(place / "intact")
    _check(bench_files.attacked(files, place, random.Random(seed)), files, count, limit, place)


# a machine that runs many tests at once takes longer than the 5 s that the long form asks for


def test_hostile_folders_are_refused(tmp_path: Path) -> None:
    _check_folders(saved.FAST, seed=0, count=20, limit=30, place=tmp_path)


def test_hostile_documents_are_refused(tmp_path: Path) -> None:
    _check_documents(seed=0, count=10, limit=30, place=tmp_path)


def test_hostile_benches_are_refused(tmp_path: Path) -> None:
    _check_benches(seed=0, count=10, limit=30, place=tmp_path)


@pytest.mark.stress
@pytest.mark.timeout(3600)
def test_many_hostile_benches(tmp_path: Path) -> None:
    _check_benches(seed=1, count=500, limit=5, place=tmp_path)


@pytest.mark.stress
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(1, 4))
def test_many_hostile_folders(seed: int, tmp_path: Path) -> None:
    _check_folders(saved.ALL, seed, count=500, limit=5, place=tmp_path)


@pytest.mark.stress
@pytest.mark.timeout(3600)
def test_many_hostile_documents(tmp_path: Path) -> None:
    _check_documents(seed=1, count=500, limit=5, place=tmp_path)
