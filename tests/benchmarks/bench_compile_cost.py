"""What a compile costs: calibration against the float forward, the whole against the bare library calls, peak memory.

``python -m tests.benchmarks.bench_compile_cost [calibration | overhead | memory ...]`` runs these parts, or all. Each
measurement is a process of its own, with compile caches of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import prepbench as pb
from tests.benchmarks.compile_models import Case, build

CALIBRATION_LIMIT = 2.0  # time of a calibration batch over the time of a float forward
OVERHEAD_LIMIT = 1.15  # time of compile_model over the time of the libraries' own calls
CALIBRATED = ("resnet", "mobilenetv2", "vit")
COMPILED = ("resnet", "vit")
REPEATS = 3
MEMORY_LIMIT = 1.0  # what int8 adds to the process at its peak, over what the libraries' own calls add
WIDTH, DEPTH = 2048, 22  # of the model whose memory is measured: 370 MB


def calibration(model: str) -> dict[str, float]:
    """Seconds of a calibration batch and of a float forward of the same graph on the same batch.

    A forward is run at each step that is reported, so that both see the same state of the machine.
    """
    case = build(model)
    batches = case.calibration * 3
    example = case.calibration[0]
    graph = torch.export.export(case.model, example).module()
    observing: list[float] = []
    forward: list[float] = []
    start = 0.0

    def step(progress: pb.Progress) -> None:
        nonlocal start
        if progress.stage != "calibrate" or progress.total != len(batches):
            return
        if progress.done:
            observing.append(time.perf_counter() - start)
        if progress.done == progress.total:
            raise pb.Cancelled("Measured.")
        start = time.perf_counter()
        with torch.no_grad():
            graph(*batches[progress.done])
        forward.append(time.perf_counter() - start)
        start = time.perf_counter()

    with contextlib.suppress(pb.Cancelled):
        _compile(case.model, case.tracing, batches, pb.OnnxRuntimeDeployment(), progress=step)
    return {"calibration": statistics.median(observing), "forward": statistics.median(forward)}


def overhead(model: str, way: str) -> dict[str, float]:
    """Wall and processor seconds (child processes too) of one way to get from the model to something that runs."""
    _import_all()
    case = build(model)
    deployments = {"onnxruntime": pb.OnnxRuntimeDeployment, "inductor": pb.InductorDeployment}
    who, target, *unmeasured = way.split(" ")
    start, cpu = time.perf_counter(), _cpu_seconds()
    if who == "libraries":
        call = _libraries(case, target)
    else:
        call = _compile(
            case.model, case.tracing, case.calibration, deployments[target](), is_model_pretrained=not unmeasured
        )
    call(*case.evaluation[0])
    result = {"wall": time.perf_counter() - start, "cpu": _cpu_seconds() - cpu}
    return result if who == "libraries" else result | call.report.seconds


def _cpu_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _import_all() -> None:
    """Both ways need these; importing them is not what is compared."""
    import onnx  # noqa: F401
    import onnxruntime  # noqa: F401
    import onnxscript  # noqa: F401
    import torch._dynamo
    import torch._inductor.compile_fx  # noqa: F401
    import torchao.quantization.pt2e.quantize_pt2e
    import torchao.quantization.pt2e.quantizer.x86_inductor_quantizer  # noqa: F401

    import prepbench.compile  # noqa: F401


def _compile(model: nn.Module, tracing: Any, calibrating: Any, deployment: pb.DeploymentSettings, **more: Any) -> Any:
    return pb.compile_model(
        model,
        tracing_inputs=tracing,
        calibration_inputs=calibrating,
        deployment_settings=deployment,
        quantization_settings=pb.QuantizationSettings(),
        **more,
    )


def _libraries(case: Case, target: str) -> Callable[..., Any]:
    """What prepbench does for int8, by the libraries' own calls: export, PT2E with ranges from the least and greatest
    value, export again, lower. Nothing is checked, measured or reported.
    """
    import torchao.quantization.pt2e.quantizer.x86_inductor_quantizer as x86
    from torchao.quantization.pt2e import MinMaxObserver
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    example = case.tracing[1]
    shapes = tuple({0: torch.export.Dim("batch")} for _ in example)
    default = x86.get_default_x86_inductor_quantization_config()
    ranges = dataclasses.replace(
        default.input_activation, observer_or_fake_quant_ctr=MinMaxObserver.with_args(eps=2**-12)
    )
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(dataclasses.replace(default, input_activation=ranges, output_activation=ranges))
    with torch.no_grad():
        prepared = prepare_pt2e(
            torch.export.export(case.model, example, dynamic_shapes=shapes, strict=False).module(), quantizer
        )
        for inputs in case.calibration:
            prepared(*inputs)
        program = torch.export.export(convert_pt2e(prepared), example, dynamic_shapes=shapes, strict=False)
        folder = Path(tempfile.mkdtemp())
        if target == "inductor":
            file = str(folder / "model.pt2")
            torch._inductor.aoti_compile_and_package(program, package_path=file, inductor_configs={"freezing": True})
            return torch._inductor.aoti_load_package(file)
        import onnxruntime

        file = str(folder / "model.onnx")
        torch.onnx.export(program, dynamo=True, verbose=False).save(file)
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        names = [value.name for value in session.get_inputs()]
        return lambda *inputs: session.run(None, {n: x.numpy() for n, x in zip(names, inputs, strict=True)})


class Wide(nn.Module):
    """Linear layers with residuals, almost all of whose bytes are weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return x


