"""What the variables of a notebook offer to a bench."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from torch import nn

import prepbench as pb
from prepbench.bench.variables import variables


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.fc(ids) * mask


class Deaf:
    """Answers every question about itself with an error."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("==")

    __hash__ = None  # type: ignore[assignment]


class Pretender:
    """Says that it is a model."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return nn.Module


def test_models_come_with_class_and_size_those_without_parameters_last() -> None:
    found = variables({"loss": nn.MSELoss(), "net": nn.Linear(4, 2), "two": TwoInputs(), "Net": TwoInputs, "n": 3})
    assert [(one.name, one.type, one.parameters) for one in found.models] == [
        ("net", "Linear", 10),
        ("two", "TwoInputs", 10),
        ("loss", "MSELoss", 0),
    ]


def test_samples_are_tensors_and_plain_containers_of_them() -> None:
    x, mask = torch.ones(2, 4), torch.ones(2, 2)
    given = {
        "labels": torch.ones(2),
        "pair": (x, mask),
        "batches": [x, x],
        "call": {"ids": x, "mask": mask},
        "encoded": UserDict(ids=x, mask=mask),
        "words": ["a", "b"],
        "empty": [],
        "files": [object(), x],
        "numbers": [1, 2],
    }
    found = {one.name: one for one in variables({"net": nn.Linear(4, 2), "two": TwoInputs(), **given}).samples}
    assert set(found) == {"labels", "pair", "batches", "call", "encoded"}
    assert found["pair"].expression == "[pair]"
    assert found["pair"].fits == ("net", "two")  # for the one, the second is a label
    assert found["call"].expression == "call"
    assert "two" in found["call"].fits
    assert found["encoded"].text == "dict of 2, the first tensor 2×4 float32"
    assert found["batches"].fits == ("net",)
    assert found["labels"].text == "tensor 2 float32"


def test_the_likeliest_samples_come_first_and_work() -> None:
    net = TwoInputs()
    known = {"a": torch.ones(3), "calibration": [(torch.ones(2, 4), torch.ones(2, 2))] * 2, "net": net}
    first = variables(known).samples[0]
    assert first.expression == "calibration"
    assert pb.Bench(net, calibration_inputs=known[first.expression]).calibration_inputs


def test_hostile_variables_are_passed_over() -> None:
    endless: list[Any] = []
    endless.append(endless)
    hostile = type("Net<img src=x onerror=alert(1)>\x1b", (nn.Linear,), {})(4, 2)
    broken = nn.Module.__new__(nn.Linear)
    known = {
        "deaf": Deaf(),
        "liar": Pretender(),
        "endless": endless,
        "net": hostile,
        "broken": broken,
        "no name": hostile,
    }
    found = variables({**known, "class": hostile, "_hidden": hostile, "pb": Deaf()})
    assert [one.name for one in found.models] == ["net", "broken"]
    assert "\x1b" not in found.models[0].type
    assert found.models[1].parameters == -1
    assert found.samples == ()
    assert found.package == "prepbench"


def test_no_name_is_taken_twice() -> None:
    assert variables({}).bench == "bench"
    found = variables({"bench": 1, "bench_2": 2, "pb": pb})
    assert (found.bench, found.package) == ("bench_3", "pb")


@pytest.fixture
def shell() -> Any:
    made = InteractiveShell()
    made.user_ns.update(net=nn.Linear(4, 2), batches=[torch.ones(2, 4)])
    return made


def test_asking_leaves_no_trace_in_the_notebook(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    before, count = dict(shell.user_ns), shell.execution_count
    shell.run_cell("", store_history=False, silent=True)
    asked = "__import__('prepbench.bench.variables', fromlist=['variables']).variables()"
    answer = shell.user_expressions({"found": asked})["found"]
    assert answer["status"] == "ok"
    assert answer["data"]["application/json"]["models"][0]["name"] == "net"
    assert shell.user_ns == before
    assert shell.execution_count == count
