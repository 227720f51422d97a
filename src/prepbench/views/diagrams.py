"""Turn results into the documents of a diagram: one, several levels, or two side by side."""

from __future__ import annotations

from typing import Any

from prepbench.checks import check_switch, described
from prepbench.document.differences import differences
from prepbench.document.hierarchy import grouped
from prepbench.document.model import DiagramDocument, GraphCollectionDocument
from prepbench.errors import InputError


def combined(*things: Any, compare: bool = False, titles: tuple[str, ...] = ()) -> DiagramDocument:
    """Combine results into one document.

    Args:
        things: results with a ``document()``, such as a ``GraphCollection`` or a ``Captured``, or documents.
        compare: two of them side by side, with differences marked; else one at a time, to switch between.
        titles: a name for each.

    Raises:
        InputError: nothing to show, something without a document, or a comparison of more or fewer than two.
    """
    check_switch("compare", compare)
    if not isinstance(titles, tuple | list) or not all(isinstance(title, str) for title in titles):
        raise InputError(f"titles must be a list of texts, got {described(titles)}. Write titles=('before', 'after').")
    documents = tuple(_document(thing) for thing in things)
    if not documents:
        raise InputError("There is nothing to show: give at least one collection or captured graph.")
    if compare and len(documents) != 2:
        raise InputError(f"Two graphs can be compared side by side; got {len(documents)}.")
    if titles and len(titles) != len(documents):
        raise InputError(f"There are {len(documents)} graphs and {len(titles)} titles.")
    marks = differences(*documents) if compare else ()
    names = titles or (("before", "after") if compare else ())
    return DiagramDocument(documents, tuple(names), "compare" if compare else "levels", marks=marks)


def diagram(*things: Any, compare: bool = False, titles: tuple[str, ...] = ()) -> Any:
    """Return the live diagram of one or several results: an anywidget with the traits ``selected``, ``view``,
    ``overlay``.

    Args:
        things: results with a ``document()``: a ``GraphCollection``, ``Captured`` or ``CompiledModel``; or documents.
        compare: two of them side by side with linked selection and marked differences, such as a model before and after
            preparation, or a captured graph beside the compiled one. Else one at a time, such as the module graph and
            the ATen graph of a model, with the selection carried over by name.
        titles: a name for each.

    Returns:
        The widget, which a notebook shows as the last value of a cell.

    Raises:
        InputError: nothing to show, something without a document, or a comparison of more or fewer than two.

    Example:
        >>> import torch, prepbench as pb
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2)).eval()
        >>> both = pb.diagram(pb.recursive_trace(model), pb.capture(model, torch.randn(3, 4)))
        >>> both.height
        '620px'
    """
    from prepbench._display import view

    return view("widgets.diagram", "diagram", combined(*things, compare=compare, titles=titles))


def _document(thing: Any) -> GraphCollectionDocument:
    found = thing if isinstance(thing, GraphCollectionDocument) else getattr(thing, "document", None)
    if callable(found):
        found = found()
    if not isinstance(found, GraphCollectionDocument):
        raise InputError(
            f"A {type(thing).__name__} has no graph to show. Give what recursive_trace or capture returned, or a "
            "document read from a file."
        )
    return found if found.groups else grouped(found)
