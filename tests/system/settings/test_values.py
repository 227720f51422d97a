"""Settings: what they accept, what they refuse and how, and their way to JSON and back."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prepbench.errors import SettingsError
from prepbench.settings import (
    CompileOptions,
    DeploymentSettings,
    EagerDeployment,
    ExecuTorchDeployment,
    InductorDeployment,
    LayerQuantizationSettings,
    OnnxRuntimeDeployment,
    OpenVinoDeployment,
    QuantizationSettings,
    TensorRtDeployment,
)

CLASSES = [
    QuantizationSettings,
    LayerQuantizationSettings,
    OnnxRuntimeDeployment,
    InductorDeployment,
    EagerDeployment,
]
ALL_CLASSES = [*CLASSES, CompileOptions, OpenVinoDeployment, TensorRtDeployment, ExecuTorchDeployment]


@pytest.mark.parametrize("cls", CLASSES)
def test_defaults_survive_json(cls: Any) -> None:
    assert cls.from_dict(json.loads(json.dumps(cls().to_dict()))) == cls()


@given(st.sampled_from([8]), st.booleans(), st.booleans())
def test_quantization_settings_survive_json(bits: int, weights_only: bool, per_channel: bool) -> None:
    settings = QuantizationSettings(
        weights_num_bits=bits, prefer_weights_only_quantization=weights_only, per_channel=per_channel
    )
    assert QuantizationSettings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings


@pytest.mark.parametrize("cls", ALL_CLASSES)
def test_every_field_is_documented_with_its_default(cls: Any) -> None:
    documented = inspect.cleandoc(cls.__doc__)
    for field in dataclasses.fields(cls):
        found = re.search(rf"^    {field.name}: (.*?)(?=^    \w|^\S|\Z)", documented, re.MULTILINE | re.DOTALL)
        assert found, f"{cls.__name__}.{field.name}"
        default = "none" if field.default == () else str(field.default)
        stated = re.search(r"Default\s+`*\"?(-?\w+(?:\.\d+)?)", found[1])
        assert stated, f"{cls.__name__}.{field.name}"
        assert stated[1] == default.removesuffix(".0"), f"{cls.__name__}.{field.name}"


@pytest.mark.parametrize("cls", CLASSES)
def test_settings_are_frozen_and_take_keywords_only(cls: Any) -> None:
    with pytest.raises(TypeError):
        cls(8)
    for field in dataclasses.fields(cls):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(cls(), field.name, None)


@pytest.mark.parametrize(
    "field, value",
    [
        ("weights_num_bits", 3),
        ("weights_num_bits", "8"),
        ("weights_num_bits", 8.0),
        ("activations_num_bits", 0),
        ("activations_num_bits", None),
        ("prefer_weights_only_quantization", 1),
        ("per_channel", "yes"),
    ],
)
def test_a_wrong_value_is_refused_with_field_value_and_choices(field: str, value: Any) -> None:
    with pytest.raises(SettingsError) as caught:
        QuantizationSettings(**{field: value})
    message = str(caught.value)
    assert f"QuantizationSettings.{field}" in message
    assert repr(value) in message
    assert "must be" in message
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("field, value", [("weights_num_bits", 5), ("per_channel", 0), ("skip_quantization", None)])
def test_a_layer_refuses_wrong_values_too(field: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=rf"LayerQuantizationSettings\.{field} must be"):
        LayerQuantizationSettings(**{field: value})


@pytest.mark.parametrize("threads", [0, -1, True, 2.0, "2"])
def test_a_wrong_number_of_threads_is_refused(threads: Any) -> None:
    with pytest.raises(SettingsError, match="intra_op_threads must be None or a positive"):
        OnnxRuntimeDeployment(intra_op_threads=threads)


def test_an_unknown_field_in_json_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(SettingsError, match=r"no field 'weight_num_bits'. Did you mean 'weights_num_bits'\?"):
        QuantizationSettings.from_dict({"weight_num_bits": 8})
    with pytest.raises(SettingsError, match="There are: intra_op_threads"):
        OnnxRuntimeDeployment.from_dict({"zzz": 8})


def test_overrides_of_a_layer_keep_what_they_do_not_name() -> None:
    base = QuantizationSettings(prefer_weights_only_quantization=True)
    assert LayerQuantizationSettings().applied_to(base) == base
    assert LayerQuantizationSettings(per_channel=False).applied_to(base) == dataclasses.replace(base, per_channel=False)
    full = LayerQuantizationSettings(prefer_weights_only_quantization=False).applied_to(base)
    assert full is not None
    assert not full.prefer_weights_only_quantization
    assert LayerQuantizationSettings(skip_quantization=True).applied_to(base) is None


def test_every_field_of_a_layer_but_skipping_is_one_of_the_global_settings() -> None:
    names = {field.name for field in dataclasses.fields(LayerQuantizationSettings)}
    own = {name for name in names if not name.startswith("skip_")}
    assert own == {field.name for field in dataclasses.fields(QuantizationSettings)}


def test_targets_are_deployment_settings() -> None:
    for cls in (OnnxRuntimeDeployment, InductorDeployment, EagerDeployment):
        assert issubclass(cls, DeploymentSettings)


def test_settings_load_no_optional_package() -> None:
    code = (
        "import sys, prepbench.settings; "
        "print([m for m in ('torchao', 'onnx', 'onnxruntime', 'onnxscript', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert done.stderr == ""
