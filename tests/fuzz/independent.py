"""``python -m tests.fuzz.independent``: networks that nnsmith draws, compiled and compared with eager PyTorch.

nnsmith (https://github.com/ise-uiuc/nnsmith, 0.1.0) is no requirement, and asks for old packages. In an environment
that sees torch and prepbench: ``pip install --no-deps nnsmith``, then ``pip install appdirs hydra-colorlog hydra-core
multipledispatch z3-solver``. Options are those of ``python -m tests.fuzz``. Sizes of its networks are fixed.
"""

from __future__ import annotations

import random
import sys
import time
from typing import Any

import torch
from torch.utils import _pytree as pytree

import prepbench as pb
from tests.fuzz.__main__ import NOTHING, RAW, WRONG, Call, Verdict, compared, difference, main, row

_NODES, _ELEMENTS, _CALLS = 6, 2**10, 4


def drawn(seed: int) -> tuple[torch.nn.Module, list[Call], str]:
    """A network, calls of it, and its text."""
    from nnsmith.graph_gen import model_gen
    from nnsmith.materialize import Model

    kind = Model.init("torch", "cpu")
    random.seed(seed)
    generator = model_gen(
        opset=list(kind.operators()), method="symbolic-cinit", seed=seed, max_elem_per_tensor=_ELEMENTS,
        max_nodes=_NODES, timeout_ms=10_000,
    )  # fmt: skip
    graph = generator.make_concrete()
    made = kind.from_gir(graph)
    network: torch.nn.Module = made.torch_model.eval()
    network.debug_numeric = _unasked  # type: ignore[assignment] # asks whether its inputs are finite
    torch.manual_seed(seed)
    specs = [([int(size) for size in spec.shape], spec.dtype.torch()) for spec in made.input_like.values()]
    return network, [tuple(_values(number, *spec) for spec in specs) for number in range(_CALLS)], str(graph.pretty())


def _unasked(tensors: dict[str, torch.Tensor]) -> None:
    """Nothing."""


def _values(number: int, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    if dtype is torch.bool:
        return torch.rand(shape) > 0.5
    if not dtype.is_floating_point:
        return torch.randint(-5, 6, shape).to(dtype)
    return (torch.randn(shape) * (1.0, 1.0, 20.0, 1e-3)[number % 4]).to(dtype)


def reliable(network: torch.nn.Module, call: Call) -> Any:
    """What eager gives, where it moves no further than a result may be off when inputs move by their rounding."""
    try:
        with torch.no_grad():
            expected = network(*call)
            moved = network(*(x * (1 + 3e-7) if x.is_floating_point() else x for x in call))
    except Exception:
        return None
    finite = all(bool(x.isfinite().all()) for x in pytree.tree_leaves(expected) if isinstance(x, torch.Tensor))
    return expected if finite and not difference(expected, moved) else None


def one(seed: int, target: str, reuse: pb.KeptStages | None = None) -> dict[str, Any]:
    """The row of one network on one target."""
    start, text = time.perf_counter(), ""
    try:
        network, calls, text = drawn(seed)
    except Exception as error:  # of the generator, which has many
        verdict = Verdict(NOTHING, f"{type(error).__name__}: nnsmith draws no network")
    else:
        verdict = compared(network, calls[:1], calls[1:], target, reliable, reuse)
    if verdict.kind in (WRONG, RAW):
        print(f"seed {seed} {target}: {verdict.kind} {verdict.text}\n{text}", flush=True)
    return row(seed, target, verdict, text if verdict.kind in (WRONG, RAW) else "", start)


if __name__ == "__main__":
    sys.exit(main(one))
