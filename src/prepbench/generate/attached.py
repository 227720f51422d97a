"""Replace a model's forward by a compiled model for a time, so that the model's own methods run on it."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

from prepbench import interrupts
from prepbench.checks import described
from prepbench.errors import InputError
from prepbench.patching import undoing
from prepbench.running.given_samples import warn

Forward = Callable[..., Any]


_LIBRARIES = frozenset({"prepbench", "torch", "transformers", "peft"})
"""Libraries whose frames warnings skip, to point to the line that called them."""


class Notices:
    """Warns once for each reason that a call in a block runs in PyTorch; raises if ``strict``, not if ``quiet``."""

    def __init__(self, *, strict: bool = False, quiet: bool = False) -> None:
        self._strict, self._quiet = strict, quiet
        self._said: set[str] = set()

    def __call__(self, reason: str, remedy: str) -> None:
        """Warn that the model's own forward runs.

        Raises:
            InputError: the block is strict.
        """
        if self._strict:
            raise InputError(f"This call does not run compiled: {reason} {remedy}")
        if not self._quiet and reason not in self._said:
            self._said.add(reason)
            text = f"Inside of attached(), a call runs in PyTorch and not compiled: {reason} {remedy}"
            warn(text, _LIBRARIES)


@dataclass(frozen=True, eq=False)
class _Attachment:
    """One block: its forward, the thread that entered it, and older threads, which are not affected."""

    forward: Forward
    thread: threading.Thread
    others: weakref.WeakSet[threading.Thread]
    notices: Notices


_attached: weakref.WeakKeyDictionary[nn.Module, list[_Attachment]] = weakref.WeakKeyDictionary()
"""Blocks by model. Twins have no entry, so compiling inside of a block compiles the original forward."""
_lock = threading.Lock()
_BEFORE = "__prepbench_forward_before__"


@contextmanager
def attached_forward(model: nn.Module, forward: Forward, notices: Notices) -> Iterator[None]:
    """Run ``forward`` for ``model(...)`` in this thread, and in threads started inside the block, during the block.

    Threads that ran before go on with the model's own forward, which ``notices`` says. Blocks may overlap, in one
    thread and in several.
    """
    here = threading.current_thread()
    others = weakref.WeakSet(thread for thread in threading.enumerate() if thread is not here)
    attachment = _Attachment(forward, here, others, notices)
    with undoing() as undo:
        undo.add(lambda: _remove(model, attachment))
        _add(model, attachment)
        with interrupts.interruptible():
            yield


def own_forward(model: nn.Module) -> Forward:
    """Return the model's forward outside of all blocks."""
    now = model.forward
    if not hasattr(now, _BEFORE):
        return now
    before = getattr(now, _BEFORE)
    return before if before is not None else functools.partial(type(model).forward, model)


def check_model(model: Any, parameters: tuple[str, ...]) -> None:
    """Raise ``InputError`` unless ``model`` has the signature of the compiled model."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model must be the model that was compiled, a torch.nn.Module, got {described(model)}.")
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    found = tuple(p.name for p in inspect.signature(model.forward).parameters.values() if p.kind in kinds)
    if found != parameters:
        raise InputError(
            f"model must be the model that was compiled: its forward took ({', '.join(parameters)}), and that of this "
            f"{type(model).__name__} takes ({', '.join(found)})."
        )


def model_to_attach(model: Any, parameters: tuple[str, ...]) -> nn.Module:
    """Return the module whose forward a block replaces: for a PEFT wrapper the model inside, which generation calls.

    Args:
        model: the compiled model's original, or the model inside of it, or a wrapper around it.
        parameters: of the forward that was compiled.

    Raises:
        InputError: it is called in another way than what was compiled.
    """
    inside = _inside_wrapper(model)
    if inside is None or _is_called_with(inside, parameters):
        check_model(model if inside is None else inside, parameters)
        return model if inside is None else inside
    check_model(model, parameters)
    raise InputError(
        f"model: this {type(model).__name__} was compiled with its wrapper of PEFT, and generation calls the model "
        "inside, past what was compiled. Compile model.get_base_model(), which has the adapters too, with samples of "
        "its calls; the block takes the wrapper or the model inside then."
    )


def _inside_wrapper(model: Any) -> nn.Module | None:
    """Return the model with adapters inside a PEFT wrapper; None for other models."""
    peft = sys.modules.get("peft")  # a wrapper can exist only if PEFT is imported
    inside = model.get_base_model() if peft is not None and isinstance(model, peft.PeftModel) else None
    return inside if isinstance(inside, nn.Module) else None


def _is_called_with(model: nn.Module, parameters: tuple[str, ...]) -> bool:
    try:
        check_model(model, parameters)
    except InputError:
        return False
    return True


def _add(model: nn.Module, attachment: _Attachment) -> None:
    with _lock:
        if not _attached.get(model):
            object.__setattr__(model, "forward", _dispatching(model, vars(model).get("forward")))
        _attached.setdefault(model, []).append(attachment)


def _remove(model: nn.Module, attachment: _Attachment) -> None:
    with _lock:
        blocks = _attached.get(model, [])
        if attachment in blocks:
            blocks.remove(attachment)
        if not blocks:
            _attached.pop(model, None)
            now = vars(model).get("forward")
            if not hasattr(now, _BEFORE):  # other code has replaced it meanwhile
                return
            before = getattr(now, _BEFORE)
            if before is None:
                object.__delattr__(model, "forward")
            else:
                object.__setattr__(model, "forward", before)


def _dispatching(model: nn.Module, before: Forward | None) -> Forward:
    """Return a forward that dispatches each call to the innermost block of its thread."""
    original = model.forward

    @functools.wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return (_meant(model) or original)(*args, **kwargs)

    setattr(forward, _BEFORE, before)
    return forward


def _meant(model: nn.Module) -> Forward | None:
    blocks, here = _attached.get(model, []), threading.current_thread()
    own = [block for block in blocks if block.thread is here]
    meant = own or [block for block in blocks if here not in block.others]
    if blocks and not meant:
        blocks[-1].notices(
            f"the thread {here.name!r} is older than the block, and such threads go on with the model's own forward.",
            "Start the thread inside of the block, or enter a block in the thread itself.",
        )
    return meant[-1].forward if meant else None
