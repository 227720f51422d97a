"""Join several ONNX graphs into one, with an ``If`` on the sizes of its inputs and shared weights."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from prepbench.capture.sizes.size_formulas import python_text
from prepbench.errors import TargetError
from prepbench.packages import Deferred

helper: Any = Deferred("onnx.helper")
numpy_helper: Any = Deferred("onnx.numpy_helper")
onnx: Any = Deferred("onnx")


Constants = Sequence[Mapping[int, Any]]


def joined_models(models: Sequence[Any], asked: Sequence[Asked], constants: Constants, outputs: Sequence[str]) -> Any:
    """Return a model that runs the first of several whose conditions on sizes hold; the last one if no other's do.

    Args:
        models: ONNX models with inputs of the same names.
        asked: the conditions of each.
        constants: the results that each model does not compute, by place, with their values.
        outputs: names of all results.

    Raises:
        TargetError: a condition cannot be written, or a result has another type in another model.
    """
    writer = SizePredicates()
    conditions = [writer.all_of(each) for each in asked[:-1]]
    inputs, shared = [value.name for value in models[0].graph.input], _Shared()
    for name in (*inputs, *outputs):
        shared.taken.add(name)
    branches = [
        _branch(model, index, own, inputs, outputs, shared)
        for index, (model, own) in enumerate(zip(models, constants, strict=True))
    ]
    results = zip(*(branch.output for branch in branches), strict=True)
    types = [_joined_type(values, name) for values, name in zip(results, outputs, strict=True)]
    tail = branches[-1]
    for index in range(len(conditions) - 1, -1, -1):
        names = [f"chosen_{index}.{name}" for name in outputs] if index else list(outputs)
        node = helper.make_node("If", [conditions[index]], names, f"variant_{index}", then_branch=branches[index])
        node.attribute.append(helper.make_attribute("else_branch", tail))
        values = [helper.make_value_info(name, kind) for name, kind in zip(names, types, strict=True)]
        tail = helper.make_graph([node], f"from_variant_{index}", [], values)
    graph = helper.make_graph([*writer.nodes, *tail.node], "variants", _joined_inputs(models), tail.output)
    graph.initializer.extend(shared.tensors)
    made = onnx.ModelProto()
    made.CopyFrom(models[0])
    made.graph.CopyFrom(graph)
    _take_functions(made, models[1:])
    versions = {opset.domain: opset.version for model in models for opset in model.opset_import}
    del made.opset_import[:]
    made.opset_import.extend(helper.make_opsetid(domain, version) for domain, version in versions.items())
    return made


def _take_functions(made: Any, models: Sequence[Any]) -> None:
    """Add the functions of other models, in place."""
    known = {(function.domain, function.name): function for function in made.functions}
    for function in (function for model in models for function in model.functions):
        key = function.domain, function.name
        if key in known and known[key] != function:
            raise TargetError(f"Two variants have other functions of the name {function.name}. Use save(folder).")
        if key not in known:
            known[key] = function
            made.functions.append(function)


class _Shared:
    """The weights of all graphs, deduplicated by their contents."""

    def __init__(self) -> None:
        self.tensors: list[Any] = []
        self.taken: set[str] = set()
        self._names: dict[bytes, str] = {}

    def name(self, tensor: Any) -> str:
        """Return the shared name of a weight."""
        plain = onnx.TensorProto()
        plain.CopyFrom(tensor)
        plain.name = ""
        digest = hashlib.sha256(plain.SerializeToString(deterministic=True)).digest()
        if digest not in self._names:
            name = tensor.name
            while name in self.taken:
                name = f"{name}_"
            self.taken.add(name)
            self._names[digest] = plain.name = name
            self.tensors.append(plain)
        return self._names[digest]


def _branch(
    model: Any, index: int, constants: Mapping[int, Any], inputs: Sequence[str], outputs: Sequence[str], shared: _Shared
) -> Any:
    """Return the graph of one model without inputs, as a subgraph that sees the outer graph's values."""
    import numpy as np

    prefix, graph = f"variant_{index}.", model.graph
    names = {name: name for name in inputs} | {tensor.name: shared.name(tensor) for tensor in graph.initializer}
    nodes = _renamed(graph.node, names, prefix)
    rest, values = iter(graph.output), []
    for place, name in enumerate(outputs):
        result = f"{prefix}result.{name}"
        if place in constants:
            tensor = numpy_helper.from_array(np.array(constants[place]))
            nodes.append(helper.make_node("Constant", [], [result], result, value=tensor))
            values.append(helper.make_tensor_value_info(result, tensor.data_type, []))
        else:
            value = next(rest)
            nodes.append(helper.make_node("Identity", [names[value.name]], [result], result))
            values.append(helper.make_value_info(result, value.type))
    return helper.make_graph(nodes, f"variant_{index}", [], values)


def _renamed(nodes: Sequence[Any], names: dict[str, str], prefix: str) -> list[Any]:
    """Return copies of nodes with a prefix on their values; ``names`` gets the new names."""
    made = []
    for node in nodes:
        new = onnx.NodeProto()
        new.CopyFrom(node)
        new.name = prefix + node.name
        new.input[:] = [names.get(name, name) for name in node.input]
        for attribute in new.attribute:
            for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                _rename_inside(graph, dict(names), prefix)
        names |= {name: prefix + name for name in node.output if name}
        new.output[:] = [names.get(name, name) for name in node.output]
        made.append(new)
    return made


def _rename_inside(graph: Any, names: dict[str, str], prefix: str) -> None:
    """Rename the values in the body of a loop or a branch, in place."""
    for value in (*graph.input, *graph.initializer):
        names[value.name] = value.name = prefix + value.name
    nodes = _renamed(graph.node, names, prefix)
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)
    for value in graph.output:
        value.name = names.get(value.name, value.name)


