"""Ctrl-C: noted inside held blocks, raised at safe points, and at once where nothing is half done."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from prepbench import interrupts, patching, storage
from prepbench.interrupts import held, interruptible, restoring, safe_point
from prepbench.patching import patched, patched_here, patched_together
from prepbench.storage import write_file, write_folder


def _press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(autouse=True)
def _usual_handler() -> object:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "the handler was not put back"
    signal.signal(signal.SIGINT, before)


def test_waits_for_the_next_safe_point() -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt), held():  # noqa: PT012
        _press()
        steps.append("after the interrupt")
        safe_point()
        steps.append("after the safe point")
    assert steps == ["after the interrupt"]
    assert not interrupts._state.noted


def test_is_raised_when_the_outermost_block_ends() -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        with held():
            with held():
                _press()
            steps.append("after the inner block")
        steps.append("after the outer block")
    assert steps == ["after the inner block"]


def test_the_third_is_raised_at_once_but_not_while_something_is_put_back() -> None:
    pressed = 0
    with pytest.raises(KeyboardInterrupt), held():  # noqa: PT012
        while True:
            _press()
            pressed += 1
    assert pressed == 2  # the third did not return
    steps = []
    with pytest.raises(KeyboardInterrupt), restoring():  # noqa: PT012
        for _ in range(5):
            _press()
            steps.append("put back")
    assert len(steps) == 5


def test_the_third_waits_for_a_safe_point_while_torch_asks() -> None:
    """An exception under a question of C++ would end the process."""
    code = compile(
        "def answer(press):\n    for _ in range(5):\n        press()\n", "/x/torch/_subclasses/fake.py", "exec"
    )
    names: dict[str, Any] = {}
    exec(code, names)
    steps = []
    with pytest.raises(KeyboardInterrupt), held():  # noqa: PT012
        names["answer"](_press)
        steps.append("answered")
        safe_point()
        steps.append("after the safe point")
    assert steps == ["answered"]


def test_the_third_waits_until_a_block_has_begun() -> None:
    """What a block that never began has replaced would be put back late, and over what was put back before."""

    @contextmanager
    def block() -> Iterator[None]:
        for _ in range(5):
            _press()
        steps.append("begun")
        yield

    steps: list[str] = []
    with pytest.raises(KeyboardInterrupt), held(), block():  # noqa: PT012
        time.sleep(10)
        steps.append("after")
    assert steps == ["begun"]


def test_is_tried_again_where_an_exception_would_be_lost() -> None:
    class Freed:
        def __del__(self) -> None:
            _press()
            steps.append("freed")

    steps: list[str] = []
    with pytest.raises(KeyboardInterrupt), held(), interruptible():  # noqa: PT012
        freed = Freed()
        del freed
        time.sleep(10)
        steps.append("after")
    assert steps == ["freed"]


def test_is_raised_at_once_where_nothing_is_half_done() -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt), held(), interruptible():  # noqa: PT012
        _press()
        steps.append("after")
    assert not steps
    with pytest.raises(KeyboardInterrupt), held(), interruptible(), held():  # noqa: PT012
        _press()
        steps.append("held again")
    assert steps == ["held again"]


def test_a_handler_of_the_users_is_called_later() -> None:
    called = []
    signal.signal(signal.SIGINT, lambda number, frame: called.append(number))
    with held():
        _press()
        assert not called
    assert called == [signal.SIGINT]
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_who_ignores_interrupts_goes_on_ignoring_them() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with held():
        _press()
        assert not interrupts._state.noted
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_another_thread_is_left_alone() -> None:
    seen = []

    def work() -> None:
        with held(), interruptible(), restoring():
            safe_point()
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


def test_says_that_it_was_heard() -> None:
    heard = threading.Event()
    with pytest.raises(KeyboardInterrupt), held(), interrupts.told_of_interrupts(heard.set):  # noqa: PT012
        _press()
        assert heard.wait(10)


class _Owner:
    value = "original"


def _pressed_at(step: int, action: Callable[[], object], counted: Sequence[str], presses: int = 1) -> bool:
    """Run something, and press Ctrl-C before a step of code in these files; return whether there were as many."""
    steps = 0

    def count(frame: Any, event: str, argument: Any) -> Any:
        nonlocal steps
        if frame.f_code.co_filename not in counted:
            return None
        if steps == step:
            sys.settrace(None)
            steps += 1
            for _ in range(presses):
                signal.raise_signal(signal.SIGINT)
            return None
        steps += 1
        return count

    before = sys.gettrace()
    with contextlib.suppress(KeyboardInterrupt):
        sys.settrace(count)
        try:
            action()
        finally:
            sys.settrace(before)
    return steps > step


_COUNTED = (patching.__file__, interrupts.__file__, contextlib.__file__)
BLOCKS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "patched": lambda: patched(_Owner, "value", "replaced"),
    "patched_here": lambda: patched_here(_Owner, "value", lambda: "replaced"),
    "patched_together": lambda: patched_together(_Owner, "value", "replaced"),
}


def _entered(name: str) -> None:
    with BLOCKS[name]():
        pass


@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize("name", BLOCKS)
def test_nothing_stays_replaced_at_whatever_step_it_comes(name: str, is_held: bool) -> None:
    for step in itertools.count():
        around = held() if is_held else contextlib.nullcontext()
        with contextlib.suppress(KeyboardInterrupt), around:
            there = _pressed_at(step, functools.partial(_entered, name), _COUNTED)
        assert _Owner.value == "original", f"at step {step}"
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, f"at step {step}"
        assert not interrupts._state.depth, f"at step {step}"
        assert not interrupts._state.around, f"at step {step}"
        assert not interrupts._state.open, f"at step {step}"
        assert not patching._together, f"at step {step}"
        if not there:
            break
    assert step > 20


@pytest.mark.parametrize("presses", [1, 3])
@pytest.mark.parametrize("is_folder", [False, True])
def test_no_file_is_left_at_whatever_step_it_comes(tmp_path: Path, is_folder: bool, presses: int) -> None:
    place = tmp_path / "saved"

    def fill(folder: Path) -> None:
        (folder / "content").write_text("new")

    def write() -> None:
        write_folder(place, fill) if is_folder else write_file(place, "new")

    write_folder(place, lambda folder: None) if is_folder else place.write_text("old")
    for step in itertools.count():
        with contextlib.suppress(KeyboardInterrupt):
            there = _pressed_at(step, write, (*_COUNTED, storage.__file__, tempfile.__file__, shutil.__file__), presses)
        assert os.listdir(tmp_path) == [place.name], f"at step {step}"
        assert place.is_dir() is is_folder
        if not there:
            break
    assert step > 50
