"""``TrainableModel``: a model with quantizers that gradients pass, called and trained like the original."""

from __future__ import annotations

import copy
import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from prepbench.adapt.adapters import merged, save_adapters
from prepbench.adapt.fake_quantizers import ActivationQuantizer, WeightQuantizer
from prepbench.checks import check_path, check_switch
from prepbench.errors import SettingsError
from prepbench.quantize import LayerReport, WeightScheme


@dataclass
class ModeGraph:
    """A graph for one mode, and how it is called.

    Attributes:
        graph: takes the states, then the leaves of the inputs.
        states: for each of the first inputs the module that holds it, and its name there.
        arrange: the leaves of a call.
        result: the result from the leaves of outputs, in the model's own structure.
    """

    graph: fx.GraphModule
    states: Sequence[tuple[nn.Module, str]]
    arrange: Callable[[Sequence[Any], Mapping[str, Any]], list[Any]]
    result: Callable[[Sequence[Any]], Any]

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        states = [
            holder._parameters[name] if name in holder._parameters else holder._buffers[name]
            for holder, name in self.states
        ]
        return self.result(self.graph(*states, *self.arrange(args, kwargs)))


@dataclass
class TrainableParts:
    """What :func:`prepbench.trainable` makes of a model.

    Attributes:
        model: a copy of the user's model, which holds what is trained.
        training: for training mode.
        evaluation: for evaluation mode.
        quantizers: by the name of the observer that they stand for.
        schemes: of the weights of each quantized layer, by FQN.
        layers: how each layer is quantized.
        notes: what differs from the original, in words.
        adapters: the settings of the adapters as PEFT has them, or None.
        original: the user's model, from which it may learn.
        is_pretrained: whether that has learned anything.
        task: what compiles it, for ``compile_model``.
    """

    model: nn.Module
    training: ModeGraph
    evaluation: ModeGraph
    quantizers: Mapping[str, nn.Module]
    schemes: Mapping[str, WeightScheme] = field(default_factory=dict)
    layers: tuple[LayerReport, ...] = ()
    notes: tuple[str, ...] = ()
    adapters: Any = None
    original: nn.Module | None = field(default=None, repr=False)
    is_pretrained: bool = True
    task: Any = field(default=None, repr=False)


