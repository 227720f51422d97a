"""Operators for which ONNX has no operator are made of others, for all sizes, also of NaN and of equal values."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb

OPERATORS: dict[str, Callable[[torch.Tensor], Any]] = {
    "middle values": lambda x: x.median(1, keepdim=True),
    "the middle of all": lambda x: x.median(),
    "middle numbers": lambda x: (x * 9).long().median(-1).values,
    "the third": lambda x: x.kthvalue(3, 1)[0],
    "the one in the middle": lambda x: x.kthvalue(x.shape[1] // 2, 1, True).values,
    "distances": lambda x: torch.cdist(x, x.flip(1)),
    "distances by blocks": lambda x: torch.cdist(x, x + 1, p=1.0) + torch.cdist(x, x + 1, p=torch.inf),
    "distances of another norm": lambda x: torch.cdist(x, x + 1, p=3.0) + torch.cdist(x, x.round(), p=0.0),
    "places in a row": lambda x: torch.searchsorted(x.flatten().sort().values, x.round()),
    "places in rows": lambda x: torch.searchsorted(x.sort(1).values, x[:, :3].round(), right=True, out_int32=True),
    "running products": lambda x: x.cumprod(1),
    "a diagonal that is filled": lambda x: _filled(x.t() @ x, 1.0),
    "a diagonal below": lambda x: _written(x.clone(), -1),
    "a diagonal above, in other dims": lambda x: _written(x[:, None] + x[None], 2, 0, 1),
    "a diagonal that may be empty": lambda x: _written(x[: x.shape[0] // 4] + 1, 0),
    "rows as often as told": lambda x: torch.repeat_interleave(
        x, torch.arange(len(x)), 0, output_size=len(x) * (len(x) - 1) // 2
    ),
    "remainders of a size": lambda x: (_whole(x) % len(x), len(x) % (_whole(x) + 9), _whole(x).remainder_(len(x))),
    "bits and powers of a size": lambda x: (_whole(x) & len(x), _whole(x) | len(x), _whole(x) ** len(x)),
    "whether it is in a list": lambda x: torch.isin(_whole(x), torch.tensor([0, 2])),
    "whether it is in no list": lambda x: torch.isin(_whole(x), torch.tensor([0, 2]), invert=True),
    "integers that are not negative": lambda x: _whole(x).relu(),
    "dims that are not 1": lambda x: (x.squeeze(-1) * 2, x.clone().squeeze_(-1).sub_(0.5), x[None].squeeze((0, 1)) * 2),
    "sums over dims without a name": lambda x: torch.einsum("b...,b...->b", x[..., None], x[..., None]),
    "a source that is larger than its index": lambda x: (
        torch.zeros(4, x.shape[1]).scatter_add(0, torch.ones_like(x[:1]).long(), x),
        torch.zeros(4, x.shape[1]).scatter(0, torch.arange(2)[:, None].expand(2, 3), x),
    ),
    **{
        f"{reduce} by place": functools.partial(lambda x, reduce: _reduced(x, reduce, True), reduce=reduce)
        for reduce in ("sum", "prod", "mean", "amax", "amin")
    },
    **{
        f"{reduce} by place alone": functools.partial(lambda x, reduce: _reduced(x, reduce, False), reduce=reduce)
        for reduce in ("sum", "prod", "mean", "amax", "amin")
    },
    **{
        f"{reduce} by row": functools.partial(
            lambda x, reduce: (
                (x + 1).index_reduce(0, _places(x)[:, 0], x, reduce, include_self=False),
                torch.zeros_like(x).index_reduce_(1, _places(x.t())[:, 0], x, reduce),
            ),
            reduce=reduce,
        )
        for reduce in ("mean", "amax")
    },
    "sums and products by place": lambda x: (
        x.scatter(0, _places(x).expand_as(x), x + 1, reduce="add"),
        x.scatter(0, _places(x).expand_as(x), 2.0, reduce="multiply"),
        x.clone().scatter_(0, _places(x).expand_as(x), x + 1, reduce="multiply"),
    ),
    "lengths": lambda x: (torch.hypot(x, x.flip(0)), torch.hypot(x * 1e30, x[:1] * 0)),
    "the larger, the smaller": lambda x: (torch.fmax(x, x.flip(0)), torch.fmin(_whole(x), _whole(x[:1]))),
    "the largest so far": lambda x: (x.cummax(1), x.round().cummin(0), _whole(x).cummax(-1)),
    "middle values without NaN": lambda x: (x.nanmedian(1, keepdim=True), x.nanmedian(), _whole(x).nanmedian(0).values),
    "the most frequent": lambda x: (x.round().mode(-1).values, _whole(x).mode(0, keepdim=True).values),
    "the inverse of the error function": lambda x: x.clamp(-2, 2).div(2).erfinv(),
    "signs and logits": lambda x: (x.sign(), _whole(x).sign(), x.sigmoid().logit(), x.sigmoid().logit(0.2)),
    "inverses": lambda x: torch.linalg.inv(_matrices(x)),
    "solutions": lambda x: (
        torch.linalg.solve(_matrices(x), x.narrow(1, 0, 3)),
        torch.linalg.solve(_matrices(x), _matrices(x + 1)),
        torch.linalg.solve(_matrices(x)[0], x.narrow(1, 0, 3)[0]),
    ),
    "shifts by other numbers": lambda x: _whole(x) << (_whole(x) % 3),
    "running products with zeros": lambda x: torch.where(x > 0.8, 0.0, x).cumprod(-1),
}


def _whole(x: torch.Tensor) -> torch.Tensor:
    return (x * 3).long()


def _places(x: torch.Tensor) -> torch.Tensor:
    """Return a place for each row, some of them twice."""
    return (torch.arange(len(x)) * 2 % (len(x) - 1)).unsqueeze(1)


def _matrices(x: torch.Tensor) -> torch.Tensor:
    """Return matrices whose first factor is 0, so that rows are exchanged."""
    x = x.narrow(1, 0, 3)
    turned = torch.tensor([[0.0, 1, 0], [0, 0, 1], [1, 0, 0]])
    return (x[:, :, None] * 0.1 * x[:, None]) * (1 - turned.t() @ turned) + turned * (2 + x[:, :1, None].abs())


def _small(x: torch.Tensor) -> torch.Tensor:
    """Return numbers whose products OpenVINO's integers hold."""
    return _whole(x) % 5 - 2


