"""One process that compiles again and again for a target; prints what it holds after each ten compiles.

``python -m tests.system.stress.leaks TARGET COUNT``
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import tempfile
import threading
from pathlib import Path

import torch

import prepbench as pb
from tests.system.stress.models import Small, samples

TARGETS = {
    "eager": pb.EagerDeployment,
    "onnxruntime": pb.OnnxRuntimeDeployment,
    "openvino": pb.OpenVinoDeployment,
    "executorch": pb.ExecuTorchDeployment,
    "inductor": pb.InductorDeployment,
}


def held() -> dict[str, int]:
    """What this process holds: bytes of memory, and counts of everything that could be left behind."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    status = Path("/proc/self/status").read_text().splitlines()
    memory = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))
    return {
        "memory": memory,
        "files": len([name for name in os.listdir(tempfile.gettempdir()) if name.startswith("prepbench-")]),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "operators": len(torch._C._dispatch_get_all_op_names()),
        "objects": len(gc.get_objects()),
    }


def main(target: str, count: int, step: int) -> None:
    model = Small(1).eval()
    for number in range(1, count + 1):
        compiled = pb.compile_model(
            model,
            tracing_inputs=samples(),
            calibration_inputs=samples(),
            deployment_settings=TARGETS[target](),
            quantization_settings=pb.QuantizationSettings(),
        )
        compiled(samples()[1])
        del compiled
        if number % step == 0:
            print(json.dumps(held()), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
