"""The second stage: run samples through the observers. Errors name samples that give no usable range."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat import pytree
from prepbench.errors import CalibrationError, sentence
from prepbench.inputs import Sample, named_leaves
from prepbench.internal_errors import raise_if_internal
from prepbench.jobs import Progress, ProgressCallback, report_nothing
from prepbench.quantize.input_hessians import round_by_inputs
from prepbench.quantize.layer_nodes import parameter_of
from prepbench.quantize.observed import Observed, all_observers, fit_biases, observed_value, observer_of, set_mode
from prepbench.quantize.repeatable import other_draws
from prepbench.quantize.statistics import Statistics, preserved_buffers, range_keys


def calibrate(
    observed: Observed,
    samples: Sequence[Sample],
    progress: ProgressCallback = report_nothing,
    statistics: Statistics | None = None,
) -> Observed:
    """Run the samples through the observers; each learns the range of the values that pass through.

    Args:
        observed: from :func:`insert_observers`; its observers start afresh, so a cancelled call can be repeated.
        samples: the calibration inputs, as calls of the captured program.
        progress: called after each sample; may raise to cancel.
        statistics: the calibration cache of the same float graph and samples; observers whose ranges it has need no
            samples. New ones are added.

    Raises:
        CalibrationError: a sample on which the graph cannot run, or on which values are NaN or infinite.
    """
    graph, statistics = observed.graph, Statistics() if statistics is None else statistics
    keys = range_keys(graph)
    set_mode(graph, "pass")
    learning, is_known = [], False
    for observer in all_observers(graph):
        known = statistics.ranges.get(keys.get(id(observer), ()))
        if not hasattr(observer, "forget"):
            continue
        if known is not None:
            observer.recall(known)
            is_known = True
            continue
        observer.forget()
        observer.mode = "observe"
        learning.append(observer)
    if learning:
        with preserved_buffers(graph):
            learn(graph, graph, learning, samples, progress)
        set_mode(graph, "pass")
        statistics.ranges.update({keys[id(one)]: one.learned() for one in learning if id(one) in keys})
    else:
        progress(Progress("calibrate", len(samples), len(samples)))
        if is_known:  # where weights alone are quantized, there is nothing to learn
            observed = replace(observed, reused=(*observed.reused, "calibrate"))
    read_weights(graph)
    round_by_inputs(graph, observed.plan, samples, progress)
    fit_biases(graph)
    return observed


def learn(
    graph: fx.GraphModule,
    call: Callable[..., Any],
    learning: Sequence[Any],
    samples: Sequence[Sample],
    report: ProgressCallback,
) -> None:
    """Run the samples, and check after each that the observers have learned finite ranges.

    Raises:
        CalibrationError: a sample on which the graph cannot run, or on which values are NaN or infinite.
    """
    report(Progress("calibrate", 0, len(samples)))
    with other_draws():
        for done, sample in enumerate(samples, start=1):
            run_sample(graph, call, sample)
            if not all(observer.finite or observer.low > observer.high for observer in learning):
                raise _not_finite(graph, sample)
            report(Progress("calibrate", done, len(samples)))


def read_weights(graph: fx.GraphModule) -> None:
    """Make the observers of weights read them, which they only do by themselves when a sample passes."""
    found: dict[str, Any] = {}
    for node in graph.graph.nodes:
        observer = observer_of(graph, node)
        if observer is not None and not hasattr(observer, "forget"):
            parameter = parameter_of(observed_value(graph, node))
            assert parameter is not None
            name = str(parameter.target)
            observer.found = found.setdefault(name, type(observer.found)())
            observer(operator.attrgetter(name)(graph))


def check_calibration(function: Callable[..., Any], samples: Sequence[Sample]) -> None:
    """Raise ``CalibrationError`` for a sample with NaN or without data, naming the sample and the argument."""
    if torch.get_default_device().type == "meta":
        raise CalibrationError(
            "torch's default device is meta, on which nothing can be computed, so nothing can be calibrated. Call "
            "torch.set_default_device('cpu') first."
        )
    for sample in samples:
        for path, leaf in named_leaves(function, sample):
            if isinstance(leaf, torch.Tensor) and leaf.is_meta:
                raise CalibrationError(
                    f"calibration_inputs[{sample.index}]: {path} is on meta, which has no data to learn from. Give "
                    "tensors with data."
                )
            if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
                continue
            if leaf.is_nested or leaf.layout is not torch.strided or not bool(leaf.isnan().any()):
                continue  # of other layouts the capture says that no graph takes them
            count = int(leaf.isnan().sum())
            raise CalibrationError(
                f"calibration_inputs[{sample.index}]: {path} holds {count} NaN (of {leaf.numel()} values). "
                "Scales learned from it would be NaN: remove the sample or repair its preprocessing."
            )


def run_sample(graph: fx.GraphModule, call: Callable[..., Any], sample: Sample) -> None:
    """Run one calibration input.

    Raises:
        CalibrationError: the graph cannot run on it.
    """
    try:
        with torch.no_grad():
            sample.call(call)
    except Exception as error:  # a value in place of a tensor may raise anything
        raise_if_internal(error)
        shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in _named_tensors(graph, sample))
        raise CalibrationError(
            f"The captured graph cannot run on calibration_inputs[{sample.index}] ({shapes}): {sentence(error)} "
            "Give calibration inputs like the tracing inputs; sizes may differ along dynamic axes only."
        ) from error


def _not_finite(graph: fx.GraphModule, sample: Sample) -> CalibrationError:
    """Return the error for a sample on which values are NaN or infinite: which, and where they appear first."""
    given = [name for name, tensor in _named_tensors(graph, sample) if _has_nan_or_inf(tensor)]
    if given:
        return CalibrationError(
            f"calibration_inputs[{sample.index}]: {', '.join(given)} holds infinite values, so no scale fits what is "
            "computed from it. Repair or remove the sample; or keep the layers that read it in float "
            "(LayerQuantizationSettings(skip_quantization=True))."
        )
    first = _first_not_finite(graph, sample)
    where = f"They appear first in {_location(first)}" if first is not None else "They cannot be traced to one operator"
    return CalibrationError(
        f"calibration_inputs[{sample.index}] gives NaN or infinite values, although the input is finite. {where}. "
        "Check the model on this sample; or keep the layers behind it in float "
        "(LayerQuantizationSettings(skip_quantization=True))."
    )


def _named_tensors(graph: fx.GraphModule, sample: Sample) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a sample by the names of the graph's inputs."""
    names = [str(node.target) for node in graph.graph.nodes if node.op == "placeholder"]
    leaves = pytree.tree_leaves((sample.args, sample.kwargs))
    return ((name, leaf) for name, leaf in zip(names, leaves, strict=False) if isinstance(leaf, torch.Tensor))


class _Finder(fx.Interpreter):
    """Finds the first node whose result is not finite although its operands are."""

    found: fx.Node | None = None

    def run_node(self, n: fx.Node) -> Any:
        output = super().run_node(n)
        if self.found is None and n.op == "call_function" and _has_nan_or_inf(output):
            arguments = [self.env[source] for source in n.all_input_nodes if source in self.env]
            if not any(_has_nan_or_inf(value) for value in arguments):
                self.found = n
        return output


def _first_not_finite(graph: fx.GraphModule, sample: Sample) -> fx.Node | None:
    """Return the first node, in execution order, whose result on a sample is not finite although its operands are."""
    set_mode(graph, "pass")
    finder = _Finder(graph, garbage_collect_values=False)
    with torch.no_grad():
        finder.run(*sample.args)
    return finder.found


def _has_nan_or_inf(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and not bool(value.isfinite().all())


def _location(node: fx.Node) -> str:
    """Return a node's name with its module and source line."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    where = stack[-1][0] if stack and stack[-1][0] else "the model"
    lines = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    line = f" ({lines[-1][0]}:{lines[-1][1]})" if lines else ""
    return f"{node.name} in {where}{line}"
