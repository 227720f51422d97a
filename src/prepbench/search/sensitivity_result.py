"""The result of ``pb.sensitivity``: the cost of quantizing each layer, for each candidate."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prepbench._display import view
from prepbench.checks import check_count, check_text, described
from prepbench.errors import UnknownNameError

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects


@dataclass(frozen=True)
class SensitivityRow:
    """One layer with one candidate, all other layers in float.

    Attributes:
        fqn: the layer.
        type: its class name.
        candidate: the name of the settings.
        estimated: the effect on the model's output, estimated from the layer's noise; in the unit of the result. None
            where the target does not support it.
        exact: the same, measured; None where it was not.
        metric: of the model; None where it was not measured.
        drop: by how much the metric is worse than in float; negative where it is better.
        own_sqnr: of the layer's own output, in dB.
        multiplications: of the layer for the first calibration sample.
        parameters: of the layer.
        weights_bytes: of its weights so; None where the target refuses it.
        refusal: why the target cannot take the layer so; empty if it can.
    """

    fqn: str
    type: str
    candidate: str
    estimated: float | None
    exact: float | None
    metric: float | None
    drop: float | None
    own_sqnr: float | None
    multiplications: int
    parameters: int
    weights_bytes: int | None
    refusal: str

    @property
    def effect(self) -> float | None:
        """The effect on the model's output: measured, or else estimated."""
        return self.estimated if self.exact is None else self.exact


@dataclass(frozen=True, repr=False)
class Sensitivity:
    """The result of :func:`prepbench.sensitivity`: the effect of quantizing each layer alone.

    Attributes:
        rows: one for each layer and candidate, layers in execution order.
        candidates: settings by name; of those that prune, settings of pruning or a pair with those of quantization.
        target: the deployment target as people call it.
        unit: of ``estimated`` and ``exact``: ``"dB"``, an SQNR of the model's output of which more is better, or
            ``"nats"``, the divergence of the predicted distributions of which less is better.
        metric: the name of the metric; empty without one.
        higher_is_better: whether more of the metric is better.
        in_float: the metric of the model in float; None without one.
        spread: how far apart two scores of the model in float were: 0 for a metric that is deterministic.

    Example:
        >>> found = pb.sensitivity(model, samples)
        >>> diagram.overlay(found.table(), "int8 SQNR")
        >>> [row.fqn for row in found.worst(3)]
    """

    rows: tuple[SensitivityRow, ...]
    candidates: Mapping[str, Any]
    target: str
    unit: str
    metric: str = ""
    higher_is_better: bool = True
    in_float: float | None = None
    spread: float = 0.0

    def __getitem__(self, fqn: str) -> tuple[SensitivityRow, ...]:
        """Return the rows of a layer, one for each candidate."""
        found = tuple(row for row in self.rows if row.fqn == fqn)
        if found:
            return found
        names = list(dict.fromkeys(row.fqn for row in self.rows))
        near = difflib.get_close_matches(str(fqn), names, 3, 0.4)
        which = "Nearest are" if near else "There are"
        known = ", ".join(map(repr, near or names[:8]))
        raise UnknownNameError(f"fqn: {described(fqn)} is not a layer that can be quantized. {which} {known}.")

    def worst(self, n: int = 5) -> tuple[SensitivityRow, ...]:
        """Return the rows with the highest cost: by the measured drop of the metric, then by the effect.

        Args:
            n: how many.

        Returns:
            The rows, the worst first.

        Raises:
            SettingsError: ``n`` is no whole number above 0.
        """
        check_count("n", n, 1)
        return tuple(sorted((row for row in self.rows if not row.refusal), key=self._badness, reverse=True)[:n])

    def _badness(self, row: SensitivityRow) -> tuple[float, float]:
        effect = row.effect
        bad = -math.inf if effect is None else -effect if self.unit == "dB" else effect
        if row.drop is None:
            return -math.inf, bad
        return row.drop if abs(row.drop) > self.spread else 0.0, bad  # less than the metric's own spread says nothing

    @property
    def caption(self) -> str:
        """Return one or two sentences that describe the measurement."""
        measured = sum(row.exact is not None for row in self.rows)
        possible = sum(not row.refusal for row in self.rows)
        what = "SQNR of the model's output" if self.unit == "dB" else "divergence of the model's predictions in nats"
        text = f"{self.target}: {what} with one layer quantized; {measured} of {possible} measured"
        text += ", others estimated." if measured < possible else "."
        if self.metric and self.in_float is not None:
            text += f" {self.metric} in float is {self.in_float:.4g}"
            text += (
                f", ±{self.spread:.2g} from one run to the next: smaller drops are not significant."
                if self.spread
                else "."
            )
        return text

    def table(self, candidate: str | None = None) -> pandas.DataFrame:
        """Return one row for each layer: with each candidate's effect (and drop), or with all columns of one candidate.

        Args:
            candidate: a name of :attr:`candidates`.

        Returns:
            A table whose index is the layers' names.

        Raises:
            UnknownNameError: there is no such candidate.
        """
        check_text("candidate", candidate, "int8", optional=True)
        if candidate is not None:
            self._check_candidate(candidate)
        return view("views.sensitivities", "sensitivity_table", self, candidate)  # type: ignore[no-any-return]

    def figure(self) -> plotly.graph_objects.Figure:
        """Draw the layers with the highest cost as bars, one for each candidate; estimated ones are paler."""
        return view("views.sensitivities", "sensitivity_figure", self)

    def _check_candidate(self, name: str) -> None:
        if name not in self.candidates:
            known = ", ".join(map(repr, self.candidates))
            raise UnknownNameError(f"candidate: there is no candidate {described(name)}. There are {known}.")

    def __repr__(self) -> str:
        return view("views.sensitivities", "sensitivity_text", self)  # type: ignore[no-any-return]

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return view("views.sensitivities", "bundle", self)  # type: ignore[no-any-return]
