"""``pb.prune``: models of their own class where their code allows it, and else a graph."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import prepbench as pb
from tests.compile.adapt.zoo import ZOO

HALF = pb.PruningSettings(mask_type="channels")


@pytest.mark.parametrize("name", ["residual", "depthwise", "dense", "grouped", "unet", "flattened", "shared"])
def test_the_own_class_with_smaller_weights(name: str) -> None:
    torch.manual_seed(0)
    model, given, _, others = ZOO[name]()
    found = pb.prune(model, [given, *others], HALF)
    assert type(found.model) is type(model), found.why_graph
    assert found.model.state_dict().keys() == model.state_dict().keys()
    sizes = [sum(p.numel() for p in each.parameters()) for each in (found.model, model)]
    assert sizes[0] < 0.6 * sizes[1]
    found.model(torch.cat([given, given])).sum().backward()


@pytest.mark.stress
def test_a_graph_where_code_counts_heads() -> None:
    torch.manual_seed(0)
    model, given, _, others = ZOO["transformer"]()
    found = pb.prune(model, [given, *others], HALF)
    assert "does not take fewer channels" in found.why_graph
    assert found.model(others[0]).shape == (3, 9, 50)
    assert "attention.qkv: 48 of 96 channels removed" in repr(found)


def test_a_layer_that_only_reads_fewer_channels_says_why_its_own_stay() -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 1), nn.Conv2d(16, 4, 1))
    found = pb.prune(model, [torch.randn(2, 3, 5, 5), torch.randn(3, 3, 7, 7)], HALF)
    said = "smaller with the channels that it reads (its own stay: the model's output has them)"
    assert f"1: {found.sparsity['1']:.0%} {said}" in repr(found)


def test_what_is_pruned_is_compiled() -> None:
    torch.manual_seed(0)
    model, given, _, others = ZOO["residual"]()
    found = pb.prune(model, [given, *others], HALF)
    compiled = pb.compile_model(
        model, tracing_inputs=[given, *others], deployment_settings=pb.EagerDeployment(), pruning_settings=HALF
    )
    assert isinstance(found.model.get_submodule("one.bn1"), nn.BatchNorm2d)
    assert torch.allclose(found.model.eval()(given), compiled(given), atol=1e-5)
