"""The operator that stands for a leaf: its fake implementation is learned, its real one calls the leaf."""

from __future__ import annotations

import difflib
import itertools
import operator
import re
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat import pytree
from prepbench._torch_compat.fake_tensors import device_of
from prepbench._torch_compat.operators import OpOverload, is_registered, registered_operators, schema_of
from prepbench._torch_compat.tensors import memory_of
from prepbench.capture.sizes.learned_outputs import (
    CONSTANTS,
    CallsAlike,
    LearnedOutputs,
    Rules,
    UnknownOutputsError,
    kinds_of,
    kinds_text,
)
from prepbench.capture.statements.cuts import ReleasedLeaf, StatementLeaf
from prepbench.capture.statements.outline import CutFunction
from prepbench.checks import described
from prepbench.document.model import Failure
from prepbench.errors import CaptureError, SettingsError
from prepbench.objects.flatten import refill
from prepbench.patching import patched_item
from prepbench.running.callable_module import FURTHER
from prepbench.running.check_inputs import is_same
from prepbench.running.recorded_calls import Given, RecordedCall, flatten_result

_NAMESPACE = "prepbench_leaf"


@dataclass(frozen=True)
class LeafDefinition:
    """The definition of an operator, without the code that it runs.

    Attributes:
        fqn: the name of the leaf.
        signature: maps its arguments to a call.
        outputs: the rules for its results, learned from calls of this kind.
        strict: whether it refuses a result that is memory of its arguments.
    """

    fqn: str
    signature: Signature
    outputs: LeafOutputs
    strict: bool = False


class KeepAlive:
    """The objects that a graph with leaves needs to run: the model and the libraries that registered its operators.

    It travels in ``GraphModule.meta``, which ``torch.export`` and PT2E pass on to the graphs they make.

    Attributes:
        model: the model whose leaves run.
        libraries: the torch libraries that registered the operators.
        functions: the functions that statements were cut out of.
        strict: the operators, by the names of their overloads, that refuse results which are memory of their arguments.
    """

    def __init__(
        self, model: torch.nn.Module, libraries: list[torch.library.Library], owner: _Owner | None = None
    ) -> None:
        self.model = model
        self.libraries = libraries
        self.functions: tuple[CutFunction, ...] = ()
        self._definitions: dict[str, LeafDefinition] = {}
        self.strict: set[str] = set()
        self._owner = owner

    @property
    def definitions(self) -> dict[str, LeafDefinition]:
        """The operators by name, such as ``"prepbench_leaf.gate"``."""
        made = self._definitions.items()
        return {name: replace(definition, strict=f"{name}.default" in self.strict) for name, definition in made}

    def leaf(self, fqn: str) -> StatementLeaf | ReleasedLeaf | None:
        """Return the statements behind a leaf; None for a module."""
        return None if self._owner is None else self._owner.statements.get(fqn)

    def add(self, name: str, made: LeafDefinition, library: torch.library.Library) -> None:
        """Add an operator."""
        self._definitions[name] = made
        self.libraries.append(library)
        _LIBRARIES.setdefault(self.model, []).append(library)

    @contextmanager
    def running_on(self, twin: torch.nn.Module) -> Iterator[None]:
        """Run the operators on a twin of the model when this thread calls them during the block."""
        if self._owner is None:
            yield
            return
        with patched_item(self._owner.stand_ins, threading.get_ident(), twin):
            yield

    def __deepcopy__(self, memo: Any) -> KeepAlive:
        return self

    def __reduce__(self) -> Any:
        # pickled graphs are for other processes, where the operators do not exist
        return KeepAlive, (torch.nn.Module(), [])


