"""From a flat program to the bytes of a ``.pte`` file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from prepbench.errors import TargetError
from prepbench.targets.executorch.bounds import LargestSizes, bytes_needed
from prepbench.targets.executorch.partition import partitioner
from prepbench.targets.executorch.weights import fit_to_xnnpack
from prepbench.targets.programs import _storage_of
from prepbench.targets.weights import export_again

Program = torch.export.ExportedProgram


# without a wish of the user's, sizes may grow as long as memory for them stays within this
_FACTORS = (64, 32, 16, 8, 4, 2, 1)
_BYTES = 256 * 2**20


def to_pte(program: Program, max_size_factor: int | None) -> bytes:
    """Delegate what XNNPACK has kernels for, plan memory for the largest sizes, and serialize.

    Raises:
        TargetError: an operator has neither a kernel of XNNPACK nor a portable one.
    """
    from executorch.exir import ExecutorchBackendConfig

    rewritten = _rewritten(program)
    edge = _edge(rewritten)
    missing = _without_kernel(edge.exported_program().graph)
    if missing:
        raise TargetError(f"ExecuTorch has no kernel for {_named(missing)}. Choose another target for this model.")
    sizes = LargestSizes(rewritten, max_size_factor or _affordable(edge.exported_program().graph, rewritten))
    # a pass for each method; ExecuTorch's own reads ranges that lowering has narrowed to what the example needs
    return bytes(edge.to_executorch(ExecutorchBackendConfig(sym_shape_eval_pass={"forward": sizes})).buffer)


def _affordable(graph: fx.Graph, program: Program) -> int:
    """The largest factor whose sizes still fit into :data:`_BYTES`."""
    affordable = (factor for factor in _FACTORS if bytes_needed(graph, LargestSizes(program, factor)) <= _BYTES)
    return next(affordable, 1)


def without_kernel(program: Program) -> list[fx.Node]:
    """The nodes, after decomposition, that neither XNNPACK nor a portable kernel can compute."""
    return _without_kernel(_edge(_rewritten(program)).exported_program().graph)


def _rewritten(program: Program) -> Program:
    module = program.module(check_guards=False)
    assert isinstance(module, fx.GraphModule)
    _write_to_copies(module)
    fit_to_xnnpack(module)
    # lowering notes what it assumes about sizes where programs share them, so it must not get the program itself
    return export_again(module, program)


def _write_to_copies(module: fx.GraphModule) -> None:
    """Let operators that write in place write to copies of inputs and buffers: a runtime changes no inputs, and a
    changed value would become one more output.
    """
    written = {
        _storage_of(value)
        for node in module.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload)
        for argument, value in zip(node.target._schema.arguments, node.args, strict=False)
        if argument.is_write and isinstance(value, fx.Node)
    }
    for node in [node for node in written if node.op in ("placeholder", "get_attr")]:
        after = node if node.op == "get_attr" else list(module.graph.find_nodes(op="placeholder"))[-1]
        readers = list(node.users)
        with module.graph.inserting_after(after):
            copy = module.graph.call_function(torch.ops.aten.clone.default, (node,))
        for reader in readers:
            reader.replace_input_with(node, copy)
    module.recompile()


def _edge(program: Program) -> Any:
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

    # what has no kernel is found here by name, with its place
    config = EdgeCompileConfig(_check_ir_validity=False)
    try:
        # without gradients, because their rules refuse some operators on complex numbers
        with torch.no_grad():
            return to_edge_transform_and_lower(program, partitioner=[partitioner()], compile_config=config)
    except (RuntimeError, AssertionError) as error:  # its passes and XNNPACK's have no errors of their own
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise TargetError(
            f"ExecuTorch cannot lower the graph: {reason} Choose another target for this model."
        ) from error


def _without_kernel(graph: fx.Graph) -> list[fx.Node]:
    from executorch.runtime import Runtime

    known = Runtime.get().operator_registry.operator_names
    return [node for node in graph.nodes if node.op == "call_function" and not _has_kernel(node, known)]


def _has_kernel(node: fx.Node, known: set[str]) -> bool:
    from executorch.exir.dialects.edge._ops import EdgeOpOverload

    name = _operator(node)
    if name.startswith(("aten::_assert", "aten::sym_constrain_range")):  # left out in the end
        return True
    if isinstance(node.target, EdgeOpOverload):
        try:
            return str(node.target.to_out_variant().name()) in known
        except RuntimeError:  # no form that writes into planned memory
            return name in known
    # numbers are computed by the interpreter, as far as it knows how; delegates and getitem are its own
    return not isinstance(node.target, torch._ops.OpOverload) or name in known


def _operator(node: fx.Node) -> str:
    name = getattr(node.target, "name", None)
    return str(name()) if callable(name) else str(node.target)


def _named(nodes: Sequence[fx.Node]) -> str:
    """The operators of ``nodes``, each with the module that first calls it."""
    places: dict[str, str] = {}
    for node in nodes:
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        places.setdefault(_operator(node), str(stack[-1][0]) if stack else "")
    return ", ".join(f"{name} (in {place})" if place else name for name, place in places.items())
