"""``script.py:name`` and ``package.module:name``: references to objects in code that the user wants to run."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from prepbench.errors import InputError, sentence

WHAT_RUNS = "The script is imported, so its code runs as if you had started it; name only scripts that you trust."
_FORM = "Write script.py:name, or package.module:name for a module that can be imported from here."


def is_reference(text: str) -> bool:
    """Return whether the text names an object of a script or module, not a folder."""
    place, colon, name = text.rpartition(":")
    dotted = all(part.isidentifier() for part in name.split("."))
    return bool(colon and place and dotted) and not Path(text).exists()


def load_model(reference: str, argument: str) -> Any:
    """Return the referenced module; if the reference is no module, the result of calling it without arguments.

    Args:
        reference: e.g. ``"script.py:model"``.
        argument: the option's name, for messages.

    Raises:
        InputError: the code cannot be run, lacks the name, or the object is no model.
    """
    from torch import nn

    value = load_object(reference, argument)
    if isinstance(value, nn.Module):
        return value
    if not callable(value):
        raise InputError(
            f"{argument} {reference}: a torch.nn.Module, or a function that returns one, was expected, got "
            f"{type(value).__name__}."
        )
    made = _called(value, reference, argument)
    if not callable(made):
        raise InputError(
            f"{argument} {reference} returned {type(made).__name__}, and a model was expected. Return a "
            "torch.nn.Module, or a function to capture."
        )
    return made


def load_values(reference: str, argument: str, beside: str = "") -> Any:
    """Return the referenced samples or data, or the result of the referenced function.

    Args:
        reference: e.g. ``"script.py:samples"``, or ``"samples"`` for one in the script of ``beside``.
        argument: the option's name, for messages.
        beside: another reference, e.g. that of the model.

    Raises:
        InputError: the code cannot be run, or lacks the name.
    """
    if ":" not in reference and beside:
        reference = f"{beside.rpartition(':')[0]}:{reference}"
    value = load_object(reference, argument)
    return _called(value, reference, argument) if inspect.isroutine(value) else value


def load_object(reference: str, argument: str) -> Any:
    """Return the referenced object; the code that defines it is executed.

    Raises:
        InputError: the code cannot be run, or lacks the name.
    """
    place, colon, name = reference.rpartition(":")
    if not (colon and place and name):
        raise InputError(f"{argument}: {reference!r} names no object. {_FORM}")
    value: Any = _module(place, argument)
    for part in name.split("."):
        if not hasattr(value, part):
            public = (
                ", ".join(key for key in vars(value) if not key.startswith("_")) if hasattr(value, "__dict__") else ""
            )
            raise InputError(f"{argument}: {place} has no {name!r}. It has: {public or 'nothing public'}.")
        value = getattr(value, part)
    return value


def _module(place: str, argument: str) -> ModuleType:
    try:
        return _from_file(Path(place)) if place.endswith(".py") else _from_name(place)
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"{argument}: there is no file {place}. {_FORM}") from error
    except ModuleNotFoundError as error:
        if error.name and (place == error.name or place.startswith(f"{error.name}.")):
            raise InputError(f"{argument}: there is no module {place!r} to import. {_FORM}") from error
        raise InputError(f"{argument}: {place} needs {error.name}, which is not installed here.") from error
    except (Exception, SystemExit) as error:
        raise InputError(
            f"{argument}: {place} raised {type(error).__name__} when it was imported{_where(error, place)}: "
            f"{sentence(error)} Run it by itself to see more, or give --traceback."
        ) from error


def _from_file(path: Path) -> ModuleType:
    """Run a script once and return it as a module; its imports work as for ``python script.py``."""
    place = path.resolve(strict=True)
    if not place.is_file():
        raise InputError(f"{path} is not a file. {_FORM}")
    for module in tuple(sys.modules.values()):
        if getattr(module, "__prepbench_script__", None) == place:
            return module
    sys.path.insert(0, str(place.parent))
    # one that is loaded already keeps its name: a script may be called like a package that it imports
    name = place.stem if place.stem not in sys.modules else f"{place.stem}_script"
    spec = importlib.util.spec_from_file_location(name, place)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} cannot be imported. {_FORM}")
    module = importlib.util.module_from_spec(spec)
    module.__dict__["__prepbench_script__"] = place
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _from_name(name: str) -> ModuleType:
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    return importlib.import_module(name)


def _called(function: Callable[..., Any], reference: str, argument: str) -> Any:
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise InputError(
            f"{argument} {reference} is called without arguments, and it cannot be: {sentence(error)} Name a function "
            "without required arguments that returns it."
        ) from error
    except ValueError:
        pass  # built in, without a signature
    try:
        return function()
    except (Exception, SystemExit) as error:
        raise InputError(
            f"{argument} {reference} raised {type(error).__name__}{_where(error, reference.rpartition(':')[0])}: "
            f"{sentence(error)}"
        ) from error


def _where(error: BaseException, place: str) -> str:
    """Return the last line of the user's script on the way to an error."""
    own, step, found = Path(place).name, error.__traceback__, ""
    while step is not None:
        if Path(step.tb_frame.f_code.co_filename).name == own:
            found = f" at line {step.tb_lineno}"
        step = step.tb_next
    return found
