"""Cache programs derived from graphs of one form, without their tensors.

Exporting and decomposing a graph trace it on fake tensors. So the result depends only on the form of the graph: its
operators, and the shapes and types of its tensors. Other bits change the values of integers, scales and biases, and
numbers of quantizers. These are inserted into the program that was derived from a graph of the same form.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat.operators import OpOverload, schema_of
from prepbench._torch_compat.programs import copied_graph, with_contents

Program = torch.export.ExportedProgram

_LIMIT = 8
_NUMBERS = frozenset({"scale", "zero_point", "quant_min", "quant_max"})
_QUANTIZERS = "quantized_decomposed"


@dataclass(frozen=True)
class _Form:
    """A derived program, and the origins of its tensors.

    Attributes:
        program: without tensors.
        state: for each name in its ``state_dict`` the name of the tensor in the graph that it was derived from.
        constants: the same for its constants.
    """

    program: Program
    state: Mapping[str, str]
    constants: Mapping[str, str]


class KeptPrograms:
    """Derives a program from a graph, or reuses the one derived from a graph of the same form.

    One thread at a time uses it: the one that traces.

    Attributes:
        taken: the number of reused programs.
    """

    def __init__(self) -> None:
        self.taken = 0
        self._forms: OrderedDict[bytes, _Form] = OrderedDict()

    def derive(
        self,
        purpose: str,
        module: fx.GraphModule,
        tensors: Mapping[str, Any],
        derived: Callable[[], Program],
    ) -> tuple[Program, bool]:
        """Return the program that ``derived`` makes of ``module`` for a purpose, and whether it was known."""
        key = _form_of(purpose, module, tensors)
        known = None if key is None else self._forms.get(key)
        if key is not None and known is not None:
            self._forms.move_to_end(key)
            self.taken += 1
            return _filled(known, module, tensors), True
        program = derived()
        form = None if key is None else _emptied(program, module, tensors)
        if key is not None and form is not None:
            self._forms[key] = form
            while len(self._forms) > _LIMIT:
                self._forms.popitem(last=False)
        return program, False


def tensors_of(module: fx.GraphModule) -> dict[str, Any]:
    """Return parameters, buffers and plain tensor attributes by name."""
    names = {str(node.target) for node in module.graph.find_nodes(op="get_attr")}
    found = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    for name in names - found.keys():
        value: Any = module
        for part in name.split("."):
            value = getattr(value, part)
        found[name] = value
    return found


def _form_of(purpose: str, module: fx.GraphModule, tensors: Mapping[str, Any]) -> bytes | None:
    """Return a digest of everything but quantizer numbers and tensor values; None for unsupported contents."""
    digest = hashlib.sha256(purpose.encode())
    places: dict[Any, int] = {}
    for name, value in tensors.items():
        if type(value) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            return None
        memory = places.setdefault(_memory(value), len(places))
        kind = (
            type(value).__name__,
            tuple(value.shape),
            value.dtype,
            value.device,
            value.stride(),
            value.requires_grad,
        )
        digest.update(repr((name, memory, kind)).encode())
    for node in module.graph.nodes:
        if node.op == "call_module":
            return None
        numbers = _number_places(node)
        args, kwargs = fx.node.map_aggregate((node.args, dict(node.kwargs)), _text)
        args = tuple("number" if place in numbers else value for place, value in enumerate(args))
        stack = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
        given = str(node.meta.get("val")) if node.op == "placeholder" else ""
        digest.update(repr((node.op, node.name, str(node.target), args, sorted(kwargs.items()), stack, given)).encode())
    return digest.digest()


def _text(value: Any) -> Any:
    return f"%{value.name}" if isinstance(value, fx.Node) else f"{type(value).__name__} {value!r}"


def _memory(value: torch.Tensor) -> Any:
    return (value.untyped_storage().data_ptr(), value.storage_offset(), tuple(value.shape), value.stride(), value.dtype)


def _number_places(node: fx.Node) -> frozenset[int]:
    """Return the arguments of a quantizer that decide how it rounds."""
    if not isinstance(node.target, OpOverload) or node.target.namespace != _QUANTIZERS:
        return frozenset()
    arguments = schema_of(node.target).arguments
    return frozenset(
        place
        for place, (argument, value) in enumerate(zip(arguments, node.args, strict=False))
        if argument.name in _NUMBERS and type(value) in (int, float)
    )


def _quantizers(module: fx.GraphModule) -> Iterator[tuple[fx.Node, frozenset[int]]]:
    for node in module.graph.nodes:
        places = _number_places(node)
        if places:
            yield node, places


def _numbers(module: fx.GraphModule) -> list[tuple[Any, ...]]:
    return [(node.target, *(node.args[place] for place in sorted(places))) for node, places in _quantizers(module)]


def _emptied(program: Program, module: fx.GraphModule, tensors: Mapping[str, Any]) -> _Form | None:
    """Return the form of a program; None if its tensors or quantizers are not those of the graph it comes from."""
    if _numbers(program.graph_module) != _numbers(module):
        return None
    names: dict[Any, str] = {}
    for name, value in tensors.items():
        if value.numel():
            names.setdefault((_memory(value), type(value)), name)
    tables: list[dict[str, str]] = []
    for table in (program.state_dict, program.constants):
        if not all(isinstance(v, torch.Tensor) and (_memory(v), type(v)) in names for v in table.values()):
            return None
        tables.append({name: names[_memory(value), type(value)] for name, value in table.items()})
    empty = with_contents(program, _copied(program.graph_module), {}, {})
    return _Form(empty, *tables)


def _filled(form: _Form, module: fx.GraphModule, tensors: Mapping[str, Any]) -> Program:
    graph = _copied(form.program.graph_module)
    for (node, places), (given, _) in zip(_quantizers(graph), _quantizers(module), strict=True):
        node.args = tuple(given.args[i] if i in places else value for i, value in enumerate(node.args))
    graph.recompile()
    state, constants = ({own: tensors[name] for own, name in table.items()} for table in (form.state, form.constants))
    return with_contents(form.program, graph, state, constants)


def _copied(module: fx.GraphModule) -> fx.GraphModule:
    copied = fx.GraphModule(module, copied_graph(module.graph))
    copied.meta.update(module.meta)
    return copied