class _Owner:
    """The model behind the leaves; the operators hold no strong reference to it."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.reference = weakref.ref(model)
        self.stand_ins: dict[int, torch.nn.Module] = {}
        self._originals: dict[int, Any] = {}
        self.statements: Mapping[str, StatementLeaf | ReleasedLeaf] = vars(model).get(FURTHER, {})
        self._names = {id(module): fqn for fqn, module in model.named_modules()}

    def forward(self, fqn: str) -> Callable[..., Any]:
        """Return the function that a leaf runs."""
        leaf = self.statements.get(fqn)
        model = self._model(fqn)
        if leaf is not None:
            return leaf.on(model)
        forward: Callable[..., Any] = model.get_submodule(fqn).forward
        return forward

    def own(self, fqn: str, value: Any) -> Any:
        """Return the model's counterpart of a constant in the graph, such as a module argument of the leaf."""
        name = self._names.get(id(value))
        return self._originals.get(id(value), value) if name is None else self._model(fqn).get_submodule(name)

    def give_to(self, model: torch.nn.Module, original: Callable[[Any], Any], values: Iterable[Any]) -> None:
        """Run the leaves of another model, to which nothing here holds a strong reference.

        Args:
            original: gives the part of it that a part of this one stands for.
            values: those that are fixed in the graph.
        """
        self.reference = weakref.ref(model)
        self.statements = {fqn: leaf.released(original) for fqn, leaf in self.statements.items()}
        self._originals = {id(value): original(value) for value in values}

    def _model(self, fqn: str) -> torch.nn.Module:
        model = self.stand_ins.get(threading.get_ident()) or self.reference()
        if model is None:
            raise CaptureError(f"The model with the leaf {fqn!r} no longer exists: keep the Captured object.")
        return model


# A graph that lost its meta (by being exported again) still runs as long as its model lives.
_LIBRARIES: weakref.WeakKeyDictionary[torch.nn.Module, list[torch.library.Library]] = weakref.WeakKeyDictionary()


