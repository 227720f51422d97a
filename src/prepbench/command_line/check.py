"""``check``: test whether a model can be captured, and whether it got worse than a baseline."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prepbench.command_line.files import read_bounded
from prepbench.command_line.outcomes import Outcome, Report
from prepbench.command_line.user_code import WHAT_RUNS, load_model, load_values
from prepbench.document.codec import parsed
from prepbench.errors import CaptureError, DocumentError, InputError
from prepbench.storage import write_file

if TYPE_CHECKING:
    from prepbench.capture.traceability import TraceabilityReport
    from prepbench.document.model import Failure


SUMMARY = "Check whether a model can be captured as one graph"
DESCRIPTION = (
    "The model is captured in each way (torch.export, dynamo, tracing at module level) and compared with its graphs on "
    f"all samples. {WHAT_RUNS}"
)
HAS_CHECKS = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "model",
        metavar="script.py:model",
        help="a torch.nn.Module, or a function without arguments that returns it; also package.module:name",
    )
    parser.add_argument(
        "--inputs",
        default="samples",
        metavar="NAME",
        help="the sample inputs, or a function that returns them: a name in the same script (default: samples), or "
        "script.py:name; sizes that differ between samples are dynamic",
    )
    parser.add_argument(
        "--target",
        metavar="NAME",
        help="also check its operators, e.g. openvino; for a name that there is not, all are listed",
    )
    parser.add_argument(
        "--time-limit", type=float, default=60.0, metavar="S", help="seconds for each way (default: 60)"
    )
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--baseline", metavar="FILE", help="fail only for what this committed file does not know")
    group.add_argument("--write-baseline", metavar="FILE", help="write down what fails now, and succeed")


def run(options: argparse.Namespace) -> Report:
    """Run the command."""
    before = read_baseline(options.baseline) if options.baseline else None  # wrong files first: the rest is slow
    model = load_model(options.model, "MODEL")
    samples = load_values(options.inputs, "--inputs", options.model)
    from prepbench.compile import check_traceability

    try:
        report = check_traceability(model, samples, target=_target(options.target), time_limit=options.time_limit)
    except CaptureError as error:
        return Report("check", outcomes=(Outcome("runs on its samples", False, str(error)),))
    data = {"model_type": report.model_type, "ways": _as_data(report)}
    if options.write_baseline:
        write_baseline(report, options.write_baseline)
        return Report("check", f"{report}\n\nWritten to {options.write_baseline}", data=data)
    if before is not None:
        return Report("check", repr(report), tuple(compared(report, before)), data)
    return Report("check", repr(report), (Outcome("can be captured", report.passed, report.verdict),), data)


def _target(name: str | None) -> Any:
    if name is None:
        return None
    from prepbench.targets.registry import TARGETS

    for target in TARGETS:
        if target.name == name:
            return target.settings_type()
    raise InputError(f"--target: there is no {name!r}. Choose one of {', '.join(target.name for target in TARGETS)}.")


def _as_data(report: Any) -> dict[str, Any]:
    return {
        name: {"passed": passed, "failures": [vars(one) for one in reasons.elements()]}
        for name, (passed, reasons) in ways_of(report).items()
    }


# The failures at the time of writing, in a file to commit, so that only new ones fail the check.


FORMAT = "prepbench baseline 1"
LIMIT = 64 * 2**20
_REMEDY = "--write-baseline writes a new one."


@dataclass(frozen=True, order=True)
class Known:
    """A reason why something is not in the graph, without its line number, which other changes move.

    Attributes:
        fqn: of the module; "" is the model.
        kind: of the failure, e.g. ``"data-dependent branch"``.
        code: the text of the line; "" where none is known.
    """

    fqn: str
    kind: str
    code: str

    def __str__(self) -> str:
        return f"{self.fqn or 'the model itself'}: {self.kind}" + (f" in `{self.code}`" if self.code else "")


Ways = Mapping[str, tuple[bool, Counter[Known]]]


def known(failure: Failure) -> Known:
    """Return the comparable form of a failure's reason."""
    return Known(failure.fqn, failure.kind, failure.source.code if failure.source else "")


def ways_of(report: TraceabilityReport) -> Ways:
    """Return for each way of tracing whether it passed, and why not."""
    return {check.name: (check.passed, Counter(map(known, check.failures))) for check in report.checks}


def write_baseline(report: TraceabilityReport, path: str) -> None:
    """Write the current reasons as a baseline that a reviewer can read.

    Raises:
        StorageError: it cannot be written.
    """
    ways = {
        name: {"passed": passed, "failures": [vars(one) for one in sorted(reasons.elements())]}
        for name, (passed, reasons) in ways_of(report).items()
    }
    content = {"format": FORMAT, "model_type": report.model_type, "ways": ways}
    write_file(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def read_baseline(path: str) -> Ways:
    """Read a baseline that :func:`write_baseline` wrote.

    Raises:
        DocumentError: there is no such file, or it is not a baseline.
    """
    data = parsed(read_bounded(path, LIMIT, "a baseline"), "baseline", _REMEDY)
    if data.get("format") != FORMAT or not isinstance(data.get("ways"), dict):
        raise DocumentError(f"{path} is not a baseline (format {FORMAT!r} expected). {_REMEDY}")
    try:
        return {name: _way(way) for name, way in data["ways"].items()}
    except (KeyError, TypeError) as error:
        raise DocumentError(f"{path} is damaged: {error!r}. {_REMEDY}") from error


def _way(data: dict[str, Any]) -> tuple[bool, Counter[Known]]:
    reasons = Counter(Known(**{name: str(value) for name, value in one.items()}) for one in data["failures"])
    return data["passed"] is True, reasons


def compared(report: TraceabilityReport, before: Ways) -> Iterator[Outcome]:
    """Yield one outcome for each way of tracing: it fails for a new reason, or if the way passed before."""
    now = ways_of(report)
    for name in [*now, *(name for name in before if name not in now)]:
        if name not in now:
            yield Outcome(
                name, False, "It is in the baseline and was not checked. Give the same --target, or " + _REMEDY
            )
            continue
        passed, reasons = now[name]
        was_passed, old = before.get(name, (True, Counter[Known]()))
        new, gone = reasons - old, old - reasons
        if new or (was_passed and not passed):
            lines = [f"{sum(new.values())} new since the baseline", *map(str, sorted(new.elements()))]
            yield Outcome(name, False, "\n".join(lines))
        else:
            state = "whole" if passed else f"{(count := sum(reasons.values()))} known reason{'s' if count != 1 else ''}"
            better = f", {sum(gone.values())} of the baseline are gone; {_REMEDY}" if gone else ""
            yield Outcome(name, True, state + better)