def memory(way: str) -> dict[str, float]:
    """MB that a compile adds to the process at its peak, and the MB of the model's weights."""
    _import_all()
    torch.manual_seed(0)
    model = Wide().eval()
    tracing = [(torch.randn(batch, WIDTH),) for batch in (1, 2)]
    calibrating = [(torch.randn(8, WIDTH),) for _ in range(2)]
    with torch.no_grad():
        model(*calibrating[0])
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts afresh
    before = _status("VmRSS")
    if way == "libraries":
        _libraries(Case(model, ("x",), tracing, calibrating, [], False), "onnxruntime")
    elif way.startswith("int8"):
        _compile(model, tracing, calibrating, pb.OnnxRuntimeDeployment(), discard_input_model=way.endswith("True"))
    else:
        deployment = pb.EagerDeployment() if "eager" in way else pb.OnnxRuntimeDeployment()
        pb.compile_model(
            model, tracing_inputs=tracing, deployment_settings=deployment, discard_input_model=way.endswith("True")
        )
    weights = sum(p.numel() * p.element_size() for p in model.parameters()) / 1e6
    return {"peak": _status("VmHWM") - before, "weights": weights}


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(field))


def run(*arguments: str) -> dict[str, float]:
    """What ``worker`` measures, in a fresh process with empty compile caches; raises ``RuntimeError`` if it fails."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.bench_compile_cost", "--worker", *arguments]
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError((done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1])
    return json.loads(done.stdout.splitlines()[-1])


def verdict(passed: bool, text: str) -> None:
    """Print a limit and whether it is kept."""
    print(f"  {'PASS' if passed else 'FAIL'}  {text}", flush=True)


def main_calibration() -> None:
    """Calibration time of a batch over the float forward of a batch."""
    for model in CALIBRATED:
        found = run("calibration", model)
        times = found["calibration"] / found["forward"]
        verdict(
            times <= CALIBRATION_LIMIT,
            f"{model}: a calibration batch takes {found['calibration'] * 1e3:.0f} ms, {times:.2f}x the float forward "
            f"(limit {CALIBRATION_LIMIT:g})",
        )


def main_overhead() -> None:
    """Time of ``compile_model``, as it is and without measuring layers, over the libraries' own calls."""
    for model, target in itertools.product(COMPILED, ("onnxruntime", "inductor")):
        ways = {
            "libraries": f"libraries {target}",
            "compile_model without measuring": f"prepbench {target} unmeasured",
            "compile_model": f"prepbench {target}",
        }
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
        for _ in range(REPEATS):
            for name, way in ways.items():
                runs[name].append(run("overhead", model, way))
        best = {name: min(found, key=lambda one: one["wall"]) for name, found in runs.items()}
        for name, found in best.items():
            wall, cpu, *_ = found.values()
            stages = "".join(f", {stage} {s:.1f}" for stage, s in found.items() if stage not in ("wall", "cpu"))
            print(f"{model} {target}: {name}: {wall:.1f} s ({cpu:.1f} s of processor){stages}", flush=True)
            times = wall / best["libraries"]["wall"]
            if name != "libraries":
                verdict(times <= OVERHEAD_LIMIT, f"{times:.2f}x the libraries' own calls (limit {OVERHEAD_LIMIT})")


def main_memory() -> None:
    """Peak memory of compiles, with the input model's tensors and with a copy of them."""
    kinds = ("float eager", "float", "int8")
    peaks = {}
    for way in ("libraries", *(f"{kind} {flag}" for kind in kinds for flag in (True, False))):
        found = run("memory", way)
        peaks[way] = found["peak"]
        kind, _, flag = way.rpartition(" ")
        name = f"{kind} discard_input_model={flag}" if kind else "int8 by the libraries' own calls"
        print(
            f"{name:<44} adds {found['peak']:6.0f} MB, {found['peak'] / found['weights']:.2f}x the weights", flush=True
        )
    for kind in kinds:
        shared, copied = peaks[f"{kind} True"], peaks[f"{kind} False"]
        verdict(shared < copied, f"{kind}: {shared:.0f} MB with the model's own tensors, {copied:.0f} MB with a copy")
    times = peaks["int8 True"] / peaks["libraries"]
    verdict(times <= MEMORY_LIMIT, f"int8: {times:.2f}x the peak of the libraries' own calls (limit {MEMORY_LIMIT:g})")


PARTS = {"calibration": main_calibration, "overhead": main_overhead, "memory": main_memory}
WORKERS: dict[str, Callable[..., dict[str, float]]] = {
    "calibration": calibration, "overhead": overhead, "memory": memory,
}  # fmt: skip


def main(parts: Sequence[str]) -> None:
    """Print each part; a part that fails says why."""
    for part in parts or PARTS:
        print(f"--- {part}", flush=True)
        try:
            PARTS[part]()
        except RuntimeError as error:
            verdict(False, f"{part}: {error}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        print(json.dumps(WORKERS[sys.argv[2]](*sys.argv[3:])))
    else:
        main(sys.argv[1:])
