"""Check inputs before anything is traced: structure, sizes, device, and that the model itself runs on them."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import itertools
import keyword
import math
import re
import unicodedata
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from prepbench.checks import check_table, described
from prepbench.errors import CaptureError, InputError
from prepbench.inputs import Sample, arguments_by_name, forward_of, named_leaves, positional_names
from prepbench.internal_errors import raise_if_internal
from prepbench.objects.caches.counted import counted_numbers, with_empty_caches_filled
from prepbench.objects.caches.transformers import is_cache, tensor_numbers
from prepbench.objects.compare import ROUNDED, difference
from prepbench.objects.copy import Twin
from prepbench.objects.flatten import classes_in, fixed_numbers, is_mark, register_nodes
from prepbench.objects.parts import NO_DATA
from prepbench.objects.restore import is_known, is_written
from prepbench.running.given_samples import normalize_samples, result_on_copy, run_on_copy, warn
from prepbench.running.unchanged import numbers_kept, own_copy, without_output


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
            result = result_on_copy(own, sample)
        except InputError:
            raise
        except Exception as error:
            raise itself_raises(function, sample, error, samples) from error
        register_nodes(result)
        if position == 0:
            warn_of_fast_path(function, sample, result)


def warn_of_fast_path(function: Callable[..., Any], sample: Sample, result: Any) -> None:
    """Warn if the fast path of torch's encoder gives other values than ``result``, which is without it."""
    if not isinstance(function, torch.nn.Module):
        return
    if not any(isinstance(module, torch.nn.TransformerEncoder) for module in function.modules()):
        return
    with torch.no_grad(), numbers_kept(), without_output():
        try:
            fast = own_copy(sample).call(Twin(function).model)
        except Exception:  # what runs without the fast path is captured
            return
    if not difference(result, fast, ROUNDED).equal:
        warn(
            "In evaluation, PyTorch's fast path of nn.TransformerEncoder returns 0 for padded tokens. Captured and "
            "compiled models compute them as in training, and so does the model that they are compared with. To see "
            "the same in PyTorch: torch.backends.mha.set_fastpath_enabled(False)."
        )


def twin_with_own_writes(function: Callable[..., Any], sample: Sample) -> Twin:
    """Return a twin with copies of the parameters that a run writes to; one run finds them if they are unknown."""
    twin = Twin(function)
    if not isinstance(function, torch.nn.Module) or is_known(function):
        return twin
    with contextlib.suppress(Exception):  # the next run of the model reports its error
        run_on_copy(twin.model, sample)
    return Twin(function) if any(map(is_written, function.parameters())) else twin


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


class Untraceable:
    """Marks what stands for a model that was compiled: it has no operations to trace."""


def check_traced(name: str, model: Any) -> None:
    """Raise ``InputError`` unless the value is a module or a function, and not compiled."""
    if isinstance(model, Untraceable):
        raise InputError(
            f"{name} is a compiled model, whose operations are not PyTorch's. Give the model that it was compiled "
            "from. pb.compare, pb.profile and pb.diagram take compiled ones."
        )
    if not callable(model) or isinstance(model, type):
        raise InputError(
            f"{name} must be a module or a function, got {described(model)}. Give an instance of a module."
        )


def check_names(model: torch.nn.Module) -> None:
    """Raise ``InputError`` for names of modules and tensors that torch cannot write into the code of a graph.

    It writes each name after a dot or between quotes, whatever Python would read there, and joins names with dots.
    """
    for path, module in model.named_modules():
        for table in ("_modules", "_parameters", "_buffers"):
            for name in getattr(module, table).keys():  # noqa: SIM118 (a scripted module's table is no dict)
                plain = unicodedata.normalize("NFKC", name)  # as Python reads an identifier
                if keyword.iskeyword(name) or _NOT_WRITTEN.search(name) or (name.isidentifier() and plain != name):
                    safe = re.sub(r"\W", "_", plain) + ("_" if keyword.iskeyword(plain) else "")
                    raise InputError(
                        f"{type(module).__name__} has a part that is called {f'{path}.{name}'.removeprefix('.')!r}, "
                        "which torch cannot write into the code of a graph: Python has another meaning for it. Give it "
                        f"another name, such as {safe!r}."
                    )


