"""Find the operator of a lowered program that differs from PyTorch, and whether the runtime or the file is wrong."""

from __future__ import annotations

import bisect
import operator
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import fx

from prepbench.inputs import Sample
from prepbench.objects.copy import clones
from prepbench.running.source_lines import place_in_stack_trace
from prepbench.settings import DeploymentSettings
from prepbench.storage import FOR_THE_USER, own_folders
from prepbench.targets import Lowering, Runtime, Target
from prepbench.targets.onnx.target import OnnxTarget, write_onnx
from prepbench.targets.programs import is_complex
from prepbench.targets.weights import lowered_program

Program = torch.export.ExportedProgram
# whether the second value may replace the first one
IsRight = Callable[[Any, Any], bool]

# values of a graph that are returned at the same time
_MOST = 400
# for the beginnings of a graph that are lowered to find an operator
_SECONDS = 60.0


def unknown(*, is_quantized: bool) -> str:
    """Return what to do where it is not known which part is wrong."""
    layers = "keep layers in float with layer_quantization_settings until the result is right"
    return f"Which part is wrong was not found. Choose another target, or {layers if is_quantized else IN_TORCH}."


IN_TORCH = "keep the module or line in PyTorch (leaf_modules=)"


Lower = Callable[[Lowering], Runtime]


class Blame:
    """Finds the first operator whose value differs, by lowering the program with its values as further outputs.

    Args:
        target: the target in question.
        settings: of the target.
        lowering: its input.
        lower: lowers a program as the one in question was, where PyTorch runs a part of it.
        is_quantized: whether layers could stay in float instead.

    Attributes:
        found: the node of the program that is to blame; None where none was found.
    """

    def __init__(
        self,
        target: Target,
        settings: DeploymentSettings,
        lowering: Lowering,
        lower: Lower | None = None,
        *,
        is_quantized: bool = False,
    ) -> None:
        self._target, self._settings, self._lowering = target, settings, lowering
        self._lower = lower or (lambda given: target.lower(given, settings))
        self._unknown = unknown(is_quantized=is_quantized)
        self.found: fx.Node | None = None

    def __call__(self, sample: Sample, is_right: IsRight) -> str:
        """Return one or more sentences, also on what is unknown."""
        try:
            return self._sentences(sample, is_right)
        except Exception:  # the bug it searches for may also prevent lowering in another form
            return self._unknown

    def of_failure(self, sample: Sample) -> str:
        """Return a sentence on the first operator that the runtime cannot run; empty where it is not found."""
        try:
            values = _Values(self._lowering.program.module(check_guards=False))
            values.run(*clones(sample.args))
            nodes = [
                node
                for node, value in values.found.items()
                if node.op == "call_function" and isinstance(value, torch.Tensor)
            ]
            return self._first(nodes, lambda part: self._run(self._returning(part), sample.args, len(part)))
        except Exception:  # some of its parts may not lower
            return ""

    def of_lowering(self) -> str:
        """Return a sentence on the first operator that the target cannot lower; empty where it is not found."""
        try:
            graph = self._lowering.program.module(check_guards=False).graph
            nodes = [node for node in graph.nodes if node.op == "call_function" and _is_lowered(node)]
            return self._first(nodes, lambda part: self._lowered_form(self._returning(_ends(part)), len(_ends(part))))
        except Exception:  # torch may not export a part
            return ""

    def _first(self, nodes: Sequence[fx.Node], attempt: Callable[[Sequence[fx.Node]], Any]) -> str:
        """Note and tell the last operator of the shortest beginning of the graph at which an attempt fails.

        Raises:
            TimeoutError: the attempts take too long; each may compile machine code.
        """
        end = time.monotonic() + _SECONDS

        def fails(count: int) -> bool:
            if time.monotonic() > end:
                raise TimeoutError
            try:
                attempt(nodes[:count])
            except Exception:  # each library has its own
                return True
            return False

        first = bisect.bisect_left(range(1, len(nodes) + 1), True, key=fails)
        if first == len(nodes):
            return ""
        self.found = nodes[first]
        return f"It fails at {_described(nodes[first])}."

    def _sentences(self, sample: Sample, is_right: IsRight) -> str:
        values = _Values(self._lowering.program.module(check_guards=False))
        values.run(*clones(sample.args))
        nodes = [node for node in values.found if node.op == "call_function" and _is_compared(values.found[node])]
        nodes = nodes[-_MOST:]
        self._operators = len(nodes)
        got = self._run(self._returning(nodes), sample.args, len(nodes))
        pairs = zip(nodes, got, strict=True)
        self.found = next((node for node, value in pairs if not is_right(values.found[node], value)), None)
        if self.found is None:
            several = f"No operator is wrong by itself, only what {self._target.display_name} makes of several. "
            return (several if self._operators > 1 else "") + self._unknown
        who = self._who(self.found, values, is_right)
        return f"The first value that differs is that of {_described(self.found)}. {who}"

    def _returning(self, nodes: Sequence[fx.Node]) -> Program:
        """Return the program with the values of some nodes as outputs."""
        module = self._lowering.program.module(check_guards=False)
        by_name = {node.name: node for node in module.graph.nodes}
        output = module.graph.output_node()
        module.graph.set_codegen(fx.graph.CodeGen())
        output.args = (tuple(by_name[node.name] for node in nodes),)
        module.graph.eliminate_dead_code()  # which may hold what the target fails at
        module.recompile()
        return lowered_program(module, self._lowering.program)

    def _lowered_form(self, program: Program, outputs: int, inputs: Sequence[Any] | None = None) -> Runtime:
        names = tuple(f"value_{index}" for index in range(outputs))
        lowering = replace(self._lowering, program=program, output_names=names, programs=None)
        if inputs is not None and len(lowering.input_names) != len(inputs):
            lowering = replace(lowering, input_names=tuple(f"input_{index}" for index in range(len(inputs))))
        self._lowered = lowering
        return self._lower(lowering)

    def _run(self, program: Program, inputs: Sequence[Any], outputs: int) -> list[Any]:
        return list(self._lowered_form(program, outputs, inputs).run(clones(inputs)))

    def _who(self, node: fx.Node, values: _Values, is_right: IsRight) -> str:
        """Return whether the operator is wrong in isolation, and whether its ONNX file is."""
        alone, inputs = _alone(node, values.found)
        right = values.found[node]
        (got,) = self._run(torch.export.export(alone, inputs), inputs, 1)
        if is_right(right, got):
            where = "beside others, or where sizes vary" if self._operators > 1 else "where sizes vary"
            return f"By itself and with fixed sizes it is right on these values: the target is wrong {where}. {_REMEDY}"
        if not isinstance(self._target, OnnxTarget):
            return "It is wrong by itself: the target, or how it was lowered to it. " + _REMEDY
        folder = _folder()
        try:
            path = write_onnx(self._target, self._lowered, folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        expected = _by_reference(path, inputs)
        if expected is None or not is_right(right, expected):
            return (
                f"Its translation to ONNX is wrong, or not known to be right: {path} has only this operator. {_REMEDY}"
            )
        torch.save(list(inputs), folder / "inputs.pt")
        return (
            f"This is a bug of the target: {path} has only this operator, the ONNX reference computes it as PyTorch "
            f"does on the values in {folder / 'inputs.pt'}, and {self._target.display_name} does not. {_REMEDY}"
        )


def _folder() -> Path:
    """Return a new folder for files that an error names. The newest earlier ones stay: the user may need them."""
    ages = own_folders(tempfile.gettempdir(), f"{FOR_THE_USER}*")
    for folder in sorted(ages, key=lambda folder: ages[folder], reverse=True)[_KEPT - 1 :]:
        shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=FOR_THE_USER))


