"""A failing submodule with its inputs as a standalone script: ``failure.reproduce("bug.py")``.

The script holds the source of the user's classes, the module's attributes and weights, and the inputs that the module
received; nothing is pickled. Classes of installed packages are imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench.capture.failures.reasons import DIFFERS, SHAPE
from prepbench.capture.failures.script import Script
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.document.model import Failure
from prepbench.errors import CaptureError, InputError
from prepbench.inputs import Sample
from prepbench.running.outcomes import without_output
from prepbench.running.record_inputs import record_inputs
from prepbench.running.twin import Twin
from prepbench.running.unchanged import own_copy, unchanged
from prepbench.storage import gone_if_it_fails, write_file


def with_reproduction(failures: Iterable[Failure], model: Any, samples: Sequence[Sample] | None) -> tuple[Failure, ...]:
    """The failures, each able to write a script for its module; they compare and are stored as before."""
    result = tuple(failures)
    for failure in result:
        # no field: a failure is data, and documents hold only data
        object.__setattr__(failure, "_reproduction", _Reproduction(failure, model, samples))
    return result


class _Reproduction:
    """What a failure needs beyond its data to write a script."""

    def __init__(self, failure: Failure, model: Any, samples: Sequence[Sample] | None) -> None:
        self._kind, self._fqn = failure.kind, failure.fqn
        self._text = f"{failure.exception_type}: {failure.message}"
        self._model, self._samples = model, samples

    def __deepcopy__(self, memo: Any) -> _Reproduction:
        return self

    def __reduce__(self) -> Any:
        return _nothing, ()

    def write(self, path: Path) -> Path:
        """Write the script, and large tensors to a file beside it. Writes nothing if an error occurs."""
        if not isinstance(self._model, torch.nn.Module):
            raise CaptureError(
                "Only failures of modules can be reproduced in a script, not those of functions. Put the function into "
                "the forward of a module and capture that."
            )
        module = self._model.get_submodule(self._fqn)
        script = Script()
        received = received_inputs(self._model, module, self._samples) if self._samples else []
        built = script.value(module, f"the module {self._fqn!r}")
        attempt = _export(script, received, self._kind) if received else "torch.fx.symbolic_trace(module)"
        text = script.text(built, attempt, f"{self._fqn or type(module).__name__} fails: {self._text}", path)
        if not script.tensors:
            return write_file(path, text)
        import safetensors.torch

        tensors, data = path.with_suffix(".safetensors"), safetensors.torch.save(script.tensors)
        with gone_if_it_fails(tensors):
            return write_file(path, text, before=lambda: write_file(tensors, data))


def _nothing() -> None:
    return None


def received_inputs(model: torch.nn.Module, module: torch.nn.Module, samples: Sequence[Sample]) -> list[Sample]:
    """What a submodule receives in its first call on each sample."""
    if module is model:
        return list(samples)
    first: list[Sample] = []
    twin = Twin(model)
    model, module = twin.model, twin.of(module)
    for sample in samples:
        with unchanged(model), without_output(), torch.no_grad(), record_inputs(module, max_samples=1) as recorded:
            own_copy(sample).call(model)
        first += recorded.samples if len(recorded) else []
    return first


def _export(script: Script, samples: list[Sample], kind: str) -> str:
    calls = [(script.value(tuple(s.args), "args"), script.value(dict(s.kwargs), "kwargs")) for s in samples]
    lines = [f"args, kwargs = {calls[0][0]}, {calls[0][1]}"]
    lines.append("leaves = torch.utils._pytree.tree_leaves((args, kwargs))")
    lines.append("shapes = torch.export.ShapesCollection()")
    hint = "DYNAMIC" if kind == SHAPE else "AUTO"
    for index, dims in sorted(_dynamic_dims(samples).items()):
        entries = ", ".join(f"{dim}: torch.export.Dim.{hint}" for dim in dims)
        lines.append(f"shapes[leaves[{index}]] = {{{entries}}}")
    lines.append("dynamic_shapes = shapes.dynamic_shapes(module, args, kwargs)")
    export = "torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)"
    if kind not in (SHAPE, DIFFERS):
        return "\n".join([*lines, export])
    # the first sample is captured, and the graph does not fit another one
    others = ", ".join(f"({args}, {kwargs})" for args, kwargs in calls)
    lines += [f"program = {export}.module()", f"for args, kwargs in [{others}]:"]
    lines += ["    expected = module(*args, **kwargs)"]
    lines += ["    torch.testing.assert_close(program(*args, **kwargs), expected, equal_nan=True)"]
    return "\n".join(lines)


def _dynamic_dims(samples: list[Sample]) -> dict[int, list[int]]:
    try:
        axes = DynamicAxes.infer(samples)
    except InputError:  # the module receives another structure on another sample
        return {}
    order = list(dict.fromkeys(axis.path for axis in axes.axes))
    tensors = [
        index
        for index, leaf in enumerate(pytree.tree_leaves((samples[0].args, samples[0].kwargs)))
        if isinstance(leaf, torch.Tensor)
    ]
    places = dict(zip(order, tensors, strict=False))
    found: dict[int, list[int]] = {}
    for axis in axes.dynamic:
        found.setdefault(places[axis.path], []).append(axis.dim)
    return found
