"""Search on the bench for the best settings within a budget."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

from prepbench.bench.found_settings import Found, chart_of, solved, stops_of, texts_of
from prepbench.bench.layer_costs import wanted_settings
from prepbench.bench.measuring import Measuring
from prepbench.bench.progress import SEARCHING
from prepbench.bench.queue import QueuedRun
from prepbench.bench.runs import OTHER_VALUES
from prepbench.bench.state import EVERYTHING, FLOAT, BenchState
from prepbench.bench.summary import SearchNow, SearchSummary
from prepbench.checks import check_function, check_progress, check_type, described
from prepbench.errors import SettingsError, UnknownNameError
from prepbench.jobs import Job, ProgressCallback, report_nothing
from prepbench.measure.generation import Generation
from prepbench.measure.metrics import Metric
from prepbench.measure.scores import metric_name
from prepbench.search.budget import Budget
from prepbench.search.candidates import name_of_settings
from prepbench.search.equalised import EqualizableCandidates
from prepbench.search.scoring import is_higher_better
from prepbench.search.search import search
from prepbench.search.search_result import SearchCandidate, SearchResult
from prepbench.settings import ExplainedLayer
from prepbench.targets import target_for
from prepbench.targets.capabilities import unsupported


class Searching(Measuring):
    """The search of a bench; see :class:`prepbench.Bench`."""

    def __init__(self, *given: Any, **named: Any) -> None:
        self.search_result: SearchResult | None = None
        self._found = Found()
        self._shown_search: tuple[Found, SearchSummary] | None = None
        self._searched: tuple[BenchState, Hashable] | None = None
        super().__init__(*given, **named)

    @property
    def is_searching(self) -> bool:
        """Whether a search is running or queued."""
        return self._queue.has(None, "search")

    def search(self, budget: Budget, progress: ProgressCallback = report_nothing) -> SearchResult:
        """Find the settings of each layer that are best within a budget, as :func:`prepbench.search` does.

        Each layer may take any settings that are planned for some layer now, or stay in float; integers also with
        equalized channels, where that is at least 1 dB quieter. Candidates are scored on the data of the bench, for
        each chosen target. Once the bench is saved, measurements go to its journal and are not repeated.

        Args:
            budget: the limits, and the objective.
            progress: receives each step; raise :class:`prepbench.Cancelled` from it to stop. What was measured by then
                stays in :meth:`summary`.

        Returns:
            The result, also in :attr:`search_result`. :meth:`use_candidate` makes one of its candidates the choices.

        Raises:
            SettingsError: there are no calibration inputs, no layers, or leaves, which a search cannot keep.
            PrepbenchError: :func:`prepbench.search` failed.

        Example:
            >>> bench.use_candidate(bench.search(pb.Budget(min_metric=30)).best)
        """
        check_type("budget", budget, Budget, "Write pb.Budget(min_metric=30).")
        check_progress(progress)
        self._check_searchable()
        return self._search(budget, self.state, self.explained, progress)

    def start_search(
        self,
        budget: Budget,
        progress: ProgressCallback = report_nothing,
        on_end: Callable[[BaseException | None], None] | None = None,
    ) -> Job[SearchResult]:
        """Run :meth:`search` in a background thread with the current choices, after the running and waiting work.

        Args:
            budget: the limits, and the objective.
            progress: receives each step, in the job's thread.
            on_end: called once at the end, in the job's thread, with the error or None.

        Returns:
            The job, which can be waited for or cancelled.
        """
        check_type("budget", budget, Budget, "Write pb.Budget(min_metric=30).")
        check_progress(progress)
        check_function("on_end", on_end, "on_end(error)", optional=True)
        self._check_searchable()
        state, explained = self.state, self.explained
        run = QueuedRun.other("search", f"search {budget}", state, explained)
        return self._enqueued(
            run,
            lambda step: self._search(budget, state, explained, step),
            progress,
            on_end,
            said=lambda: self.search_result.caption if self.search_result is not None else "",
            stages=SEARCHING,
        )

    def use_candidate(self, candidate: SearchCandidate | str) -> None:
        """Make the settings of a candidate of a search the current choices; this can be undone.

        Args:
            candidate: of a search of this model, or the id that :meth:`summary` has.

        Raises:
            UnknownNameError: there is no such id.
            SettingsError: it is of another model.
        """
        if isinstance(candidate, str):
            found = self._found.candidates.get(candidate)
            if found is None:
                known = ", ".join(list(self._found.candidates)[:8]) or "none yet: bench.search(budget) finds some"
                raise UnknownNameError(
                    f"candidate: nothing found has the id {described(candidate)}. There are {known}."
                )
            candidate = found
        check_type("candidate", candidate, SearchCandidate, "Give bench.search(budget).best, or an id of the summary.")
        state = self._with(candidate)
        self.layer_rules.explained(state.quantization, state.rules)  # raises what is of another model
        self._choose(**vars(state))

    def search_summary(self) -> SearchSummary:
        """Return the search as front ends show it."""
        if self._shown_search is None or self._shown_search[0] is not self._found:
            self._shown_search = self._found, self._summary_of(self._found)
        return self._shown_search[1]

    def search_now(self) -> SearchNow:
        """Return how the current choices relate to the search."""
        return SearchNow(self._not_searchable(), self.is_searching, self._old_search(), self._used())

    # -- inside --------------------------------------------------------------------------------------------------------

    def _summary_of(self, found: Found) -> SearchSummary:
        bound, stops, stop = stops_of(found)
        return SearchSummary(
            metric="" if self._search_metric is None else metric_name(self._search_metric),
            budget="" if found.budget is None else str(found.budget),
            why=found.why,
            notes=found.notes,
            found=texts_of(found),
            chart=chart_of(found),
            bound=bound,
            stops=stops,
            stop=stop,
        )

    @property
    def _search_metric(self) -> Metric | None:
        """Return the metric of a search; None for the SQNR, which is also used for generating models."""
        return None if isinstance(self.data, Generation) else self.metric

    def _not_searchable(self) -> str:
        if not self.layer_rules.layers:
            return "The model has no layer that can be quantized, so there is nothing to search."
        if not self.calibration_inputs:
            return "A search needs calibration inputs: Bench(model, calibration_inputs=[...])."
        if not self.state.fullgraph:
            return "A search needs the model as one graph: let no lines run in PyTorch, and keep no leaf modules."
        return ""

    def _check_searchable(self) -> None:
        why = self._not_searchable()
        if why:
            raise SettingsError(why)

    def _search(
        self, budget: Budget, state: BenchState, explained: tuple[ExplainedLayer, ...], progress: ProgressCallback
    ) -> SearchResult:
        candidates = self._candidates(state, explained)
        metric = self._search_metric
        self.search_result, self._searched = None, (state, self.value_mark)
        named = ("SQNR", "dB", True) if metric is None else (metric_name(metric), "", is_higher_better(metric, None))
        self._found = Found(budget, *named)
        self._changed()

        def measured(candidate: SearchCandidate) -> None:
            self._found = self._found.with_candidate(candidate)
            self._changed()

        result = search(
            self._captures.model(state.fixes),
            self.calibration_inputs,
            budget=budget,
            targets=state.targets,
            candidates=candidates,
            data=None if isinstance(self.data, Generation) else self.data,
            metric=metric,
            tracing_inputs=self.tracing_inputs,
            dynamic_axes=state.axes,
            compile_options=state.options,
            reuse=self._kept,
            results=self.journal_path,
            progress=progress,
            on_candidate=measured,
        )
        self._found = solved(result)
        self.search_result = result
        self._changed()
        return result

    def _candidates(self, state: BenchState, explained: tuple[ExplainedLayer, ...]) -> EqualizableCandidates:
        """Return the settings that are planned for some layer and supported by all targets."""
        kinds = dict.fromkeys(s for several in wanted_settings(explained, state).values() for s in several)
        placements = [target_for(each).placement for each in state.targets]
        taken = [settings for settings in kinds if not any(unsupported(settings, one) for one in placements)]
        if not taken:
            raise SettingsError(
                "None of the planned precisions is supported by every chosen target. Choose another precision for some "
                "layers, or another target."
            )
        return EqualizableCandidates({name_of_settings(settings): settings for settings in taken})

    def _with(self, candidate: SearchCandidate) -> BenchState:
        """Return the current choices with the settings of a candidate."""
        given = dict(candidate.settings)
        rules = given.get("layer_quantization_settings", {}) if "quantization_settings" in given else None
        return replace(
            self.state,
            quantization=given.get("quantization_settings", self.state.quantization),
            rules={EVERYTHING: FLOAT} if rules is None else dict(rules),
            options=given["compile_options"],
            targets=(given["deployment_settings"],),
        )

    def _used(self) -> int:
        now = self.state
        for at, candidate in enumerate(self._found.placed.values()):
            if self._with(candidate) == now:
                return at
        return -1

    def _old_search(self) -> str:
        """Return what changed since the search ran; settings of layers do not count, because they are its result."""
        if self._searched is None:
            return ""
        state, values = self._searched
        now = self.state
        said = list(now.differences(replace(state, options=now.options)))
        said += [OTHER_VALUES] if values != self.value_mark else []
        return "; ".join(said)
