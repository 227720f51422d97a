"""The page of all errors and of all kinds of failures, each with its own anchor, from the tables in the code."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import textwrap

import prepbench
from docs.tools.error_examples import ERRORS
from docs.tools.failing import KINDS, Example
from prepbench.capture.failures.describe import REASONS, TIME_LIMIT, without_leaf_hint
from prepbench.errors import PrepbenchError

_HEAD = """Errors and failures
===================

A traceback of prepbench ends with the place on this page where its error is explained, and the table of failures of a
model names the kind that you find below. Each example is run by the tests.

Why a model cannot be captured
------------------------------

A module that cannot be captured has a *failure*: its kind, the line, and what to change. ``pb.check_traceability``,
``pb.recursive_trace`` and ``pb.capture`` report them, ``pb.fix`` edits the lines of many. Where a line must stay as
it is, its module can be a :doc:`leaf <concepts>` that Python runs: ``leaf_modules=`` of ``capture``,
``modules_to_exclude=`` of ``prepare_model``, ``fullgraph=False`` of ``compile_model``, and
``RobustTracer.register_leaf``.

"""
_ERRORS = """
Error classes
-------------

Every error is a :class:`prepbench.PrepbenchError` and a standard exception, too, so that ``except ValueError`` works.

"""


def classes() -> list[type[PrepbenchError]]:
    """All error classes that can reach a caller, those of the module ``errors`` first."""
    for module in pkgutil.walk_packages(prepbench.__path__, "prepbench."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found: list[type[PrepbenchError]] = [PrepbenchError]
    for known in found:
        found += [each for each in known.__subclasses__() if each not in found]
    return [each for each in found if each.__module__.startswith("prepbench") and not is_internal(each)]


def is_internal(kind: type[PrepbenchError]) -> bool:
    """Whether the class says that it is caught before it reaches a caller."""
    return kind.__name__.startswith("_") or kind.__name__ in INTERNAL


INTERNAL = ("CannotFix", "CannotSwap", "SharedMemory")
"""Errors by which one part tells another to go another way."""


def kinds() -> dict[str, list[str]]:
    """All kinds of failures with their remedies; that a module may stay a leaf is said once for all."""
    found: dict[str, list[str]] = {}
    for reason in REASONS:
        remedies = found.setdefault(reason.kind, [])
        remedy = without_leaf_hint(reason.remedy)
        if remedy not in remedies:
            remedies.append(remedy)
    found[TIME_LIMIT] = [KINDS[TIME_LIMIT].remedy]
    return {kind: [text for text in texts if not _is_said(text, texts)] for kind, texts in found.items()}


def _is_said(remedy: str, others: list[str]) -> bool:
    """Whether another remedy says this and more."""
    return any(other != remedy and other.endswith(remedy) for other in others)


def page() -> str:
    """The page, in reStructuredText."""
    parts = [_HEAD]
    remedies = kinds()
    for kind in sorted(remedies, key=list(KINDS).index):  # the most frequent first
        example = KINDS[kind]
        parts.append(_section(kind, example.cause, _code_of(example), remedies[kind]))
    parts.append(_ERRORS)
    for error in classes():
        about = " ".join((inspect.getdoc(error) or "").split())
        if error is PrepbenchError:
            parts.append(_section(error.__name__, about, "", []))
            continue
        code, remedy = ERRORS[error.__name__]
        parts.append(_section(error.__name__, about, _block(code), [remedy]))
    return "".join(parts)


def _code_of(example: Example) -> str:
    parts = [_block(inspect.getsource(example.failing))]
    if example.advised is not None:
        parts.append("This can be captured:\n\n" + _block(inspect.getsource(example.advised)))
    return "".join(parts)


def _block(code: str) -> str:
    return ".. code-block:: python\n\n" + textwrap.indent(code.strip(), "   ") + "\n\n"


def _section(title: str, cause: str, code: str, remedies: list[str]) -> str:
    advice = [text if "``" in text else _as_rst(text) for text in remedies]
    lines = f"**Remedy.** {advice[0]}\n\n" if len(advice) == 1 else ""
    if len(advice) > 1:
        lines = "**Remedies**, by what the line does:\n\n" + "".join(f"- {text}\n" for text in advice) + "\n"
    return f"{title}\n{'~' * len(title)}\n\n{cause}\n\n{code}{lines}"


_NAME = re.compile(r"(?<!\w)(`[^`]+`|(?:torch|prepbench)(?:\.\w+)+(?:\(\))?|\w+=\[[^]]*\]|[\w.]*_\(\)|\w+=(?=\s|,|\)))")


def _as_rst(text: str) -> str:
    """Plain text with names as code, and without what would be markup."""
    parts = _NAME.split(text)
    plain = [re.sub(r"([*`|\\]|_(?!\w))", r"\\\1", part) for part in parts[::2]]
    code = [f"``{part.strip('`')}``\\ " if part else "" for part in parts[1::2]]
    return "".join(one for pair in zip(plain, [*code, ""], strict=True) for one in pair)
