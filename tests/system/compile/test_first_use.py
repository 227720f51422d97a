"""The first compile of a process prints nothing: what libraries log when they are loaded stays out of notebooks."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.turns import one_pair_each

SCRIPT = """
import threading
import torch, prepbench as pb
from prepbench.targets import target_named

model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(1), torch.nn.Linear(288, 4))
samples = [torch.randn(2, 3, 8, 8), torch.randn(3, 3, 8, 8)]

def run():
    compiled = pb.compile_model(
        model.eval(),
        tracing_inputs=samples,
        calibration_inputs=samples,
        deployment_settings=target_named({target!r}).settings_type(),
        quantization_settings=pb.QuantizationSettings(),
    )
    assert any(layer.quantized for layer in compiled.report.layers)
    compiled(samples[0])

if {in_thread}:
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
else:
    run()
"""


@pytest.mark.parametrize(
    ("target", "in_thread"),
    one_pair_each({name: name for name in ("onnxruntime", "openvino")}, {"in a thread": True, "here": False}, 2),
)
def test_a_first_compile_prints_nothing(target: str, in_thread: bool) -> None:
    script = SCRIPT.format(target=target, in_thread=in_thread)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert (done.stdout, done.stderr) == ("", "")
