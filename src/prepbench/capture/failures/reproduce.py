"""Write a failing submodule with its inputs as a standalone script: ``failure.reproduce("bug.py")``.

The script holds the source of the user's classes, the module's attributes and weights, and the inputs that the module
received; nothing is pickled. Classes of installed packages are imported.
"""

from __future__ import annotations

import ast
import enum
import inspect
import linecache
import logging
import math
import os
import sys
import textwrap
import types
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from prepbench._torch_compat import pytree
from prepbench.capture.failures.describe import DIFFERS, SHAPE
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.document.model import Failure
from prepbench.errors import CaptureError, InputError
from prepbench.inputs import Sample
from prepbench.objects.copy import Twin
from prepbench.objects.parts import attributes, is_user_code
from prepbench.running.recorded_calls import record_inputs
from prepbench.running.unchanged import own_copy, unchanged, without_output
from prepbench.storage import remove_new_files_on_error, write_file


def with_reproduction(failures: Iterable[Failure], model: Any, samples: Sequence[Sample] | None) -> tuple[Failure, ...]:
    """Return the failures, each able to write a script for its module; comparison and storage ignore this."""
    result = tuple(failures)
    for failure in result:
        # not a field: a failure is plain data, since documents hold nothing else
        object.__setattr__(failure, "_reproduction", _Reproduction(failure, model, samples))
    return result


class _Reproduction:
    """The data beyond a failure that its script needs."""

    def __init__(self, failure: Failure, model: Any, samples: Sequence[Sample] | None) -> None:
        self._kind, self._fqn = failure.kind, failure.fqn
        self._text = f"{failure.exception_type}: {failure.message}"
        self._model, self._samples = model, samples

    def __deepcopy__(self, memo: Any) -> _Reproduction:
        return self

    def __reduce__(self) -> Any:
        return _nothing, ()

    def write(self, path: Path) -> Path:
        """Write the script, and large tensors to a file beside it. Writes nothing if an error occurs."""
        if not isinstance(self._model, torch.nn.Module):
            raise CaptureError(
                "Only failures of modules can be reproduced in a script, not those of functions. Put the function into "
                "the forward of a module and capture that."
            )
        module = self._model.get_submodule(self._fqn)
        script = Script()
        received = received_inputs(self._model, module, self._samples) if self._samples else []
        built = script.value(module, f"the module {self._fqn!r}")
        attempt = _export(script, received, self._kind) if received else "torch.fx.symbolic_trace(module)"
        text = script.text(built, attempt, f"{self._fqn or type(module).__name__} fails: {self._text}", path)
        if not script.tensors:
            return write_file(path, text)
        import safetensors.torch

        tensors, data = path.with_suffix(".safetensors"), safetensors.torch.save(script.tensors)
        with remove_new_files_on_error(tensors):
            return write_file(path, text, before=lambda: write_file(tensors, data))


def _nothing() -> None:
    return None


def received_inputs(model: torch.nn.Module, module: torch.nn.Module, samples: Sequence[Sample]) -> list[Sample]:
    """Return the inputs of a submodule in its first call on each sample."""
    if module is model:
        return list(samples)
    first: list[Sample] = []
    twin = Twin(model)
    model, module = twin.model, twin.of(module)
    for sample in samples:
        with unchanged(model), without_output(), torch.no_grad(), record_inputs(module, max_samples=1) as recorded:
            own_copy(sample).call(model)
        first += recorded.samples if len(recorded) else []
    return first


def _export(script: Script, samples: list[Sample], kind: str) -> str:
    calls = [(script.value(tuple(s.args), "args"), script.value(dict(s.kwargs), "kwargs")) for s in samples]
    lines = [f"args, kwargs = {calls[0][0]}, {calls[0][1]}"]
    lines.append("leaves = torch.utils._pytree.tree_leaves((args, kwargs))")
    lines.append("shapes = torch.export.ShapesCollection()")
    hint = "DYNAMIC" if kind == SHAPE else "AUTO"
    for index, dims in sorted(_dynamic_dims(samples).items()):
        entries = ", ".join(f"{dim}: torch.export.Dim.{hint}" for dim in dims)
        lines.append(f"shapes[leaves[{index}]] = {{{entries}}}")
    lines.append("dynamic_shapes = shapes.dynamic_shapes(module, args, kwargs)")
    export = "torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)"
    if kind not in (SHAPE, DIFFERS):
        return "\n".join([*lines, export])
    # the first sample captures, and its graph is wrong for another one
    others = ", ".join(f"({args}, {kwargs})" for args, kwargs in calls)
    lines += [f"program = {export}.module()", f"for args, kwargs in [{others}]:"]
    lines += ["    expected = module(*args, **kwargs)"]
    lines += ["    torch.testing.assert_close(program(*args, **kwargs), expected, equal_nan=True)"]
    return "\n".join(lines)


