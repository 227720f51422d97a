"""The kernels of an ExecuTorch program, from its runtime's event trace (ETDump)."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from prepbench._torch_compat.checks import needed_for
from prepbench.errors import ArtifactError
from prepbench.packages import installed
from prepbench.patching import logs_dropped_here, output_here, undoing, warnings_ignored_here
from prepbench.storage import temporary_folder
from prepbench.targets.executorch.layers import InstructionLayers, Operators
from prepbench.targets.kernel_times import CONVERSIONS, KernelTime, KernelTimes, mean_call, placed

AROUND = "XNNPACK around its kernels"
"""Events for the set-up of a delegate's kernels for the sizes of a call, and for rounding of their clock."""

_DELEGATE, _OPERATOR, _CALL, _NATIVE = "DELEGATE_CALL", "OPERATOR_CALL", "Method::execute", "native_call_"
_NUMBER = re.compile(r" #\d+$")
_CONVERT = "Convert"

# kinds of XNNPACK's kernels by how their names begin, and the operators that become such kernels
_KINDS: tuple[tuple[str, frozenset[str]], ...] = tuple(
    (kernel, frozenset(operators.split()))
    for kernel, operators in (
        ("Convolution", "convolution conv1d conv2d"),
        ("Deconvolution", "convolution conv_transpose2d"),
        ("Fully Connected", "linear addmm mm convolution"),  # of a single pixel
        ("Dynamic Fully Connected", "linear addmm mm bmm"),
        ("Batch Matrix Multiply", "bmm matmul"),
        ("Average Pooling", "avg_pool2d mean"),
        ("Global", "mean"),
        ("Mean", "mean"),
        ("Sum", "sum mean"),
        ("Reduce", "amax amin"),
        ("Max Pooling", "max_pool2d max_pool2d_with_indices"),
        ("Softmax", "_softmax softmax"),
        ("Resize Bilinear", "upsample_bilinear2d"),
        ("Clamp", "relu relu6 hardtanh clamp"),
        ("Constant Pad", "constant_pad_nd"),
        ("Copy", "cat view_copy view reshape clone _clone_dim_order squeeze_copy unsqueeze_copy"),
        ("Slice", "slice_copy"),
        ("Transpose", "permute_copy permute"),
    )
)
_LISTED = frozenset().union(*(operators for _, operators in _KINDS))
_WITHOUT = ("quantize", "getitem", "batch_norm")
"""Operators that never have a kernel of their own."""


def kernel_times(file: Path, calls: Sequence[Sequence[Any]], rounds: int, layers: InstructionLayers) -> KernelTimes:
    """Run a program and return the time of each of its kernels, after one call to warm up."""
    with needed_for("the time that kernels of ExecuTorch take", "executorch"):
        from executorch.devtools.etdump.serialize import deserialize_from_etdump_flatcc
        from executorch.extension.pybindings.portable_lib import _load_for_executorch

    module = _load_for_executorch(str(file), enable_etdump=True)
    for inputs in [*calls, *(each for each in calls for _ in range(rounds))]:
        module.run_method("forward", list(inputs))
    with temporary_folder("profile") as folder:
        dump = folder / "events.etdp"
        module.write_etdump_result_to_file(str(dump))
        runs = deserialize_from_etdump_flatcc(dump.read_bytes()).run_data
    found = [_events(run) for run in runs if any(each.name == _CALL for each in _events(run))]
    return mean_call([_call(events, layers) for events in found[len(calls) :]], len(calls))


def _events(run: Any) -> list[Any]:
    return [event.profile_event for event in run.events or () if event.profile_event is not None]


def _call(events: Sequence[Any], layers: InstructionLayers) -> KernelTimes:
    kernels: list[KernelTime] = []
    inside: list[Any] = []
    seconds = 0.0
    for event in events:  # an event names its operation before the instruction
        if event.name == _CALL:
            seconds = _seconds(event)
        elif event.name == _DELEGATE:
            own = [each for each in inside if each.delegate_debug_id_str]
            kernels += _delegated(own, layers.delegates.get(event.instruction_id, ()))
            rest = max(_seconds(event) - sum(map(_seconds, own)), 0.0)
            kernels.append(KernelTime(AROUND, "", AROUND, rest, False))
            inside = []
        elif event.name == _OPERATOR:
            called = next((each.name for each in inside if str(each.name).startswith(_NATIVE)), _OPERATOR)
            operator = called.removeprefix(_NATIVE)
            layer = layers.operators.get(event.instruction_id)
            kernels.append(placed(f"{operator} {event.instruction_id}", operator, layer, _seconds(event)))
            inside = []
        else:
            inside.append(event)
    return KernelTimes(tuple(kernels), seconds)


def _seconds(event: Any) -> float:
    return float(event.end_time - event.start_time) / 1e9


def _delegated(events: Sequence[Any], operators: Operators) -> Iterator[KernelTime]:
    names = [str(event.delegate_debug_id_str) for event in events]
    for event, name, layer in zip(events, names, aligned(names, operators), strict=True):
        kind = _NUMBER.sub("", name)
        if kind.startswith(_CONVERT):
            yield KernelTime(name, kind, CONVERSIONS, _seconds(event), False)
        else:
            is_reordering = layer is None and kind.startswith("Transpose")
            yield placed(name, "Transpose" if is_reordering else kind, layer, _seconds(event))


