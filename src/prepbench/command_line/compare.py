"""``compare``: compare saved models against budgets."""

from __future__ import annotations

import argparse
import inspect
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prepbench.command_line.outcomes import Outcome, Report
from prepbench.command_line.user_code import WHAT_RUNS, is_reference, load_model, load_object, load_values
from prepbench.errors import InputError

if TYPE_CHECKING:
    from prepbench.measure.comparison import CandidateResult, Comparison


SUMMARY = "Compare saved models: sizes, outputs against each other, accuracy and latency"
DESCRIPTION = (
    "A candidate is a folder that CompiledModel.save wrote, or script.py:model for the original. Nothing in a folder "
    f"is run, unless --allow-code says so. Each candidate is timed in a process of its own. {WHAT_RUNS}"
)
HAS_CHECKS = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("candidates", nargs="+", metavar="CANDIDATE", help="the others are compared with the first one")
    parser.add_argument(
        "--data",
        metavar="script.py:name",
        help="batches, or a function that returns them: inputs, or pairs (input, target) with --metric; without data, "
        "only sizes are compared",
    )
    parser.add_argument(
        "--metric",
        metavar="NAME",
        help="accuracy or another one of prepbench.metrics, or script.py:name (default: SQNR)",
    )
    parser.add_argument(
        "--lower-is-better",
        action="store_true",
        help="--metric is an error; those of prepbench.metrics and losses, by their name, are known",
    )
    parser.add_argument(
        "--rounds", type=int, default=20, metavar="N", help="rounds of timing; 0 leaves latency out (default: 20)"
    )
    parser.add_argument("--model", metavar="script.py:model", help="for folders of which parts run in Python")
    parser.add_argument("--allow-code", action="store_true", help="also load folders that hold machine code (Inductor)")
    add_budgets(parser)


def run(options: argparse.Namespace) -> Report:
    """Run the command."""
    bounds = given(options)
    _check(options, bounds)
    candidates = _named(options.candidates)
    if options.data is None:
        return _sizes(candidates, bounds)
    model = load_model(options.model, "--model") if options.model else None
    loaded = {name: _loaded(text, model, options.allow_code) for name, text in candidates.items()}
    return _measured(loaded, options, bounds)


def _check(options: argparse.Namespace, bounds: dict[Budget, float]) -> None:
    names = {budget.option for budget in bounds}
    if options.data is None and (wanted := sorted(names - {SIZE.option})):
        raise InputError(f"{', '.join(wanted)}: give --data script.py:name, too.")
    if options.data is None and options.metric:
        raise InputError("--metric: give --data script.py:name with pairs (input, target), too.")
    if options.lower_is_better and not options.metric:
        raise InputError("--lower-is-better is about --metric: give that, too.")
    if len(options.candidates) < 2 and (wanted := sorted(names & {SQNR.option, DROP.option, SPEED.option})):
        raise InputError(f"{', '.join(wanted)}: give a second candidate, which is compared with the first one.")
    if DROP in bounds and not options.metric:
        raise InputError(f"{DROP.option} needs --metric, e.g. --metric accuracy; {SQNR.option} bounds the noise.")
    if not options.rounds and (wanted := sorted(names & {"--max-ms", "--min-speedup"})):
        raise InputError(f"{', '.join(wanted)}: give --rounds of at least 1.")


def _named(candidates: Sequence[str]) -> dict[str, str]:
    """Return every candidate by a short name."""
    shorts = [_short(text) for text in candidates]
    names = [short if shorts.count(short) == 1 else text for short, text in zip(shorts, candidates, strict=True)]
    if len(set(names)) < len(names):
        raise InputError(f"A candidate is given twice: {', '.join(candidates)}.")
    return dict(zip(names, candidates, strict=True))


def _short(text: str) -> str:
    return text.rpartition(":")[2] if is_reference(text) else Path(text).resolve().name