class LeafOperators:
    """Makes the operators of one capture.

    The operators live as long as the model, or as any graph that holds :attr:`keep_alive`.

    Args:
        model: the model that has the leaves.
        outputs: gives the learned outputs of a module by name.
    """

    def __init__(self, model: torch.nn.Module, outputs: Callable[[str], LeafOutputs]) -> None:
        self._outputs = outputs
        self._made: dict[str, list[tuple[Signature, CallsAlike, Any]]] = {}
        self._namespace = ""
        self._owner = _Owner(model)
        self.keep_alive = KeepAlive(model, [], self._owner)

    def run_on(self, model: torch.nn.Module, original: Callable[[Any], Any]) -> None:
        """Make the operators call the submodules of another model from now on, of which the first was a twin.

        Args:
            model: the other model.
            original: gives the part of it that a part of the first stands for.
        """
        made = [signature for known in self._made.values() for signature, _, _ in known]
        self._owner.give_to(model, original, [value for signature in made for value in signature.fixed])
        self.keep_alive.model = model
        _LIBRARIES.setdefault(model, []).extend(self.keep_alive.libraries)

    def call(self, fqn: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the operator for a submodule; while tracing, this is one node.

        Raises:
            UnknownOutputsError: the outputs of the module cannot be described.
        """
        learned = self._outputs(fqn)
        leaves, spec = pytree.tree_flatten((args, kwargs))
        signature = Signature.of(leaves, spec)
        changed = signature.first_of(learned.changed_inputs(leaves))
        operator = self._operator(fqn, signature, learned, leaves)
        results = operator(*[leaf for leaf, kind in zip(leaves, signature.kinds, strict=True) if kind])
        tensors = iter([results] if isinstance(results, torch.Tensor) else results or ())
        result = learned.rebuild(leaves, tensors)
        for index in changed:
            leaves[index].copy_(next(tensors))
        if not learned.restructures(leaves):
            return result
        output, arguments = result
        refill((args, kwargs), arguments)
        return output

    def refuse_shared_memory(self, graph: torch.fx.Graph) -> None:
        """Make leaves raise if they return memory of their arguments where ``graph`` writes into it."""
        self.keep_alive.strict |= {str(target) for target in leaves_written_into(graph, is_leaf_operator)}

    def in_graph(self, graph: torch.fx.Graph) -> set[str]:
        """Return the names of the leaves that a graph calls."""
        targets = {node.target for node in graph.nodes}
        return {fqn for fqn, made in self._made.items() if any(operator in targets for _, _, operator in made)}

    def _operator(self, fqn: str, signature: Signature, learned: LeafOutputs, leaves: Sequence[Any]) -> Any:
        made = self._made.setdefault(fqn, [])
        outputs = learned.for_call(leaves)
        (alike,) = outputs.learned.variants
        for known, variant, custom in made:
            if variant is alike and known.matches(signature):
                return custom
        operator = self.define(LeafDefinition(fqn, signature, outputs))
        made.append((signature, alike, operator))
        return operator

    def define(self, definition: LeafDefinition, run: Callable[..., Any] | None = None) -> OpOverload:
        """Register an operator, with its implementation if that is not the module or statements of its name."""
        fqn, signature, outputs = definition.fqn, definition.signature, definition.outputs
        self._namespace = self._namespace or _free_namespace()
        name = _free_name(self._namespace, fqn)
        library = torch.library.Library(self._namespace, "FRAGMENT")
        example = outputs.learned.variants[0].calls[0].inputs
        count = outputs.count_tensors(example) + len(signature.first_of(outputs.changed_inputs(example)))
        library.define(name + _schema(signature, count))
        full_name, strict = f"{self._namespace}.{name}", self.keep_alive.strict
        strict |= {f"{full_name}.default"} if definition.strict else set()
        real = _real(definition, self._owner, run, lambda: f"{full_name}.default" in strict)
        library.impl(name, real, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{self._namespace}::{name}", _fake(signature, outputs), lib=library)
        self.keep_alive.add(full_name, definition, library)
        operator: OpOverload = getattr(getattr(torch.ops, self._namespace), name).default
        return operator


def is_leaf_operator(target: Any) -> bool:
    """Return whether the target of a graph node is a leaf's operator."""
    return isinstance(target, OpOverload) and target.namespace.startswith(_NAMESPACE)


def leaf_label(target: Any) -> str:
    """Return the lines that a leaf's operator stands for, in words; "" if it stands for a module."""
    found = re.search(r"(?:^|[._])line_(\d+)(?:_to_(\d+))?(?:_\d+)*(?:\.default)?$", str(target))
    if found is None:
        return ""
    return f"lines {found[1]} to {found[2]}" if found[2] else f"line {found[1]}"


def _real(
    definition: LeafDefinition,
    owner: _Owner,
    run: Callable[..., Any] | None,
    is_written_into: Callable[[], bool],
) -> Callable[..., Any]:
    fqn, signature, learned = definition.fqn, definition.signature, definition.outputs

    def real(*arguments: Any) -> Any:
        forward = owner.forward(fqn) if run is None else run
        fixed = [owner.own(fqn, value) for value in signature.fixed]
        leaves = replace(signature, fixed=tuple(fixed)).leaves(arguments)
        changed = signature.first_of(learned.changed_inputs(leaves))
        for index in changed:
            leaves[index] = leaves[index].clone()
        signature.with_repeats(leaves)
        args, kwargs = pytree.tree_unflatten(leaves, signature.spec)
        with torch.no_grad():
            output = forward(*args, **kwargs)
        outputs = learned.tensors_of(leaves, output, (args, kwargs))
        if is_written_into() and _share_memory(pytree.tree_leaves(output), leaves):
            raise UnknownOutputsError(
                f"{learned.name}: a leaf returned memory of its argument, and the captured graph writes into one of "
                "them later, which the other would not see. Return a copy (.clone()), or make the module around it the "
                "leaf (leaf_modules=)."
            )
        separate = _without_aliases(outputs, [*arguments, *leaves])
        return _returned(separate + [leaves[index] for index in changed])

    return real


def _fake(signature: Signature, learned: LeafOutputs) -> Callable[..., Any]:
    def fake(*arguments: Any) -> Any:
        leaves = signature.leaves(arguments)
        # a size without a rule becomes an unbacked symbol, which only the real call determines
        outputs = learned.fake_tensors(leaves, unknown_size=lambda: torch.library.get_ctx().new_dynamic_size())
        changed = signature.first_of(learned.changed_inputs(leaves))
        return _returned(outputs + [torch.empty_like(leaves[index]) for index in changed])

    return fake


def _returned(outputs: list[torch.Tensor]) -> Any:
    return outputs[0] if len(outputs) == 1 else tuple(outputs) if outputs else None


def _share_memory(outputs: Sequence[Any], arguments: Sequence[Any]) -> bool:
    tensors = [[leaf for leaf in leaves if isinstance(leaf, torch.Tensor)] for leaves in (outputs, arguments)]
    storages = [[memory_of(leaf) for leaf in leaves] for leaves in tensors]
    return len(set(storages[0])) < len(storages[0]) or bool(set(storages[0]) & set(storages[1]))


def _without_aliases(outputs: list[torch.Tensor], arguments: Sequence[Any]) -> list[torch.Tensor]:
    """Copy results that alias an argument or each other, because an operator may return neither."""
    seen = {memory_of(leaf) for leaf in arguments if isinstance(leaf, torch.Tensor)}
    result = []
    for tensor in outputs:
        storage = memory_of(tensor)
        result.append(tensor.clone() if storage in seen else tensor)
        seen.add(storage)
    return result


def _schema(signature: Signature, outputs: int) -> str:
    kinds = [kind for kind in signature.kinds if kind]
    arguments = ", ".join(f"{kind} x{index}" for index, kind in enumerate(kinds))
    return f"({arguments}) -> " + ("Tensor" if outputs == 1 else "(" + ", ".join(["Tensor"] * outputs) + ")")


def _free_namespace() -> str:
    used = {name.partition("::")[0] for name in registered_operators() if name.startswith(_NAMESPACE)}
    candidates = (f"{_NAMESPACE}{number or ''}" for number in itertools.count())
    return next(name for name in candidates if name not in used)


def _free_name(namespace: str, fqn: str) -> str:
    # names in a Sequential are numbers, and operator names may not start with one
    stem = re.sub(r"\W", "_", f"layer_{fqn}" if fqn[:1].isdigit() else fqn or "model")
    candidates = (f"{stem}_{number}" if number else stem for number in itertools.count())
    return next(name for name in candidates if not is_registered(f"{namespace}::{name}"))


# Which leaves of a graph have inputs or outputs that something else in the graph writes into.
#
# A leaf hands out new tensors. If the module it stands for returns its argument or a view of it, that is the same as
# long as nobody writes into either; where somebody does, the leaf must refuse such a call.


def leaves_written_into(graph: fx.Graph, is_leaf: Callable[[Any], bool]) -> set[Any]:
    """Return the targets of leaf nodes whose outputs, or whose inputs after they ran, the graph writes into."""
    found: set[Any] = set()
    before: list[fx.Node] = []
    for node in graph.nodes:
        for written in _written(node):
            base = _base(written)
            for leaf in before:
                if not _gives_back(leaf, node) and (base is leaf or base in map(_base, leaf.all_input_nodes)):
                    found.add(leaf.target)
        if is_leaf(node.target):
            before.append(node)
    return found


def _written(node: fx.Node) -> Iterator[fx.Node]:
    """Yield the arguments that the node writes into."""
    if not isinstance(node.target, OpOverload):
        return
    for index, argument in enumerate(schema_of(node.target).arguments):
        value = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name)
        if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, fx.Node):
            yield value


