"""The leaves of a saved model: read from its manifest, bound to the model handed in, registered as operators."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch

from prepbench.capture.aten.leaf_operators import LeafDefinition, LeafOperators
from prepbench.capture.statements.cuts import Cuts
from prepbench.errors import ArtifactError, PrepbenchError, SettingsError, sentence
from prepbench.objects.copy import Twin
from prepbench.package.leaves.definitions import definition_from_json, function_from_json, running
from prepbench.package.leaves.handed_in import bound_statements, check_module, check_state, check_texts, set_modes
from prepbench.package.leaves.model_leaves import ModelLeaves, needs_of
from prepbench.running.callable_module import as_module, with_forward_fn
from prepbench.running.check_inputs import check_traced
from prepbench.targets import Runtime
from prepbench.targets.partition import FALLBACK

MAX_OPERATORS = 1000
_OPERATOR = re.compile(r"prepbench_leaf\d{0,6}\.[A-Za-z_]\w{0,2000}", re.ASCII)
_PIECE = re.compile(r"(leaf_\d{1,4})?")
_ROW: Mapping[str, type] = {
    **dict.fromkeys(("operator", "leaf", "module", "class", "qualname", "piece"), str),
    **dict.fromkeys(("forward", "kinds", "fixed", "repeats", "calls"), list),
    **dict.fromkeys(("arguments", "results"), dict),
    **dict.fromkeys(("restructured", "strict"), bool),
}
_CONTENT = {"training": list, "state": dict, "forward_fn": bool, "functions": list, "operators": list}


@dataclass(frozen=True)
class LoadedLeaves:
    """The result of loading leaves.

    Attributes:
        leaves: the parts that stay in Python.
        operators: the operators of this process, by their names in the folder.
    """

    leaves: ModelLeaves
    operators: Mapping[str, str]


def check_section(content: Any) -> None:
    """Raise ``ValueError`` unless this has the form of prepbench's section on leaves; the text names the place."""
    if not isinstance(content, dict) or set(content) != set(_CONTENT):
        raise ValueError("leaves must be what prepbench writes")
    for name, kind in _CONTENT.items():
        if type(content[name]) is not kind:
            raise ValueError(f"leaves.{name} must be a {kind.__name__}")
    if not all(isinstance(name, str) for name in content["training"]):
        raise ValueError("leaves.training must be names")
    for name, row in content["state"].items():
        sizes = row.get("shape") if isinstance(row, dict) and set(row) == {"dtype", "shape", "sha256"} else None
        if not isinstance(sizes, list) or not all(isinstance(row[key], str) for key in ("dtype", "sha256")):
            raise ValueError(f"leaves.state[{name[:60]!r}] must describe a tensor")
    if not 0 < len(content["operators"]) <= MAX_OPERATORS or len(content["functions"]) > MAX_OPERATORS:
        raise ValueError("leaves.operators must be a list of operators")
    for place, row in enumerate(content["operators"]):
        _check_row(row, f"leaves.operators[{place}]")
    for names in ([row["operator"] for row in content["operators"]], _pieces(content)):
        if len(set(names)) < len(names):
            raise ValueError("leaves.operators must have names of their own")


def _pieces(content: Mapping[str, Any]) -> list[str]:
    return [row["piece"] for row in content["operators"] if row["piece"]]


def _check_row(row: Any, where: str) -> None:
    if not isinstance(row, dict) or set(row) != {*_ROW, "statements"}:
        raise ValueError(f"{where} must be an operator")
    for name, kind in _ROW.items():
        if type(row[name]) is not kind:
            raise ValueError(f"{where}.{name} must be a {kind.__name__}")
    if not _OPERATOR.fullmatch(row["operator"]) or not _PIECE.fullmatch(row["piece"]):
        raise ValueError(f"{where} must have names as prepbench gives them")
    if not all(isinstance(line, str) for line in row["forward"]):
        raise ValueError(f"{where}.forward must be digests of lines")
    place = row["statements"]
    if place is None:
        return
    if row["piece"] or not isinstance(place, dict) or set(place) != {"function", "range", "has_owner"}:
        raise ValueError(f"{where}.statements must name a range")
    if type(place["has_owner"]) is not bool or not all(type(place[name]) is int for name in ("function", "range")):
        raise ValueError(f"{where}.statements must name a range")