def _reduced(x: torch.Tensor, reduce: str, included: bool) -> tuple[torch.Tensor, ...]:
    places = _places(x).expand_as(x)
    return (
        (x + 1).scatter_reduce(0, places, x, reduce, include_self=included),
        torch.zeros_like(x).scatter_reduce_(1, _places(x.t()).t().expand_as(x), x, reduce, include_self=included),
        _small(x + 1).scatter_reduce(0, places[:2], _small(x), reduce, include_self=included),
        x[0, 0].scatter_reduce(0, places[0, 0] * 0, x[1, 1], reduce, include_self=included),
    )


def _filled(x: torch.Tensor, value: float) -> torch.Tensor:
    x.diagonal().fill_(value)
    return x


def _written(x: torch.Tensor, offset: int, *dims: int) -> torch.Tensor:
    diagonal = x.diagonal(offset, *dims)
    diagonal.copy_(diagonal.cumsum(-1) + 3)
    return x


class Operator(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.operator = OPERATORS[name]

    def forward(self, x: torch.Tensor) -> Any:
        return self.operator(x)


@pytest.mark.parametrize("target", [pb.OnnxRuntimeDeployment(), pb.OpenVinoDeployment()], ids=["ort", "openvino"])
@pytest.mark.parametrize("name", OPERATORS)
def test_it_gives_what_torch_gives(name: str, target: Any) -> None:
    torch.manual_seed(0)
    model = Operator(name)
    samples = [torch.randn(rows, columns) for rows, columns in ((3, 8), (4, 12), (5, 9))]
    compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=target)
    for rows, columns in ((6, 7), (2, 16)):
        x = torch.randn(rows, columns)
        for found, expected in zip(_parts(compiled(x)), _parts(model(x)), strict=True):
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_the_middle_of_what_has_nan_is_nan() -> None:
    model = Operator("middle values")
    samples = [torch.randn(rows, 8) for rows in (3, 4)]
    compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=pb.OnnxRuntimeDeployment())
    x = torch.randn(5, 8)
    x[1, 3] = torch.nan
    for found, expected in zip(compiled(x), model(x), strict=True):
        torch.testing.assert_close(found, expected, equal_nan=True)