def _loaded(text: str, model: Any, allow_code: bool) -> Any:
    if is_reference(text):
        return load_model(text, "CANDIDATE")
    from prepbench.package import load_compiled
    from prepbench.package.artifact import read_manifest
    from prepbench.package.leaves.model_leaves import SECTION

    needs_model = model is not None and read_manifest(Path(text)).get(SECTION) is not None
    return load_compiled(text, model=model if needs_model else None, allow_code=allow_code)


def _sizes(candidates: dict[str, str], bounds: dict[Budget, float]) -> Report:
    from prepbench.measure.comparison import megabytes

    sizes = {name: _size(text) for name, text in candidates.items()}
    width = max(map(len, sizes))
    lines = [f"{name.ljust(width)}  {megabytes(size)} MB" for name, size in sizes.items()]
    body = "\n".join([*lines, "Sizes only: --data script.py:name also compares outputs and latency."])
    return Report("compare", body, tuple(size_outcomes(sizes, bounds)), {"size_bytes": sizes})


def _size(text: str) -> int:
    """Return the bytes of a saved model by its own report, or of the parameters and buffers of an original."""
    if is_reference(text):
        from prepbench.objects.restore import state_bytes

        return state_bytes(load_model(text, "CANDIDATE"))
    from prepbench.package.artifact import read_manifest
    from prepbench.storage import folder_bytes

    said = read_manifest(Path(text)).get("report", {}).get("size_bytes")
    return said if isinstance(said, int) else folder_bytes(Path(text))


def _measured(candidates: dict[str, Any], options: argparse.Namespace, bounds: dict[Budget, float]) -> Report:
    from prepbench.measure.batches import read_batches
    from prepbench.measure.run import compare
    from prepbench.running.metric_scores import takes_targets

    metric = _metric(options.metric)
    data = load_values(options.data, "--data", options.candidates[0] if is_reference(options.candidates[0]) else "")
    noise = None
    if metric is not None and SQNR in bounds:
        data = list(data)  # iterated twice
        inputs = data
        if takes_targets(metric):  # read in the one way, which knows more forms than pairs
            inputs = [batch.sample for batch in read_batches(candidates.values(), data, with_targets=True)]
        noise = compare(candidates, inputs, rounds=0)
    higher = False if options.lower_is_better else None  # as known for the metric
    comparison = compare(candidates, data, metric=metric, higher_is_better=higher, rounds=options.rounds)
    return Report("compare", repr(comparison), tuple(outcomes(comparison, noise, bounds)), _as_data(comparison))


def _metric(name: str | None) -> Any:
    if name is None:
        return None
    if ":" in name:
        return load_object(name, "--metric")
    from prepbench.measure import metrics

    found = getattr(metrics, name, None)
    if not callable(found) or name.startswith("_") or getattr(found, "__module__", "").partition(".")[0] != "prepbench":
        raise InputError(f"--metric: there is no {name!r} in prepbench.metrics. Choose accuracy, or script.py:name.")
    try:
        inspect.signature(found).bind(None, None)
    except TypeError:
        raise InputError(
            f"--metric: prepbench.metrics.{name}{inspect.signature(found)} is no metric, but returns one. Write "
            f"metric = prepbench.metrics.{name}(...) in script.py, and give --metric script.py:metric."
        ) from None
    return found


def _as_data(comparison: Comparison) -> dict[str, Any]:
    rows = [
        {**{key: value for key, value in asdict(row).items() if key != "times_ms"}, "speed_up": found and asdict(found)}
        for row, found in zip(comparison.rows, comparison.speed_ups, strict=True)
    ]
    return {"metric": comparison.metric_label, "caption": comparison.caption, "candidates": rows}


# Budgets of a comparison: bounds that turn measured numbers into checks.


