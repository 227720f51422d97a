"""How an error of prepbench is shown: a card in a notebook, a few lines in a terminal; the traceback comes on demand.

Only errors of prepbench look this way. The variable ``PREPBENCH_TRACEBACK=full`` shows them as any other error.
"""

from __future__ import annotations

import html
import importlib
import linecache
import os
import re
import sys
import sysconfig
import textwrap
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from types import TracebackType
from typing import Any

UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, which steer a terminal, characters that reverse text, and halves of surrogate pairs."""

VARIABLE = "PREPBENCH_TRACEBACK"
PAGE = Path(__file__).parent / "errors.html"
"""All errors with examples and remedies; ``python -m docs.tools.errors --write`` makes it."""

_OWN = str(Path(__file__).parent) + os.sep
_WIDTH = 100
_MESSAGE_LINES = 9  # of a message; the whole card has at most 15
_SECTION = re.compile(r'<section id="([^"]+)">(.*?)</section>', re.DOTALL)


def printable(text: str) -> str:
    """Return the text with control characters escaped, for terminals and pages.

    Example:
        >>> printable("block\\x1b[31m")
        'block\\\\x1b[31m'
    """
    return UNPRINTABLE.sub(lambda match: ascii(match[0])[1:-1], text)


def wants_all() -> bool:
    """Return whether tracebacks are to be shown whole."""
    return os.environ.get(VARIABLE, "").lower() in ("full", "1", "true", "on")


@dataclass(frozen=True)
class ErrorCard:
    """What an error's card says.

    Attributes:
        kind: the class of the error.
        what: its first sentence.
        rest: the other sentences: what was expected, and the remedy.
        where: the user's line, as ``"Cell In[3], line 5, in main"``; "" if there is none.
        code: the text of that line.
        cause: the error behind it, in one line; "" for none.
        anchors: where the page of errors explains it.
        frames: the traceback, in lines.
    """

    kind: str
    what: str
    rest: str
    where: str
    code: str
    cause: str
    anchors: tuple[str, ...]
    frames: tuple[str, ...]

    @classmethod
    def of(cls, error: BaseException) -> ErrorCard:
        """Return the card of an error that was raised."""
        what, rest = split_message(str(error))
        place = _users_frame(error.__traceback__)
        where, code = (_place(*place), _code(*place)) if place is not None else ("", "")
        cause = error.__cause__
        notes = getattr(error, "__notes__", ())
        anchors = (note.rpartition("#")[2] for note in notes if note.startswith("Documentation: "))
        said = "" if cause is None else _one_line(cause)
        if said.partition(": ")[2].rstrip(".") in f"{what} {rest}":
            said = ""  # the message quotes it
        return cls(type(error).__name__, what, rest, where, code, said, tuple(anchors), tuple(_frames(error)))

    def text(self, lines: int = 15, ending: str = "", *, anywhere: bool = False) -> str:
        """Return the card as plain text of at most so many lines; ``anywhere`` leaves out paths of this machine."""
        head = textwrap.wrap(f"{self.kind}: {self.what}", _WIDTH, break_on_hyphens=False)
        tail = [f"  at {self.where}"] if self.where else []
        tail += [f"      {self.code[: _WIDTH - 6]}"] if self.code else []
        tail += textwrap.wrap(f"  caused by {self.cause}", _WIDTH, max_lines=2) if self.cause else []
        tail += [f"Documentation: {link}" for link in self.links()[:1] if not (anywhere and link.startswith("file:"))]
        tail += [ending] if ending else []
        body = [part for line in self.rest.splitlines() for part in textwrap.wrap(line, _WIDTH, break_on_hyphens=False)]
        room = max(2, lines - len(tail))
        said = head + body
        if len(said) > room:
            said = [*said[: room - 1], f"[... {len(said) - room + 1} more lines]"]
        return "\n".join([*said, *tail])

    def links(self) -> list[str]:
        """Return where the documentation opens: the address of the project, or else the copy that is installed."""
        page = _address() or (PAGE.as_uri() if PAGE.is_file() else "")
        return [f"{page}#{anchor}" for anchor in self.anchors] if page else []

    def page(self) -> str:
        """Return the card as HTML, which needs neither a script nor a network."""
        code = _escaped(self.code)
        where = f"<div>at {_escaped(self.where)}</div>" if self.where else ""
        where += f'<pre style="{_PRE}">{code}</pre>' if code else ""
        cause = f'<div style="opacity:.8">caused by {_escaped(self.cause)}</div>' if self.cause else ""
        rest, further = _short(self.rest)
        said = f'<div style="margin:4px 0">{_escaped(rest)}</div>' if rest else ""
        said += _folded("All that was said", f'<pre style="{_PRE}">{_escaped(further)}</pre>') if further else ""
        sections = "".join(sections_of(self.anchors))
        address = _address()
        links = f' <a href="{_escaped(self.links()[0])}" target="_blank">Open the page</a>' if address else ""
        told = _folded(f"Documentation: {self.kind}", sections + links) if sections or links else ""
        frames = _folded("Traceback", f'<pre style="{_PRE}">{_escaped(chr(10).join(self.frames))}</pre>')
        return (
            f'<div class="prepbench-error" role="alert" style="{_CARD}"><strong>{_escaped(self.kind)}</strong>: '
            f"{_escaped(self.what)}{where}{cause}{said}{told}{frames}</div>"
        )


_CARD = (
    "border-left:4px solid var(--jp-error-color1, currentColor);padding:6px 10px;max-width:100ch;"
    "overflow-wrap:anywhere;font-family:var(--jp-ui-font-family, sans-serif);line-height:1.45"
)
_PRE = "margin:2px 0;padding:2px 8px;white-space:pre-wrap;overflow-wrap:anywhere;background:transparent;color:inherit"


def notebook_lines(error: BaseException) -> list[str]:
    """Return what IPython prints for an error, after showing its card where there is a notebook."""
    if wants_all():
        return traceback.format_exception(error)
    card = ErrorCard.of(error)
    option = f"Full traceback: set {VARIABLE}=full"
    shell: Any = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if not hasattr(shell, "kernel"):
        return card.text(19, option).splitlines()
    from IPython.display import publish_display_data

    # IPython asks twice for what a cell raised: to show it, and to keep it in its history
    if vars(error).get("_shown_in") != shell.execution_count:
        vars(error)["_shown_in"] = shell.execution_count
        # a cell gives the same outputs to a person and to a program, so that notebooks can be compared
        publish_display_data({"text/plain": card.text(anywhere=True), "text/html": card.page()})
    # a program such as nbclient prints this alone, into a log
    by_program = importlib.import_module("prepbench._display").is_asked_by_program()
    return card.text(15, option).splitlines() if by_program else [f"{card.kind}: {card.what}"]


def show_in_terminal(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an error of prepbench in at most 20 lines; an exception hook."""
    if wants_all():
        sys.__excepthook__(kind, error, trace)
        return
    option = f"Full traceback: set {VARIABLE}=full"
    print(ErrorCard.of(error).text(19, option), file=sys.stderr)  # noqa: T201 (what Python does here, too)