NAMES = ("lengths", "the larger, the smaller", "the largest so far", "middle values without NaN", "signs and logits")


class Several(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return [OPERATORS[name](x) for name in NAMES if name != "the larger, the smaller"] + [torch.fmax(x, x.flip(0))]


def test_nan_and_infinity_are_as_in_pytorch_on_onnx_runtime() -> None:
    model = Several()
    samples = [torch.randn(rows, 8) for rows in (3, 4)]
    compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=pb.OnnxRuntimeDeployment())
    x = torch.randn(5, 8)
    x[1, 3], x[2, 2], x[4, 1:] = torch.inf, -torch.inf, torch.nan
    x[0, 5] = torch.nan
    torch.testing.assert_close(compiled(x), model(x), equal_nan=True)


class Limits(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.clamp(min=-1), x.clamp(max=1), x.clamp_min(0.5), nn.functional.normalize(x, dim=0), x.clamp(-2, 2)


@pytest.mark.parametrize("target", [pb.OnnxRuntimeDeployment(), pb.OpenVinoDeployment()], ids=["ort", "openvino"])
def test_one_limit_leaves_infinity(target: Any) -> None:
    samples = [torch.randn(4, 3), torch.randn(5, 3)]
    compiled = pb.compile_model(Limits(), tracing_inputs=samples, deployment_settings=target)
    x = torch.tensor([[torch.inf, 3.0, -0.5], [-torch.inf, 1.0, 1.0], [0.0, torch.inf, 2.0]])
    for found, expected in zip(compiled(x), Limits()(x), strict=True):
        torch.testing.assert_close(found, expected, equal_nan=True)


class GroupMeans(nn.Module):
    """Means, and the largest, of the rows of each place."""

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, ...]:
        at = places.unsqueeze(1).expand_as(x)
        means = x.new_zeros(x.shape).scatter_reduce_(0, at, x, "mean", include_self=False)
        return means, x.scatter_reduce(0, at, x, "amax", include_self=False)


@pytest.mark.parametrize("target", [pb.OnnxRuntimeDeployment(), pb.OpenVinoDeployment()], ids=["ort", "openvino"])
def test_places_that_repeat_in_no_sample_are_reduced(target: Any) -> None:
    model = GroupMeans()
    samples = [(torch.randn(rows, 4), torch.arange(rows).flip(0)) for rows in (5, 7)]
    compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=target)
    x, places = torch.randn(6, 4), torch.tensor([1, 1, 1, 0, 4, 5])
    x[4] = -torch.inf  # alone at its place
    for found, expected in zip(compiled(x, places), model(x, places), strict=True):
        torch.testing.assert_close(found, expected)


