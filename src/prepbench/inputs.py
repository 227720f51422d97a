"""Sample inputs: one sample becomes one call ``(args, kwargs)``, and every leaf of it has a readable path."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench.checks import check_function, check_switches
from prepbench.errors import InputError


@dataclass(frozen=True)
class Sample:
    """One complete call of ``forward``: ``forward(*args, **kwargs)``; ``index`` is its place in the list it came
    from, and ``counted`` says which numbers in its objects follow from sizes, in all samples of that list.

    Example:
        >>> Sample((torch.ones(2, 4),)).call(torch.sum)
        tensor(8.)
    """

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    index: int = 0
    counted: tuple[Any, ...] = ()

    def call(self, function: Callable[..., Any]) -> Any:
        """Call ``function`` with this sample.

        Args:
            function: takes the arguments of the model.

        Returns:
            What it returns.
        """
        check_function("function", function, "function(*args, **kwargs)")
        return function(*self.args, **self.kwargs)

    def map(self, function: Callable[[Any], Any], *, keeps_sizes: bool = False) -> Sample:
        """Return a sample with ``function`` applied to every leaf.

        Args:
            function: takes a leaf, and returns what is to stand in its place.
            keeps_sizes: whether a ``torch.Size`` stays one; else it becomes a tuple, as ``torch.export`` asks for.

        Returns:
            The new sample; this one is not changed.
        """
        check_function("function", function, "function(leaf)")
        leaves, spec = pytree.tree_flatten((self.args, self.kwargs))
        check_switches(keeps_sizes=keeps_sizes)
        build = pytree.with_sizes if keeps_sizes else pytree.tree_unflatten
        args, kwargs = build(map(function, leaves), spec)
        return replace(self, args=args, kwargs=kwargs)


def forward_of(module_or_function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the callable whose signature the samples must fit: ``module.forward``, or the function itself."""
    return module_or_function.forward if isinstance(module_or_function, torch.nn.Module) else module_or_function


def check_tensors(sample: Sample, module_or_function: Callable[..., Any], name: str) -> None:
    """Raise for tensors that no graph takes, because they have no sizes or no data."""
    leaves = pytree.tree_leaves((sample.args, sample.kwargs))
    if any(isinstance(leaf, torch.Tensor) and tensor_fault(leaf) for leaf in leaves):
        _raise_fault(sample, module_or_function, name, tensor_fault)


def tensor_fault(tensor: torch.Tensor) -> tuple[str, str] | None:
    """Return what a tensor is that no graph takes, and the remedy with ``{}`` for its name; None for others."""
    if tensor.is_nested:
        return "a nested tensor, whose rows have sizes of their own", "Pad it: {}.to_padded_tensor(0.0)."
    if any(kind.__name__ == "FakeTensor" and kind.__module__.startswith("torch.") for kind in type(tensor).__mro__):
        return "a fake tensor, which has no data", "Give a tensor with data: {} was made inside FakeTensorMode."
    return None


def dense_fault(tensor: torch.Tensor) -> tuple[str, str] | None:
    """Return :func:`tensor_fault`, or that of a tensor which PyTorch takes and no target does."""
    fault = tensor_fault(tensor)
    if fault is not None:
        return fault
    if tensor.layout is not torch.strided:
        kind = str(tensor.layout).removeprefix("torch.").removeprefix("_").replace("_", " ")
        return f"a tensor in the format {kind!r}", "Targets take dense ones, convert it: {}.to_dense()."
    if tensor.is_quantized:
        return f"a tensor of {tensor.dtype}", "Targets take floats and quantize them, convert it: {}.dequantize()."
    if tensor.is_floating_point() and tensor.dtype.itemsize == 1:
        return f"a tensor of {tensor.dtype}", "Targets take floats of 16 bits or more, convert it: {}.float()."
    return None


def check_data(samples: Sequence[Sample], module_or_function: Callable[..., Any], name: str) -> None:
    """Raise ``InputError`` for tensors without data, before something is computed from these samples."""
    for sample in samples:
        _raise_fault(sample, module_or_function, name, meta_fault)


def meta_fault(tensor: torch.Tensor) -> tuple[str, str] | None:
    """Return what a tensor without data is, and the remedy; None for others."""
    return ("on meta, which has no data", "Give a tensor with data, on the CPU.") if tensor.is_meta else None


