"""The public names, and what importing them costs."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import prepbench as pb

HEAVY = (
    "torchao",
    "onnx",
    "onnxscript",
    "onnxruntime",
    "plotly",
    "pandas",
    "ipywidgets",
    "anywidget",
    "graphviz",
    "transformers",
)


def test_every_public_name_loads() -> None:
    for name in pb.__all__:
        assert getattr(pb, name) is not None, name
    assert pb.__version__
    assert set(pb.__all__) <= set(dir(pb))


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="recursive_tracee"):
        pb.recursive_tracee  # noqa: B018


@pytest.mark.parametrize(
    "statement", ["import prepbench", "import prepbench as pb; pb.capture; pb.recursive_trace; pb.QuantizationSettings"]
)
def test_import_loads_nothing_heavy(statement: str) -> None:
    program = f"import sys, torch; {statement}; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert done.stderr == ""


@pytest.mark.parametrize(
    "first", ["import prepbench.capture.modules.collection", "import prepbench.measure.metrics", "pass"]
)
def test_packages_named_like_their_function_are_callable(first: str) -> None:
    program = (
        f"{first}\nimport prepbench as pb\nimport inspect\n"
        "print(callable(pb.capture), callable(pb.compare), list(inspect.signature(pb.capture).parameters)[:2])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True True ['module_or_func', 'inputs']"


def test_a_compile_needs_no_package_of_another_target() -> None:
    program = """
import sys


class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("executorch", "openvino", "peft", "dask", "distributed", "jupyterlab", "ipykernel"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Missing())
import torch
import prepbench as pb

samples = [torch.randn(2, 8), torch.randn(3, 8)]
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)).eval()
settings = pb.QuantizationSettings()
compiled = pb.compile_model(
    model, calibration_inputs=samples, deployment_settings=pb.OnnxRuntimeDeployment(), quantization_settings=settings
)
print(pb.profile(compiled, samples), pb.Bench(model, tracing_inputs=samples))
assert sum(layer.quantized for layer in compiled.report.layers) == 2
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def test_public_callables_are_documented() -> None:
    for name in pb.__all__:
        value = getattr(pb, name)
        if callable(value):
            assert inspect.getdoc(value), name
