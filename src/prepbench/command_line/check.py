"""``check``: whether a model can be captured, or still as well as it could when a baseline was written."""

from __future__ import annotations

import argparse
from typing import Any

from prepbench.command_line.baseline import compared, read_baseline, ways_of, write_baseline
from prepbench.command_line.outcomes import Outcome, Report
from prepbench.command_line.user_code import WHAT_RUNS, load_model, load_values
from prepbench.errors import CaptureError, InputError

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
        help="also check its operators: onnxruntime, openvino, inductor, tensorrt, executorch",
    )
    parser.add_argument(
        "--time-limit", type=float, default=60.0, metavar="S", help="seconds for each way (default: 60)"
    )
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--baseline", metavar="FILE", help="fail only for what this committed file does not know")
    group.add_argument("--write-baseline", metavar="FILE", help="write down what fails now, and succeed")


def run(options: argparse.Namespace) -> Report:
    """Carry it out."""
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
