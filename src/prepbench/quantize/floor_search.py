"""Which layers go back to float so that the whole model reaches its floor."""

from __future__ import annotations

import bisect
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from prepbench.inputs import Sample
from prepbench.quantize.biases import correct_biases, restore_biases
from prepbench.quantize.dynamic_lstm import in_integers
from prepbench.quantize.floors import Floors, Score
from prepbench.quantize.layer_noise import MeasuredLayers
from prepbench.quantize.observed_graph import observer_of, set_mode, simulate
from prepbench.quantize.output_scores import ScoreSum
from prepbench.quantize.plan import Plan
from prepbench.quantize.predictions import logits_of
from prepbench.quantize.weights import WeightScheme
from prepbench.running.sqnr import Powers
from prepbench.settings import CompileOptions

Schemes = Mapping[str, WeightScheme]
"""The scheme of each quantized layer's weight, by FQN; layers that are not in it are in float."""


class FloorSearch:
    """Tries schemes for the layers of a graph, and measures the whole model with them.

    Each try changes the graph just enough to run it, and the next try undoes that.

    Args:
        graph: observed and calibrated.
        plan: what its observers stand for.
        options: whether biases are corrected.
        floors: what is required of the whole model.
        measured: the noise of each layer.
        samples: what ``measured`` was measured on.
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        plan: Plan,
        options: CompileOptions,
        floors: Floors,
        measured: MeasuredLayers,
        samples: Sequence[Sample],
    ) -> None:
        self._graph = graph
        self._plan = plan
        self._options = options
        self._floors = floors
        self._measured = measured
        self._samples = samples
        self._logits = logits_of(graph.graph)
        self._before: dict[str, fx.Node] = {}
        by_name = {node.name: node for node in graph.graph.nodes}
        self._weights = {
            fqn: [
                observer_of(graph, operand)
                for layer in nodes
                for operand in layer.weight_operands(by_name[layer.node.name].args)
            ]
            for fqn, nodes in plan.nodes.items()
        }

    def score(self, schemes: Schemes) -> Score:
        """How far the model is from float with these schemes."""
        for fqn, scheme in schemes.items():
            for observer in self._weights[fqn]:
                observer.take(scheme)
        restore_biases(self._graph, self._before)
        if self._options.bias_correction:
            self._before = correct_biases(self._graph, self._measured.mean_shifts(self._plan, schemes))
        self._graph.recompile()
        left = self._plan.without(self._plan.nodes.keys() - schemes.keys())
        return simulated_score(self._graph, self._samples, self._measured.outputs, left, self._logits)

    def is_enough(self, score: Score) -> bool:
        """Whether this reaches the floor, also on samples that were not measured."""
        return self._floors.is_enough(score)

    def reach_floor(self, chosen: Schemes, best: Schemes) -> dict[str, WeightScheme]:
        """Change as few layers as reach the floor.

        Those that add most noise take their best scheme first, where that is another than the chosen one, and then go
        to float. Which layers go to float is tried in several orders, because what a layer adds may grow or fade on its
        way to the outputs; the order wins that leaves most multiplications to integers.

        Args:
            chosen: the schemes so far.
            best: for each of these layers, the candidate that adds least noise.
        """
        noise = {fqn: self.noise_of(fqn, scheme).noise_to_signal for fqn, scheme in best.items()}
        by_noise = sorted(best, key=lambda fqn: noise[fqn], reverse=True)
        finer = [(fqn, best[fqn]) for fqn in by_noise if best[fqn] != chosen[fqn]]
        orders = (by_noise, list(best), list(best)[::-1])
        attempts = [self._fewest(chosen, [*finer, *((fqn, None) for fqn in order)]) for order in orders]
        return max(attempts, key=self._integer_work)

    def noise_of(self, fqn: str, scheme: WeightScheme) -> Powers:
        """What a scheme adds to the output of a layer."""
        return self._measured.powers_of(self._plan.nodes[fqn], scheme)

    def _fewest(self, chosen: Schemes, moves: Sequence[tuple[str, WeightScheme | None]]) -> dict[str, WeightScheme]:
        """The schemes after as few of these moves as reach the floor; all of them leave no integers."""

        def after(count: int) -> dict[str, WeightScheme]:
            moved = {**chosen, **dict(moves[:count])}
            return {fqn: scheme for fqn, scheme in moved.items() if scheme is not None}

        counts = range(len(moves))
        return after(bisect.bisect_left(counts, True, lo=1, key=lambda count: self.is_enough(self.score(after(count)))))

    def _integer_work(self, schemes: Schemes) -> int:
        """How many multiplications of the measured samples are those of quantized layers."""
        work = self._measured.multiplications
        return sum(work.get(layer.node.name, 0) for fqn in schemes for layer in self._plan.nodes[fqn])


def simulated_score(
    graph: fx.GraphModule,
    samples: Sequence[Sample],
    expected: Sequence[tuple[Any, ...]],
    plan: Plan,
    logits: Collection[int] = (),
) -> Score:
    """How far the model is from float when quantized as ``plan`` says: SQNR of the worst floating-point output.

    Args:
        graph: observed and calibrated; its observers are in the mode ``"pass"`` afterwards.
        samples: calls of the graph.
        expected: the outputs in float for each sample.
        plan: what is quantized.
        logits: the outputs that predict tokens.
    """
    total = ScoreSum(logits)
    simulate(graph, plan)
    try:
        with torch.no_grad(), in_integers(graph, plan.dynamic):
            for sample, right in zip(samples, expected, strict=True):
                total.add(right, sample.call(graph))
    finally:
        set_mode(graph, "pass")
    return total.score
