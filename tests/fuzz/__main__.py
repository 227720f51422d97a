"""``python -m tests.fuzz``: draws programs, runs them, shrinks what fails to a few lines, and adds results up.

``--first`` and ``--programs`` say which seeds; ``--results FILE`` keeps a line for each program and target, so that
runs add up and a seed is not run twice. It fails where an answer is wrong, or an error is not prepbench's own.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import prepbench as pb
from prepbench.errors import InputError
from tests.fuzz.programs import Program, calls, drawn, made

TARGETS = {
    "eager": pb.EagerDeployment,
    "onnxruntime": pb.OnnxRuntimeDeployment,
    "openvino": lambda: pb.OpenVinoDeployment(inference_precision="f32"),
    "executorch": pb.ExecuTorchDeployment,
    "inductor": pb.InductorDeployment,
}
RIGHT, REFUSED, WRONG, RAW, NOTHING = "right", "refused", "WRONG", "RAW", "no judge"
CALLS = 8


@dataclass(frozen=True)
class Verdict:
    """What became of a program on a target.

    Attributes:
        kind: ``RIGHT``, ``REFUSED`` (when compiling, or all calls but those of samples), ``WRONG``, ``RAW`` (an error
            that is not prepbench's) or ``NOTHING`` (eager itself fails, or does not agree with itself).
        text: the reason.
        calls: how many calls were right, and how many were refused.
        is_of_capture: whether no target would get a graph.
    """

    kind: str
    text: str = ""
    calls: tuple[int, int] = (0, 0)
    is_of_capture: bool = False


def judged(program: Program, target: str, folder: Path, reuse: pb.KeptStages | None = None) -> Verdict:
    """Compile a program for a target, and compare it with eager.

    Args:
        program: to compile.
        target: a key of ``TARGETS``.
        folder: for its source.
        reuse: the capture of the same program for another target.
    """
    torch.manual_seed(program.seed)
    samples = [(torch.randn(shape),) for shape in program.shapes]
    further = [(x,) for x in calls(program, CALLS)]
    return compared(made(program, folder), samples, further, target, reliable, reuse)


Call = tuple[torch.Tensor, ...]


def compared(
    model: torch.nn.Module,
    samples: Sequence[Call],
    further: Sequence[Call],
    target: str,
    reliable: Callable[[torch.nn.Module, Call], Any],
    reuse: pb.KeptStages | None,
) -> Verdict:
    """Compile a model for a target, and compare it with eager.

    Args:
        model: to compile.
        samples: to compile it with.
        further: calls that it is compared on, too.
        target: a key of ``TARGETS``.
        reliable: gives eager's result on a call, or None where that judges nothing.
        reuse: the capture of the same model for another target.
    """
    if any(reliable(model, sample) is None for sample in samples):
        return Verdict(NOTHING)
    try:
        compiled = pb.compile_model(
            model,
            tracing_inputs=list(samples),
            deployment_settings=TARGETS[target](),
            discard_input_model=False,
            reuse=reuse,
        )
    except pb.PrepbenchError as error:
        return refused(error)
    except Exception as error:
        return Verdict(RAW, f"{type(error).__name__}: {first_line(error)}")
    right = refusals = 0
    for call in (*samples, *further):
        expected = reliable(model, call)
        if expected is None:
            continue
        shapes = ", ".join(str(tuple(x.shape)) for x in call)
        try:
            got = compiled(*call)
        except InputError as error:
            if any(call is sample for sample in samples):
                return Verdict(WRONG, f"refuses its own sample: {first_line(error)}")
            refusals += 1
            continue
        except pb.PrepbenchError as error:
            return refused(error)
        except Exception as error:
            return Verdict(RAW, f"{shapes}: {type(error).__name__}: {first_line(error)}")
        if text := difference(expected, got):
            return Verdict(WRONG, f"{shapes}: {text}")
        right += 1
    return Verdict(RIGHT, "", (right, refusals))


def refused(error: pb.PrepbenchError) -> Verdict:
    """A refusal; a mistake of prepbench's own is none."""
    is_own = type(error).__name__ == "InternalError" or isinstance(error.__cause__, AttributeError | KeyError)
    is_of_capture = isinstance(error, pb.errors.CaptureError)
    return Verdict(RAW if is_own else REFUSED, told(error), is_of_capture=is_of_capture and not is_own)


def told(error: pb.PrepbenchError) -> str:
    """What a refusal says of its first reason: kind, words and, behind a bar, the line of the program."""
    failures = getattr(error, "failures", ())
    if not failures:
        return f"{type(error).__name__}: {first_line(error)}"
    failure = failures[0]
    code = failure.source.code if failure.source is not None and failure.source.code else "no line"
    return f"{failure.exception_type}: {failure.message.splitlines()[0]} | {code.strip().splitlines()[0]}"


def cause(text: str) -> str:
    """The kind of a refusal: its words without names, numbers and paths."""
    words, _, code = text.partition(" | ")
    if code.startswith(("if ", "elif ")):
        return BRANCH
    if code:
        words = f"{words.split(':')[0]} at {re.sub(r'self[.]|[^a-z_(. ]|x[.]', '', code).split('x = ')[-1]}"
    return re.sub(r"/\S+|[-\d.e]*\d", "_", words)[:150]


class RoundedOtherwise(TorchDispatchMode):
    """Inside the block, what operators compute is moved by about one unit in the last place."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        gives_new = not func._schema.is_mutable and not any(each.alias_info for each in func._schema.returns)
        name = func.overloadpacket.__name__
        if not gives_new or name in _EXACT:
            return result
        return pytree.tree_map(lambda value: _moved(value, 1e-7 if name in _LESS_ONE else 0.0), result)


# they only choose, move or compare
_EXACT = {
    "abs", "amax", "amin", "cat", "clamp", "clamp_max", "clamp_min", "clone", "constant_pad_nd", "copy", "empty",
    "empty_like", "flip", "floor", "full", "full_like", "gather", "index_select", "lift_fresh", "max",
    "max_pool2d_with_indices", "maximum", "min", "minimum", "neg", "relu", "replication_pad1d", "roll", "round",
    "scalar_tensor", "sign", "sort", "topk", "trunc", "where", "zeros", "zeros_like", "arange", "ones", "_to_copy",
    "_adaptive_max_pool2d", "adaptive_max_pool2d", "upsample_nearest1d", "_upsample_nearest_exact1d",
}  # fmt: skip


# the fast kernels of runtimes subtract 1 from an exponential, so that what they round is a share of 1
_LESS_ONE = {"elu", "celu", "selu"}


def _moved(value: Any, further: float) -> Any:
    if not isinstance(value, torch.Tensor) or value.dtype is not torch.float32:
        return value
    up, down = torch.rand_like(value), torch.rand_like(value)
    moved = value * (1 + 2e-7 * (up - down)) + further * (up - down)
    return torch.where(moved.abs() < torch.finfo(torch.float32).tiny, 0.0, moved)  # as runtimes make them


def reliable(model: torch.nn.Module, call: Call) -> Any:
    """What eager gives, where it gives the same with twice the precision, and with other rounding; else None.

    A result that rounding decides (equal values in a sort, the sign of a value less its mean, a number near the edge of
    a floor) judges nothing, nor does one that rounding moves by a fifth of the tolerance: another order of a sum in
    each of several operators adds up to more.
    """
    try:
        with torch.no_grad():
            with RoundedOtherwise():  # several times: of equal values, the first may be chosen again by chance
                moved = [model(*(x.clone() for x in call)) for _ in range(5)]
            expected = model(*(x.clone() for x in call))
            precise = model.double()(*(x.double() for x in call))
    except Exception:
        return None
    finally:
        model.float()
    exact = [leaf.to(one.dtype) if isinstance(leaf, torch.Tensor) else leaf
             for leaf, one in zip(pytree.tree_leaves(precise), pytree.tree_leaves(expected), strict=True)]  # fmt: skip
    others = (pytree.tree_unflatten(exact, pytree.tree_structure(expected)), *moved)
    return None if any(difference(expected, other, share=0.2) for other in others) else expected


def difference(expected: Any, got: Any, *, share: float = 1.0) -> str:
    """How two results differ by more than a share of the tolerance, or "" where they do not."""
    ones, others = pytree.tree_leaves(expected), pytree.tree_leaves(got)
    if len(ones) != len(others):
        return f"{len(others)} results for {len(ones)}"
    for one, other in zip(ones, others, strict=True):
        if not isinstance(one, torch.Tensor):
            if one != other:
                return f"{other} for {one}"
            continue
        if one.shape != other.shape or one.dtype != other.dtype:
            return f"{tuple(other.shape)} {other.dtype} for {tuple(one.shape)} {one.dtype}"
        right, found = one.double(), other.double()
        scale = max(1.0, float(right.nan_to_num(0, 0, 0).abs().max())) if one.numel() else 1.0
        if not torch.allclose(right, found, rtol=1e-3 * share, atol=5e-4 * share * scale, equal_nan=True):
            return f"values differ by {float((right - found).abs().max()):.3g} of {scale:.3g}"
    return ""


def first_line(error: BaseException) -> str:
    """What it says first."""
    return (str(error).splitlines() or [""])[0][:300]


def shrunk(program: Program, is_bad: Callable[[Program], bool]) -> Program:
    """The program with as few steps and as plain a result as still fail."""
    for candidate in smaller(program):
        if is_bad(candidate):
            return shrunk(candidate, is_bad)
    return program


def smaller(program: Program) -> Iterator[Program]:
    """Programs with a step or a side of a branch less."""
    from dataclasses import replace

    for number, step in enumerate(program.steps):
        yield program.without(number)
        if step.startswith("if "):
            lines = step.split("\n")
            for side in (lines[1], lines[3]):
                yield replace(program, steps=(*program.steps[:number], side.strip(), *program.steps[number + 1 :]))
    if program.result != "x":
        yield replace(program, result="x")


def main(one: Callable[[int, str, pb.KeptStages], dict[str, Any]]) -> int:
    """Run the seeds that have no result yet; returns 1 where something is wrong.

    Args:
        one: makes the row of a seed on a target.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--programs", type=int, default=50)
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    rows = read(options.results)
    done = {(row["seed"], row["target"]) for row in rows}
    for seed in range(options.first, options.first + options.programs):
        kept, refusal = pb.KeptStages(), None
        for target in options.targets.split(","):
            if (seed, target) in done:
                continue
            # what no target can capture is captured once
            found = {**refusal, "target": target} if refusal else one(seed, target, kept)
            refusal = found if found["is_of_capture"] else None
            rows.append(found)
            if options.results is not None:
                options.results.parent.mkdir(parents=True, exist_ok=True)
                with options.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(found) + "\n")
    return summed(rows)


