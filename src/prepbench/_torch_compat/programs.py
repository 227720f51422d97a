"""Exported programs with other graphs, outputs, weights or guards (``torch.export``)."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
import json
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
)

from prepbench._torch_compat import pytree
from prepbench._torch_compat.checks import needed_for
from prepbench.patching import patched_here


def flat_program(program: torch.export.ExportedProgram, names: Sequence[str]) -> torch.export.ExportedProgram:
    """Return a program that takes its input leaves as positional arguments and returns a tuple of output leaves.

    ``names`` are identifiers for the input leaves. The graph and its weights are shared; only the description of the
    call changes, so that running or loading it needs none of the user's classes.
    """
    root, *rest = program.module_call_graph
    signature = root.signature
    assert signature is not None
    inputs, outputs = signature.in_spec.num_leaves, signature.out_spec.num_leaves
    flat = dataclasses.replace(
        signature,
        in_spec=pytree.tree_structure(((0,) * inputs, {})),
        out_spec=pytree.tree_structure((0,) * outputs),
        forward_arg_names=list(names),
    )
    result = _changed(program, _module_call_graph=[dataclasses.replace(root, signature=flat), *rest])
    if program.example_inputs is not None:
        result = _changed(result, _example_inputs=(tuple(pytree.tree_leaves(program.example_inputs)), {}))
    return without_guards(result)


def without_guards(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Return a program without the checks of its inputs.

    They refer to the original call: ``b['x']`` where a flat program has a leaf. torch adds new ones to each program
    that it derives.
    """
    return _changed(program, _guards_code=[])


def with_guards(program: torch.export.ExportedProgram, guards: Sequence[str]) -> torch.export.ExportedProgram:
    """Return a program whose module also refuses calls for which one of ``guards`` is false.

    Args:
        program: takes the call as it was captured.
        guards: Python over its arguments as torch writes them, e.g. ``"L['x'].size()[0] > 1"``.
    """
    with needed_for("changing exported programs"):
        known = program._guards_code
    return _changed(program, _guards_code=[*known, *guards])


def with_first_names(program: torch.export.ExportedProgram, names: Mapping[str, str]) -> torch.export.ExportedProgram:
    """Return a program in which a module that goes by several names has only one: its calls are calls of that name, and
    its tensors are read from one input each. Weights are shared.

    Args:
        program: it is not changed.
        names: the name of each module, by its other names. Without any, ``program`` itself is the result.
    """
    if not names:
        return program

    def first(tensor: str | None) -> str | None:
        owner, _, last = (tensor or "").rpartition(".")
        return f"{names[owner]}.{last}" if owner in names else tensor

    module = torch.fx.GraphModule(program.graph_module, copied_graph(program.graph_module.graph))
    _name_calls(module.graph, names)
    kept: dict[str | None, torch.fx.Node] = {}
    inputs = []
    placeholders = module.graph.find_nodes(op="placeholder")
    for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True):
        target = first(spec.target)
        known = kept.setdefault(target, node) if target is not None else node
        if known is node:
            inputs.append(dataclasses.replace(spec, target=target))
        else:
            node.replace_all_uses_with(known)
            module.graph.erase_node(node)
    module.recompile()
    outputs = [dataclasses.replace(spec, target=first(spec.target)) for spec in program.graph_signature.output_specs]
    tables = [
        {str(first(name)): value for name, value in reversed(table.items())}
        for table in (program.state_dict, program.constants)
    ]
    state, constants = (dict(reversed(table.items())) for table in tables)
    changed = _changed(
        program,
        _graph_signature=ExportGraphSignature(inputs, outputs),
        _state_dict=state,
        _constants=constants,
    )
    return with_graph(changed, module)  # where an output is one of the inputs


