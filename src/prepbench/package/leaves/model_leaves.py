"""``ModelLeaves``: the parts of a compiled model that stay in Python, and their section in a manifest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from prepbench.capture.aten.captured import Captured
from prepbench.capture.aten.leaf_operators import KeepAlive, LeafDefinition, is_leaf_operator
from prepbench.capture.statements.cuts import Cuts, ReleasedLeaf, StatementLeaf
from prepbench.capture.statements.outline import CutFunction
from prepbench.errors import CaptureError, PrepbenchError, TargetError, sentence
from prepbench.package.leaves.definitions import NoJson, definition_to_json, exported_piece, flattened, function_to_json
from prepbench.package.leaves.handed_in import (
    bound_statements,
    check_module,
    check_texts,
    class_of,
    forward_to_json,
    modes_to_json,
    state_to_json,
)
from prepbench.running.callable_module import calls_forward_fn
from prepbench.targets import Runtime

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
        """Describe the leaves of a captured model, with its current state.

        Args:
            captured: the model.
            program: the graph that is compiled.
            texts: those that each call of the compiled model has to give.
        """
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
            "training": modes_to_json(self._model),
            "state": state_to_json(self._model) if in_python else {},
            "forward_fn": calls_forward_fn(self._model),
            "functions": [function_to_json(cut) for cut in functions],
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
            "class": class_of(module),
            "qualname": type(module).__qualname__,
            "forward": forward_to_json(module) if leaf is None else [],
            "statements": place,
            "piece": "",
        }
        piece = exported_piece(self._captured, made) if leaf is None else None
        if piece is not None:
            row["piece"] = f"leaf_{len(self.pieces)}"
            self.pieces[row["piece"]] = piece
            made = flattened(made)
        try:
            return {**row, **definition_to_json(made, self._names, are_statements=leaf is not None)}
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
            check_module(self._model, row)
            check_texts([row], self._model, texts)
            if row["statements"]:
                bound_statements(Cuts(self._model), functions, [row])
        except (NoJson, LookupError, PrepbenchError) as error:
            raise self._cannot(row, sentence(error)) from error

    def _cannot(self, row: Mapping[str, Any], why: str) -> _CannotSaveError:
        return _CannotSaveError(
            f"The model cannot be saved because of the leaf {row['leaf']}: {why} Rewrite it so that it can be captured "
            "(pb.recursive_trace says why it cannot), or compile the model where it is used."
        )
