"""What a bench was given: the model, its samples, and what it is compared and trained on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from prepbench.bench.written import Decode, prompt_texts
from prepbench.checks import check_function, described
from prepbench.errors import InputError
from prepbench.inputs import Sample
from prepbench.measure.generation import Generation
from prepbench.measure.metrics import token_agreement
from prepbench.running.check_inputs import alike_samples


@dataclass(frozen=True)
class Inputs:
    """The arguments of a bench, checked and read; see :class:`prepbench.Bench`.

    Attributes:
        tracing_inputs: the calibration inputs where none were given.
        calibration_inputs: empty where none were given.
        prompts: the prompts of a generation as text.
        arguments: the objects that the bench was given, by the name of the argument.
    """

    model: nn.Module
    tracing_inputs: list[Sample]
    calibration_inputs: list[Sample]
    data: list[Any] | Generation | None
    metric: Callable[[Any, Any], Any] | None
    decode: Decode | None
    training_data: Iterable[Any] | None
    loss: Callable[[Any, Any], Any] | None
    prompts: tuple[str, ...]
    arguments: Mapping[str, Any]

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Inputs:
        """Check and read the arguments of a bench, which are given by name.

        Raises:
            InputError: they are of the wrong types, do not fit each other, or lack samples.
        """
        model, data, training_data = arguments["model"], arguments["data"], arguments["training_data"]
        samples = {name: arguments[name] for name in ("tracing_inputs", "calibration_inputs")}
        called = {name: arguments[name] for name in ("metric", "decode")}
        _check_arguments(model, **samples, data=data, **called)
        _check_training(training_data, arguments["loss"])
        calibration = _samples(model, samples["calibration_inputs"], "calibration_inputs")
        return cls(
            model,
            _samples(model, samples["tracing_inputs"], "tracing_inputs") or calibration,
            calibration,
            data if data is None or isinstance(data, Generation) else list(data),
            **called,
            training_data=list(training_data) if isinstance(training_data, Iterator) else training_data,
            loss=arguments["loss"],
            prompts=prompt_texts(data, called["decode"]) if isinstance(data, Generation) else (),
            arguments=arguments,
        )

    @property
    def compared_on(self) -> list[Any] | Generation:
        """What candidates are compared on: the data, or else the samples."""
        return self.data if self.data is not None else self.calibration_inputs or self.tracing_inputs


def _check_arguments(
    model: Any, tracing_inputs: Any, calibration_inputs: Any, data: Any, metric: Any, decode: Any
) -> None:
    if not isinstance(model, nn.Module):
        raise InputError(f"model must be a torch.nn.Module, got {described(model)}. Give the module itself.")
    generates = isinstance(data, Generation)
    check_function("decode", decode, "decode(tokens)", optional=True)
    if decode is not None and not generates:
        raise InputError("decode is for generated tokens. Give data=pb.Generation(prompts), or leave decode out.")
    if generates and metric is not None and metric is not token_agreement:
        raise InputError(
            "metric: a generation is scored by the tokens that agree with the float model's. Leave metric out, or give "
            "other data for it, such as pairs of inputs and targets."
        )
    if not generates and data is not None and (isinstance(data, str | bytes | type) or not isinstance(data, Iterable)):
        raise InputError(f"data must be an iterable of pairs, got {described(data)}. Give [(input, target), ...].")
    check_function("metric", metric, "metric(output, target)", optional=True)
    if tracing_inputs is None and calibration_inputs is None:
        raise InputError("Bench needs samples: give tracing_inputs, calibration_inputs, or both.")
    if metric is not None and data is None:
        raise InputError("metric was given without data: give data=[(input, target), ...] to compare on.")


def _check_training(data: Any, loss: Any) -> None:
    check_function("loss", loss, "loss(output, target)", optional=True)
    if data is not None and (
        isinstance(data, torch.Tensor | str | bytes | type | Mapping) or not isinstance(data, Iterable)
    ):
        raise InputError(
            f"training_data must be an iterable of batches, got {described(data)}. Give a list or a DataLoader."
        )
    if loss is not None and data is None:
        raise InputError("loss was given without training_data: give training_data=[(input, target), ...] to train on.")


def _samples(model: nn.Module, inputs: Iterable[Any] | None, name: str) -> list[Sample]:
    return [] if inputs is None else alike_samples(model, inputs, name=name)