def _gives_back(leaf: fx.Node, node: fx.Node) -> bool:
    """Return whether the node copies the leaf's write into its own argument back to its place."""
    return "copy_" in str(node.target) and any(_base(value) is leaf for value in node.all_input_nodes[1:])


def _base(node: fx.Node) -> fx.Node:
    """Return the node that owns the memory of this one."""
    while (source := _source(node)) is not None:
        node = source
    return node


def _source(node: fx.Node) -> fx.Node | None:
    if node.target is operator.getitem:
        return node.args[0] if isinstance(node.args[0], fx.Node) else None
    if not isinstance(node.target, OpOverload):
        return None
    for index, argument in enumerate(schema_of(node.target).arguments):
        if argument.alias_info is not None and index < len(node.args) and isinstance(node.args[index], fx.Node):
            value: Any = node.args[index]
            return value  # type: ignore[no-any-return]
    return None


# The signature of a leaf's operator: which flat arguments it takes, and which are constants of the graph.


SCHEMA_TYPES = ((torch.Tensor, "Tensor"), (torch.SymInt, "SymInt"), (torch.SymFloat, "float"))
"""The argument types of an operator, with their names in a schema."""


class UnknownInputError(UnknownOutputsError):
    """Raised if a leaf is called with a value that an operator cannot take."""


