"""How an error of prepbench is shown: a card in a notebook, a few lines in a terminal; the traceback comes on demand.

Only errors of prepbench look this way, and what fails in prepbench itself has its traceback in a terminal, because it
is to be reported with it. The variable ``PREPBENCH_TRACEBACK=full`` shows all of them as any other error; in IPython
so do ``%tb`` and ``%xmode Verbose``.
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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from prepbench.strict_pages import for_strict_pages

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


MODELS = ("model", "module_or_func")
SAMPLES = ("inputs", "tracing_inputs", "calibration_inputs")
"""What public functions call the model and its samples."""


def failed_call(error: BaseException) -> Mapping[str, Any] | None:
    """Return the arguments of the call of prepbench that raised an error, if it was given a model and samples."""
    torch: Any = sys.modules.get("torch")  # not imported for this: without it there is no model
    for frame, _ in traceback.walk_tb(error.__traceback__):
        # they stand in the frame of the public function
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] == "prepbench":
            given = frame.f_locals
            has_model = torch is not None and any(isinstance(given.get(name), torch.nn.Module) for name in MODELS)
            if has_model and any(given.get(name) is not None for name in SAMPLES):
                return given
    return None


_KEPT = 4  # each keeps its model, its samples and what the call had made so far
_repairable: dict[int, BaseException] = {}


def repairable_error(cell: int | None = None) -> BaseException | None:
    """Return the error whose card in a cell offers to repair it, by the cell's number; by default the last of all."""
    return next(reversed(_repairable.values()), None) if cell is None else _repairable.get(cell)


def _keep_repairable(cell: int, error: BaseException) -> None:
    """Keep an error for the button of its card. Python keeps only the last error, which may be another."""
    _repairable.pop(cell, None)
    _repairable[cell] = error
    while len(_repairable) > _KEPT:
        del _repairable[next(iter(_repairable))]


@dataclass(frozen=True)
class ErrorCard:
    """What an error's card says.

    Attributes:
        kind: the class of the error.
        what: its first sentence.
        rest: the other sentences: what was expected, and the remedy.
        where: the user's line, as ``"this cell, line 5 (main)"``; "" if there is none.
        code: the text of that line.
        cause: the error behind it, in one line; "" for none, and where the message quotes it.
        inner: the user's line that raised the cause, such as one of the model's; "" for none, and where the message
            quotes it.
        inner_code: the text of that line.
        anchors: where the page of errors explains it.
        frames: the traceback, in lines.
        is_repaired_in_bench: whether a bench on the model of the failed call offers changes that repair it.
    """

    kind: str
    what: str
    rest: str
    where: str
    code: str
    cause: str
    inner: str
    inner_code: str
    anchors: tuple[str, ...]
    frames: tuple[str, ...]
    is_repaired_in_bench: bool

    @classmethod
    def of(cls, error: BaseException) -> ErrorCard:
        """Return the card of an error that was raised."""
        what, rest = split_message(str(error))
        cell = _running_cell(error.__traceback__)
        where, code = _shown_place(_users_line(error.__traceback__), cell)
        cause = error.__cause__
        trace = None if cause is None else cause.__traceback__
        inner, inner_code = _shown_place(_users_line(trace, innermost=True), cell)
        if inner == where or (inner_code and inner_code in str(error)):
            inner = inner_code = ""
        notes = getattr(error, "__notes__", ())
        anchors = tuple(note.rpartition("#")[2] for note in notes if note.startswith("Documentation: "))
        frames = tuple(_frames(error, cell))
        told = _told(cause, error)
        repaired = bool(getattr(error, "is_repaired_in_bench", False)) and failed_call(error) is not None
        name = type(error).__name__
        return cls(name, what, rest, where, code, told, inner, inner_code, anchors, frames, repaired)

    def text(self, lines: int = 15, ending: str = "", *, anywhere: bool = False) -> str:
        """Return the card as plain text of at most so many lines; ``anywhere`` leaves out paths of this machine."""
        head = _wrapped(f"{self.kind}: {self.what}")
        tail = self._place_lines()
        tail += [f"Documentation: {link}" for link in self.links()[:1] if not (anywhere and link.startswith("file:"))]
        tail += [ending] if ending else []
        said = head + _wrapped(self.rest)
        room = max(2, lines - len(tail))
        if len(said) > room:
            said = [*said[: room - 1], f"[... {len(said) - room + 1} more lines]"]
        return "\n".join([*said, *tail])

    def _place_lines(self) -> list[str]:
        """Return where it happened: in the caller's line, and in the model's where that raised."""
        found = textwrap.wrap(f"  caused by {self.cause}", _WIDTH, max_lines=2) if self.cause else []
        for words, place, code in (("in", self.where, self.code), ("raised in", self.inner, self.inner_code)):
            found += [f"  {words} {place}"] if place else []
            found += [f"      {code[: _WIDTH - 6]}"] if place and code else []
        return found

    def links(self) -> list[str]:
        """Return where the documentation opens: the address of the project, or else the copy that is installed."""
        page = _address() or (PAGE.as_uri() if PAGE.is_file() else "")
        return [f"{page}#{anchor}" for anchor in self.anchors] if page else []

    def page(self) -> str:
        """Return the card as HTML, which needs neither a script nor a network."""
        where = f'<div style="opacity:.8">caused by {_escaped(self.cause)}</div>' if self.cause else ""
        for words, place, code in (("in", self.where, self.code), ("raised in", self.inner, self.inner_code)):
            where += f"<div>{words} {_escaped(place)}</div>" if place else ""
            where += f'<pre style="{_PRE}">{_escaped(code)}</pre>' if place and code else ""
        rest, further = _short(self.rest)
        said = f'<div style="margin:4px 0;white-space:pre-wrap">{_escaped(rest)}</div>' if rest else ""
        said += _folded("All that was said", f'<pre style="{_PRE}">{_escaped(further)}</pre>') if further else ""
        sections = "".join(sections_of(self.anchors))
        address = _address()
        links = f' <a href="{_escaped(self.links()[0])}" target="_blank">Open the page</a>' if address else ""
        told = _folded(f"Documentation: {self.kind}", sections + links) if sections or links else ""
        frames = _folded("Traceback", f'<pre style="{_PRE}">{_escaped(chr(10).join(self.frames))}</pre>')
        return (
            f'<div class="prepbench-error" role="alert" style="{_CARD}"><strong>{_escaped(self.kind)}</strong>: '
            f"{_escaped(self.what)}{said}{where}{_REPAIR if self.is_repaired_in_bench else ''}{told}{frames}</div>"
        )