# also what UTF-8 has no form for
_NOT_WRITTEN = re.compile('["\\\\\n\r\0.\ud800-\udfff]')


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


# Normalize samples to one pytree structure, also where caches are empty in some, and find numbers that follow from
# sizes.


def alike_samples(function: Callable[..., Any], samples: Any, **reading: Any) -> list[Sample]:
    """Return the samples of ``normalize_samples``, with empty caches in the structure of the filled ones.

    Each sample lists the numbers in objects that follow from sizes (:attr:`prepbench.Sample.counted`).

    Raises:
        InputError: no samples, or a sample that does not fit the signature.

    Example:
        >>> [sample.index for sample in alike_samples(torch.nn.Linear(4, 2), [torch.ones(1, 4), torch.ones(3, 4)])]
        [0, 1]
    """
    given = normalize_samples(function, samples, **reading)
    calls = with_empty_caches_filled([(sample.args, sample.kwargs) for sample in given])
    counted = counted_numbers([arguments_by_name(function, *call) for call in calls])
    made = zip(given, calls, strict=True)
    return [replace(sample, args=args, kwargs=kwargs, counted=counted) for sample, (args, kwargs) in made]


# Compare samples leaf by leaf: sizes may differ, all else must agree; errors name the differing leaf by its path.


Shapes = dict[str, list[tuple[int, ...]]]


def tensor_shapes(function: Callable[..., Any], samples: Sequence[Sample], *, with_counted: bool = False) -> Shapes:
    """Return the shape of every tensor argument in each sample, by path.

    Args:
        function: the callee.
        samples: one after the other, compared with the first.
        with_counted: whether numbers that follow from sizes may differ.

    Raises:
        InputError: the samples differ in something that no dynamic axis can express.
    """
    named = [dict(named_leaves(function, sample)) for sample in samples]
    for sample, leaves in zip(samples[1:], named[1:], strict=True):
        _check_marks(function, samples[0], sample)
        _check_windows(samples[0], named[0], sample, leaves)
        _check_structure(samples[0], named[0], sample, leaves)
        for path, leaf in named[0].items():
            _check_leaf(path, samples[0].index, leaf, sample.index, leaves[path], _steps(samples[0], sample))
        _check_numbers(function, samples[0], sample, {number.path for number in sample.counted if with_counted})
    return {
        path: [tuple(int(size) for size in leaves[path].shape) for leaves in named]
        for path, leaf in named[0].items()
        if isinstance(leaf, torch.Tensor)
    }


def _check_marks(function: Callable[..., Any], first: Sample, other: Sample) -> None:
    """Check that the samples agree in a cache's marks, such as filled encoder states: they decide the computation."""
    one, two = _numbers(function, first), _numbers(function, other)
    for path in sorted(one.keys() & two.keys()):
        if is_mark(path, one[path]) and one[path] != two[path]:
            begun, new = (first, other) if one[path] is True else (other, first)
            raise InputError(
                f"{path!r} is False in sample {new.index} and True in sample {begun.index}: this cache marks what was "
                "computed once and is then read, and the model computes other things before and after. Give the "
                "samples in which it is True. Generation with compiled.attached(model) then runs its first step, which "
                "fills the cache, in PyTorch, and all others compiled."
            )


def _check_windows(first: Sample, leaves: dict[str, Any], other: Sample, others: dict[str, Any]) -> None:
    """Check that samples agree in how full a fixed-length window is, which decides the columns of their masks."""
    if not any(tensor_numbers(kind) for kind in classes_in((first.args, first.kwargs))):
        return
    for path, mask in leaves.items():
        is_square = "mask" in path and isinstance(mask, torch.Tensor) and mask.dim() == 4
        if is_square and path in others and mask.shape[2:3] != getattr(others[path], "shape", ())[2:3]:
            raise InputError(
                f"{path!r} has rows for {mask.shape[2]} new tokens in sample {first.index} and for "
                f"{others[path].shape[2]} in sample {other.index}, beside a sliding window of a fixed length: how many "
                "columns it has then depends on the tokens seen before. Give the later steps of a generation alone, "
                "of one new token each (compiled.attached(model) runs the first step in PyTorch), or masks with one "
                "entry for each token, which work for all steps."
            )


