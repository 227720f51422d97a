"""The results of a command: as text, JSON and JUnit XML."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any
from xml.etree import ElementTree

from prepbench.errors import printable
from prepbench.storage import Name, write_file

_GREEN, _RED, _PLAIN = "\x1b[32m", "\x1b[31m", "\x1b[0m"
_NOT_IN_XML = re.compile("[\ufffe\uffff]")


@dataclass(frozen=True)
class Outcome:
    """One check: its name, e.g. ``"size of int8"``, whether it passed, and the result beside the expectation."""

    name: str
    passed: bool
    message: str = ""


@dataclass(frozen=True)
class Report:
    """The results of a command.

    Attributes:
        command: its name.
        body: the text above the checks.
        outcomes: of all checks, in order.
        data: further values for the JSON file.
        error: why the command could not be carried out; empty where it was.
    """

    command: str
    body: str = ""
    outcomes: Sequence[Outcome] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not self.error and all(outcome.passed for outcome in self.outcomes)

    def text(self, in_colour: bool = False) -> str:
        """Return the report as text; control characters from a model or a file are replaced."""
        lines = [printable(self.body)] if self.body else []
        if self.body and self.outcomes:
            lines.append("")
        for outcome in self.outcomes:
            word = "passed" if outcome.passed else "FAILED"
            shown = f"{_GREEN if outcome.passed else _RED}{word}{_PLAIN}" if in_colour else word
            first, *more = printable(f"{outcome.name}: {outcome.message}".removesuffix(": ")).splitlines()
            lines += [f"{shown}  {first}", *(f"        {line}" for line in more)]
        return "\n".join(lines)


def broken(command: str, message: str) -> Report:
    """Return the report of a command that could not run."""
    return Report(command, error=message)


def write_json(report: Report, path: Name) -> None:
    """Write a report as JSON atomically; numbers that are not finite become text.

    Raises:
        StorageError: it cannot be written.
    """
    content = {
        "command": report.command,
        "prepbench": version("prepbench"),
        "passed": report.passed,
        **({"error": report.error} if report.error else {}),
        "checks": [{"name": one.name, "passed": one.passed, "message": one.message} for one in report.outcomes],
        **report.data,
    }
    write_file(path, json.dumps(_plain(content), indent=2, allow_nan=False) + "\n")


def write_junit(report: Report, path: Name) -> None:
    """Write a report as JUnit XML atomically: one test case for each check.

    Raises:
        StorageError: it cannot be written.
    """
    failed = sum(not outcome.passed for outcome in report.outcomes)
    count = len(report.outcomes) + bool(report.error)
    totals = {"tests": str(count), "failures": str(failed), "errors": str(int(bool(report.error)))}
    suites = ElementTree.Element("testsuites", totals)
    suite = ElementTree.SubElement(suites, "testsuite", {"name": f"prepbench {report.command}", **totals})
    for outcome in report.outcomes:
        case = _case(suite, report.command, outcome.name)
        if not outcome.passed:
            _explain(case, "failure", outcome.message)
    if report.error:
        _explain(_case(suite, report.command, report.command), "error", report.error)
    ElementTree.indent(suites)
    write_file(path, ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True) + b"\n")


def _case(suite: ElementTree.Element, command: str, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(
        suite, "testcase", {"classname": f"prepbench.{command}", "name": _xml_text(name), "time": "0"}
    )


def _explain(case: ElementTree.Element, kind: str, message: str) -> None:
    text = _xml_text(message)
    ElementTree.SubElement(case, kind, {"message": text.partition("\n")[0]}).text = text


def _xml_text(text: str) -> str:
    """Remove the characters that XML cannot hold in any form."""
    return _NOT_IN_XML.sub(lambda match: ascii(match[0])[1:-1], printable(text))


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value
