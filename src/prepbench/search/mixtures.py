"""Mixtures (mixed precision: one choice for each layer) as arguments of ``compile_model`` and as code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from torch import nn

from prepbench.search.candidates import Choices
from prepbench.settings import (
    CompileOptions,
    DeploymentSettings,
    LayerPruningSettings,
    LayerQuantizationSettings,
    PruningSettings,
    QuantizationSettings,
    explain_settings,
    prunable_layers,
)
from prepbench.settings.rules import is_table, layer_named

FLOAT = "float"
"""The choice of a layer that stays as it is: neither quantized nor pruned."""

_Settings = TypeVar("_Settings", QuantizationSettings, PruningSettings)

Mixture = tuple[str, ...]
"""The name of what each layer takes, in the order of the layers."""


@dataclass
class Arguments:
    """The arguments of ``compile_model`` for each mixture, made once. A result keeps only this of a search.

    Attributes:
        model: the model.
        targets: layers, choices and settings of each target.
        options: of compiles.
    """

    model: nn.Module
    targets: Sequence[tuple[Sequence[str], Choices, DeploymentSettings]]
    options: CompileOptions
    _known: dict[tuple[int, Mixture], dict[str, Any]] = field(default_factory=dict, repr=False)

    def of(self, at: int, mixture: Mixture) -> dict[str, Any]:
        """Return the arguments of a mixture on the target at a position."""
        if (at, mixture) not in self._known:
            layers, choices, deployment = self.targets[at]
            taken = dict(zip(layers, mixture, strict=True))
            self._known[at, mixture] = compile_arguments(self.model, taken, choices, deployment, self.options)
        return dict(self._known[at, mixture])


def compile_arguments(
    model: nn.Module,
    mixture: Mapping[str, str],
    choices: Choices,
    deployment: DeploymentSettings,
    options: CompileOptions,
) -> dict[str, Any]:
    """Return the keyword arguments of ``compile_model`` that give each layer its choice, and nothing else.

    Args:
        model: the model.
        mixture: the name of the choice, by FQN of the layer; layers that are missing stay as they are.
        choices: bits and pruning by name.
        deployment: the target.
        options: algorithms. The guard that leaves ruined layers in float is switched off: the mixture decides.

    Example:
        >>> deployment = pb.OnnxRuntimeDeployment()
        >>> compile_arguments(nn.Sequential(nn.Linear(2, 2)), {"0": FLOAT}, {}, deployment, CompileOptions())
        {'deployment_settings': OnnxRuntimeDeployment(...), 'compile_options': CompileOptions(...)}
    """
    options = replace(options, keep_ruined_layers_in_float=False)
    result: dict[str, Any] = {"deployment_settings": deployment, "compile_options": options}
    taken = {fqn: choices[name] for fqn, name in mixture.items() if name != FLOAT}
    bits = {fqn: one.quantization for fqn, one in taken.items() if one.quantization is not None}
    pruning = {fqn: one.pruning for fqn, one in taken.items() if one.pruning is not None}
    if bits:
        common = _most_common(bits, [one.quantization for one in choices.values()])
        result["quantization_settings"] = common
        result["layer_quantization_settings"] = _with_tables(model, _bit_rules(model, bits, common), bits, common)
    if pruning:
        # a rule can set a threshold, and cannot take one back
        freest = {fqn: one for fqn, one in pruning.items() if one.pruning_sensitivity_threshold is None}
        most = _most_common(freest or pruning, [one.pruning for one in choices.values()])
        result["pruning_settings"] = most
        result["layer_pruning_settings"] = _pruning_rules(model, pruning, most)
    return result


def _most_common(taken: Mapping[str, _Settings], order: Sequence[_Settings | None]) -> _Settings:
    """Return the settings of most layers; on a tie, those that were given first."""
    counted = Counter(taken.values())
    return max(counted, key=lambda settings: (counted[settings], -order.index(settings)))


def _bit_rules(
    model: nn.Module, wanted: Mapping[str, QuantizationSettings], common: QuantizationSettings
) -> dict[str, LayerQuantizationSettings]:
    rules: dict[str, LayerQuantizationSettings] = {}
    for _ in range(2):  # a rule of a layer may be for layers inside of it as well, which then need their own
        for row in explain_settings(model, common, rules):
            expected = wanted.get(row.fqn)
            if row.settings != expected:
                rules[row.fqn] = _rule(expected, common)
    return rules


def _pruning_rules(
    model: nn.Module, wanted: Mapping[str, PruningSettings], common: PruningSettings
) -> dict[str, LayerPruningSettings]:
    """Return pruning rules of single layers; rules of layers that share weights are only consistent together."""
    rows = [row.fqn for row in prunable_layers(model, common, None)]
    return {fqn: _pruning_rule(wanted.get(fqn), common) for fqn in rows if wanted.get(fqn) != common}


def uniform_mixture(
    layers: Sequence[str], choices: Choices, refused: Collection[tuple[str, str]], name: str
) -> Mixture:
    """Return the mixture with one choice in all layers. A layer that cannot take it is pruned alike, or else gets the
    same bits, or stays in float.

    Args:
        layers: FQNs.
        choices: bits and pruning by name.
        refused: layers and choices that do not go together.
        name: of the choice; :data:`FLOAT` for none.
    """
    if name == FLOAT:
        return (FLOAT,) * len(layers)
    wanted = choices[name]
    alike = [other for other, one in choices.items() if one.pruning == wanted.pruning and wanted.pruning is not None]
    whole = [other for other, one in choices.items() if one.pruning is None and one.quantization == wanted.quantization]
    order = [name, *alike, *whole, FLOAT]
    return tuple(next(one for one in order if (fqn, one) not in refused) for fqn in layers)


def summary_of(mixture: Mixture) -> str:
    """Return a short text that describes a mixture.

    Example:
        >>> summary_of(("int8", "float", "int8"))
        '2 int8, 1 float'
    """
    counted = Counter(mixture)
    if len(counted) == 1:
        return mixture[0]
    return ", ".join(f"{counted[name]} {name}" for name in sorted(counted, key=lambda name: (name == FLOAT, name)))


def _rule(settings: QuantizationSettings | None, common: QuantizationSettings) -> LayerQuantizationSettings:
    if settings is None:
        return LayerQuantizationSettings(skip_quantization=True)
    # bits are always said, because a table of an embedding gets others where they are not
    return LayerQuantizationSettings(**{"weights_num_bits": settings.weights_num_bits} | _differing(settings, common))


def _pruning_rule(settings: PruningSettings | None, common: PruningSettings) -> LayerPruningSettings:
    if settings is None:
        return LayerPruningSettings(skip_pruning=True)
    return LayerPruningSettings(**_differing(settings, common))


def _differing(settings: Any, common: Any) -> dict[str, Any]:
    return {
        one.name: getattr(settings, one.name)
        for one in fields(settings)
        if getattr(settings, one.name) != getattr(common, one.name)
    }


def _with_tables(
    model: nn.Module,
    rules: dict[str, LayerQuantizationSettings],
    wanted: Mapping[str, QuantizationSettings],
    common: QuantizationSettings,
) -> dict[str, LayerQuantizationSettings]:
    """Add rules for embedding tables, which only weight-only settings quantize."""
    if common.prefer_weights_only_quantization:
        return rules
    tables = {fqn: value for fqn, value in wanted.items() if is_table(layer_named(model, fqn))}
    return rules | {fqn: _rule(value, common) for fqn, value in tables.items()}


def code_of(arguments: Mapping[str, Any], names: Sequence[str] = ()) -> str:
    """Return a call of ``compile_model`` with these arguments to paste; model and samples have the names they have
    here.

    Example:
        >>> print(code_of({"deployment_settings": pb.OnnxRuntimeDeployment()}))
        import prepbench as pb
        <BLANKLINE>
        compiled = pb.compile_model(
            model,
            calibration_inputs=calibration_inputs,
            deployment_settings=pb.OnnxRuntimeDeployment(),
        )
    """
    lines = ["import prepbench as pb", "", "compiled = pb.compile_model(", "    model,"]
    lines += [f"    {name}={name}," for name in ("calibration_inputs", *names)]
    for name, value in arguments.items():
        if isinstance(value, Mapping):
            lines += _rules_code(name, value)
        else:
            lines.append(f"    {name}={_call(value)},")
    return "\n".join([*lines, ")"])


def _rules_code(name: str, rules: Mapping[str, Any]) -> list[str]:
    if not rules:
        return []
    layers: dict[str, list[str]] = {}
    for key, rule in rules.items():
        layers.setdefault(_call(rule), []).append(key)
    lines = [f"    {name}={{"]
    for text, keys in layers.items():
        if len(keys) == 1:
            lines.append(f"        {keys[0]!r}: {text},")
        else:
            lines += ["        **dict.fromkeys(", "            [", *(f"                {key!r}," for key in keys)]
            lines += ["            ],", f"            {text},", "        ),"]
    return [*lines, "    },"]


def _call(settings: Any) -> str:
    """Return the constructor call of a settings object, without fields at their default."""
    stated = [
        f"{one.name}={getattr(settings, one.name)!r}"
        for one in fields(settings)
        if getattr(settings, one.name) != one.default
    ]
    return f"pb.{type(settings).__name__}({', '.join(stated)})"
