"""Profiles, sensitivities and inspections of layers as tables, charts and text."""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from prepbench.measure.comparison import megabytes, milliseconds
from prepbench.measure.profile import Profile, ProfileDifference, ProfileRow
from prepbench.quantize.layer_values import Grid, TensorValues
from prepbench.search.inspection import LayerInspection, WhatIf
from prepbench.search.sensitivity import Sensitivity, SensitivityRow
from prepbench.views.charts import FIRST, GRID, LINE, LOOK, OTHER, RESPONSIVE, chart_bundle

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects as go


def profile_table(profile: Profile) -> pandas.DataFrame:
    """Return one row for each layer and named part of the rest, numbers as numbers."""
    import pandas

    columns: dict[str, list[Any]] = {
        "layer": [row.name for row in profile.rows],
        "type": [row.type for row in profile.rows],
        "ms": [row.ms for row in profile.rows],
        "share": [row.share for row in profile.rows],
        "weights MB": [None if row.weights_bytes is None else row.weights_bytes / 1e6 for row in profile.rows],
        "results MB": [None if row.result_bytes is None else row.result_bytes / 1e6 for row in profile.rows],
        "is layer": [row.is_layer for row in profile.rows],
        "operators": [", ".join(row.operators) for row in profile.rows],
    }
    return pandas.DataFrame(columns).astype({"weights MB": float, "results MB": float})


def difference_table(difference: ProfileDifference) -> pandas.DataFrame:
    """Return one row for each layer, with both times and the memory of its weights; None without weights of its own."""
    import pandas

    first, second = ({row.name: row.ms for row in each.rows} for each in (difference.first, difference.second))
    names = list(difference.saved_ms)
    columns = {
        "layer": names,
        _titles(difference)[0]: [first.get(name) for name in names],
        _titles(difference)[1]: [second.get(name) for name in names],
        "saved ms": list(difference.saved_ms.values()),
    }
    for title, profile in (("first", difference.first), ("second", difference.second)):
        sizes = {row.name: row.weights_bytes for row in profile.rows if row.weights_bytes is not None}
        columns[f"weights MB, {title}"] = [sizes[name] / 1e6 if name in sizes else None for name in names]
    return pandas.DataFrame(columns).astype(dict.fromkeys(list(columns)[1:], float))


def profile_figure(profile: Profile) -> go.Figure:
    """Draw the slowest rows as bars, time outside of layers in grey, and all others as one bar."""
    shown, others = profile.rows[:BARS], profile.rows[BARS:]
    names = [short_name(row.name) for row in shown]
    lengths = [row.ms for row in shown]
    colours = [OTHER if row.is_layer else FIRST for row in shown]
    texts = [f"{milliseconds(row.ms)} ms · {row.share:.0%}" for row in shown]
    if others:
        names.append(f"{len(others)} more")
        lengths.append(sum(row.ms for row in others))
        colours.append(LINE)
        texts.append(f"{milliseconds(lengths[-1])} ms · {sum(row.share for row in others):.0%}")
    hovers = [_profile_hover(row) for row in shown] + [""] * bool(others)
    trace = bars("", names, lengths, texts, colours, hovers)
    return bar_figure("Time by layer", profile.caption, [trace], len(names), legend=False)


def difference_figure(difference: ProfileDifference) -> go.Figure:
    """Draw both times of the layers that changed most."""
    names = list(difference.saved_ms)[:BARS]
    traces = []
    for profile, title, colour in zip(
        (difference.first, difference.second), _titles(difference), (FIRST, OTHER), strict=True
    ):
        rows = {row.name: row for row in profile.rows}
        ms = [rows[name].ms if name in rows else 0.0 for name in names]
        texts = [milliseconds(each) if each else "–" for each in ms]
        hovers = [_profile_hover(rows[name]) if name in rows else "no time of its own" for name in names]
        traces.append(bars(title, [short_name(name) for name in names], ms, texts, [colour] * len(names), hovers))
    return bar_figure("What got faster, what slower", difference.caption, traces, 2 * len(names), legend=True)


