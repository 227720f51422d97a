"""Bind the leaves of a saved model to the model handed in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from prepbench.capture.statements.cut_functions import CutFunction
from prepbench.capture.statements.cuts import Cuts
from prepbench.capture.statements.statement_leaf import StatementLeaf
from prepbench.compile.leaves.handed_in import function_of, reached
from prepbench.compile.leaves.values import NoJson, texts_in
from prepbench.running.reached_functions import reached_texts


def bound_statements(cuts: Cuts, functions: Sequence[CutFunction], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Cut ranges out of the functions of a model again.

    Args:
        cuts: of the model, with nothing cut out yet.
        functions: the cuts of each.
        rows: the operators of statements.

    Returns:
        The name in ``cuts.leaves`` of each of them.

    Raises:
        ArtifactError: no such function is reached by the model, or its lines are others.
        LookupError: a function has no such range.
        NoJson: a row does not fit the statements.
        CannotSwap: a class does not allow subclasses.
    """
    candidates = reached(cuts.model)
    found = [(cut, function_of(cut, candidates)) for cut in functions]
    if len({id(function.__code__) for _, function in found}) < len(found):
        raise NoJson("one function twice")
    cuts.restore(found)
    return [_name_of(cuts, found, row) for row in rows]


def _name_of(cuts: Cuts, found: Sequence[tuple[CutFunction, Any]], row: Mapping[str, Any]) -> str:
    place = row["statements"]
    if not (0 <= place["function"] < len(found)):
        raise NoJson("statements of a function that is not listed")
    cut, function = found[place["function"]]
    if not (0 <= place["range"] < len(cut.ranges)):
        raise NoJson("statements that are no range of their function")
    first = function.__code__.co_firstlineno
    lines = cut.ranges[place["range"]].lines
    wanted = (first + lines[0], first + lines[1])
    for name, leaf in cuts.leaves.items():
        known = (leaf.file, leaf.outlined.path[:-1], leaf.outlined.lines, leaf.owner_fqn, leaf.has_owner)
        if known == (function.__code__.co_filename, cut.path, wanted, row["module"], place["has_owner"]):
            _check_fits(leaf, row)
            return name
    raise LookupError(f"{cut.name} has no such statements for {row['module'] or 'the model'}")


def _check_fits(leaf: StatementLeaf, row: Mapping[str, Any]) -> None:
    """Check that the call is one of these statements."""
    arguments, results = row["arguments"], row["results"]
    given = [item for item in arguments.get("items", ()) if isinstance(item, dict)]
    takes = len(leaf.outlined.inputs) - (leaf.has_owner and leaf.outlined.owner in leaf.outlined.inputs)
    if len(given) != 2 or given[1].get("items") or len(given[0].get("items", ())) != takes:
        raise NoJson("other arguments than its statements take")
    outputs = leaf.outlined.outputs
    fits = outputs is None or (results.get("kind") == "tuple" and len(results.get("items", ())) == len(outputs))
    if not fits and not row["restructured"]:
        raise NoJson("other results than its statements give")


def check_texts(rows: Sequence[Mapping[str, Any]], model: torch.nn.Module, texts: Sequence[str]) -> None:
    """Check that each text argument of a leaf occurs in the model's code or attributes.

    Code may open files or dispatch on texts, so a folder must not introduce any of its own.

    Args:
        rows: the operators.
        model: handed in.
        texts: further ones, which each call has to give.

    Raises:
        NoJson: one does not.
    """
    given = {text for row in rows for text in [*row["fixed"], *texts_in(row["arguments"])] if isinstance(text, str)}
    if given and not given <= {*texts, *reached_texts(model, reached(model))}:
        raise NoJson("a text that stands neither in the model's code nor in its attributes")