@dataclass(frozen=True)
class Budget:
    """An upper or lower bound of a measured value.

    Attributes:
        option: as it is written, e.g. ``"--max-ms"``.
        what: the bounded quantity, e.g. ``"latency"``.
        unit: of the number.
        help: for ``--help``.
        is_upper: whether more is worse.
    """

    option: str
    what: str
    unit: str
    help: str
    is_upper: bool

    @property
    def name(self) -> str:
        """The name of the bound in the parsed options."""
        return self.option.removeprefix("--").replace("-", "_")

    def read(self, text: str) -> float:
        """Return a bound as it is written on the command line; sizes and times are positive."""
        lowest = 0.0 if self in (SIZE, LATENCY, SPEED) else -math.inf
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < lowest:
            expected = "a number" if lowest else "a number of at least 0"
            raise argparse.ArgumentTypeError(f"{expected} is expected, got {text!r}")
        return value

    def outcome(self, candidate: str, value: float | None, bound: float) -> Outcome:
        """Return whether a value keeps the bound; a missing or NaN value does not."""
        words = f"at {'most' if self.is_upper else 'least'} {bound:g} {self.unit}".rstrip()
        title = f"{self.what} of {candidate}"
        if value is None:
            return Outcome(title, False, f"not measured, {words} expected")
        kept = value <= bound if self.is_upper else value >= bound
        found = f"{value + 0.0:.4g} {self.unit}".rstrip()  # 0 for -0
        return Outcome(title, kept, f"{found}, {words}" + ("" if kept else " expected"))


SIZE = Budget("--max-size-mb", "size", "MB", "size of the saved model (1 MB is 10**6 bytes)", True)
SQNR = Budget("--min-sqnr", "SQNR", "dB", "signal-to-noise ratio of the outputs against the first candidate's", False)
DROP = Budget("--max-drop", "drop", "", "how much worse the metric may be than the first candidate's", True)
LATENCY = Budget("--max-ms", "latency", "ms", "median time of one call", True)
SPEED = Budget(
    "--min-speedup", "speed-up", "×", "speed over float on the same runtime, or else in PyTorch eager", False
)
BUDGETS = (SIZE, SQNR, DROP, LATENCY, SPEED)


def add_budgets(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    group = parser.add_argument_group("budgets", "for each candidate but the first, or for the only one")
    for budget in BUDGETS:
        group.add_argument(budget.option, type=budget.read, metavar=budget.unit or "X", help=budget.help)


def given(options: argparse.Namespace) -> dict[Budget, float]:
    """Return the budgets that the call sets."""
    values = {budget: getattr(options, budget.name) for budget in BUDGETS}
    return {budget: value for budget, value in values.items() if value is not None}


def size_outcomes(sizes: dict[str, int], bounds: dict[Budget, float]) -> Iterator[Outcome]:
    """Yield the checks of sizes in bytes."""
    if SIZE in bounds:
        for name in _judged(list(sizes)):
            yield SIZE.outcome(name, sizes[name] / 1e6, bounds[SIZE])


def outcomes(comparison: Comparison, noise: Comparison | None, bounds: dict[Budget, float]) -> Iterator[Outcome]:
    """Yield the checks of a comparison; ``noise`` has the SQNR, where the metric is another one."""
    for name in _judged([row.name for row in comparison.rows]):
        row = comparison[name]
        for budget, bound in bounds.items():
            yield budget.outcome(name, _to_check(budget, row, comparison, noise), bound)


def _judged(names: list[str]) -> list[str]:
    return names[1:] or names


def _to_check(budget: Budget, row: CandidateResult, comparison: Comparison, noise: Comparison | None) -> float | None:
    if budget is SIZE:
        return None if row.size_bytes is None else row.size_bytes / 1e6
    if budget is SQNR:
        return row.metric if noise is None else noise[row.name].metric
    if budget is DROP:
        if row.change is None:
            return None
        return -row.change if comparison.higher_is_better else row.change
    if budget is LATENCY:
        return row.p50_ms
    found = comparison.speed_up(row.name)
    return None if found is None else found.value