def profile_text(profile: Profile) -> str:
    """Return the slowest rows as aligned text."""
    header = ["layer", "ms", "share", "weights MB", "results MB"]
    body = [
        [
            short_name(row.name),
            milliseconds(row.ms),
            f"{row.share:.0%}",
            *map(megabytes, (row.weights_bytes, row.result_bytes)),
        ]
        for row in profile.rows[:BARS]
    ]
    return aligned(header, body, len(profile.rows) - BARS, profile.caption)


def difference_text(difference: ProfileDifference) -> str:
    """Return the rows that changed most as aligned text."""
    rows = difference.table().iloc[:, :4].itertuples(index=False)
    body = [
        [short_name(row[0]), *("–" if each != each else f"{each:.3g}".replace("-", "−") for each in row[1:])]
        for row in rows
    ]
    header = ["layer", *_titles(difference), "saved ms"]
    return aligned(header, body[:BARS], len(body) - BARS, difference.caption)


def profile_bundle(result: Profile | ProfileDifference) -> dict[str, Any]:
    """Return the notebook output: the chart if plotly's renderer is installed, else the table, else text."""
    shown = result.table().iloc[:, :4] if isinstance(result, ProfileDifference) else result.table()
    table = shown.head(BARS).to_html(index=False, na_rep="–", float_format=lambda value: f"{value:.3g}")
    return chart_bundle(
        result.figure(), f"{table}<small>{html.escape(result.caption)}</small>", repr(result), RESPONSIVE
    )


def _titles(difference: ProfileDifference) -> tuple[str, str]:
    first, second = (f"{each.target} ms" for each in (difference.first, difference.second))
    return (first, second) if first != second else (f"{first}, first", f"{second}, second")


def _profile_hover(row: ProfileRow) -> str:
    lines = [f"<b>{html.escape(row.name or '(the model itself)')}</b>", html.escape(row.type)]
    lines += [f"{milliseconds(row.ms)} ms, {row.share:.1%}"]
    lines += [f"{megabytes(row.weights_bytes)} MB of weights"] if row.weights_bytes else []
    lines += [f"{megabytes(row.result_bytes)} MB of results"] if row.result_bytes else []
    lines += [html.escape(", ".join(row.operators[:6]))]
    return "<br>".join(filter(None, lines)).replace("%{", "% {")


# Bars and aligned text, one row for each layer.


BARS = 12
_NAME = 40


def short_name(name: str) -> str:
    """Return a name that fits beside a bar; its start is cut, since its end says most."""
    return (name if len(name) <= _NAME else "…" + name[1 - _NAME :]) or "(the model itself)"


def bars(
    title: str, names: list[str], values: list[float], texts: list[str], colours: list[str], hovers: list[str]
) -> dict[str, Any]:
    """Return one bar for each name."""
    return {
        "type": "bar",
        "orientation": "h",
        "name": html.escape(title),
        "y": [html.escape(name) for name in names],
        "x": values,
        "text": texts,
        "textposition": "outside",
        "cliponaxis": False,
        "marker": {"color": colours},
        "hovertext": hovers,
        "hoverinfo": "text",
    }


def _title(text: str) -> dict[str, Any]:
    """Return a chart's title, at the left of its upper edge."""
    return {"text": text, "font": {"size": 16}, "x": 0.02, "y": 1, "yanchor": "top", "pad": {"t": 16}}