def _dynamic_dims(samples: list[Sample]) -> dict[int, list[int]]:
    try:
        axes = DynamicAxes.infer(samples)
    except InputError:  # the module receives another structure on another sample
        return {}
    order = list(dict.fromkeys(axis.path for axis in axes.axes))
    tensors = [
        index
        for index, leaf in enumerate(pytree.tree_leaves((samples[0].args, samples[0].kwargs)))
        if isinstance(leaf, torch.Tensor)
    ]
    places = dict(zip(order, tensors, strict=False))
    found: dict[int, list[int]] = {}
    for axis in axes.dynamic:
        found.setdefault(places[axis.path], []).append(axis.dim)
    return found


# Live objects as Python code: modules with their weights, tensors, plain values, and the classes they need.


INLINE = 64
"""Tensors with more elements than this go to a ``.safetensors`` file beside the script."""

_OWN = frozenset(vars(torch.nn.Module()))


class Script:
    """Collects the parts of a script: imports, sources, objects, tensors."""

    def __init__(self) -> None:
        self.imports: dict[str, None] = {}
        self.sources: dict[str, str] = {}
        self.lines: list[str] = []
        self.tensors: dict[str, torch.Tensor] = {}
        self._names: dict[int, str] = {}
        self._alive: list[Any] = []

    def text(self, module: str, attempt: str, title: str, path: Path) -> str:
        """Return the whole script."""
        note = textwrap.fill(title.replace("\\", "\\\\").replace('"""', "'''"), 110)
        parts = [f'"""{note}"""', "from __future__ import annotations"]
        parts.append("\n".join(["import torch", *self.imports]))
        if self.tensors:
            file = path.with_suffix(".safetensors").name
            load = f"stored = safetensors.torch.load_file(pathlib.Path(__file__).with_name({file!r}))"
            parts.append(f"import pathlib\n\nimport safetensors.torch\n\n{load}")
        parts.append('inf, nan = float("inf"), float("nan")')
        parts += [source.rstrip() for source in self.sources.values()]
        parts.append(_HELPERS)
        parts.append("\n".join([*self.lines, f"module = {module}"]))
        parts.append(attempt)
        return "\n\n\n".join(parts) + "\n"

    # -- values

    def value(self, value: Any, where: str) -> str:
        """Return an expression for ``value``. The statements that it needs are added to the script."""
        if value is None or (isinstance(value, bool | int | str | bytes | complex) and type(value) in _LITERALS):
            return repr(value)
        if isinstance(value, float):
            return repr(float(value)) if math.isfinite(value) else f'float("{value}")'
        if id(value) in self._names:
            return self._names[id(value)]
        if isinstance(value, torch.nn.Module):
            return self._module(value, where)
        if isinstance(value, torch.Tensor):
            return self._tensor(value, where)
        if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
            return str(value)
        if isinstance(value, torch.device):
            return f"torch.device({str(value)!r})"
        if isinstance(value, enum.Enum):
            return f"{self.named(type(value), where)}[{value.name!r}]"
        if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
            return self.named(value, where)
        return self._from_library(value, where) or self._container(value, where)

    def _from_library(self, value: Any, where: str) -> str:
        """Return an expression for arrays and numbers of NumPy, loggers and weak references; "" for others."""
        if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
            return f"{self._tensor(torch.from_numpy(value.copy()), where)}.numpy()"
        if isinstance(value, np.generic):
            self.imports.setdefault("import numpy", None)
            return f"numpy.{type(value).__name__}({value.item()!r})"
        if isinstance(value, logging.Logger):
            self.imports.setdefault("import logging", None)
            return f"logging.getLogger({value.name!r})"
        if isinstance(value, weakref.ref) and value() is not None:
            self.imports.setdefault("import weakref", None)
            return f"weakref.ref({self.value(value(), where)})"
        return ""

    def _container(self, value: Any, where: str) -> str:
        if isinstance(value, torch.Size):
            return f"torch.Size({list(value)})"
        if type(value) in (list, tuple, set, frozenset):
            items = [self.value(item, f"{where}[{index}]") for index, item in enumerate(value)]
            if type(value) is tuple:
                return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
            return f"[{', '.join(items)}]" if type(value) is list else f"{type(value).__name__}([{', '.join(items)}])"
        if type(value) is dict:
            pairs = [f"{self.value(k, where)}: {self.value(v, f'{where}[{k!r}]')}" for k, v in value.items()]
            return "{" + ", ".join(pairs) + "}"
        if isinstance(value, slice | range):
            parts = ", ".join(repr(part) for part in (value.start, value.stop, value.step))
            return f"{type(value).__name__}({parts})"
        if isinstance(value, types.MethodType | types.ModuleType) or not _can_be_rebuilt(value):
            raise CaptureError(
                f"{where} is a {type(value).__name__}, which a script cannot hold. Replace it by plain values, tensors "
                "or objects of them to reproduce this failure in a file."
            )
        return self._object(value, where)

    def _new(self, value: Any) -> str:
        name = f"value_{len(self._names)}"
        self._names[id(value)] = name
        self._alive.append(value)
        return name

    def _object(self, value: Any, where: str) -> str:
        kind = self.named(type(value), where)
        name = self._new(value)
        if isinstance(value, dict):
            self.lines.append(f"{name} = {kind}({self.value(dict(value), where)})")
        else:
            self.lines.append(f"{name} = object.__new__({kind})")
        for key, part in attributes(value).items():
            self.lines.append(f"object.__setattr__({name}, {key!r}, {self.value(part, f'{where}.{key}')})")
        return name

    def _module(self, module: torch.nn.Module, where: str) -> str:
        if isinstance(module, torch.jit.ScriptModule):
            raise CaptureError(
                f"{where} is a scripted module (torch.jit), which Python source cannot hold. Use its original module."
            )
        kind = self.named(type(module), where)
        name = self._new(module)
        self.lines.append(f"{name} = new_module({kind}, training={module.training})")
        for key, parameter in module._parameters.items():
            self.lines.append(f"{name}.register_parameter({key!r}, {self._parameter(parameter, f'{where}.{key}')})")
        for key, buffer in module._buffers.items():
            value = "None" if buffer is None else self._tensor(buffer, f"{where}.{key}")
            self.lines.append(f"{name}.register_buffer({key!r}, {value})")
        for key, child in module._modules.items():
            self.lines.append(f"{name}.add_module({key!r}, {self.value(child, f'{where}.{key}')})")
        for key, value in vars(module).items():
            if key not in _OWN:
                self.lines.append(f"vars({name})[{key!r}] = {self.value(value, f'{where}.{key}')}")
        return name

    def _parameter(self, parameter: torch.nn.Parameter | None, where: str) -> str:
        if parameter is None:
            return "None"
        if id(parameter) not in self._names:
            data = self._tensor(parameter.detach(), where)
            name = self._new(parameter)
            self.lines.append(f"{name} = torch.nn.Parameter({data}, requires_grad={parameter.requires_grad})")
        return self._names[id(parameter)]

    def _tensor(self, tensor: torch.Tensor, where: str) -> str:
        if id(tensor) in self._names:
            return self._names[id(tensor)]
        plain = tensor.detach()
        if plain.layout is not torch.strided or (plain.is_complex() and plain.numel() > INLINE):
            raise CaptureError(
                f"{where} is a {plain.layout} {plain.dtype} tensor, which a script cannot hold. "
                "Give the module a dense tensor of real numbers to reproduce this failure in a file."
            )
        if plain.device.type == "meta":
            value = f"torch.empty({list(plain.shape)}, dtype={plain.dtype}, device='meta')"
        elif plain.numel() <= INLINE:
            value = f"torch.tensor({plain.tolist()!r}, dtype={plain.dtype}).reshape({list(plain.shape)})"
        else:
            key = f"tensor_{len(self.tensors)}"
            self.tensors[key] = plain.cpu().contiguous().clone()
            value = f"stored[{key!r}]"
        if plain.device.type != "meta" and not plain.is_contiguous() and all(plain.stride()):
            value = f"torch.empty_strided({list(plain.shape)}, {plain.stride()}, dtype={plain.dtype}).copy_({value})"
        if tensor.device.type not in ("cpu", "meta"):
            value += f".to({str(tensor.device)!r})"
        name = self._new(tensor)
        self.lines.append(f"{name} = {value}")
        return name

    # -- code

    def named(self, thing: Any, where: str) -> str:
        """Return an expression for a class or function: imported if it is installed, else with embedded source."""
        name = thing.__qualname__
        if not is_users(thing):
            home = thing.__module__
            if home in (None, "builtins"):
                return str(name)
            if "<locals>" in name:
                raise CaptureError(
                    f"{where} is {home}.{name}, which is made at run time and cannot be imported. "
                    "Define it at the top of a file."
                )
            if not home.startswith("torch.") or home.startswith("torch._"):
                self.imports.setdefault(f"import {home}", None)
            return f"{home}.{name}"
        own = thing.__name__
        if own == "<lambda>":
            own = self._names.setdefault(id(thing), f"function_{len(self._names)}")
            self._alive.append(thing)
        if own not in self.sources:
            self.sources[own] = ""  # classes may refer to themselves
            source, used, scope = source_of(thing, where)
            for needed in used:
                if needed in scope and needed != own:
                    self._global(needed, scope[needed], f"{needed}, which {name} uses,")
            del self.sources[own]
            self.sources[own] = source if own == thing.__name__ else f"{own} = {source}"
        return str(own)

    def _global(self, name: str, value: Any, where: str) -> None:
        if isinstance(value, types.ModuleType):
            if is_users_module(value):
                raise CaptureError(f"{where} is a Python module of your own: put what is needed into one file first.")
            self.imports.setdefault(f"import {value.__name__} as {name}", None)
            return
        if getattr(value, "__module__", None) == "__future__" or name in self.sources:
            return
        if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType) or _is_importable(value):
            home, own = getattr(value, "__module__", None), getattr(value, "__qualname__", name)
            if is_users(value):
                expression = self.named(value, where)
                if expression != name:
                    self.sources[name] = f"{name} = {expression}"
            elif home:
                self.imports.setdefault(f"from {home} import {own.partition('.')[0]} as {name}", None)
            return
        before = len(self.lines)
        expression = self.value(value, where)
        statements = self.lines[before:]
        del self.lines[before:]
        self.sources[name] = "\n".join([*statements, f"{name} = {expression}"])


