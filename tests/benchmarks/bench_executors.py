"""Scores of a network, one layer quantized at a time, on one Dask worker and on two, and one killed in the middle.

Each worker is a process with one thread, which has torch and torchao loaded. Loading the program, learning ranges and
rounding weights are part of the time, because each worker does them. Bytes are those of the files, which each worker
gets once, and of the tasks. The last line says what the machine gives at most: how much more two processes that share
nothing do in the same time than one, each the network in float.

``python -m tests.benchmarks.bench_executors [--layers 5] [--size 224]``
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch

import prepbench as pb
from prepbench.compile.simulation import Simulation
from prepbench.measure.process import OtherPrograms
from prepbench.search.executors import run_tasks
from prepbench.search.parallel_scores import save_simulation, score_payload, score_task
from prepbench.search.tasks import Folder, name_of

LOADED = ("prepbench.search.parallel_scores", "prepbench.quantize.observers")
CANDIDATES = {
    "int8": pb.QuantizationSettings(),
    "4 bits": pb.QuantizationSettings(weights_num_bits=4, prefer_weights_only_quantization=True),
}
FLOAT_CALLS = 12


def network() -> torch.nn.Module:
    """ResNet-18 with random weights: 21 convolutions and linear layers."""
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    sizes = {"hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2], "layer_type": "basic", "num_labels": 10}
    model: torch.nn.Module = ResNetForImageClassification(ResNetConfig(**sizes)).eval()
    return model


def measured(workers: int, payloads: list[dict[str, Any]], folder: Path, *, kills: bool = False) -> tuple[float, Any]:
    """Seconds for all tasks on so many workers, once these have their packages loaded, and the scores."""
    from distributed import Client, LocalCluster

    with LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0") as cluster:
        with Client(cluster) as client:
            for module in LOADED:
                client.run(__import__, module)
            if kills:
                pid = next(iter(client.run(os.getpid).values()))
                threading.Timer(4.0, os.kill, (pid, signal.SIGKILL)).start()
            began = time.perf_counter()
            found = run_tasks(client, name_of(score_task), payloads, {"simulation": folder})
            return time.perf_counter() - began, found


def float_seconds(size: int) -> float:
    """Of some calls of the network in float, on one thread."""
    torch.set_num_threads(1)
    model, x = network(), torch.randn(8, 3, size, size)
    with torch.no_grad():
        model(x)
        began = time.perf_counter()
        for _ in range(FLOAT_CALLS):
            model(x)
    return time.perf_counter() - began


def gain_of_two(size: int) -> float:
    """How much more two processes do than one, which share nothing."""

    def seconds(processes: int) -> float:
        command = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.bench_executors", "--float"]
        started = [
            subprocess.Popen([*command, "--size", str(size)], stdout=subprocess.PIPE, text=True)
            for _ in range(processes)
        ]
        return max(float(each.communicate()[0].split()[-1]) for each in started)

    return 2 * seconds(1) / seconds(2)


def main() -> None:
    """Print a line for each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=100, help="how many of them")
    parser.add_argument("--size", type=int, default=224, help="of the images")
    parser.add_argument("--float", action="store_true", help="print the seconds of the network in float, and end")
    chosen = parser.parse_args()
    if chosen.float:
        print(float_seconds(chosen.size))
        return
    simulation = Simulation.of(network(), [torch.randn(8, 3, chosen.size, chosen.size) for _ in range(2)])
    pairs = [(fqn, name) for fqn in simulation.layers[: chosen.layers] for name in CANDIDATES]
    payloads = [score_payload({fqn: CANDIDATES[name]}) for fqn, name in pairs]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "simulation"
        save_simulation(simulation, folder, CANDIDATES.values())
        files, tasks = Folder.of(folder).size_bytes, sum(len(json.dumps(payload)) for payload in payloads)
        first, seconds = None, 0.0
        print(f"ResNet-18: {len(pairs)} scores", flush=True)
        for words, workers, kills in (("1 worker", 1, False), ("2 workers", 2, False), ("2, one killed", 2, True)):
            with OtherPrograms() as others:
                took, found = measured(workers, payloads, folder, kills=kills)
            first, seconds = (found, took) if first is None else (first, seconds)
            worst = max(abs(one[0] - other[0]) for one, other in zip(found, first, strict=True))
            sent = f"{workers * files / 1e6:.1f} MB files, {tasks / 1e3:.1f} kB tasks"
            busy = f"others kept {others.cores:.1f} of {os.cpu_count()} cores busy"
            print(
                f"{words}: {took:.1f} s, {seconds / took:.2f}x, differs by {worst:.1e} dB, {sent}, {busy}", flush=True
            )
    print(f"two processes that share nothing do {gain_of_two(chosen.size):.2f}x the work of one", flush=True)


if __name__ == "__main__":
    main()
