"""``torch.compile(model, backend="prepbench", options={...})``: ``compile_model`` behind torch's own function.

In the graph that dynamo gives to a backend the model is hard to recognise: parameters and sizes are inputs, and the
structure of the call is gone. So the graph only says which of its inputs and outputs are which leaves of the model's
call and result, and ``compile_model`` compiles the model itself. Where dynamo breaks the model into several graphs,
each of them is compiled on its own.

Nothing is compiled before a graph runs for the first time: by then dynamo has finished, and errors reach the caller
unchanged.
"""

from prepbench.dynamo.compiled_graph import prepbench_backend as prepbench_backend

__all__ = ["prepbench_backend"]
