"""``TrainableModel``: a model with fake quantizers, called and trained like the original."""

from __future__ import annotations

import copy
import functools
import inspect
import math
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from prepbench.adapt.prune import PrunedLayer
from prepbench.checks import check_path, check_switch
from prepbench.errors import SettingsError, sentence
from prepbench.packages import imported
from prepbench.patching import logs_dropped_here, warnings_ignored_here
from prepbench.quantize import LayerReport, WeightScheme
from prepbench.quantize.rows import QuantizedRows
from prepbench.quantize.weights import clipped_qparams, integers, rows_of, weight_clips
from prepbench.settings import LoraSettings
from prepbench.settings.lora import layers_with_adapters

# Low-rank adapters beside layers, by PEFT: added, saved as PEFT's own checkpoint, merged.


_BASE_OF_ADAPTERS = "base_layer"
_NAME = "default"


def add_adapters(model: nn.Module, settings: LoraSettings) -> Any:
    """Add adapters beside layers of a model, in place, and freeze all other parameters. Return PEFT's settings.

    Raises:
        SettingsError: a name matches nothing, or a layer that cannot take an adapter.
        MissingPackageError: ``peft`` is not installed, or does not import.
    """
    peft = peft_package()
    layers = layers_with_adapters(model, settings)
    config = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout_rate,
        target_modules="|".join(map(re.escape, layers)),
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what PEFT thinks of a model's configuration
            peft.inject_adapter_in_model(config, model, adapter_name=_NAME)
    except (ValueError, TypeError, NotImplementedError, KeyError) as error:
        raise SettingsError(
            f"PEFT cannot put adapters of rank {settings.rank} beside {', '.join(layers[:6])}: {sentence(error)} Name "
            "other layers in LoraSettings.target_modules, or change the rank."
        ) from error
    return config


def train_adapters_alone(model: nn.Module) -> None:
    """Set evaluation mode for all of a model but its adapters, which get training mode."""
    model.eval()
    for module in model.modules():
        dropout = getattr(module, "lora_dropout", None)
        if isinstance(getattr(module, _BASE_OF_ADAPTERS, None), nn.Module) and isinstance(dropout, nn.Module):
            dropout.train()


def adapted_name(fqn: str, model: nn.Module) -> str:
    """Return the name of a layer inside the module that joins it with its adapter; its own name without an adapter."""
    module: Any = model
    for part in fqn.split(".") if fqn else ():
        module = getattr(module, part, None)
    return (
        f"{fqn}.{_BASE_OF_ADAPTERS}" if fqn and isinstance(getattr(module, _BASE_OF_ADAPTERS, None), nn.Module) else fqn
    )


def short_name(fqn: str) -> str:
    """Return the name of a layer in the original, given its name in a model with adapters."""
    return fqn.removesuffix(f".{_BASE_OF_ADAPTERS}")


def save_adapters(model: nn.Module, config: Any, folder: Path) -> Path:
    """Write a checkpoint of PEFT: its settings as JSON, and the adapters as safetensors."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    found = peft_package().get_peft_model_state_dict(model, adapter_name=_NAME)
    state = {f"base_model.model.{name}": value.detach().cpu().contiguous() for name, value in found.items()}
    save_file(state, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(str(folder))
    return folder


@torch.no_grad()
def merged(model: nn.Module) -> nn.Module:
    """Return a copy of a model whose weights include the adapters' products, without adapters."""
    own = copy.deepcopy(model)
    for path, module in list(own.named_modules()):
        layer: Any = module
        if isinstance(getattr(layer, _BASE_OF_ADAPTERS, None), nn.Module) and hasattr(layer, "get_base_layer"):
            layer.merge(safe_merge=True)
            parent, _, name = path.rpartition(".")
            setattr(own.get_submodule(parent), name, layer.get_base_layer())
    own.__dict__.pop("peft_config", None)
    return own.requires_grad_(True)


def peft_package() -> Any:
    """Import PEFT and return it.

    Raises:
        MissingPackageError: it is not installed, or does not import.
    """
    # it imports torchao, which tells of what it lacks
    with logs_dropped_here(), warnings_ignored_here():
        return imported("peft", "LoraSettings", "'prepbench[peft]'")


