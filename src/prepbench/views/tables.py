"""Tables as pandas data frames."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from prepbench.capture.sizes.axis import counted_places
from prepbench.document.model import Failure

if TYPE_CHECKING:
    import pandas

_FAILURE_COLUMNS = ["module", "type", "reason", "message", "file", "line", "code", "remedy"]


def failures_table(failures: Iterable[Failure]) -> pandas.DataFrame:
    """One row for each module that could not be captured: why, where, and what to change."""
    import pandas

    rows = []
    for failure in failures:
        source = failure.source
        place = (source.file, source.line, source.code) if source else ("", None, "")
        message = f"{failure.exception_type}: {failure.message}"
        part = failure.part if failure.fqn or failure.lines else "(the model itself)"
        rows.append((part, failure.module_type, failure.kind, message, *place, failure.remedy))
    return pandas.DataFrame(rows, columns=_FAILURE_COLUMNS)


def traceability_table(report: Any) -> pandas.DataFrame:
    """One row for each check that passed and for each reason why another did not."""
    import pandas

    rows: list[list[Any]] = []
    for check in report.checks:
        if check.passed:
            rows.append([check.name, True, check.equal, *[""] * len(_FAILURE_COLUMNS)])
        rows += [[check.name, False, check.equal, *row] for row in failures_table(check.failures).to_numpy().tolist()]
    return pandas.DataFrame(rows, columns=["check", "passed", "equal", *_FAILURE_COLUMNS])


def axes_table(axes: Any, *, alike: bool = False) -> pandas.DataFrame:
    """One row for each dim of each tensor input: its sizes in the samples, whether it is dynamic, its symbol.

    Args:
        axes: the axes.
        alike: one row for inputs of one argument that agree.
    """
    import pandas

    places: dict[tuple[Any, ...], list[str]] = {}
    for axis in axes.axes:
        said = (axis.dim, ", ".join(map(str, axis.sizes)), axis.dynamic, axis.symbol or "", axis.limits)
        top = axis.path.partition(".")[0].partition("[")[0]
        places.setdefault((top if alike else axis.path, *said), []).append(axis.path)
    # an object of tensors of several ranks has some dims in some of them only
    among = {dim: [axis.path for axis in axes.axes if axis.dim == dim] for dim in {axis.dim for axis in axes.axes}}
    rows = [(", ".join(counted_places(paths, among[said[0]])), *said) for (_, *said), paths in places.items()]
    return pandas.DataFrame(rows, columns=["argument", "dim", "sizes", "dynamic", "symbol", "limits"])


def generated_table(rows: Any, decode: Any) -> pandas.DataFrame:
    """One row for each prompt, and a column for each candidate with the text that it wrote, or the token numbers."""
    import pandas

    def text(tokens: tuple[int, ...]) -> str:
        return " ".join(map(str, tokens)) if decode is None else str(decode(list(tokens)))

    columns = {row.name: [text(one) for batch in row.generation.tokens for one in batch] for row in rows}
    return pandas.DataFrame(columns).rename_axis("prompt")


def layers_table(report: Any) -> pandas.DataFrame:
    """One row for each layer of a compile report: what was done to it, or why not."""
    import pandas

    from prepbench.quantize import LayerReport

    columns = [field.name for field in fields(LayerReport)]
    rows = [[*(getattr(row, name) for name in columns), row.summary] for row in report.layers]
    return pandas.DataFrame(rows, columns=[*columns, "summary"])


def explanation_table(layers: Any) -> pandas.DataFrame:
    """One row for each quantizable layer: what applies to it, and which rule decided against which others."""
    import pandas

    rows = [(row.fqn, row.type, row.summary, row.rule, ", ".join(row.overruled)) for row in layers]
    return pandas.DataFrame(rows, columns=["layer", "type", "precision", "rule", "overruled"])


def records_table(records: Iterable[Any], kind: type) -> pandas.DataFrame:
    """One row for each record of a dataclass, one column for each field; a source line becomes file, line and code."""
    import pandas

    names = [field.name for field in fields(kind)]
    plain = [name for name in names if name != "source"]
    columns = [*plain, *(("file", "line", "code") if "source" in names else ())]
    rows = []
    for record in records:
        source = getattr(record, "source", None)
        place = ((source.file, source.line, source.code) if source else ("", None, "")) if "source" in names else ()
        rows.append([*(getattr(record, name) for name in plain), *place])
    return pandas.DataFrame(rows, columns=columns)