def check_model_given(
    content: Mapping[str, Any] | None, model: Any, folder: Path, *, forward_fn: Any = None, allow_code: bool
) -> None:
    """Check that a model is handed in if and only if one is needed; likewise ``forward_fn``.

    Raises:
        ArtifactError: there is none; the message says what the folder needs.
        SettingsError: there is one for nothing.
    """
    if forward_fn is not None and (model is None or content is None or not content["forward_fn"]):
        raise SettingsError(
            f"forward_fn= is for a model that was compiled with one and is handed in with model=; {folder} needs none: "
            "call load_compiled without forward_fn=."
        )
    if model is not None:
        check_traced("model", model)
        if content is None:
            raise SettingsError(
                f"{folder} holds the whole model, which needs nothing handed in: call load_compiled without model=."
            )
        return
    needs = needs_of(content) if content is not None else ()
    if needs:
        code = ", allow_code=True" if allow_code else ""
        raise ArtifactError(
            f"{folder} holds a model of which these parts run in Python, and their code is not in the folder: "
            f"{'; '.join(needs)}. Import the class, make the model that was compiled, load its checkpoint, and hand it "
            f"in: pb.load_compiled({str(folder)!r}, model=model{code})."
        )


def load_leaves(
    content: Mapping[str, Any], model: Any, folder: Path, texts: Sequence[str], forward_fn: Any = None
) -> LoadedLeaves:
    """Register the operators of a saved model. No code from the folder runs, and nothing that it names is imported.

    Args:
        content: of the manifest; see :func:`check_section`.
        model: handed in; None where every leaf is an exported piece.
        folder: has the pieces.
        texts: those that each call of the loaded model has to give.
        forward_fn: calls the model; only functions that it or a forward leads to are looked for.

    Raises:
        ArtifactError: the model is not the one that was compiled, or the content is damaged.
    """
    called = model if forward_fn is None else with_forward_fn(model, forward_fn)
    twin = None if model is None else as_module(Twin(called).model)
    if twin is not None:
        set_modes(twin, content["training"])
        check_state(twin, content["state"])
    base = torch.nn.Module() if twin is None else twin
    cuts = Cuts(base)
    rows: list[Mapping[str, Any]] = content["operators"]
    try:
        names = _leaf_names(content, cuts, base, texts)
        made = [_definition(row, name, base) for row, name in zip(rows, names, strict=True)]
    except PrepbenchError as error:
        if isinstance(error, ArtifactError):
            if content["forward_fn"] and forward_fn is None:
                raise ArtifactError(
                    f"{sentence(error)} It was compiled with a forward_fn: if the lines are reached through that one "
                    "only, hand it in, too, with forward_fn=."
                ) from error
            raise
        _damaged(folder, error)
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        _damaged(folder, error)
    pieces = {row["piece"]: _piece(folder / row["piece"]) for row in rows if row["piece"]}
    operators = LeafOperators(cuts.model, _nothing_learned)
    live = [
        operators.define(definition, running(pieces[row["piece"]]) if row["piece"] else None)
        for row, definition in zip(rows, made, strict=True)
    ]
    operators.run_on(base, cuts.original)
    live_names = [f"{each.namespace}.{str(each).split('.')[1]}" for each in live]
    known = {row["operator"]: name for row, name in zip(rows, live_names, strict=True)}
    here = [{**row, "operator": known[row["operator"]]} for row in rows]
    whole = None if content["forward_fn"] and forward_fn is None else twin
    leaves = ModelLeaves(whole, {**content, "operators": here}, pieces, "", needs_of(content), operators.keep_alive)
    return LoadedLeaves(leaves, known)


def _leaf_names(content: Mapping[str, Any], cuts: Cuts, model: torch.nn.Module, texts: Sequence[str]) -> list[str]:
    """Return the names by which the operators' leaves are known here."""
    rows = content["operators"]
    in_python = [row for row in rows if not row["piece"]]
    for row in in_python:
        check_module(model, row)
    check_texts(in_python, model, texts)
    statements = [row for row in in_python if row["statements"]]
    functions = [function_from_json(data) for data in content["functions"]]
    found = iter(bound_statements(cuts, functions, statements) if statements else ())
    return [next(found) if row["statements"] else row["module"] for row in rows]


def _definition(row: Mapping[str, Any], name: str, model: torch.nn.Module) -> LeafDefinition:
    return definition_from_json(name, row["leaf"][:200], row, model, are_statements=bool(row["statements"]))


def _piece(folder: Path) -> Runtime:
    return FALLBACK.load(folder, FALLBACK.settings_type())


def _nothing_learned(fqn: str) -> NoReturn:
    raise AssertionError(f"{fqn} is called while nothing is traced")


def _damaged(folder: Path, error: Exception) -> NoReturn:
    raise ArtifactError(
        f"{folder}: what the manifest says about the parts in Python is damaged, or does not fit the model handed in: "
        f"{sentence(error)} Save the model again."
    ) from error
