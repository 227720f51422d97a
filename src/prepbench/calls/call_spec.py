"""The signature of a compiled model: like the original's, with arguments by position or by keyword."""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from prepbench._torch_compat import pytree
from prepbench._torch_compat.programs import constant_outputs, number_outputs
from prepbench.calls import output_tree
from prepbench.calls.checked_conditions import ValueCondition, check_values
from prepbench.calls.tensor_specs import TensorChecks, TensorSpecs, dummy_tensor, tensor_specs, with_empty_tensors
from prepbench.calls.variant_calls import VariantCall, VariantChoice, nearest_sizes, sizes_of
from prepbench.capture.failures.tensor_conditions import TensorCondition
from prepbench.capture.sizes.conditions import SizeCondition
from prepbench.capture.sizes.size_formulas import UNDEFINED, check_function
from prepbench.checks import described, shown
from prepbench.errors import ConditionError, InputError
from prepbench.inputs import Sample, named_leaves, parameter_names, plain_defaults
from prepbench.objects.caches.counted import CountedNumber, path_text
from prepbench.objects.flatten import CallForms, as_tensor, fixed_numbers, is_mark, is_nothing, register_nodes
from prepbench.objects.parts import part_at
from prepbench.running.check_inputs import about_batches, is_same
from prepbench.targets import Runtime

# The identity of a model's weights and adapters at the compile, for later calls that run in the model itself.


_TENSORS, _VALUES = 16, 8
_OTHER = 0.5
"""The relative tolerance for sampled values: rounding and training move them less, another initialisation more."""