def _numbers(function: Callable[..., Any], sample: Sample) -> dict[str, Any]:
    return fixed_numbers(positional_names(function, len(sample.args)), sample.args, sample.kwargs)


def _check_numbers(function: Callable[..., Any], first: Sample, other: Sample, counted: set[str]) -> None:
    """Check the numbers that caches and other objects count: they are in no leaf, and constants in a graph."""
    one, two = _numbers(function, first), _numbers(function, other)
    for path in sorted((one.keys() & two.keys()) - counted):
        _check_leaf(path, first.index, one[path], other.index, two[path])


def _check_structure(first: Sample, leaves: dict[str, Any], other: Sample, others: dict[str, Any]) -> None:
    missing = [path for path in leaves if path not in others]
    extra = [path for path in others if path not in leaves]
    if not missing and not extra:
        return
    for path in missing + extra:
        empty, full, there = (first, other, others) if path in missing else (other, first, leaves)
        if (leaves | others)[path] is None and any(name.startswith((f"{path}.", f"{path}[")) for name in there):
            raise InputError(_none_in_one(path, empty.index, "value that holds others", full.index))
    if missing:
        path, present, absent, there = missing[0], first.index, other.index, others
    else:
        path, present, absent, there = extra[0], other.index, first.index, leaves
    container = path[: max(path.rfind("["), path.rfind("."))] if "[" in path or "." in path else ""
    siblings = [name for name in there if container and name.startswith(container)]
    if container and siblings:
        counts = (
            sum(name.startswith(container) for name in leaves),
            len([n for n in others if n.startswith(container)]),
        )
        raise InputError(
            f"Argument {container!r} differs in its contents: {path!r} is given in sample {present} but not in "
            f"sample {absent} ({counts[0]} values in sample {first.index}, {counts[1]} in sample {other.index}). "
            "The number of values and the keys of an argument must be the same in all samples: one graph is "
            "one structure. Give samples of the same structure, and capture once for each structure."
        )
    raise InputError(
        f"Argument {path!r} is given in sample {present} but not in sample {absent}. One graph has one set of "
        f"arguments: give {path!r} in every sample or in none; for both uses, capture twice{_steps(first, other)}."
    )


def _steps(first: Sample, other: Sample) -> str:
    """Return a further remedy if the samples are the calls of a generation."""
    return ", or give the later steps of a generation alone" if _has_cache(first) and _has_cache(other) else ""


def _has_cache(sample: Sample) -> bool:
    return any(is_cache(value) for value in (*sample.args, *sample.kwargs.values()))


def _check_leaf(path: str, index: int, leaf: Any, other_index: int, other: Any, steps: str = "") -> None:
    where = f"Argument {path!r} differs between sample {index} and sample {other_index}"
    if (leaf is None) != (other is None):
        empty, full = (index, other_index) if leaf is None else (other_index, index)
        raise InputError(_none_in_one(path, empty, type(leaf if other is None else other).__name__, full, steps))
    if isinstance(leaf, torch.Tensor) and isinstance(other, torch.Tensor):
        _check_tensors(where, leaf, other)
    elif type(leaf) is not type(other):
        raise InputError(
            f"{where} in its type: {type(leaf).__name__} and {type(other).__name__}. "
            "Give the same type in every sample."
        )
    elif not isinstance(leaf, torch.Tensor) and not is_same(leaf, other):
        raise InputError(
            f"{where}: {described(leaf)} and {described(other)}. Python values are fixed in a graph: give the same "
            "value in every sample, capture once for each value, or pass it as a tensor if the model takes one."
        )


def _none_in_one(path: str, empty: int, kind: str, full: int, steps: str = "") -> str:
    return (
        f"Argument {path!r} is None in sample {empty} but a {kind} in sample {full}. Give a value in every sample or "
        f"in none; for both uses, capture twice{steps}. An empty cache may also be one of tensors of size 0."
    )


