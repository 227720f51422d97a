"""Random small modules, as lines of source: size arithmetic, branches on sizes, operators with their attributes."""

from __future__ import annotations

import importlib.util
import random
import sys
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

SIZES = (
    "n", "b", "-(-n // {k})", "(n + {k}) // 2", "(1 - n) // {k}", "n % {k}", "-n % {k}", "n >> 1", "max(n - {k}, 1)",
    "min(n, {k} + 2)", "round(n * 0.75)", "int(math.sqrt(n))", "abs(n - {k} * b)", "n * b", "(n - 1) // {k} + 1",
    "n ** 2 // {k}",
)  # fmt: skip
QUESTIONS = (
    "n > {big}", "n % {k} == 0", "b < n", "n * n > {big} * {k}", "b > 1", "n == {big}", "(n + b) % 2", "n // {k} >= b",
    "{size} > {k}", "b != n and n > {k}", "not n % 2 or b > {k}",
)  # fmt: skip
# each keeps x a float tensor of two dims; {size} is an expression of sizes, {k} a small number
STEPS = (
    "x = x * {real}",
    "x = x + {size}",
    "x = x[:, : max({size}, 1)]",
    "x = x[:, -max({size}, 1) :]",
    "x = x[:, :: {k}]",
    "x = F.pad(x, (0, {size} % 5))",
    "x = F.pad(x, ({k}, 1), value={real})",
    "x = F.pad(x, (1, 1), mode='replicate')",
    "x = F.pad(x.unsqueeze(1), (1, 1), mode='circular').squeeze(1)",
    "x = x.roll({size}, 1)",
    "x = torch.cat([x, x.flip(1)], {axis})",
    "x = x.cumsum({axis})",
    "x = x.softmax({axis})",
    "x = x - x.mean({axis}, keepdim=True)",
    "x = x / (x.norm(dim=1, keepdim=True) + {tiny})",
    "x = torch.log(x.relu() + {tiny})",
    "x = x * torch.rsqrt((x * x).mean(1, keepdim=True) + {tiny})",
    "x = F.logsigmoid(x * {real})",
    "x = F.softplus(x, {real_above}, 20.0)",
    "x = F.gelu(x, approximate='{approximate}')",
    "x = F.elu(x, {real_above})",
    "x = x.logsumexp({axis}, keepdim=True) + x",
    "x = x.clamp(-0.5, {real_above}) + x.clamp(-{real_above}, 0.25)",
    "x = torch.where(x > {real}, x, -x)",
    "x = torch.floor(x * {k}) / {k}",
    "x = torch.remainder(x, {real_above})",
    "x = torch.fmod(x, {real_above})",
    "x = (x * 10).to(torch.int64).floor_divide({k}).to(x.dtype)",
    "x = ((x * 10).to(torch.int64) % {k}).to(x.dtype)",
    "x = ((x * 10).to(torch.int32) >> 1).to(x.dtype)",
    "x = x.sign() * x.abs().pow({real_above})",
    "x = x.sort({axis}).values",
    "x = x.amax({axis}, keepdim=True) - x",
    "x = x.tensor_split({k}, 1)[0] + {real}",
    "x = torch.cat(x.chunk({k}, 1)[::-1], 1)",
    "x = F.avg_pool1d(x.unsqueeze(1), 3, {stride}, 1, ceil_mode={flag}, count_include_pad={other_flag}).squeeze(1)",
    "x = F.max_pool1d(x.unsqueeze(1), 3, {stride}, 1, ceil_mode={flag}).squeeze(1)",
    "x = F.lp_pool1d(x.unsqueeze(1).abs() + 0.1, 2, 2, {stride}, ceil_mode={flag}).squeeze(1)",
    "x = F.adaptive_avg_pool1d(x.unsqueeze(1), {k}).squeeze(1)",
    "x = F.adaptive_max_pool1d(x.unsqueeze(1), {k}).squeeze(1)",
    "x = F.interpolate(x.unsqueeze(1), scale_factor={scale}, mode='{mode}').squeeze(1)",
    "x = F.interpolate(x.unsqueeze(1), size=max({size}, 1), mode='{mode}').squeeze(1)",
    "x = self.conv(x.unsqueeze(1)).mean(1)",
    "x = self.linear(x.unsqueeze(-1)).amax(-1)",
    "x = self.norm(self.linear(x.unsqueeze(-1)) + {large}).mean(-1)",
    "x = F.group_norm(self.linear(x.unsqueeze(-1)).transpose(1, 2) + {large}, 3).mean(1)",
    "x = x.unfold(1, 2, {stride}).mean(-1)",
    "x = torch.einsum('bn,bm->bm', x, x.tanh())",
    "x = x @ x.transpose(0, 1) @ x / x.shape[1]",
    "x = x + torch.arange(x.shape[1], device=x.device, dtype=x.dtype) * {real}",
    "x = x * torch.linspace(0, 1, x.shape[1], dtype=x.dtype)",
    "x = x.view(b if x.shape[0] == b else x.shape[0], -1)",
    "x = x.t().reshape(x.shape[0], -1)",
)
RESULTS = (
    "x",
    "x, x.sum()",
    "{'main': x, 'rows': x.mean(1)}",
    "[x.argmax(1), x]",
    "x, (x > 0).sum(), x.shape[1] * 1.0 + x",
)
HEAD = """import math

import torch
import torch.nn.functional as F
from torch import nn


class Program(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed({seed})
        self.conv, self.linear, self.norm = nn.Conv1d(1, 2, 3, padding=1), nn.Linear(1, 3), nn.LayerNorm(3)

    def forward(self, x):
        b, n = x.shape
"""


