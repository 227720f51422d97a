"""Check the model that is handed in when a model with leaves is loaded: is it the one that was compiled?"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from prepbench.capture.statements.cuts import Cuts, StatementLeaf
from prepbench.capture.statements.outline import CutFunction, line_digests, lines_of
from prepbench.capture.statements.ranges import SourceFile, source_file
from prepbench.errors import ArtifactError, printable
from prepbench.objects.digest import tensor_digest
from prepbench.objects.parts import NO_DATA, Part, functions_in, is_own_object, is_user_file, items, parts, walk
from prepbench.package.leaves.definitions import NoJson, texts_in
from prepbench.running.source_lines import CodePath, nested_codes


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


# Bind the leaves of a saved model to the model handed in.


def bound_statements(cuts: Cuts, functions: Sequence[CutFunction], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Cut ranges out of the functions of a model again.

    Returns:
        The name in ``cuts.leaves`` of each of them.

    Raises:
        ArtifactError: no such function is reached by the model, or its lines are others.
        LookupError: a function has no such range.
        NoJson: a row does not fit the statements.
        CannotSwap: a class does not allow subclasses.
    """
    candidates = reached(cuts.model)
    found = [(cut, function_of(cut, candidates)) for cut in functions]
    if len({id(function.__code__) for _, function in found}) < len(found):
        raise NoJson("one function twice")
    cuts.restore(found)
    return [_name_of(cuts, found, row) for row in rows]


def _name_of(cuts: Cuts, found: Sequence[tuple[CutFunction, Any]], row: Mapping[str, Any]) -> str:
    place = row["statements"]
    if not (0 <= place["function"] < len(found)):
        raise NoJson("statements of a function that is not listed")
    cut, function = found[place["function"]]
    if not (0 <= place["range"] < len(cut.ranges)):
        raise NoJson("statements that are no range of their function")
    first = function.__code__.co_firstlineno
    lines = cut.ranges[place["range"]].lines
    wanted = (first + lines[0], first + lines[1])
    for name, leaf in cuts.leaves.items():
        known = (leaf.file, leaf.outlined.path[:-1], leaf.outlined.lines, leaf.owner_fqn, leaf.has_owner)
        if known == (function.__code__.co_filename, cut.path, wanted, row["module"], place["has_owner"]):
            _check_fits(leaf, row)
            return name
    raise LookupError(f"{cut.name} has no such statements for {row['module'] or 'the model'}")


def _check_fits(leaf: StatementLeaf, row: Mapping[str, Any]) -> None:
    """Check that the call is one of these statements."""
    arguments, results = row["arguments"], row["results"]
    given = [item for item in arguments.get("items", ()) if isinstance(item, dict)]
    takes = len(leaf.outlined.inputs) - (leaf.has_owner and leaf.outlined.owner in leaf.outlined.inputs)
    if len(given) != 2 or given[1].get("items") or len(given[0].get("items", ())) != takes:
        raise NoJson("other arguments than its statements take")
    outputs = leaf.outlined.outputs
    fits = outputs is None or (results.get("kind") == "tuple" and len(results.get("items", ())) == len(outputs))
    if not fits and not row["restructured"]:
        raise NoJson("other results than its statements give")


def check_texts(rows: Sequence[Mapping[str, Any]], model: torch.nn.Module, texts: Sequence[str]) -> None:
    """Check that each text argument of a leaf occurs in the model's code or attributes.

    Code may open files or dispatch on texts, so a folder must not introduce any of its own.

    Raises:
        NoJson: one does not.
    """
    given = {text for row in rows for text in [*row["fixed"], *texts_in(row["arguments"])] if isinstance(text, str)}
    if given and not given <= {*texts, *reached_texts(model, reached(model))}:
        raise NoJson("a text that stands neither in the model's code nor in its attributes")


# The functions that calls of a model can reach, as far as names tell: those that a saved model may ask for by name.


_DEEPEST = 4


