"""Detect whether a model's weights have changed."""

from __future__ import annotations

from torch import nn

from prepbench.adapt.trainable_model import TrainableModel
from prepbench.objects.digest import state_digest


def weights_of(model: nn.Module) -> bytes:
    """Return a digest of the values of a model's parameters and buffers."""
    return state_digest(dict(model.state_dict()), by_value=True).digest


class Unchanged:
    """The models that a training starts from, which must not be trained meanwhile.

    Args:
        prepared: the model that is trained.
        teacher: whose outputs are learned; None for nobody's.
    """

    def __init__(self, prepared: TrainableModel, teacher: nn.Module | None) -> None:
        self._original, self._prepared_from = prepared.parts.original, prepared.parts.prepared_from
        self._teacher = None if teacher is self._original else teacher
        self._learned = None if self._teacher is None else weights_of(self._teacher)
        self._learns_original = teacher is not None and teacher is self._original

    def notes(self) -> list[str]:
        """Return a warning for each model that has changed."""
        found = []
        if self._original is not None and self._prepared_from and weights_of(self._original) != self._prepared_from:
            learned = ", and learned the outputs of the new ones" if self._learns_original else ""
            found.append(
                f"The weights of the model have changed since pb.trainable: this started from the old ones{learned}. "
                "To start from the new ones, call pb.trainable again"
            )
        if self._teacher is not None and weights_of(self._teacher) != self._learned:
            found.append(
                "The weights of the teacher have changed during the training, so it learned the outputs of two models"
            )
        return found
