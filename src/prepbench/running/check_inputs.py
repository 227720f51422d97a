"""Check inputs before anything is traced: structure, device, and that the model itself runs on them."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import keyword
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from prepbench.checks import check_table, described
from prepbench.errors import CaptureError, InputError
from prepbench.inputs import Sample, forward_of, named_leaves
from prepbench.internal_errors import raise_if_internal
from prepbench.interrupts import interruptible
from prepbench.running.alike_samples import alike_samples
from prepbench.running.compare_samples import tensor_shapes
from prepbench.running.object_nodes import register_nodes
from prepbench.running.odd_sizes import odd_sizes
from prepbench.running.outcomes import without_output
from prepbench.running.twin import Twin
from prepbench.running.unchanged import own_copy, unchanged
from prepbench.running.written_parameters import is_known, is_written, writes_watched


def checked_samples(function: Callable[..., Any], inputs: Any) -> list[Sample]:
    """Return the samples, on the meta device if the model is; they have one structure, and the model runs on them.

    Raises:
        InputError: a sample does not fit the model, the other samples, or the model's device; names it by its path.
        CaptureError: the model raises on a sample; the cause is its error.
    """
    samples = on_device_of(function, alike_samples(function, inputs))
    register_nodes([(sample.args, sample.kwargs) for sample in samples])
    tensor_shapes(function, samples)
    check_runs(function, samples)
    return samples


def check_runs(function: Callable[..., Any], samples: Sequence[Sample]) -> None:
    """Run the model on a copy of each sample and raise if it raises.

    Raises:
        CaptureError: with the index of the sample; the cause is the model's own error.
    """
    own = Twin(function).model
    for position, sample in enumerate(samples):
        if position == 1:  # the first run has shown which parameters to copy
            own = Twin(function).model
        try:
            _run(own, sample)
        except InputError:
            raise
        except Exception as error:
            raise itself_raises(function, sample, error, samples) from error


def twin_with_own_writes(function: Callable[..., Any], sample: Sample) -> Twin:
    """Return a twin with copies of the parameters that a run writes to; one run finds them if they are unknown."""
    twin = Twin(function)
    if not isinstance(function, torch.nn.Module) or is_known(function):
        return twin
    with contextlib.suppress(Exception):  # the next run of the model reports its error
        _run(twin.model, sample)
    return Twin(function) if any(map(is_written, function.parameters())) else twin


def _run(own: Callable[..., Any], sample: Sample) -> None:
    module = own if isinstance(own, torch.nn.Module) else torch.nn.Module()
    with unchanged(module), without_output(), torch.no_grad(), writes_watched(module), interruptible():
        register_nodes(own_copy(sample).call(own))


def itself_raises(
    function: Callable[..., Any], sample: Sample, error: Exception, samples: Sequence[Sample] = ()
) -> CaptureError:
    """Return the error for a model that fails on its own; other samples tell which sizes are inconsistent."""
    raise_if_internal(error)
    odd = odd_sizes(function, samples, sample)
    name = type(function).__name__ if isinstance(function, torch.nn.Module) else getattr(function, "__name__", "it")
    remedy = "Check that model(*inputs) runs on its own."
    if "does not require grad" in str(error):
        remedy = "It runs under torch.no_grad() here: put what needs a gradient under `with torch.enable_grad():`."
    return CaptureError(
        f"{name} itself raises on inputs[{sample.index}], before any capturing: {type(error).__name__}: {error}. "
        f"{f'There {odd} ' if odd else ''}{remedy}{about_batches(sample.args, sample.kwargs)}"
    )


def about_batches(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the remedy for a sample that is a ``DataLoader`` batch of inputs and targets."""
    if len(args) != 1 or kwargs or not isinstance(args[0], list):
        return ""
    return (
        f" It got a list of {len(args[0])} as its one argument, as from a DataLoader of inputs and targets: "
        "pick the inputs with data_transform_fn=lambda batch: batch[0] in compile_model, elsewhere with "
        "[batch[0] for batch in loader]."
    )


def on_device_of(function: Callable[..., Any], samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples; on the meta device if the model's weights are.

    Raises:
        InputError: a tensor is on another device than the model.
    """
    module = function if isinstance(function, torch.nn.Module) else getattr(function, "__self__", None)
    tensors = [*module.parameters(), *module.buffers()] if isinstance(module, torch.nn.Module) else []
    devices = {tensor.device for tensor in tensors}
    if devices == {torch.device("meta")}:
        return [
            sample.map(lambda leaf: leaf.to("meta") if isinstance(leaf, torch.Tensor) else leaf) for sample in samples
        ]
    if len(devices) == 1:
        (device,) = devices
        for sample in samples:
            for path, leaf in named_leaves(function, sample):
                # scalars on the CPU go with tensors on any device
                if (
                    isinstance(leaf, torch.Tensor)
                    and leaf.device != device
                    and (leaf.dim() or leaf.device.type != "cpu")
                ):
                    raise InputError(
                        f"inputs[{sample.index}]: {path} is on {leaf.device}, but the model is on {device}. Move it "
                        f"with .to({str(device)!r}), or move the model."
                    )
    return list(samples)


def check_traced(name: str, model: Any) -> None:
    """Raise ``InputError`` unless the value is a module or a function."""
    if not callable(model) or isinstance(model, type):
        raise InputError(
            f"{name} must be a module or a function, got {described(model)}. Give an instance of a module."
        )


def check_names(model: torch.nn.Module) -> None:
    """Raise ``InputError`` for names of modules and tensors that torch cannot write into the code of a graph.

    It writes each name after a dot or between quotes, whatever Python would read there.
    """
    for path, module in model.named_modules():
        for table in ("_modules", "_parameters", "_buffers"):
            for name in getattr(module, table).keys():  # noqa: SIM118 (a scripted module's table is no dict)
                if keyword.iskeyword(name) or set(name) & _NOT_QUOTED:
                    safe = re.sub(r"\W", "_", name) + ("_" if keyword.iskeyword(name) else "")
                    raise InputError(
                        f"{type(module).__name__} has a part that is called {f'{path}.{name}'.lstrip('.')!r}, which "
                        "torch cannot write into the code of a graph: Python has another meaning for it. Give it "
                        f"another name, such as {safe!r}."
                    )


_NOT_QUOTED = frozenset('"\\\n\r\0')


def known_names(function: Callable[..., Any], names: Any) -> dict[str, Any] | None:
    """Return the part of ``concrete_args`` that forward takes; a ``UserWarning`` names the rest, which have no effect.

    Raises:
        SettingsError: it is no dict.
    """
    check_table("concrete_args", names, '{"use_cache": False}', optional=True)
    given: dict[str, Any] | None = names
    try:
        parameters = inspect.signature(forward_of(function)).parameters
    except (TypeError, ValueError):  # builtins without a signature
        return given
    if not given or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return given
    for name in given:
        if name not in parameters:
            near = difflib.get_close_matches(str(name), list(parameters), 3, 0.4) or list(parameters)
            warnings.warn(
                f"concrete_args names {name!r}, which forward({', '.join(parameters)}) does not take, so it has no "
                f"effect. Nearest: {', '.join(map(repr, near)) or 'none'}.",
                UserWarning,
                stacklevel=3,
            )
    return {name: value for name, value in given.items() if name in parameters}
