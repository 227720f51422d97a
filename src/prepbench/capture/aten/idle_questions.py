"""Guards on sizes that tracing makes, that the samples answer differently, and that do not change the graph.

torch asks whether a tensor is contiguous, or has one entry, to determine the memory layout of a result. The graph is
the same for both answers, but would refuse calls with another answer than the traced sample's.
"""

from __future__ import annotations

import re
from typing import Any

import sympy

from prepbench._torch_compat.programs import with_guards, without_guards
from prepbench.capture.aten.export_program import Program
from prepbench.capture.sizes.conditions import CONDITIONS, Asked, SizeConditions
from prepbench.capture.sizes.sample_sizes import SampleSizes
from prepbench.capture.sizes.size_formulas import formula_text, python_text


def without_idle_questions(program: Program, sizes: SampleSizes) -> tuple[Program, list[Asked]] | None:
    """Return the program without torch's guards that samples break; its results on them are still to be compared.

    Args:
        program: as it was exported.
        sizes: of the samples.

    Returns:
        The program and the questions that it still asks; ``None`` where there is no such question, or where the
        model's own Python asked one, which then goes another way for some samples.
    """
    conditions: SizeConditions | None = program.graph_module.meta.get(CONDITIONS)
    texts: list[str] = []
    kept: list[Asked] = []
    is_less = False
    for asked in conditions.asked() if conditions is not None else ():
        answers = sizes.answers(asked.expression, dict(asked.names))
        formula = formula_text(asked.expression, list(asked.names))
        if answers is None or formula is None:
            return None
        if all(answers):
            kept.append(asked)
            texts.append(python_text(formula, [guarded_size(name) for name in asked.names.values()]))
        elif asked.is_own or not _is_about_memory(asked.expression):
            return None
        else:
            is_less = True
    return (with_guards(without_guards(program), texts), kept) if is_less else None


def _is_about_memory(expression: Any) -> bool:
    """Return whether a guard is of the kinds that torch makes for memory layout: is a size 1, does one size divide
    another.

    Other guards, such as whether pooling drops a window, decide sizes, and a sample that takes the other branch may
    agree with the graph by chance.
    """
    if not isinstance(expression, sympy.Eq | sympy.Ne):
        return False
    return 1 in expression.args or (
        0 in expression.args and any("Mod" in type(part).__name__ for part in expression.args)
    )


def model_decides(program: Program, sizes: SampleSizes) -> bool:
    """Return whether the model's own Python branches on sizes on which samples differ, in either mode of tracing."""
    conditions: SizeConditions | None = program.graph_module.meta.get(CONDITIONS)
    own = [asked for asked in conditions.asked() if asked.is_own] if conditions is not None else []
    return any(False in (sizes.answers(asked.expression, dict(asked.names)) or ()) for asked in own)


def guarded_size(name: str) -> str:
    """Return the size ``x.shape[0]`` as torch writes it in guards of a program: ``L['x'].size()[0]``."""
    return re.sub(r"^(\w+)(.*)\.shape", r"L['\1']\2.size()", name)
