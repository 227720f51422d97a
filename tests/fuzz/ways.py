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
# of two inputs, x of b x n and y of c x n
QUESTIONS_OF_TWO = (
    "b > {k}", "n > {k}", "c == {k}", "b > c", "b + c > {k}", "b == c", "n % {m} == c % {m}", "c - b >= {k}",
    "min(b, c) > 1", "len(y.split({m}, 0)) > 2", "c * n > 3 * {k}", "c // {m} >= b", "x.shape == y.shape",
    "x.numel() > y.numel()",
)  # fmt: skip
STEPS_OF_TWO = (
    "torch.cat([x, y], 0)", "torch.cat([y, x], 0)", "x + y[:1]", "x * y[:1] + y.sum(0, keepdim=True)", "x[: max(c, 1)]",
    "x @ y.t() @ y", "torch.cat([x, y[: b // 2]], 0)", "x + y if b == c else x - y[:1]", "F.pad(x, (0, 0, 0, c))",
    "x.roll(c, 0)", "x * c", "x.cumsum(0)", "x[:, :: max(c % 3, 1)]", "(x.unsqueeze(1) + y.unsqueeze(0)).sum(1)",
    "torch.where(x > 0, x, y[:1])", "x.index_select(0, torch.arange(c) % max(b, 1))",
)  # fmt: skip
SIZES = (1, 1, 2, 3, 4, 5, 6, 8, 9, 12, 13)
GRID = tuple((b, n) for b in (0, 1, 2, 3, 4, 5, 7, 9) for n in (*range(10), 11, 12, 13, 16, 17))
CALLS = 50


def drawn(seed: int, inputs: int = 1) -> Program:
    """The program of a seed with one or two inputs, with the shapes of two to four samples."""
    draw = random.Random(seed)
    all_questions, all_steps = (QUESTIONS, STEPS) if inputs == 1 else (QUESTIONS_OF_TWO, STEPS_OF_TWO)

    def filled(text: str) -> str:
        return text.format(k=draw.choice([0, 1, 1, 2, 3, 4, 6, 9]), m=draw.choice([2, 2, 3, 4]))

    steps = []
    for _ in range(draw.randint(1, 4 - inputs)):
        step = f"x = {filled(draw.choice(all_steps))}"
        if draw.random() < 0.75:
            other = f"x = {filled(draw.choice(all_steps))}"
            step = f"if {filled(draw.choice(all_questions))}:\n    {step}\nelse:\n    {other}"
        steps.append(step)
    shapes = [tuple(draw.choice(SIZES) for _ in range(inputs + 1)) for _ in range(draw.randint(2, 4))]
    if inputs == 2 and draw.random() < 0.3:  # sizes that change together in all samples
        more = draw.randint(0, 2)
        shapes = [(b, n, b + more) for b, n, _ in shapes]
    if draw.random() < 0.1:
        shapes[0] = (0, *shapes[0][1:])
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

    def inputs(shape: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
        b, n, *others = shape
        return (whole((b, n)), *(whole((c, n)) for c in others))

    samples = [inputs(shape) for shape in program.shapes]
    if any(_given(model, each) is None for each in samples):
        return "invalid", ""
    try:
        compiled = pb.compile_model(
            model, tracing_inputs=samples, deployment_settings=pb.EagerDeployment(), discard_input_model=False
        )
    except pb.PrepbenchError as error:
        return "refused", str(error)
    draw = random.Random(program.seed)
    calls = draw.sample(GRID, CALLS)
    if len(program.shapes[0]) > 2:
        calls = [(*shape, draw.choice((*SIZES, 0, 7))) for shape in calls]
    for shape in (*program.shapes, *calls):
        given = inputs(shape)
        expected = _given(model, given)
        if expected is None:
            continue
        try:
            found = compiled(*given)
        except InputError as error:
            if shape in program.shapes:
                return "wrong", f"refuses its own sample {shape}: {error}"
            continue
        if found.shape != expected.shape or not torch.equal(found, expected):
            return "wrong", f"another result for {shape}\n{compiled.report}"
    return "right", ""


def _given(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor | None:
    try:
        found: torch.Tensor = model(*inputs)
    except Exception:  # sizes that the program does not take
        return None
    return found


def main() -> int:
    """Judge the programs named on the command line, every other one of two inputs; returns 1 if one is wrong."""
    first, count = map(int, sys.argv[1:3])
    ends: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            seed = first + number
            program = drawn(seed, inputs=1 + number % 2)
            end, text = judged(program, Path(folder))
            ends[end] += 1
            if end == "wrong":
                print(f"seed {seed}, samples {program.shapes}: {text}\n{program.source}", flush=True)
    print(dict(ends))
    return int(ends["wrong"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
