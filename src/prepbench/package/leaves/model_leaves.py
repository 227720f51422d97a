"""``ModelLeaves``: the parts of a compiled model that stay in Python, and their section in a manifest."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch

from prepbench.capture.aten.captured import Captured
from prepbench.capture.aten.leaf_operators import KeepAlive, LeafDefinition, LeafOperators, is_leaf_operator
from prepbench.capture.statements.cuts import Cuts, ReleasedLeaf, StatementLeaf
from prepbench.capture.statements.outline import CutFunction
from prepbench.errors import ArtifactError, CaptureError, PrepbenchError, SettingsError, TargetError, sentence
from prepbench.objects.copy import Twin
from prepbench.package.leaves import definitions, handed_in
from prepbench.running.callable_module import as_module, calls_forward_fn, with_forward_fn
from prepbench.running.check_inputs import check_traced
from prepbench.targets import Runtime
from prepbench.targets.partition import FALLBACK

SECTION = "leaves"


@dataclass(frozen=True)
class ModelLeaves:
    """The parts of a compiled model that stay in Python.

    Attributes:
        model: the model in Python, for calls that the graph cannot express; None where there is none.
        content: the section in the manifest of a saved model.
        pieces: leaves that are exported by themselves, by the name of their folder.
        problem: why the model cannot be saved; "" if it can.
        needs: the leaves that a loaded model runs in Python, each with what it needs, in words.
        keep_alive: the objects that the operators of the leaves need.
    """

    model: Callable[..., Any] | None
    content: Mapping[str, Any]
    pieces: Mapping[str, Runtime] = field(default_factory=dict)
    problem: str = ""
    needs: tuple[str, ...] = ()
    keep_alive: object = None

    @classmethod
    def of(cls, captured: Captured, program: torch.export.ExportedProgram, texts: Sequence[str]) -> ModelLeaves:
        """Describe the leaves of a captured model, with its current state."""
        keep_alive: KeepAlive = captured.program.graph_module.meta["prepbench_keep_alive"]
        used = {f"{node.target.namespace}.{_own_name(node.target)}" for node in program.graph.nodes if _is_leaf(node)}
        made = {name: definition for name, definition in keep_alive.definitions.items() if name in used}
        writer = _Writer(captured, keep_alive)
        try:
            content = writer.content(made, texts)
        except _CannotSaveError as error:
            return cls(captured.model, {}, problem=str(error), keep_alive=captured)
        return cls(captured.model, content, writer.pieces, "", needs_of(content), captured)

    @property
    def remarks(self) -> tuple[str, ...]:
        """The consequences of saving for the parts in Python."""
        if self.problem:
            return (f"it cannot be saved: {self.problem}",)
        if self.needs:
            return (f"a saved copy is loaded with load_compiled(folder, model=model), for {'; '.join(self.needs)}",)
        return ()

    def save(self, folder: Path) -> None:
        """Write the exported pieces.

        Raises:
            TargetError: the model cannot be saved.
        """
        if self.problem:
            raise TargetError(self.problem)
        for name, runtime in self.pieces.items():
            (folder / name).mkdir()
            runtime.save(folder / name)


def needs_of(content: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the parts of a loaded model that run in Python, in words, with the class that each of them needs."""
    rows = [row for row in content["operators"] if not row["piece"]]
    return tuple(dict.fromkeys(f"{row['leaf']} ({row['class']})" for row in rows))


def leaf_words(fqn: str, leaf: StatementLeaf | ReleasedLeaf | None) -> str:
    """Return a leaf as shown to users."""
    if leaf is None:
        return fqn or "the model itself"
    first, last = leaf.outlined.lines
    lines = f"line {first}" if first == last else f"lines {first} to {last}"
    return f"{lines} of {leaf.owner_fqn or 'the model itself'}"


class _CannotSaveError(PrepbenchError):
    """Raised if a leaf has no form in a file."""


def _is_leaf(node: torch.fx.Node) -> bool:
    return is_leaf_operator(node.target)


def _own_name(target: Any) -> str:
    return str(target).split(".")[1]