@dataclass(frozen=True)
class Program:
    """One program.

    Attributes:
        seed: that it was drawn with.
        steps: statements, each of one or more lines.
        result: an expression.
        shapes: of its samples: rows and columns of ``x``, and the rows of ``y`` where the program takes that, too.
    """

    seed: int
    steps: tuple[str, ...]
    result: str
    shapes: tuple[tuple[int, ...], ...]

    @property
    def source(self) -> str:
        """The text of a module with the class ``Program``."""
        lines = [f"        {line}" for step in self.steps for line in step.split("\n")]
        head = HEAD.format(seed=self.seed)
        if any(len(shape) > 2 for shape in self.shapes):
            head = head.replace("(self, x)", "(self, x, y)") + "        c = y.shape[0]\n"
        return "\n".join([head + "\n".join(lines), f"        return {self.result}", ""])

    def without(self, number: int) -> Program:
        """The program less one step."""
        return replace(self, steps=(*self.steps[:number], *self.steps[number + 1 :]))


def drawn(seed: int) -> Program:
    """A random program; the same for the same seed."""
    draw = random.Random(seed)
    steps = tuple(_statement(draw) for _ in range(draw.randint(1, 4)))
    count = draw.choice((2, 2, 3))  # all sizes differ, so that both dims are dynamic
    shapes = tuple(zip(draw.sample(range(1, 6), count), draw.sample(range(3, 17), count), strict=True))
    return Program(seed, steps, draw.choice(RESULTS), shapes)


def _statement(draw: random.Random) -> str:
    if draw.random() < 0.25:
        return f"if {_filled(draw, QUESTIONS)}:\n    {_filled(draw, STEPS)}\nelse:\n    {_filled(draw, STEPS)}"
    return _filled(draw, STEPS)


def _filled(draw: random.Random, texts: tuple[str, ...]) -> str:
    k = draw.randint(2, 5)
    return draw.choice(texts).format(
        k=k,
        size=f"({draw.choice(SIZES).format(k=draw.randint(2, 5))})",
        big=draw.randint(5, 30),
        real=draw.choice((-1.5, -0.25, 0.5, 3.0)),
        real_above=draw.choice((0.3, 0.75, 2.0)),
        tiny=draw.choice(("1e-5", "1e-9", "1e-10", "1e-12")),
        large=draw.choice((0, 0, 100, 1000)),
        axis=draw.choice((0, 1, -1)),
        stride=draw.choice((1, 2, 3)),
        flag=draw.choice((True, False)),
        other_flag=draw.choice((True, False)),
        scale=draw.choice((0.5, 1.5, 2.0)),
        mode=draw.choice(("nearest", "linear", "area", "nearest-exact")),
        approximate=draw.choice(("none", "tanh")),
    )


def made(program: Program, folder: Path) -> torch.nn.Module:
    """The module, from a file of its own, so that its lines can be told."""
    path = folder / f"program_{zlib.crc32(program.source.encode()):08x}.py"
    path.write_text(program.source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # where dynamo looks for what a forward names
    spec.loader.exec_module(module)
    result: torch.nn.Module = module.Program().eval()
    return result


def calls(program: Program, count: int) -> list[torch.Tensor]:
    """Inputs of other sizes than the samples', and of values at the edge."""
    draw = random.Random(program.seed + 1)
    torch.manual_seed(program.seed + 1)
    found = []
    for number in range(count):
        shape = draw.randint(1, 6), draw.randint(1, 24)
        x = torch.randn(shape)
        found.append(
            (x, torch.zeros(shape), -x.abs() * 30, x * 1e-6, x[:, :1].expand(shape).clone(), x * 100)[number % 6]
        )
    return found