def install(of_prepbench: type[BaseException]) -> None:
    """Show errors of a class in few lines in a terminal, and leave all others to Python; only where nobody shows them
    already.
    """
    if sys.excepthook is not sys.__excepthook__:
        return

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        show: Callable[..., Any] = show_in_terminal if isinstance(error, of_prepbench) else sys.__excepthook__
        show(kind, error, trace)

    sys.excepthook = hook


def split_message(text: str) -> tuple[str, str]:
    """Return the first sentence of a message, and the rest.

    Example:
        >>> split_message("x has 2 dims, e.g. (2, 4). Give one.")
        ('x has 2 dims, e.g. (2, 4).', 'Give one.')
    """
    first, _, further = text.strip().partition("\n")
    parts = re.split(r"(?<=[^\s.][a-z0-9)'\"”\]`])\. (?=[A-Z`])", first, maxsplit=1)
    if len(parts) == 1:
        return first, further.strip("\n")
    return f"{parts[0]}.", "\n".join(filter(None, (parts[1], further)))


def sections_of(anchors: tuple[str, ...]) -> Iterator[str]:
    """Yield what the page of errors says at anchors, as HTML."""
    if not PAGE.is_file():
        return
    found = dict(_SECTION.findall(PAGE.read_text(encoding="utf-8")))
    for anchor in anchors[:2]:
        if anchor in found:
            yield found[anchor]