@dataclass(frozen=True)
class Signature:
    """The mapping from the operator's flat arguments to a call: argument positions, and the values of the rest.

    ``repeats`` has the positions of tensors that were given before, and where.
    """

    spec: pytree.TreeSpec
    kinds: tuple[str, ...]
    fixed: tuple[Any, ...]
    repeats: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, leaves: Sequence[Any], spec: pytree.TreeSpec) -> Signature:
        kinds = [_kind(leaf) for leaf in leaves]
        first: dict[int, int] = {}
        repeats = []
        for index, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor) and first.setdefault(id(leaf), index) != index:
                repeats.append((index, first[id(leaf)]))
                kinds[index] = ""
        fixed = tuple(
            None if kind or isinstance(leaf, torch.Tensor) else leaf for leaf, kind in zip(leaves, kinds, strict=True)
        )
        return cls(spec, tuple(kinds), fixed, tuple(repeats))

    def leaves(self, arguments: Sequence[Any]) -> list[Any]:
        given = iter(arguments)
        leaves = [next(given) if kind else value for kind, value in zip(self.kinds, self.fixed, strict=True)]
        return self.with_repeats(leaves)

    def with_repeats(self, leaves: list[Any]) -> list[Any]:
        for index, first in self.repeats:
            leaves[index] = leaves[first]
        return leaves

    def first_of(self, places: Sequence[int]) -> list[int]:
        """Return the places without duplicates of an earlier one."""
        repeats = dict(self.repeats)
        return sorted({repeats.get(place, place) for place in places})

    def matches(self, other: Signature) -> bool:
        # fixed values may be modules or tensors' owners: compare what cannot be compared by identity
        return (
            self.spec == other.spec
            and self.kinds == other.kinds
            and self.repeats == other.repeats
            and all(type(a) is type(b) and is_same(a, b) for a, b in zip(self.fixed, other.fixed, strict=True))
        )


def _kind(leaf: Any) -> str:
    for kind, name in SCHEMA_TYPES:
        if isinstance(leaf, kind):
            return name
    if isinstance(leaf, torch.SymBool):
        raise UnknownInputError("A leaf cannot take a truth value that depends on sizes or data.")
    return ""


# The modules that the user keeps as leaves.


CHOSEN = "chosen as a leaf"


def outermost(fqns: Iterable[str]) -> list[str]:
    """Return the names that do not lie inside another of them."""
    names = sorted(set(fqns))
    return [name for name in names if not is_inside_any(name, names)]


def is_inside_any(name: str, others: Iterable[str]) -> bool:
    """Return whether a name lies inside one of the others."""
    return any(other != name and (other == "" or name.startswith(f"{other}.")) for other in others)


