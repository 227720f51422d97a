"""Classes of channels that can only be removed together, and the channels that cannot be removed."""

from __future__ import annotations

import numpy as np
import torch


class ChannelClasses:
    """A union-find of channels by number; those of one class are removed together or not at all.

    Attributes:
        kept: why a class cannot be removed, by its first channel.
        tied: where channels of a class met that are one channel for an operator, such as all that a norm reads.
        joins: how often two classes became one.
    """

    def __init__(self) -> None:
        self._parents = np.zeros(0, dtype=np.int64)
        self.kept: dict[int, str] = {}
        self.tied: dict[int, str] = {}
        self.joins = 0

    def __len__(self) -> int:
        return len(self._parents)

    def new(self, count: int) -> torch.Tensor:
        """Return the numbers of ``count`` new channels."""
        first = len(self._parents)
        self._parents = np.concatenate([self._parents, np.arange(first, first + count)])
        return torch.arange(first, first + count)

    def of(self, labels: torch.Tensor) -> torch.Tensor:
        """Return the class of each channel, in the same shape; dims along which nothing varies keep stride 0."""
        small = labels[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in labels.stride())]
        return torch.from_numpy(self._roots(small.numpy())).expand(labels.shape)

    def _roots(self, numbers: np.ndarray) -> np.ndarray:
        roots: np.ndarray = self._parents[numbers]
        while True:
            further = self._parents[roots]
            if np.array_equal(further, roots):
                return roots
            roots = further

    def join(self, one: torch.Tensor, other: torch.Tensor, tied: str = "") -> None:
        """Put these channels into one class, pair by pair.

        Args:
            one: numbers of channels.
            other: as many.
            tied: where and why, if an operator takes them for one.
        """
        pairs = np.stack([self._roots(one.numpy().reshape(-1)), self._roots(other.numpy().reshape(-1))], 1)
        pairs = np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0)
        for left, right in pairs.tolist():
            first, second = sorted((self._root(left), self._root(right)))
            if first != second:
                self._parents[second] = first
                self.joins += 1
                for table in (self.kept, self.tied):
                    if second in table:
                        table.setdefault(first, table.pop(second))
            if tied:
                self.tied.setdefault(first, tied)

    def _root(self, number: int) -> int:
        while (parent := int(self._parents[number])) != number:
            self._parents[number] = self._parents[parent]
            number = parent
        return number

    def keep(self, labels: torch.Tensor, why: str) -> None:
        """Mark these channels as not removable."""
        for root in np.unique(self._roots(labels.numpy().reshape(-1))).tolist():
            self.kept.setdefault(root, self.tied.get(root, why))

    def why_kept(self, label: int) -> str:
        """Return why a channel cannot be removed; empty if it can."""
        return self.kept.get(self._root(label), "")