def _folded(title: str, content: str) -> str:
    return f'<details style="margin:2px 0"><summary style="cursor:pointer">{title}</summary>{content}</details>'


def _escaped(text: str) -> str:
    return html.escape(printable(text))


def _short(text: str) -> tuple[str, str]:
    """Return what of a message a card shows at once, and all of it where that is not all."""
    lines = [part for line in text.splitlines() for part in textwrap.wrap(line, _WIDTH)]
    if len(lines) <= _MESSAGE_LINES:
        return text, ""
    return " ".join(lines[: _MESSAGE_LINES - 1]) + " …", text


def _one_line(error: BaseException) -> str:
    words = printable(str(error)).strip().partition("\n")[0]
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def _address() -> str:
    """Return the address of the page of errors on the project's site; "" where the project names none."""
    try:
        urls = metadata("prepbench").get_all("Project-URL") or []
    except PackageNotFoundError:
        return ""
    for entry in urls:
        label, _, url = entry.partition(", ")
        if label.lower() == "documentation" and url.startswith("https://"):
            return f"{url.rstrip('/')}/errors.html"
    return ""


# The lines of a traceback, by names that are the same in each kernel.


def _users_frame(trace: TracebackType | None) -> tuple[str, int, str] | None:
    """Return the innermost line of the user's before prepbench is called."""
    found = None
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file.startswith(_OWN):
            break
        if not _of_library(file):
            found = file, trace.tb_lineno, trace.tb_frame.f_code.co_name
        trace = trace.tb_next
    return found


def _of_library(file: str) -> bool:
    is_installed = "site-packages" in file or "dist-packages" in file or file.startswith(sysconfig.get_path("stdlib"))
    return file.startswith(_OWN) or is_installed or file.startswith("<frozen")


def _place(file: str, line: int, function: str) -> str:
    shown = "" if function == "<module>" else f", in {function}"
    return f"{_file_words(file)}, line {line}{shown}"


def _file_words(file: str) -> str:
    shell: Any = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    compiled = getattr(shell, "compile", None)
    named = compiled.format_code_name(file) if hasattr(compiled, "format_code_name") else None
    if named:
        return f"{named[0]} {named[1]}"  # Cell In[3]
    if file.startswith(_OWN):
        return f"prepbench/{file.removeprefix(_OWN)}"
    installed = re.search(r"(?:site|dist)-packages/(.*)", file)
    return installed[1] if installed else file


def _code(file: str, line: int, _function: str) -> str:
    return printable(linecache.getline(file, line)).strip()


def _frames(error: BaseException) -> Iterator[str]:
    """Yield the traceback of an error after those of its causes. Lines of libraries have no numbers, which each release
    changes.
    """
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None and before is not error:
        yield from _frames(before)
        yield ""
    for frame in traceback.extract_tb(error.__traceback__):
        if _of_library(frame.filename):
            yield f"  {_file_words(frame.filename)}, in {frame.name}"
        else:
            yield f"  {_place(frame.filename, frame.lineno or 0, frame.name)}"
        if frame.line:
            yield f"      {printable(frame.line)}"
    yield _one_line(error)