def chosen_leaves(model: torch.nn.Module, leaf_modules: Iterable[Any]) -> dict[str, Failure]:
    """Return the leaves that the user asks for, by FQN, module or class.

    Raises:
        SettingsError: one that matches nothing; the message gives the nearest names.
    """
    if not isinstance(leaf_modules, Iterable) or isinstance(leaf_modules, str | bytes | bytearray):
        raise SettingsError(
            f"leaf_modules must be a list of names, modules or classes, got {described(leaf_modules)}. Write "
            "leaf_modules=['encoder']."
        )
    leaves: dict[str, Failure] = {}
    names = {id(module): fqn for fqn, module in model.named_modules()}
    aliases = {fqn: names[id(module)] for fqn, module in model.named_modules(remove_duplicate=False)}
    for wanted in [leaf_modules] if isinstance(leaf_modules, str | type | torch.nn.Module) else leaf_modules:
        matches = _matching(model, wanted, names, aliases)
        if not matches:
            raise SettingsError(_no_match(model, wanted, aliases))
        for fqn in matches:
            module_type = type(model.get_submodule(fqn)).__name__
            message = "Kept as one operator because leaf_modules names it."
            leaves[fqn] = Failure(fqn, module_type, CHOSEN, "", message)
    return {fqn: leaves[fqn] for fqn in outermost(leaves)}


def _matching(model: torch.nn.Module, wanted: Any, names: Mapping[int, str], aliases: Mapping[str, str]) -> list[str]:
    if isinstance(wanted, str):
        if wanted in aliases:
            return [aliases[wanted]]
        return [fqn for fqn, module in model.named_modules() if type(module).__name__ == wanted]
    if isinstance(wanted, type):
        return [fqn for fqn, module in model.named_modules() if isinstance(module, wanted)]
    return [names[id(wanted)]] if id(wanted) in names else []


def _no_match(model: torch.nn.Module, wanted: Any, aliases: Mapping[str, str]) -> str:
    kinds = sorted({type(module).__name__ for module in model.modules()})
    text = repr(wanted) if isinstance(wanted, str) else getattr(wanted, "__name__", type(wanted).__name__)
    near = difflib.get_close_matches(text.strip("'"), [name for name in aliases if name] + kinds, 4, 0.4)
    hint = f" Nearest: {', '.join(near)}." if near else f" The model has: {', '.join(kinds[:8])}."
    return f"leaf_modules: {text} is no module name, class or submodule of {type(model).__name__}.{hint}"


# The outputs of a leaf as those of one operator, which takes and returns tensors only.


_NUMBERS = {int: torch.int64, float: torch.float64}
"""The dtypes of tensors that carry Python numbers which only the call itself determines."""


