"""What a simulation is asked for: layers that it has, each with one kind of settings."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from prepbench.checks import check_type, described
from prepbench.compile.float_program import LayerFacts
from prepbench.errors import InputError, SettingsError
from prepbench.quantize.layer_nodes import LayerNode
from prepbench.quantize.mixed_graph import MixedGraph
from prepbench.settings import QuantizationSettings

_ONLY_WEIGHTS = QuantizationSettings(prefer_weights_only_quantization=True)
_SINGLE = ("weights_num_bits", "weights_only_quantization_block_size")


def check_layer(fqn: object, layers: Sequence[str]) -> None:
    """Raise ``InputError``, with the nearest names, unless there is such a layer."""
    if fqn in layers:
        return
    near = difflib.get_close_matches(str(fqn), layers, 3, 0.4)
    hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else "See simulation.layers."
    raise InputError(f"There is no layer {described(fqn)} that this target can quantize. {hint}")


def check_settings(fqn: str, settings: object) -> None:
    """Raise ``SettingsError`` unless these are settings that name one number of bits and one block size."""
    check_type(f"settings[{fqn!r}]", settings, QuantizationSettings, "Give pb.QuantizationSettings(), or None.")
    assert isinstance(settings, QuantizationSettings)
    several = [field for field in _SINGLE if not isinstance(getattr(settings, field), int)]
    if several:
        raise SettingsError(
            f"settings[{fqn!r}].{several[0]} names several values, {getattr(settings, several[0])}, and a layer is "
            "simulated with one. Give one of them; settings.candidates() lists what they stand for."
        )


def quantizable_nodes(graph: MixedGraph, layers: Mapping[str, LayerFacts]) -> dict[str, list[LayerNode]]:
    """The nodes of each layer that can be quantized in one way or another, in execution order.

    Args:
        graph: in float.
        layers: those that settings could be for, by FQN.
    """
    nodes = dict(graph.plan(dict.fromkeys(layers, _ONLY_WEIGHTS)).nodes)
    known = [fqn for fqn, facts in layers.items() if not facts.is_table]
    nodes = {**graph.plan(dict.fromkeys(known, QuantizationSettings())).nodes, **nodes}
    order = {node: place for place, node in enumerate(graph.graph.graph.nodes)}
    return dict(sorted(nodes.items(), key=lambda item: order[item[1][0].node]))