def one(seed: int, target: str, reuse: pb.KeptStages | None = None) -> dict[str, Any]:
    """The row of one program on one target; what failed is told as the smallest program that still does."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        program = drawn(seed)
        verdict = judged(program, target, Path(name), reuse)
        source = ""
        if verdict.kind in (WRONG, RAW):
            program = shrunk(program, lambda one: judged(one, target, Path(name)).kind == verdict.kind)
            verdict, source = judged(program, target, Path(name)), program.source
            print(f"seed {seed} {target}: {verdict.kind} {verdict.text}\n{source}", flush=True)
    return row(seed, target, verdict, source, start)


def row(seed: int, target: str, verdict: Verdict, source: str, start: float) -> dict[str, Any]:
    """What is kept of a program on a target that began at ``start``."""
    return {"seed": seed, "target": target, "kind": verdict.kind, "text": verdict.text, "calls": verdict.calls,
            "source": source, "is_of_capture": verdict.is_of_capture,
            "revision": revision(), "seconds": round(time.perf_counter() - start, 2)}  # fmt: skip


@functools.cache
def revision() -> str:
    """The commit that is tried."""
    found = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return found.stdout.strip()


def read(path: Path | None) -> list[dict[str, Any]]:
    """The rows that are kept."""
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


BRANCH = "the samples are on both sides of a branch"


def summed(rows: list[dict[str, Any]], reasons: int = 60) -> int:
    """Print how many programs ended how on each target, and why they were refused; 1 where one is wrong.

    Args:
        rows: the results.
        reasons: how many of the commonest reasons are printed.
    """
    print(
        f"{'target':12} programs  right  refused, of these at a branch  wrong  raw  calls right, refused  seconds each"
    )
    for target in TARGETS:
        mine = [row for row in rows if row["target"] == target and row["kind"] != NOTHING]
        if not mine:
            continue
        kinds = Counter(row["kind"] for row in mine)
        branches = sum(row["kind"] == REFUSED and cause(row["text"]) == BRANCH for row in mine)
        right, refusals = (sum(row["calls"][i] for row in mine) for i in (0, 1))
        share = f"{kinds[REFUSED]} ({kinds[REFUSED] / len(mine):.1%}), {branches} ({branches / len(mine):.1%})"
        print(
            f"{target:12} {len(mine):8} {kinds[RIGHT]:6}  {share:29} {kinds[WRONG]:6} {kinds[RAW]:4}  "
            f"{f'{right}, {refusals}':20}  {sum(row.get('seconds', 0) for row in mine) / len(mine):.1f}"
        )
    causes = Counter((row["target"], cause(row["text"])) for row in rows if row["kind"] == REFUSED)
    for (target, reason), count in causes.most_common(reasons):
        print(f"{count:4} {target}: {reason}")
    return int(any(row["kind"] in (WRONG, RAW) for row in rows))


if __name__ == "__main__":
    sys.exit(main(one))