class _Writer:
    """Writes the section of the manifest."""

    def __init__(self, captured: Captured, keep_alive: KeepAlive) -> None:
        self.pieces: dict[str, Runtime] = {}
        self._captured = captured
        self._model = captured.model
        self._keep_alive = keep_alive
        self._names = {id(module): fqn for fqn, module in captured.model.named_modules()}

    def content(self, made: Mapping[str, LeafDefinition], texts: Sequence[str]) -> dict[str, Any]:
        rows = [self._row(name, definition) for name, definition in made.items()]
        in_python = [row for row in rows if not row["piece"]]
        functions = self._keep_alive.functions if any(row["statements"] for row in rows) else ()
        content = {
            "training": handed_in.modes_to_json(self._model),
            "state": handed_in.state_to_json(self._model) if in_python else {},
            "forward_fn": calls_forward_fn(self._model),
            "functions": [definitions.function_to_json(cut) for cut in functions],
            "operators": rows,
        }
        for row in in_python:
            self._check(row, functions, texts)
        return content

    def _row(self, name: str, made: LeafDefinition) -> dict[str, Any]:
        leaf = self._keep_alive.leaf(made.fqn)
        if not made.fqn and leaf is None:
            raise _CannotSaveError(
                "The whole model is one leaf module, so nothing of it is compiled and there is nothing to save. Name "
                "smaller modules in leaf_modules, or save the model's own state_dict()."
            )
        owner = made.fqn if leaf is None else leaf.owner_fqn
        place = None if leaf is None else self._place(made.fqn, leaf)
        module = self._model.get_submodule(owner)
        row: dict[str, Any] = {
            "operator": name,
            "leaf": leaf_words(made.fqn, leaf),
            "module": owner,
            "class": handed_in.class_of(module),
            "qualname": type(module).__qualname__,
            "forward": handed_in.forward_to_json(module) if leaf is None else [],
            "statements": place,
            "piece": "",
        }
        piece = definitions.exported_piece(self._captured, made) if leaf is None else None
        if piece is not None:
            row["piece"] = f"leaf_{len(self.pieces)}"
            self.pieces[row["piece"]] = piece
            made = definitions.flattened(made)
        try:
            return {**row, **definitions.definition_to_json(made, self._names, are_statements=leaf is not None)}
        except (ValueError, CaptureError) as error:
            raise self._cannot(row, f"it takes or returns {sentence(error)}") from error

    def _place(self, name: str, leaf: StatementLeaf | ReleasedLeaf) -> dict[str, Any]:
        """Return the function and the range of a statement leaf."""
        found = [
            {"function": i, "range": j, "has_owner": leaf.has_owner}
            for i, cut in enumerate(self._keep_alive.functions)
            for j, each in enumerate(cut.ranges)
            if (cut.file, cut.path) == (leaf.file, leaf.outlined.path[:-1])
            and leaf.outlined.lines == (cut.line + each.lines[0], cut.line + each.lines[1])
        ]
        if len(found) != 1:
            words = leaf_words(name, leaf)
            raise self._cannot({"leaf": words}, "no range of statements can be told by its lines alone.")
        return found[0]

    def _check(self, row: Mapping[str, Any], functions: Sequence[CutFunction], texts: Sequence[str]) -> None:
        """Check that the written description finds the leaf."""
        try:
            handed_in.check_module(self._model, row)
            handed_in.check_texts([row], self._model, texts)
            if row["statements"]:
                handed_in.bound_statements(Cuts(self._model), functions, [row])
        except (definitions.NoJson, LookupError, PrepbenchError) as error:
            raise self._cannot(row, sentence(error)) from error

    def _cannot(self, row: Mapping[str, Any], why: str) -> _CannotSaveError:
        return _CannotSaveError(
            f"The model cannot be saved because of the leaf {row['leaf']}: {why} Rewrite it so that it can be captured "
            "(pb.recursive_trace says why it cannot), or compile the model where it is used."
        )


# The leaves of a saved model: read from its manifest, bound to the model handed in, registered as operators.


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
    """Loaded parts that stay in Python, and the operators of this process by their names in the folder."""

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
        handed_in.set_modes(twin, content["training"])
        handed_in.check_state(twin, content["state"])
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
        operators.define(definition, definitions.running(pieces[row["piece"]]) if row["piece"] else None)
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
        handed_in.check_module(model, row)
    handed_in.check_texts(in_python, model, texts)
    statements = [row for row in in_python if row["statements"]]
    functions = [definitions.function_from_json(data) for data in content["functions"]]
    found = iter(handed_in.bound_statements(cuts, functions, statements) if statements else ())
    return [next(found) if row["statements"] else row["module"] for row in rows]


def _definition(row: Mapping[str, Any], name: str, model: torch.nn.Module) -> LeafDefinition:
    return definitions.definition_from_json(name, row["leaf"][:200], row, model, are_statements=bool(row["statements"]))


def _piece(folder: Path) -> Runtime:
    return FALLBACK.load(folder, FALLBACK.settings_type())


def _nothing_learned(fqn: str) -> NoReturn:
    raise AssertionError(f"{fqn} is called while nothing is traced")


def _damaged(folder: Path, error: Exception) -> NoReturn:
    raise ArtifactError(
        f"{folder}: what the manifest says about the parts in Python is damaged, or does not fit the model handed in: "
        f"{sentence(error)} Save the model again."
    ) from error
