"""Prints how each module of the zoo fails: ``python -m tests.compile.fixes.zoo [NAME...]``."""

import sys
import time

import prepbench as pb
from prepbench.capture.aten.capture import FullGraphError
from tests.compile.fixes.zoo.all import CASES

for name, case in CASES.items():
    if len(sys.argv) > 1 and name not in sys.argv[1:] and case.area not in sys.argv[1:]:
        continue
    model, samples = case.built()
    start = time.perf_counter()
    try:
        pb.capture(model, samples)
        text = "captured"
    except FullGraphError as error:
        text = "; ".join(f"{f.kind} | {f.source} | {f.exception_type}: {f.message[:90]!r}" for f in error.failures)
    except Exception as error:
        text = f"ERROR {type(error).__name__}: {str(error)[:200]}"
    print(f"{case.area}.{name} {time.perf_counter() - start:.1f}s {text}", flush=True)
