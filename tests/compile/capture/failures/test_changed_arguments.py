"""Arguments that forward changes as Python objects: samples stay as they are, and what is lost is told."""

from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb


class Cache:
    def __init__(self, keys: torch.Tensor | None = None) -> None:
        self.keys = keys


class Appends(nn.Module):
    """Does something with its second argument besides computing."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.layer, self.what = nn.Linear(4, 4), what

    def forward(self, x: torch.Tensor, given: Any) -> Any:
        y = self.layer(x)
        if self.what == "attribute":
            given.keys = torch.cat([given.keys, y])
            return y
        if self.what == "returned":
            given.keys = torch.cat([given.keys, y])
            return y, given
        if self.what == "fresh":
            given.keys = y if given.keys is None else torch.cat([given.keys, y])
            return y.sum() + given.keys.sum(), given
        if self.what in ("list", "empty"):
            given.append(y + 1)
        elif self.what == "entry":
            given["y"] = y + 1
        elif self.what == "pop":
            return y + given.pop("x")
        return y


def argument(what: str, n: int) -> Any:
    x = torch.randn(n, 4)
    return {
        "attribute": Cache(x), "returned": Cache(x), "fresh": Cache(), "list": [x], "empty": [], "entry": {"x": x},
        "pop": {"x": x}, "nothing": {"x": x},
    }[what]  # fmt: skip


@pytest.mark.parametrize(
    ("what", "lost"),
    [
        ("attribute", "given.keys"),
        ("list", "given[1]"),
        ("empty", "given[0]"),
        ("entry", "given['y']"),
        ("pop", "given['x']"),
        ("returned", ""),
        ("fresh", ""),
        ("nothing", ""),
    ],
)
def test_what_the_caller_does_not_get_is_told(what: str, lost: str) -> None:
    torch.manual_seed(0)
    samples = [(torch.randn(n, 4), argument(what, n)) for n in (2, 3)]
    model = Appends(what).eval()
    told = pb.compile_model(
        model, tracing_inputs=samples, deployment_settings=pb.EagerDeployment(), discard_input_model=False
    ).report.remarks
    assert [remark for remark in told if "leave the caller's object" in remark] == (
        [
            f"forward changes {lost}, and compiled models leave the caller's object as it is: let forward return the "
            "new values, if they are needed"
        ]
        if lost
        else []
    )
    for (_, given), n in zip(samples, (2, 3), strict=True):
        if what in ("attribute", "returned"):
            assert given.keys.shape == (n, 4)
        elif what == "fresh":
            assert given.keys is None
        else:
            assert len(given) == (what != "empty")
