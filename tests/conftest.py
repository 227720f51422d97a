from __future__ import annotations

import gc
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import prepbench as pb
from tests.turns import leave_most

HERE = Path(__file__).parent
# pytest listens to loggers that do not hand on what they log, and torch writes a trace where somebody listens
logging.getLogger("torch.__trace").propagate = True


@pytest.fixture(autouse=True)
def _weights_are_the_same_in_every_order_of_tests() -> None:
    torch.manual_seed(0)


_LOAD_AND_CALL = """
import sys, torch, prepbench as pb
compiled = pb.load_compiled(sys.argv[1], allow_code=True)
torch.save((compiled(torch.load(sys.argv[2])), compiled.target, len(compiled.report.layers)), sys.argv[3])
loaded = set(sys.argv[4:]) & set(sys.modules)
assert not loaded, loaded
"""


@pytest.fixture
def in_fresh_process(tmp_path: Path) -> Callable[..., torch.Tensor]:
    """What a model saves to ``tmp_path / "saved"`` computes where nothing of the model's code is loaded."""

    def call(compiled: pb.CompiledModel, x: torch.Tensor, absent: tuple[str, ...] = ()) -> torch.Tensor:
        compiled.save(tmp_path / "saved")
        torch.save(x, tmp_path / "in.pt")
        files = [str(tmp_path / name) for name in ("saved", "in.pt", "out.pt")]
        command = [sys.executable, "-c", _LOAD_AND_CALL, *files, *absent]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        result, target, layers = torch.load(tmp_path / "out.pt")
        assert (target, layers) == (compiled.target, len(compiled.report.layers))
        return result

    return call


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave most cases of tests with many to the long form.

    All cases stay of tests that export nothing, and of those about everything public, which stand above the rooms.
    """
    thinned = [item for item in items if HERE / "unit" not in item.path.parents and item.path.parent.parent != HERE]
    leave_most(thinned)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What torch and the tests' modules made when they were imported is never garbage: collecting passes over it.

    Collections are rarer than usual, because those that come by themselves cost a tenth of the time of all tests.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


@pytest.fixture(autouse=True, scope="module")
def _earlier_modules_are_not_collected_again() -> None:
    """What earlier test modules and their libraries keep for good would cost seconds at each full collection."""
    gc.collect()
    gc.freeze()
