"""The parser of the command line, and the exit status of results and errors."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import sys
import textwrap
import traceback
import warnings
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any, cast

from prepbench.command_line import check, compare, info, show
from prepbench.command_line.outcomes import Report, broken, write_json, write_junit
from prepbench.error_display import wants_all
from prepbench.errors import PrepbenchError, PrepbenchWarning, printable, sentence
from prepbench.internal_errors import internal_error

FINE, FAILED, COULD_NOT, INTERRUPTED = 0, 1, 2, 130
_WIDTH = 120
_STATUSES = (
    "Exit status: 0 all is fine, 1 a check failed or a budget is broken, 2 the call is wrong or could not be carried "
    "out. Nothing is written but the files that you name."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: those after the program's name; None for the ones of this process.

    Returns:
        The exit status: 0 all is fine, 1 a check failed, 2 the call is wrong or could not be carried out, 130 it was
        interrupted.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal may have no glyphs
    options = parser().parse_args(arguments)
    try:
        with _warnings_in_a_paragraph():
            report: Report = options.run(options)
        _write_files(report, options)
        _print(report)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201 (a command line prints)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has seen enough
        return FINE
    except Exception as error:
        return _could_not(error, options)
    return FINE if report.passed else FAILED


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    made = argparse.ArgumentParser(
        prog="python -m prepbench", description="Prepare PyTorch models: checks for scripts and CI.", epilog=_STATUSES
    )
    made.add_argument("--version", action="version", version=f"prepbench {version('prepbench')}")
    commands = made.add_subparsers(required=True, metavar="COMMAND")
    for command in (info, check, show, compare):
        one = commands.add_parser(
            command.__name__.rpartition(".")[2],
            help=command.SUMMARY,
            description=f"{command.SUMMARY}. {command.DESCRIPTION}",
            epilog=_STATUSES,
        )
        command.add_arguments(one)
        group = one.add_argument_group("output")
        group.add_argument("--json", metavar="OUT.json", help="also write the result as JSON")
        if command.HAS_CHECKS:
            group.add_argument("--junit", metavar="OUT.xml", help="also write the checks as JUnit XML")
        group.add_argument("--traceback", action="store_true", help="show where an error comes from")
        names = tuple(re.findall(r"--([a-z-]+)", one.format_usage()))
        one.set_defaults(run=command.run, command=command.__name__.rpartition(".")[2], names=names)
    return made


def _write_files(report: Report, options: argparse.Namespace) -> None:
    if options.json:
        write_json(report, options.json)
    if getattr(options, "junit", None):
        write_junit(report, options.junit)


def _print(report: Report) -> None:
    in_colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    print(report.text(in_colour), flush=True)  # noqa: T201 (a command line prints)


def _could_not(error: Exception, options: argparse.Namespace) -> int:
    """Explain in one paragraph why a command could not run, also in the requested files."""
    told = internal_error(error, of_libraries=True) or error
    known = isinstance(told, PrepbenchError | OSError)
    message = _with_options(str(told), options.names) if known else f"{type(error).__name__}: {sentence(error)}"
    if options.traceback or wants_all():
        traceback.print_exception(error)
    elif not known:
        message += " This error was unexpected; --traceback shows where it comes from."
    _tell(f"error: {message}")
    try:
        _write_files(broken(options.command, message), options)
    except PrepbenchError as second:
        _tell(f"error: {second}")
    return COULD_NOT


def _with_options(message: str, names: Sequence[str]) -> str:
    """Return a message with the options of a command in place of the Python arguments that they are passed on as."""
    for name in names:
        argument = rf"(?<![\w.\-]){name.replace('-', '_')}(?=\[\d| must\b| is empty\b|=[^\[\s])"
        message = re.sub(argument, f"--{name}", message)
    return message


@contextlib.contextmanager
def _warnings_in_a_paragraph() -> Iterator[None]:
    """Show prepbench's warnings without the line of code that they point at, which is none of the user's here."""

    def show(message: Warning | str, category: type[Warning], *place: Any) -> None:
        if issubclass(category, PrepbenchWarning):
            _tell(f"warning: {message}")
        else:
            as_before(message, category, *place)

    with warnings.catch_warnings():
        as_before, warnings.showwarning = warnings.showwarning, cast(Any, show)
        yield


def _tell(text: str) -> None:
    """Print a paragraph to standard error, no wider than the terminal."""
    width = min(_WIDTH, shutil.get_terminal_size((_WIDTH, 0)).columns)
    # a long path stays on the line of "error:"
    mark, space, rest = printable(text).partition(": ")
    shown = textwrap.fill(f"{mark}:\0{rest}" if space else mark, width, break_long_words=False, break_on_hyphens=False)
    shown = shown.replace("\0", " ")
    print(shown, file=sys.stderr)  # noqa: T201 (a command line prints)
