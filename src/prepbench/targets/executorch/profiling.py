"""The kernels of an ExecuTorch program, from its runtime's event trace (ETDump)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from prepbench._torch_compat.checks import needed_for
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
    """Run a program and return the time of each of its kernels.

    Args:
        file: the ``.pte`` file.
        calls: inputs as the program takes them, each a call.
        rounds: the repetitions of each call, after one to warm up.
        layers: of its instructions.
    """
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

    Args:
        kernels: names of XNNPACK.
        operators: the operators of the delegate.

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
