"""Sample inputs: one sample becomes one call ``(args, kwargs)``, and every leaf of it has a readable path."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench.checks import check_function, described
from prepbench.errors import InputError, PrepbenchError, sentence


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

    def map(self, function: Callable[[Any], Any]) -> Sample:
        """Return a sample with ``function`` applied to every leaf.

        Args:
            function: takes a leaf, and returns what is to stand in its place.

        Returns:
            The new sample; this one is not changed.
        """
        check_function("function", function, "function(leaf)")
        args, kwargs = pytree.tree_map(function, (self.args, self.kwargs))
        return replace(self, args=args, kwargs=kwargs)


def forward_of(module_or_function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the callable whose signature the samples must fit: ``module.forward``, or the function itself."""
    return module_or_function.forward if isinstance(module_or_function, torch.nn.Module) else module_or_function


def normalize_samples(
    module_or_function: Callable[..., Any],
    samples: Any,
    *,
    name: str = "inputs",
    data_transform_fn: Callable[[Any], Any] | None = None,
) -> list[Sample]:
    """Read ``samples`` once and turn each element into a :class:`Sample`.

    An element may be a tensor; a tuple of positional arguments; a tuple ending in a dict of keyword arguments; a
    mapping of
    keyword arguments; or a mapping that ``forward`` takes whole, as its one argument. A lone tensor or mapping
    in place of the list counts as one sample.

    Args:
        module_or_function: the callee; its signature decides how mappings and lists are passed.
        samples: an iterable of samples (a generator or ``DataLoader`` is read once).
        name: the argument's name, for error messages.
        data_transform_fn: applied to each element first.

    Raises:
        InputError: no samples, or a sample that does not fit the signature (named by index).

    Example:
        >>> normalize_samples(torch.nn.Linear(4, 2), [torch.ones(1, 4)])[0].args[0].shape
        torch.Size([1, 4])
    """
    if isinstance(samples, torch.Tensor | Mapping | Sample):
        samples = [samples]
    if not isinstance(samples, Iterable) or isinstance(samples, str | bytes | type):
        raise InputError(
            f"{name} must be an iterable of sample inputs, got {described(samples)}. Give a list of tensors, tuples or "
            "dicts."
        )
    signature = _signature(module_or_function)
    result = []
    for index, element in enumerate(samples):
        if isinstance(element, Sample):
            result.append(Sample(element.args, element.kwargs, index))
            continue
        value = element if data_transform_fn is None else _transformed(data_transform_fn, element, f"{name}[{index}]")
        sample = _as_call(value, signature, index)
        _check_fits(sample, signature, module_or_function, name)
        _check_tensors(sample, module_or_function, name)
        result.append(sample)
    if not result:
        again = " It is a generator, which can be read only once: make it anew." if samples is iter(samples) else ""
        raise InputError(
            f"{name} is empty: give at least one sample input, e.g. {name}=[torch.randn(1, 3, 32, 32)].{again}"
        )
    return result


def _check_tensors(sample: Sample, module_or_function: Callable[..., Any], name: str) -> None:
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
    return None


def check_dense(samples: Sequence[Sample], module_or_function: Callable[..., Any], name: str) -> None:
    """Raise ``InputError`` for sparse and quantized tensors, before something is compiled for these samples."""
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
    """Return names for ``count`` positional arguments: parameter names, then ``args[i]`` for those taken by
    ``*args``.
    """
    signature = _signature(module_or_function)
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


def _transformed(function: Callable[[Any], Any], element: Any, place: str) -> Any:
    try:
        return function(element)
    except PrepbenchError:
        raise
    except Exception as error:
        raise InputError(
            f"data_transform_fn raises on {place}: {type(error).__name__}: {sentence(error)} Check that it takes one "
            "element, and returns a tensor, a tuple of positional arguments, or a dict of keyword arguments."
        ) from error


def scripted_signature(module: torch.jit.ScriptModule) -> inspect.Signature:
    """Return the parameters of a scripted module's forward, which has no signature in Python where the module was
    traced.
    """
    forward: Any = module.forward
    kind, empty = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty
    return inspect.Signature(
        [
            inspect.Parameter(one.name, kind, default=one.default_value if one.has_default_value() else empty)
            for one in forward.schema.arguments[1:]
        ]
    )


def _signature(module_or_function: Callable[..., Any]) -> inspect.Signature | None:
    if isinstance(module_or_function, torch.jit.ScriptModule):
        return scripted_signature(module_or_function)
    try:
        return inspect.signature(forward_of(module_or_function))
    except (TypeError, ValueError):  # builtins without a signature
        return None


def _as_call(value: Any, signature: inspect.Signature | None, index: int) -> Sample:
    if isinstance(value, Mapping):
        if _takes_keywords(signature, value):
            return Sample((), dict(value), index)
        return Sample((value,), {}, index)
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        if value and isinstance(value[-1], dict) and _takes_keywords(signature, value[-1], positional=len(value) - 1):
            return Sample(value[:-1], dict(value[-1]), index)
        return Sample(value, {}, index)
    if isinstance(value, list) and len(value) != 1 and _takes_positional(signature, len(value)):
        return Sample(tuple(value), {}, index)
    return Sample((value,), {}, index)


def _takes_keywords(signature: inspect.Signature | None, mapping: Mapping[Any, Any], positional: int = 0) -> bool:
    if signature is None or not all(isinstance(key, str) for key in mapping):
        return False
    try:
        signature.bind(*[None] * positional, **mapping)
    except TypeError:
        return False
    # forward(batch, **kwargs) binds anything by keyword only when nothing is required by position
    return True


def _takes_positional(signature: inspect.Signature | None, count: int) -> bool:
    if signature is None:
        return False
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def _check_fits(
    sample: Sample, signature: inspect.Signature | None, module_or_function: Callable[..., Any], name: str
) -> None:
    if signature is None:
        return
    try:
        signature.bind(*sample.args, **sample.kwargs)
    except TypeError as error:
        owner = type(module_or_function).__name__ if isinstance(module_or_function, torch.nn.Module) else "the function"
        raise InputError(
            f"{name}[{sample.index}] does not fit {owner}.forward{signature}: {error}. Give a tensor, a tuple of "
            "positional "
            "arguments (a dict of keyword arguments may come last), or a dict of keyword arguments; "
            "data_transform_fn can reshape what a DataLoader yields."
        ) from error
