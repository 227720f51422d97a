"""MobileNetV2 and EfficientNet within 20 dB of float: what stays in float, and how fast it is beside all in 8 bits.

For each network, once with random weights and once trained on digits, and each target:

- ``guard``: the layers that ``compile_model`` keeps in float for its floor of 20 dB. With ``--revision`` an earlier
  revision of prepbench does the same, in a process of its own.
- ``search``: the fastest within 20 dB that ``pb.search`` finds, the layers that it keeps in float, what it predicted
  before it measured, and the rank correlation of predicted and simulated noise over mixtures drawn at random, beside
  that of the noise of the same mixtures on two halves of the samples: nobody can predict better than that.
- ``time``: of what was found over that of the runtime's own quantizer, which quantizes everything, in interleaved
  rounds, each in a process of its own; and the SQNR of that peer.

``python -m tests.benchmarks.bench_phone_networks [--networks mobilenetv2] [--weights trained] [--targets openvino]``
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

import prepbench as pb
from tests.benchmarks.bench_compile import sqnr
from tests.benchmarks.compile_models import Case
from tests.benchmarks.compile_peers import CANDIDATES
from tests.benchmarks.phone_networks import NETWORKS, WEIGHTS, accuracy, case
from tests.benchmarks.rounds import interleave, serve

ROOT = Path(__file__).parents[2]
TARGETS = {
    "onnxruntime": (pb.OnnxRuntimeDeployment, "ORT quantize_static"),
    "openvino": (pb.OpenVinoDeployment, "OpenVINO NNCF"),
    "inductor": (pb.InductorDeployment, "Inductor PT2E X86"),
}
FLOOR = 20.0
DRAWN = 24  # mixtures, for the rank correlation
LATENCY_LIMIT, ERROR_LIMIT, LEAST_RANK = 1.05, 0.1, 0.9


@dataclass(frozen=True)
class Row:
    """What was measured of one network on one target; None where it could not be."""

    times_peer: float | None
    error: float | None
    rank: float
    rank_of_halves: float


def kept_by_guard(one: Case, target: str) -> str:
    """How many layers ``compile_model`` leaves in float, of how many, and the SQNR that it simulated."""
    report = pb.compile_model(
        one.model,
        tracing_inputs=one.tracing,
        calibration_inputs=one.calibration,
        quantization_settings=pb.QuantizationSettings(),
        deployment_settings=TARGETS[target][0](),
    ).report
    kept = sum(not row.quantized for row in report.layers)
    return f"{kept} of {len(report.layers)} in float, {report.model_sqnr or 0:.1f} dB"


def measure(network: str, weights: str, target: str, folder: Path, revision: Path | None) -> Row:
    """Print a block of lines."""
    one, started = case(network, weights, folder), time.perf_counter()
    title = f"{network}, {weights} weights, {target}"
    if weights == "trained":
        title += f" (accuracy {accuracy(one.model):.2f})"
    print(f"{title}: guard keeps {kept_by_guard(one, target)}", flush=True)
    if revision is not None:
        print(f"  at the earlier revision {_elsewhere(revision, network, weights, target, folder)}", flush=True)
    deployment, kept = TARGETS[target][0](), pb.KeptStages()
    result = pb.search(
        one.model,
        one.calibration,
        budget=pb.Budget(min_metric=FLOOR),
        targets=[deployment],
        candidates={"int8": pb.QuantizationSettings()},
        data=one.evaluation,
        tracing_inputs=one.tracing,
        reuse=kept,
    )
    best = result.best
    seconds = time.perf_counter() - started
    error = abs(best.predicted_ms / best.ms - 1) if best.predicted_ms and best.ms else None
    rank, of_halves = _ranks(result, one, deployment, kept)
    print(
        f"  search keeps {len(best.float_layers)} of {len(best.layers)} in float, {best.metric or 0:.1f} dB, "
        f"{best.ms:.3f} ms (float {result['float'].ms:.3f}, all int8 {result['int8'].ms:.3f} at "
        f"{result['int8'].metric or 0:.1f} dB), predicted within {'-' if error is None else f'{error:.1%}'}, "
        f"rank correlation of noise {rank:.3f}, of two halves {of_halves:.3f}; "
        f"{result.evaluations} evaluations, {result.compiled} compiled, {seconds:.0f} s",
        flush=True,
    )
    compiled = pb.compile_model(
        one.model, tracing_inputs=one.tracing, calibration_inputs=one.calibration, reuse=kept, **best.settings
    )
    saved = Path(tempfile.mkdtemp(dir=folder)) / "found"
    compiled.save(saved)
    return Row(_beside_peer(saved, network, weights, target, folder), error, rank, of_halves)


def _ranks(
    result: pb.SearchResult, one: Case, deployment: pb.DeploymentSettings, kept: pb.KeptStages
) -> tuple[float, float]:
    """Rank correlations over mixtures of any share: of the noise that the search predicts and that of a simulation, and
    of the simulations of two halves of the samples.
    """
    # an earlier revision, which runs the guard alone, may not have these
    from prepbench.compile.simulation import Simulation
    from tests.benchmarks.bench_search import rank_correlation

    simulation = Simulation.of(
        one.model, one.calibration, tracing_inputs=one.tracing, deployment_settings=deployment, reuse=kept
    )
    int8 = pb.QuantizationSettings()
    possible = [fqn for fqn in simulation.layers if not simulation.refusal(fqn, int8)]
    draw, predicted, simulated = random.Random(0), [], []
    with torch.no_grad():
        wanted = [one.model(*sample) for sample in one.calibration]
        for at in range(DRAWN):
            taken = [fqn for fqn in possible if draw.random() < (at + 1) / DRAWN]
            noise = result.predict(dict.fromkeys(taken, "int8")).noise
            assert noise is not None, taken
            function = simulation.function(dict.fromkeys(taken, int8))
            errors = [
                float((function(*sample) - output).square().sum())
                for sample, output in zip(one.calibration, wanted, strict=True)
            ]
            predicted.append(noise)
            simulated.append((sum(errors), sum(errors[::2]), sum(errors[1::2])))
    whole, even, odd = (list(each) for each in zip(*simulated, strict=True))
    return rank_correlation(predicted, whole), rank_correlation(even, odd)


def _elsewhere(tree: Path, *arguments: object) -> str:
    """What the guard of another tree keeps."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.bench_phone_networks", "--guard"]
    environment = {**os.environ, "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{ROOT}"}
    done = subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True, env=environment)
    return (done.stdout.strip() or done.stderr.strip() or "nothing").splitlines()[-1]


