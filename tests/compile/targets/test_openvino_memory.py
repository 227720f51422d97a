"""Results of OpenVINO share the memory of the request that computed them, and nobody else's."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb

pytest.importorskip("openvino")


class Results(nn.Module):
    """Returns its input, one tensor twice, a view, a constant and a part of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.constant = nn.Buffer(torch.arange(4.0))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = torch.relu(x) + 1
        return {
            "input": x, "one": y, "same": y, "view": y.reshape(4, -1), "constant": self.constant * 2, "part": x[:, :2],
            "sum": y.sum(), "half": (y * 2).to(torch.bfloat16), "none": x[:0], "truth": x > 0,
        }  # fmt: skip


@pytest.fixture(scope="module")
def compiled() -> pb.CompiledModel:
    samples = [torch.randn(2, 4), torch.randn(3, 4)]
    return pb.compile_model(Results().eval(), tracing_inputs=samples, deployment_settings=pb.OpenVinoDeployment())


def equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, msg=name)


def test_results_that_are_kept_stay_what_they_are(compiled: pb.CompiledModel) -> None:
    inputs = [torch.randn(size, 4) for size in [5, 5, 1, 300, 5, 2, *range(1, 40)]]
    kept = [compiled(x) for x in inputs]
    gc.collect()
    for x, result in zip(inputs, kept, strict=True):
        equal(result, Results()(x))


def test_a_result_that_is_kept_alone_stays_what_it_is(compiled: pb.CompiledModel) -> None:
    x = torch.randn(6, 4)
    view = compiled(x)["one"][1:].numpy()
    for size in (6, 6, 9, 6):
        compiled(torch.randn(size, 4))
    torch.testing.assert_close(torch.from_numpy(view), Results()(x)["one"][1:])


def test_writing_into_a_result_changes_nothing_else(compiled: pb.CompiledModel) -> None:
    x = torch.randn(3, 4)
    expected = Results()(x)
    for name in expected:
        given = x.clone()
        result = compiled(given)
        result[name].fill_(1 if name == "truth" else 77)
        assert torch.equal(given, x), name
        equal({**result, name: expected[name]}, expected)
        equal(compiled(x), expected)


def test_memory_is_used_again_once_results_are_gone(compiled: pb.CompiledModel) -> None:
    x = torch.randn(64, 4)
    places = set()
    for _ in range(20):
        result = compiled(x)["one"]
        places.add(result.data_ptr())
        del result
    assert len(places) <= 4


def test_threads_keep_their_own_results(compiled: pb.CompiledModel) -> None:
    wrong: list[Any] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        kept = []
        for _ in range(40):
            x = torch.randn(1 + seed, 4, generator=generator)
            kept = [*kept[-3:], (x, compiled(x)["one"])]
            wrong.extend(one for given, one in kept if not torch.allclose(one, torch.relu(given) + 1))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_nothing_is_copied_on_the_way(compiled: pb.CompiledModel, monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np
    import openvino

    infer, returned = openvino.InferRequest.infer, []
    monkeypatch.setattr(openvino.InferRequest, "infer", lambda *args, **kwargs: returned.append(infer(*args, **kwargs)))
    found = compiled(torch.randn(7, 4))
    (by_port,) = returned
    for array in by_port.values():
        assert not array.flags.owndata
    assert any(np.shares_memory(array, found["one"].numpy()) for array in by_port.values())