def aligned(kernels: Sequence[str], operators: Operators) -> list[str | None]:
    """Return the layer of each kernel of a delegate; None for kernels without an operator.

    Kernels run in the order of the operators. Some operators have no kernel, because XNNPACK fuses them into another,
    and some kernels have no operator, because they change how memory is ordered. So as many as possible are matched in
    their order, those whose names agree before others.

    Example:
        >>> aligned(["Transpose (ND, X32) #1", "Convolution (NHWC, F32) GEMM #1"], (("convolution", "stem"),))
        [None, 'stem']
    """
    best = [[0] * (len(operators) + 1) for _ in range(len(kernels) + 1)]
    for i in reversed(range(len(kernels))):
        for j in reversed(range(len(operators))):
            likeness = _likeness(kernels[i], operators[j][0])
            match = likeness + best[i + 1][j + 1] if likeness else 0
            best[i][j] = max(match, best[i + 1][j], best[i][j + 1])
    found: list[str | None] = [None] * len(kernels)
    i = j = 0
    while i < len(kernels) and j < len(operators):
        likeness = _likeness(kernels[i], operators[j][0])
        if likeness and best[i][j] == likeness + best[i + 1][j + 1]:
            found[i] = operators[j][1]
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return found


def _likeness(kernel: str, operator: str) -> int:
    """Return how well a kernel fits an operator: 0 for not at all."""
    if kernel.startswith(_CONVERT) or any(word in operator for word in _WITHOUT):
        return 0
    for kind, operators in _KINDS:
        if kernel.startswith(kind):
            return 3 * (operator in operators)
    if operator in _LISTED:
        return 0
    name = kernel.partition(" (")[0].lower().replace(" ", "")
    return 3 if name in operator.replace("_", "") else 1


# Keep ExecuTorch's messages out of the user's output.


_LOCK = threading.RLock()


class Heard:
    """The messages on standard error during a block: by C++ to the descriptor, by Python bindings to ``sys.stderr``."""

    def __init__(self, file: IO[bytes], text: io.StringIO) -> None:
        self._file = file
        self._text = text

    def text(self) -> str:
        """Return the messages in one line; call it inside the block."""
        self._file.seek(0)
        return " ".join((self._text.getvalue() + self._file.read().decode(errors="replace")).split())


@contextlib.contextmanager
def quiet() -> Iterator[Heard]:
    """Suppress warnings and logs of Python and messages of C++ during the block.

    The package also configures the root logger at import; its handlers and level are restored.
    """
    root = logging.getLogger()
    handlers, level, text = list(root.handlers), root.level, io.StringIO()
    with _LOCK, tempfile.TemporaryFile() as file, warnings_ignored_here(), logs_dropped_here(), undoing() as undo:
        undo.add(lambda: root.setLevel(level))
        undo.add(lambda: root.handlers.__setitem__(slice(None), handlers))
        with output_here(sys.stdout, text), _descriptor_2(file):
            yield Heard(file, text)


@contextlib.contextmanager
def _descriptor_2(file: IO[bytes]) -> Iterator[None]:
    try:
        saved = os.dup(2)
    except OSError:  # a process without standard error
        yield
        return
    try:
        os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


# Loading a program in a process of its own first: ExecuTorch ends the process that loads a damaged one.


SECONDS = 60.0
_PROGRAM = """
import ctypes, importlib.util, sys

try:
    # the Python of torch and ExecuTorch takes seconds to import, and only their libraries are needed; ExecuTorch 1.3,
    # which has no _C, finds no backend once a library of torch was loaded before its own Python
    if importlib.util.find_spec("executorch.extension.pybindings._C") is None:
        raise ImportError
    home = importlib.util.find_spec("torch").submodule_search_locations[0]
    ctypes.CDLL(home + "/lib/libtorch_python.so", mode=ctypes.RTLD_GLOBAL)
    from executorch.extension.pybindings import _C

    check = _C.Verification.InternalConsistency
    program = _C._load_program(sys.argv[1], program_verification=check)
except (ImportError, OSError, AttributeError, TypeError):  # another version
    from executorch.runtime import Runtime

    program = Runtime.get().load_program(sys.argv[1])
assert program.load_method("forward") is not None
"""


def check_loads(file: Path) -> None:
    """Raise ``ArtifactError`` if a process that loads the program does not survive it."""
    command = [sys.executable, "-P", "-W", "ignore", "-c", _PROGRAM, str(file)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, errors="replace")
    except subprocess.TimeoutExpired as error:
        raise ArtifactError(
            f"{file} cannot be loaded within {SECONDS:.0f} s. Copy the folder again, or compile and save again."
        ) from error
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1][:300]
        raise ArtifactError(
            f"{file} is damaged, or of a newer ExecuTorch than {installed('executorch')}, which is here: a process "
            f"that loads it ends with status {done.returncode}, and says: {said}. Copy the folder again, install the "
            "executorch that wrote it, or compile and save the model again."
        )
