"""How well layers are ranked by what they cost the model, and how many go to float for it.

A row is a network with random weights and batch norms that fit them (``compile_models``), on one target. ``rank`` is
the rank correlation (Spearman) of the estimate by backward passes and of the measurement of one layer at a time, in
int8; ``own`` that of each layer's own noise, which knows nothing of the layers behind. ``error`` is the median distance
of estimate and measurement in dB. ``modelopt`` is the rank correlation of the scores that ModelOpt's ``auto_quantize``
gives the same layers in int8, from gradients of the cross-entropy of the model's own predictions; its layers are those
that it finds, so only layers that both have are ranked. The other figures are of ``compile_model`` with its floor of 20
dB: how many layers stay in float, their share of all multiplications, and the seconds of the stage that measures and
decides.

``python -m tests.benchmarks.bench_sensitivity [--models mobilenetv2,bert] [--targets onnxruntime]``
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import math
import statistics
import sys
from collections.abc import Mapping, Sequence

import torch

import prepbench as pb
from tests.benchmarks.compile_models import Case, build

TARGETS = {
    "onnxruntime": pb.OnnxRuntimeDeployment,
    "openvino": pb.OpenVinoDeployment,
    "inductor": pb.InductorDeployment,
}
MODELS = ("mobilenetv2", "efficientnet", "bert")
LEAST_RANK = 0.9


def rank_correlation(one: list[float], other: list[float]) -> float:
    """Spearman's, 1 where both rank alike."""
    ranks = [torch.tensor(values, dtype=torch.float64).argsort().argsort().double() for values in (one, other)]
    return float(torch.corrcoef(torch.stack(ranks))[0, 1])


def modelopt_scores(case: Case) -> dict[str, float]:
    """ModelOpt's score of each layer in int8; empty where it is not installed."""
    try:
        import modelopt.torch.quantization as mtq
    except ImportError:
        return {}
    with contextlib.redirect_stdout(sys.stderr):  # it tells its progress
        _, found = mtq.auto_quantize(
            copy.deepcopy(case.model),
            constraints={"effective_bits": 8.0},
            quantization_formats=[mtq.INT8_DEFAULT_CFG],
            data_loader=case.calibration,
            forward_step=lambda model, inputs: model(*inputs),
            loss_func=lambda logits, inputs: torch.nn.functional.cross_entropy(logits, logits.detach().argmax(-1)),
            num_calib_steps=len(case.calibration),
            num_score_steps=len(case.calibration),
        )
    scores: dict[str, float] = {}
    for each in found["candidate_stats"].values():
        for fqn in each["module_names"]:
            scores[fqn] = max(each["scores"])
    return scores


def measure(name: str, targets: Sequence[str]) -> list[float]:
    """Print a row for each target; returns the rank correlations."""
    case = build(name)
    by_peer = modelopt_scores(case)
    return [_row(name, case, target, by_peer) for target in targets]


def _row(name: str, case: Case, target: str, by_peer: Mapping[str, float]) -> float:
    deployment = TARGETS[target]()
    found = pb.sensitivity(
        case.model, case.calibration, candidates={"int8": pb.QuantizationSettings()}, exact=True,
        tracing_inputs=case.tracing, deployment_settings=deployment,
    )  # fmt: skip
    rows = [row for row in found.rows if not row.refusal and row.estimated is not None and row.exact is not None]
    estimated, exact, own = ([getattr(row, each) for row in rows] for each in ("estimated", "exact", "own_sqnr"))
    both = [row for row in rows if row.fqn in by_peer and row.exact is not None]
    # a score rises with the noise, and an SQNR falls
    peer = (
        rank_correlation([-by_peer[row.fqn] for row in both], [row.exact or 0.0 for row in both]) if both else math.nan
    )
    compiled = pb.compile_model(
        case.model, tracing_inputs=case.tracing, calibration_inputs=case.calibration,
        quantization_settings=pb.QuantizationSettings(), deployment_settings=deployment,
    )  # fmt: skip
    kept = {layer.fqn for layer in compiled.report.layers if not layer.quantized}
    work = {row.fqn: row.multiplications or 0 for row in found.rows}
    rank = rank_correlation(estimated, exact)
    error = statistics.median(abs(one - other) for one, other in zip(estimated, exact, strict=True))
    print(
        f"{name:14} {target:12} rank {rank:6.3f}  own {rank_correlation(own, exact):6.3f}  error {error:5.2f}  "
        f"modelopt {peer:6.3f}  "
        f"float {len(kept & work.keys()):3} of {len(work):3}  "
        f"multiplications {sum(work[fqn] for fqn in kept & work.keys()) / sum(work.values()):6.1%}  "
        f"measure {compiled.report.seconds['measure']:6.1f} s  "
        f"{compiled.report.model_sqnr or 0:5.1f} dB",
        flush=True,
    )
    return rank


def main() -> int:
    """Returns 1 where a rank correlation is below the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--targets", default=",".join(TARGETS))
    given = parser.parse_args()
    targets = given.targets.split(",")
    ranks = [rank for name in given.models.split(",") for rank in measure(name, targets)]
    return int(min(ranks) < LEAST_RANK)


if __name__ == "__main__":
    sys.exit(main())
