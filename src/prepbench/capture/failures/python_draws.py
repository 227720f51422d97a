"""Random numbers of Python and NumPy that a forward draws: the graph has those that were drawn while it was traced."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

import numpy as np
import torch

from prepbench.document.model import Finding
from prepbench.inputs import Sample
from prepbench.patching import patched_here
from prepbench.running.outcomes import without_output
from prepbench.running.source_lines import code_frame, is_user_code, source_line
from prepbench.running.twin import Twin
from prepbench.running.unchanged import own_copy, unchanged

RANDOM_FIXED = "random number fixed"

_REMEDY = (
    "Draw with torch (torch.rand(())), which stays random in the graph, choose with torch.where in place of `if`, or "
    "call model.eval() before capturing if it is drawn in training only."
)


def python_states() -> Any:
    """What changes when somebody draws from the generators of Python or NumPy."""
    kind, keys, *rest = np.random.get_state()
    return random.getstate(), (kind, bytes(np.asarray(keys)), *rest)


def findings_of_draws(model: torch.nn.Module, samples: Sequence[Sample]) -> Iterator[Finding]:
    """One finding for each line of the model at which this thread draws. Runs the model once, watched."""
    twin = Twin(model).model
    names = {id(module): (fqn, type(module).__name__) for fqn, module in twin.named_modules()}
    found: dict[tuple[str, int], Finding] = {}

    def drawn(frame: FrameType | None) -> None:
        place: tuple[str, int] | None = None
        while frame is not None:
            if place is None and _is_of_model(frame):
                place = frame.f_code.co_filename, frame.f_lineno
            owner = names.get(id(frame.f_locals.get("self")))
            if owner is not None and place is not None:
                text = "forward draws a random number in Python: the graph has the one that was drawn while capturing."
                source, around = source_line(*place), code_frame(*place)
                found.setdefault(place, Finding(*owner, RANDOM_FIXED, text, source, around, _REMEDY))
                return
            frame = frame.f_back

    with unchanged(twin), without_output(), torch.no_grad(), _watched(drawn):
        own_copy(samples[0]).call(twin)
    yield from found.values()


def _is_of_model(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return file != random.__file__ and "/numpy/" not in file and is_user_code(frame.f_code)


@contextmanager
def _watched(drawn: Callable[[FrameType | None], None]) -> Iterator[None]:
    """Tell of each draw of this thread; a profiler that runs already waits meanwhile."""

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_call" and isinstance(getattr(arg, "__self__", None), random.Random):
            drawn(frame)

    before = sys.getprofile()
    with ExitStack() as stack:
        # profilers do not see the functions of NumPy's generator
        for name, function in list(vars(np.random).items()):
            if isinstance(getattr(function, "__self__", None), np.random.RandomState):
                stack.enter_context(patched_here(np.random, name, _telling(function, drawn)))
        sys.setprofile(profile)
        stack.callback(sys.setprofile, before)
        yield


def _telling(function: Callable[..., Any], drawn: Callable[[FrameType | None], None]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        drawn(sys._getframe(1))
        return function(*args, **kwargs)

    return call
