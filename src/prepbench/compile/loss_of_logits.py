"""The loss of compiled logits, by the function that a model of ``transformers`` has for it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

_FROM_THE_MODEL = frozenset({"logits", "labels", "vocab_size"})


class LossOfLogits:
    """Computes a model's loss from logits, as far as the model does so itself, which is found by trying.

    Args:
        model: has ``loss_function``, if any.
        own: its forward.

    Attributes:
        options: arguments of a call that only the loss takes, such as ``num_items_in_batch``.
    """

    def __init__(self, model: nn.Module, own: Callable[..., Any]) -> None:
        self._own, self._config = own, getattr(model, "config", None)
        self._function = _loss_function(model)
        self._known: dict[frozenset[str], bool] = {}
        parameters = {} if self._function is None else inspect.signature(self._function).parameters
        named = {name for name, one in parameters.items() if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)}
        self.options = tuple(sorted(named - _FROM_THE_MODEL))

    def __call__(self, logits: torch.Tensor, labels: torch.Tensor, options: Mapping[str, Any]) -> torch.Tensor:
        """The loss."""
        assert self._function is not None
        config: Any = self._config
        text = config.get_text_config() if hasattr(config, "get_text_config") else config
        vocabulary = getattr(text, "vocab_size", logits.shape[-1])
        loss: torch.Tensor = self._function(logits=logits, labels=labels, vocab_size=vocabulary, **options)
        return loss

    @torch.no_grad()
    def is_known(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Mapping[str, Any]) -> bool:
        """Whether the model's own logits and loss of a call belong together; asked once for each set of options.

        The model's weights do not matter for that. One whose loss needs more, such as that of its experts, or is
        computed in another way, has another value.
        """
        if self._function is None:
            return False
        key = frozenset(options)
        if key not in self._known:
            # a copy, because the model writes to the caches that it is given
            given_args, given = copy.deepcopy((args, dict(kwargs)))
            result = self._own(*given_args, **given)
            loss, logits = getattr(result, "loss", None), getattr(result, "logits", None)
            self._known[key] = (
                isinstance(loss, torch.Tensor)
                and isinstance(logits, torch.Tensor)
                and torch.allclose(loss, self(logits, kwargs["labels"], options), rtol=1e-5, equal_nan=True)
            )
        return self._known[key]


def _loss_function(model: nn.Module) -> Callable[..., torch.Tensor] | None:
    try:
        function = getattr(model, "loss_function", None)
    except Exception:  # a property of somebody else's class
        return None
    return function if callable(function) else None
