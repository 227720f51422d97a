"""How often a search computes the user's metric, and how long it takes, beside NNCF's accuracy control.

NNCF's ``quantize_with_accuracy_control`` runs where it is installed: for a drop of accuracy, how often is the metric
computed, and how long does it take? ``python -m tests.benchmarks.bench_accuracy_control [--network mobilenetv2]``: two
small networks or one for phones, trained on digits, with channels of very different ranges, as int8 ruins them. NNCF
aligns channels by itself, as our default candidates do. That heals all between which there are ReLUs, so that nothing
is left to control; past the SiLUs of the second small network nobody can scale channels.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import prepbench as pb
from prepbench.compile.simulation import Simulation
from tests.benchmarks import phone_networks
from tests.benchmarks.all_mixtures import INT8
from tests.benchmarks.bench_search import rank_correlation

Trained = tuple[nn.Module, list[tuple[torch.Tensor, torch.Tensor]]]
"""A network, and batches with classes that it has not seen."""
EVALUATIONS, TIME = 1 / 10, 1 / 3  # of NNCF's, at most
MIXTURES = 48  # drawn, for the rank correlation


class Counted:
    """Accuracy over some batches, and how many of them were looked at."""

    def __init__(self) -> None:
        self.batches = 0

    def __call__(self, compiled_model: Any, batches: Any) -> float:
        right = total = 0
        for x, classes in batches:
            output = torch.as_tensor(next(iter(compiled_model(x.numpy()).values())))
            right += int((output.argmax(-1) == classes).sum())
            total += len(classes)
            self.batches += 1
        return right / total


class Channels(nn.Module):
    """Multiplies each channel by a number that is not learned."""

    def __init__(self, factors: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("factors", factors.reshape(-1, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factors


def trained(activation: type[nn.Module]) -> Trained:
    """A network of many layers, trained on digits, and data that it has not seen.

    What enters every second activation has channels of very different ranges, as networks for phones have them.
    """
    from sklearn.datasets import load_digits

    torch.manual_seed(0)
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    x = nn.functional.interpolate(x, scale_factor=2)
    y = torch.tensor(digits.target)
    factors = torch.logspace(-2, 0, 64)
    layers: list[nn.Module] = [nn.Conv2d(1, 16, 3, padding=1), activation()]
    for _ in range(6):
        layers += [nn.Conv2d(16, 64, 1), activation(), nn.Conv2d(64, 64, 3, padding=1, groups=64)]
        layers += [Channels(factors), activation(), Channels(1 / factors), nn.Conv2d(64, 16, 1), nn.BatchNorm2d(16)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(12):
        for batch in torch.randperm(1200).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
    order = torch.arange(1200, len(y)).split(32)
    return without_factors(model).eval(), [(x[part], y[part]) for part in order if len(part) == 32]


def without_factors(model: nn.Sequential) -> nn.Sequential:
    """The same function with the factors of channels in the weights of the convolutions before and behind them."""
    layers = list(model)
    with torch.no_grad():
        for at, layer in enumerate(layers):
            if isinstance(layer, Channels) and isinstance(made := layers[at - 1], nn.Conv2d):
                made.weight *= layer.factors.reshape(-1, 1, 1, 1)
                made.bias *= layer.factors.flatten()
            elif isinstance(layer, Channels):
                layers[at + 1].weight *= layer.factors.reshape(1, -1, 1, 1)
    return nn.Sequential(*(layer for layer in layers if not isinstance(layer, Channels)))


def phone_network(name: str, folder: Path) -> Trained:
    """A network for phones trained on digits, and images that it has not seen, each at four places.

    Channels between its blocks have very different ranges, which integers with one scale cannot hold.
    """
    data = [
        (torch.roll(x, shift, (2, 3)), classes)
        for shift in ((0, 0), (0, 4), (4, 0), (-4, -4))
        for x, classes in phone_networks.unseen()
    ]
    model = phone_networks.case(name, "trained", folder).model
    uneven(model.get_submodule("model"))
    return model, data


def uneven(model: Any) -> None:
    """Multiply channels between the blocks of MobileNetV2 by 0.01 to 1, and divide where they are read."""
    body = model.mobilenet_v2
    with torch.no_grad():
        norm = body.conv_stem.reduce_1x1.normalization
        factors = torch.logspace(-2, 0, len(norm.weight))
        for block in body.layer:
            _scale(norm, factors)
            block.expand_1x1.convolution.weight /= factors.reshape(1, -1, 1, 1)
            norm = block.reduce_1x1.normalization
            if not block.use_residual:  # else its results are added to those of the block before
                factors = torch.logspace(-2, 0, len(norm.weight))
        _scale(norm, factors)
        body.conv_1x1.convolution.weight /= factors.reshape(1, -1, 1, 1)


def _scale(norm: nn.BatchNorm2d, factors: torch.Tensor) -> None:
    norm.weight *= factors
    norm.bias *= factors


def accuracy_control(drop: float, model: nn.Module, data: list[tuple[torch.Tensor, torch.Tensor]]) -> bool:
    """Evaluations and seconds for a drop of accuracy, ours and NNCF's; whether the limits are met."""
    start, before = time.perf_counter(), _cpu_seconds()
    result = pb.search(
        model,
        [x for x, _ in data[:6]],
        budget=pb.Budget(max_drop=drop),
        targets=[pb.OpenVinoDeployment()],
        data=data,
        metric=pb.metrics.accuracy,
    )
    seconds, cpu = time.perf_counter() - start, _cpu_seconds() - before
    best = result.best
    print(
        f"pb.search: drop {best.drop or 0:.4f}, {len(best.float_layers)} of {len(best.layers)} layers in float, "
        f"{best.ms:.3f} ms (int8 {result['int8'].ms:.3f}, float {result['float'].ms:.3f}), "
        f"{result.evaluations} evaluations, {result.compiled} compiled, {seconds:.0f} s, {cpu:.0f} s of the processor; "
        f"{result.why}",
        flush=True,
    )
    _drops(result, model, data)
    found = pb.compile_model(model, calibration_inputs=[x for x, _ in data[:6]], **best.settings)
    return _beside_nncf(model, data, drop, result.evaluations, (seconds, cpu), found)