def _name_calls(graph: torch.fx.Graph, names: Mapping[str, str]) -> None:
    """Name the modules around each node by ``names``, and number all calls of one module as torch does (``@1``)."""
    shared = {*names, *names.values()}
    calls: dict[str, dict[str, int]] = {}
    for node in graph.nodes:
        stack = {}
        for key, (path, kind) in (node.meta.get("nn_module_stack") or {}).items():
            if path in shared:
                path = names.get(path, path)
                numbers = calls.setdefault(path, {})
                number = numbers.setdefault(key, len(numbers))
                key = f"{path}@{number}" if number else path
            stack[key] = path, kind
        if stack:
            node.meta["nn_module_stack"] = stack


def with_graph(program: torch.export.ExportedProgram, graph: torch.fx.GraphModule) -> torch.export.ExportedProgram:
    """Return a program with another graph over the same inputs, parameters and constants."""
    (output,) = graph.graph.find_nodes(op="output")
    signature = program.graph_signature
    signature = dataclasses.replace(
        signature,
        # a copy of a graph may name nodes otherwise
        input_specs=_specs_of(signature.input_specs, graph.graph.find_nodes(op="placeholder")),
        output_specs=_specs_of(signature.output_specs, output.args[0]),
    )
    return _changed(program, _graph_module=graph, _graph_signature=signature)


def with_constants(
    program: torch.export.ExportedProgram, values: Mapping[str, torch.Tensor]
) -> torch.export.ExportedProgram:
    """Return a program that reads tensors in the place of nodes, given by their names. Other weights are shared."""
    module = torch.fx.GraphModule(program.graph_module, copied_graph(program.graph_module.graph))
    by_name = {node.name: node for node in module.graph.nodes}
    specs, constants = list(program.graph_signature.input_specs), dict(program.constants)
    first = next((at for at, spec in enumerate(specs) if spec.kind is InputKind.USER_INPUT), len(specs))
    placeholders = module.graph.find_nodes(op="placeholder")
    before = placeholders[first] if first < len(placeholders) else next(iter(module.graph.nodes))
    for name, value in values.items():
        node, target = by_name[name], f"computed_{name}"
        while target in constants or target in program.state_dict:
            target += "_"
        with module.graph.inserting_before(before):
            read = module.graph.placeholder(f"c_{target}")
        read.meta = {"val": node.meta["val"]}
        node.replace_all_uses_with(read)
        specs.insert(first, InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(name=read.name), target))
        first += 1
        constants[target] = value
    module.graph.eliminate_dead_code()
    module.recompile()
    signature = ExportGraphSignature(specs, program.graph_signature.output_specs)
    changed = _changed(program, _graph_module=module, _graph_signature=signature, _constants=constants)
    return with_graph(changed, module)  # where an output is one of these nodes


def with_contents(
    program: torch.export.ExportedProgram,
    graph: torch.fx.GraphModule,
    state: Mapping[str, torch.Tensor],
    constants: Mapping[str, torch.Tensor],
) -> torch.export.ExportedProgram:
    """Return a program with another graph, whose nodes have the same names, and other tensors."""
    return _changed(program, _graph_module=graph, _state_dict=dict(state), _constants=dict(constants))