_LITERALS = (bool, int, str, bytes, complex)

_HELPERS = """def new_module(kind, training):
    module = kind.__new__(kind)
    torch.nn.Module.__init__(module)
    vars(module)["training"] = training
    return module"""


def _is_importable(value: Any) -> bool:
    return callable(value) and hasattr(value, "__qualname__") and not isinstance(value, torch.nn.Module)


def _can_be_rebuilt(value: Any) -> bool:
    try:
        object.__new__(type(value))
    except TypeError:  # files, locks and other objects made in C
        return isinstance(value, dict)
    return True


# Whether a class or function is the user's own, and its source.


def is_users(thing: Any) -> bool:
    """Return whether the class or function is defined in a file of the user's, not in an installed package."""
    return bool(_files(thing))


def _files(thing: Any) -> list[str]:
    """Return the user's files that may define the class or function, best first."""
    code = _code(thing)
    if code is not None and is_user_code(code):
        return [] if _is_installed(code.co_filename) else [code.co_filename]
    home = sys.modules.get(getattr(thing, "__module__", None) or "")
    if not isinstance(thing, type) or home is None or thing.__module__ == "builtins":
        return []
    if home.__name__ == "__main__" and not hasattr(home, "__file__"):
        # a class without methods in a notebook: one of the cells has it
        return [file for file in reversed(linecache.cache) if "ipykernel" in file or file.startswith("<ipython")]
    return [str(home.__file__)] if is_users_module(home) else []


