"""Mixtures: a choice of settings for each layer, as arguments of ``compile_model`` and as code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from torch import nn

from prepbench.settings import (
    CompileOptions,
    DeploymentSettings,
    LayerQuantizationSettings,
    QuantizationSettings,
    explain_settings,
)
from prepbench.settings.quantizable import is_table

FLOAT = "float"
"""The choice of a layer that is not quantized."""

Choices = Mapping[str, QuantizationSettings]
"""Settings that a layer may take, by name; without :data:`FLOAT`."""

Mixture = tuple[str, ...]
"""The name of what each layer takes, in the order of the layers."""


@dataclass
class Arguments:
    """The arguments of ``compile_model`` for each mixture, made once. A result keeps it, and nothing else of a search.

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
        """Those of a mixture on the target at a position."""
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
    """The keyword arguments of ``compile_model`` that give each layer what a mixture says, and nothing else.

    Args:
        model: the model.
        mixture: the name of the choice, by FQN of the layer; layers that are missing stay in float.
        choices: settings by name.
        deployment: the target.
        options: algorithms. The guard that leaves ruined layers in float is switched off: the mixture decides.

    Example:
        >>> deployment = pb.OnnxRuntimeDeployment()
        >>> compile_arguments(nn.Sequential(nn.Linear(2, 2)), {"0": FLOAT}, {}, deployment, CompileOptions())
        {'deployment_settings': OnnxRuntimeDeployment(...), 'compile_options': CompileOptions(...)}
    """
    options = replace(options, keep_ruined_layers_in_float=False)
    result: dict[str, Any] = {"deployment_settings": deployment, "compile_options": options}
    counted = Counter(name for name in mixture.values() if name != FLOAT)
    if not counted:
        return result
    common = max(counted, key=lambda name: (counted[name], -list(choices).index(name)))
    rules: dict[str, LayerQuantizationSettings] = {}
    wanted = {fqn: choices.get(name) for fqn, name in mixture.items()}
    for _ in range(2):  # a rule of a layer may be for layers inside of it as well, which then need their own
        for row in explain_settings(model, choices[common], rules):
            expected = wanted.get(row.fqn)
            if row.settings != expected:
                rules[row.fqn] = _rule(expected, choices[common])
    result["quantization_settings"] = choices[common]
    result["layer_quantization_settings"] = _with_tables(model, rules, wanted, choices[common])
    return result


def summary_of(mixture: Mixture) -> str:
    """A mixture in a few words.

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
    said = {"weights_num_bits": settings.weights_num_bits}
    differing = {
        one.name: getattr(settings, one.name)
        for one in fields(QuantizationSettings)
        if getattr(settings, one.name) != getattr(common, one.name)
    }
    return LayerQuantizationSettings(**said | differing)


def _with_tables(
    model: nn.Module,
    rules: dict[str, LayerQuantizationSettings],
    wanted: Mapping[str, QuantizationSettings | None],
    common: QuantizationSettings,
) -> dict[str, LayerQuantizationSettings]:
    """Tables of embeddings are layers only where weights alone are quantized, so they need rules of their own."""
    if common.prefer_weights_only_quantization:
        return rules
    modules = dict(model.named_modules())
    tables = {fqn: value for fqn, value in wanted.items() if value is not None and is_table(modules[fqn])}
    return rules | {fqn: _rule(value, common) for fqn, value in tables.items()}


def code_of(arguments: Mapping[str, Any], names: Sequence[str] = ()) -> str:
    """A call of ``compile_model`` with these arguments, to be pasted; model and samples have the names they have here.

    Args:
        arguments: settings.
        names: of further arguments, which are passed on under their own names.

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


def _rules_code(name: str, rules: Mapping[str, LayerQuantizationSettings]) -> list[str]:
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
    """A settings object as the call that makes it, without fields at their default."""
    stated = [
        f"{one.name}={getattr(settings, one.name)!r}"
        for one in fields(settings)
        if getattr(settings, one.name) != one.default
    ]
    return f"pb.{type(settings).__name__}({', '.join(stated)})"
