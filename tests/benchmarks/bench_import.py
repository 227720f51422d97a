"""What ``import prepbench`` costs on top of ``import torch``, and which heavy packages it loads; fresh processes."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

RUNS = 7
HEAVY = ("torchao", "onnx", "onnxruntime", "plotly", "pandas", "ipywidgets", "transformers")
_PROGRAM = """
import json, sys, time
start = time.perf_counter()
import torch
between = time.perf_counter()
{extra}
end = time.perf_counter()
print(json.dumps([between - start, end - between, sorted({{m.partition('.')[0] for m in sys.modules}})]))
"""
CASES = {
    "import prepbench": "import prepbench",
    "pb.compare": "import prepbench; prepbench.compare",
    "every public name": "import prepbench; [getattr(prepbench, name) for name in prepbench.__all__]",
}


def measure(extra: str) -> tuple[float, float, list[str]]:
    """Seconds for ``import torch``, seconds for ``extra`` after it, and the top-level packages loaded in the end."""
    program = [sys.executable, "-W", "ignore", "-c", _PROGRAM.format(extra=extra)]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    torch_s, extra_s, modules = json.loads(done.stdout.splitlines()[-1])
    return torch_s, extra_s, modules


def main() -> int:
    """Print one line for each case, the median over interleaved runs; returns 1 if one of them failed."""
    results: dict[str, list[tuple[float, float, list[str]]]] = {name: [] for name in CASES}
    failed: dict[str, str] = {}
    for _ in range(RUNS):
        for name in [case for case in CASES if case not in failed]:
            try:
                results[name].append(measure(CASES[name]))
            except subprocess.CalledProcessError as error:
                failed[name] = error.stderr.strip().splitlines()[-1]
    for name, reason in failed.items():
        print(f"{name}: failed: {reason}", file=sys.stderr)
    base = statistics.median(torch_s for runs in results.values() for torch_s, _, _ in runs)
    print(f"import torch           {base * 1e3:8.1f} ms")
    for name, runs in results.items():
        if runs:
            extra_s = statistics.median(extra for _, extra, _ in runs)
            heavy = [package for package in HEAVY if package in runs[0][2]]
            print(f"+ {name:20} {extra_s * 1e3:8.1f} ms   loads {', '.join(heavy) or 'none of ' + ', '.join(HEAVY)}")
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