def is_users_module(module: types.ModuleType) -> bool:
    """Return whether a Python module is a file of the user's, not of an installed package."""
    file = getattr(module, "__file__", None)
    spec = getattr(module, "__spec__", None)
    return file is not None and spec is not None and not _is_installed(file)


def _is_installed(file: str) -> bool:
    """Return whether a file belongs to Python itself or to an installed package."""
    return "site-packages" in file or file.startswith((os.path.dirname(os.__file__), str(Path(torch.__file__).parent)))


def source_of(thing: Any, where: str) -> tuple[str, list[str], dict[str, Any]]:
    """Return the source of a class or function, its global names, and the namespace of their values."""
    lines, node = _definition(thing, where)
    if isinstance(node, ast.Lambda):
        text = f"({ast.get_source_segment(''.join(lines), node)})"
    else:
        text = textwrap.dedent("".join(lines[_first_line(node) - 1 : node.end_lineno]))
    used = [n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    functions = [value for value in vars(thing).values() if _code_of(value)] if isinstance(thing, type) else [thing]
    scope = dict(vars(sys.modules[thing.__module__])) if thing.__module__ in sys.modules else {}
    for function in functions:
        plain = inspect.unwrap(getattr(function, "__func__", function))
        if is_user_code(plain.__code__):
            scope |= plain.__globals__
            scope |= {k: v for k, v in inspect.getclosurevars(plain).nonlocals.items() if k != "__class__"}
    annotated = _names_in_annotations(text)
    return text, [name for name in dict.fromkeys(used) if name not in annotated], scope


def _definition(thing: Any, where: str) -> tuple[list[str], Any]:
    """Return the lines of the file that defines an object, and the syntax tree of the definition."""
    kinds: Any = ast.ClassDef if isinstance(thing, type) else (ast.FunctionDef, ast.AsyncFunctionDef)
    code = _code(thing)
    for file in _files(thing):
        lines = linecache.getlines(file)
        try:
            tree = ast.parse("".join(lines))
        except SyntaxError:
            continue
        if thing.__name__ == "<lambda>":
            found: list[Any] = [n for n in ast.walk(tree) if isinstance(n, ast.Lambda) and _is_code_of(n, code)]
            if found:
                return lines, found[0]
            continue
        found = [n for n in ast.walk(tree) if isinstance(n, kinds) and n.name == thing.__name__]
        if code is not None and is_user_code(code):
            line = code.co_firstlineno
            found = [n for n in found if _first_line(n) <= line <= (n.end_lineno or n.lineno)]
        if found:
            return lines, found[-1]
    raise CaptureError(
        f"The source of {thing.__qualname__} ({where}) is not available, so no script can hold it. "
        "Define it in a file or a notebook cell."
    )


def _is_code_of(node: ast.Lambda, code: types.CodeType | None) -> bool:
    """Return whether a lambda of a file is the one with a code object; others may stand on its line."""
    if code is None or node.lineno != code.co_firstlineno:
        return False
    body = node.body
    return (body.lineno, body.end_lineno, body.col_offset, body.end_col_offset) in set(code.co_positions())


def _first_line(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _names_in_annotations(text: str) -> set[str]:
    """Return names that only annotations use: they are text under ``from __future__ import annotations``."""
    tree = ast.parse(text)
    annotations: list[Any] = [n.annotation for n in ast.walk(tree) if isinstance(n, ast.arg | ast.AnnAssign)]
    annotations += [n.returns for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    inside = [n for a in annotations if a is not None for n in ast.walk(a) if isinstance(n, ast.Name)]
    other = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and n not in inside]
    return {n.id for n in inside} - set(other)


def _code(thing: Any) -> types.CodeType | None:
    if isinstance(thing, type):
        return next((code for value in vars(thing).values() if (code := _code_of(value)) is not None), None)
    return _code_of(thing)


def _code_of(value: Any) -> types.CodeType | None:
    plain = inspect.unwrap(value) if callable(value) else value
    plain = getattr(plain, "__func__", plain)
    return plain.__code__ if isinstance(plain, types.FunctionType) else None