_CARD = (
    "border-left:4px solid var(--jp-error-color1, currentColor);padding:6px 10px;max-width:100ch;"
    "overflow-wrap:anywhere;font-family:var(--jp-ui-font-family, sans-serif);line-height:1.45"
)
# JupyterLab's extension shows the button and listens to it, by its class; elsewhere nobody would
_REPAIR = '<button type="button" class="prepbench-repair" style="display:none">Repair it in the bench</button>'
_PRE = "margin:2px 0;padding:2px 8px;white-space:pre-wrap;overflow-wrap:anywhere;background:transparent;color:inherit"


def notebook_lines(error: BaseException) -> list[str]:
    """Return what IPython prints for an error, after showing its card where there is a notebook."""
    shell: Any = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None or wants_all() or _is_asked_for_all(shell, error):
        return _whole(shell, error)
    card = ErrorCard.of(error)
    if not hasattr(shell, "kernel"):
        return card.text(19, f"Full traceback: %tb, or set {VARIABLE}=full").splitlines()
    display: Any = importlib.import_module("IPython.display")
    # IPython asks twice for what a cell raised: to show it, and to keep it in its history
    shown = (shell.execution_count, error.__traceback__)
    if vars(error).get("_shown") != shown:
        vars(error)["_shown"] = shown
        if card.is_repaired_in_bench:
            # the counter may stand at this cell or at the next one, depending on IPython's release
            _keep_repairable(len(shell.history_manager.input_hist_parsed) - 1, error)
        # a cell gives the same outputs to a person and to a program, so that notebooks can be compared
        display.publish_display_data(
            {"text/plain": card.text(anywhere=True), "text/html": for_strict_pages(card.page())}
        )
    if importlib.import_module("prepbench._display").is_asked_by_program():
        if _goes_on(shell):  # to a page, which shows the card, too
            return _wrapped(f"{card.kind}: {card.what}")[:2]
        # such as nbclient, which prints this alone into a log
        return card.text(15, f"Full traceback: set {VARIABLE}=full", anywhere=True).splitlines()
    return [f"{card.kind}: see above. %tb shows the whole traceback."]


def _goes_on(shell: Any) -> bool:
    """Return whether the program that runs the cells goes on after an error."""
    return not (shell.get_parent() or {}).get("content", {}).get("stop_on_error", True)


def _is_asked_for_all(shell: Any, error: BaseException) -> bool:
    """Return whether ``%tb`` asks for an error that a cell has shown before, or ``%xmode`` for all there is."""
    if getattr(getattr(shell, "InteractiveTB", None), "mode", "") == "Verbose":
        return True
    count, trace = vars(error).get("_shown", (None, None))
    # raised once more, an error has another traceback
    return trace is not None and trace is error.__traceback__ and count != shell.execution_count