@dataclass
class State:
    """A tensor of the model that its graphs take as an input.

    Attributes:
        holder: the module that has it.
        name: its name there.
        zeros: True for elements that stay zero during training; None where there are none.
    """

    holder: nn.Module
    name: str
    zeros: torch.Tensor | None = None

    def value(self) -> Any:
        """Return the current value; gradients do not reach masked weights."""
        found = self.holder._parameters if self.name in self.holder._parameters else self.holder._buffers
        return without(found[self.name], self.zeros)


def without(value: Any, zeros: torch.Tensor | None) -> Any:
    """Return a tensor with zeros in these places."""
    return value if zeros is None else value.masked_fill(zeros.to(value.device), 0)


@dataclass
class ModeGraph:
    """The graph for one mode, and its call signature.

    Attributes:
        graph: takes the states, then the leaves of the inputs.
        states: the first inputs.
        arrange: the leaves of a call.
        result: the result from the leaves of outputs, in the model's own structure.
    """

    graph: fx.GraphModule
    states: Sequence[State]
    arrange: Callable[[Sequence[Any], Mapping[str, Any]], list[Any]]
    result: Callable[[Sequence[Any]], Any]

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        states = [state.value() for state in self.states]
        return self.result(self.graph(*states, *self.arrange(args, kwargs)))


@dataclass
class TrainableParts:
    """The parts from which :func:`prepbench.trainable` makes a model.

    Attributes:
        model: a copy of the user's model, which holds the trained tensors.
        training: for training mode.
        evaluation: for evaluation mode.
        quantizers: by the name of the observer that they stand for.
        schemes: of the weights of each quantized layer, by FQN.
        layers: how each layer is quantized.
        notes: the differences from the original, in words.
        adapters: the settings of the adapters as PEFT has them, or None.
        zeros: for each weight with a mask, by name in ``model``, True where it is zero.
        pruned: the outcome of pruning, layer by layer.
        original: the user's model, from which it may learn.
        prepared_from: a digest of the weights that it had; empty where that is not known.
        is_pretrained: whether that has learned anything.
        no_code: why the model's own code does not run any more, only its graph; empty if it does.
        task: the task with which ``compile_model`` compiles it.
    """

    model: nn.Module
    training: ModeGraph
    evaluation: ModeGraph
    quantizers: Mapping[str, nn.Module]
    schemes: Mapping[str, WeightScheme] = field(default_factory=dict)
    layers: tuple[LayerReport, ...] = ()
    notes: tuple[str, ...] = ()
    adapters: Any = None
    zeros: Mapping[str, torch.Tensor] = field(default_factory=dict, repr=False)
    pruned: tuple[PrunedLayer, ...] = ()
    original: nn.Module | None = field(default=None, repr=False)
    prepared_from: bytes = b""
    is_pretrained: bool = True
    no_code: str = ""
    task: Any = field(default=None, repr=False)