class TrainableModel(nn.Module):
    """A model that is trained as it will be quantized; made by :func:`prepbench.trainable`.

    Its modules, parameters and buffers have the original's names, so its ``state_dict()`` loads into the original's
    class, and it is called like the original. In training mode it drops out and normalises as the original does; in
    evaluation mode it computes what :func:`prepbench.compile_model` makes of it. Everything that trains a
    ``torch.nn.Module`` trains it. Modes are those of the whole model: modes of single modules in it change nothing.

    Attributes:
        layers: how each layer is quantized, as in the report of a compile.
        notes: what differs from the original, in words; empty if nothing does.
    """

    parts: TrainableParts

    def __init__(self, parts: TrainableParts) -> None:
        super().__init__()
        # the same tables, so that moving, casting or loading one is moving, casting or loading the other
        self._modules = parts.model._modules
        self._parameters = parts.model._parameters
        self._buffers = parts.model._buffers
        self._non_persistent_buffers_set = parts.model._non_persistent_buffers_set
        self.__dict__["parts"] = parts
        # what asks for the signature (a Trainer, samples by keyword) gets the original's
        call: Any = functools.partial(type(self).forward, self)
        call.__signature__ = inspect.signature(parts.model.forward)
        self.__dict__["forward"] = call
        self.register_state_dict_post_hook(_with_names_of_original)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_with_names_of_adapted)  # type: ignore[no-untyped-call]
        self.eval()

    @property
    def layers(self) -> tuple[LayerReport, ...]:
        return self.parts.layers

    @property
    def notes(self) -> tuple[str, ...]:
        return self.parts.notes

    def train(self, mode: bool = True) -> TrainableModel:
        """Set training or evaluation mode, as ``torch.nn.Module.train`` does."""
        check_switch("mode", mode)
        super().train(mode)
        self.parts.model.training = mode
        for quantizer in self.parts.quantizers.values():
            quantizer.train(mode)
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model on the arguments of the original.

        Raises:
            InputError: the call has another form than the tracing inputs.
        """
        return (self.parts.training if self.training else self.parts.evaluation)(args, kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> TrainableModel:
        """A copy that is trained apart; it shares what does not change."""
        own = self.parts
        for graph in (own.training, own.evaluation):
            memo.update({id(part): part for part in (graph.arrange, graph.result)})
        made = {
            name: copy.deepcopy(getattr(own, name), memo) for name in ("model", "quantizers", "training", "evaluation")
        }
        result = TrainableModel(replace(own, **made))
        memo[id(self)] = result
        return result.train(self.training)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            parts = self.__dict__.get("parts")
            if parts is None or name.startswith("__"):
                raise
            return getattr(parts.model, name)  # what else the user's model has: its configuration, its loss

    @property
    def trainable_parameters(self) -> tuple[int, int]:
        """How many numbers are trained, and how many there are."""
        sizes = [(parameter.numel(), parameter.requires_grad) for parameter in self.parameters()]
        return sum(size for size, is_trained in sizes if is_trained), sum(size for size, _ in sizes)

    def __repr__(self) -> str:
        trained, count = self.trainable_parameters
        quantized = sum(row.quantized for row in self.layers)
        name = type(self.parts.model).__name__
        return "\n".join(
            [
                f"TrainableModel of {name}: {quantized} of {len(self.layers)} layers quantized, {trained:,} of "
                f"{count:,} parameters trained",
                *(f"  {note}" for note in self.notes),
            ]
        )

    def float_model(self) -> nn.Module:
        """A copy of the original with the weights that were trained, and what adapters add merged into them."""
        return merged(self.parts.model)

    def save_adapters(self, folder: str | os.PathLike[str]) -> Path:
        """Write the adapters as a checkpoint of PEFT, without pickle; returns its path.

        ``peft.PeftModel.from_pretrained(original, folder)`` loads them onto the original model.

        Args:
            folder: made where it is missing.

        Raises:
            SettingsError: there are no adapters.
        """
        check_path("folder", folder)
        if self.parts.adapters is None:
            raise SettingsError("There are no adapters to save. Give lora_settings=pb.LoraSettings() to pb.trainable.")
        return save_adapters(self.parts.model, self.parts.adapters, Path(folder))

    def unlearned(self) -> list[str]:
        """Quantizers of activations that have seen no value yet."""
        return [
            name
            for name, one in self.parts.quantizers.items()
            if isinstance(one, ActivationQuantizer) and not one.is_learned
        ]


@torch.no_grad()
def teach(model: TrainableModel, observed: fx.GraphModule) -> None:
    """Give observers the scales that a trained model has learned, and weights their integers; they have its names."""
    for name, quantizer in model.parts.quantizers.items():
        observer: Any = observed.get_submodule(name)
        if isinstance(quantizer, WeightQuantizer):
            observer.take(quantizer.scheme)
            observer.found = observer.found.fixed(observer.axis, quantizer.scheme, quantizer.rows(observer.weight))
        elif isinstance(quantizer, ActivationQuantizer) and quantizer.is_learned:
            observer.fix(quantizer.low, quantizer.high)


_BASE = ".base_layer."


def _with_names_of_original(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    """A layer with adapters holds the original as ``base_layer``, which is no name of the original's."""
    for name in [name for name in state if _BASE in name]:
        state[name.replace(_BASE, ".")] = state.pop(name)


def _with_names_of_adapted(module: nn.Module, state: dict[str, Any], *_: Any) -> None:
    for name in [name for name, _ in module.named_parameters()] + [name for name, _ in module.named_buffers()]:
        short = name.replace(_BASE, ".")
        if short != name and short in state:
            state[name] = state.pop(short)
