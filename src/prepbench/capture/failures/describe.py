"""Turn an exception of torch or of the user's code into a :class:`Failure` with a remedy.

Tracing, exporting and compiling fail with dozens of exception types whose messages quote addresses, colours and
internals. This module maps all of them onto the reasons in :mod:`prepbench.capture.failures.reasons`, finds the user's
line, and says what to change.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import linecache
import re
from dataclasses import replace

import torch

from prepbench._torch_compat.function_transforms import in_forward_mode
from prepbench.capture.failures.reasons import (
    BRANCH,
    CHECK_REMEDY,
    FORWARD_MODE,
    FORWARD_MODE_SIZES_REMEDY,
    LOOP_REMEDY,
    REASONS,
    ROWS_REMEDY,
    SHAPE,
    SIZES_DECIDE_REMEDY,
    TABLE_REMEDY,
    UNSUPPORTED,
    VALUES_REMEDY,
    Reason,
    without_leaf_hint,
)
from prepbench.document.model import Failure, SourceLine
from prepbench.errors import printable
from prepbench.internal_errors import raise_if_internal
from prepbench.running.source_lines import (
    code_frame,
    file_of,
    forward_place,
    place_in_stack_trace,
    source_line,
    user_place,
)

MESSAGE_LINES = 3
MESSAGE_LENGTH = 400


def describe_failure(
    error: BaseException,
    *,
    fqn: str,
    module_type: str,
    module: torch.nn.Module | None = None,
    source: SourceLine | None = None,
) -> Failure:
    """Describe why capturing the module ``fqn`` raised ``error``.

    Args:
        error: the exception with its traceback.
        fqn: fully qualified name of the module that failed ("" is the model itself).
        module_type: its class name.
        module: the module, whose ``forward`` gives a line when the traceback has no line of the user's.
        source: the user's line, where it is known otherwise than from the traceback.

    Raises:
        InternalError: prepbench itself is the reason, and no code of the user's.
        TorchVersionError: torch lacks something.

    Example:
        >>> try:
        ...     torch.fx.symbolic_trace(lambda x: x if x.sum() > 0 else -x)
        ... except torch.fx.proxy.TraceError as error:
        ...     describe_failure(error, fqn="gate", module_type="Gate").kind
        'data-dependent branch'
    """
    raise_if_internal(error)
    place = (file_of(source), source.line) if source is not None else user_place(error)
    place = place or (_place_in(module, normalize_message(error)) if module is not None else None)
    source = source_line(*place) if place else None
    message = normalize_message(error)
    reason = _reason_of(error, message, source.code if source else "")
    frame = code_frame(*place) if place else ""
    remedy = reason.remedy
    if place and reason.kind == BRANCH:
        remedy = remedy_of_branch(*place) or remedy
    elif source and reason.kind == SHAPE:
        remedy = _remedy_of_size(source.code, remedy, error)
    return Failure(fqn, module_type, reason.kind, type(error).__name__, message, source, remedy, frame)


def _place_in(module: torch.nn.Module, message: str) -> tuple[str, int] | None:
    """Return the line of a module for an error without a place: where it takes derivatives, else its forward."""
    if re.search(_LOST_DERIVATIVE, message):
        for kind in type(module).__mro__[: -len(torch.nn.Module.__mro__)]:
            with contextlib.suppress(OSError, TypeError):  # no source
                lines, first = inspect.getsourcelines(kind)
                found = [number for number, line in enumerate(lines, first) if re.search(_DERIVATIVE, line)]
                if found:
                    return inspect.getsourcefile(kind) or "", found[0]
    return forward_place(module)


_LOST_DERIVATIVE = "does not require grad|fake tensor in the exported program"
_DERIVATIVE = r"\bautograd\.grad\(|\.backward\("


def as_leaf(failure: Failure) -> Failure:
    """Return the failure as the reason of a leaf, without the advice to make it one."""
    return replace(failure, remedy=without_leaf_hint(failure.remedy))


_LOOP = r"(async )?for |.*[(\[{].* for .+ in "


def _remedy_of_size(code: str, remedy: str, error: BaseException) -> str:
    """Return the remedy for a specialised size: by a derivative, a loop over it, a table, or a branch on it."""
    if in_forward_mode(error):
        return FORWARD_MODE_SIZES_REMEDY
    if re.match(_LOOP, code):
        return ROWS_REMEDY
    if re.search(_TABLE, code):
        return TABLE_REMEDY
    return SIZES_DECIDE_REMEDY if re.match(r"(if|elif|while) |.* if .+ else ", code) else remedy


_TABLE = r"[\w\])}]\[[\w.]*?(\.shape\[|\.size\(|\blen\()"


def describe_node(node: torch.fx.Node, message: str, remedy: str) -> Failure:
    """Return an operator of an exported graph as a failure of the module that uses it."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    fqn, kind = stack[-1] if stack else ("", "")
    kind = kind if isinstance(kind, str) else kind.__name__
    place = place_in_stack_trace(node.meta.get("stack_trace"))
    source = source_line(*place) if place else None
    frame = code_frame(*place) if place else ""
    return Failure(fqn, kind.rpartition(".")[2], UNSUPPORTED, "", message, source, remedy, frame)


