"""Replacements: for one thread only, undone in every case."""

from __future__ import annotations

import inspect
import io
import logging
import math
import sys
import threading
import types
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from prepbench.patching import (
    Undo,
    flag_only_in_this_thread,
    logs_dropped_here,
    output_here,
    patched,
    patched_here,
    patched_item,
    patched_together,
    warnings_ignored_here,
)


def _elsewhere(function: Callable[[], Any]) -> Any:
    """What another thread gets."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


class Refusing:
    """An object of which one attribute cannot be set."""

    value = 1

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        raise RuntimeError("set, and then raised")


def test_an_attribute_and_an_item_come_back() -> None:
    class Owner:
        inherited = 1

    class Child(Owner):
        pass

    space = {"a": 1}
    with (  # noqa: PT012
        pytest.raises(KeyError),
        patched(Child, "inherited", 2),
        patched_item(space, "a", 2),
        patched_item(space, "b", 3),
    ):
        assert (Child.inherited, space) == (2, {"a": 2, "b": 3})
        raise KeyError
    assert Child.inherited == 1
    assert "inherited" not in vars(Child)
    assert space == {"a": 1}


def test_what_fails_halfway_is_undone() -> None:
    owner = Refusing()
    with pytest.raises(RuntimeError, match="set, and then"), patched(owner, "value", 2):
        pass
    assert vars(owner) == {}


def test_every_step_of_undoing_runs() -> None:
    done, undo = [], Undo()

    def fail() -> None:
        done.append("failed")
        raise ValueError("first")

    undo.add(lambda: done.append("last"))
    undo.add(fail)
    undo.add(lambda: done.append("first"))
    with pytest.raises(ValueError, match="first"):
        undo.run()
    assert done == ["first", "failed", "last"]


def test_an_attribute_that_several_threads_replace_comes_back_with_the_last() -> None:
    class owner:
        value = 1

    blocks = [patched_together(owner, "value", value) for value in (2, 3)]
    for block in blocks:
        block.__enter__()
    assert owner.value == 2
    for block, expected in zip(blocks, (2, 1), strict=True):
        block.__exit__(None, None, None)
        assert owner.value == expected
    with pytest.raises(KeyError), patched_together(owner, "value", 4):
        raise KeyError
    assert owner.value == 1


def test_another_thread_calls_the_original() -> None:
    original = math.sqrt
    with patched_here(math, "sqrt", lambda value: "replaced"):
        assert math.sqrt(4) == "replaced"
        assert _elsewhere(lambda: math.sqrt(4)) == 2.0
    assert math.sqrt is original


def test_a_replacement_has_its_own_signature() -> None:
    def replacement(value: int, /) -> int:
        """Its docstring."""
        return value

    with patched_here(math, "floor", replacement):
        assert inspect.signature(math.floor) == inspect.signature(replacement)
        assert math.floor.__doc__ == "Its docstring."


_flag = True


def _is_going_on() -> bool:
    return _flag


def test_a_flag_is_off_for_other_threads() -> None:
    known, code = _is_going_on, _is_going_on.__code__
    with flag_only_in_this_thread(_is_going_on):
        assert known() is True
        assert _elsewhere(known) is False
    assert _elsewhere(known) is True
    assert _is_going_on.__code__ is code
    assert not [name for name in globals() if "prepbench" in name and not isinstance(globals()[name], types.ModuleType)]


def test_other_threads_print(capsys: pytest.CaptureFixture[str]) -> None:
    own = io.StringIO()
    with output_here(own):
        sys.stdout.write("here\n")
        sys.stderr.write("error\n")
        _elsewhere(lambda: sys.stdout.write("elsewhere\n"))
    assert own.getvalue() == "here\nerror\n"
    assert capsys.readouterr().out == "elsewhere\n"


@pytest.mark.parametrize("order", ["aA", "abAB", "abBA", "abcACB", "abcBAC", "abAcBC", "abAaBA"])
def test_blocks_of_several_threads_may_end_in_any_order(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each letter is a thread: a small one begins its blocks, a large one ends them."""
    shown, sqrt = io.StringIO(), math.sqrt
    monkeypatch.setattr(sys, "stdout", shown)
    with ExitStack() as stack:
        threads = {name: stack.enter_context(ThreadPoolExecutor(1)) for name in sorted(set(order.lower()))}
        open_ones: dict[str, tuple[io.StringIO, ExitStack]] = {}

        def begin(own: io.StringIO, name: str) -> ExitStack:
            blocks = ExitStack()
            blocks.enter_context(output_here(own))
            blocks.enter_context(patched_here(math, "sqrt", lambda number: f"{name} of {number}"))
            return blocks

        for letter in order:
            name = letter.lower()
            if letter == name:
                own = io.StringIO()
                open_ones[name] = own, threads[name].submit(begin, own, name).result()
            else:
                threads[name].submit(open_ones.pop(name)[1].close).result()
            for other, thread in threads.items():
                thread.submit(print, f"after {letter}").result()
                found = thread.submit(lambda: math.sqrt(4.0)).result()
                if other in open_ones:
                    assert found == f"{other} of 4.0"
                    assert open_ones[other][0].getvalue().endswith(f"after {letter}\n")
                else:
                    assert found == 2.0
                    assert shown.getvalue().endswith(f"after {letter}\n")
    assert math.sqrt is sqrt
    assert sys.stdout is shown


def test_blocks_that_always_overlap_do_not_pile_up() -> None:
    sqrt = math.sqrt
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        last: tuple[ThreadPoolExecutor, ExitStack] | None = None
        for number in range(2000):
            thread, blocks = (one, other)[number % 2], ExitStack()
            thread.submit(blocks.enter_context, patched_here(math, "sqrt", lambda x: sqrt(x) + 1)).result()
            if last is not None:
                last[0].submit(last[1].close).result()
            last = thread, blocks
        assert math.sqrt(4.0) == 2.0
        assert last is not None
        assert last[0].submit(math.sqrt, 4.0).result() == 3.0
        last[0].submit(last[1].close).result()
    assert math.sqrt is sqrt


def test_other_threads_warn() -> None:
    before = list(warnings.filters)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with warnings_ignored_here():
            warnings.warn("here", stacklevel=1)
            _elsewhere(lambda: warnings.warn("elsewhere", stacklevel=1))
        warnings.warn("afterwards", stacklevel=1)
    assert [str(entry.message) for entry in seen] == ["elsewhere", "afterwards"]
    assert list(warnings.filters) == before


def test_other_threads_log(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("patching.test")
    with logs_dropped_here("patching", below=logging.ERROR):
        logger.warning("here")
        logger.error("serious")
        logging.getLogger("other").warning("another logger")
        _elsewhere(lambda: logger.warning("elsewhere"))
    assert [record.message for record in caplog.records] == ["serious", "another logger", "elsewhere"]
