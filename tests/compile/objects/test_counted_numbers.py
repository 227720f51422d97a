"""Numbers that caches count, computed from the sizes of the same call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import InputError
from prepbench.objects.caches.counted import CountedNumber, count_from_sizes, counted_numbers
from prepbench.running.check_inputs import alike_samples


class Window:
    """The last three entries, and how many there were."""

    def __init__(self, batch: int, seen: int) -> None:
        self.keys = torch.randn(batch, min(seen, 3), 4, generator=torch.Generator().manual_seed(seen))
        self.seen = seen


class Model(nn.Module):
    """Attends to the window and to what is new; the mask is over everything, and positions are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, mask: torch.Tensor, cache: Window) -> tuple[torch.Tensor, Window]:
        place = (cache.seen + torch.arange(x.shape[1]))[:, None]
        keys = torch.cat([cache.keys, self.layer(x) + place], 1)
        first = cache.seen - cache.keys.shape[1]
        seen = mask[:, None, first:] * (first + torch.arange(keys.shape[1]) <= place)
        cache.keys, cache.seen = keys[:, -3:], cache.seen + x.shape[1]
        return (x @ keys.transpose(1, 2) * seen).matmul(keys), cache


def sample(batch: int, new: int, seen: int) -> tuple[torch.Tensor, torch.Tensor, Window]:
    x = torch.randn(batch, new, 4, generator=torch.Generator().manual_seed(new))
    return x, torch.ones(batch, seen + new), Window(batch, seen)


def samples() -> list[Any]:
    return [sample(2, 4, 0), sample(3, 1, 7), sample(2, 2, 2)]


def test_a_count_is_found_among_the_sizes() -> None:
    (number,) = alike_samples(Model(), samples())[0].counted
    assert (number.path, number.formula) == ("cache.seen", "mask.shape[1] - x.shape[1]")
    assert CountedNumber.from_list(number.to_list()) == number
    named = dict(zip(("x", "mask", "cache"), sample(1, 3, 9), strict=True))
    named["mask"] = torch.ones(1, 30)
    count_from_sizes([number], named)
    assert named["cache"].seen == 27


def test_a_number_that_follows_from_no_sizes_is_not_counted() -> None:
    calls = [{"x": torch.ones(n, 2), "cache": Window(n, seen)} for n, seen in ((2, 5), (3, 9), (4, 5))]
    assert counted_numbers(calls) == ()


@pytest.mark.parametrize("target", [pb.OnnxRuntimeDeployment(), pb.OpenVinoDeployment()], ids=["ort", "openvino"])
def test_one_graph_holds_for_all_counts(target: pb.DeploymentSettings, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Model().eval()
    made = pb.compile_model(model, tracing_inputs=samples(), deployment_settings=target)
    made.save(tmp_path / "model")
    for compiled in (made, pb.load_compiled(tmp_path / "model")):
        for new, seen in ((5, 0), (1, 2), (2, 11), (1, 3)):
            with torch.no_grad():
                expected, after = model(*sample(4, new, seen))
            found, cache = compiled(*sample(4, new, seen))
            torch.testing.assert_close(found, expected)
            keys, count = (cache["keys"], cache["seen"]) if isinstance(cache, dict) else (cache.keys, cache.seen)
            torch.testing.assert_close(keys, after.keys)
            assert count == after.seen == seen + new


def test_a_count_that_the_sizes_contradict_is_refused() -> None:
    compiled = pb.compile_model(Model().eval(), tracing_inputs=samples(), deployment_settings=pb.EagerDeployment())
    for _ in range(2):  # in the first call of this form, and after one that was right
        for wrong in (4, 6):
            x, mask, cache = sample(2, 1, 5)
            cache.seen = wrong
            said = rf"cache.seen is {wrong}, .* mask.shape\[1\] - x.shape\[1\], which is 5 here"
            with pytest.raises(InputError, match=said):
                compiled(x, mask, cache)
        compiled(*sample(2, 1, 5))


def test_module_graphs_refuse_it() -> None:
    with pytest.raises(InputError, match=r"'cache.seen' differs between sample 0 and sample 1: 0 and 7"):
        pb.recursive_trace(Model(), inputs=samples())
