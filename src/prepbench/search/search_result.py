"""The result of a search: every measured or predicted mixture, and the best within the budget."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from prepbench._display import view
from prepbench.checks import check_text, check_type, described, nearest_are
from prepbench.errors import SettingsError, UnknownNameError
from prepbench.search.mixtures import FLOAT, Mixture, code_of
from prepbench.search.objective import DROP, OBJECTIVES, Budget, costs_besides_drop
from prepbench.search.objective import SearchCandidate as SearchCandidate
from prepbench.search.tables import Tables

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects


class Knowledge(Protocol):
    """The interface by which a result asks the search's knowledge."""

    def result(self, budget: Budget) -> SearchResult:
        """Return the best within a budget, without measuring."""

    def predicted(self, layers: Mapping[str, str], target: str | None) -> SearchCandidate:
        """Return the predicted or measured values of a choice for each layer."""

    @property
    def is_outdated(self) -> bool:
        """Whether the model's weights have changed since."""


@dataclass(frozen=True, repr=False)
class SearchResult:
    """The result of :func:`prepbench.search`: candidates, the best within the budget, and predictions.

    Attributes:
        budget: the budget of the search.
        candidates: all measured and predicted ones, the measured ones first.
        best: the best within the budget; where none is, the nearest to it.
        reached: whether the best is within the budget.
        proven: whether the best was measured and no other is predicted to be better within the budget; or, where the
            budget is not reached, whether the nearest was measured and shows that it cannot be.
        why: how the search ended, in words.
        metric: the metric's name.
        unit: ``"dB"`` for SQNR, else empty.
        higher_is_better: direction of the metric.
        base: the metric in float; infinite for an SQNR.
        evaluations: how often the metric was computed over all the data, float included.
        compiled: how many models were compiled.
        notes: remarks, e.g. on a metric that is not deterministic.
        given: further arguments of ``compile_model`` that the search was called with, such as ``tracing_inputs``.

    Example:
        >>> result.reached  # result is what pb.search gave
        True
        >>> compiled = pb.compile_model(model, calibration_inputs=samples, **result.settings)
    """

    budget: Budget
    candidates: tuple[SearchCandidate, ...]
    best: SearchCandidate
    reached: bool
    proven: bool
    why: str
    metric: str
    unit: str
    higher_is_better: bool
    base: float
    evaluations: int
    compiled: int
    notes: tuple[str, ...] = ()
    given: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    _known: Knowledge | None = field(default=None, compare=False)

    def __getitem__(self, name: str) -> SearchCandidate:
        """Return the candidate of this name."""
        for each in self.candidates:
            if each.name == name:
                return each
        known = ", ".join(repr(each.name) for each in self.candidates[:8])
        raise UnknownNameError(f"name: no candidate is called {described(name)}. Give one of them: {known}.")

    @property
    def front(self) -> tuple[SearchCandidate, ...]:
        """The candidates that no other beats in both the drop and the objective, the best metric first."""
        cost = OBJECTIVES[self.goal].value
        known = [each for each in self.candidates if math.isfinite(cost(each)) and math.isfinite(DROP.value(each))]
        found: list[SearchCandidate] = []
        for each in sorted(known, key=lambda each: (cost(each), DROP.value(each), not each.measured)):
            if not found or DROP.value(each) < DROP.value(found[-1]):
                found.append(each)
        return tuple(reversed(found))

    @property
    def goal(self) -> str:
        """The second axis of the front and the chart, beside the drop: ``"latency"`` or ``"size"``."""
        minimized = OBJECTIVES[self.budget.minimize]
        bounded = (one for one in costs_besides_drop() if one.bound(self.budget) is not None)
        return minimized.name if minimized is not DROP else next(bounded).name

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments that compile the best: ``pb.compile_model(model, calibration_inputs=..., **result.settings)``."""
        return {**self.given, **self.best.settings}

    def code(self) -> str:
        """Return the call that compiles the best, to paste into a cell; the search's arguments keep their names."""
        return code_of(self.best.settings, tuple(self.given))

    def with_budget(self, budget: Budget) -> SearchResult:
        """Return the best within another budget, from this search's measurements; nothing is compiled or measured.

        Args:
            budget: another one.

        Returns:
            A result with further candidates that are predicted; ``proven`` where the best was measured already.

        Raises:
            SettingsError: it is no budget, or names a drop where there is no metric.

        Example:
            >>> result.with_budget(pb.Budget(max_drop=0.02)).best.predicted_ms
        """
        check_type("budget", budget, Budget, "Write budget=pb.Budget(max_drop=0.01).")
        return self._knowledge.result(budget)

    def predict(self, layers: Mapping[str, str], target: str | None = None) -> SearchCandidate:
        """Predict the values of a mixture of your own from this search's measurements; nothing is compiled.

        Args:
            layers: the name of a candidate by FQN of a layer; layers that are missing stay in float.
            target: the name that candidates have for it; needed where the search had several.

        Returns:
            The measured candidate with these choices, or a predicted one.

        Raises:
            UnknownNameError: there is no such layer, candidate or target.
            SettingsError: the target cannot take a layer so, or layers that share weights differ.

        Example:
            >>> result.predict({"0": "int8"}).predicted_ms
        """
        check_user_mixture(layers)
        check_text("target", target, "ONNX Runtime", optional=True)
        return self._knowledge.predicted(layers, target)

    @property
    def _knowledge(self) -> Knowledge:
        if self._known is None:
            raise SettingsError(
                "This result was created by hand and cannot be solved for another budget. Call prepbench.search."
            )
        return self._known

    @property
    def remarks(self) -> tuple[str, ...]:
        """The notes, preceded by a warning if the model's weights have changed since they were measured."""
        return (*([_OUTDATED] if self._known is not None and self._known.is_outdated else []), *self.notes)

    @property
    def caption(self) -> str:
        """The budget and how the search ended, in one line."""
        return f"{str(self.budget)[:1].upper()}{str(self.budget)[1:]}: {self.why}"

    def table(self) -> pandas.DataFrame:
        """One row for each candidate, the best first; sizes in MB (10**6 bytes)."""
        return view("views.search_slider", "search_table", self)  # type: ignore[no-any-return]

    def figure(self, budgets: Iterable[Budget] = ()) -> plotly.graph_objects.Figure:
        """The metric against latency or size: measured filled, predicted hollow, with the front and the budget.

        Args:
            budgets: the stops of a slider below the chart, each solved as in :meth:`with_budget`. It moves
                without a kernel, too.

        Returns:
            A plotly figure.

        Raises:
            SettingsError: there is something else among the budgets, or one is not possible.

        Example:
            >>> result.figure([pb.Budget(max_drop=drop) for drop in (0, 0.01, 0.02, 0.05)])
        """
        wanted = tuple(_budgets(budgets))
        if wanted:
            return view("views.search_slider", "slider_figure", self, wanted)
        return view("views.search_slider", "search_figure", self)

    def __repr__(self) -> str:
        return view("views.search_slider", "search_text", self)  # type: ignore[no-any-return]

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return view("views.search_slider", "search_bundle", self)  # type: ignore[no-any-return]


