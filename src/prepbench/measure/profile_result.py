"""The result of profiling: the time of each layer, and two profiles side by side."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prepbench._display import view
from prepbench.checks import check_type, described
from prepbench.errors import UnknownNameError

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects


@dataclass(frozen=True)
class ProfileRow:
    """One layer, or one named part of the rest.

    Attributes:
        name: FQN of the layer, "" for operations in the model's own forward; or a part of the rest, such as
            ``"conversions between integers and floats"``.
        is_layer: whether ``name`` is an FQN.
        type: class of the module; empty for the rest.
        ms: milliseconds in one call: the median over the quickest quarter of the calls.
        share: of the whole call, 0 to 1.
        weights_bytes: of its parameters as they are stored; None where that is not known.
        result_bytes: of its results; None where the runtime does not report them.
        operators: its operators, by the runtime's names.
    """

    name: str
    is_layer: bool
    type: str
    ms: float
    share: float
    weights_bytes: int | None
    result_bytes: int | None
    operators: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class Profile:
    """The time of one call by layer: the result of :func:`prepbench.profile`.

    Attributes:
        rows: layers and named parts of the rest, the slowest first.
        total_ms: milliseconds of a whole call under the profiler: the median over the quickest quarter of the calls.
        target: the deployment target as people call it; ``"PyTorch"`` for a model that is not compiled.
        calls: how many calls were measured.

    Example:
        >>> pb.profile(torch.nn.Sequential(torch.nn.Linear(4, 2)), torch.ones(8, 4))["0"].type
        'Linear'
    """

    rows: tuple[ProfileRow, ...]
    total_ms: float
    target: str
    calls: int

    def __getitem__(self, name: str) -> ProfileRow:
        """Return the row of a layer."""
        for row in self.rows:
            if row.name == name:
                return row
        names = [row.name for row in self.rows]
        near = difflib.get_close_matches(str(name), names, 3, 0.4)
        which = "Nearest are" if near else "The slowest are"
        known = ", ".join(map(repr, near or names[:8]))
        raise UnknownNameError(f"name: {described(name)} took no time of its own here. {which} {known}.")

    @property
    def placed(self) -> float:
        """The share of the time inside layers, 0 to 1; the rest has other names."""
        return sum(row.share for row in self.rows if row.is_layer)

    @property
    def caption(self) -> str:
        """Describe the conditions of the measurement in one sentence."""
        return (
            f"{self.target}: {self.total_ms:.3g} ms a call under its profiler, median of the quickest quarter of "
            f"{self.calls} calls; "
            f"{self.placed:.0%} of it in layers."
        )

    def table(self) -> pandas.DataFrame:
        """Return one row for each layer and each named part of the rest, the slowest first; sizes in MB (10**6
        bytes).
        """
        return view("views.profiles", "profile_table", self)  # type: ignore[no-any-return]

    def figure(self) -> plotly.graph_objects.Figure:
        """Draw the slowest layers as bars."""
        return view("views.profiles", "profile_figure", self)

    def against(self, other: Profile) -> ProfileDifference:
        """Compare this profile with another one of the same model, layer by layer.

        Args:
            other: of the model compiled otherwise, for instance.

        Returns:
            The difference, layer by layer.

        Raises:
            InputError: it is no profile.

        Example:
            >>> pb.profile(model, x).against(pb.profile(compiled, x)).table()
        """
        check_type("other", other, Profile, "Give what prepbench.profile returned.")
        return ProfileDifference(self, other)

    def __repr__(self) -> str:
        return view("views.profiles", "profile_text", self)  # type: ignore[no-any-return]

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return view("views.profiles", "bundle", self)  # type: ignore[no-any-return]


@dataclass(frozen=True, repr=False)
class ProfileDifference:
    """Two profiles of a model side by side.

    Attributes:
        first: the one that the other is compared with.
        second: the other.
    """

    first: Profile
    second: Profile

    @property
    def saved_ms(self) -> Mapping[str, float]:
        """Milliseconds saved in the second, by FQN or part of the rest; negative where it is slower. The largest
        first.

        A layer without time of its own was fused with its neighbours; runtimes fuse differently.
        """
        ms = [{row.name: row.ms for row in each.rows} for each in (self.first, self.second)]
        # to the picosecond: below that are errors of adding up
        saved = {name: round(ms[0].get(name, 0.0) - ms[1].get(name, 0.0), 9) for name in {**ms[0], **ms[1]}}
        return dict(sorted(saved.items(), key=lambda item: -abs(item[1])))

    @property
    def caption(self) -> str:
        """Describe both totals in one sentence."""
        first, second = self.first, self.second
        return f"{first.target} {first.total_ms:.3g} ms, {second.target} {second.total_ms:.3g} ms a call."

    def table(self) -> pandas.DataFrame:
        """Return one row for each layer, those first that changed most."""
        return view("views.profiles", "difference_table", self)  # type: ignore[no-any-return]

    def figure(self) -> plotly.graph_objects.Figure:
        """Draw both times of the layers that changed most as bars."""
        return view("views.profiles", "difference_figure", self)

    def __repr__(self) -> str:
        return view("views.profiles", "difference_text", self)  # type: ignore[no-any-return]

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return view("views.profiles", "bundle", self)  # type: ignore[no-any-return]
