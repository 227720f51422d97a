"""The journal keeps what several writers gave it, and a hostile or damaged file is an error that says so."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from prepbench.errors import ArtifactError, InputError, StorageError, UnknownNameError
from prepbench.results import journal as journal_module
from prepbench.results.journal import Journal
from prepbench.results.measurement import Run
from tests.unit.results.test_run import RUN

WRITER = """
import sys
from dataclasses import replace
from prepbench.results.journal import Journal
from tests.unit.results.test_run import RUN
path, name = sys.argv[1:]
for number in range(100):
    Journal(path).write(replace(RUN, id=f"{name}{number}", made=float(number)))
"""


def run(id: str, made: float = 1.0, **changes: object) -> Run:
    return replace(RUN, id=id, made=made, **changes)  # type: ignore[arg-type]


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "net.bench.sqlite")


def filled(journal: Journal) -> Journal:
    journal.write(run("a"))
    return journal


def execute(journal: Journal, *statements: str) -> None:
    connection = sqlite3.connect(journal.path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def test_nothing_is_opened_before_something_is_written(journal: Journal) -> None:
    assert journal.runs() == () == journal.results()
    assert not journal.path.exists()


def test_runs_come_back_as_they_were(journal: Journal) -> None:
    runs = (run("a", 1.0), run("b", 2.0, error="the disk is full", score=None), run("c", 3.0, pinned=True))
    journal.write(*runs)
    assert Journal(journal.path).runs() == runs


def test_a_run_that_is_measured_again_has_two_results(journal: Journal) -> None:
    journal.write(run("a", name="first", score=None))
    journal.write(run("a", name="first", score=None))
    assert len(journal.results()) == 1
    journal.write(run("a", name="second", score=30.0), run("b"))
    assert [(one.id, one.name, one.score) for one in journal.runs()] == [
        ("a", "second", 30.0),
        ("b", RUN.name, RUN.score),
    ]
    assert sorted(str(one.score) for one in journal.results()) == ["30.0", "None", "inf"]
    journal.delete("a")
    assert [one.score for one in journal.results()] == [RUN.score]


def test_runs_are_renamed_pinned_and_deleted(journal: Journal) -> None:
    journal.write(run("a"), run("b", 2.0))
    journal.update("a", name="best\x1b[31m")
    journal.update("a", pinned=True)
    journal.delete("b")
    assert journal.runs() == (run("a", name="best\\x1b[31m", pinned=True),)
    assert len(journal.results()) == 1
    for action in (lambda: journal.delete("b"), lambda: journal.update("b", name="b"), lambda: journal.delete("z")):
        with pytest.raises(UnknownNameError, match="no run"):
            action()


def test_a_deleted_run_does_not_come_back(journal: Journal) -> None:
    filled(journal).delete("a")
    journal.write(run("a"))
    assert journal.runs() == ()


def test_what_others_changed_is_told_once(journal: Journal) -> None:
    filled(journal)
    first = journal.since(0)
    assert [one.id for one in first.runs] == ["a"]
    assert journal.since(first.revision) == replace(first, runs=())
    journal.write(run("b"), run("c"))
    journal.update("a", pinned=True)
    journal.delete("c")
    changes = journal.since(first.revision)
    assert ([one.id for one in changes.runs], changes.deleted) == (["b", "a"], ("c",))


def test_results_are_found_by_what_was_measured(journal: Journal) -> None:
    journal.write(run("a"), run("b", 2.0), run("c", 3.0, machine="another one"))
    journal.record(replace(RUN.result, workload="a generation"), "d")
    key = RUN.result.key
    assert [one.made for one in journal.results(key)] == [1.0, 2.0]
    assert len(journal.results()) == 4
    assert len({one.key for one in journal.results()}) == 3
    with pytest.raises(InputError, match="written once"):
        journal.record(RUN.result, "d")


def test_which_targets_wait_on_the_bench_is_no_part_of_a_plan() -> None:
    assert run("a", state={**RUN.state, "targets": ["x"]}).result.key == RUN.result.key
    assert run("a", state={**RUN.state, "leaves": []}).result.key != RUN.result.key


def test_two_processes_lose_nothing(journal: Journal) -> None:
    command = [sys.executable, "-c", WRITER, str(journal.path)]
    writers = [subprocess.Popen([*command, name]) for name in "ab"]
    assert [writer.wait(120) for writer in writers] == [0, 0]
    assert {one.id for one in journal.runs()} == {f"{name}{number}" for name in "ab" for number in range(100)}
    assert journal.since(0).revision == 200


def test_threads_of_one_process_lose_nothing(journal: Journal) -> None:
    threads = [
        threading.Thread(target=lambda i=i: [journal.write(run(f"{i}-{j}")) for j in range(10)])  # type: ignore[misc]
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(journal.runs()) == 40


def test_a_writer_that_dies_leaves_the_journal_as_it_was(journal: Journal) -> None:
    filled(journal)
    died = (
        "import os, sys; from prepbench.results.journal import writing; from pathlib import Path\n"
        "with writing(Path(sys.argv[1])) as connection:\n"
        "    connection.execute('DELETE FROM runs'); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", died, str(journal.path)], check=False).returncode == 9
    assert [one.id for one in journal.runs()] == ["a"]


def test_waiting_for_others_ends(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(journal)
    monkeypatch.setattr(journal_module, "WAITS_S", 0.2)
    other = sqlite3.connect(journal.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageError, match="others have been writing"):
        journal.write(run("b"))
    assert [one.id for one in journal.runs()] == ["a"], "readers need not wait"
    other.execute("ROLLBACK")
    other.close()
    journal.write(run("b"))


def test_a_full_disk_loses_only_what_was_being_written(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(journal)
    checked = journal_module._check

    def small(connection: sqlite3.Connection, path: Path) -> None:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count={pages}")
        checked(connection, path)

    monkeypatch.setattr(journal_module, "_check", small)
    with pytest.raises(StorageError, match=r"the disk is full.*What was in it before is still there"):
        journal.write(run("b", why="long " * 10_000))
    monkeypatch.undo()
    assert [one.id for one in journal.runs()] == ["a"]


def test_a_first_write_that_fails_leaves_no_file(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "_make", lambda connection: connection.execute("no SQL"))
    with pytest.raises(ArtifactError):
        journal.write(run("a"))
    assert list(journal.path.parent.iterdir()) == []


def test_an_empty_file_is_a_journal_without_runs(journal: Journal) -> None:
    journal.path.touch()  # what is left when a process is ended while it makes one
    assert journal.runs() == () == journal.results()
    assert [one.id for one in filled(journal).runs()] == ["a"]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be opened"):
        Journal(tmp_path / "none" / "net.bench.sqlite").write(RUN)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_can_be_read(journal: Journal) -> None:
    filled(journal)
    journal.path.chmod(0o400)
    journal.path.parent.chmod(0o500)
    try:
        assert [one.id for one in journal.runs()] == ["a"]
        with pytest.raises(StorageError, match="read-only"):
            journal.write(run("b"))
    finally:
        journal.path.parent.chmod(0o700)


def test_a_journal_of_a_read_only_disk_is_read_as_it_is(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(journal)
    monkeypatch.setattr(journal_module.os, "access", lambda *_: False)
    assert [one.id for one in journal.runs()] == ["a"]


HOSTILE: dict[str, Callable[[Journal], object]] = {
    "a view in the place of a table": lambda j: execute(
        j, "ALTER TABLE runs RENAME TO own", "CREATE VIEW runs AS SELECT * FROM own"
    ),
    "a trigger": lambda j: execute(j, "CREATE TRIGGER t AFTER INSERT ON runs BEGIN DELETE FROM runs; END"),
    "another table": lambda j: execute(j, "CREATE TABLE more (a)"),
    "another column": lambda j: execute(j, "ALTER TABLE runs ADD COLUMN more"),
    "an index over an expression": lambda j: execute(j, "CREATE INDEX i ON runs (lower(name))"),
    "a missing table": lambda j: execute(j, "DROP TABLE results"),
    "a schema that is no SQL": lambda j: execute(
        j, "PRAGMA writable_schema=ON", "UPDATE sqlite_master SET sql='CREATE nonsense' WHERE name='runs'"
    ),
    "a newer version": lambda j: execute(j, "PRAGMA user_version=99"),
    "no version": lambda j: execute(j, "PRAGMA user_version=0"),
    "another program": lambda j: execute(j, "PRAGMA application_id=1"),
    "text": lambda j: j.path.write_text("not a database " * 100),
    "a half": lambda j: os.truncate(j.path, 5000),
    "noise in a page": lambda j: j.path.write_bytes(j.path.read_bytes()[:4096] + b"\x5a" * 8192),
    "a content that is not valid JSON": lambda j: execute(j, "UPDATE results SET content='{'"),
    "a content that nests": lambda j: execute(j, f"UPDATE results SET content='{'[' * 100_000}'"),
    "a content of bytes": lambda j: execute(j, "UPDATE runs SET content=x'ff00'"),
    "a content that is no text": lambda j: execute(j, "UPDATE runs SET content=7"),
    "a content that is no UTF-8": lambda j: execute(j, "UPDATE runs SET content=CAST(x'ff' AS TEXT)"),
    "a content that is no object": lambda j: execute(j, "UPDATE results SET content='[]'"),
    "a content without fields": lambda j: execute(j, "UPDATE results SET content='{}'"),
    "a name that steers a terminal": lambda j: execute(j, "UPDATE runs SET name=char(27)"),
    "a name that is a number": lambda j: execute(j, "UPDATE runs SET name=x'61'"),
    "a run without a result": lambda j: execute(j, "DELETE FROM results"),
}


@pytest.mark.parametrize("damage", HOSTILE)
def test_a_damaged_or_foreign_file_is_an_error(damage: str, journal: Journal) -> None:
    HOSTILE[damage](filled(journal))
    before = journal.path.read_bytes()
    with pytest.raises(ArtifactError, match=journal.path.name):
        journal.runs()
    assert journal.path.read_bytes() == before


def test_a_database_of_another_program_is_not_written_to(journal: Journal) -> None:
    execute(journal, "CREATE TABLE accounts (a)")
    with pytest.raises(ArtifactError, match="another program"):
        journal.write(RUN)
    connection = sqlite3.connect(journal.path)
    assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("accounts",)]
    connection.close()


def test_what_is_no_regular_file_is_not_opened(journal: Journal) -> None:
    os.mkfifo(journal.path)
    start = time.monotonic()
    for action in (journal.runs, lambda: journal.write(RUN)):
        with pytest.raises(ArtifactError, match="not a regular file"):
            action()
    assert time.monotonic() - start < 5


def test_reading_ends(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    journal.write(*(run(f"r{number}") for number in range(50)))
    monkeypatch.setattr(journal_module, "READS_S", -1.0)
    connect = sqlite3.connect

    class Impatient(sqlite3.Connection):
        def set_progress_handler(self, handler: Callable[[], int] | None, n: int) -> None:
            super().set_progress_handler(handler, 1)

    monkeypatch.setattr(
        journal_module.sqlite3, "connect", lambda *args, **named: connect(*args, factory=Impatient, **named)
    )
    with pytest.raises(ArtifactError, match="interrupted"):
        journal.runs()


def test_the_file_can_be_read_by_others(journal: Journal) -> None:
    filled(journal)
    connection = sqlite3.connect(journal.path)
    (content,) = connection.execute("SELECT content FROM results").fetchone()
    connection.close()
    assert json.loads(content)["target"] == "onnxruntime"
