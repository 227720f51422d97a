"""``torch.compile(model, backend="prepbench", options={...})``: ``compile_model`` behind torch's own function.

In the graph that dynamo gives to a backend the model is hard to recognise: parameters and sizes are inputs, and the
structure of the call is gone. So the graph only says which of its inputs and outputs are which leaves of the model's
call and result, and ``compile_model`` compiles the model itself. Where dynamo breaks the model into several graphs,
each of them is compiled on its own.

Nothing is compiled before a graph runs for the first time: by then dynamo has finished, and errors reach the caller
unchanged.

``entry_point`` is the function that dynamo calls, ``session`` the shared state of one model's graphs, and
``compiled_graph`` runs in place of a graph. ``replay`` runs the model through dynamo once more; ``whole`` and
``pieces`` compile the graphs of that run.
"""

from prepbench.compile.backend.entry_point import prepbench_backend as prepbench_backend

__all__ = ["prepbench_backend"]
