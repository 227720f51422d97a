"""The requests that a page may send to a widget: tables of actions, whose payloads are checked before they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from prepbench.document.codec import read_object
from prepbench.errors import InputError

W = TypeVar("W")


@dataclass(frozen=True)
class Action(Generic[W]):
    """One action.

    Attributes:
        payload: a dataclass; its fields come from the page, and are the arguments of the method.
        method: the method that does it, of a given widget.
    """

    payload: type
    method: Callable[[W], Callable[..., object]]


def perform(actions: Mapping[str, Action[W]], widget: W, message: Mapping[str, Any]) -> None:
    """Run the action that a message from the page requests.

    Raises:
        InputError: an action that is not in the table.
        DocumentError: a payload with a missing, unknown or wrong field.
    """
    name = message.get("action")
    if name not in actions:
        raise InputError(f"Unknown action {name!r}. The known actions are {', '.join(actions)}.")
    action = actions[str(name)]
    payload: object = read_object(
        {key: value for key, value in message.items() if key != "action"}, action.payload, str(name)
    )
    action.method(widget)(**vars(payload))


@dataclass(frozen=True)
class Nothing:
    """The payload of an action without arguments."""