class Losses(nn.Module):
    """Cross entropy in each form."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        settings = itertools.product(("none", "mean", "sum"), (0.0, 0.1), (None, torch.arange(1.0, 5.0)))
        forms = [{"reduction": each, "label_smoothing": smooth, "weight": w} for each, smooth, w in settings]
        loss: Any = nn.functional.cross_entropy
        return (
            *(loss(x, labels, ignore_index=1, **form) for form in forms),
            *(loss(x, x.flip(0).softmax(1), **form) for form in forms),
            loss(x[0, :, 0], labels[0, 0], label_smoothing=0.1),
            nn.functional.nll_loss(x, labels, ignore_index=2),
        )


@pytest.mark.parametrize("target", [pb.OnnxRuntimeDeployment(), pb.OpenVinoDeployment()], ids=["ort", "openvino"])
def test_losses_have_smooth_labels_and_given_shares(target: Any) -> None:
    model = Losses()
    samples = [(torch.randn(rows, 4, 5), torch.randint(0, 4, (rows, 5))) for rows in (3, 5)]
    compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=target)
    call = torch.randn(2, 4, 5), torch.tensor([[1, 0, 3, 2, 1], [1, 1, 1, 0, 2]])
    for found, expected in zip(compiled(*call), model(*call), strict=True):
        torch.testing.assert_close(found, expected)


class Signs(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.signbit(x), torch.copysign(x + 1, x), torch.signbit(x.long())


def test_zeros_have_signs_on_onnx_runtime() -> None:
    samples = [torch.randn(4), torch.randn(5)]
    compiled = pb.compile_model(Signs(), tracing_inputs=samples, deployment_settings=pb.OnnxRuntimeDeployment())
    x = torch.tensor([-0.0, 0.0, -1.0, 1.0, -torch.inf, torch.inf])
    for found, expected in zip(compiled(x), Signs()(x), strict=True):
        torch.testing.assert_close(found, expected)


class Bags(nn.Module):
    """Bags of one to three rows, and one of nothing."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(20, 6, **settings)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        starts = torch.cat([torch.arange(0, ids.shape[0], 3), torch.full([2], 0) + ids.shape[0]])
        result: torch.Tensor = self.bag(ids, starts)
        return result


class WeightedBags(Bags):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = ids.reshape(-1, 1) + torch.arange(3)
        result: torch.Tensor = self.bag(rows, per_sample_weights=rows / 20)
        return result


class AllBags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(
            [
                Bags(mode="mean"),
                Bags(mode="max"),
                Bags(mode="mean", padding_idx=4),
                Bags(mode="max", padding_idx=4),
                Bags(mode="mean", include_last_offset=True),
                WeightedBags(mode="sum"),
            ]
        )

    def forward(self, ids: torch.Tensor) -> list[torch.Tensor]:
        return [bag(ids) for bag in self.bags]


@pytest.mark.parametrize("target", [pb.OnnxRuntimeDeployment(), pb.OpenVinoDeployment()], ids=["ort", "openvino"])
def test_bags_of_embeddings(target: Any) -> None:
    torch.manual_seed(0)
    model = AllBags().eval()
    samples = [torch.randint(0, 17, (n,)) for n in (7, 8, 11)]
    compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=target)
    for ids in (torch.randint(0, 17, (10,)), torch.full((6,), 4)):
        torch.testing.assert_close(compiled(ids), model(ids))


class MeanOfChosen(nn.Module):
    """The mean of the rows that a mask chooses, which may be none."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = x[mask]
        return chosen.mean(0), chosen.mean()


@pytest.mark.parametrize("target", [pb.OnnxRuntimeDeployment(), pb.OpenVinoDeployment()], ids=["ort", "openvino"])
def test_the_mean_of_nothing_is_nan(target: Any) -> None:
    model = MeanOfChosen()
    samples = [(torch.randn(rows, 4), torch.arange(rows) % 3 > 0) for rows in (5, 8)]
    compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=target)
    for mask in (torch.arange(7) > 4, torch.zeros(7, dtype=torch.bool)):
        x = torch.randn(7, 4)
        torch.testing.assert_close(compiled(x, mask), model(x, mask), equal_nan=True)


def _parts(result: Any) -> tuple[torch.Tensor, ...]:
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)