def _joined_type(values: Sequence[Any], name: str) -> Any:
    """Return the type of a result of several graphs, with the sizes that all of them share."""
    kinds = {value.type.tensor_type.elem_type for value in values}
    if len(kinds) > 1:
        raise TargetError(
            f"The result {name} has another type in another variant, and a file has one. Let both sides of the branch "
            "return the same type, or use save(folder)."
        )
    made, shapes = onnx.TypeProto(), [value.type.tensor_type.shape.dim for value in values]
    made.tensor_type.elem_type = kinds.pop()
    if all(value.type.tensor_type.HasField("shape") for value in values) and len(set(map(len, shapes))) == 1:
        made.tensor_type.shape.dim.extend(_joined_dims(shapes))
    return made


def _joined_dims(shapes: Sequence[Any]) -> list[Any]:
    """Return, for each dim, the size that all share; nothing where they differ."""
    empty = onnx.TensorShapeProto.Dimension()
    return [dims[0] if all(dim == dims[0] for dim in dims) else empty for dims in zip(*shapes, strict=True)]


def _joined_inputs(models: Sequence[Any]) -> list[Any]:
    made = []
    for values in zip(*(model.graph.input for model in models), strict=True):
        made.append(helper.make_value_info(values[0].name, _joined_type(values, values[0].name)))
    return made


# Conditions on sizes as nodes of an ONNX graph.


Asked = Sequence[tuple[str, Sequence[tuple[str, int]]]]
"""Formulas, each with the input and the dim behind each of its sizes."""

_ARITHMETIC = {ast.Add: "Add", ast.Sub: "Sub", ast.Mult: "Mul", ast.Mod: "Mod", ast.FloorDiv: "FloorDiv"}
_RELATIONS = {ast.Eq: "Equal", ast.NotEq: "Equal", ast.Lt: "Less", ast.LtE: "LessOrEqual"}
_RELATIONS |= {ast.Gt: "Greater", ast.GtE: "GreaterOrEqual"}
_FUNCTIONS = {"max": "Max", "min": "Min", "abs": "Abs"}


class SizePredicates:
    """Writes conditions on sizes, in 64-bit integers, as ``nodes``."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self._known: dict[Any, str] = {}

    def all_of(self, asked: Asked) -> str:
        """Return the name of a boolean value: whether all formulas hold.

        Raises:
            TargetError: a formula has a part that ONNX computes otherwise than Python.
        """
        truths = []
        for formula, places in asked:
            names = [f"n{index}" for index in range(len(places))]
            sizes = {name: self._size(*place) for name, place in zip(names, places, strict=True)}
            tree = ast.parse(python_text(formula, names), mode="eval").body
            truths.append(self._written(tree, sizes))
        return self._folded("And", truths or [self._constant(True)])

    def _size(self, name: str, dim: int) -> str:
        return self._node("Gather", [self._node("Shape", [name]), self._constant(dim)])

    def _written(self, node: ast.expr, sizes: dict[str, str]) -> str:
        def parts(*nodes: ast.expr) -> list[str]:
            return [self._written(each, sizes) for each in nodes]

        match node:
            case ast.Constant(value=bool() | int() as value):
                return self._constant(value)
            case ast.Name():
                return sizes[node.id]
            case ast.UnaryOp(op=ast.USub()):
                return self._node("Neg", parts(node.operand))
            case ast.UnaryOp(op=ast.Not()):
                return self._node("Not", parts(node.operand))
            case ast.BoolOp():
                return self._folded("And" if isinstance(node.op, ast.And) else "Or", parts(*node.values))
            case ast.IfExp():
                return self._node("Where", parts(node.test, node.body, node.orelse))
            case ast.Call(func=ast.Name(id=name)) if name in _FUNCTIONS:
                return self._node(_FUNCTIONS[name], parts(*node.args))
            case ast.BinOp() if (kind := _ARITHMETIC.get(type(node.op))) is not None:
                return self._computed(kind, node.right, *parts(node.left, node.right))
            case ast.Compare(ops=[relation]) if type(relation) in _RELATIONS:
                found = self._node(_RELATIONS[type(relation)], parts(node.left, *node.comparators))
                return self._node("Not", [found]) if isinstance(relation, ast.NotEq) else found
        raise TargetError(
            f"A condition on sizes has a part that ONNX would compute otherwise: {ast.unparse(node)}. Save the model "
            "with save(folder), or compile it once for each side of the branch."
        )

    def _computed(self, kind: str, by: ast.expr, left: str, right: str) -> str:
        if kind in ("Mod", "FloorDiv") and not (isinstance(by, ast.Constant) and by.value):
            raise TargetError(
                f"A condition on sizes divides by a size, {ast.unparse(by)}, which may be 0 where ONNX computes it. "
                "Save the model with save(folder), or compile it once for each side of the branch."
            )
        if kind != "FloorDiv":
            return self._node(kind, [left, right])
        # Div truncates toward zero
        return self._node("Div", [self._node("Sub", [left, self._node("Mod", [left, right])]), right])

    def _folded(self, kind: str, names: Sequence[str]) -> str:
        found, *rest = names
        for name in rest:
            found = self._node(kind, [found, name])
        return found

    def _constant(self, value: int) -> str:
        import numpy as np

        array = np.array(value, np.bool_ if isinstance(value, bool) else np.int64)
        return self._node("Constant", [], value=numpy_helper.from_array(array))

    def _node(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        key = (kind, *inputs, *(str(value) for value in attributes.values()))
        if key not in self._known:  # each size is read once
            self._known[key] = f"sizes.{len(self.nodes)}"
            self.nodes.append(helper.make_node(kind, inputs, [self._known[key]], self._known[key], **attributes))
        return self._known[key]