_KEPT = 4
_REMEDY = "Choose another target, or rewrite this line with other operators."


class _Values(fx.Interpreter):
    """Runs a graph and keeps all of its values."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.found: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        self.found[n] = value.clone() if isinstance(value, torch.Tensor) else value
        return value


def _is_compared(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_complex()


def _is_lowered(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor) and not is_complex(node)


def _ends(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """Return those of some nodes that others read, which make the rest necessary."""
    inside = set(nodes)
    return [node for node in nodes if not node.users or any(user not in inside for user in node.users)]


def _alone(node: fx.Node, values: dict[fx.Node, Any]) -> tuple[fx.GraphModule, tuple[torch.Tensor, ...]]:
    """Return a graph of one operator, and its tensor inputs; numbers are constants in it."""
    parts = [node]
    if node.target is operator.getitem:
        parts.insert(0, node.args[0])  # type: ignore[arg-type]
    graph, copies = fx.Graph(), {}
    inputs: list[torch.Tensor] = []
    for source in parts[0].all_input_nodes:
        if isinstance(values[source], torch.Tensor):
            copies[source] = graph.placeholder(f"input_{len(inputs)}")
            inputs.append(values[source])
    for part in parts:
        args, kwargs = fx.node.map_arg((part.args, part.kwargs), lambda source: copies.get(source, values[source]))
        copies[part] = graph.call_function(part.target, args, kwargs)  # type: ignore[arg-type]
    graph.output((copies[node],))
    return fx.GraphModule(torch.nn.Module(), graph), tuple(inputs)


def _by_reference(path: Path, inputs: Sequence[torch.Tensor]) -> Any:
    """Return the result of ONNX's reference implementation; None if it cannot run the file."""
    from onnx.reference import ReferenceEvaluator

    try:
        evaluator = ReferenceEvaluator(str(path))
        given = {name: value.numpy() for name, value in zip(evaluator.input_names, inputs, strict=True)}
        return torch.from_numpy(next(iter(evaluator.run(None, given))))
    except Exception:  # it raises untyped errors
        return None


def _described(node: fx.Node) -> str:
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    source = node.args[0] if node.target is operator.getitem else node
    name = str(getattr(source, "target", source)).removesuffix(".default")
    place = place_in_stack_trace(node.meta.get("stack_trace"))
    where = f" in {stack[-1][0]}" if stack and stack[-1][0] else ""
    return f"{name}{where}" + (f" ({place[0]}:{place[1]})" if place else "")