def bar_figure(
    heading: str,
    caption: str,
    traces: list[dict[str, Any]],
    rows: int,
    *,
    legend: bool,
    axis: str = "ms per call",
    from_zero: bool = True,
) -> go.Figure:
    """Return bars of layers with a heading, the worst or slowest at the top; for light and dark themes.

    Args:
        heading: in bold.
        caption: under it; a line for each part that ends in a semicolon.
        traces: from :func:`bars`.
        rows: how many bars there are.
        legend: whether the names of the traces are shown.
        axis: the quantity of the bars.
        from_zero: whether all values are 0 or more.
    """
    import plotly.graph_objects as go

    values = [value for trace in traces for value in trace["x"]]
    longest, shortest = max(values, default=1.0), min(values, default=0.0)
    figure = go.Figure(data=traces)
    lines = caption.replace(", median", "; median").split("; ")
    small = "".join(f"<br><span style='font-size:12px'>{html.escape(line)}</span>" for line in lines)
    top = 60 + 18 * len(lines) + 24 * legend
    figure.update_layout(
        **LOOK,
        height=60 + top + 22 * rows,
        margin={"l": 16, "r": 24, "t": top, "b": 50},
        title=_title(f"<b>{heading}</b>{small}"),
        xaxis={
            "title": {"text": axis, "font": {"size": 13}},
            "gridcolor": GRID,
            "range": [_least(shortest, longest) if shortest < 0 and not from_zero else 0, longest * 1.3],
            "zeroline": False,
        },
        yaxis={"autorange": "reversed", "automargin": True, "ticksuffix": " "},
        barmode="group",
        bargap=0.25,
        showlegend=legend,
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0, "xanchor": "left", "traceorder": "normal"},
    )
    return figure


def _least(shortest: float, longest: float) -> float:
    """Return the start of an axis that leaves room for the number of a negative bar."""
    return shortest - 0.1 * max(longest - shortest, -3 * shortest)


