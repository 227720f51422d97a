"""The check of a model that was prepared for one mode only."""

from __future__ import annotations

from typing import Any

from prepbench.document.model import SourceLine
from prepbench.errors import PreparationError
from prepbench.prepare.model import PreparedModel
from prepbench.prepare.training_flag import place_text


class FixedMode:
    """Refuses to run a model in the mode that it was not prepared for, because the original runs other code there."""

    def __init__(self, training: bool, source: SourceLine) -> None:
        self.training, self.source = training, source

    def __call__(self, model: PreparedModel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Look at one call.

        Raises:
            PreparationError: the model is in the other mode.
        """
        if model.training != self.training:
            ours, other = ("train()", "eval()") if self.training else ("eval()", "train()")
            raise PreparationError(
                f"This {model.original_type.__name__} was prepared in {ours} mode and is in {other} mode, in which the "
                f"original runs other code ({place_text(self.source)}). Prepare it "
                f"again after model.{other}, or exclude the module with that line."
            )
