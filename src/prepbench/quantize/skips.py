"""Layers that stay in float because of what comes before them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from prepbench.errors import SettingsError
from prepbench.quantize.layer_nodes import layer_nodes
from prepbench.settings import ExplainedLayer, is_within


def skipped_downstream(graph: fx.Graph, explained: Sequence[ExplainedLayer]) -> dict[str, str]:
    """Why layers stay in float that a skipped layer's output reaches, by FQN.

    Where a rule skips a layer "until" others, the layers in between stay in float, too. Where it skips "downstream",
    all layers that the output reaches do.

    Raises:
        SettingsError: a layer at which skipping ends is one that the output never reaches.
    """
    layers = layer_nodes(graph, {row.fqn: row for row in explained})
    by_layer: dict[str, list[fx.Node]] = {}
    for layer in layers:
        by_layer.setdefault(layer.fqn, []).append(layer.node)
    owner = {layer.node: layer.fqn for layer in layers}
    reasons: dict[str, str] = {}
    for row in explained:
        if not row.until and not row.downstream:
            continue
        reached, stops = _reach(by_layer.get(row.fqn, []), owner, row.until)
        for name in row.until:
            if not any(is_within(fqn, name) for fqn in stops):
                raise SettingsError(
                    f"layer_quantization_settings[{row.rule!r}].skip_quantization_until names {name!r}, which the "
                    f"output of {row.fqn!r} does not reach. It reaches "
                    f"{', '.join(sorted(reached | stops)[:6]) or 'no quantizable layer'}."
                )
        for fqn in reached - {row.fqn}:
            end = f" until {', '.join(row.until)}" if row.until else ""
            reasons.setdefault(fqn, f"behind {row.fqn}, which rule {row.rule!r} skips with what follows{end}")
    return reasons


def _reach(starts: Sequence[fx.Node], owner: dict[fx.Node, str], until: Sequence[str]) -> tuple[set[str], set[str]]:
    """FQNs of the layers behind ``starts`` that are skipped, and of those at which skipping ends."""
    passed: set[str] = set()
    stops: set[str] = set()
    seen: set[fx.Node] = set()
    rest = [user for start in starts for user in start.users]
    while rest:
        node = rest.pop()
        if node in seen:
            continue
        seen.add(node)
        fqn = owner.get(node)
        if fqn is not None and any(is_within(fqn, name) for name in until):
            stops.add(fqn)
            continue
        if fqn is not None:
            passed.add(fqn)
        rest += node.users
    return passed, stops
