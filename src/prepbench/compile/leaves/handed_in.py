"""Check the model that is handed in when a model with leaves is loaded: is it the one that was compiled?"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from prepbench.capture.statements.cut_functions import CutFunction, line_digests, lines_of
from prepbench.capture.statements.ranges import SourceFile, source_file
from prepbench.errors import ArtifactError, printable
from prepbench.objects.digest import tensor_digest
from prepbench.objects.parts import is_user_file
from prepbench.running.code_objects import CodePath
from prepbench.running.reached_functions import reached_functions


def tensors_of_checkpoint(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters and buffers of a checkpoint by name."""
    yield from model.named_parameters()
    for prefix, module in model.named_modules():
        for name, value in module._buffers.items():
            if value is not None and name not in module._non_persistent_buffers_set:
                yield f"{prefix}.{name}".lstrip("."), value


def state_to_json(model: torch.nn.Module) -> dict[str, Any]:
    """Return digests of the tensors in a model's checkpoint."""
    return {name: _described(value) for name, value in tensors_of_checkpoint(model)}


def _described(value: torch.Tensor) -> dict[str, Any]:
    dtype = str(value.dtype).removeprefix("torch.")
    return {"dtype": dtype, "shape": list(value.shape), "sha256": tensor_digest(value)}


def check_state(model: torch.nn.Module, state: Mapping[str, Any]) -> None:
    """Raise ``ArtifactError`` that names the first tensor which differs from those of the model that was compiled."""
    found = dict(tensors_of_checkpoint(model))
    for name, row in state.items():
        value = found.get(name)
        if value is None:
            raise ArtifactError(
                f"The model handed in has no tensor {name!r}, which the compiled one had. Hand in the model that was "
                "compiled."
            )
        if (str(value.dtype).removeprefix("torch."), list(value.shape)) != (row["dtype"], row["shape"]):
            raise ArtifactError(
                f"{name!r} of the model handed in is {value.dtype} of the shape {tuple(value.shape)}, and of the one "
                f"that was compiled {row['dtype']} of the shape {tuple(row['shape'])}. Hand in the model that was "
                "compiled."
            )
        if row["sha256"] != tensor_digest(value):
            raise ArtifactError(
                f"{name!r} of the model handed in holds other values than that of the model that was compiled. Load "
                "the checkpoint first: model.load_state_dict(...)."
            )


def modes_to_json(model: torch.nn.Module) -> list[str]:
    """Return the modules in training mode."""
    return [name for name, module in model.named_modules() if module.training]


def set_modes(model: torch.nn.Module, training: Sequence[str]) -> None:
    """Put the modules with these names into training mode, and the others into evaluation."""
    with contextlib.suppress(NotImplementedError):  # the mode of an exported program is part of its graph
        model.eval()
    for name, module in model.named_modules():
        if name in training:
            module.training = True


def class_of(module: torch.nn.Module) -> str:
    """Return module and name of a class."""
    return f"{type(module).__module__}.{type(module).__qualname__}"


def forward_to_json(module: torch.nn.Module) -> list[str]:
    """Return digests of the lines of a user's forward; empty without source text."""
    code = _forward_code(module)
    file = None if code is None else source_file(code.co_filename)
    return [] if file is None or code is None or file.function(code) is None else list(line_digests(file, code))


def _forward_code(module: torch.nn.Module) -> types.CodeType | None:
    code = getattr(getattr(module.forward, "__func__", module.forward), "__code__", None)
    return code if isinstance(code, types.CodeType) and is_user_file(code.co_filename) else None


def check_module(model: torch.nn.Module, row: Mapping[str, Any]) -> None:
    """Check that the module of a leaf exists and is of the same class as at the compile.

    Args:
        model: handed in.
        row: the operator of the leaf.

    Raises:
        ArtifactError: it is not.
    """
    fqn, lines = row["module"], row["forward"]
    module = dict(model.named_modules()).get(fqn)
    where = fqn or "the model itself"
    if module is None:
        raise ArtifactError(
            f"The model handed in ({type(model).__name__}) has no module {fqn!r}, which the compiled one had. Hand in "
            "the model that was compiled."
        )
    if type(module).__qualname__ != row["qualname"]:  # the module that it is in may be called otherwise now
        raise ArtifactError(
            f"{where} of the model handed in is a {class_of(module)}, and was a {row['class'][:200]} when it was "
            "compiled. Hand in the model that was compiled."
        )
    if lines and (code := _forward_code(module)) is not None:
        _check_lines(f"{type(module).__qualname__}.forward", source_file(code.co_filename), code, lines)


def function_of(cut: CutFunction, candidates: Sequence[types.FunctionType]) -> types.FunctionType:
    """Return the function of the model handed in that statements were cut out of.

    Args:
        cut: its description in the folder.
        candidates: those that calls of the model can lead to.

    Raises:
        ArtifactError: there is none, or its lines are others now.
    """
    named = [each for each in candidates if _path(each) == cut.path]
    if not named:
        raise ArtifactError(
            f"No forward of the model handed in leads to a function {printable(cut.name)!r}, of which the compiled "
            "model runs lines in Python. Hand in the model that was compiled."
        )
    here = [each for each in named if each.__globals__.get("__name__") == cut.module] or named
    fitting = [each for each in here if line_digests(_file(each), each.__code__) == cut.source]
    if not fitting:
        code = here[0].__code__
        _check_lines(cut.name, _file(here[0]), code, cut.source)
    return fitting[0]


def reached(model: torch.nn.Module) -> list[types.FunctionType]:
    """Return the functions with source that calls of a model can lead to."""
    return [each for each in reached_functions(model) if _path(each) is not None]


def _path(function: types.FunctionType) -> CodePath | None:
    file = source_file(function.__code__.co_filename)
    if file is None or file.function(function.__code__) is None:
        return None
    return next(path for path, code in file.codes.items() if code == function.__code__)


def _file(function: types.FunctionType) -> SourceFile:
    file = source_file(function.__code__.co_filename)
    assert file is not None
    return file


def _check_lines(name: str, file: SourceFile | None, code: types.CodeType, lines: Sequence[str]) -> None:
    if file is None or file.function(code) is None:
        raise ArtifactError(
            f"The source of {name} is not there, or changed since it was imported, so that nobody can tell whether it "
            "is the one that was compiled. Import it from a file, or run its notebook cell again."
        )
    now = line_digests(file, code)
    if list(now) == list(lines):
        return
    texts = lines_of(file, code)
    place = next((i for i, (a, b) in enumerate(zip(now, lines, strict=False)) if a != b), min(len(now), len(lines)))
    text = f": {printable(texts[place].strip())!r}" if place < len(texts) else ""
    raise ArtifactError(
        f"{printable(name)} is not the function that was compiled: it had {len(lines)} lines and has {len(now)}, and "
        f"the first that differs is line {code.co_firstlineno + place} of {code.co_filename}{text}. Hand in the model "
        "with the code that was compiled, or compile it again and save it."
    )
