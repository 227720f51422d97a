"""``fix``: change a model's source so that it can be captured, and prove each change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from prepbench.checks import check_progress, check_table, described
from prepbench.errors import InputError
from prepbench.fixes.results import Fixed, fixed_model
from prepbench.fixes.search import Search
from prepbench.jobs import ProgressCallback, report_nothing
from prepbench.progress_bar import shows_progress
from prepbench.running.callable_module import as_module
from prepbench.running.check_inputs import check_traced, checked_samples


@shows_progress("fix")
def fix(
    model: Any,
    samples: Any,
    *,
    bounds: Mapping[str, int] | int | None = None,
    progress: ProgressCallback = report_nothing,
) -> Fixed:
    """Change a copy of the model, failure by failure, until it can be captured as one graph.

    Each change is made in the user's source, and counts only once it is proven: the failure is gone and there is no
    new one, and values, shapes, dtypes, buffers, gradients and errors equal the original on all samples and on
    derived calls that take the other sides of conditions. Unproven changes are drafts, with the reason, and so are
    changes that rest on an assumption which neither the code nor the caller states, such as the most iterations of a
    loop.

    The model, its classes and its files are not changed.

    Args:
        model: a module, function or bound method.
        samples: sample inputs, as for :func:`prepbench.capture`.
        bounds: the most iterations of loops that end when values say so: one number for all, or by the name of the
            variable that a loop counts or decides with. Left out, what the code proves (``and steps < 3``) is used,
            and a loop whose code proves nothing is a draft with the most that were seen.
        progress: hears of each failure that is looked into; raise :class:`prepbench.Cancelled` from it to stop.

    Returns:
        A :class:`Fixed`: ``.model`` is the changed copy, which shares the tensors, ``.applied`` the fixes,
        ``.remaining`` the drafts; ``.code()`` prints a cell, ``.write()`` changes the files.

    Raises:
        InputError: the samples do not fit the model.
        CaptureError: the model itself raises on one of them.

    Example:
        >>> fixed = fix(torch.nn.Linear(2, 2), [torch.ones(2, 2), torch.ones(3, 2)])
        >>> fixed.passed, fixed.applied
        (True, ())
    """
    check_traced("model", model)
    _check_bounds(bounds)
    check_progress(progress)
    chosen = checked_samples(model, samples)
    fixed = _searched(Search(as_module(model), chosen, bounds, progress))
    if any(draft.fix is not None for draft in fixed.remaining):
        assuming = _searched(Search(as_module(model), chosen, bounds, progress, assumes=True))
        found = {fix.fqn for fix in assuming.applied}
        # a refused program is no fix
        left = [each if each.fqn in found else replace(each, fix=None) for each in fixed.remaining]
        fixed = replace(fixed, remaining=tuple(left), _assuming=assuming)
    return fixed


def _searched(search: Search) -> Fixed:
    search.run()
    problem = search.program_problem()
    if problem:
        search.give_up(problem)
    remaining = [search.drafts[search.key(failure)] for failure in _once(search)]
    sources = tuple(source for source in search.sources.values() if source.text != source.original)
    model = fixed_model(search.swapped(shares=True), search.applied)
    return Fixed(model, tuple(search.applied), tuple(remaining), sources, search.model)


def _check_bounds(bounds: Any) -> None:
    if isinstance(bounds, Mapping):
        check_table("bounds", bounds, '{"n": 16}')
    values = list(bounds.values()) if isinstance(bounds, Mapping) else [] if bounds is None else [bounds]
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InputError(
                f"bounds must be a number of iterations, or a dict of such numbers by name, got {described(value)}. "
                "Give the most iterations that a loop may need."
            )


def _once(search: Search) -> list[Any]:
    found = {search.key(failure): failure for failure in reversed(search.failures)}
    return list(reversed(found.values()))
