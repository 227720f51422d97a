"""Finding the submodules that cannot be exported, and exporting the rest with each of them as one operator."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from prepbench._torch_compat.exporting import mark_module_stack, seen_as_exporting
from prepbench._torch_compat.sizes import forget_pending_sizes
from prepbench.capture.aten.leaf_operators import LeafOperators
from prepbench.capture.aten.leaf_outputs import LeafOutputs, LeafOutputsError, kinds_of
from prepbench.document.model import Failure
from prepbench.errors import SettingsError
from prepbench.inputs import Sample
from prepbench.running.recorded_calls import RecordedCall, record_calls, replaceable_modules, replaced_forward

CHOSEN = "chosen as a leaf"


class Calls:
    """The recorded calls of every submodule, made when they are first needed.

    Args:
        samples: must run.
        further: made-up samples of other sizes; those on which the model raises are left out.
    """

    def __init__(self, model: torch.nn.Module, samples: Sequence[Sample], further: Sequence[Sample]) -> None:
        self._model = model
        self._samples = samples
        self._further = further
        self._calls: dict[str, list[RecordedCall]] | None = None
        self._learned: dict[str, LeafOutputs] = {}

    def record(self) -> None:
        """Run the model now. It cannot run later, while torch traces."""
        if self._calls is not None:
            return
        self._calls = record_calls(self._model, self._samples)
        self._add(self._tried(self._further))
        with seen_as_exporting():
            # models that look at this pass other arguments to their parts, such as a mask where it would be None
            self._add(self._tried([*self._samples, *self._further]), only_new=True)

    def _tried(self, samples: Sequence[Sample]) -> Iterator[dict[str, list[RecordedCall]]]:
        for sample in samples:
            try:
                yield record_calls(self._model, [sample])
            except Exception:
                # a made-up size that the model does not take says nothing
                continue

    def _add(self, recorded: Iterable[dict[str, list[RecordedCall]]], *, only_new: bool = False) -> None:
        """Add calls; with ``only_new`` those whose arguments no earlier call had in kind."""
        assert self._calls is not None
        known = {fqn: {kinds_of(call.inputs) for call in seen} for fqn, seen in self._calls.items()}
        for calls in recorded:
            for fqn, seen in calls.items():
                new = [call for call in seen if not only_new or kinds_of(call.inputs) not in known.get(fqn, ())]
                if new:
                    self._calls.setdefault(fqn, []).extend(new)

    def outputs(self, fqn: str) -> LeafOutputs:
        """What the module returns, as a function of its inputs' sizes."""
        assert self._calls is not None, "record() runs before tracing"
        if fqn not in self._learned:
            self._learned[fqn] = LeafOutputs.learn(self._calls.get(fqn, ()), fqn or "the model")
        return self._learned[fqn]

    def shared(self, fqn: str) -> str:
        """Which tensors the module gives back that share memory with others, in words; empty if none do."""
        try:
            return self.outputs(fqn).shared
        except LeafOutputsError:
            return ""

    def caller(self, fqn: str) -> str:
        """The nearest module around ``fqn`` that is called itself; containers are not."""
        assert self._calls is not None, "record() runs before tracing"
        outer = fqn.rpartition(".")[0]
        while outer and outer not in self._calls:
            outer = outer.rpartition(".")[0]
        return outer


@contextmanager
def leaves_wrapped(model: torch.nn.Module, fqns: Iterable[str], operators: LeafOperators) -> Iterator[None]:
    """Inside the block, the forward of each named submodule is a call of its operator."""
    with ExitStack() as stack:
        for fqn in fqns:
            module = model.get_submodule(fqn)
            stack.enter_context(replaced_forward(model, fqn, _calling(fqn, module, operators)))
        yield


def _calling(fqn: str, module: torch.nn.Module, operators: LeafOperators) -> Callable[..., Any]:
    def leaf(*args: Any, **kwargs: Any) -> Any:
        return operators.call(fqn, module, args, kwargs)

    leaf.__wrapped__ = module.forward  # type: ignore[attr-defined]
    return leaf


@contextmanager
def failures_collected(
    model: torch.nn.Module,
    known: Iterable[str],
    operators: LeafOperators,
    found: dict[str, Exception],
    inside: dict[str, Exception],
) -> Iterator[None]:
    """Inside the block, a submodule whose forward raises is noted in ``found`` and replaced by its operator.

    One that cannot be an operator is noted in ``inside``, and the module that called it is replaced.

    The innermost module that raises is the one; its callers go on with fake outputs, so one pass finds all failures.
    """
    wrapped = set(known)
    with ExitStack() as stack:
        for fqn, module in replaceable_modules(model):
            attempt = _attempting(fqn, module, operators, found, inside)
            forward = _calling(fqn, module, operators) if fqn in wrapped else attempt
            stack.enter_context(replaced_forward(model, fqn, forward))
        yield