@dataclass(frozen=True)
class LeafOutputs:
    """The outputs of one module as a function of its inputs' sizes.

    Example:
        >>> from prepbench.running.recorded_calls import record_calls
        >>> calls = record_calls(nn.Linear(4, 2), [pb.Sample((torch.ones(n, 4),)) for n in (2, 5)])
        >>> LeafOutputs.learn(calls[""]).fake([torch.ones(7, 4)]).shape
        torch.Size([7, 2])
    """

    name: str
    learned: LearnedOutputs

    @classmethod
    def learn(
        cls, calls: Sequence[RecordedCall], name: str = "the module", *, are_statements: bool = False
    ) -> LeafOutputs:
        """Learn from all calls of one module, or of some statements.

        Args:
            are_statements: a Python number that they make is known to the call alone, even where all samples give the
                same; and a truth value decides what comes next, so it must not leave them.

        Raises:
            UnknownOutputsError: the module was never called, writes into arguments that share memory, or returns
                something other than tensors and constants.
        """
        if not calls:
            raise UnknownOutputsError(f"{name} is never called on the samples, so its outputs are not known.")
        for call in calls:
            _check_describable(call, name)
        learned = LearnedOutputs.learn(calls, name)
        if are_statements:
            learned = replace(learned, variants=tuple(map(_with_numbers_unknown, learned.variants)))
        for variant in learned.variants:
            for index in variant.unknown:
                if type(variant.calls[0].outputs[index]) not in _NUMBERS:
                    variant.refuse_number(index)
        return cls(name, learned)

    def for_call(self, flat_inputs: Sequence[Any]) -> LeafOutputs:
        """Return the part that was learned from calls like this one."""
        return LeafOutputs(self.name, LearnedOutputs(self.name, (self._variant(flat_inputs),)))

    def fake(self, flat_inputs: Sequence[Any], *, unknown_size: Callable[[], Any] | None = None) -> Any:
        """Return outputs without data for these inputs: the same pytree, with tensors of the learned sizes.

        Args:
            flat_inputs: the flattened ``(args, kwargs)``; sizes may be symbolic.
            unknown_size: makes a size that no rule explains; without it such a size is an error.
        """
        tensors = iter(self.fake_tensors(flat_inputs, unknown_size=unknown_size))
        return self.rebuild(flat_inputs, tensors)

    def fake_tensors(
        self, flat_inputs: Sequence[Any], *, unknown_size: Callable[[], Any] | None = None
    ) -> list[torch.Tensor]:
        """Return the tensors among the outputs, without data."""
        variant = self._variant(flat_inputs)
        now, then = _first_device(flat_inputs), _first_device(variant.calls[0].inputs)
        made: list[torch.Tensor] = []

        def tensor(index: int, seen: torch.Tensor, rules: Rules) -> torch.Tensor:
            shape = variant.sizes(rules, flat_inputs, unknown_size)
            device = now if now is not None and then == device_of(seen) else device_of(seen)
            layout = _memory_format(variant, index)
            made.append(torch.empty(shape, dtype=seen.dtype, device=device, memory_format=layout))
            return made[-1]

        def number(index: int) -> torch.Tensor:
            made.append(torch.empty((), dtype=_NUMBERS[type(variant.calls[0].outputs[index])]))
            return made[-1]

        variant.build(flat_inputs, tensor, number)
        return made

    def rebuild(self, flat_inputs: Sequence[Any], tensors: Iterator[torch.Tensor]) -> Any:
        """Return the result with these tensors in it; Python numbers are computed from the inputs' sizes, or read from
        tensors.

        Where :meth:`restructures` says so, the result is a pair: the output, and the arguments after the call.
        """
        variant = self._variant(flat_inputs)
        return variant.build(flat_inputs, lambda index, seen, rules: next(tensors), lambda index: next(tensors).item())

    def tensors_of(self, flat_inputs: Sequence[Any], output: Any, arguments: Any) -> list[torch.Tensor]:
        """Return the operator's tensors for the result of a real call, checked against the learned outputs.

        Args:
            flat_inputs: the flattened arguments before the call.
            output: the module's result.
            arguments: ``(args, kwargs)`` after the call.

        Raises:
            UnknownOutputsError: this call returned something else than those on the samples.
        """
        variant = self._variant(flat_inputs)
        call = variant.calls[0]
        flat, spec = flatten_result(output, arguments if call.restructured else None)
        if spec != call.output_spec:
            raise self._not_as_learned(f"{len(flat)} values", f"{len(call.outputs)} in one structure")
        tensors = []
        for index, (leaf, wanted) in enumerate(zip(flat, call.outputs, strict=True)):
            if index in variant.unknown and type(leaf) in _NUMBERS:
                tensors.append(torch.tensor(leaf, dtype=_NUMBERS[type(wanted)]))
            elif isinstance(wanted, torch.Tensor):
                if not isinstance(leaf, torch.Tensor) or kinds_of([leaf]) != kinds_of([wanted]):
                    raise self._not_as_learned(kinds_text(kinds_of([leaf])), kinds_text(kinds_of([wanted])))
                variant.check_sizes(index, leaf, flat_inputs)
                tensors.append(leaf.detach().contiguous(memory_format=_memory_format(variant, index)))
            elif isinstance(wanted, Given):
                if leaf is not flat_inputs[wanted.index]:
                    raise self._not_as_learned("a new value", "an argument left where it was")
            else:
                promised = variant.value(index, flat_inputs)
                if leaf is not promised and leaf != promised:
                    raise self._not_as_learned(repr(leaf), repr(promised))
        return tensors

    def _not_as_learned(self, got: str, wanted: str) -> UnknownOutputsError:
        return UnknownOutputsError(
            f"{self.name} returned {got} where the captured graph was made for {wanted}, as on the samples. Capture "
            "again with a sample like this input."
        )

    def restructures(self, flat_inputs: Sequence[Any]) -> bool:
        """Return whether the module puts other tensors into its own arguments (a cache that grows)."""
        return self._variant(flat_inputs).calls[0].restructured

    @property
    def shared(self) -> str:
        """The tensors of some call that share memory, in words."""
        return next((call.shared for variant in self.learned.variants for call in variant.calls if call.shared), "")

    def count_tensors(self, flat_inputs: Sequence[Any]) -> int:
        """Return the number of tensors that the operator returns for the module's outputs."""
        variant = self._variant(flat_inputs)
        outputs = variant.calls[0].outputs
        return sum(index in variant.unknown or isinstance(leaf, torch.Tensor) for index, leaf in enumerate(outputs))

    def changed_inputs(self, flat_inputs: Sequence[Any]) -> list[int]:
        """Return the positions of the inputs that the module writes into."""
        return sorted(set().union(*(call.changed for call in self._variant(flat_inputs).calls)))

    def _variant(self, flat_inputs: Sequence[Any]) -> CallsAlike:
        found = self.learned.find(flat_inputs)
        if found is None:
            seen = " or ".join(kinds_text(kinds_of(variant.calls[0].inputs)) for variant in self.learned.variants)
            raise UnknownOutputsError(
                f"{self.name} is called with {kinds_text(kinds_of(flat_inputs))}, but on the samples only with {seen}. "
                "Add a sample that makes this call."
            )
        return found