def _check_tensors(where: str, leaf: torch.Tensor, other: torch.Tensor) -> None:
    if leaf.dim() != other.dim():
        raise InputError(
            f"{where} in its rank: shapes {tuple(leaf.shape)} and {tuple(other.shape)}. The number of dims is fixed "
            "in a graph: add or remove dims (unsqueeze, squeeze) so that all samples have the same rank."
        )
    if leaf.dtype != other.dtype:
        raise InputError(
            f"{where} in its dtype: {leaf.dtype} and {other.dtype}. Convert all samples to one dtype with .to(dtype)."
        )


def is_same(leaf: Any, other: Any) -> bool:
    """Return whether two Python values are the same object, equal, or objects of one class with the same plain values;
    false where ``==`` is undefined. Cyclic objects are the same if all else is.
    """
    try:
        return _is_same(leaf, other, set())
    except RecursionError:  # a chain of a thousand objects
        return False


def _is_same(leaf: Any, other: Any, begun: set[tuple[int, int]]) -> bool:
    """Return :func:`is_same`, with ``begun``, the pairs of objects whose comparison is in progress."""
    if leaf is other or (id(leaf), id(other)) in begun:
        return True
    if isinstance(leaf, float) and isinstance(other, float) and math.isnan(leaf):
        return math.isnan(other)
    try:
        if leaf == other:
            return True
    except (RuntimeError, TypeError, ValueError):  # objects such as arrays whose == has no truth value
        return False
    if type(leaf) is not type(other):
        return False
    begun = {*begun, (id(leaf), id(other))}
    if type(leaf) in (list, tuple):
        return len(leaf) == len(other) and all(_is_same(one, two, begun) for one, two in zip(leaf, other, strict=True))
    if type(leaf) is dict:
        return leaf.keys() == other.keys() and all(_is_same(leaf[key], other[key], begun) for key in leaf)
    # a cache that a model takes and never fills, or a layer of it that has none
    has_equality = getattr(type(leaf), "__eq__", None) is not getattr(object, "__eq__", None)
    if has_equality or isinstance(leaf, NO_DATA) or not hasattr(leaf, "__dict__"):
        return False
    return _is_same(vars(leaf), vars(other), begun)


# Find sizes that are inconsistent in one sample and consistent in all others.


_Axis = tuple[str, int]


def odd_sizes(function: Callable[..., Any], samples: Sequence[Sample], sample: Sample) -> str:
    """Return the sizes of a sample that break a rule of all others (two are equal, or one is the sum of two); "" if
    there are none.

    What holds in one other sample only may be chance: then just the first sizes of tensors are compared.

    Example:
        >>> samples = [Sample((torch.ones(n, 4), torch.ones(m, 4))) for n, m in ((2, 2), (3, 3), (5, 4))]
        >>> odd_sizes(torch.add, samples, samples[2])
        'args[1].shape[0] is 4 and args[0].shape[0] is 5; in all other samples they are equal.'
    """
    mine = _sizes(function, sample)
    others = [_sizes(function, other) for other in samples if other is not sample]
    axes = [axis for axis in mine if others and all(axis in other for other in others)]
    is_sure = len(others) > 1
    if not is_sure:
        axes = [axis for axis in axes if axis[1] == 0]
    varying = [axis for axis in axes if not is_sure or len({other[axis] for other in others}) > 1]
    for one, two in itertools.combinations(varying, 2):
        if mine[one] != mine[two] and all(other[one] == other[two] for other in others):
            return f"{_text(two, mine)} and {_text(one, mine)}; in all other samples they are equal."
    for one, two in itertools.combinations(varying, 2) if is_sure else ():
        for total in varying:
            wrong = mine[total] != mine[one] + mine[two]
            if wrong and all(other[total] == other[one] + other[two] for other in others):
                return (
                    f"{_text(total, mine)}, {_text(one, mine)} and {_text(two, mine)}; in all other samples the first "
                    "is the sum of the others."
                )
    return ""


def _sizes(function: Callable[..., Any], sample: Sample) -> dict[_Axis, int]:
    return {
        (path, dim): int(size)
        for path, leaf in named_leaves(function, sample)
        if isinstance(leaf, torch.Tensor)
        for dim, size in enumerate(leaf.shape)
    }


def _text(axis: _Axis, sizes: dict[_Axis, int]) -> str:
    return f"{axis[0]}.shape[{axis[1]}] is {sizes[axis]}"