def _budgets(given: object) -> Iterator[Budget]:
    if not isinstance(given, Iterable) or isinstance(given, str | bytes):
        raise SettingsError(f"budgets must be a list of budgets, got {described(given)}. {_SLIDER}")
    for index, budget in enumerate(given):
        check_type(f"budgets[{index}]", budget, Budget, _SLIDER)
        yield budget


_OUTDATED = "The weights of the model have changed since this was measured. Search again to measure those of now."
_SLIDER = "Write budgets=[pb.Budget(max_drop=0), pb.Budget(max_drop=0.01)]."


def check_user_mixture(layers: object) -> None:
    """Raise ``SettingsError`` unless these are names of candidates by names of layers."""
    if isinstance(layers, Mapping) and all(isinstance(text, str) for pair in layers.items() for text in pair):
        return
    raise SettingsError(
        f"layers must be a dict of names of candidates by FQN, got {described(layers)}. Write "
        'layers={"head": "int8"}.'
    )


def mixture_of(tables: Tables, layers: Mapping[str, str]) -> Mixture:
    """Return the mixture with these choices; all other layers stay in float.

    Raises:
        UnknownNameError: there is no such layer or choice.
        SettingsError: a layer cannot take its choice, or layers that share weights differ.
    """
    for fqn, name in layers.items():
        _check_known(f"layers: there is no layer {described(fqn)} that can be quantized", fqn, tables.layers)
        _check_known(f"layers[{fqn!r}]: there is no candidate {described(name)}", name, tables.choices)
        if why := tables.refused.get((fqn, name)):
            raise SettingsError(f"layers[{fqn!r}] cannot be {name!r}: {why.rstrip('.')}. Leave it in float.")
    for group in tables.groups:
        if len({layers.get(fqn, FLOAT) for fqn in group}) > 1:
            raise SettingsError(
                f"layers: {', '.join(map(repr, sorted(group)))} share weights and so must take the same candidate. "
                "Name all of them, with one candidate."
            )
    return tuple(layers.get(fqn, FLOAT) for fqn in tables.layers)


def _check_known(message: str, name: object, known: Iterable[str]) -> None:
    names = list(known)
    if name in names:
        return
    raise UnknownNameError(f"{message}. {nearest_are(name, names)}")
