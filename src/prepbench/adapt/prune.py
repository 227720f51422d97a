"""Prune a program: whole channels first, then single weights of the rest."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import fx, nn
from torch.nn.utils import prune as torch_prune

from prepbench._torch_compat.programs import with_contents
from prepbench.adapt.channel_sets import ChannelSet, chosen_sets
from prepbench.adapt.channels.removal import Removal
from prepbench.adapt.channels.walk import channels_of
from prepbench.adapt.layer_uses import Use, input_powers, noises, uses_of
from prepbench.errors import PreparationError, SettingsError
from prepbench.inputs import Sample
from prepbench.objects.compare import ROUNDED, difference
from prepbench.objects.copy import Twin, clones
from prepbench.settings.explain import PrunableLayer
from prepbench.settings.pruning import CHANNELS, PruningSettings

Program = torch.export.ExportedProgram


@dataclass(frozen=True)
class Pruned:
    """A pruned program, the outcome of each layer, and masks by name: ones for weights that stay, if single ones go."""

    program: Program
    layers: tuple[PrunedLayer, ...]
    masks: Mapping[str, torch.Tensor]


def prune(
    program: Program,
    layers: Sequence[PrunableLayer],
    calibration: Sequence[Sample],
    checked: Sequence[Sample],
) -> Pruned:
    """Prune a flat program. The given program keeps its weights.

    Args:
        program: takes leaves and returns leaves.
        layers: the decision for each layer.
        calibration: calls of the program, for scores and thresholds that need them.
        checked: calls on which the program without channels must equal the one in which these are zero.

    Raises:
        SettingsError: nothing would be pruned; the message has the reasons.
        PreparationError: the smaller program does not compute the same.
    """
    smaller, sets = program, list[ChannelSet]()
    if any(row.settings is not None and row.settings.mask_type == CHANNELS for row in layers):
        channels = channels_of(program)
        sets, removed = chosen_sets(channels, layers, calibration)
        if removed.any():
            removal = Removal(channels, removed)
            smaller = removal.program()
            check_removed(removal.zeroed(), smaller, checked)
    masked = masked_layers(smaller, layers, calibration)
    masks = {name: mask for row in masked for name, mask in row.masks.items()}
    weights = {name: smaller.state_dict[name].detach() * mask for name, mask in masks.items()}
    result = with_weights(smaller, weights) if weights else smaller
    rows = tuple(report_of(row, program, result, weights, sets, masked) for row in layers)
    if result is program:
        told = [f"{row.fqn or 'the model'}: {row.reason or 'skipped'}" for row in rows]
        raise SettingsError(
            f"pruning_settings would prune nothing. {'; '.join(told[:6]) or 'No layer has a weight matrix'}. Give "
            'another mask_type ("1:1" fits every layer), a larger threshold, or leave pruning_settings out.'
        )
    return Pruned(result, rows, masks)


@torch.no_grad()
def check_removed(zeroed: Program, smaller: Program, samples: Sequence[Sample]) -> None:
    """Run both programs on samples and compare them.

    Raises:
        PreparationError: they differ.
    """
    right, made = (each.module(check_guards=False) for each in (zeroed, smaller))
    for sample in samples:
        expected, got = (list(run(*clones(sample.args))) for run in (right, made))
        found = difference(expected, got, ROUNDED)
        if not found.equal:
            raise PreparationError(
                f"The model without channels does not compute what it computes with zeros in their place: "
                f"{found.text}. Leave layers out with LayerPruningSettings(skip_pruning=True) in "
                "layer_pruning_settings, and report the model."
            )


def with_weights(program: Program, weights: Mapping[str, torch.Tensor]) -> Program:
    """Return the program with other weights; tied names stay tied."""
    made: dict[int, torch.Tensor] = {}
    for name, weight in weights.items():
        dense = program.state_dict[name]
        made[id(dense)] = nn.Parameter(weight.to(dense.dtype), dense.requires_grad)
    state = {name: made.get(id(value), value) for name, value in program.state_dict.items()}
    return with_contents(program, program.graph_module, state, program.constants)


def resized(model: nn.Module, program: Program) -> nn.Module:
    """Return a twin of a model that holds the tensors of a pruned program: to count parameters, not to run."""
    twin: nn.Module = Twin(model).model
    modules = dict(twin.named_modules(remove_duplicate=False))
    for name, tensor in program.state_dict.items():
        owner, _, last = name.rpartition(".")
        module = modules.get(owner)
        if module is not None and last in module._parameters:
            module._parameters[last] = nn.Parameter(tensor.detach(), requires_grad=False)
    return twin


# Writing what pruning did to each layer.


def report_of(
    row: PrunableLayer,
    before: Program,
    after: Program,
    weights: Mapping[str, torch.Tensor],
    sets: Sequence[ChannelSet],
    masked: Sequence[MaskedLayer],
) -> PrunedLayer:
    """Return the report of one layer of a pruned program."""
    own, left = (_own(program, row.fqn) for program in (before, after))
    masked_weights = [weights[name] for name in left if name in weights]
    zeros = sum(_zeros(weight, row) for weight in masked_weights)
    whole, stay = (_outputs(program, row.fqn) for program in (before, after))
    kinds = [row.settings.mask_type] if row.settings is not None else []
    is_pruned = zeros > 0 or whole != stay
    return PrunedLayer(
        row.fqn,
        row.type,
        kinds[0] if kinds and is_pruned else "",
        row.rule,
        sum(tensor.numel() for tensor in own.values()),
        sum(tensor.numel() for tensor in left.values()),
        zeros,
        whole,
        whole - stay,
        _reason(row, whole != stay, sets, masked),
        sum(weight.numel() for weight in masked_weights),
    )


def _zeros(weight: torch.Tensor, row: PrunableLayer) -> int:
    if weight.is_meta:  # only planned
        return round(weight.numel() * row.settings.share) if row.settings is not None else 0
    return int((weight == 0).sum())


def _reason(row: PrunableLayer, lost: bool, sets: Sequence[ChannelSet], masked: Sequence[MaskedLayer]) -> str:
    if row.settings is None:
        return f"skipped by rule {row.rule!r}"
    if row.settings.mask_type != CHANNELS:
        return next((each.why for each in masked if each.fqn == row.fqn and each.why), "")
    mine = [each for each in sets if row.fqn in each.layers]
    reasons = [each.why for each in mine if each.why]
    if not mine and not lost:
        return "not called on the tracing inputs, or its channels are not followed"
    return reasons[0] if reasons else "" if lost else "too few channels for this amount"


def _own(program: Program, fqn: str) -> dict[str, torch.Tensor]:
    """Return the parameters of one layer."""
    prefix = f"{fqn}." if fqn else ""
    names = (name for name in program.graph_signature.parameters if name.startswith(prefix))
    return {name: program.state_dict[name] for name in names if "." not in name[len(prefix) :]}


def _outputs(program: Program, fqn: str) -> int:
    """Return the number of output channels of a layer."""
    names = program.graph_signature.inputs_to_parameters
    for use in uses_of(program):
        if names[use.weight.name] in _own(program, fqn):
            weight = program.state_dict[names[use.weight.name]]
            return int(weight.shape[1 - use.inputs]) * (use.groups if use.inputs == 0 else 1)
    return max((len(tensor) for tensor in _own(program, fqn).values() if tensor.ndim > 1), default=0)


# The outcome of pruning for each layer.


@dataclass(frozen=True)
class PrunedLayer:
    """The outcome of pruning for one layer.

    Attributes:
        fqn: the layer.
        type: its class name.
        mask_type: the unit of pruning; empty where nothing was removed.
        rule: the settings key that decided, or ``"global"``.
        parameters: how many numbers its parameters had.
        left: how many of them are stored, without channels that are gone.
        zeros: how many of the stored ones are zero by a mask.
        channels: how many channels its output had.
        removed_channels: how many of them are gone, by its own settings or with a layer that makes the same channels.
        reason: why nothing, or less than the settings ask for, was removed.
        masked: how many of the stored ones a mask decides about: the weights without the bias.
    """

    fqn: str
    type: str
    mask_type: str = ""
    rule: str = "global"
    parameters: int = 0
    left: int = 0
    zeros: int = 0
    channels: int = 0
    removed_channels: int = 0
    reason: str = ""
    masked: int = 0

    @property
    def sparsity(self) -> float:
        """The share of its parameters that is removed or zero."""
        return 1 - (self.left - self.zeros) / self.parameters if self.parameters else 0.0

    @property
    def summary(self) -> str:
        """Return a short text of the outcome."""
        if self.left == self.parameters and not self.zeros:
            return f"dense: {self.reason}" if self.reason else "dense"
        parts = [f"{self.removed_channels} of {self.channels} channels removed"] if self.removed_channels else []
        parts += (
            [f"{self.zeros / (self.masked or self.left):.0%} of the weights are zero ({self.mask_type})"]
            if self.zeros
            else []
        )
        if not parts:
            stay = f" (its own stay: {self.reason})" if self.reason else ""
            parts = [f"{self.sparsity:.0%} smaller with the channels that it reads{stay}"]
        return ", ".join(parts)


# A pruned program as a module of the user's own classes, where their code accepts fewer channels.


Groups = Mapping[str, int]
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_NORMS = (
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d,
)  # fmt: skip


def in_own_classes(model: nn.Module, program: torch.export.ExportedProgram) -> nn.Module:
    """Return a copy of a model with the tensors of a pruned program, and with its sizes in torch's own layers.

    A forward that uses other numbers, such as a number of heads, may fail on it: run it before use.
    """
    made = copy.deepcopy(model)
    modules = dict(made.named_modules(remove_duplicate=False))
    shared: dict[int, nn.Parameter] = {}
    for name, tensor in program.state_dict.items():
        owner, _, last = name.rpartition(".")
        module = modules.get(owner)
        if module is None:
            continue
        if last in module._parameters and module._parameters[last] is not None:
            before = module._parameters[last]
            assert before is not None
            if id(tensor) not in shared:
                shared[id(tensor)] = nn.Parameter(tensor.detach().clone().to(before.dtype), before.requires_grad)
            _replace_everywhere(made, before, shared[id(tensor)])
        elif last in module._buffers:
            module._buffers[last] = tensor.detach().clone()
    groups = _groups(program)
    for fqn, module in made.named_modules():
        _renumber(module, groups.get(f"{fqn}.weight" if fqn else "weight"))
    return made


def _replace_everywhere(model: nn.Module, before: nn.Parameter, after: nn.Parameter) -> None:
    """Replace a tensor everywhere; tied weights stay tied."""
    for module in model.modules():
        for name, value in module._parameters.items():
            if value is before:
                module._parameters[name] = after


def _groups(program: torch.export.ExportedProgram) -> Groups:
    """Return the number of groups of convolutions and norms, by the name of the weight."""
    parameters = program.graph_signature.inputs_to_parameters
    found = {parameters[use.weight.name]: use.groups for use in uses_of(program)}
    for node in program.graph.nodes:
        weight = node.args[2] if node.target is torch.ops.aten.group_norm.default and len(node.args) > 2 else None
        if isinstance(weight, fx.Node) and weight.name in parameters:
            found[parameters[weight.name]] = int(node.args[1])
    return found


def _renumber(module: nn.Module, groups: int | None) -> None:
    for kind, change in _NUMBERS.items():
        if isinstance(module, kind):
            change(module, groups)


def _linear(module: nn.Module, _: int | None) -> None:
    module.out_features, module.in_features = module.weight.shape  # type: ignore[assignment, misc]


def _convolution(module: nn.Module, groups: int | None) -> None:
    assert isinstance(module, (*_CONVOLUTIONS, *_TRANSPOSED))
    module.groups = module.groups if groups is None else groups
    first, second = module.weight.shape[0], module.weight.shape[1] * module.groups
    is_transposed = isinstance(module, _TRANSPOSED)
    module.in_channels, module.out_channels = (first, second) if is_transposed else (second, first)


def _features(module: nn.Module, _: int | None) -> None:
    sized = module._parameters.get("weight")
    sized = sized if sized is not None else module._buffers.get("running_mean")  # type: ignore[assignment]
    if sized is not None:
        module.num_features = len(sized)  # type: ignore[assignment]


def _group_norm(module: nn.Module, groups: int | None) -> None:
    assert isinstance(module, nn.GroupNorm)
    if groups is not None:
        module.num_groups, module.num_channels = groups, len(module.weight)


def _table(module: nn.Module, _: int | None) -> None:
    module.num_embeddings, module.embedding_dim = module.weight.shape  # type: ignore[assignment, misc]


_NUMBERS: Mapping[type[nn.Module] | tuple[type[nn.Module], ...], Callable[[nn.Module, int | None], None]] = {
    nn.Linear: _linear,
    (*_CONVOLUTIONS, *_TRANSPOSED): _convolution,
    _NORMS: _features,
    nn.GroupNorm: _group_norm,
    nn.Embedding: _table,
}


# Masks: which single weights become zero.


STEPS = 8


@dataclass(frozen=True)
class MaskedLayer:
    """The masks of one layer, ones for weights that stay, by name, and why less than asked for is removed."""

    fqn: str
    masks: dict[str, torch.Tensor]
    why: str = ""


def masked_layers(
    program: torch.export.ExportedProgram, layers: Sequence[PrunableLayer], samples: Sequence[Sample]
) -> list[MaskedLayer]:
    """Return the layers whose settings prune single weights, in any pattern but whole channels."""
    rows = [row for row in layers if row.settings is not None and row.settings.mask_type != CHANNELS]
    by_weight: dict[str, list[Use]] = {}
    for use in uses_of(program):
        by_weight.setdefault(program.graph_signature.inputs_to_parameters[use.weight.name], []).append(use)
    watched = [
        use
        for row in rows
        if row.settings is not None and row.settings.score == "activations"
        for name in _weights(program, row.fqn)
        for use in by_weight.get(name, [])
    ]
    powers = input_powers(program, samples, watched) if watched else {}
    found = []
    for row in rows:
        for name in _weights(program, row.fqn):
            uses = by_weight.get(name, [])
            power = sum((powers[use.node] for use in uses if use.node in powers), torch.zeros(()))
            found.append(_masked(program, row, name, uses, power if power.ndim else None, samples))
    return found


def _weights(program: torch.export.ExportedProgram, fqn: str) -> list[str]:
    """Return the weights of a layer, by name in the program; a shared weight has several names."""
    prefix = f"{fqn}." if fqn else ""
    names = (name for name in program.graph_signature.parameters if name.startswith(prefix))
    return [
        name
        for name in names
        if "." not in (last := name[len(prefix) :])
        and (last.startswith("weight") or last.endswith("_weight"))
        and program.state_dict[name].ndim > 1
    ]


def _masked(
    program: torch.export.ExportedProgram,
    row: PrunableLayer,
    name: str,
    uses: Sequence[Use],
    power: torch.Tensor | None,
    samples: Sequence[Sample],
) -> MaskedLayer:
    settings, weight = row.settings, program.state_dict[name].detach()
    assert settings is not None
    if not weight.isfinite().all():
        return MaskedLayer(row.fqn, {}, "its weights hold NaN or infinite numbers, which no score orders")
    inputs, groups = (uses[0].inputs, uses[0].groups) if uses else (weight.ndim - 1 if weight.ndim == 2 else 1, 1)
    if settings.pattern is not None and weight.shape[inputs] % settings.pattern[1]:
        count, group = weight.shape[inputs], settings.pattern[1]
        why = f"its {count} inputs cannot be divided by {group} (mask_type {settings.mask_type!r})"
        return MaskedLayer(row.fqn, {}, why)
    scores = weight.abs().float()
    why = ""
    if settings.score == "activations":
        if power is None or groups != 1:
            why = "scored by magnitude, because it was not seen with one input for each column"
        else:
            shape = [-1 if dim == inputs else 1 for dim in range(weight.ndim)]
            scores = scores * power.sqrt().float().to(weight.device).reshape(shape)
    parts = (
        range(1, STEPS + 1)
        if settings.pattern is None and settings.pruning_sensitivity_threshold is not None
        else [STEPS]
    )
    masks = [_mask(scores, inputs, settings, part / STEPS) for part in parts]
    if settings.pruning_sensitivity_threshold is None:
        return MaskedLayer(row.fqn, {name: masks[-1]}, why)
    if not uses:
        return MaskedLayer(
            row.fqn, {}, "the noise of pruning it cannot be measured, because no product with it was found"
        )
    ratios = [0.0] * len(masks)
    for use in uses:
        changed = {use.node: [weight * mask for mask in masks]}
        ratios = [max(pair) for pair in zip(ratios, noises(program, samples, [use], changed)[use.node], strict=True)]
    allowed = [
        mask for mask, ratio in zip(masks, ratios, strict=True) if ratio <= settings.pruning_sensitivity_threshold
    ]
    if not allowed:
        return MaskedLayer(row.fqn, {}, f"pruning adds noise of {ratios[0]:.3g}, above the threshold")
    return MaskedLayer(row.fqn, {name: allowed[-1]}, why)


def _mask(scores: torch.Tensor, inputs: int, settings: PruningSettings, part: float) -> torch.Tensor:
    """Return ones for weights that stay, in the shape of the weight."""
    if settings.pattern is not None:
        kept, group = settings.pattern
        moved = scores.movedim(inputs, -1)
        groups = moved.reshape(*moved.shape[:-1], -1, group)
        best = groups.topk(kept, -1).indices
        return torch.zeros_like(groups).scatter_(-1, best, 1.0).reshape(moved.shape).movedim(-1, inputs)
    count = part * settings.share
    if settings.score == "activations":  # output by output, as Sun et al., "A Simple and Effective Pruning
        # Approach for Large Language Models", 2023, found best
        outputs = 1 - inputs if inputs < 2 else 0
        rows = scores.movedim(outputs, 0)
        flat = rows.reshape(len(rows), -1)
        gone = flat.argsort(dim=1, stable=True)[:, : round(count * flat.shape[1])]
        return torch.ones_like(flat).scatter_(1, gone, 0.0).reshape(rows.shape).movedim(0, outputs)
    method = torch_prune.L1Unstructured(round(count * scores.numel()))
    scores = scores.contiguous()
    return method.compute_mask(scores, torch.ones_like(scores))  # type: ignore[no-any-return]
