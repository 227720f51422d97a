"""All mixtures of float and 8 bits of a small network: what each takes and loses, simulated, timed or fitted."""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

import prepbench as pb
from prepbench.compile.simulation import Simulation
from prepbench.errors import SettingsError
from prepbench.objects.compare import Powers, powers

INT8, FLOAT = "int8", "float"
FITTED, LEFT_OUT = 24, 8  # mixtures that the fit is made from, and that it is checked on
IN_QUESTION = 8  # mixtures that are compiled and timed for each budget
Mixture = tuple[str, ...]


class Net(nn.Module):
    """Convolutions of several kinds, some with channels of very different ranges, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 24, 3, padding=1, stride=2)
        self.depthwise = nn.Conv2d(24, 24, 3, padding=1, groups=24)
        self.point = nn.Conv2d(24, 48, 1)
        self.narrow = nn.Conv2d(48, 24, 1)
        self.wide = nn.Conv2d(24, 64, 3, padding=1)
        self.down = nn.Conv2d(64, 64, 3, padding=1, stride=2)
        self.deep = nn.Conv2d(64, 96, 3, padding=1)
        self.head = nn.Linear(96, 10)
        with torch.no_grad():
            self.stem.weight[::7] *= 6
            self.point.weight[::9] *= 12
            self.down.weight[::11] *= 8

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        x = x + torch.relu(self.narrow(torch.relu(self.point(self.depthwise(x)))))
        x = torch.relu(self.deep(torch.relu(self.down(torch.relu(self.wide(x))))))
        return self.head(x.mean((2, 3)))


class Drawn(nn.Module):
    """Seven convolutions drawn at random and a linear layer; results of equal sizes are added."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        channels, size, layers = 3, 48, []
        for at in range(7):
            kind = "full" if at == 0 else draw.choice(("full", "full", "point", "depthwise"))
            wide = channels if kind == "depthwise" else draw.choice((16, 24, 32, 48, 64, 96))
            stride = 2 if kind != "point" and size > 6 and draw.random() < 0.4 else 1
            kernel, groups = 1 if kind == "point" else 3, channels if kind == "depthwise" else 1
            layers.append(nn.Conv2d(channels, wide, kernel, padding=kernel // 2, stride=stride, groups=groups))
            if draw.random() < 0.5:  # channels of very different ranges
                with torch.no_grad():
                    layers[-1].weight[:: draw.choice((5, 7, 9))] *= draw.choice((4, 8, 12))
            channels, size = wide, -(-size // stride)
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(channels, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            y = torch.relu(layer(x))
            x = x + y if x.shape == y.shape else y
        return self.head(x.mean((2, 3)))


def network(seed: int) -> nn.Module:
    """The network of a seed: 0 is :class:`Net`."""
    torch.manual_seed(seed)
    return (Drawn(seed) if seed else Net()).eval()


def images(count: int, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(4, 3, 48, 48, generator=generator) * (1 + at % 3) for at in range(count)]


def target() -> pb.OnnxRuntimeDeployment:
    return pb.OnnxRuntimeDeployment(intra_op_threads=1)


def compiled(model: nn.Module, taken: Mapping[str, str], kept: pb.KeptStages) -> pb.CompiledModel:
    """The model with some layers in 8 bits."""
    skipped = [fqn for fqn, name in taken.items() if name == FLOAT]
    settings: dict[str, Any] = {}
    if len(skipped) < len(taken):
        settings["quantization_settings"] = pb.QuantizationSettings()
        rule = pb.LayerQuantizationSettings(skip_quantization=True)
        settings["layer_quantization_settings"] = dict.fromkeys(skipped, rule)
    return pb.compile_model(
        model,
        calibration_inputs=images(4, 0),
        deployment_settings=target(),
        compile_options=pb.CompileOptions(keep_ruined_layers_in_float=False),
        reuse=kept,
        **settings,
    )


class Truths:
    """What is true of each mixture: its SQNR, and its time, measured or fitted.

    Attributes:
        layers: FQNs, in the order of mixtures.
        base: the mixture with as much as possible in 8 bits.
        decibels: of all mixtures, simulated on the data.
        ms: of those that were timed.
    """

    def __init__(self, model: nn.Module, rounds: int) -> None:
        self._model, self._rounds = model, rounds
        self._kept, self._data = pb.KeptStages(), images(6, 1)
        self._compiled: dict[Mixture, pb.CompiledModel] = {}
        simulation = Simulation.of(model, images(4, 0), deployment_settings=target())
        self.layers = simulation.layers
        refused = [bool(simulation.refusal(fqn, pb.QuantizationSettings())) for fqn in self.layers]
        mixtures = list(itertools.product(*((FLOAT,) if one else (INT8, FLOAT) for one in refused)))
        self.base = mixtures[0]
        self._borders = [
            (self.layers.index(one), self.layers.index(other))
            for one, other, _ in simulation.neighbours
            if one in self.layers and other in self.layers
        ]
        with torch.no_grad():
            self._expected = [model(x) for x in self._data]
            self.decibels = {mixture: self._noise(self._simulated(simulation, mixture)) for mixture in mixtures}
        self.ms: dict[Mixture, float] = {}
        self._fit: Any = None

    def fit(self) -> float:
        """Time some mixtures, and fit a sum to their times; the median error of those that are left out."""
        order = random.Random(0).sample(list(self.decibels), FITTED + LEFT_OUT)
        self.time([self.base, (FLOAT,) * len(self.layers), *order])
        fitted = [mixture for mixture in self.ms if mixture not in order[FITTED:]]
        rows = np.array([self._features(mixture) for mixture in fitted])
        times = np.array([self.ms[mixture] for mixture in fitted])
        own = 0.02 * np.eye(rows.shape[1])  # a little of a ridge, because borders are almost sums of layers
        self._fit = np.linalg.lstsq(np.vstack([rows, own]), np.append(times, np.zeros(len(own))), rcond=None)[0]
        return statistics.median(abs(self.fitted(each) / self.ms[each] - 1) for each in order[FITTED:])

    def fitted(self, mixture: Mixture) -> float:
        """Milliseconds of a mixture by the fit."""
        return float(np.dot(self._features(mixture), self._fit))

    def best(self, floor: float, found: Mixture) -> tuple[Mixture, dict[Mixture, float]]:
        """The fastest mixture with an SQNR of at least this, and milliseconds of it and of the one that was found.

        Those that may be the fastest are timed side by side with it, so that both met the same state of the machine.
        """
        within = [mixture for mixture, decibels in self.decibels.items() if decibels >= floor]
        in_question = sorted(within, key=lambda mixture: self.ms.get(mixture, self.fitted(mixture)))[:IN_QUESTION]
        times = self._timed([*in_question, found])
        return min((mixture for mixture in {*in_question, found} if mixture in within), key=times.__getitem__), times

    def time(self, mixtures: Iterable[Mixture]) -> None:
        """Time mixtures that were not timed."""
        found = self._timed([mixture for mixture in mixtures if mixture not in self.ms])
        self.ms = found | self.ms

    def _timed(self, mixtures: Iterable[Mixture]) -> dict[Mixture, float]:
        """Milliseconds, as multiples of those of the mixture that is all in 8 bits, in interleaved rounds."""
        base = self.base
        models = {mixture: self._model_of(mixture) for mixture in (base, *mixtures)}
        turns: dict[Mixture, list[float]] = {mixture: [] for mixture in models}
        for _ in range(self._rounds):
            for mixture, one in models.items():
                one(self._data[0])
                turn = []
                for _ in range(5):
                    start = time.perf_counter()
                    one(self._data[0])
                    turn.append(1e3 * (time.perf_counter() - start))
                turns[mixture].append(min(turn))
        first = self.ms.get(base, statistics.median(turns[base]))
        return {
            mixture: first * statistics.median(ms / of_base for ms, of_base in zip(found, turns[base], strict=True))
            for mixture, found in turns.items()
        }

    def simulated_error(self) -> float:
        """By how many dB what was compiled differs from what was simulated, in the median."""
        with torch.no_grad():
            return statistics.median(abs(self._noise(one) - self.decibels[at]) for at, one in self._compiled.items())

    def _model_of(self, mixture: Mixture) -> pb.CompiledModel:
        if mixture not in self._compiled:
            try:
                self._compiled[mixture] = compiled(
                    self._model, dict(zip(self.layers, mixture, strict=True)), self._kept
                )
            except SettingsError:  # the target quantizes none of these layers beside others in float
                self._compiled[mixture] = compiled(self._model, dict.fromkeys(self.layers, FLOAT), self._kept)
        return self._compiled[mixture]

    def _noise(self, one: Any) -> float:
        noise = Powers()
        for x, reference in zip(self._data, self._expected, strict=True):
            noise += powers([reference], [one(x)])
        return noise.decibels

    def _features(self, mixture: Mixture) -> list[float]:
        layers = [float(name == INT8) for name in mixture]
        return [1.0, *layers, *(float(mixture[one] != mixture[other]) for one, other in self._borders)]

    def _simulated(self, simulation: Simulation, mixture: Mixture) -> Any:
        taken = zip(self.layers, mixture, strict=True)
        return simulation.function({fqn: pb.QuantizationSettings() for fqn, name in taken if name == INT8})
