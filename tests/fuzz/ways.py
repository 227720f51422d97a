"""Random programs whose sizes lead many ways, on whole numbers, so that every result is exact.

``python -m tests.fuzz.ways FIRST COUNT`` compiles some for eager PyTorch with samples of several ways, sizes of 0 and 1
among them, and calls them over a grid of sizes. Whatever a call does not refuse must be equal, bit for bit.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch

import prepbench as pb
from prepbench.errors import InputError
from tests.fuzz.programs import Program, made

QUESTIONS = (
    "b > {k}", "n > {k}", "b == {k}", "n == {k}", "n % {m} == 0", "n // {m} >= 2", "b + n > {k}", "b < n",
    "n - b >= {k}", "min(b, n) > 1", "b * n > 3 * {k}", "max(b, n) % {m} == 1", "(n + {m} - 1) // {m} > 2",
    "b > 1 and n != {k}", "x.shape[-1] != {k}", "len(x.chunk({m})) == {m}", "len(x.split({m}, 1)) > 2",
)  # fmt: skip
STEPS = (
    "x + {k}", "x * 2", "x.cumsum(1)", "x.flip(1)", "x[:, ::2]", "x[:, 1:]", "torch.cat([x, x[:, :1]], 1)", "x - x[:1]",
    "x.roll(1, 0)", "x.sum(0, keepdim=True)", "x.t().contiguous().t() * 3", "torch.cat(x.chunk({m}, 1)[::-1], 1)",
    "x[: max(b // 2, 1)]", "x.amax(1, keepdim=True) + x", "F.pad(x, (1, 1))", "x.reshape(-1, 1) if n == 1 else x",
    "x.unsqueeze(0).expand(2, -1, -1).sum(0)", "x[:, : n // {m}]",
)  # fmt: skip
SIZES = (1, 1, 2, 3, 4, 5, 6, 8, 9, 12, 13)
GRID = tuple((b, n) for b in (0, 1, 2, 3, 4, 5, 7, 9) for n in (*range(10), 11, 12, 13, 16, 17))
CALLS = 50


def drawn(seed: int) -> Program:
    """The program of a seed, with the shapes of two to four samples."""
    draw = random.Random(seed)

    def filled(text: str) -> str:
        return text.format(k=draw.choice([0, 1, 1, 2, 3, 4, 6, 9]), m=draw.choice([2, 2, 3, 4]))

    steps = []
    for _ in range(draw.randint(1, 3)):
        step = f"x = {filled(draw.choice(STEPS))}"
        if draw.random() < 0.75:
            other = f"x = {filled(draw.choice(STEPS))}"
            step = f"if {filled(draw.choice(QUESTIONS))}:\n    {step}\nelse:\n    {other}"
        steps.append(step)
    shapes = [(draw.choice(SIZES), draw.choice(SIZES)) for _ in range(draw.randint(2, 4))]
    if draw.random() < 0.1:
        shapes[0] = (0, shapes[0][1])
    return Program(seed, tuple(steps), "x", tuple(shapes))


def judged(program: Program, folder: Path) -> tuple[str, str]:
    """How a program ends: ``"right"``, ``"refused"``, ``"invalid"`` or ``"wrong"``, and what is wrong.

    Args:
        program: to compile and to call.
        folder: for its source.
    """
    model, numbers = made(program, folder), torch.Generator().manual_seed(program.seed)

    def whole(shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randint(-8, 9, shape, generator=numbers).float()

    samples = [whole(shape) for shape in program.shapes]
    if any(_given(model, x) is None for x in samples):
        return "invalid", ""
    try:
        compiled = pb.compile_model(
            model, tracing_inputs=samples, deployment_settings=pb.EagerDeployment(), discard_input_model=False
        )
    except pb.PrepbenchError as error:
        return "refused", str(error)
    calls = random.Random(program.seed).sample(GRID, CALLS)
    for shape in (*program.shapes, *calls):
        x = whole(shape)
        expected = _given(model, x)
        if expected is None:
            continue
        try:
            found = compiled(x)
        except InputError as error:
            if shape in program.shapes:
                return "wrong", f"refuses its own sample {shape}: {error}"
            continue
        if found.shape != expected.shape or not torch.equal(found, expected):
            return "wrong", f"another result for {shape}\n{compiled.report}"
    return "right", ""


def _given(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor | None:
    try:
        found: torch.Tensor = model(x)
    except Exception:  # sizes that the program does not take
        return None
    return found


def main() -> int:
    """Judge the programs named on the command line; returns 1 if one is wrong."""
    first, count = map(int, sys.argv[1:3])
    ends: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, first + count):
            program = drawn(seed)
            end, text = judged(program, Path(folder))
            ends[end] += 1
            if end == "wrong":
                print(f"seed {seed}, samples {program.shapes}: {text}\n{program.source}", flush=True)
    print(dict(ends))
    return int(ends["wrong"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
