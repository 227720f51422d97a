"""Dynamic axes: the dims of the inputs that may vary, inferred from samples and changed by the user."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import torch
from sympy import sympify

from prepbench._display import view
from prepbench.capture.sizes.axis import Axis, counted_places, in_pattern, with_symbols
from prepbench.checks import (
    check_all_of,
    check_count,
    check_switch,
    check_table,
    check_text,
    check_type,
    described,
)
from prepbench.errors import InputError
from prepbench.inputs import Sample, named_leaves
from prepbench.objects.flatten import register_nodes
from prepbench.running.callable_module import as_module
from prepbench.running.check_inputs import alike_samples, check_traced, tensor_shapes

Report = TypeVar("Report", covariant=True)


class Verifiable(Protocol[Report]):
    """A captured model that can run at other sizes, such as :class:`prepbench.Captured`."""

    def verify(self, axes: DynamicAxes | None = None) -> Report:
        """Try sizes that no sample has and report each dynamic axis."""


@dataclass(frozen=True)
class DynamicAxes:
    """Every dim of every tensor argument, and which ones are dynamic. Immutable; methods that change it return a new
    value.

    Example:
        >>> axes = DynamicAxes.infer([torch.ones(1, 3), torch.ones(2, 3)], torch.nn.Linear(3, 4))
        >>> [axis.dim for axis in axes.axes if axis.dynamic]
        [0]
        >>> axes.set("input", 1, True).axes[1].dynamic
        True
    """

    axes: tuple[Axis, ...]
    samples: tuple[Sample, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        check_all_of("axes", self.axes, Axis, "Give a tuple of pb.Axis, or call DynamicAxes.infer(inputs, model).")
        check_all_of("samples", self.samples, Sample, "Give a tuple of pb.Sample, or leave samples out.")

    @classmethod
    def infer(cls, samples: Any, module_or_func: Callable[..., Any] | None = None) -> DynamicAxes:
        """Compare all samples: a dim whose size differs between any two of them is dynamic.

        The order of the samples does not matter, and a size of 1 in some of them makes no difference.

        Args:
            samples: sample inputs, in any form that :func:`prepbench.running.given_samples.normalize_samples` takes.
            module_or_func: the callee, which gives positional arguments their names.

        Returns:
            The axes of every tensor in the samples.

        Raises:
            InputError: the samples differ in something other than sizes (an argument, its type, dtype, rank, or a
                Python value); the message names the argument and both samples.
        """
        function = module_or_func if module_or_func is not None else _anything
        check_traced("module_or_func", function)
        return axes_of(alike_samples(function, samples, name="samples"), function)

    def set(self, path: str, dim: int, dynamic: bool = True) -> DynamicAxes:
        """Return the axes with one of them made dynamic or static; a negative ``dim`` counts from the last.

        Args:
            path: the argument; ``[*]`` stands for every index, as in ``"past[*].key"``, and ``"past.*"`` for every
                tensor of ``past``.
            dim: the dim.
            dynamic: whether other sizes must work.

        Returns:
            New axes; these stay as they are.

        Raises:
            InputError: there is no such argument or dim; the message gives the nearest names.
        """
        check_switch("dynamic", dynamic)
        return self._changed(path, dim, dynamic=dynamic)

    def rename(self, path: str, dim: int, name: str) -> DynamicAxes:
        """Return the axes with one of them, and all that vary together with it, made dynamic under this name.

        Args:
            path: the argument, as in :meth:`set`.
            dim: the dim; a negative one counts from the last.
            name: an identifier, e.g. ``"batch"``.

        Returns:
            New axes; these stay as they are.

        Raises:
            InputError: there is no such axis, the name is no identifier, or belongs to sizes that vary differently.
        """
        if not isinstance(name, str) or not name.isidentifier():
            raise InputError(f"The name of an axis must be a Python identifier, such as 'batch'; got {name!r}.")
        made = self._changed(path, dim, dynamic=True)
        axis, *others = made._found(path, dim)
        if any(other.sizes != axis.sizes for other in others):
            raise InputError(f"{path}.shape[{dim}] means sizes that vary differently: one name is one size.")
        clash = next((a for a in made.dynamic if a.symbol == name and a.sizes != axis.sizes), None)
        if clash is not None:
            raise InputError(
                f"{path}.shape[{dim}] had the sizes {axis.sizes} and cannot have the name {name!r}, which belongs to "
                f"{clash.path}.shape[{clash.dim}] with the sizes {clash.sizes}: one name is one size."
            )
        old = {axis.symbol, *(other.symbol for other in others)}
        changed = [replace(a, symbol=name, named=True) if a.dynamic and a.symbol in old else a for a in made.axes]
        return DynamicAxes(with_symbols(changed), self.samples)

    def limit(self, path: str, dim: int, *, min: int | None = None, max: int | None = None) -> DynamicAxes:
        """Return the axes with one of them made dynamic between two sizes, both included; verification stays within
        them.

        Args:
            path: the argument, as in :meth:`set`.
            dim: the dim; a negative one counts from the last.
            min: the smallest size; None for no limit.
            max: the largest size; None for no limit.

        Returns:
            New axes; these stay as they are.

        Raises:
            InputError: there is no such axis, the range is empty, or a sample lies outside.
        """
        check_count("min", min, optional=True)
        check_count("max", max, optional=True)
        made = self._changed(path, dim, dynamic=True, minimum=min, maximum=max)
        if min is not None and max is not None and min > max:
            raise InputError(f"The range of {path}.shape[{dim}] is empty: min={min} is more than max={max}.")
        axis = made._found(path, dim)[0]
        outside = [size for axis in made._found(path, dim) for size in axis.sizes if not axis.allows(size)]
        if outside:
            raise InputError(
                f"{path}.shape[{dim}] is {outside[0]} in a sample, outside of {axis.limits}. Widen the range or give "
                "samples within it."
            )
        return made

    def _found(self, path: str, dim: int) -> list[Axis]:
        """Return the axes for a path, or a pattern, and a dim; at least one, and ``dim`` is one of its dims."""
        ranks: dict[str, int] = {}
        for axis in self.axes:
            if in_pattern(path, axis.path):
                ranks[axis.path] = ranks.get(axis.path, 0) + 1
        if not ranks:
            paths = list(dict.fromkeys(axis.path for axis in self.axes))
            near = difflib.get_close_matches(path, paths, 3, 0.4) or paths
            raise InputError(f"There is no tensor argument {path!r}. Nearest: {', '.join(map(repr, near)) or 'none'}.")
        fewest = min(ranks.values())
        if type(dim) is not int or not -fewest <= dim < fewest:
            raise InputError(
                f"{path!r} has {fewest} dims, so dim must be between 0 and {fewest - 1}, got {described(dim)}."
            )
        return [axis for axis in self.axes if axis.path in ranks and axis.dim == dim % ranks[axis.path]]

    def _changed(self, path: str, dim: int, **changes: Any) -> DynamicAxes:
        check_text("path", path, "input_ids")
        meant = {(axis.path, axis.dim) for axis in self._found(path, dim)}
        changed = [replace(axis, **changes) if (axis.path, axis.dim) in meant else axis for axis in self.axes]
        return DynamicAxes(with_symbols(changed), self.samples)

    @property
    def dynamic(self) -> tuple[Axis, ...]:
        """The dynamic axes only."""
        return tuple(axis for axis in self.axes if axis.dynamic)

    @property
    def linked(self) -> tuple[str, ...]:
        """Sizes that differ by the same number in every sample, in words."""
        axes = [axis for axis in self.dynamic if len(set(axis.sizes)) > 1]
        first: dict[tuple[int, ...], Axis] = {}
        said = []
        for axis in axes:
            steps = tuple(size - axis.sizes[0] for size in axis.sizes)
            other = first.setdefault(steps, axis)
            offset = axis.sizes[0] - other.sizes[0]
            if offset:
                sign = "+" if offset > 0 else "-"
                one, two = f"{axis.path}.shape[{axis.dim}]", f"{other.path}.shape[{other.dim}]"
                said.append(f"{one} is {two} {sign} {abs(offset)} in every sample")
        return tuple(said)

    def dynamic_shapes(
        self, module_or_func: Callable[..., Any], sample: Sample | None = None, *, hint: Any = None
    ) -> Any:
        """Return the ``dynamic_shapes`` argument of ``torch.export.export`` for a call of ``module_or_func``.

        Args:
            module_or_func: the exported module or function.
            sample: the call; the first of the samples that the axes were inferred from when not given.
            hint: the placeholder of a dynamic dim; ``torch.export.Dim.DYNAMIC`` when not given.

        Returns:
            A structure like that of the arguments, with ``hint`` for each dynamic dim.

        Raises:
            InputError: no sample, or one without an argument that has axes here.
        """
        check_traced("module_or_func", module_or_func)
        check_type("sample", sample, Sample, "Give pb.Sample(args, kwargs).", optional=True)
        sample = sample or next(iter(self.samples), None)
        if sample is None:
            raise InputError("These axes were made without samples: pass the call to export as sample=.")
        leaves = dict(named_leaves(module_or_func, sample))
        self.check_paths(leaves)
        # the same tensor given twice has one entry, which holds the dims of both
        dims: dict[int, dict[int, Any]] = {}
        for axis in self.dynamic:
            entry = dims.setdefault(id(leaves[axis.path]), {})
            kind = torch.export.Dim.DYNAMIC if hint is None else hint
            limited = axis.minimum is not None or axis.maximum is not None
            entry[axis.dim] = kind(min=axis.minimum, max=axis.maximum) if limited else kind
        shapes = torch.export.ShapesCollection()
        for path in dict.fromkeys(axis.path for axis in self.dynamic):
            shapes[leaves[path]] = dims[id(leaves[path])]
        return shapes.dynamic_shapes(as_module(module_or_func), sample.args, sample.kwargs)

    def check_paths(self, leaves: dict[str, Any]) -> None:
        """Check that inputs have all arguments of the axes.

        Args:
            leaves: tensors and other values by path.

        Raises:
            InputError: an axis belongs to an argument, or to a dim, that is not there.
        """
        check_table("leaves", leaves, '{"x": tensor}')
        for axis in self.axes:
            leaf = leaves.get(axis.path)
            if not isinstance(leaf, torch.Tensor) or leaf.dim() <= axis.dim:
                near = difflib.get_close_matches(axis.path, list(leaves), 3, 0.3) or list(leaves)
                raise InputError(
                    f"The dynamic axes name dim {axis.dim} of the argument {axis.path!r}, which these inputs do not "
                    f"have. Nearest: {', '.join(map(repr, near))}. Infer the axes with the same model: "
                    "DynamicAxes.infer(inputs, model)."
                )

    def verify(self, captured: Verifiable[Report]) -> Report:
        """Run a captured graph at sizes that no sample has.

        Args:
            captured: from :func:`prepbench.capture`.

        Returns:
            A report that says of each axis: holds, specialised or bounded.

        Raises:
            InputError: it is nothing that was captured.
        """
        if not callable(getattr(captured, "verify", None)):
            raise InputError(f"captured must be what pb.capture returned, got {described(captured)}. Capture it first.")
        return captured.verify(self)

    def code(self) -> str:
        """Return Python code for an equal value, without the samples, to paste into a notebook."""
        lines = [
            f"    pb.Axis({axis.path!r}, {axis.dim}, {axis.sizes!r}, {axis.dynamic}, {axis.symbol!r}{_further(axis)}),"
            for axis in self.axes
        ]
        return "\n".join(["import prepbench as pb", "", "axes = pb.DynamicAxes((", *lines, "))"])

    def table(self, *, alike: bool = True) -> Any:
        """Return the axes as a pandas ``DataFrame``.

        Args:
            alike: one row for tensors that agree, such as keys and values of all layers; False for one row for each.

        Returns:
            One row for each dim.
        """
        check_switch("alike", alike)
        return view("views.display", "axes_table", self, alike=alike)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        return view("views.display", "axes_bundle", self)

    def _shapes(self) -> list[tuple[str, list[str]]]:
        """Return each argument with its sizes; paths that differ in indices only are one."""
        shapes: dict[str, list[str]] = {}
        for axis in self.axes:
            shapes.setdefault(axis.path, []).append(axis.symbol if axis.dynamic else str(axis.sizes[0]))
        alike: dict[tuple[str, ...], list[str]] = {}
        for path, sizes in shapes.items():
            alike.setdefault((re.split(r"[.\[]", path)[0], *sizes), []).append(path)
        return [(", ".join(counted_places(paths, shapes)), shapes[paths[0]]) for paths in alike.values()]

    def __repr__(self) -> str:
        lines = [f"  {path}: ({', '.join(sizes)})" for path, sizes in self._shapes()]
        if not self.dynamic:
            lines.append(
                "  Nothing is dynamic: all samples have the same sizes. Give a sample of another size (such as another "
                "batch), or make an axis dynamic with .set(path, dim)."
            )
        for symbol in dict.fromkeys(axis.symbol for axis in self.dynamic):
            seen = sorted({size for axis in self.dynamic if axis.symbol == symbol for size in axis.sizes})
            limits = next((axis.limits for axis in self.dynamic if axis.symbol == symbol and axis.limits), "")
            lines.append(f"  {symbol}: seen {', '.join(map(str, seen))}" + (f", {limits}" if limits else ""))
        lines += [f"  {text}" for text in self.linked]
        return "\n".join(["DynamicAxes", *lines])


def axes_of(samples: Sequence[Sample], function: Callable[..., Any]) -> DynamicAxes:
    """Return :meth:`DynamicAxes.infer` for normalised samples."""
    register_nodes([(sample.args, sample.kwargs) for sample in samples])
    axes = []
    for path, shapes in tensor_shapes(function, samples, with_counted=True).items():
        for dim, sizes in enumerate(zip(*shapes, strict=True)):
            axes.append(Axis(path, dim, tuple(sizes), len(set(sizes)) > 1))
    return DynamicAxes(with_symbols(axes), tuple(samples))


def check_axes(dynamic_axes: object) -> None:
    """Raise ``SettingsError`` unless the value is a :class:`DynamicAxes` or None."""
    remedy = "Write DynamicAxes.infer(inputs, model), and change it with .set(path, dim, True or False)."
    check_type("dynamic_axes", dynamic_axes, DynamicAxes, remedy, optional=True)


def _further(axis: Axis) -> str:
    given = {"named": axis.named or None, "minimum": axis.minimum, "maximum": axis.maximum}
    return "".join(f", {name}={value!r}" for name, value in given.items() if value is not None)


def _anything(*args: Any, **kwargs: Any) -> None:
    """A stand-in signature for samples that are read without a model."""


# Find samples whose sizes contradict an assumption of tracing.


def value_at(expression: Any, sizes: dict[Any, Any]) -> Any:
    """Return the value of a sympy condition or number at these sizes; ``None`` if it divides by zero."""
    try:
        return sympify(expression.xreplace(sizes))
    except ZeroDivisionError:
        return None


class SizesDecide(RuntimeError):
    """Raised if the sizes of two samples lead the model down different paths."""


class NumbersDecide(RuntimeError):
    """Raised if integers in a tensor of two samples lead the model down different paths."""


class SampleSizes:
    """The sizes of all tensors in all samples; the callee gives positional arguments their names."""

    def __init__(self, function: Callable[..., Any], samples: Sequence[Sample]) -> None:
        self._sizes: list[dict[tuple[str, ...], int]] = []
        self._indices = [sample.index for sample in samples]
        for sample in samples:
            sizes = {}
            for path, leaf in named_leaves(function, sample):
                if isinstance(leaf, torch.Tensor):
                    sizes.update({(*size_key(path), "shape", str(dim)): int(n) for dim, n in enumerate(leaf.shape)})
            self._sizes.append(sizes)

    @property
    def has_zero_or_one(self) -> bool:
        """Whether some sample has a size of 0 or 1, which tracing considers impossible for a dynamic size."""
        return any(size < 2 for sizes in self._sizes for size in sizes.values())

    def values(self, expression: Any, names: dict[Any, str]) -> list[int] | None:
        """Return the value of an expression in each sample; None if it involves more than the sizes of inputs."""
        known = [{symbol: sizes.get(size_key(name)) for symbol, name in names.items()} for sizes in self._sizes]
        if any(None in sizes.values() for sizes in known):
            return None
        found = [value_at(expression, sizes) for sizes in known]
        return (
            [int(value) for value in found] if all(value is not None and value.is_Integer for value in found) else None
        )

    def answers(self, expression: Any, names: dict[Any, str]) -> list[bool] | None:
        """Return whether a condition holds in each sample; None if it involves more than the sizes of inputs."""
        known = [{symbol: sizes.get(size_key(name)) for symbol, name in names.items()} for sizes in self._sizes]
        if any(None in sizes.values() for sizes in known):
            return None
        found = [value_at(expression, sizes) for sizes in known]
        return [value == True for value in found]  # noqa: E712 - sympy's

    def refuse_contradiction(self, expression: Any, names: dict[Any, str]) -> None:
        """Raise if ``expression`` has different values for the sizes of two samples.

        Args:
            expression: a sympy condition or number.
            names: the size behind each symbol, e.g. ``"x.shape[0]"``; a symbol that is no input size decides nothing.

        Raises:
            SizesDecide: with the expression and two samples that disagree.
        """
        values = [{symbol: sizes.get(size_key(name)) for symbol, name in names.items()} for sizes in self._sizes]
        if any(None in sizes.values() for sizes in values):
            return
        text = disagreement(expression, names, dict(zip(self._indices, values, strict=True)))
        if text is not None:
            raise SizesDecide(text)


def disagreement(
    expression: Any, names: dict[Any, str], values: dict[int, dict[Any, Any]], what: str = "sizes"
) -> str | None:
    """Return in words how samples differ in ``expression``; ``None`` if they agree.

    Args:
        expression: a sympy condition or number over sizes.
        names: the size behind each symbol.
        values: for each sample its sizes.
        what: the kind of things that are named.
    """
    answers = {index: value_at(expression, sizes) for index, sizes in values.items()}
    if not all(a is not None and (a.is_Number or a in (True, False)) for a in answers.values()):
        return None
    first = next(iter(answers))
    other = next((index for index, answer in answers.items() if answer != answers[first]), None)
    if other is None:
        return None
    text = condition_text(expression, names)
    if answers[first].is_Number:
        return (
            f"{text} is turned into a Python number here, which is {answers[first]} for inputs[{first}] and "
            f"{answers[other]} for inputs[{other}]: one graph would have to be made for each."
        )
    yes, no = (first, other) if answers[first] == True else (other, first)  # noqa: E712 - sympy's
    return f"The {what} of the inputs decide the way here: {text} holds for inputs[{yes}] but not for inputs[{no}]."


def condition_text(expression: Any, names: dict[Any, str]) -> str:
    """Return a condition on sizes as shown to users, e.g. ``"x.shape[1] >= 4"``."""
    operators = {"Equality": "==", "Unequality": "!=", "GreaterThan": ">=", "StrictGreaterThan": ">"}
    operators |= {"LessThan": "<=", "StrictLessThan": "<"}
    operator = operators.get(type(expression).__name__)
    text = f" {operator} ".join(map(str, expression.args)) if operator else str(expression)
    for symbol in sorted(names, key=lambda symbol: -len(str(symbol))):
        text = re.sub(rf"\b{re.escape(str(symbol))}\b", names[symbol], text)
    return text


def size_key(name: str) -> tuple[str, ...]:
    """Return the words of a size's name, so that ``L['d']['a'].shape[0]`` and ``d.a.shape[0]`` are equal."""
    return tuple(re.findall(r"\w+", name.removeprefix("L")))