@dataclass(frozen=True)
class ModelIdentity:
    """Sampled values of a model's weights, and its active PEFT adapters, as plain data.

    Attributes:
        weights: a few values of some matrices, by their names.
        adapters: the adapters in use, each set once; None for a model that has no place for adapters.
    """

    weights: Mapping[str, list[float]] = field(default_factory=dict)
    adapters: tuple[str, ...] | None = None

    @classmethod
    def of(cls, model: Any) -> ModelIdentity:
        """Return a model's current identity; unknown for models without a method ``generate``."""
        if not isinstance(model, nn.Module) or not callable(getattr(model, "generate", None)):
            return cls()
        # constant initial values, such as normalization weights, are inconclusive
        matrices = [(name, tensor) for name, tensor in model.named_parameters() if _is_telling(tensor)]
        some = matrices[:: -(-len(matrices) // _TENSORS) or 1]
        return cls({name: _some_values(tensor) for name, tensor in some}, adapters_in_use(adapter_layers(model)))

    def has_other_weights(self, model: nn.Module) -> bool:
        """Return whether a model of the same names has entirely other values, as where no checkpoint was loaded."""
        now = {name: tensor for name, tensor in model.named_parameters() if name in self.weights}
        if any(tensor.is_meta for tensor in now.values()):
            return True
        pairs = [(self.weights[name], _some_values(tensor)) for name, tensor in now.items() if _is_telling(tensor)]
        size = sum(abs(one) for then, _ in pairs for one in then)
        moved = sum(abs(one - two) for then, found in pairs for one, two in zip(then, found, strict=False))
        return moved > _OTHER * size

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {"weights": dict(self.weights), "adapters": None if self.adapters is None else list(self.adapters)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ModelIdentity:
        """Read the data that :meth:`to_dict` wrote.

        Raises:
            ValueError: it is something else.
        """
        weights, adapters = data.get("weights", {}), data.get("adapters")
        rows = list(weights.values()) if isinstance(weights, dict) else [None]
        if not all(isinstance(row, list) and all(isinstance(one, float) for one in row) for row in rows):
            raise ValueError("calls.identity.weights must hold a list of numbers for each tensor")
        if adapters is not None and not (isinstance(adapters, list) and all(isinstance(one, str) for one in adapters)):
            raise ValueError("calls.identity.adapters must be a list of names")
        return cls(weights, None if adapters is None else tuple(adapters))


NO_IDENTITY = ModelIdentity()
"""Of what nothing is known."""


def adapter_layers(model: nn.Module) -> list[Any]:
    """Return the layers of a model with PEFT adapters."""
    tuners = sys.modules.get("peft.tuners.tuners_utils")  # such layers can exist only if PEFT is imported
    kind = getattr(tuners, "BaseTunerLayer", None)
    return [] if kind is None else [layer for layer in model.modules() if isinstance(layer, kind)]


def adapters_in_use(layers: list[Any]) -> tuple[str, ...] | None:
    """Return the distinct sets of active adapters of the layers; None without such layers."""
    if not layers:
        return None
    return tuple(sorted({" and ".join(_in_use(layer)) or "none" for layer in layers}))


def _in_use(layer: Any) -> Iterator[str]:
    merged = tuple(layer.merged_adapters)
    yield from map(str, merged or (() if layer.disable_adapters else layer.active_adapters))


def _is_telling(tensor: torch.Tensor) -> bool:
    is_plain = tensor.is_floating_point() and tensor.layout == torch.strided and not nn.parameter.is_lazy(tensor)
    return is_plain and not tensor.is_meta and tensor.ndim > 1 and tensor.numel() > 0


@torch.no_grad()
def _some_values(tensor: torch.Tensor) -> list[float]:
    """Return a few values along the tensor by indexing, because flattening a transposed tensor copies it."""
    found, count = [], min(_VALUES, tensor.numel())
    for number in range(count):
        place = torch.unravel_index(torch.tensor(number * tensor.numel() // count), tensor.shape)
        found.append(float(tensor[tuple(int(one) for one in place)]))
    return found


@dataclass(frozen=True)
class CallSpec:
    """The captured call as plain data.

    Attributes:
        parameters: names of the parameters of ``forward`` that can be given by position.
        positional: the number of positional arguments.
        keywords: names of those given by keyword.
        inputs: the nesting of ``(args, kwargs)``.
        outputs: the nesting of the result.
        paths: a readable path for each input leaf.
        input_constants: input leaves that are not tensors, by index. The graph is valid for these values only.
        output_constants: output leaves that are not tensors, by index.
        tensors: dtype and sizes of each input leaf that is a tensor.
        output_numbers: output leaves that are computed but are not tensors, such as a size or what a cache counts, by
            index.
        defaults: plain default values of parameters, which a call may give even if the tracing inputs left them out.
        object_numbers: numbers and texts that objects among the arguments hold, by path. The graph is valid for these
            values only.
        counted: numbers that objects hold and that follow from sizes, from which the graph computes them.
        identity: the identity of the model's weights and adapters.
        conditions: on sizes, under which the graph equals the model.
        variants: what each of several graphs takes, of which a call runs the first that takes it; empty for one graph.
        assertions: on values, for which the lowered program has further outputs.
        written: input leaves that forward writes into while the target gives each argument its own memory, by index.
        of_tensors: conditions on the tensors themselves, such as how they lie in memory.
        ordered: keywords that forward takes by ``**kwargs``, where their order decides the result.
    """

    parameters: tuple[str, ...]
    positional: int
    keywords: tuple[str, ...]
    inputs: output_tree.Tree
    outputs: output_tree.Tree
    paths: tuple[str, ...]
    input_constants: Mapping[int, Any]
    output_constants: Mapping[int, Any]
    tensors: TensorSpecs
    output_numbers: tuple[int, ...]
    defaults: Mapping[str, Any]
    object_numbers: Mapping[str, Any]
    counted: tuple[CountedNumber, ...] = ()
    identity: ModelIdentity = NO_IDENTITY
    conditions: tuple[SizeCondition, ...] = ()
    variants: tuple[VariantCall, ...] = ()
    assertions: tuple[ValueCondition, ...] = ()
    written: tuple[int, ...] = ()
    of_tensors: tuple[TensorCondition, ...] = ()
    ordered: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, module_or_function: Callable[..., Any], sample: Sample, program: torch.export.ExportedProgram
    ) -> CallSpec:
        """Return the specification of the call ``sample`` for which ``program`` was captured.

        Raises:
            InputError: nothing of its result is computed.
        """
        leaves = named_leaves(module_or_function, sample)
        numbers = fixed_numbers(parameter_names(module_or_function), sample.args, sample.kwargs)
        counted = {number.path for number in sample.counted}
        if len(constant_outputs(program)) == len(program.graph_signature.user_outputs):
            raise InputError(
                f"{type(module_or_function).__name__} returns no tensor, so there is nothing to compile. Let forward "
                "return what it computes; what it writes into its inputs or elsewhere is no result."
            )
        return cls(
            parameter_names(module_or_function),
            len(sample.args),
            tuple(sample.kwargs),
            output_tree.tree_of(program.call_spec.in_spec, with_fixed=True),
            output_tree.tree_of(program.call_spec.out_spec, with_fixed=True),
            tuple(path for path, _ in leaves),
            {i: leaf for i, (_, leaf) in enumerate(leaves) if not isinstance(leaf, torch.Tensor)},
            constant_outputs(program),
            tensor_specs(program),
            tuple(sorted({*number_outputs(program), *output_tree.number_leaves(program.call_spec.out_spec)})),
            plain_defaults(module_or_function),
            {path: value for path, value in numbers.items() if path not in counted},
            sample.counted,
            ModelIdentity.of(module_or_function),
        )

    @property
    def input_names(self) -> tuple[str, ...]:
        """A name for each input leaf that is a valid identifier, e.g. ``"input_ids"``."""
        return output_tree.identifiers(self.paths)

    @property
    def output_names(self) -> tuple[str, ...]:
        """A name for each output leaf that is computed, e.g. ``"logits"``."""
        names = output_tree.identifiers(output_tree.leaf_names(self.outputs))
        return tuple(name for i, name in enumerate(names) if i not in self.output_constants)

    @property
    def named_assertions(self) -> dict[str, ValueCondition]:
        """The conditions on values by the names of the further outputs that tell whether they hold."""
        names = (f"assertion_{place}" for place in itertools.count())
        known = set(self.output_names)
        return dict(zip((name for name in names if name not in known), self.assertions, strict=False))

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the input leaves of a call, in the order of the program.

        Raises:
            InputError: an argument is missing or was not captured, or the nesting or a constant differs.
        """
        if self._takes_tensors and not kwargs and len(args) == self.positional:
            for value in args:
                if not isinstance(value, torch.Tensor):
                    break
            else:
                return list(args)
        arranged = self._arrange(args, kwargs)
        if (known := self._as_before(*arranged)) is not None:
            return known
        register_nodes(arranged)  # a loaded model may be the first to see a class
        leaves, spec = pytree.tree_flatten(arranged)
        is_nested_alike = output_tree.nesting(output_tree.tree_of(spec)) == self._nesting
        filled = None
        if not is_nested_alike or any(map(_is_flat_nothing, leaves)):
            filled = self._with_empty_caches(arranged)
        if filled is not None:
            leaves = filled
        elif not is_nested_alike:
            raise InputError(
                "The arguments are nested differently from the tracing inputs: expected leaves "
                f"{', '.join(self.paths)}, got {len(leaves)} leaves "
                f"({', '.join(type(leaf).__name__ for leaf in leaves)}). Call it the way the tracing inputs do, "
                "or compile with inputs nested like these." + about_batches(args, kwargs)
            )
        for index, expected in self.input_constants.items():
            _check_constant(self.paths[index], expected, leaves[index])
        if self.object_numbers:
            found = fixed_numbers(self.parameters, *arranged)
            for path, expected in self.object_numbers.items():
                # an empty object has other flags, and is not registered as one that holds tensors
                is_flag = type(expected) is bool and not is_mark(path, expected)
                if filled is None or (type(found.get(path)) is type(expected) and not is_flag):
                    _check_constant(path, expected, found.get(path))
        self._check_counted(arranged)
        if filled is None:
            self._known_forms.add(self._by_name(*arranged))
        return leaves

    def _as_before(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any] | None:
        """Return the leaves of a call of a known form; None for any other."""
        leaves = self._known_forms.leaves(self._by_name(args, kwargs))
        if leaves is not None:
            for index, expected in self.input_constants.items():
                _check_constant(self.paths[index], expected, leaves[index])
            self._check_counted((args, kwargs))
        return leaves

    def _by_name(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
        """Return the arguments with their names, as far as they have any."""
        known = self.parameters[: min(self.positional, len(args))]
        names = [*known, *(f"args[{index}]" for index in range(len(known), len(args)))]
        return [*zip(names, args, strict=True), *kwargs.items()]

    @functools.cached_property
    def _known_forms(self) -> CallForms:
        """The forms of accepted calls."""
        return CallForms([number.steps for number in self.counted])

    @functools.cached_property
    def _nesting(self) -> output_tree.Tree:
        """The pytree structure of the inputs, ignoring non-tensor contents of objects."""
        return output_tree.nesting(self.inputs)

    def _check_counted(self, arranged: Any) -> None:
        """Raise ``InputError`` for a number that contradicts the sizes of the call."""
        named = self._named(arranged) if self.counted else {}
        for number in self.counted:
            try:
                given, expected = part_at(named, number.steps), number.value(named)
            except (LookupError, AttributeError):  # an empty cache
                continue
            if given != expected:
                raise InputError(
                    f"{number.path} is {given}, but in all tracing inputs it was {number.formula}, which is {expected} "
                    "here, and the graph computes it so. Give arguments that fit each other, or compile with tracing "
                    "inputs that differ in this way."
                )

    def _named(self, arranged: Any) -> dict[str, Any]:
        names = [*self.parameters[: self.positional], *(f"args[{i}]" for i in range(len(arranged[0])))]
        return {**dict(zip(names, arranged[0], strict=False)), **arranged[1]}

    def _with_empty_caches(self, arranged: Any) -> list[Any] | None:
        """Return the leaves of a call with empty caches; None if other leaves are missing."""
        found = leaves_along(arranged, self._nesting)
        if found is None:
            return None
        missing = [leaf is MISSING for leaf in found]
        if not any(missing):
            return None
        return with_empty_tensors(found, missing, self.tensors, self._noted_sizes(arranged))

    def _noted_sizes(self, arranged: Any) -> dict[str, int]:
        """Return sizes that are numbers in objects of the call, such as the length of a static cache, by symbol."""
        specs = {path: spec for path, spec in zip(self.paths, self.tensors, strict=True) if spec is not None}
        named = self._named(arranged)
        found: dict[str, int] = {}
        for number in self.counted:
            owner = path_text(number.steps[:-1])
            with contextlib.suppress(LookupError, AttributeError):
                # its value in the captured call determines the dims that it is the size of
                sizes = [((specs[path_text(steps)]["example"] or ())[dim], sign) for steps, dim, sign in number.terms]
                given, then = part_at(named, number.steps), sum(size * sign for size, sign in sizes)
                for path, spec in specs.items():
                    if path.rpartition(".")[0] == owner:
                        pairs = zip(spec.get("symbols", ()), spec["example"] or (), strict=False)
                        found.update({symbol: int(given) for symbol, size in pairs if symbol and size == then})
        return found

    @functools.cached_property
    def _takes_tensors(self) -> bool:
        """Whether the call takes positional tensors only, which need no rearranging."""
        arguments = self.inputs["items"][0]["items"]
        return not self.keywords and all(self.tensors) and all(item["kind"] == "leaf" for item in arguments)

    def dummy(self, seed: int) -> Sample:
        """Return a call like the captured one, with made-up tensors."""
        generator = torch.Generator().manual_seed(seed)
        leaves = [
            dummy_tensor(spec, generator) if spec is not None else self.input_constants.get(index)
            for index, spec in enumerate(self.tensors)
        ]
        args, kwargs = output_tree.rebuild(self.inputs, iter(leaves))
        return Sample(tuple(args), dict(kwargs))

    def checked(self, leaves: Sequence[Any], *, allow_unproven: bool = False) -> list[Any]:
        """Return the input leaves of a call in the form that targets take.

        Args:
            leaves: of the call.
            allow_unproven: whether sizes may break conditions.

        Raises:
            InputError: the compiled graph cannot take a leaf; names it and says what it should be.
            ConditionError: a condition on sizes, or on the tensors themselves, is broken.
        """
        found = self._checks.checked(leaves)
        if self.of_tensors and not allow_unproven:
            self._check_tensors(leaves)
        if self.written and not allow_unproven:
            self._check_memory(found)
        if self.conditions and not allow_unproven:
            self._size_checks(found)
        if self.variants and not allow_unproven:
            self._choice.check(found)
        return found

    def _check_tensors(self, leaves: Sequence[Any]) -> None:
        """Refuse a call for which forward goes another way because of the tensors themselves."""
        for condition in self.of_tensors:
            place = condition.broken_by(leaves)
            if place is not None:
                path = "This call" if condition.is_of_call else self.paths[place]
                raise ConditionError(
                    f"{path} breaks a condition of the compiled graph: {condition}. {condition.remedy(path)}, or set "
                    "compiled.allow_unproven = True, which may give wrong results."
                )

    def _check_memory(self, leaves: Sequence[Any]) -> None:
        """Refuse a call whose arguments share memory that forward writes into: the target gives each its own."""
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if len({leaf.untyped_storage().data_ptr() for leaf in tensors}) == len(tensors):
            return  # so it is in most calls, and this is fast also with a cache for each of many layers
        spans = {place: _memory(leaf) for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}
        for place in self.written:
            first, last = spans[place]
            for other, (low, high) in spans.items():
                if other != place and max(first, low) < min(last, high):
                    raise ConditionError(
                        f"{self.paths[other]} shares its memory with {self.paths[place]}, which forward writes into. "
                        "In PyTorch both change, in the compiled model only one. Give a copy, such as "
                        f"{self.paths[other]}.clone(), if it should stay as it is; else compile with EagerDeployment()."
                    )

    def checked_outputs(self, outputs: Sequence[Any], *, allow_unproven: bool = False) -> Sequence[Any]:
        """Return the output leaves that are results, from the outputs of a lowered program.

        Args:
            outputs: of the lowered program.
            allow_unproven: whether values may break conditions.

        Raises:
            ConditionError: a condition on values is broken.
        """
        if not self.assertions:
            return outputs
        count = len(outputs) - len(self.assertions)
        if not allow_unproven:
            check_values(self.assertions, outputs[count:])
        return outputs[:count]

    @functools.cached_property
    def _size_checks(self) -> SizeChecks:
        return SizeChecks(self.conditions)

    @functools.cached_property
    def _choice(self) -> VariantChoice:
        return VariantChoice(self.variants, self.paths)

    @functools.cached_property
    def _checks(self) -> TensorChecks:
        return TensorChecks(self.tensors, self.paths)

    def result(self, outputs: Sequence[Any], spec: pytree.TreeSpec | None = None) -> Any:
        """Return the result of a call from its computed output leaves."""
        values = list(outputs)
        for i in sorted(self.output_constants):
            values.insert(i, self.output_constants[i])
        for i in self.output_numbers:
            if isinstance(values[i], torch.Tensor):  # most targets give every result as a tensor
                values[i] = values[i].item()
        if spec is None or self._has_plain_outputs:
            return self._rebuild(iter(values))
        return (pytree.with_sizes if "sizes" in self._output_kinds else pytree.tree_unflatten)(values, spec)

    @functools.cached_property
    def _has_plain_outputs(self) -> bool:
        """Whether the outputs are tuples, lists and sizes only, which need no classes of the model."""
        return self._output_kinds <= {"leaf", "tuple", "list", "sizes"}

    @functools.cached_property
    def _output_kinds(self) -> frozenset[str]:
        trees = [self.outputs]
        for tree in trees:
            trees += tree.get("items", ())
        return frozenset(tree["kind"] for tree in trees)

    @functools.cached_property
    def _rebuild(self) -> output_tree.Build:
        return output_tree.rebuilder(self.outputs)

    def _arrange(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the call with its arguments passed as in the captured call.

        Arguments that are None and were not captured are left out.
        """
        named = dict(kwargs)
        extra = list(args[len(self.parameters) :])
        for name, value in zip(self.parameters, args, strict=False):
            if name in named:
                raise InputError(f"The argument {name!r} is given twice, by position and by keyword.")
            named[name] = value
        positional = list(self.parameters[: self.positional])
        missing = [name for name in (*positional, *self.keywords) if name not in named]
        surplus = [
            name
            for name, value in named.items()
            if name not in (*positional, *self.keywords) and not self._is_default(name, value)
        ]
        if missing or surplus:
            expected = ", ".join([*positional, *(f"{name}=" for name in self.keywords)]) or "no arguments"
            problem = (
                f"missing {', '.join(missing)}" if missing else f"{', '.join(surplus)} was not among the tracing inputs"
            )
            raise InputError(
                f"Compiled for a call with {expected}: {problem}. Give these arguments, or compile again with "
                "tracing inputs of this form."
            )
        if self.ordered and (given := [name for name in named if name in self.ordered]) != [*self.ordered]:
            raise InputError(
                f"Compiled for {', '.join(f'{name}=' for name in self.ordered)} in this order, which decides the "
                f"result; got {', '.join(f'{name}=' for name in given)}. Give them in that order."
            )
        return (*(named[name] for name in positional), *extra), {name: named[name] for name in self.keywords}

    def _is_default(self, name: str, value: Any) -> bool:
        return value is None or (isinstance(value, bool | int | float | str) and self.defaults.get(name) == value)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data; constants that JSON cannot hold become text."""
        return {
            "parameters": list(self.parameters),
            "positional": self.positional,
            "keywords": list(self.keywords),
            "inputs": self.inputs,
            "outputs": self.outputs,
            "paths": list(self.paths),
            "input_constants": {str(i): _plain(value) for i, value in self.input_constants.items()},
            "output_constants": {str(i): _plain(value) for i, value in self.output_constants.items()},
            "tensors": list(self.tensors),
            "output_numbers": list(self.output_numbers),
            "defaults": dict(self.defaults),
            "object_numbers": dict(self.object_numbers),
            "counted": [number.to_list() for number in self.counted],
            "identity": self.identity.to_dict(),
            "conditions": [condition.to_dict() for condition in self.conditions],
            "variants": [variant.to_dict() for variant in self.variants],
            "assertions": [assertion.to_dict() for assertion in self.assertions],
            "written": list(self.written),
            "ordered": list(self.ordered),
            "of_tensors": [condition.to_dict() for condition in self.of_tensors],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CallSpec:
        """Read the data that :meth:`to_dict` wrote."""
        return cls(
            tuple(data["parameters"]),
            data["positional"],
            tuple(data["keywords"]),
            data["inputs"],
            data["outputs"],
            tuple(data["paths"]),
            {int(i): value for i, value in data["input_constants"].items()},
            {int(i): value for i, value in data["output_constants"].items()},
            tuple(data["tensors"]),
            tuple(data["output_numbers"]),
            data["defaults"],
            data.get("object_numbers", {}),
            tuple(map(CountedNumber.from_list, data.get("counted", []))),
            ModelIdentity.from_dict(data.get("identity", {})),
            tuple(map(SizeCondition.from_dict, data.get("conditions", []))),  # none in folders before version 2.2
            tuple(map(VariantCall.from_dict, data.get("variants", []))),  # none before 2.3
            tuple(map(ValueCondition.from_dict, data.get("assertions", []))),
            tuple(data.get("written", [])),
            tuple(map(TensorCondition.from_dict, data.get("of_tensors", []))),
            tuple(data.get("ordered", [])),
        )


def _memory(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first address of a tensor's elements, and the one behind its last."""
    if not tensor.numel():
        return 0, 0
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return tensor.data_ptr(), tensor.data_ptr() + reach * tensor.element_size()


def _is_flat_nothing(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and is_nothing(leaf)


def _check_constant(path: str, expected: Any, given: Any) -> None:
    # a loaded model has text in place of values that are not plain
    if not is_same(expected, given) and _plain(given) != expected:
        raise InputError(
            f"{path} was {shown(expected)} when the model was compiled, and its value is part of the graph; got "
            f"{described(given)}. Compile again with this value in the tracing inputs."
        )
    kinds = _kind(expected), _kind(given)
    if None not in kinds and kinds[0] is not kinds[1]:  # equal, but torch may give another number type
        raise InputError(
            f"{path} was the {_kind_name(expected)} {shown(expected)} when the model was compiled; got the "
            f"{_kind_name(given)} {shown(given)}, for which the model may give another number type. Give "
            f"{shown(expected)}, or compile again with {shown(given)} in the tracing inputs."
        )


def _kind(value: Any) -> type | None:
    return next((kind for kind in (bool, int, float) if isinstance(value, kind)), None)


def _kind_name(value: Any) -> str:
    kind = _kind(value)
    return kind.__name__ if kind is not None else type(value).__name__


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


# The leaves of a call with empty caches, found along the captured pytree structure.


MISSING = object()
"""The placeholder of a tensor that an object does not hold yet."""


def leaves_along(value: Any, tree: output_tree.Tree, *, is_inside: bool = False) -> list[Any] | None:
    """Return the leaves of ``value`` in the order of ``tree``, with :data:`MISSING` for missing tensors in objects.

    Args:
        value: nested like ``tree``, except that objects may hold None, no entries or flat tensors without entries.
        tree: a nesting.
        is_inside: whether the value is a part of an object.

    Returns:
        None where something else than a part of an object is missing.
    """
    if tree["kind"] == "leaf":
        if value is MISSING or (is_inside and is_nothing(value)):
            return [MISSING]
        leaf = as_tensor(value) if is_inside else value
        return [leaf] if not is_inside or isinstance(leaf, torch.Tensor) else None
    is_object = tree["kind"] == "object"
    if not is_object and value is not MISSING and not isinstance(value, tuple | list | Mapping):
        return None
    keys = range(len(tree["items"])) if tree["kind"] in ("tuple", "list") else tree["keys"]
    leaves: list[Any] = []
    for key, item in zip(keys, tree["items"], strict=True):
        inside = is_inside or is_object
        part = _part(value, key, tree["kind"]) if value is not MISSING else MISSING
        if (part is None and item["kind"] != "leaf") or part is MISSING:
            if not inside:
                return None
            part = MISSING
        found = leaves_along(part, item, is_inside=inside)
        if found is None:
            return None
        leaves += found
    return leaves


def _part(value: Any, key: Any, kind: str) -> Any:
    if kind in ("tuple", "list"):
        return value[key] if key < len(value) else MISSING
    if kind == "dict":
        return value.get(key, MISSING)
    return getattr(value, str(key), MISSING)


# The conditions on sizes of a compiled graph, checked in each call by one function.


class SizeChecks:
    """Refuses calls of sizes for which the graph is not known to equal the model, by the conditions on them."""

    def __init__(self, conditions: Sequence[SizeCondition]) -> None:
        self._conditions = [condition for condition in conditions if condition.formula]
        self._hold = check_function((condition.formula, condition.places) for condition in self._conditions)

    def __call__(self, leaves: Sequence[Any]) -> None:
        """Check the leaves of one call.

        Raises:
            ConditionError: a condition is broken.
        """
        try:
            if self._hold(leaves):
                return
        except UNDEFINED:  # a condition divides by a size of 0
            pass
        for condition in self._conditions:
            sizes = sizes_of(condition, leaves)
            if condition.holds(sizes) is False:
                raise ConditionError(self._text(condition, sizes, leaves))

    def _about(self, place: tuple[int, int]) -> list[SizeCondition]:
        return [condition for condition in self._conditions if place in condition.places]

    def _text(self, condition: SizeCondition, sizes: Sequence[int], leaves: Sequence[Any]) -> str:
        source = condition.source
        line = f", because of {source.file}:{source.line} ({source.code})" if source else ""
        given = ", ".join(f"{name} = {size}" for name, size in zip(condition.sizes, sizes, strict=True))
        found = [
            f"{name} may be {text}"
            for name, place in zip(condition.sizes, condition.places, strict=True)
            if (text := nearest_sizes([self._about(place)], place, leaves))
        ]
        others = "With the other sizes of this call, " if len(self._conditions) > 1 or len(sizes) > 1 else ""
        near = f" {others}{', or '.join(found)}." if found else ""
        return (
            f"This call breaks a condition of the compiled graph: {condition.text}{line}. Given: {given}.{near} "
            "Call it with such sizes, compile with tracing inputs of these sizes, or set compiled.allow_unproven = "
            "True, which may give wrong results."
        )


class Lowered(Protocol):
    """A compiled model, as far as its calls go: :class:`prepbench.CompiledModel`, which is made of what is here."""

    allow_unproven: bool
    _runtime: Runtime
    _call_spec: CallSpec

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


_AS_IT_IS = contextlib.nullcontext()


def outputs_of(compiled: Lowered, leaves: Sequence[Any]) -> Sequence[Any]:
    """Return the output leaves for the input leaves of a call, which must meet the conditions unless the model allows
    others.

    Raises:
        InputError: the compiled graph cannot take a leaf.
        ConditionError: a condition is broken.
    """
    runtime, spec, allow_unproven = compiled._runtime, compiled._call_spec, compiled.allow_unproven
    tensors = spec.checked(leaves, allow_unproven=allow_unproven)
    with torch.no_grad() if torch.is_grad_enabled() else _AS_IT_IS:
        return spec.checked_outputs(runtime.run(tensors), allow_unproven=allow_unproven)


def runtime_and_calls(compiled: Lowered) -> tuple[Runtime, CallSpec]:
    """Return the runtime of a compiled model, and its call specification."""
    return compiled._runtime, compiled._call_spec
