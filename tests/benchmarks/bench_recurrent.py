"""How fast recurrent layers over sequences of dynamic length are, beside ONNX Runtime on torch's own conversion.

A tagger of each kind, in both directions, over 64 steps; the traced samples have others. The peer is torch's exporter
that follows calls (``dynamo=False``), which writes such layers as one operator of ONNX, too. One process per
candidate, turns taken in rounds. A call takes few milliseconds and waits for threads on all cores, so that other
programs double its time in one round and leave it alone in the next: the times and ratios are those of the fastest
turns, and the median over the rounds stands behind them.

``python -m tests.benchmarks.bench_recurrent [--kinds lstm gru]`` runs a part of it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from tests.benchmarks.rounds import interleave, serve

KINDS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
CANDIDATES = ("eager", "torch.onnx on ORT", "prepbench ORT", "prepbench ORT int8", "prepbench OpenVINO")
LENGTH, LIMIT = 64, 1.1


class Tagger(nn.Module):
    """A label for each token."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.table = nn.Embedding(1000, 128)
        self.layers = KINDS[kind](128, 256, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(512, 16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.table(ids))[0])


def _ids(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, 1000, (batch, length), generator=torch.Generator().manual_seed(length))


def _peer(model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    import onnxruntime

    path = str(Path(tempfile.mkdtemp()) / "model.onnx")
    torch.onnx.export(
        model,
        (_ids(2, 11),),
        path,
        dynamo=False,
        input_names=["ids"],
        output_names=["labels"],
        dynamic_axes={"ids": {0: "batch", 1: "length"}, "labels": {0: "batch", 1: "length"}},
    )
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda ids: torch.from_numpy(session.run(None, {"ids": ids.numpy()})[0])


def _ours(model: nn.Module, deployment: str, *, quantized: bool = False) -> Callable[[torch.Tensor], torch.Tensor]:
    import prepbench as pb

    compiled = pb.compile_model(
        model,
        tracing_inputs=[_ids(2, 7), _ids(3, 11)],
        calibration_inputs=[_ids(2, 64), _ids(3, 32)] if quantized else None,
        deployment_settings=getattr(pb, deployment)(),
        quantization_settings=pb.QuantizationSettings() if quantized else None,
    )
    assert not compiled.report.leaves
    assert not compiled.report.fallbacks
    return compiled


def work(kind: str, candidate: str) -> None:
    """Be the worker of a candidate."""
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    model, ids = Tagger(kind).eval(), _ids(1, LENGTH)
    build = {
        "eager": lambda: model,
        "torch.onnx on ORT": lambda: _peer(model),
        "prepbench ORT": lambda: _ours(model, "OnnxRuntimeDeployment"),
        "prepbench ORT int8": lambda: _ours(model, "OnnxRuntimeDeployment", quantized=True),
        "prepbench OpenVINO": lambda: _ours(model, "OpenVinoDeployment"),
    }[candidate]
    call = build()
    precision = 5e-2 if candidate.endswith("int8") else 1e-4
    torch.testing.assert_close(call(ids), model(ids), rtol=1e-3, atol=precision)
    serve(lambda: call(ids))


def main() -> None:
    """Print a row for each kind, with the ratio to the peer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--one", nargs=2, help="kind and candidate of this worker")
    given = parser.parse_args()
    if given.one:
        work(*given.one)
        return
    print(f"{'ms for 64 steps':<18}" + "".join(f"{name:>24}" for name in CANDIDATES))
    for kind in given.kinds:
        module = "tests.benchmarks.bench_recurrent"
        rounds = interleave({name: ("-m", module, "--one", kind, name) for name in CANDIDATES})
        cells, peer = [], rounds["torch.onnx on ORT"]
        for name in CANDIDATES:
            text = f"{min(rounds[name]):.2f}" if rounds[name] else "failed"
            if rounds[name] and peer and name.startswith("prepbench"):
                ratio = min(rounds[name]) / min(peer)
                middle = statistics.median(one / other for one, other in zip(rounds[name], peer, strict=True))
                text += f" ({ratio:.2f}x, {middle:.2f}x)"
                if name == "prepbench ORT" and ratio > LIMIT:
                    print(f"{kind}: {ratio:.2f}x is above {LIMIT}x", file=sys.stderr)
            cells.append(text)
        print(f"{kind:<18}" + "".join(f"{cell:>24}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