def _drops(result: pb.SearchResult, model: nn.Module, data: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """How well the search predicts drops of mixtures that it has not measured, by their order; simulated ones."""
    draw = random.Random(0)
    simulation = Simulation.of(model, [x for x, _ in data[:6]], deployment_settings=pb.OpenVinoDeployment())
    predicted, drops = [], []
    for at in range(MIXTURES):
        share = at / (MIXTURES - 1)
        taken = [fqn for fqn in simulation.layers if draw.random() < share]
        drop = result.predict(dict.fromkeys(taken, INT8)).predicted_drop
        if drop is None:  # it was measured
            continue
        function = simulation.function(dict.fromkeys(taken, pb.QuantizationSettings()))
        wrong = [[0, 0], [0, 0]]
        with torch.no_grad():
            for batch, (x, classes) in enumerate(data):
                wrong[batch % 2][0] += int((function(x).argmax(-1) != classes).sum())
                wrong[batch % 2][1] += int((model(x).argmax(-1) != classes).sum())
        predicted.append(drop)
        drops.append([more - less for more, less in wrong])
    whole, samples = [sum(each) for each in drops], sum(len(classes) for _, classes in data)
    halves = rank_correlation(*zip(*drops, strict=True))
    print(
        f"{len(drops)} mixtures with drops of {min(whole)} to {max(whole)} of {samples} samples: rank "
        f"correlation of predicted and simulated drop {rank_correlation(predicted, whole):.2f}; that of the drops on "
        f"two halves of the data {halves:.2f}",
        flush=True,
    )


def _cpu_seconds() -> float:
    """Of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _beside_nncf(
    model: nn.Module, data: list[Any], drop: float, evaluations: int, ours: tuple[float, float], found: Any
) -> bool:
    try:
        import nncf
        import openvino
    except ImportError as error:
        print(f"NNCF's accuracy control: {error}")
        return True
    converted = openvino.convert_model(model, example_input=data[0][0])
    counted, start, before = Counted(), time.perf_counter(), _cpu_seconds()
    nncf.set_log_level(logging.ERROR)
    with contextlib.redirect_stdout(io.StringIO()):  # its bars
        quantized = nncf.quantize_with_accuracy_control(
            converted,
            nncf.Dataset([x for x, _ in data[:6]], lambda x: x.numpy()),
            nncf.Dataset(data, lambda pair: pair),
            validation_fn=counted,
            max_drop=drop,
        )
    theirs, cpu = time.perf_counter() - start, _cpu_seconds() - before
    passes = counted.batches / len(data)
    controlled = openvino.compile_model(quantized, "CPU", {"PERFORMANCE_HINT": "LATENCY"})
    lost = Counted()(openvino.compile_model(converted, "CPU"), data) - Counted()(controlled, data)
    x = data[0][0]
    ratio = _beside(lambda: found(x), lambda: controlled(x.numpy()))
    print(
        f"NNCF's accuracy control: {passes:.1f} evaluations, {theirs:.0f} s, {cpu:.0f} s of the processor; ours takes "
        f"{evaluations / passes:.2f} of its evaluations (limit {EVALUATIONS:.2f}), {ours[0] / theirs:.2f} of its time "
        f"(limit {TIME:.2f}) and {ours[1] / cpu:.2f} of its processor time; drop of NNCF's {lost:.4f}, and what we "
        f"found takes {ratio:.2f} of the time of its model",
        flush=True,
    )
    return evaluations / passes <= EVALUATIONS and ours[0] / theirs <= TIME


def _beside(one: Callable[[], Any], other: Callable[[], Any]) -> float:
    """The time of one call over that of another of the same runtime, in turns."""
    ratios = []
    for _ in range(40):
        took = []
        for call in (one, other):
            call()
            start = time.perf_counter()
            call()
            took.append(time.perf_counter() - start)
        ratios.append(took[0] / took[1])
    return statistics.median(ratios)


def main() -> int:
    """Print a line for each, and one that compares them; returns 1 where a limit is missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--drop", type=float, default=0.01)
    parser.add_argument("--network", choices=("mobilenetv2",), help="small ones if none is given")
    parser.add_argument("--folder", type=Path, help="with trained weights of the network for phones, or for them")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        made: dict[str, Callable[[], Trained]] = {
            "ReLU": lambda: trained(nn.ReLU),
            "SiLU": lambda: trained(nn.SiLU),
        }
        if given.network:
            made = {given.network: lambda: phone_network(given.network, folder)}
        met = [_case(name, make, given.drop) for name, make in made.items()]
    return int(not all(met))


def _case(name: str, make: Callable[[], Trained], drop: float) -> bool:
    print(f"\n{name}:", flush=True)
    return accuracy_control(drop, *make())


if __name__ == "__main__":
    raise SystemExit(main())
