"""The entry point of the dynamo backend, and its options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx

from prepbench._torch_compat.dynamo import with_backend_options
from prepbench.dynamo.compiled_graph import CompiledGraph


def prepbench_backend(
    graph: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Return the backend that ``torch.compile`` finds under the name ``"prepbench"``.

    The options are the keyword arguments of :func:`prepbench.compile_model`, and the result is the same: samples are
    given as for the model itself, and rules for layers by the names that the layers have in it. With samples, one
    compiled model serves every call. Without them, each graph is compiled in float for the inputs of its first call;
    the sizes that dynamo made dynamic stay dynamic.

    The result is for inference: its outputs carry no gradients. A model in training mode is compiled only if it
    computes the same in eval mode, or with ``skip_eval_set_mode``. ``forward_fn`` says how the model is called for a
    sample, and the compiled model is called like that, too. When parameters are replaced or written to, the next call
    compiles again.

    Args:
        graph: the graph that dynamo traced.
        example_inputs: the inputs of its first call.
        options: keyword arguments of :func:`prepbench.compile_model`.
        mode: an error unless None, because modes belong to Inductor.

    Returns:
        What runs in place of the graph. Its first call compiles, and raises what ``compile_model`` raises.

    Example:
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 2)).eval()
        >>> samples = [torch.randn(2, 4), torch.randn(5, 4)]
        >>> compiled = torch.compile(net, backend="prepbench", options={"tracing_inputs": samples})
        >>> compiled(torch.randn(9, 4)).shape
        torch.Size([9, 2])
    """
    if options is not None and options.get("disable"):
        return graph.forward
    if options is not None and not isinstance(options, _Options):
        options = with_backend_options(options, _Options)
    return CompiledGraph(graph, options, mode)


class _Options(dict[str, Any]):
    """Options that compare by identity.

    Dynamo compares the options of two compiles, and tensors in them have no truth value.
    """

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return self is other