def _attempting(
    fqn: str,
    module: torch.nn.Module,
    operators: LeafOperators,
    found: dict[str, Exception],
    inside: dict[str, Exception],
) -> Callable[..., Any]:
    forward = module.forward

    def attempt(*args: Any, **kwargs: Any) -> Any:
        leave_inner_modules = mark_module_stack()
        try:
            return forward(*args, **kwargs)
        except _Undescribable as inner:
            # the module inside cannot be one operator, so this one, which called it, has to be
            error: Exception = inner
        except Exception as raised:
            error = raised
        leave_inner_modules()
        forget_pending_sizes((args, kwargs))
        try:
            output = operators.call(fqn, module, args, kwargs)
        except LeafOutputsError as reason:
            inside.setdefault(fqn, error)
            raise _Undescribable(error, str(reason)) from reason
        found.setdefault(fqn, error)
        return output

    attempt.__wrapped__ = forward  # type: ignore[attr-defined]
    return attempt


class _Undescribable(RuntimeError):
    """A module failed and its outputs cannot be described; ``error`` is why it failed, ``reason`` why it is no leaf."""

    def __init__(self, error: Exception, reason: str) -> None:
        super().__init__(str(error))
        self.error = error
        self.reason = reason


def original_error(error: Exception) -> Exception:
    """The error of the model itself."""
    while isinstance(error, _Undescribable):
        error = error.error
    return error


def undescribable_reasons(error: Exception) -> list[str]:
    """Why the modules inside the one that failed could not be operators by themselves, innermost first."""
    reasons: list[str] = []
    while isinstance(error, _Undescribable):
        reasons.insert(0, error.reason)
        error = error.error
    return reasons


def outermost(fqns: Iterable[str]) -> list[str]:
    """The names without those that lie inside another of them."""
    names = sorted(set(fqns))
    return [name for name in names if not any(other != name and _inside(name, other) for other in names)]


def _inside(name: str, other: str) -> bool:
    return other == "" or name.startswith(f"{other}.")


def chosen_leaves(model: torch.nn.Module, leaf_modules: Iterable[Any]) -> dict[str, Failure]:
    """The leaves that the user asks for, by FQN, module or class.

    Raises:
        SettingsError: one that matches nothing; the message gives the nearest names.
    """
    leaves: dict[str, Failure] = {}
    names = {id(module): fqn for fqn, module in model.named_modules()}
    aliases = {fqn: names[id(module)] for fqn, module in model.named_modules(remove_duplicate=False)}
    for wanted in [leaf_modules] if isinstance(leaf_modules, str | type | torch.nn.Module) else leaf_modules:
        matches = _matching(model, wanted, names, aliases)
        if not matches:
            raise SettingsError(_no_match(model, wanted, aliases))
        for fqn in matches:
            module_type = type(model.get_submodule(fqn)).__name__
            message = "Kept as one operator because leaf_modules names it."
            leaves[fqn] = Failure(fqn, module_type, CHOSEN, "", message)
    return {fqn: leaves[fqn] for fqn in outermost(leaves)}


def _matching(model: torch.nn.Module, wanted: Any, names: Mapping[int, str], aliases: Mapping[str, str]) -> list[str]:
    if isinstance(wanted, str):
        if wanted in aliases:
            return [aliases[wanted]]
        return [fqn for fqn, module in model.named_modules() if type(module).__name__ == wanted]
    if isinstance(wanted, type):
        return [fqn for fqn, module in model.named_modules() if isinstance(module, wanted)]
    return [names[id(wanted)]] if id(wanted) in names else []


def _no_match(model: torch.nn.Module, wanted: Any, aliases: Mapping[str, str]) -> str:
    kinds = sorted({type(module).__name__ for module in model.modules()})
    text = repr(wanted) if isinstance(wanted, str) else getattr(wanted, "__name__", type(wanted).__name__)
    near = difflib.get_close_matches(text.strip("'"), [name for name in aliases if name] + kinds, 4, 0.4)
    hint = f" Nearest: {', '.join(near)}." if near else f" The model has: {', '.join(kinds[:8])}."
    return f"leaf_modules: {text} is no module name, class or submodule of {type(model).__name__}.{hint}"