def _specs_of(specs: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """Return the specs of inputs or outputs with the names of their nodes."""
    return [
        dataclasses.replace(spec, arg=dataclasses.replace(spec.arg, name=value.name))
        if isinstance(value, torch.fx.Node) and not isinstance(spec.arg, ConstantArgument)
        else spec
        for spec, value in zip(specs, values, strict=True)
    ]


def with_own_weights(
    program: torch.export.ExportedProgram, copies: dict[int, Any] | None = None
) -> torch.export.ExportedProgram:
    """Return a program with copies of all parameters, buffers and constants; ``copies`` as ``changed`` below."""
    return with_tensors(program, torch.Tensor.clone, changed=copies)


def with_tensors(
    program: torch.export.ExportedProgram,
    change: Callable[[torch.Tensor], torch.Tensor],
    kept: Collection[str] = (),
    changed: dict[int, Any] | None = None,
) -> torch.export.ExportedProgram:
    """Return a program with other parameters, buffers and constants: ``change`` is called once for each tensor,
    except those named in ``kept``.

    ``changed`` holds what other programs of the same tensors got, by the ``id`` of the tensor, and what this one gets.
    """
    changed = {} if changed is None else changed

    def new(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in changed:  # tied weights stay tied
            plain = value.detach()
            result = change(plain)
            is_parameter = isinstance(value, torch.nn.Parameter)
            changed[id(value)] = (
                value if result is plain else torch.nn.Parameter(result, False) if is_parameter else result
            )
        return changed[id(value)]

    return _changed(
        program,
        _state_dict={name: value if name in kept else new(value) for name, value in program.state_dict.items()},
        _constants={name: new(value) for name, value in program.constants.items()},
    )


def without_example_inputs(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Return a program without its example inputs, which ``torch.export.save`` would write as a pickle."""
    return _changed(program, _example_inputs=None)


def copied_graph(graph: torch.fx.Graph) -> torch.fx.Graph:
    """Return a copy whose nodes keep their names; ``deepcopy`` renames nodes that are called like a builtin, such as
    ``input``.
    """
    copied: torch.fx.Graph = copy.deepcopy(graph)
    for old, new in zip(graph.nodes, copied.nodes, strict=True):
        new.name = old.name
    return copied


def with_outputs(program: torch.export.ExportedProgram, places: Sequence[int]) -> torch.export.ExportedProgram:
    """Return a flat program with only the user outputs at ``places``; its mutations stay. Weights are shared."""
    signature = program.graph_signature
    kinds = [spec.kind is OutputKind.USER_OUTPUT for spec in signature.output_specs]
    order = [i for i, is_user in enumerate(kinds) if is_user]
    kept = [i for i, is_user in enumerate(kinds) if not is_user] + [order[place] for place in places]
    module = torch.fx.GraphModule(program.graph_module, copied_graph(program.graph_module.graph))
    output = next(iter(reversed(module.graph.nodes)))
    output.args = (tuple(output.args[0][i] for i in kept),)
    module.recompile()
    root, *rest = program.module_call_graph
    assert root.signature is not None
    flat = dataclasses.replace(root.signature, out_spec=pytree.tree_structure((0,) * len(places)))
    return _changed(
        program,
        _graph_module=module,
        _graph_signature=ExportGraphSignature(signature.input_specs, [signature.output_specs[i] for i in kept]),
        _module_call_graph=[dataclasses.replace(root, signature=flat), *rest],
    )


def with_further_outputs(
    program: torch.export.ExportedProgram,
    returned: Mapping[torch.fx.Node, torch.fx.Node],
    without: Collection[torch.fx.Node] = (),
) -> torch.export.ExportedProgram:
    """A flat program that returns further values behind its user outputs. Weights are shared.

    Args:
        program: it is not changed.
        returned: for calls that return nothing the value of one element that is returned for each, as a boolean.
        without: calls that return nothing and are left out.
    """
    module = torch.fx.GraphModule(program.graph_module, copied_graph(program.graph_module.graph))
    by_name = {node.name: node for node in module.graph.nodes}
    output, specs = module.graph.output_node(), list(program.graph_signature.output_specs)
    results = list(output.args[0])  # type: ignore[arg-type]
    for call, value in returned.items():
        source = by_name[value.name]
        with module.graph.inserting_before(by_name[call.name]):
            if not isinstance(source.meta["val"], torch.Tensor):
                source = _as_tensor(module, source, call)
            holds = module.graph.call_function(torch.ops.aten.ne.Scalar, (source, 0))
        holds.meta = {**call.meta, "val": torch.ops.aten.ne.Scalar(source.meta["val"], 0)}
        results.append(holds)
        specs.append(OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(name=holds.name), None))
    for call in without:
        module.graph.erase_node(by_name[call.name])
    output.args = (tuple(results),)
    module.recompile()
    root, *rest = program.module_call_graph
    assert root.signature is not None
    count = len(program.graph_signature.user_outputs) + len(returned)
    flat = dataclasses.replace(root.signature, out_spec=pytree.tree_structure((0,) * count))
    return _changed(
        program,
        _graph_module=module,
        _graph_signature=ExportGraphSignature(program.graph_signature.input_specs, specs),
        _module_call_graph=[dataclasses.replace(root, signature=flat), *rest],
    )


_COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)


def _as_tensor(module: torch.fx.GraphModule, source: torch.fx.Node, call: torch.fx.Node) -> torch.fx.Node:
    """A comparison of numbers, such as sizes that values decide, as a tensor of one element."""
    fake = next(node.meta["val"] for node in module.graph.nodes if isinstance(node.meta.get("val"), torch.Tensor))
    if source.target not in _COMPARISONS:  # Inductor (torch 2.13) makes tensors of numbers and comparisons only
        number, value = module.graph.call_function(torch.sym_ite, (source, 1, 0)), source.meta["val"]
        number.meta = {**call.meta, "val": torch.sym_ite(value, 1, 0)}
        source = number
    made = module.graph.call_function(torch.ops.aten.scalar_tensor.default, (source,))
    with getattr(fake, "fake_mode", contextlib.nullcontext()):
        made.meta = {**call.meta, "val": torch.empty(())}
    return made


def input_placeholders(program: torch.export.ExportedProgram) -> tuple[str | None, ...]:
    """Return the placeholder of each user input; None for a constant, which may be a text like any name."""
    specs = [spec for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
    return tuple(None if isinstance(spec.arg, ConstantArgument) else spec.arg.name for spec in specs)


def constant_outputs(program: torch.export.ExportedProgram) -> dict[int, Any]:
    """Return the user outputs that are constants, by index."""
    specs = [spec for spec in program.graph_signature.output_specs if spec.kind is OutputKind.USER_OUTPUT]
    return {i: spec.arg.value for i, spec in enumerate(specs) if isinstance(spec.arg, ConstantArgument)}


def number_outputs(program: torch.export.ExportedProgram) -> tuple[int, ...]:
    """Return the indices of the user outputs that are computed numbers, such as a size."""
    kinds = (SymIntArgument, SymFloatArgument, SymBoolArgument)
    specs = [spec for spec in program.graph_signature.output_specs if spec.kind is OutputKind.USER_OUTPUT]
    return tuple(i for i, spec in enumerate(specs) if isinstance(spec.arg, kinds))


def lower_bounds(program: torch.export.ExportedProgram) -> dict[Any, int]:
    """Return the lower bound of each dynamic size, by symbol."""
    ranges = program.range_constraints
    return {
        symbol: int(bounds.lower) for symbol, bounds in ranges.items() if getattr(bounds.lower, "is_Integer", False)
    }


def size_limits(program: torch.export.ExportedProgram) -> list[tuple[int, int, int, int | None]]:
    """Return the range of each dynamic input size that is not derived from another.

    Returns:
        For each the number of the input, the dim, the smallest size, and the largest; None for no upper limit.
    """
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    found: dict[Any, tuple[int, int, int, int | None]] = {}
    for leaf, name in enumerate(input_placeholders(program)):
        value = values.get(name) if name is not None else None
        for dim, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            symbol = getattr(getattr(size, "node", None), "expr", None)
            bounds = program.range_constraints.get(symbol)
            if bounds is not None and symbol not in found:
                low, high = (
                    int(end) if getattr(end, "is_Integer", False) else None for end in (bounds.lower, bounds.upper)
                )
                found[symbol] = leaf, dim, low or 0, high if high is not None and high < 2**31 else None
    return list(found.values())


def with_lower_bounds(program: torch.export.ExportedProgram, bounds: Mapping[Any, int]) -> torch.export.ExportedProgram:
    """Return a program with other lower bounds for some of its dynamic sizes."""
    from torch.utils._sympy.value_ranges import ValueRanges

    ranges = dict(program.range_constraints)
    ranges.update({symbol: ValueRanges(low, ranges[symbol].upper) for symbol, low in bounds.items()})
    return _changed(program, _range_constraints=ranges)


def _changed(program: torch.export.ExportedProgram, **parts: Any) -> torch.export.ExportedProgram:
    """Return a copy of a program with other values for some of its private attributes; the rest is shared."""
    result = copy.copy(program)
    for name, value in parts.items():
        with needed_for("changing exported programs"):
            getattr(result, name)
        setattr(result, name, value)
    return result


def program_to_json(program: torch.export.ExportedProgram) -> dict[str, Any]:
    """Return the graph, signature and sizes of a program as torch serializes them, without its tensors."""
    with needed_for("saving exported programs"):
        from torch._export.serde import serialize as writer

        parameters = inspect.signature(writer.serialize).parameters
        _ = writer.serialize_torch_artifact
    names = ("serialize_state_dict", "serialize_constants", "serialize_example_inputs")
    without: Any = dict.fromkeys(names, False)
    if all(name in parameters for name in names):
        artifact = writer.serialize(program, **without)
    else:  # torch 2.11 always writes the tensors, too: into memory, and as pickle
        with patched_here(writer, "serialize_torch_artifact", lambda *args, **kwargs: b""):
            artifact = writer.serialize(program)
    content: dict[str, Any] = json.loads(artifact.exported_program)
    return content


def program_from_json(
    content: dict[str, Any], state: dict[str, torch.Tensor], constants: dict[str, torch.Tensor]
) -> torch.export.ExportedProgram:
    """Return the program from :func:`program_to_json`, with its tensors. Validate the content first: torch trusts
    it.
    """
    with needed_for("loading exported programs"):
        from torch._export.serde import schema
        from torch._export.serde.serialize import ExportedProgramDeserializer, _dict_to_dataclass

    return ExportedProgramDeserializer().deserialize(
        _dict_to_dataclass(schema.ExportedProgram, content), state, constants
    )


# Gradient-mode regions such as ``with torch.enable_grad()`` in exported programs (``torch.ops.higher_order``).


with needed_for("blocks that switch gradients"):
    _BLOCK = torch.ops.higher_order.wrap_with_set_grad_enabled


def without_grad_regions(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Inline the operators of gradient-mode regions into the program.

    The result is the same, and passes that look for layers, operators or sizes find them. In regions that enable
    gradients, decomposing would also trace a derivative of the whole.

    Args:
        program: it is not changed.

    Returns:
        The changed program, or ``program`` itself where it has no such block.
    """
    if not program.graph.find_nodes(op="call_function", target=_BLOCK):
        return program
    module = _copy(program.graph_module)
    _unwrap(module)
    return with_graph(program, module)


def _copy(module: fx.GraphModule) -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    return fx.GraphModule(module, graph)


def _unwrap(module: fx.GraphModule) -> None:
    for node in module.graph.find_nodes(op="call_function", target=_BLOCK):
        _, block, *operands = node.args
        body = _copy(getattr(module, block.target))
        _unwrap(body)
        results = _inserted(module, node, body, operands)
        for user in list(node.users):
            user.replace_all_uses_with(results[user.args[1]])
            module.graph.erase_node(user)
        module.graph.erase_node(node)
        if not block.users:
            module.graph.erase_node(block)
            delattr(module, block.target)
    module.recompile()


def _inserted(module: fx.GraphModule, before: fx.Node, body: fx.GraphModule, operands: list[Any]) -> Any:
    """Copy the nodes of a body in front of a node; return its result."""
    values = dict(zip(body.graph.find_nodes(op="placeholder"), operands, strict=True))
    with module.graph.inserting_before(before):
        for node in body.graph.nodes:
            if node.op == "output":
                return fx.node.map_arg(node.args[0], values.__getitem__)
            if node.op == "get_attr":
                name = f"{before.name}_{node.target}".replace(".", "_")
                setattr(module, name, getattr(body, node.target))
                values[node] = module.graph.get_attr(name)
                values[node].meta = copy.copy(node.meta)
            elif node.op != "placeholder":
                values[node] = module.graph.node_copy(node, values.__getitem__)
    raise AssertionError("a graph without an output")