def _with_numbers_unknown(variant: CallsAlike) -> CallsAlike:
    outputs = variant.calls[0].outputs
    truths = [index for index, value in enumerate(outputs) if isinstance(value, bool)]
    if truths:
        variant.refuse_number(truths[0])
    fixed = {index for index, value in enumerate(outputs) if variant.is_fixed_number(index)}
    return replace(variant, unknown=variant.unknown | fixed)


def _memory_format(variant: CallsAlike, index: int) -> torch.memory_format:
    outputs = [call.outputs[index] for call in variant.calls]
    return torch.channels_last if all(map(_is_channels_last, outputs)) else torch.contiguous_format


def _is_channels_last(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and tensor.dim() == 4
        and tensor.is_contiguous(memory_format=torch.channels_last)
        and not tensor.is_contiguous()
    )


def _first_device(leaves: Sequence[Any]) -> torch.device | None:
    return next((device_of(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)), None)


def _check_describable(call: RecordedCall, name: str) -> None:
    if call.shared.startswith("writes"):
        raise UnknownOutputsError(
            f"{name} {call.shared}, which one operator cannot do. Make an enclosing module the leaf."
        )
    for leaf in call.outputs:
        if not isinstance(leaf, (torch.Tensor, Given, *CONSTANTS)):
            raise UnknownOutputsError(
                f"{name} returns a {type(leaf).__name__}, which is neither a tensor nor a constant. Use tensors in "
                "tuples, lists, dicts or dataclasses, or register the class with "
                "torch.utils._pytree.register_pytree_node."
            )