def failure_line(failure: Failure) -> str:
    """Return the failure in one line: name, class, kind and place."""
    part = failure.fqn or "the model" if failure.lines is None else failure.part
    place = f", {failure.source.file}:{failure.source.line}" if failure.source else ""
    return f"{part} ({failure.module_type}): {failure.kind}{place}"


def normalize_message(error: BaseException) -> str:
    """Return the error's message in at most three lines, without addresses, colours, library paths and internal
    state.
    """
    text = printable(_without_noise(str(error)))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    kept: list[str] = []
    for line in lines:
        if kept and re.match(_TRAILER, line):
            break
        kept.append(line)
    result = "\n".join(kept[:MESSAGE_LINES])
    if not result:
        return type(error).__name__
    return result if len(result) <= MESSAGE_LENGTH else result[: MESSAGE_LENGTH - 1] + "…"


# Everything after one of these repeats the traceback or advertises environment variables.
_TRAILER = (
    r"(Caused by:|User [Ss]tack|from user code|The following call raised|To fix the error|Set TORCH|"
    r"For more information|For more debug|For C\+\+ stack|Developer debug|For more details|While executing|"
    r"Original traceback|"
    r"During handling|File \"|Call tool|If you suspect)"
)


def _without_noise(text: str) -> str:
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)
    text = re.sub(r"\s*\(unhinted:.*", "", text)
    text = re.sub(r"\(Size-like symbols: [^)]*\)", "", text)
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", text)
    text = re.sub(r"0x[0-9a-fA-F]{6,}", "0x…", text)
    text = re.sub(r"/(?:[\w.+-]+/)+(?=[\w.+-]+\.(?:py|so|cpp|h)\b)", "", text)
    # symbol numbers count every tensor seen before, so they shift when an unrelated layer changes
    return re.sub(r"\b([uzs]+f?)\d+\b", r"\1", text)


def _reason_of(error: BaseException, message: str, code: str) -> Reason:
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and cause not in chain:
        chain.append(cause)
    for link in chain if _wraps_another(error) else chain[:1]:
        names = frozenset(kind.__name__ for kind in type(link).__mro__)
        text = message if link is error else _without_noise(str(link))
        # around a loop or a call, the statement on the path differs from the one that broke
        gb_type = str(getattr(link, "gb_type", "") or "")
        if gb_type:
            gb_type += "\n" + text.partition("\n")[0]
        for reason in REASONS[:-1]:
            if reason.matches(names, text, code, gb_type):
                return reason
    return FORWARD_MODE if in_forward_mode(error) else REASONS[-1]


def _wraps_another(error: BaseException) -> bool:
    """Return whether the cause is more specific than the error, as where torch wraps an error of the user's code."""
    return error.__cause__ is not None and type(error).__module__.startswith("torch")


# Remedies for a condition on data, by the enclosing statement.


_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def remedy_of_branch(file: str, line: int) -> str | None:
    """Return the remedy for a check or a loop; None if torch.where or the like helps, or the source is unknown.

    Args:
        file: name of the file, or of the notebook's cell, as :mod:`linecache` knows it.
        line: the line of the condition, counted from 1.
    """
    tree = _tree("".join(linecache.getlines(file)))
    around = _around(tree, line) if tree is not None else []
    for at, node in reversed(list(enumerate(around))):
        if isinstance(node, ast.Assert):
            return CHECK_REMEDY
        if isinstance(node, ast.If) and _spans(node, node.test, line):
            return _remedy_of_if(node, around[:at])
        if isinstance(node, ast.While) and _spans(node, node.test, line):
            return LOOP_REMEDY
        if isinstance(node, ast.For | ast.AsyncFor) and _spans(node, node.iter, line):
            return VALUES_REMEDY
        if isinstance(node, ast.IfExp) and _spans(node.test, node.test, line):
            return None
        if isinstance(node, _COMPREHENSIONS):
            return VALUES_REMEDY
    return None


def _remedy_of_if(node: ast.If, around: list[ast.AST]) -> str | None:
    if isinstance(node.body[-1], ast.Raise):
        return CHECK_REMEDY
    is_in_loop = any(isinstance(each, ast.While | ast.For | ast.AsyncFor) for each in around)
    return LOOP_REMEDY if is_in_loop and isinstance(node.body[-1], ast.Break | ast.Return) else None


def _spans(statement: ast.AST, test: ast.expr, line: int) -> bool:
    """Return whether a line belongs to the head of a statement."""
    first: int = getattr(statement, "lineno", test.lineno)
    return first <= line <= (test.end_lineno or test.lineno)


def _around(tree: ast.AST, line: int) -> list[ast.AST]:
    """Return the nodes around a line within its innermost function, outermost first."""
    found: list[ast.AST] = []
    for node in ast.iter_child_nodes(tree):
        if getattr(node, "lineno", 0) <= line <= (getattr(node, "end_lineno", None) or 0):
            inner = _around(node, line)
            found = [*inner] if any(isinstance(each, _SCOPES) for each in inner) else [*found, node, *inner]
    return found


@functools.lru_cache(maxsize=16)
def _tree(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None