def aligned(header: list[str], body: list[list[str]], more: int, caption: str) -> str:
    """Return a table as aligned text, and the number of rows that it leaves out."""
    rows = [header, *body]
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    lines = [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join([*lines, *([f"{more} more"] if more > 0 else []), caption])


# The sensitivity of layers as a table, bars and text.


# of candidates in their order; neighbours also differ in brightness
_COLOURS = (OTHER, "#D08A2E", "#5BA58C", "#9A6FB0", "#767A80")
_PALE = 0.45


def sensitivity_table(found: Sensitivity, candidate: str | None = None) -> pandas.DataFrame:
    """Return one row for each layer, numbers as numbers; for a single candidate, with all its columns."""
    import pandas

    first = next(iter(found.candidates))
    rows = [row for row in found.rows if row.candidate == (first if candidate is None else candidate)]
    columns: dict[str, list[Any]] = {"layer": [row.fqn for row in rows], "type": [row.type for row in rows]}
    if candidate is None:
        for name in found.candidates:
            of_candidate = [row for row in found.rows if row.candidate == name]
            columns[f"{name} {_word(found)}"] = [row.effect for row in of_candidate]
            if found.metric:
                columns[f"{name} drop"] = [row.drop for row in of_candidate]
    else:
        columns[f"estimated {_word(found)}"] = [row.estimated for row in rows]
        columns[f"exact {_word(found)}"] = [row.exact for row in rows]
        if found.metric:
            columns[found.metric] = [row.metric for row in rows]
            columns["drop"] = [row.drop for row in rows]
        columns["own SQNR"] = [row.own_sqnr for row in rows]
        columns["weights MB"] = [None if row.weights_bytes is None else row.weights_bytes / 1e6 for row in rows]
    numbers = list(columns)[2:]
    columns["multiplications"] = [row.multiplications for row in rows]
    columns["parameters"] = [row.parameters for row in rows]
    if candidate is not None:
        columns["refused because"] = [row.refusal for row in rows]
    return pandas.DataFrame(columns).astype(dict.fromkeys(numbers, float))


def sensitivity_figure(found: Sensitivity) -> go.Figure:
    """Draw the layers with the highest cost, a bar for each candidate, paler where only estimated."""
    layers = _worst_layers(found)[:BARS]
    is_drop = any(row.drop is not None for row in found.rows)
    traces = []
    for index, name in enumerate(found.candidates):
        rows = {row.fqn: row for row in found.rows if row.candidate == name}
        shown = [rows[fqn] for fqn in layers]
        values = [_bar(row, is_drop) for row in shown]
        texts = [_text(found, row, is_drop) for row in shown]
        colour = _COLOURS[index % len(_COLOURS)]
        trace = bars(
            name,
            [short_name(fqn) for fqn in layers],
            [0.0 if value is None else value for value in values],
            texts,
            [colour] * len(shown),
            [_hover(found, row) for row in shown],
        )
        trace["marker"]["opacity"] = [1.0 if row.exact is not None else _PALE for row in shown]
        traces.append(trace)
    if is_drop:
        axis = f"drop of {html.escape(found.metric)}"
    else:
        axis = "SQNR of the model's output in dB: short is bad" if found.unit == "dB" else "divergence in nats"
    return bar_figure(
        "What each layer costs", found.caption, traces, len(traces) * len(layers), legend=True, axis=axis,
        from_zero=False,
    )  # fmt: skip


def sensitivity_text(found: Sensitivity) -> str:
    """Return the layers with the highest cost as aligned text; ``~`` marks an estimate."""
    is_drop = any(row.drop is not None for row in found.rows)
    layers = _worst_layers(found)
    by_pair = {(row.fqn, row.candidate): row for row in found.rows}
    header = ["layer", *(f"{name} {'drop' if is_drop else _word(found)}" for name in found.candidates)]
    body = [
        [short_name(fqn), *(_text(found, by_pair[fqn, name], is_drop) for name in found.candidates)]
        for fqn in layers[:BARS]
    ]
    return aligned(header, body, len(layers) - BARS, found.caption)


def sensitivity_bundle(found: Sensitivity) -> dict[str, Any]:
    """Return the notebook output: the chart if plotly's renderer is installed, else the table, else text."""
    by_layer = found.table().set_index("layer", drop=False)
    table = by_layer.loc[_worst_layers(found)[:BARS]].to_html(
        index=False, na_rep="–", float_format=lambda value: f"{value:.3g}"
    )
    return chart_bundle(found.figure(), f"{table}<small>{html.escape(found.caption)}</small>", repr(found), RESPONSIVE)


def _worst_layers(found: Sensitivity) -> list[str]:
    """Return all layers, sorted by their highest cost with any candidate."""
    ordered = [row.fqn for row in found.worst(max(1, len(found.rows)))]
    return list(dict.fromkeys([*ordered, *(row.fqn for row in found.rows)]))


def _word(found: Sensitivity) -> str:
    return "SQNR" if found.unit == "dB" else "nats"


def _bar(row: SensitivityRow, is_drop: bool) -> float | None:
    value = row.drop if is_drop else row.effect
    return value if value is not None and math.isfinite(value) else None


def _text(found: Sensitivity, row: SensitivityRow, is_drop: bool) -> str:
    if row.refusal:
        return "refused"
    if is_drop:
        return "–" if row.drop is None else f"{row.drop:.3g}".replace("-", "−")
    if row.effect is None:
        return "–"
    number = f"{row.effect:.1f}" if found.unit == "dB" else f"{row.effect:.3g}"
    return ("" if row.exact is not None else "~") + number.replace("-", "−")


def _hover(found: Sensitivity, row: SensitivityRow) -> str:
    lines = [f"<b>{html.escape(row.fqn or '(the model itself)')}</b>", html.escape(f"{row.type}, {row.candidate}")]
    if row.refusal:
        lines.append(html.escape(row.refusal))
    for word, value in (("measured", row.exact), ("estimated", row.estimated)):
        lines += [f"{word}: {value:.4g} {found.unit}"] if value is not None else []
    lines += [f"{html.escape(found.metric)} {row.metric:.4g}, drop {row.drop:.3g}"] if row.drop is not None else []
    lines += [f"the layer itself: {row.own_sqnr:.1f} dB"] if row.own_sqnr is not None else []
    lines += [f"{row.multiplications:,} multiplications, {row.parameters:,} parameters"]
    return "<br>".join(lines).replace("%{", "% {")


# One inspected layer as a figure and as text.


# of values that are clipped, and of the ends of a grid
_CLIPPED = "#D0552E"
# lines of a grid that the eye can tell apart
_LINES = 20


def inspection_figure(found: LayerInspection) -> go.Figure:
    """Draw the values of weights and input with their grids, and the error of the output."""
    from plotly.subplots import make_subplots

    tensors = [("Weights", found.weight), ("Input", found.input)]
    titles = [_values_title(name, values) for name, values in tensors]
    error = "" if found.error is None else f"Output: {found.error.sqnr:.1f} dB"
    figure = make_subplots(rows=2, cols=2, subplot_titles=[*titles, error, "SQNR by channel in dB"])
    for place, (_, values) in enumerate(tensors, start=1):
        _draw_values(figure, values, place)
    _draw_error(figure, found)
    said = f"<br><span style='font-size:12px'>{html.escape(found.caption)}</span>"
    figure.update_layout(
        **LOOK,
        height=640,
        margin={"l": 56, "r": 24, "t": 110, "b": 50},
        title=_title(f"<b>{html.escape(_name(found))}</b>, {html.escape(_as(found))}{said}"),
        showlegend=False,
        bargap=0,
    )
    figure.update_xaxes(gridcolor=GRID, zeroline=False)
    figure.update_yaxes(gridcolor=GRID, zeroline=False)
    figure.update_annotations(font={"size": 13})
    return figure


def _draw_values(figure: go.Figure, values: TensorValues, column: int) -> None:
    """Draw a histogram; what lies beyond the grid in another colour, and the grid's ends as lines."""
    edges, grid = values.histogram.edges, values.grid
    if not edges:
        return
    middles = [(low + high) / 2 for low, high in itertools.pairwise(edges)]
    figure.add_bar(
        x=middles,
        y=list(values.histogram.counts),
        width=values.histogram.width,
        marker={"color": [_CLIPPED if grid is not None and _is_beyond(one, grid) else OTHER for one in middles]},
        hovertemplate="%{x:.4g}: %{y}<extra></extra>",
        row=1,
        col=column,
    )
    for place in grid_lines(grid):
        figure.add_vline(x=place, line={"color": LINE, "width": 1}, row=1, col=column)
    for place in () if grid is None else grid.range:
        figure.add_vline(x=place, line={"color": _CLIPPED, "width": 1, "dash": "dot"}, row=1, col=column)
    figure.update_yaxes(title={"text": "values"}, row=1, col=column)


def grid_lines(grid: Grid | None) -> list[float]:
    """Return the numbers of a grid where all channels have one, and few enough to be told apart."""
    if grid is None or grid.levels > _LINES or grid.step[0] != grid.step[1] or len(set(grid.range_by_channel)) > 1:
        return []
    return [grid.range[0] + place * grid.step[0] for place in range(grid.levels)]


def _is_beyond(value: float, grid: Grid) -> bool:
    return value < grid.range[0] - grid.step[1] / 2 or value > grid.range[1] + grid.step[1] / 2


def _draw_error(figure: go.Figure, found: LayerInspection) -> None:
    error = found.error
    if error is None:
        return
    ends = [min(error.reference, default=0.0), max(error.reference, default=0.0)]
    figure.add_scatter(x=ends, y=ends, mode="lines", line={"color": FIRST, "width": 1}, hoverinfo="skip", row=2, col=1)
    figure.add_scatter(
        x=list(error.reference),
        y=list(error.quantized),
        mode="markers",
        marker={"color": OTHER, "size": 4},
        customdata=list(error.channels),
        hovertemplate="channel %{customdata}<br>%{x:.4g} in float, %{y:.4g} quantized<extra></extra>",
        row=2,
        col=1,
    )
    figure.update_xaxes(title={"text": "in float"}, row=2, col=1)
    figure.update_yaxes(title={"text": "quantized"}, row=2, col=1)
    figure.add_bar(
        x=list(range(len(error.sqnr_by_channel))),
        y=list(error.sqnr_by_channel),
        marker={"color": OTHER},
        hovertemplate="channel %{x}: %{y:.1f} dB<extra></extra>",
        row=2,
        col=2,
    )
    figure.update_xaxes(title={"text": "output channel"}, row=2, col=2)


def inspection_text(found: LayerInspection) -> str:
    """Return the numbers of an inspected layer as text."""
    lines = [f"{_name(found)} ({found.type}): {_as(found)}{f', {found.why}' if found.why else ''}"]
    for name, values in (("weights", found.weight), ("input", found.input), ("output", found.output)):
        lines.append(f"{name + ':':<9}{values_text(values)}")
    if found.error is not None:
        worst = min(range(len(found.error.sqnr_by_channel)), key=found.error.sqnr_by_channel.__getitem__, default=0)
        lines.append(
            f"error:   {found.error.sqnr:.1f} dB, worst in channel {worst} "
            f"({found.error.sqnr_by_channel[worst]:.1f} dB)"
        )
    time = "" if found.time is None else f", {found.time.ms:.3g} ms ({found.time.share:.0%}) on {found.time.target}"
    lines.append(f"cost:    {kilobytes(found.weights_bytes)}, {found.multiplications:,} multiplications{time}")
    if found.source is not None:
        lines.append(f"source:  {found.source.file}:{found.source.line}: {found.source.code}")
    header, body = ["what if", "SQNR", "bytes", "change"], [list(_what_if_row(one)) for one in found.what_if]
    return "\n".join([*lines, "", aligned(header, body, 0, found.caption)])


def caption(found: LayerInspection) -> str:
    """Return how an inspected layer was measured."""
    of = "" if found.shown == found.decided else f" Grids and error are those of {found.shown}."
    samples = f"{found.samples} calibration input{'' if found.samples == 1 else 's'}"
    return f"{found.target}: values on {samples}, the error with all other layers in float.{of}"


def values_text(values: TensorValues) -> str:
    """Return the range of values, and their grid, in words."""
    if not values.count:
        return values.note
    said = f"{number(values.range[0])} to {number(values.range[1])}"
    grid = values.grid
    if grid is not None:
        first, last = map(number, grid.step)
        steps = first if first == last else f"{first} to {last}"
        said += f"; {grid.format}, steps of {steps}, {share(grid.clipped)} clipped"
    return said + (f"; {values.note}" if values.note else "")


def number(value: float) -> str:
    """Return a value with three digits."""
    return f"{value:.3g}".replace("-", "−")


def share(value: float) -> str:
    """Return a share in percent: none only where there is none."""
    return "none" if value == 0 else "under 0.01 %" if value < 1e-4 else f"{100 * value:.2g} %"


def kilobytes(count: int) -> str:
    """Return bytes in the unit that fits."""
    sign, count = "−" if count < 0 else "", abs(count)
    for unit, size in (("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{sign}{count / size:.3g} {unit}"
    return f"{sign}{count} B"


def inspection_bundle(found: LayerInspection) -> dict[str, Any]:
    """Return the notebook output: the chart if plotly's renderer is installed, else the text."""
    return chart_bundle(found.figure(), f"<pre>{html.escape(repr(found))}</pre>", repr(found), RESPONSIVE)


def _what_if_row(one: WhatIf) -> Sequence[str]:
    if one.refusal:
        return [one.name, one.refusal, "–", "–"]
    sqnr = "–" if one.sqnr is None else f"{one.sqnr:.1f} dB"
    change = "–" if not one.change else ("+" if one.change > 0 else "") + kilobytes(one.change)
    return [one.name, sqnr, "–" if one.weights_bytes is None else kilobytes(one.weights_bytes), change]


def _name(found: LayerInspection) -> str:
    return found.layer or "(the model itself)"


def _as(found: LayerInspection) -> str:
    return found.decided if found.shown == found.decided else f"{found.decided}, shown as {found.shown}"


def _values_title(name: str, values: TensorValues) -> str:
    if not values.count:
        return f"{name}: {html.escape(values.note)}"
    clipped = f", {share(values.grid.clipped)} clipped" if values.grid is not None else ""
    return f"{name}{clipped}"
