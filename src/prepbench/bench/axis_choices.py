"""The choices of a bench about dynamic axes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from prepbench.capture.sizes.axis import Axis
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.checks import check_switch, check_texts


class AxisChoices(ABC):
    """Which dims of inputs are dynamic; part of :class:`prepbench.bench.choices.Choices`."""

    @property
    @abstractmethod
    def axes(self) -> DynamicAxes:
        """The currently chosen axes."""

    @abstractmethod
    def _choose(self, **changes: Any) -> None: ...

    def set_axis(self, path: str | Iterable[str], dim: int, dynamic: bool, *, linked: bool = False) -> None:
        """Make a dim of an input dynamic or static.

        Args:
            path: the input; ``[*]`` in it stands for every index, and ``past.*`` for every tensor of ``past``. Several
                are changed in one step.
            dim: the dim.
            dynamic: whether other sizes must work.
            linked: do the same to the dims of :meth:`linked_axes`.

        Raises:
            InputError: there is no such input or dim.
        """
        check_switch("linked", linked)
        axes = self.axes
        for each in _paths(path):
            axes = axes.set(each, dim, dynamic)
            for axis in self.linked_axes(each, dim) if linked else ():
                axes = axes.set(axis.path, axis.dim, dynamic)
        self._choose(axes=axes)

    def name_axis(self, path: str, dim: int, name: str) -> None:
        """Name the size of a dim, and of all dims of the same size; this makes them dynamic.

        Args:
            path: the input, e.g. ``"input_ids"``.
            dim: the dim.
            name: an identifier, e.g. ``"batch"``.

        Raises:
            InputError: there is no such dim, or the name is no identifier or another size's.
        """
        self._choose(axes=self.axes.rename(path, dim, name))

    def limit_axis(
        self,
        path: str | Iterable[str],
        dim: int,
        min: int | None = None,
        max: int | None = None,
        *,
        linked: bool = False,
    ) -> None:
        """Make a dim dynamic between two sizes, both included; None for no limit. See :meth:`set_axis`.

        Args:
            path: the input, or several.
            dim: the dim.
            min: the smallest size.
            max: the largest size.
            linked: do the same to the dims of :meth:`linked_axes`.

        Raises:
            InputError: there is no such dim, the range is empty, or a sample lies outside.
        """
        check_switch("linked", linked)
        axes = self.axes
        for each in _paths(path):
            axes = axes.limit(each, dim, min=min, max=max)
            for axis in self.linked_axes(each, dim) if linked else ():
                axes = axes.limit(axis.path, axis.dim, min=min, max=max)
        self._choose(axes=axes)

    def linked_axes(self, path: str, dim: int) -> tuple[Axis, ...]:
        """Return the other dims that vary together with a dim.

        Args:
            path: the input.
            dim: the dim.

        Returns:
            The dims whose sizes are equal on all samples. A size that is the same in all samples proves little: of such
            dims, only first ones with a size above 1 are linked, because they are the batch.
        """
        first = self.axes.set(path, dim)._found(path, dim)[0]
        return tuple(
            axis
            for axis in self.axes.axes
            if (axis.path, axis.dim) != (first.path, first.dim)
            and axis.sizes == first.sizes
            and (len(set(axis.sizes)) > 1 or _is_batch(axis, first) or (axis.dynamic and axis.symbol == first.symbol))
        )


def _is_batch(axis: Axis, other: Axis) -> bool:
    """Return whether two dims of one size are both first dims; size 1 does not count, since it broadcasts."""
    return axis.dim == other.dim == 0 and axis.sizes[0] > 1


def _paths(path: Any) -> list[Any]:
    """Return a path or several paths as a list; a wrong type is reported later, where paths are looked up."""
    if isinstance(path, str) or not isinstance(path, Iterable):
        return [path]
    paths = list(path)
    check_texts("path", paths, "input_ids")
    return paths
