"""The page of all errors and of all kinds of failures, each with its own anchor, from the tables in the code.

``python -m docs.tools.errors --write`` renders it without Sphinx into the package, where errors in notebooks find it.
"""

from __future__ import annotations

import html
import importlib
import inspect
import pkgutil
import re
import sys
import textwrap

import prepbench
from docs.tools.error_examples import ERRORS
from docs.tools.failing import KINDS, Example
from prepbench.capture.failures.describe import REASONS, TIME_LIMIT, without_leaf_hint
from prepbench.error_display import PAGE
from prepbench.errors import PrepbenchError, page_of

_HEAD = """Errors and failures
===================

An error of prepbench is a card in a notebook: what, where, the remedy, and folded what stands below and the traceback.
In a terminal it has at most 20 lines and ends with the place on this page; ``PREPBENCH_TRACEBACK=full`` shows the whole
traceback in both. The table of failures of a model names the kind that you find below. Each example is run by the
tests.

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


# The copy of the page in the package.


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>prepbench: errors and failures</title>
<style>body {{max-width: 80ch; margin: 2em auto; padding: 0 1em; font-family: sans-serif; line-height: 1.5}}
pre {{overflow-x: auto; padding: .5em 1em; border: 1px solid}} :root {{color-scheme: light dark}}</style></head>
<body>
{body}
</body></html>
"""


def installed_page() -> str:
    """The page as HTML that needs nothing else."""
    from docutils import nodes
    from docutils.core import publish_parts
    from docutils.parsers.rst import roles

    def plain(
        _role: str, _raw: str, text: str, *_more: object, **_options: object
    ) -> tuple[list[nodes.Node], list[str]]:
        words = re.sub(r"\s*<[^>]*>$", "", text).lstrip("~!")
        return [nodes.literal(text=words.removeprefix("prepbench."))], []

    for name in ("class", "func", "meth", "attr", "mod", "doc", "ref", "data", "exc"):
        roles.register_local_role(name, plain)
    settings = {"syntax_highlight": "none", "doctitle_xform": False, "embed_stylesheet": False, "report_level": 3}
    parts = publish_parts(page(), writer="html5", settings_overrides=settings)
    # one section each, with the anchor that page_of gives it
    pieces = re.split(r'<section id="[^"]*">\s*<h4>', parts["body"])
    made = [re.sub(r"</?section[^>]*>", "", pieces[0])]
    for piece in pieces[1:]:
        title, _, content = piece.partition("</h4>")
        name = re.sub(r"<[^>]*>", "", title)
        anchor = page_of(html.unescape(name)).partition("#")[2]
        kept, ended, further = content.partition("</section>")
        made.append(
            f'<section id="{anchor}">\n<h4>{title}</h4>{kept}{ended}' + re.sub(r"</?section[^>]*>", "", further)
        )
    return _PAGE.format(body="".join(made).strip())


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(installed_page(), encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != installed_page():
        raise SystemExit(f"{PAGE} is old: python -m docs.tools.errors --write")
