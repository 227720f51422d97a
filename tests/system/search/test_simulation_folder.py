"""A simulation gives the same in another process, which knows nothing of the model but files."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.compile.simulation import Simulation, scored_on
from prepbench.inputs import Sample
from prepbench.jobs import Progress, report_nothing
from prepbench.search.executors import run_tasks
from prepbench.search.parallel_scores import (
    load_simulation,
    save_simulation,
    score_payload,
    score_task,
    scores_in_processes,
    shares_process,
)
from prepbench.search.tasks import name_of

INT8, INT4 = pb.QuantizationSettings(), pb.QuantizationSettings(
    weights_num_bits=4, weights_only_quantization_block_size=32, prefer_weights_only_quantization=True
)  # fmt: skip


class Net(nn.Module):
    """Has a batch norm, a keyword and a dict as its result."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 32)
        self.last = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor, *, scale: float) -> dict[str, torch.Tensor]:
        x = torch.relu(self.norm(self.conv(x))).mean((2, 3)) * scale
        return {"logits": self.last(torch.relu(self.head(x)))}


@pytest.fixture(scope="module")
def simulation() -> Simulation:
    torch.manual_seed(0)
    samples = [(torch.randn(size, 3, 8, 8), {"scale": 2.0}) for size in (2, 3)]
    return Simulation.of(Net().eval(), samples)


@pytest.fixture(scope="module")
def folder(simulation: Simulation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("simulation") / "net"
    save_simulation(simulation, place)
    return place


def test_what_scores_are_measured_on_comes_back_from_files(simulation: Simulation, tmp_path: Path) -> None:
    others = scored_on(simulation, [Sample((torch.full((2, 3, 8, 8), 5.0),), {"scale": 2.0})])
    save_simulation(others, tmp_path / "net", [INT8])
    again, mixture = load_simulation(tmp_path / "net"), dict.fromkeys(simulation.layers, INT8)
    assert again.score(mixture) == others.score(mixture) != simulation.score(mixture)


def test_a_simulation_comes_back_from_files(simulation: Simulation, folder: Path) -> None:
    again = load_simulation(folder)
    assert again.layers == simulation.layers == ("conv", "head", "last")
    assert (again.types, again.parameters) == (simulation.types, simulation.parameters)
    for mixture in ({"conv": INT8}, {"head": INT4, "last": INT8}):
        expected, found = (one.score(mixture, even_alone=True) for one in (simulation, again))
        assert found.sqnr == pytest.approx(expected.sqnr, abs=1e-3)
    call = pb.Sample((torch.ones(2, 3, 8, 8),), {"scale": 2.0})
    [one], [other] = (list(each.outputs({"conv": INT8}, [call])) for each in (simulation, again))
    torch.testing.assert_close(one, other)


def test_pickle_is_not_among_the_files(folder: Path) -> None:
    assert {file.suffix for file in folder.rglob("*") if file.is_file()} == {".json", ".safetensors"}


def test_tasks_score_mixtures(simulation: Simulation, folder: Path) -> None:
    mixtures: list[dict[str, Any]] = [{"conv": INT8}, {"last": INT4}]
    found = run_tasks(None, name_of(score_task), [score_payload(one) for one in mixtures], {"simulation": folder})
    expected = [simulation.score(one, even_alone=True).sqnr for one in mixtures]
    assert [sqnr for sqnr, _ in found] == pytest.approx(expected, abs=1e-3)


def test_two_workers_of_which_one_is_killed_give_the_same(simulation: Simulation) -> None:
    from distributed import Client, LocalCluster

    mixtures = [{fqn: INT8} for fqn in simulation.layers] + [{fqn: INT4} for fqn in ("head", "last")]
    expected = [simulation.score(one, even_alone=True).sqnr for one in mixtures]
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster, Client(cluster) as client:
        alive = list(client.run(os.getpid).values())

        def kill(step: Progress) -> None:
            if step.done >= 1 and len(alive) == 2:
                os.kill(alive.pop(), signal.SIGKILL)

        names = [", ".join(mixture) for mixture in mixtures]
        first = scores_in_processes(simulation, mixtures, names, client, kill)
        again = scores_in_processes(simulation, mixtures[:1], names[:1], client, report_nothing)
        assert len(alive) == 1
    assert [score.sqnr for score in first] == pytest.approx(expected, abs=1e-3)
    assert again[0].sqnr == pytest.approx(expected[0], abs=1e-3)
    assert not shares_process(client)
    assert shares_process(None)
    assert shares_process(ThreadPoolExecutor(1))
