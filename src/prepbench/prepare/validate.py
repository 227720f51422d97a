"""``validate_model``: the violations of the guidelines for quantization in a model, as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from prepbench._display import view
from prepbench.checks import check_function, described
from prepbench.document.model import SourceLine
from prepbench.errors import InputError
from prepbench.internal_errors import tells_internal_errors
from prepbench.prepare.kept import (
    CUSTOM,
    FOREIGN,
    INTERNAL,
    numbers_of,
    operation_text,
    reason_to_stay,
)
from prepbench.prepare.model import PreparedModel
from prepbench.prepare.passes.graph_edits import owner_of
from prepbench.prepare.trace import Traced, trace
from prepbench.running.check_inputs import check_names, checked_samples, known_names
from prepbench.running.unchanged import without_output

REUSED, FUNCTION, MISSING, UNTRACED = "reused module", "operation without module", "missing module", "not traced"
_REMEDIES = {
    REUSED: "prepare_model makes an instance for each call",
    FUNCTION: "prepare_model makes a module of it",
    MISSING: "no module exists for it: wrap it in a module of your own, or exclude the module around it",
    UNTRACED: "pass inputs=, or change what the reason names; the code inside was not checked",
}


@dataclass(frozen=True)
class Violation:
    """One place that breaks a guideline.

    Attributes:
        kind: ``"reused module"``, ``"operation without module"``, ``"missing module"`` or ``"not traced"``.
        fqn: the module it is in, or the reused module itself.
        operation: the function, or the module's class.
        why: the violated guideline.
        remedy: the remedy.
        source: the user's line, if known.
    """

    kind: str
    fqn: str
    operation: str
    why: str
    remedy: str
    source: SourceLine | None = None


@dataclass(frozen=True)
class ValidationReport:
    """All violations of the guidelines. The report is true if there are none."""

    model_type: str
    violations: tuple[Violation, ...]

    @property
    def passed(self) -> bool:
        """Whether there are no violations."""
        return not self.violations

    def table(self) -> Any:
        """Return the violations as a ``pandas.DataFrame``."""
        return view("views.display", "records_table", self.violations, Violation)

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        if self.passed:
            return f"{self.model_type} keeps all guidelines"
        count = Counter(violation.kind for violation in self.violations)
        lines = [f"{self.model_type}: " + ", ".join(f"{number} {kind}" for kind, number in count.items())]
        for one in self.violations:
            where = f" at {one.source.file}:{one.source.line}" if one.source else ""
            lines.append(f"  {one.fqn or '(model)'}: {one.operation}{where}: {one.why}")
        return "\n".join(lines)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        return view("views.display", "validation_bundle", self)


@tells_internal_errors
def validate_model(
    model: torch.nn.Module,
    concrete_args: dict[str, Any] | None = None,
    *,
    modules_to_exclude: Sequence[torch.nn.Module] | None = None,
    module_classes_to_exclude: Sequence[type[torch.nn.Module]] | None = None,
    inputs: Any = None,
) -> ValidationReport:
    """List violations of the guidelines: each operation is a module, no module is called twice, all code is traced.

    Args:
        model: any model; it is traced, not changed.
        concrete_args: as for :func:`prepbench.prepare_model`.
        modules_to_exclude: submodules whose inside is not looked at, as for :func:`prepbench.prepare_model`.
        module_classes_to_exclude: classes of such submodules.
        inputs: sample inputs, as for :func:`prepbench.prepare_model`.

    Returns:
        The violations, each with its module and its line.

    Raises:
        CaptureError: the model's own forward cannot be traced.
        InputError: a sample does not fit, or what is excluded is not part of the model.

    Example:
        >>> class Twice(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.relu = torch.nn.ReLU()
        ...
        ...     def forward(self, x):
        ...         return self.relu(self.relu(x) - 1)
        >>> [violation.kind for violation in validate_model(Twice()).violations]
        ['operation without module', 'reused module']
    """
    check_excluded("validate_model", model, modules_to_exclude, module_classes_to_exclude)
    concrete_args = known_names(model, concrete_args)
    samples = None if inputs is None else checked_samples(model, inputs)
    modules, classes = tuple(modules_to_exclude or ()), tuple(module_classes_to_exclude or ())
    with without_output():
        traced = trace(model, samples, concrete_args, modules, classes)
    kind = model.original_type if isinstance(model, PreparedModel) else type(model)
    return ValidationReport(kind.__name__, tuple(_violations(model, traced, {*map(id, modules)}, classes)))


def _violations(
    model: torch.nn.Module, traced: Traced, excluded: Collection[int], classes: Collection[type[torch.nn.Module]]
) -> list[Violation]:
    graph = traced.result.graph
    numbers, seen, found = numbers_of(graph), set[int](), []
    for node in graph.nodes:
        source = node.meta.get("source")
        if node.op in ("call_function", "call_method"):
            reason = reason_to_stay(node, numbers)
            kind = MISSING if reason in (INTERNAL, CUSTOM, FOREIGN) else FUNCTION
            if reason and kind is FUNCTION:
                continue  # it cannot be a module: it reads sizes, or unpacks a result
            why = reason or "it is a call in the code of the module around it"
            found.append(Violation(kind, owner_of(node), operation_text(node), why, _REMEDIES[kind], source))
        if node.op != "call_module":
            continue
        name = str(node.target)
        module = model.get_submodule(name)
        if id(module) in seen:
            why = "it is called again, so one setting would stand for several places"
            found.append(Violation(REUSED, name, type(module).__name__, why, _REMEDIES[REUSED], source))
        seen.add(id(module))
        reason = "" if id(module) in excluded or type(module) in classes else traced.whole.get(name, "")
        if name in traced.failures:
            reason = f"its code cannot be traced: {traced.failures[name].kind}"
        if reason:
            found.append(Violation(UNTRACED, name, type(module).__name__, reason, _REMEDIES[UNTRACED], source))
    return found


# Check the arguments of ``prepare_model`` and ``run_passes``.


def check_arguments(model: Any, modules: Any, classes: Any, passes: Any) -> None:
    """Check the arguments of ``prepare_model``.

    Raises:
        InputError: one of them is of another kind, or is not part of the model.
    """
    check_excluded("prepare_model", model, modules, classes)
    if isinstance(model, torch.jit.ScriptModule):
        raise InputError(
            "model is a scripted module, whose code torch runs outside Python, so that nothing in it can be replaced. "
            "Give prepare_model the module that it was made from, before torch.jit.script or torch.jit.trace."
        )
    check_names(model)
    check_passes("extra_passes", passes)


def check_excluded(function: str, model: Any, modules: Any, classes: Any) -> None:
    """Check the model and the excluded modules.

    Raises:
        InputError: one of them is of another kind, or is not part of the model.
    """
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"model must be a torch.nn.Module, got {described(model)}. Give {function} the module itself.")
    for name, given in (("modules_to_exclude", modules), ("module_classes_to_exclude", classes)):
        if given is not None and not isinstance(given, list | tuple | set):
            raise InputError(f"{name} is a list, got {described(given)}: write {name}=[...].")
    _check_modules(model, list(modules or ()))
    _check_classes(model, list(classes or ()))


def _check_modules(model: torch.nn.Module, modules: Sequence[Any]) -> None:
    own = {id(module) for module in model.modules()}
    for index, module in enumerate(modules):
        if not isinstance(module, torch.nn.Module):
            raise InputError(
                f"modules_to_exclude[{index}] is {described(module)}; give the submodules themselves, such as "
                "[model.get_submodule('layer1')], or classes in module_classes_to_exclude."
            )
        if id(module) not in own:
            raise InputError(
                f"modules_to_exclude[{index}], a {type(module).__name__}, is not part of this "
                f"{type(model).__name__}: give one of its own submodules, e.g. model.get_submodule('layer1')."
            )


def _check_classes(model: torch.nn.Module, classes: Sequence[Any]) -> None:
    own = {type(module) for module in model.modules()}
    for index, kind in enumerate(classes):
        if not isinstance(kind, type):
            raise InputError(
                f"module_classes_to_exclude[{index}] is {described(kind)}, not a class; modules go into "
                "modules_to_exclude."
            )
        if kind not in own:
            raise InputError(
                f"module_classes_to_exclude[{index}], {kind.__name__}, is the class of no submodule of this "
                f"{type(model).__name__}."
            )


def check_run(prepared: Any, passes: Any) -> None:
    """Check the arguments of ``run_passes``.

    Raises:
        InputError: the model is not a prepared one, or ``passes`` is not a list.
    """
    if not isinstance(prepared, PreparedModel):
        raise InputError(
            f"run_passes takes what prepare_model returns, got {type(prepared).__name__}: call "
            "prepare_model(model, inputs=[...]) first."
        )
    check_passes("passes", passes)


def check_passes(name: str, passes: Any) -> None:
    """Raise ``InputError`` unless the value is a list of functions."""
    if not isinstance(passes, list | tuple):
        raise InputError(f"{name} is a list, got {described(passes)}: write {name}=[fold_batch_norm_].")
    for index, each in enumerate(passes):
        check_function(f"{name}[{index}]", each, "fold_batch_norm_(prepared)")