def check_dense(samples: Sequence[Sample], module_or_function: Callable[..., Any], name: str) -> None:
    """Raise ``InputError`` for sparse, quantized and 8-bit tensors, before something is compiled for these samples."""
    for sample in samples:
        _raise_fault(sample, module_or_function, name, dense_fault)


def _raise_fault(
    sample: Sample,
    module_or_function: Callable[..., Any],
    name: str,
    of: Callable[[torch.Tensor], tuple[str, str] | None],
) -> None:
    for path, leaf in named_leaves(module_or_function, sample):
        fault = of(leaf) if isinstance(leaf, torch.Tensor) else None
        if fault is not None:
            raise InputError(f"{name}[{sample.index}]: {path} is {fault[0]}. {fault[1].format(path)}")


def arguments_by_name(
    module_or_function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return all arguments of a call by their names; those of ``*args`` as ``"args[0]"``."""
    return {**dict(zip(positional_names(module_or_function, len(args)), args, strict=True)), **kwargs}


def named_leaves(module_or_function: Callable[..., Any], sample: Sample) -> list[tuple[str, Any]]:
    """Return the leaves of a sample with their paths, e.g. ``[("input_ids", tensor), ("past[0].key", tensor)]``.

    Positional arguments carry the parameter names of ``forward``; containers are walked as pytrees, so the order
    is that of ``torch.utils._pytree.tree_leaves`` over ``(args, kwargs)``.
    """
    names = positional_names(module_or_function, len(sample.args))
    leaves = []
    for name, value in [*zip(names, sample.args, strict=True), *sample.kwargs.items()]:
        for path, leaf in pytree.tree_flatten_with_path(value)[0]:
            leaves.append((name + pytree.keystr(path), leaf))
    return leaves


def positional_names(module_or_function: Callable[..., Any], count: int) -> list[str]:
    """Return names for ``count`` positional arguments: parameter names, then ``args[i]`` for those of ``*args``."""
    signature = signature_of(module_or_function)
    if signature is None:
        return [f"args[{i}]" for i in range(count)]
    names: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
        elif parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}[{i}]" for i in range(count - len(names))]
            break
    names += [f"args[{i}]" for i in range(len(names), count)]
    return names[:count]


def parameter_names(module_or_function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the parameters that can be given by position; none where there is no signature."""
    try:
        signature = inspect.signature(forward_of(module_or_function))
    except (TypeError, ValueError):
        return ()
    names = []
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    return tuple(names)


def plain_defaults(module_or_function: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults that are numbers or texts, by parameter."""
    try:
        signature = inspect.signature(forward_of(module_or_function))
    except (TypeError, ValueError):
        return {}
    plain = (bool, int, float, str)
    return {p.name: p.default for p in signature.parameters.values() if isinstance(p.default, plain)}


def scripted_signature(module: torch.jit.ScriptModule) -> inspect.Signature:
    """Return the parameters of a scripted module's forward, which has no signature in Python if it was traced."""
    forward: Any = module.forward
    kind, empty = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty
    return inspect.Signature(
        [
            inspect.Parameter(one.name, kind, default=one.default_value if one.has_default_value() else empty)
            for one in forward.schema.arguments[1:]
        ]
    )


def signature_of(module_or_function: Callable[..., Any]) -> inspect.Signature | None:
    """Return the signature of ``forward``, or of the function; None where there is none."""
    if isinstance(module_or_function, torch.jit.ScriptModule):
        return scripted_signature(module_or_function)
    try:
        return inspect.signature(forward_of(module_or_function))
    except (TypeError, ValueError):  # builtins without a signature
        return None


def batch_size(sample: Sample, target: Any = None) -> int:
    """Return how many samples a call has: the first size of the first tensor that has one above 0; 1 without any.

    Where the first tensor has the number of targets in another dim, as inputs that begin with time have, it is that.

    Example:
        >>> sample = Sample((torch.ones(50, 2, 4),))
        >>> batch_size(sample), batch_size(sample, [0, 1])
        (50, 2)
    """
    leaves = pytree.tree_leaves((sample.args, sample.kwargs))
    shapes = [tuple(leaf.shape) for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim()]
    shape = next((shape for shape in shapes if shape[0]), None)
    if shape is None:
        return 0 if shapes else 1
    if isinstance(target, torch.Tensor):
        targets = int(target.shape[0]) if target.dim() else 0
    else:
        targets = len(target) if isinstance(target, list | tuple) else 0
    return targets if targets and targets in shape else shape[0]