def _whole(shell: Any, error: BaseException) -> list[str]:
    """Return the traceback as IPython shows that of any other error."""
    if shell is None:
        return traceback.format_exception(error)
    lines: list[str] = shell.InteractiveTB.structured_traceback(type(error), error, error.__traceback__, tb_offset=1)
    return lines


def show_in_terminal(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an error of prepbench in at most 20 lines; an exception hook."""
    if wants_all() or not getattr(kind, "is_short_in_terminal", True):
        sys.__excepthook__(kind, error, trace)
        return
    # the hook is given the traceback, which an embedding program may have cut
    card = ErrorCard.of(error.with_traceback(trace))
    print(card.text(19, f"Full traceback: set {VARIABLE}=full"), file=sys.stderr)  # noqa: T201 (as Python does)


def install(of_prepbench: type[BaseException]) -> None:
    """Show errors of a class in few lines in a terminal, unless something shows them; leave all others to Python."""
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


def _wrapped(text: str) -> list[str]:
    """Return the text in lines of the width of a card, each continued below its own start."""
    lines: list[str] = []
    for line in text.splitlines():
        margin = line[: len(line) - len(line.lstrip())]
        lines += textwrap.wrap(line, _WIDTH, break_on_hyphens=False, subsequent_indent=margin)
    return lines


def _short(text: str) -> tuple[str, str]:
    """Return what of a message a card shows at once, and all of it where that is not all."""
    lines = _wrapped(text)
    if len(lines) <= _MESSAGE_LINES:
        return text, ""
    return "\n".join(lines[: _MESSAGE_LINES - 1]) + " …", text


def _told(cause: BaseException | None, error: BaseException) -> str:
    """Return the cause of an error in one line; "" where the error's message quotes it."""
    if cause is None:
        return ""
    said = _one_line(cause)
    is_quoted = said.partition(": ")[2].rstrip(".") in str(error) or type(cause).__name__ in str(error)
    return "" if is_quoted else said


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

_Line = tuple[str, int, str]


def _users_line(trace: TracebackType | None, *, innermost: bool = False) -> _Line | None:
    """Return the last line of the user's before prepbench is called, or the innermost of all."""
    found = None
    for frame, number in traceback.walk_tb(trace):
        if _is_own(frame) and not innermost:
            break
        code = frame.f_code
        if not _is_own(frame) and not _is_of_library(code.co_filename):
            found = code.co_filename, number, code.co_name
    return found


def _running_cell(trace: TracebackType | None) -> str:
    """Return the file name of the cell that was running; "" outside notebooks."""
    files = (frame.f_code.co_filename for frame, _ in traceback.walk_tb(trace))
    return next((file for file in files if _is_cell(file)), "")


def _is_own(frame: FrameType) -> bool:
    # the methods that dataclasses make have no file, but a module
    file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__", ""))
    return file.startswith(_OWN) or (file.startswith("<") and module.partition(".")[0] == "prepbench")


def _is_of_library(file: str) -> bool:
    is_installed = "site-packages" in file or "dist-packages" in file or file.startswith(sysconfig.get_path("stdlib"))
    return file.startswith(_OWN) or is_installed or file.startswith("<frozen")


def _is_cell(file: str) -> bool:
    shell: Any = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    compiled: Any = getattr(shell, "compile", None)
    return hasattr(compiled, "format_code_name") and compiled.format_code_name(file) is not None


def _shown_place(line: _Line | None, cell: str) -> tuple[str, str]:
    """Return a line as a person finds it, and its text."""
    if line is None:
        return "", ""
    return _place(*line, cell), printable(linecache.getline(line[0], line[1])).strip()


def _place(file: str, line: int, function: str, cell: str) -> str:
    shown = "" if function == "<module>" else f" ({function})"
    return f"{_file_words(file, cell)}, line {line}{shown}"


def _file_words(file: str, cell: str) -> str:
    if file == cell and cell:
        return "this cell"
    if _is_cell(file):
        return "another cell"  # numbers of cells change whenever these run
    if file.startswith(_OWN):
        return f"prepbench/{file.removeprefix(_OWN)}"
    installed = re.search(r"(?:site|dist)-packages/(.*)", file)
    return installed[1] if installed else file


def _frames(error: BaseException, cell: str) -> Iterator[str]:
    """Yield the traceback of an error after those of its causes; without the line numbers of libraries."""
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None and before is not error:
        yield from _frames(before, cell)
        yield ""
    for frame in traceback.extract_tb(error.__traceback__):
        if _is_of_library(frame.filename):
            yield f"  {_file_words(frame.filename, cell)}, in {frame.name}"
        else:
            yield f"  {_place(frame.filename, frame.lineno or 0, frame.name, cell)}"
        if frame.line:
            yield f"      {printable(frame.line)}"
    yield _one_line(error)
