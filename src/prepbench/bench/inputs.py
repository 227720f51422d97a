"""What a bench was given: the model, its samples, and what it is compared and trained on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from prepbench.bench.written import Decode, prompt_texts
from prepbench.checks import check_count, check_function, described
from prepbench.errors import InputError, sentence
from prepbench.inputs import Sample, named_leaves
from prepbench.measure.generation import Generation
from prepbench.measure.metrics import token_agreement
from prepbench.measure.modality import Modality, check_modality
from prepbench.objects.copy import Twin
from prepbench.objects.flatten import is_nothing
from prepbench.running.check_inputs import alike_samples
from prepbench.running.given_samples import Form, Reader, check_iterable, result_on_copy, with_tokenizer
from prepbench.running.metric_scores import takes_targets
from prepbench.running.transforms import Transformed, with_transform

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Inputs:
    """The arguments of a bench, checked and read; see :class:`prepbench.Bench`.

    Attributes:
        tracing_inputs: the calibration inputs where none were given.
        calibration_inputs: empty where none were given.
        modality: how inputs and outputs are shown; None for what their values tell.
        sampling_rate: of audio, in values a second.
        prompts: the prompts of a generation as text.
        arguments: the objects that the bench was given, by the name of the argument.
        remarks: what was read otherwise than it stands in the samples and the data.
        data_shapes: the shapes of what candidates are compared on, by the path of the input, for each element with its
            name.
        first: the first call of the data and its target; None without data.
        calls: the calls that candidates are compared on, by the names of the elements.
    """

    model: nn.Module
    tracing_inputs: list[Sample]
    calibration_inputs: list[Sample]
    data: list[Any] | Generation | None
    metric: Callable[[Any, Any], Any] | None
    decode: Decode | None
    training_data: Iterable[Any] | None
    loss: Callable[[Any, Any], Any] | None
    modality: Modality | Mapping[str, Modality] | None
    sampling_rate: int
    prompts: tuple[str, ...]
    arguments: Mapping[str, Any]
    remarks: tuple[str, ...] = ()
    data_shapes: tuple[tuple[str, Shapes], ...] = ()
    first: tuple[Sample, Any] | None = None
    calls: Mapping[str, Sample] = field(default_factory=dict)
    _errors: dict[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Inputs:
        """Check and read the arguments of a bench, which are given by name.

        Raises:
            InputError: they are of the wrong types, do not fit each other, or lack samples.
        """
        model, data, transform = arguments["model"], arguments["data"], arguments["transform"]
        samples = {name: arguments[name] for name in ("tracing_inputs", "calibration_inputs")}
        training_data = with_transform(arguments["training_data"], transform, "training_data")
        called = {name: arguments[name] for name in ("metric", "decode")}
        given = data if isinstance(data, Generation) else with_transform(data, transform, "data")
        _check_arguments(model, **samples, data=given, **called)
        check_modality(arguments["modality"])
        check_count("sampling_rate", arguments["sampling_rate"], 1)
        _check_training(training_data, arguments["loss"])
        remarks: list[str] = []
        compared = _Compared.of(model, given, arguments["metric"], arguments["tokenizer"], remarks)
        read = functools.partial(_samples, model, arguments, compared.form, remarks)
        calibration = read("calibration_inputs")
        name, batches = ("calibration_inputs", calibration) if compared.data is None else ("data", compared.samples)
        return cls(
            model,
            read("tracing_inputs") or calibration,
            calibration,
            compared.data,
            **called,
            remarks=tuple(remarks),
            data_shapes=tuple(_shapes(model, compared.data, name, batches)),
            first=compared.first,
            calls={f"{name}[{sample.index}]": sample for sample in batches},
            training_data=list(training_data) if isinstance(training_data, Iterator) else training_data,
            loss=arguments["loss"],
            modality=arguments["modality"],
            sampling_rate=arguments["sampling_rate"],
            prompts=prompt_texts(data, called["decode"]) if isinstance(data, Generation) else (),
            arguments={name: value for name, value in arguments.items() if name not in ("modality", "sampling_rate")},
        )

    def error_on(self, name: str) -> str:
        """Return the error with which the model itself refuses an element of the data; "" where it takes it."""
        if name in self.calls and name not in self._errors:
            try:
                result_on_copy(Twin(self.model).model, self.calls[name])
                self._errors[name] = ""
            except Exception as error:  # of the user's model
                self._errors[name] = f"{type(error).__name__}: {sentence(error)}"
        return self._errors.get(name, "")

    @property
    def compared_on(self) -> list[Any] | Generation:
        """What candidates are compared on: the data, or else the samples."""
        return self.data if self.data is not None else self.calibration_inputs or self.tracing_inputs


def _check_arguments(
    model: Any, tracing_inputs: Any, calibration_inputs: Any, data: Any, metric: Any, decode: Any
) -> None:
    if not isinstance(model, nn.Module):
        raise InputError(f"model must be a torch.nn.Module, got {described(model)}. Give an instance of a module.")
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


def _samples(
    model: nn.Module, arguments: Mapping[str, Any], form: Form | None, remarks: list[str], name: str
) -> list[Sample]:
    """Return the samples of an argument, divided as the data is where they are the same or named alike."""
    inputs = arguments[name]
    if inputs is None:
        return []
    prepared = with_tokenizer(arguments["tokenizer"], arguments["transform"])
    alike = form if form is not None and (form.kind == "keys" or inputs is arguments["data"]) else None
    return alike_samples(model, inputs, name=name, data_transform_fn=prepared, remarks=remarks, form=alike)


@dataclass(frozen=True)
class _Compared:
    """The data of a bench, read once: as it came where every function reads it so, else as pairs."""

    data: list[Any] | Generation | None
    samples: tuple[Sample, ...] = ()
    first: tuple[Sample, Any] | None = None
    form: Form | None = None

    @classmethod
    def of(cls, model: nn.Module, data: Any, metric: Any, tokenizer: Any, remarks: list[str]) -> _Compared:
        if data is None or isinstance(data, Generation):
            return cls(data)
        check_iterable("data", data)
        targets = takes_targets(metric)
        data = with_transform(data, with_tokenizer(tokenizer), "data")
        reader = Reader(model, "data", source=data, with_targets=targets)
        elements = [element for _, element in reader.elements()]
        read = [reader.read(element, index) for index, element in enumerate(elements)]
        reader.tell(remarks)
        form = reader.form
        is_usual = (
            not reader.notes and not isinstance(data, Transformed) and (form is None or form.kind in ("whole", "last"))
        )
        kept = elements if is_usual else [pair if targets else pair[0] for pair in read]
        return cls(kept, tuple(sample for sample, _ in read), next(iter(read), None), form if targets else None)


def _shapes(
    model: nn.Module, data: Sequence[Any] | Generation | None, name: str, batches: Iterable[Sample]
) -> Iterator[tuple[str, Shapes]]:
    """Yield the shapes of the model's arguments by path, for each batch of an argument of the bench."""
    if isinstance(data, Generation):
        for index, prompt in enumerate(data.batches):
            # the length of what is read at once is not that of the prompt where PyTorch makes the first step
            yield f"prompts[{index}]", {name: tuple(value.shape[:1]) for name, value in prompt.given.items()}
        return
    for sample in batches:
        leaves = named_leaves(model, sample)
        yield (
            f"{name}[{sample.index}]",
            {
                path: tuple(leaf.shape)
                for path, leaf in leaves
                if isinstance(leaf, torch.Tensor) and not is_nothing(leaf)
            },
        )