def _beside_peer(saved: Path, network: str, weights: str, target: str, folder: Path) -> float | None:
    peer, module = TARGETS[target][1], ("-m", "tests.benchmarks.bench_phone_networks")
    names = (network, weights, target, str(folder))
    rounds = interleave({"found": (*module, "--found", str(saved), *names), "peer": (*module, "--peer", *names)})
    note = folder / f"{network}-{weights}-{target}.txt"
    if not rounds["found"] or not rounds["peer"]:
        print(f"  {peer}: {note.read_text() if note.exists() else 'not timed'}", flush=True)
        return None
    ratio = statistics.median(a / b for a, b in zip(rounds["found"], rounds["peer"], strict=True))
    own, other = (statistics.median(rounds[name]) for name in ("found", "peer"))
    print(f"  {own:.3f} ms, {ratio:.2f}x the {other:.3f} ms of {peer} ({note.read_text()})", flush=True)
    return ratio


def serve_found(saved: str, network: str, weights: str, target: str, folder: str) -> None:
    """The process that times what was found."""
    compiled = pb.load_compiled(saved, allow_code=target == "inductor")
    sample = case(network, weights, Path(folder)).evaluation[0]
    with torch.no_grad():
        serve(lambda: compiled(*sample))


def serve_peer(network: str, weights: str, target: str, folder: str) -> None:
    """The process that times the runtime's own quantizer, and notes its SQNR or why it failed."""
    one, note = case(network, weights, Path(folder)), Path(folder) / f"{network}-{weights}-{target}.txt"
    try:
        with torch.no_grad():
            call = CANDIDATES[TARGETS[target][1]].build(one)
            outputs = torch.cat([call(*sample).clone() for sample in one.evaluation])
            note.write_text(f"{sqnr(torch.cat([one.model(*sample) for sample in one.evaluation]), outputs):.1f} dB")
            serve(lambda: call(*one.evaluation[0]))
    except Exception as error:
        note.write_text(f"{type(error).__name__}: {str(error).strip()[:100]}")


def main() -> int:
    """Returns 1 where a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--weights", default=",".join(WEIGHTS))
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--revision", help="of which the guard's choice is printed as well")
    parser.add_argument(
        "--folder", type=Path, help="with trained weights, or for them; a temporary one if none is given"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        tree = Path(temporary) / "tree" if given.revision else None
        if tree is not None:
            subprocess.run(
                ["git", "worktree", "add", "-q", "--detach", str(tree), given.revision], cwd=ROOT, check=True
            )
        try:
            rows = [
                measure(network, weights, target, folder, tree)
                for network in given.networks.split(",")
                for weights in given.weights.split(",")
                for target in given.targets.split(",")
            ]
        finally:
            if tree is not None:
                subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)
    return _verdict(rows)


def _verdict(rows: list[Row]) -> int:
    """Print what the limits judge, ``-`` where nothing was measured; returns 1 where one is missed."""
    errors = [row.error for row in rows if row.error is not None]
    ratios = [row.times_peer for row in rows if row.times_peer is not None]
    error = f"{statistics.median(errors):.1%}" if errors else "-"
    slowest = f"{max(ratios):.2f}x" if ratios else "-"
    worst = min(rows, key=lambda row: row.rank)
    print(
        f"latency of what was found predicted within {error} (median of {len(errors)} that were predicted, limit "
        f"{ERROR_LIMIT:.0%}); at most {slowest} the peer ({len(ratios)} of {len(rows)} timed, limit {LATENCY_LIMIT}); "
        f"least rank correlation {worst.rank:.3f} (limit {LEAST_RANK}), where that of two halves is "
        f"{worst.rank_of_halves:.3f}"
    )
    missed = [statistics.median(errors) > ERROR_LIMIT] if errors else []
    return int(any([*missed, not ratios or max(ratios) > LATENCY_LIMIT, worst.rank < LEAST_RANK]))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--guard"]:
        print(kept_by_guard(case(sys.argv[2], sys.argv[3], Path(sys.argv[5])), sys.argv[4]))
    elif sys.argv[1:2] == ["--found"]:
        serve_found(*sys.argv[2:])
    elif sys.argv[1:2] == ["--peer"]:
        serve_peer(*sys.argv[2:])
    else:
        raise SystemExit(main())