class TrainableModel(nn.Module):
    """A model that is trained as it will be quantized; made by :func:`prepbench.trainable`.

    Its modules, parameters and buffers have the original's names, so its ``state_dict()`` loads into the original's
    class, and it is called like the original. In training mode dropout and batch norms behave as in the original; in
    evaluation mode it computes what :func:`prepbench.compile_model` makes of it. Everything that trains a
    ``torch.nn.Module`` trains it. Modes are those of the whole model: modes of single modules in it change nothing.

    The state of quantizers is in the metadata of the ``state_dict``, so ``load_state_dict`` restores it, also
    through ``torch.save``. A plain dict of tensors lacks it, and ranges of activations then stay as they are.

    Attributes:
        layer_reports: how each layer is quantized, as in the report of a compile; ``layers`` is the original's.
        pruned: the outcome of pruning, layer by layer; empty without ``pruning_settings``.
        notes: the differences from the original, in words; empty if there are none.

    Example:
        >>> prepared = pb.trainable(
        ...     model,
        ...     calibration_inputs=samples,
        ...     deployment_settings=pb.OnnxRuntimeDeployment(),
        ...     quantization_settings=pb.QuantizationSettings(),
        ... )
        >>> prepared.trainable_parameters
        (58, 58)
        >>> list(prepared.float_model().state_dict()) == list(model.state_dict())
        True
    """

    parts: TrainableParts

    # transformers' Trainer adds arguments to the call of a model that takes any, and a graph takes those of its samples
    accepts_loss_kwargs = False

    def __init__(self, parts: TrainableParts) -> None:
        super().__init__()
        # the same tables, so that moving, casting or loading one is moving, casting or loading the other
        self._modules = parts.model._modules
        self._parameters = parts.model._parameters
        self._buffers = parts.model._buffers
        self._non_persistent_buffers_set = parts.model._non_persistent_buffers_set
        self.__dict__["parts"] = parts
        # callers that inspect the signature (a Trainer, samples by keyword) see the original's
        call: Any = functools.partial(type(self).forward, self)
        call.__signature__ = inspect.signature(parts.model.forward)
        self.__dict__["forward"] = call
        self.__class__ = _with_signature(type(parts.model).forward)
        self.register_state_dict_post_hook(_with_names_of_original)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_with_names_of_adapted)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_post_hook(_with_zeros)  # type: ignore[no-untyped-call]
        self.eval()

    @property
    def layer_reports(self) -> tuple[LayerReport, ...]:
        return self.parts.layers

    @property
    def pruned(self) -> tuple[PrunedLayer, ...]:
        return self.parts.pruned

    @property
    def notes(self) -> tuple[str, ...]:
        return self.parts.notes

    def train(self, mode: bool = True) -> TrainableModel:
        """Set training or evaluation mode, as ``torch.nn.Module.train`` does.

        Args:
            mode: True for training, False for evaluation.

        Returns:
            The model itself.
        """
        check_switch("mode", mode)
        super().train(mode)
        self.parts.model.training = mode
        for quantizer in self.parts.quantizers.values():
            quantizer.train(mode)
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model on the arguments of the original.

        Args:
            args: as of the original.
            kwargs: as of the original.

        Returns:
            The original's outputs, rounded as they will be quantized.

        Raises:
            InputError: the call has another form than the tracing inputs.
        """
        return (self.parts.training if self.training else self.parts.evaluation)(args, kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> TrainableModel:
        """Return a copy that is trained separately; it shares what does not change."""
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
            return getattr(parts.model, name)  # other attributes of the user's model: its configuration, its loss

    @property
    def trainable_parameters(self) -> tuple[int, int]:
        """Return the number of trained elements, and of all elements."""
        sizes = [(parameter.numel(), parameter.requires_grad) for parameter in self.parameters()]
        return sum(size for size, is_trained in sizes if is_trained), sum(size for size, _ in sizes)

    def __repr__(self) -> str:
        trained, count = self.trainable_parameters
        quantized = sum(row.quantized for row in self.layer_reports)
        dense = sum(row.parameters for row in self.pruned)
        left = sum(row.left - row.zeros for row in self.pruned)
        name = type(self.parts.model).__name__
        return "\n".join(
            [
                f"TrainableModel of {name}: {quantized} of {len(self.layer_reports)} layers quantized, {trained:,} of "
                f"{count:,} parameters trained",
                *([f"  {1 - left / dense:.0%} of the numbers of its layers pruned"] if dense else []),
                *(f"  {note}" for note in self.notes),
            ]
        )

    def float_model(self) -> nn.Module:
        """Return a copy of the original with the trained weights, and with adapters merged into them.

        Where channels were removed, layers are as small as here. Masked weights are zero, but for what adapters add.

        Returns:
            The copy, of the original's class.

        Raises:
            SettingsError: the code of the original does not run with the channels that are left.
        """
        if self.parts.no_code:
            raise SettingsError(
                f"There is no model of the original's class: {self.parts.no_code} Compile the trained model with "
                "pb.compile_model, whose EagerDeployment() runs in PyTorch."
            )
        return merged(self.parts.model)

    def save_adapters(self, folder: str | os.PathLike[str]) -> Path:
        """Write the adapters as a checkpoint of PEFT, without pickle.

        ``peft.PeftModel.from_pretrained(original, folder)`` loads them onto the original model.

        Args:
            folder: made where it is missing.

        Returns:
            Its path.

        Raises:
            SettingsError: there are no adapters.
        """
        check_path("folder", folder)
        if self.parts.adapters is None:
            raise SettingsError("There are no adapters to save. Give lora_settings=pb.LoraSettings() to pb.trainable.")
        return save_adapters(self.parts.model, self.parts.adapters, Path(folder))

    def unlearned(self) -> list[str]:
        """Return the quantizers of activations that have seen no value yet."""
        return [
            name
            for name, one in self.parts.quantizers.items()
            if isinstance(one, ActivationQuantizer) and not one.is_learned
        ]


@functools.lru_cache(maxsize=64)
def _with_signature(forward: Callable[..., Any]) -> type[TrainableModel]:
    """Return the class of models whose original has this ``forward``: its signature is the original's."""

    def call(self: TrainableModel, *args: Any, **kwargs: Any) -> Any:
        return TrainableModel.forward(self, *args, **kwargs)

    functools.update_wrapper(call, TrainableModel.forward)
    call.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    made = {"forward": call, "__doc__": TrainableModel.__doc__, "__module__": TrainableModel.__module__}
    return type(TrainableModel.__name__, (TrainableModel,), made)


