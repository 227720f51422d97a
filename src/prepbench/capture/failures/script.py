"""Live objects as Python code: modules with their weights, tensors, plain values, and the classes they need."""

from __future__ import annotations

import enum
import logging
import math
import textwrap
import types
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import torch

from prepbench.capture.failures.user_sources import is_users, is_users_module, source_of
from prepbench.errors import CaptureError
from prepbench.running.nested_values import attributes

INLINE = 64
"""Tensors with more elements than this go to a ``.safetensors`` file beside the script."""

_OWN = frozenset(vars(torch.nn.Module()))


class Script:
    """Collects what a script needs: imports, sources, objects, tensors."""

    def __init__(self) -> None:
        self.imports: dict[str, None] = {}
        self.sources: dict[str, str] = {}
        self.lines: list[str] = []
        self.tensors: dict[str, torch.Tensor] = {}
        self._names: dict[int, str] = {}
        self._alive: list[Any] = []

    def text(self, module: str, attempt: str, title: str, path: Path) -> str:
        """The whole script."""
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
        """An expression for ``value``. The statements that it needs are added to the script."""
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
        """Arrays and numbers of NumPy, loggers and weak references; "" for others."""
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
        """An expression for a class or function: imported if it is installed, else its source is embedded."""
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
