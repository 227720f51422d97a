"""Both algorithms, one after the other, on models as they come."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import prepbench as pb
from prepbench.quantize.algorithms import equalize, smooth
from tests.compile.quantize.transformed import (
    export,
    layers_of,
    samples_of,
    unchanged,
)


@st.composite
def chains(draw: st.DrawFn) -> nn.Sequential:
    """Linear layers with widths, activations, norms and outliers as they come."""
    between = {
        "none": nn.Identity,
        "relu": nn.ReLU,
        "leaky": nn.LeakyReLU,
        "relu6": nn.ReLU6,
        "gelu": nn.GELU,
        "dropout": nn.Dropout,
    }
    layers: list[nn.Module] = []
    width = 4
    for _ in range(draw(st.integers(1, 4))):
        after = draw(st.integers(2, 6))
        if draw(st.booleans()):
            layers.append(nn.LayerNorm(width))
            layers[-1].weight.data[draw(st.integers(0, width - 1))] = draw(st.sampled_from([0.0, 1e-3, 1.0, 80.0]))
        layer = nn.Linear(width, after, bias=draw(st.booleans()))
        layer.weight.data[:, draw(st.integers(0, width - 1))] *= draw(st.sampled_from([0.0, 1.0, 30.0]))
        layer.weight.data[draw(st.integers(0, after - 1))] *= draw(st.sampled_from([0.0, 1.0, 30.0]))
        layers += [layer, between[draw(st.sampled_from(sorted(between)))]()]
        width = after
    return nn.Sequential(*layers)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(chains(), st.floats(0, 1))
def test_the_function_stays_whatever_the_chain(model: nn.Sequential, strength: float) -> None:
    x = torch.randn(5, 4)
    graph = export(model, x)
    with unchanged(model, graph, x, decibels=80):
        layers = layers_of(graph, model)
        given = pb.QuantizationSettings(cross_layer_equalization=True)
        equalize(graph, layers, {layer.fqn: given for layer in layers}, samples_of(x))
        smooth(graph, layers_of(graph, model), samples_of(x), strength=strength)
