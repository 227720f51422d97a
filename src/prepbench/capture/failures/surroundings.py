"""What forward asks about its surroundings: modes of torch, environment variables, the time. A graph asks none of it.

The model runs once more for each question, with another answer. Where that makes a difference, a call under another
answer is refused, or, because every call is at another time, the report says so.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from prepbench import patching
from prepbench.capture.failures.findings import Way, depends_on, gives_the_same, own_codes
from prepbench.document.model import Finding
from prepbench.inputs import Sample
from prepbench.objects.compare import ROUNDED
from prepbench.objects.parts import is_user_code
from prepbench.patching import patched_here
from prepbench.running.source_lines import code_frame, source_line

Question = tuple[str, ...]
"""What is asked, then with what: ``("is_autocast_enabled", "cpu")``, ``("environ", "HOME")``."""

ENVIRONMENT = "environ"
_OF_ENVIRONMENT = {ENVIRONMENT, "getenv"}
_LONGEST, _MOST_TEXTS = 40, 20
OF_TORCH = (
    "is_inference_mode_enabled", "is_autocast_enabled", "is_autocast_cpu_enabled", "get_autocast_dtype",
    "is_autocast_cache_enabled", "get_default_dtype", "get_default_device", "get_num_threads",
    "get_num_interop_threads", "are_deterministic_algorithms_enabled",
    "is_deterministic_algorithms_warn_only_enabled", "get_deterministic_debug_mode", "get_float32_matmul_precision",
    "is_warn_always_enabled",
)  # fmt: skip
"""Functions of torch that tell a state which calls of a model may find otherwise."""

TIME = "time fixed"
_CLOCKS = ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time")
_SHIFTS = (1, 100 * 366 * 24 * 3600, -100 * 366 * 24 * 3600)  # seconds
_TRIED = 4  # samples, which may go different ways
_ABSENT = "not set"
_PASSED_ON = (patching.__file__, os.getenv.__code__.co_filename, Mapping.get.__code__.co_filename)
"""Files of functions that pass a question on."""


@dataclass(frozen=True)
class Heard:
    """A question that the user's code asks of its surroundings.

    Attributes:
        question: what is asked.
        answer: what it was told, as :func:`answer_now` says it.
        place: file and line.
    """

    question: Question
    answer: str
    place: tuple[str, int]


def answer_now(question: Question) -> str:
    """Return the answer to a question at this moment; that of an environment variable as a digest, because the value
    may be a secret.
    """
    kind, *given = question
    if kind == ENVIRONMENT:
        return _of_variable(os.environ.get(given[0]))
    return repr(getattr(torch, kind)(*given))


def words(question: Question, answer: str) -> str:
    """Return in words that a question has this answer."""
    kind, *given = question
    if kind == ENVIRONMENT:
        same = "is not set" if answer == _ABSENT else "has the value that it had while capturing"
        return f"the environment variable {given[0]} {same}"
    return f"torch.{kind}({', '.join(map(repr, given))}) is {answer}"


def is_question(question: Question) -> bool:
    """Return whether something is a question that :func:`answer_now` answers."""
    return question[:1] in [(name,) for name in OF_TORCH] or (question[:1] == (ENVIRONMENT,) and len(question) == 2)


def answers_that_matter(model: torch.nn.Module, samples: Sequence[Sample]) -> Iterator[Heard]:
    """Yield each question for which another answer gives another result. Runs the model only if it asks."""
    names = _names(model)
    asked = [name for name in OF_TORCH if name in names]
    asked += [ENVIRONMENT] if names & _OF_ENVIRONMENT else []
    if not asked:
        return
    heard: dict[Question, tuple[Any, tuple[str, int]]] = {}
    gives_the_same(model, samples[:_TRIED], ways=[_told(asked, heard)] * len(samples))
    texts = _texts(model) if ENVIRONMENT in asked else []
    for question, (value, place) in heard.items():
        told = _of_variable(value) if question[0] == ENVIRONMENT else repr(value)
        ways = [_told([question[0]], {}, {question: other}) for other in _others(question, value, texts)]
        if any(_differs(model, samples, way) for way in ways):
            yield Heard(question, told, place)


def findings_of_time(model: torch.nn.Module, samples: Sequence[Sample]) -> Iterator[Finding]:
    """Yield the line where forward asks for the time, if another time gives another result."""
    clocks = [name for name in _CLOCKS if name in _names(model)]
    places: list[tuple[str, int]] = []
    ways = [_at_another_time(clocks, shift, places) for shift in _SHIFTS]
    if clocks and any(_differs(model, samples, way) for way in ways) and places:
        text = "forward computes with the time: the graph has the time at which it was captured."
        remedy = "Give the time as an argument: x = model(x, torch.tensor(time.time()))."
        yield Finding("", "", TIME, text, source_line(*places[0]), code_frame(*places[0]), remedy)


def _names(model: torch.nn.Module) -> set[str]:
    return {name for code in own_codes(model) for name in code.co_names}


def _differs(model: torch.nn.Module, samples: Sequence[Sample], way: Way) -> bool:
    return any(depends_on(model, one, [_told([], {}), way], ROUNDED) for one in samples[:_TRIED])


def _of_variable(value: str | None) -> str:
    return _ABSENT if value is None else hashlib.sha256(value.encode(errors="replace")).hexdigest()[:16]


def _texts(model: torch.nn.Module) -> list[str]:
    """Return the texts in code that asks for environment variables, which it may compare them with."""
    codes = [code for code in own_codes(model) if not _OF_ENVIRONMENT.isdisjoint(code.co_names)]
    texts = dict.fromkeys(text for code in codes for text in code.co_consts if isinstance(text, str))
    return [text for text in texts if len(text) <= _LONGEST][:_MOST_TEXTS]


def _others(question: Question, value: Any, texts: Sequence[str]) -> list[Any]:
    """Return other answers to a question; none where there is no other."""
    if question[0] == ENVIRONMENT:
        candidates: list[Any] = [None, "1", "0", "", *texts]
    elif isinstance(value, bool):
        candidates = [True, False]
    else:
        kinds: dict[type, list[Any]] = {
            torch.dtype: [torch.float64, torch.float32],
            torch.device: [torch.device("meta")],
            int: [1, 2, 0],
            str: ["highest", "high", "medium"],
        }
        candidates = kinds.get(type(value), [])
    return [other for other in candidates if other != value]


def _told(
    names: Sequence[str],
    heard: dict[Question, tuple[Any, tuple[str, int]]],
    answers: dict[Question, Any] | None = None,
) -> Way:
    """Return a way to call a model that listens to its questions, and gives other answers to some of them."""

    def way(model: torch.nn.Module, sample: Sample) -> Any:
        with ExitStack() as stack:
            for name in names:
                stack.enter_context(_listened(name, heard, answers or {}))
            return sample.call(model)

    return way


@contextmanager
def _listened(
    name: str, heard: dict[Question, tuple[Any, tuple[str, int]]], answers: dict[Question, Any]
) -> Iterator[None]:
    owner, function = (type(os.environ), "__getitem__") if name == ENVIRONMENT else (torch, name)
    original = getattr(owner, function)

    def ask(*args: Any, **kwargs: Any) -> Any:
        given = (*args[name == ENVIRONMENT :], *kwargs.values())
        question, asking = (name, *given), _asking()
        if asking is None or not all(isinstance(part, str) for part in given):
            return original(*args, **kwargs)
        place = asking.f_code.co_filename, asking.f_lineno
        if name != ENVIRONMENT:
            answer = answers[question] if question in answers else original(*args, **kwargs)
            heard.setdefault(question, (answer, place))
            return answer
        answer = answers[question] if question in answers else _variable(args, original)
        heard.setdefault(question, (answer, place))
        if answer is None:
            raise KeyError(given[0])
        return answer

    with patched_here(owner, function, ask):
        yield


def _variable(args: tuple[Any, ...], original: Callable[..., str]) -> str | None:
    try:
        return original(*args)
    except KeyError:
        return None


def _asking() -> FrameType | None:
    """Return the frame of the user's code that asks; None where a library does, whose answer stays."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename in _PASSED_ON:
        frame = frame.f_back
    return frame if frame is not None and is_user_code(frame.f_code) else None


def _at_another_time(clocks: Sequence[str], shift: int, places: list[tuple[str, int]]) -> Way:
    def shown(original: Callable[..., Any], factor: int) -> Callable[..., Any]:
        def ask() -> Any:
            asking = _asking()
            if asking is None:
                return original()
            places.append((asking.f_code.co_filename, asking.f_lineno))
            return original() + shift * factor

        return ask

    def way(model: torch.nn.Module, sample: Sample) -> Any:
        with ExitStack() as stack:
            for name in clocks:
                original = getattr(time, name)
                factor = 10**9 if name.endswith("_ns") else 1
                stack.enter_context(patched_here(time, name, shown(original, factor)))
            return sample.call(model)

    return way
