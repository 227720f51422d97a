"""All graph breaks of dynamo in a model: the model runs once, graph by graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import CodeType
from typing import Any

import torch

from prepbench._torch_compat.dynamo import compiled_by_dynamo, graph_breaks_noted
from prepbench.capture.failures.describe import describe_failure
from prepbench.capture.failures.wrong_programs import unequal
from prepbench.document.model import Failure
from prepbench.inputs import Sample
from prepbench.objects.parts import is_user_code
from prepbench.running.outcomes import without_output
from prepbench.running.unchanged import own_copy, unchanged


def graph_breaks(model: torch.nn.Module, sample: Sample) -> list[Failure]:
    """Return all graph breaks on the path that ``sample`` takes, in order.

    The model runs for real on a copy of the sample; its state and the random numbers are as before afterwards.
    """
    with unchanged(model), without_output(), torch.no_grad(), graph_breaks_noted() as noted:
        with compiled_by_dynamo(model, fullgraph=False) as compiled:
            own_copy(sample).call(compiled)
    owners = dict(_lines_of(model))
    found: dict[Any, Failure] = {}
    for error in noted:
        for fqn in _owners_of(getattr(error, "real_stack", ()), owners) or [""]:
            module = model.get_submodule(fqn)
            failure = describe_failure(error, fqn=fqn, module_type=type(module).__name__, module=module)
            found.setdefault((fqn, failure.source), failure)
    return list(found.values())


def fullgraph_failure(model: torch.nn.Module, samples: Sequence[Sample]) -> Failure | None:
    """Return why dynamo cannot make one graph of the model that equals it on all samples; ``None`` if it can."""
    with compiled_by_dynamo(model, fullgraph=True) as compiled:
        try:
            with unchanged(model), without_output(), torch.no_grad():
                own_copy(samples[0]).call(compiled)
        except Exception as error:
            owners = _owners_of(getattr(error, "real_stack", None) or (), dict(_lines_of(model)))
            module = model.get_submodule(owners[0]) if owners else model
            fqn = owners[0] if owners else ""
            return describe_failure(error, fqn=fqn, module_type=type(module).__name__, module=module)
        return unequal(compiled, model, samples)


def _lines_of(model: torch.nn.Module) -> Iterator[tuple[str, list[tuple[str, range]]]]:
    """Return, for each module, the files and lines of the methods that its own classes define."""
    for fqn, module in model.named_modules():
        codes = [
            getattr(getattr(value, "__wrapped__", value), "__code__", None)
            for kind in type(module).__mro__
            for value in vars(kind).values()
        ]
        codes.append(getattr(getattr(module.forward, "__func__", module.forward), "__code__", None))
        places = [_place(code) for code in codes if isinstance(code, CodeType) and is_user_code(code)]
        if places:
            yield fqn, places


def _place(code: CodeType) -> tuple[str, range]:
    lines = [line for _, _, line in code.co_lines() if line is not None]
    return code.co_filename, range(min(lines), max(lines) + 1)


def _owners_of(stack: Any, owners: dict[str, list[tuple[str, range]]]) -> list[str]:
    """Return the modules of which one owns the innermost frame of ``stack`` that belongs to a module."""
    for frame in reversed(list(stack)):
        found = [
            fqn
            for fqn, places in owners.items()
            if any(frame.filename == file and (frame.lineno or 0) in lines for file, lines in places)
        ]
        if found:
            return found
    return []