def reached_functions(model: torch.nn.Module) -> Iterator[types.FunctionType]:
    """Yield the user's functions that the forwards of a model's modules name, and those that these name.

    Methods are looked for in the classes of the model's modules and of the objects that these hold, functions among
    the globals and closures of those that name them. A method that nothing names on the way from a forward, such as
    one that loads or saves, is not among them.
    For a ``Net`` whose forward calls a method and a function: ``Net.forward``, ``Net.attention``, ``limited``.
    """
    methods = _methods(model)
    waiting = list(_first(model))
    seen: set[int] = set()
    while waiting:
        function = waiting.pop(0)
        if id(function) in seen:
            continue
        seen.add(id(function))
        if is_user_file(function.__code__.co_filename):
            yield function
            waiting += _named(function, methods)


def reached_texts(model: torch.nn.Module, functions: Iterable[types.FunctionType]) -> set[str]:
    """Return the texts that stand in functions, and that modules of a model have as attributes."""
    found: set[str] = set()
    for function in functions:
        for code in _codes(function.__code__):
            found.update(_texts(code.co_consts))
        found.update(_texts((function.__defaults__, function.__kwdefaults__)))
    for module in model.modules():
        found.update(_texts(vars(module)))
    return found


def _texts(value: Any) -> Iterator[str]:
    return (part for _, part in walk(value, _items_and_keys, deepest=_DEEPEST) if isinstance(part, str))


def _items_and_keys(value: Any) -> list[Part]:
    keys = [(("member", number), key) for number, key in enumerate(value)] if isinstance(value, dict) else []
    return [*keys, *items(value)]


def _codes(code: types.CodeType) -> list[types.CodeType]:
    return [code, *(inner for _, inner in nested_codes(code))]


def _first(model: torch.nn.Module) -> Iterator[types.FunctionType]:
    for module in model.modules():
        for name in ("forward", "__call__"):
            yield from functions_in(vars(module).get(name))
            for kind in type(module).__mro__:
                yield from functions_in(vars(kind).get(name))
        for table in ("_forward_hooks", "_forward_pre_hooks"):
            for hook in vars(module).get(table, {}).values():
                yield from functions_in(hook)


def _methods(model: torch.nn.Module) -> dict[str, list[types.FunctionType]]:
    found: dict[str, list[types.FunctionType]] = {}
    kinds: dict[type, None] = {}
    for module in model.modules():
        kinds[type(module)] = None
        for value in _objects(vars(module)):
            kinds[type(value)] = None
    for base in dict.fromkeys(base for kind in kinds for base in kind.__mro__):
        for name, member in vars(base).items():
            functions = [each for each in functions_in(member) if is_user_file(each.__code__.co_filename)]
            if functions:
                found.setdefault(name, []).extend(functions)
    return found


def _objects(value: Any) -> Iterator[Any]:
    """Yield the user's plain objects inside of containers and of other objects."""
    for _, part in walk(value, _held, deepest=_DEEPEST):
        if isinstance(part, types.MethodType):
            yield part.__self__
        elif not isinstance(part, _NO_OBJECTS) and is_own_object(type(part)):
            yield part


def _held(value: Any) -> list[Part]:
    if isinstance(value, (dict, list, tuple, set)):
        return items(value)
    is_object = not isinstance(value, _NO_OBJECTS) and not callable(value) and is_own_object(type(value))
    return parts(value) if is_object else []


_NO_OBJECTS = (*NO_DATA, torch.Tensor, dict, list, tuple, set)


def _named(function: types.FunctionType, methods: dict[str, list[types.FunctionType]]) -> Iterator[types.FunctionType]:
    """Yield the values that the names in a function may refer to."""
    codes = _codes(function.__code__)
    for name in dict.fromkeys(name for code in codes for name in (*code.co_names, *code.co_freevars)):
        yield from methods.get(name, ())
        value = function.__globals__.get(name)
        yield from functions_in(value)
        if isinstance(value, type) and issubclass(value, torch.autograd.Function):
            for member in vars(value).values():
                yield from functions_in(member)
