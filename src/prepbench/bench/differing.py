"""Two runs of a bench side by side: in what they differ, and the samples on which their outputs differ most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from prepbench.bench.choices import Choices
from prepbench.bench.inputs import Inputs
from prepbench.bench.queue import Jobs, QueuedRun
from prepbench.bench.runs import Runs
from prepbench.bench.status import SAMPLING
from prepbench.bench.summary import RunDifference
from prepbench.checks import check_count, check_function, check_progress
from prepbench.document.bench import SamplePart, ShownSample, ShownSamples
from prepbench.errors import InputError, SettingsError
from prepbench.jobs import Cancelled, Job, ProgressCallback, report_nothing
from prepbench.measure.generation import Generation
from prepbench.measure.kept_samples import WorstSamples
from prepbench.measure.run import farthest_samples
from prepbench.results.measurement import Run, WrittenText
from prepbench.views.sample_parts import shown_samples

SHOWN = 3
"""Samples that a page shows of two runs."""


@dataclass(eq=False)
class Differing:
    """Compares two runs of a bench; see :class:`prepbench.Bench`."""

    inputs: Inputs
    choices: Choices
    runs: Runs
    jobs: Jobs
    changed: Callable[[], None]

    def worst_samples(
        self, first: str, second: str, n: int = 5, progress: ProgressCallback = report_nothing
    ) -> WorstSamples:
        """Return the samples on which the outputs of two runs differ most, the largest difference first.

        Both compiled models are called with the data of the comparison, or else with the samples; nothing is timed.

        Args:
            first: id of a run that was compiled in this process.
            second: id of the other.
            n: how many samples; at most 16.
            progress: receives each batch; it may raise :class:`prepbench.Cancelled`.

        Returns:
            The samples, with inputs and outputs. A notebook shows images as images, and audio can be heard.

        Raises:
            UnknownNameError: there is no such run.
            SettingsError: a run was not compiled in this process, or both are the same one.
            InputError: the bench generates text, or the outputs cannot be compared row by row.
        """
        check_count("n", n, 1)
        check_progress(progress)
        one, other = self.runs.get(first, "first"), self.runs.get(second, "second")
        if one.id == other.id:
            raise SettingsError(f"first and second are both {one.name!r}. Give two runs.")
        reason = self._why_not(one, other)
        if reason:
            raise SettingsError(reason)
        data, inputs = self.inputs.compared_on, self.inputs
        if isinstance(data, Generation):
            raise InputError(
                "The bench generates text: bench.comparison.worst() has the prompts after which a run deviates from "
                "the float model."
            )
        return farthest_samples(
            {run.name: self.runs.compiled[run.id] for run in (one, other)},
            data,
            metric=inputs.metric,
            n=n,
            progress=progress,
            decode=inputs.decode,
            modality=inputs.modality,
            sampling_rate=inputs.sampling_rate,
            caller=inputs.model,
        )

    def start_comparing(
        self, first: str, second: str, on_end: Callable[[BaseException | None], None] | None = None
    ) -> Job[WorstSamples] | None:
        """Show the differences between two runs at once, and look for their samples in the background.

        Args:
            first: id of a run.
            second: id of the other.
            on_end: called once at the end, in the job's thread, with the error or None.

        Returns:
            The job; None where there is nothing to run, as :attr:`RunDifference.samples` says then.

        Raises:
            UnknownNameError: there is no such run.
        """
        check_function("on_end", on_end, "on_end(error)", optional=True)
        self.runs.compare_runs(first, second)
        one, other = self.runs.get(first), self.runs.get(second)
        texts = _written(one, other)
        reason = "" if texts.samples else self._why_not(one, other)
        if texts.samples or reason:
            self._show(replace(texts, first=one.name, second=other.name, caption=texts.caption or reason))
            return None
        self._show(ShownSamples(one.name, other.name, "Looking for the samples on which they differ most …"))
        run = QueuedRun.other("samples", "compare samples", self.choices.state, self.choices.planned)
        compared = self.runs.difference

        def look(progress: ProgressCallback) -> WorstSamples:
            found = self.worst_samples(first, second, SHOWN, progress)
            self._show(shown_samples(found), compared)
            return found

        def ended(error: BaseException | None) -> None:
            if error is not None:
                said = "Cancelled before the samples were compared." if isinstance(error, Cancelled) else ""
                self._show(ShownSamples(one.name, other.name, said), compared)
            if on_end is not None:
                on_end(error)

        return self.jobs.add(run, look, report_nothing, ended, said=lambda: "", stages=SAMPLING)

    def _why_not(self, one: Run, other: Run) -> str:
        gone = [run.name for run in (one, other) if run.id not in self.runs.compiled]
        if not gone:
            return ""
        is_one = len(gone) == 1
        return (
            f"{' and '.join(gone)} {'was' if is_one else 'were'} compiled in another session: restore "
            f"{'it' if is_one else 'them'} and compile to see the samples on which the runs differ."
        )

    def _show(self, samples: ShownSamples, compared: RunDifference | None = None) -> None:
        """Show samples beside the current difference; those of an earlier one come too late."""
        now = self.runs.difference
        if compared is not None and (now.first, now.second) != (compared.first, compared.second):
            return
        self.runs.difference = replace(now, samples=samples)
        self.changed()


def _written(one: Run, other: Run) -> ShownSamples:
    """Return the prompts after which two runs wrote different texts, those that part earliest first."""
    made = [run.generation for run in (one, other)]
    first, second = made
    if first is None or second is None or first.prompts != second.prompts:
        return ShownSamples()
    differ = [at for at in range(len(first.prompts)) if _whole(first.texts[at]) != _whole(second.texts[at])]
    differ.sort(key=lambda at: min(first.texts[at].agree, second.texts[at].agree))
    if not differ:
        return ShownSamples(caption=f"Both wrote the same after all of {len(first.prompts)} prompts.")
    samples = tuple(
        ShownSample(
            f"prompt {at}",
            f"{first.texts[at].agree} and {second.texts[at].agree} tokens as the float model's",
            (SamplePart("prompt", "text", "", first.prompts[at]),),
            (_text(first.texts[at]),),
            (_text(second.texts[at]),),
            first.float_texts[at] if at < len(first.float_texts) else "",
        )
        for at in differ[:SHOWN]
    )
    count = len(differ)
    caption = f"They wrote different texts after {count} of {len(first.prompts)} prompts."
    return ShownSamples(
        caption=f"{caption} The first token that the float model did not write is marked.", samples=samples
    )


def _whole(text: WrittenText) -> str:
    return text.same + text.other + text.rest


def _text(text: WrittenText) -> SamplePart:
    said = "" if text.agree == text.tokens else f"deviates from token {text.agree + 1} of {text.tokens}"
    return SamplePart("", "text", said, text.same, text.other, text.rest)