@torch.no_grad()
def teach(model: TrainableModel, observed: fx.GraphModule) -> None:
    """Give observers the scales that a trained model has learned, and weights their integers; matched by name."""
    for name, quantizer in model.parts.quantizers.items():
        observer: Any = observed.get_submodule(name)
        if isinstance(quantizer, WeightQuantizer):
            observer.take(quantizer.scheme)
            observer.found = observer.found.fixed(observer.axis, quantizer.scheme, quantizer.rows(observer.weight))
        elif isinstance(quantizer, ActivationQuantizer) and quantizer.is_learned:
            observer.fix(quantizer.low, quantizer.high)


_BASE = ".base_layer."
_LEARNED = "prepbench.learned"


def _with_names_of_original(module: TrainableModel, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    """State-dict hook: rename ``base_layer`` of layers with adapters to the original's names.

    The state of quantizers is in no tensor of the original either. It goes into the metadata beside the tensors,
    which every class loads and ``torch.save`` writes.
    """
    for name in [name for name in state if _BASE in name]:
        state[name.replace(_BASE, ".")] = state.pop(name)
    metadata[_LEARNED] = {name: one.state() for name, one in _learning(module).items()}


def _learning(module: TrainableModel) -> dict[str, ActivationQuantizer | WeightQuantizer]:
    found = module.parts.quantizers.items()
    return {name: one for name, one in found if isinstance(one, ActivationQuantizer | WeightQuantizer)}


@torch.no_grad()
def _with_zeros(module: TrainableModel, _: Any) -> None:
    """Load hook: masked weights become zero again, whatever was loaded."""
    for name, zeros in module.parts.zeros.items():
        weight = module.get_parameter(name)
        weight.masked_fill_(zeros.to(weight.device), 0)


def _with_names_of_adapted(module: TrainableModel, state: dict[str, Any], prefix: str, metadata: Any, *_: Any) -> None:
    """Load hook: undo :func:`_with_names_of_original`. Without saved ranges the current ones stay; clippings are
    optimized again.
    """
    learning = _learning(module)
    for one in learning.values():
        if isinstance(one, WeightQuantizer):
            one.take([])  # they belong to the weights that were there
    known = metadata.get(_LEARNED)
    if isinstance(known, dict) and known.keys() == learning.keys():
        for name, one in learning.items():
            one.take(known[name])
    for name in [name for name, _ in module.named_parameters()] + [name for name, _ in module.named_buffers()]:
        short = prefix + name.replace(_BASE, ".")
        if short != prefix + name and short in state:
            state[prefix + name] = state.pop(short)


# Fake quantizers for training: they round as a compile does, gradients pass through them, and ranges keep adapting.


# in training, every how many calls the range of a value is looked at, and how much of it is believed
_EVERY = 4
_BELIEVED = 0.05
# in training, after how many calls the best clipping of a weight is looked for again
_CLIPS_EVERY = 200


class ActivationQuantizer(nn.Module):
    """Rounds the values that pass through. In training mode its range follows them, by a moving average.

    Gradients pass unchanged within the range, and not at all beyond it.

    Source: Jacob, Kligys, Chen, Zhu, Tang, Howard, Adam, Kalenichenko, "Quantization and Training of Neural Networks
    for Efficient Integer-Arithmetic-Only Inference", 2017, section 3.1.

    Args:
        observer: an ``ActivationObserver``, calibrated or fresh, with the method by which the range is learned.
    """

    def __init__(self, observer: Any) -> None:
        super().__init__()
        self._observer = [observer]  # in a list, because it is a module, too, whose mode and state are of no interest
        known: tuple[float, float] = observer._range() if observer.finite else (math.inf, -math.inf)
        self.low, self.high = known
        self._calls = 0
        self._seen = 0
        self._is_calibrated = bool(observer.finite)
        self._known: tuple[tuple[float, float], float, int] | None = None

    @property
    def is_learned(self) -> bool:
        """Whether it has a range."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scale and zero point, tensors of one element."""
        found: tuple[torch.Tensor, torch.Tensor] = self._observer[0]._of_range(self.low, self.high)
        return found

    def state(self) -> Any:
        """Return the learned range, for :meth:`take`."""
        return self.low, self.high

    def take(self, state: Any) -> None:
        """Restore a learned range."""
        self.low, self.high = state

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and x.numel():
            if self._calls % _EVERY == 0:
                self._follow(x.detach())
            self._calls += 1
        if not self.is_learned:
            return x
        if self._known is None or self._known[0] != (self.low, self.high):
            scale, zero_point = self.qparams()
            self._known = (self.low, self.high), float(scale), int(zero_point)
        observer, (_, step, zero) = self._observer[0], self._known
        return torch.fake_quantize_per_tensor_affine(x, step, zero, observer.quant_min, observer.quant_max)

    def _follow(self, x: torch.Tensor) -> None:
        observer = self._observer[0]
        if observer.method == "minmax":
            low, high = torch.stack(torch.aminmax(x)).tolist()
        else:
            observer.forget()
            observer._observe(x)
            low, high = observer._range() if observer.finite else (math.nan, math.nan)
        if not (math.isfinite(low) and math.isfinite(high)):
            return  # a diverged step gives no usable range
        if not self.is_learned:
            self.low, self.high = low, high
        else:
            share = _BELIEVED if self._is_calibrated else max(_BELIEVED, 1 / (self._seen + 1))
            self.low += share * (low - self.low)
            self.high += share * (high - self.high)
        self._seen += 1


class WeightQuantizer(nn.Module):
    """Rounds a weight. Scales follow the weight; the clipping of each row's range is optimized from time to time.

    Args:
        scheme: bits, blocks, symmetry; rounds to nearest whatever its algorithm.
        axis: the axis of output channels.
    """

    def __init__(self, scheme: WeightScheme, axis: int) -> None:
        super().__init__()
        self.scheme = scheme
        self.axis = axis
        self._clips: list[torch.Tensor] = []
        self._calls = 0

    def state(self) -> Any:
        """Return the current clipping of ranges, for :meth:`take`."""
        return list(self._clips)

    def take(self, state: Any) -> None:
        """Restore the clipping of ranges."""
        self._clips = list(state)

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        if self.training:
            if self._calls % _CLIPS_EVERY == 0:
                self._clips.clear()
            self._calls += 1
        rows = rows_of(weight, self.axis, self.scheme)
        found = self._rounded(rows, *self._qparams(rows, weight))
        if rows.numel() == weight.numel() and (weight.ndim < 2 or self.axis == 0 or not self.scheme.per_channel):
            return found.reshape(weight.shape)
        return found.reshape(weight.movedim(self.axis, 0).shape).movedim(0, self.axis)

    @torch.no_grad()
    def rows(self, weight: torch.Tensor) -> QuantizedRows:
        """Return the weight in integers, as :meth:`forward` rounds it."""
        rows = rows_of(weight.detach().float(), self.axis, self.scheme)
        scale, zero_point = self._qparams(rows, weight)
        # torch multiplies by the reciprocal of the scale, which takes numbers halfway between two integers, such as the
        # largest of a row, to another one than a division does
        rounded = self._rounded(rows, scale, zero_point)
        return QuantizedRows(integers(rounded, scale, zero_point, self.scheme), scale, zero_point)

    def _rounded(self, rows: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor) -> torch.Tensor:
        low, high = self.scheme.limits
        if len(scale) == 1:
            whole = (scale.reshape(()), zero_point.to(torch.int32).reshape(()))
            return torch.fake_quantize_per_tensor_affine(rows, *whole, low, high)
        return torch.fake_quantize_per_channel_affine(rows, scale, zero_point.to(torch.int32), 0, low, high)

    @torch.no_grad()
    def _qparams(self, rows: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.scheme.least_error:
            return clipped_qparams(rows, self.scheme, None)
        if not self._clips:
            clips = weight_clips(weight, self.axis, self.scheme)
            assert clips is not None
            self._clips.append(clips)
        return clipped_qparams(rows, self.scheme, self._clips[0].to(rows.device))
