"""Place the labels of a few points so that none covers another label, a point or a whisker.

Works in pixels with y pointing down, on an area of a known size. Each label tries a fixed list of places around its
point, nearest first, and takes the one with the least overlap; so the same points always give the same picture.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_GAP = 6.0


@dataclass(frozen=True)
class Box:
    """A rectangle in pixels."""

    left: float
    top: float
    right: float
    bottom: float

    @classmethod
    def around(cls, x: float, y: float, width: float, height: float) -> Box:
        """Return the rectangle with its centre at ``(x, y)``."""
        return cls(x - width / 2, y - height / 2, x + width / 2, y + height / 2)

    def overlap(self, other: Box) -> float:
        """Return the common area in square pixels."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.bottom, other.bottom) - max(self.top, other.top)
        return width * height if width > 0 and height > 0 else 0.0

    def holds(self, point: Point) -> bool:
        """Return whether the point's centre lies inside."""
        return self.left <= point.x <= self.right and self.top <= point.y <= self.bottom

    def outside(self, area: Box) -> float:
        """Return by how many pixels it exceeds ``area``."""
        return (
            max(0.0, area.left - self.left)
            + max(0.0, self.right - area.right)
            + max(0.0, area.top - self.top)
            + max(0.0, self.bottom - area.bottom)
        )


@dataclass(frozen=True)
class Point:
    """A marker at ``(x, y)``, its radius, the end of its whisker, and the size of its label; all in pixels."""

    x: float
    y: float
    radius: float
    whisker_x: float
    label_width: float
    label_height: float

    def obstacles(self) -> list[Box]:
        """The marker and its whisker."""
        marker = Box.around(self.x, self.y, 2 * self.radius, 2 * self.radius)
        return [marker, Box(self.x, self.y - 4, max(self.whisker_x, self.x), self.y + 4)]


@dataclass(frozen=True)
class Place:
    """The centre of a label relative to its point; one that is not ``near`` needs a leader line."""

    dx: float
    dy: float
    near: bool


def place_labels(points: Sequence[Point], area: Box, reserved: Sequence[Box] = ()) -> list[Place]:
    """Return a place for each point's label, off the ``reserved`` boxes.

    Example:
        >>> place_labels([Point(100, 100, 8, 100, 60, 20)], Box(0, 0, 200, 200))
        [Place(dx=0.0, dy=-24.0, near=True)]
    """
    obstacles = [*reserved, *(box for point in points for box in point.obstacles())]
    taken: list[Box] = []
    places = []
    for point in points:
        costs = [(_cost(point, place, [*obstacles, *taken], area), i) for i, place in enumerate(_choices(point))]
        place = _choices(point)[min(costs)[1]]
        taken += [_box(point, place), *_leader(point, place)]
        places.append(place)
    return places


def _choices(point: Point) -> list[Place]:
    up = point.radius + _GAP + point.label_height / 2
    side = point.radius + _GAP + point.label_width / 2
    past_whisker = max(point.whisker_x - point.x, 0.0) + _GAP + point.label_width / 2
    shift = point.label_width / 2 - point.radius
    places = [Place(0.0, -up, True), Place(0.0, up, True), Place(max(side, past_whisker), 0.0, True)]
    places += [Place(-side, 0.0, True)]
    places += [Place(dx, dy, True) for dy in (-up, up) for dx in (shift, -shift)]
    for step in (1, 2, 3):
        far = up + step * (point.label_height + _GAP)
        places += [Place(dx, dy, False) for dy in (-far, far) for dx in (0.0, shift, -shift, side, -side)]
        wide = side + step * point.label_width / 2
        places += [Place(dx, dy, False) for dy in (-up, up) for dx in (wide, -wide)]
    return places


def _box(point: Point, place: Place) -> Box:
    return Box.around(point.x + place.dx, point.y + place.dy, point.label_width, point.label_height)


def _cost(point: Point, place: Place, others: Sequence[Box], area: Box) -> float:
    box = _box(point, place)
    covered = sum(box.overlap(other) for other in others)
    crossed = sum(dot.overlap(other) for dot in _leader(point, place) for other in others if not other.holds(point))
    return covered + 5.0 * crossed + 50.0 * box.outside(area)


def _leader(point: Point, place: Place) -> list[Box]:
    """Return the leader line as a row of small boxes, from the marker's edge to the label's."""
    if place.near:
        return []
    length = math.hypot(place.dx, place.dy)
    shares = [s / 24 for s in range(25) if s / 24 * length > point.radius]
    dots = [Box.around(point.x + s * place.dx, point.y + s * place.dy, 3, 3) for s in shares]
    label = _box(point, place)
    return [dot for dot in dots if not dot.overlap(label)]
