"""Saved benches and journals, and attacks on them; the same seed gives the same damage."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from torch import nn

import prepbench as pb
from prepbench.bench.saved import journal_beside, read_bench
from prepbench.results.journal import Journal
from tests.system.stress import damage
from tests.system.stress.models import Small, samples

BENCH, JOURNAL = "bench", "journal"

_VALUES = ("NULL", "-1", "1e999", "x'ff00'", "CAST(x'ff' AS TEXT)", "zeroblob(70000000)", "char(27)", "'[]'", "'{}'")
_COLUMNS = {"runs": ("id", "result", "content", "name", "pinned", "deleted", "revision"), "results": ("id", "content")}
_STATEMENTS = (
    "ALTER TABLE runs RENAME TO own; CREATE VIEW runs AS SELECT * FROM own",
    "CREATE TRIGGER t AFTER INSERT ON runs BEGIN DELETE FROM runs; END",
    "CREATE TABLE more (a)",
    "CREATE INDEX i ON runs (lower(name))",
    "CREATE TEMP TABLE runs (a)",
    "DROP TABLE results",
    "ALTER TABLE runs ADD COLUMN more GENERATED ALWAYS AS (load_extension('x')) VIRTUAL",
    "CREATE VIEW v AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c",
    "PRAGMA writable_schema=ON; UPDATE sqlite_master SET sql='CREATE nonsense' WHERE name='runs'",
    "PRAGMA writable_schema=ON; UPDATE sqlite_master SET rootpage=rootpage+1 WHERE name='runs'",
    "PRAGMA user_version=99",
    "PRAGMA application_id=1",
    "PRAGMA encoding='UTF-16'",
    "INSERT INTO runs SELECT id || id, result, content, name, pinned, deleted, 9223372036854775807 FROM runs",
    "DELETE FROM results",
)


def model() -> nn.Module:
    return Small(1).eval()


def save(place: Path) -> dict[str, Path]:
    """A bench with a run, and its journal, each in a folder of its own."""
    bench = pb.Bench(model(), calibration_inputs=samples())
    bench.set_target("PyTorch eager")
    bench.compile()
    bench.set_precision("first", "int8 weights")
    written = bench.save(place / "both.bench.json")
    found = {BENCH: place / "alone" / "x.bench.json", JOURNAL: place / "journal" / "x.bench.sqlite"}
    for file in found.values():
        file.parent.mkdir()
    shutil.copy(written, found[BENCH])
    shutil.copy(journal_beside(written).path, found[JOURNAL])
    return found


def read(kind: str, file: str) -> Any:
    """What a saved bench or a journal holds, as a text that is the same for equal ones."""
    if kind == JOURNAL:
        journal = Journal(file)
        return repr((journal.runs(), journal.results()))
    document = read_bench(file)
    back = pb.Bench.load(file, model=model(), calibration_inputs=samples())
    return repr((back.state, back.runs, document.position))


def attacked(files: dict[str, Path], place: Path, generator: random.Random) -> Iterator[dict[str, Any]]:
    """Damaged copies without an end."""
    number = 0
    while True:
        for kind, intact in files.items():
            folder = place / f"{number}-{kind}"
            folder.mkdir()
            file = folder / intact.name
            shutil.copy(intact, file)
            done = _attack_journal(file, generator) if kind == JOURNAL else _attack_bench(file, place, generator)
            number += 1
            yield {"kind": kind, "file": str(file), "done": done, "sealed": True}


def _attack_bench(file: Path, place: Path, generator: random.Random) -> str:
    done = generator.choice(("json", "json", "json", "json", "bytes", "nested", "special"))
    if done == "json":
        file.write_bytes(damage.changed_json(file.read_text(), place / "marker", generator).encode())
    elif done == "bytes":
        file.write_bytes(damage.changed_bytes(file.read_bytes(), generator))
    elif done == "nested":
        file.write_text(damage.nested(generator))
    else:
        _special(file, generator)
    return done


def _attack_journal(file: Path, generator: random.Random) -> str:
    done = generator.choice(("bytes", "bytes", "schema", "values", "json", "special", "huge", "log"))
    if done == "bytes":
        file.write_bytes(damage.changed_bytes(file.read_bytes(), generator))
    elif done == "schema":
        _execute(file, generator.choice(_STATEMENTS))
    elif done == "values":
        table = generator.choice(sorted(_COLUMNS))
        _execute(file, f"UPDATE {table} SET {generator.choice(_COLUMNS[table])}={generator.choice(_VALUES)}")
    elif done == "json":
        with closing(sqlite3.connect(file)) as connection, connection:
            table = generator.choice(sorted(_COLUMNS))
            (text,) = connection.execute(f"SELECT content FROM {table}").fetchone()
            changed = damage.changed_json(text, file.parent.parent / "marker", generator)
            with suppress(UnicodeEncodeError):
                connection.execute(f"UPDATE {table} SET content=?", (changed,))
    elif done == "huge":
        os.truncate(file, generator.choice((2**31, 2**34, 5000)))
    elif done == "log":
        for ending in ("-wal", "-journal"):
            file.with_name(file.name + ending).write_bytes(generator.randbytes(5000))
    else:
        _special(file, generator)
    return done


def _execute(file: Path, statements: str) -> None:
    with closing(sqlite3.connect(file)) as connection, suppress(sqlite3.Error):
        connection.executescript(statements)


def _special(file: Path, generator: random.Random) -> None:
    """Something that is not a regular file in place of one."""
    file.unlink()
    way = generator.randrange(4)
    if way == 0:
        os.mkfifo(file)
    elif way == 1:
        file.mkdir()
    else:
        file.symlink_to(generator.choice(("/dev/zero", "/dev/random", file.name, "absent", "/proc/self/mem", ".")))
