"""What the working tree costs beside an earlier revision of itself: ``python -m tests.benchmarks.revisions REVISION``.

Both are timed in one run, each in a process of its own, in rounds that take turns. The limit is 1.03 times the time of
the earlier one; the command fails above it.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks.models import build
from tests.benchmarks.rounds import ROUNDS, interleave, serve

LIMIT = 1.03
ROOT = Path(__file__).parents[2]
IMPORTS = 5


def _trace(model: torch.nn.Module, samples: list[Any]) -> None:
    import prepbench as pb

    pb.recursive_trace(model)


def _trace_with_inputs(model: torch.nn.Module, samples: list[Any]) -> None:
    import prepbench as pb

    pb.recursive_trace(model, inputs=samples)


def _capture(model: torch.nn.Module, samples: list[Any]) -> None:
    import prepbench as pb

    pb.capture(model, samples, fullgraph=False)


def _prepare(model: torch.nn.Module, samples: list[Any]) -> None:
    import prepbench as pb

    pb.prepare_model(model, inputs=samples)


def _compile(model: torch.nn.Module, samples: list[Any]) -> None:
    import prepbench as pb

    pb.compile_model(
        model,
        tracing_inputs=samples,
        calibration_inputs=samples,
        deployment_settings=pb.OnnxRuntimeDeployment(),
        quantization_settings=pb.QuantizationSettings(),
    )


def _import(model: torch.nn.Module, samples: list[Any]) -> None:
    for _ in range(IMPORTS):
        subprocess.run([sys.executable, "-c", "import torch, prepbench; dir(prepbench)"], check=True)


TASKS: dict[str, Callable[[torch.nn.Module, list[Any]], None]] = {
    "trace": _trace,
    "trace with inputs": _trace_with_inputs,
    "capture": _capture,
    "prepare": _prepare,
    "compile": _compile,
    "import": _import,
}
CASES = (
    *(("trace", model) for model in ("resnet", "mobilenet")),
    *((task, model) for task in ("trace with inputs", "capture", "prepare") for model in ("resnet", "bert", "gpt2")),
    ("compile", "resnet"),
    ("compile", "mlp"),
    ("import", "mlp"),
)


def work(task: str, name: str) -> None:
    """Worker side: answer each line on standard input with the milliseconds of one run."""
    model, samples = build(name)
    serve(lambda: TASKS[task](model, samples), warm_up=1, wake_up=0)


def main(revision: str) -> int:
    """Print a ratio for each case, and return 1 if one is above the limit."""
    slow = []
    with tree_of(revision) as other:
        print(f"{'case':<28}{revision[:12]:>14}{'now':>12}{'ratio':>9}    (ms, median of interleaved rounds)")
        for task, name in CASES:
            ratio = _compare(task, name, {revision: other, "now": ROOT})
            slow += [f"{task} {name}"] if ratio > LIMIT else []
    print(f"Above {LIMIT}: {', '.join(slow) or 'none'}")
    return bool(slow)


@contextlib.contextmanager
def tree_of(revision: str) -> Iterator[Path]:
    """A working tree of an earlier revision, which goes away again."""
    with tempfile.TemporaryDirectory(prefix="prepbench-revision-") as folder:
        other = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(other), revision], cwd=ROOT, check=True)
        try:
            yield other
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(other)], cwd=ROOT, check=True)


def interleaved_trees(command: Sequence[str], trees: Mapping[str, Path], rounds: int = ROUNDS) -> list[list[float]]:
    """What :func:`tests.benchmarks.rounds.interleave` gives for one command with the code of each tree."""
    paths = {tree: {**os.environ, "PYTHONPATH": f"{path / 'src'}{os.pathsep}{ROOT}"} for tree, path in trees.items()}
    times = interleave(dict.fromkeys(trees, command), paths, rounds)
    return [times[tree] for tree in trees]


def _compare(task: str, name: str, trees: dict[str, Path]) -> float:
    before, after = interleaved_trees(["-m", "tests.benchmarks.revisions", "--work", task, name], trees)
    if not before or not after:
        print(f"{task + ' ' + name:<28} failed: {'the earlier revision' if not before else 'the working tree'}")
        return float("inf")
    ratio = statistics.median(b / a for a, b in zip(before, after, strict=True))
    shown = f"{task + ' ' + name:<28}{statistics.median(before):>14.1f}{statistics.median(after):>12.1f}{ratio:>9.3f}"
    print(shown, flush=True)
    return ratio


if __name__ == "__main__":
    if sys.argv[1] == "--work":
        work(*sys.argv[2:])
    else:
        raise SystemExit(main(sys.argv[1]))
