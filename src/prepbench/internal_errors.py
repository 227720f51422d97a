"""Tell errors of a user's code or data from errors of prepbench itself.

Capture runs the user's code, so nearly every error there is a failure of that code, and is explained as one. The others
must not be: an attribute that a new version of torch removed, a call that it no longer accepts, a name that we
misspelled. One rule tells them apart, by the type and the innermost frames of the traceback:

- An ``AttributeError``, ``TypeError``, ``KeyError``, ``ImportError``, ``NameError`` or ``AssertionError`` that arose in
  a line of prepbench is ours.
- So is one that a library raised about an object of ours: it asks our replacement for something that this lacks, or
  calls it in another way.
- Where prepbench only hands on a call that somebody else wrote, such as an operator that a mode sees, or the model,
  what the call raises is theirs: a call with arguments as they came (``*args``), or of a value that was given.
- What prepbench raises on purpose says itself what is wrong.
"""

from __future__ import annotations

import ast
import dis
import functools
import gc
import itertools
import linecache
import re
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

from prepbench.errors import InternalError, MissingPackageError, PackageVersionError, PrepbenchError, sentence
from prepbench.packages import import_failure, installed, is_absent, untested_remark

P = ParamSpec("P")
R = TypeVar("R")

_MISTAKES = (AttributeError, TypeError, KeyError, ImportError, NameError, AssertionError)
_OWN = str(Path(__file__).parent) + "/"
_PACKAGE = r"/(?:site|dist)-packages/(\w+)"
_STANDARD = sysconfig.get_path("stdlib") + "/"
_LIBRARIES = {
    *("torch", "torchao", "executorch", "openvino", "nncf", "tensorrt", "peft", "numpy", "scipy", "safetensors"),
    *("onnx", "onnxscript", "onnx_ir", "onnxruntime", "dask", "distributed", "psutil", "tqdm", "libcst"),
    *("pandas", "plotly", "graphviz", "anywidget", "ipywidgets", "traitlets"),
}
"""Packages that prepbench calls by itself. Others, such as one that holds the model, are the user's."""


def raise_if_internal(error: BaseException, *, of_libraries: bool = False) -> None:
    """Raise an :class:`InternalError` in place of ``error`` if it is not the user's; else do nothing.

    Raises:
        InternalError: the error is prepbench's own.
        MissingPackageError: a package that prepbench imports is not there, or is and raises.
        PackageVersionError: torch or another package lacks something, whatever was made of that on its way here.
    """
    found = internal_error(error, of_libraries=of_libraries)
    if found is not None:
        raise found


def internal_error(error: BaseException, *, of_libraries: bool = False) -> PrepbenchError | None:
    """Return the error to raise in place of one that is not the user's; ``None`` for the user's.

    Args:
        error: the caught exception with its traceback.
        of_libraries: also what a library raises because prepbench calls it, with nobody's code in between; for places
            where it does not work on a user's model.

    Example:
        >>> internal_error(ValueError("the user's")) is None
        True
    """
    links = list(_chain(error))
    for link in links:
        if isinstance(link, InternalError | PackageVersionError):
            return link
    for link in itertools.takewhile(lambda link: not isinstance(link, PrepbenchError), links):
        package = _imported_in_vain(link)
        if package or _is_ours(link, of_libraries):
            made = _import_error(package, link) if package else InternalError(_message(link))
            made.__cause__ = error
            return made
    return None


@contextmanager
def internal_errors_told() -> Iterator[None]:
    """Turn prepbench's own errors during the block into :class:`InternalError`.

    For public functions as a whole: deliberate errors are raised inside already, and the rest is either prepbench's
    fault, or an error of the user's code, which propagates unchanged.
    """
    try:
        yield
    except Exception as error:
        raise_if_internal(error, of_libraries=True)
        raise


def tells_internal_errors(function: Callable[P, R]) -> Callable[P, R]:
    """Make a public function turn prepbench's own errors into :class:`InternalError`."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with internal_errors_told():
            return function(*args, **kwargs)

    return call


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes, also where torch hides them."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (link.__context__ if type(link).__module__.startswith("torch") else None)


def _is_ours(error: BaseException, of_libraries: bool) -> bool:
    frames = list(_frames(error))
    while len(frames) > 1 and _belongs_to_a_line(frames[-1].tb_frame.f_code):
        frames.pop()
    if not frames or not isinstance(error, _MISTAKES):
        return False
    innermost = frames[-1]
    if _is_own(innermost):
        if _is_on_purpose(error, innermost):
            return False
        outside = next((frame for frame in reversed(frames) if not _is_own(frame)), None)
        is_called_by_library = outside is not None and _is_of_library(outside)
        return not _hands_on(innermost) or (is_called_by_library and _is_about_own(error))
    if not _is_of_library(innermost):
        return False
    # torch.fx raises anew what generated code raised, without its frames
    if _is_about_own(error) and (isinstance(error, AttributeError) or _operation(innermost) != "RAISE_VARARGS"):
        return True
    outside = next((frame for frame in reversed(frames) if not _is_of_library(frame)), None)
    return of_libraries and outside is not None and _is_own(outside) and not _hands_on(outside)


def _frames(error: BaseException) -> Iterator[types.TracebackType]:
    traceback = error.__traceback__
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _imported_in_vain(error: BaseException) -> str:
    """Return the package that one of our lines imports and that is missing or fails; "" for other lines."""
    frames = list(_frames(error))
    last = max((index for index, frame in enumerate(frames) if _is_own(frame)), default=len(frames))
    if not frames[last:] or not _operation(frames[last]).startswith("IMPORT"):
        return ""
    if isinstance(error, ModuleNotFoundError) and error.name in _LIBRARIES and is_absent(error.name):
        return error.name
    found = (re.search(_PACKAGE, each.tb_frame.f_code.co_filename) for each in frames[last + 1 :])
    return next((each[1] for each in found if each), "")


def _import_error(package: str, error: BaseException) -> MissingPackageError:
    if is_absent(package):
        return MissingPackageError(f"prepbench needs {package}, which is not installed: pip install {package}.")
    return import_failure(package, error, "")


def _is_own(frame: types.TracebackType) -> bool:
    return frame.tb_frame.f_code.co_filename.startswith(_OWN)


def _is_of_library(frame: types.TracebackType) -> bool:
    file = frame.tb_frame.f_code.co_filename
    if file == "<string>":  # generated, as by dataclasses, or the user's
        home = str(frame.tb_frame.f_globals.get("__name__")).partition(".")[0]
        return home in {"prepbench", *_LIBRARIES, *sys.stdlib_module_names} or home.startswith("namedtuple_")
    if file.startswith(_OWN) or file.startswith("<"):
        return file.startswith("<frozen")
    installed_part = re.search(_PACKAGE, file)
    return installed_part[1] in _LIBRARIES if installed_part else file.startswith(_STANDARD)


def _belongs_to_a_line(code: types.CodeType) -> bool:
    """Return whether this code runs for an attribute lookup or an import, so that the outer line raised."""
    if code.co_name == "__getattr__":
        return True
    return code.co_filename.startswith("<frozen importlib") or code.co_filename.endswith("importlib/__init__.py")


def _is_on_purpose(error: BaseException, frame: types.TracebackType) -> bool:
    """Return whether a deliberate ``raise`` with a message raised it; no such raise has the other types."""
    return type(error) is TypeError and _operation(frame) == "RAISE_VARARGS"


def _operation(frame: types.TracebackType) -> str:
    code, at = frame.tb_frame.f_code.co_code, frame.tb_lasti
    while dis.opname[code[at]] == "CACHE":  # where a call of a Python function leaves a frame
        at -= 2
    return dis.opname[code[at]]


def _hands_on(frame: types.TracebackType) -> bool:
    """Return whether one of our lines calls third-party code; true for unknown lines."""
    operation, code = _operation(frame), frame.tb_frame.f_code
    if operation.startswith("CALL_INTRINSIC") or not operation.startswith(("CALL", "PRECALL")):
        return False
    line, last, start, end = next(itertools.islice(code.co_positions(), frame.tb_lasti // 2, None))
    if line is None or last is None or start is None or end is None:
        return True
    lines = [text.encode() for text in linecache.getlines(code.co_filename)[line - 1 : last]]
    if len(lines) != last - line + 1:
        return True
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    try:
        call = ast.parse(b"(" + b"".join(lines) + b")", mode="eval").body
    except SyntaxError:
        return True
    if not isinstance(call, ast.Call):
        return True
    handed_on = [each.value for each in call.args if isinstance(each, ast.Starred)]
    handed_on += [each.value for each in call.keywords if each.arg is None]
    return _is_given(call.func, frame.tb_frame) or any(not isinstance(value, ast.Call) for value in handed_on)


def _is_given(called: ast.expr, frame: types.FrameType) -> bool:
    """Return whether the called value is an argument of the function, or an attribute of one."""
    if isinstance(called, ast.Name):
        code = frame.f_code
        count = code.co_argcount + code.co_kwonlyargcount
        if called.id in (*code.co_varnames[:count], *code.co_freevars):
            return True
        home = getattr(frame.f_locals.get(called.id), "__module__", "") or ""  # others may be imported there
        return called.id in frame.f_locals and home.partition(".")[0] not in {"prepbench", *_LIBRARIES}
    if not isinstance(called, ast.Attribute) or not isinstance(called.value, ast.Name):
        return False
    keeper = frame.f_locals.get(called.value.id)
    return not isinstance(keeper, type | types.ModuleType) and called.attr in getattr(keeper, "__dict__", ())


def _is_about_own(error: BaseException) -> bool:
    """Return whether a library misses something in one of our objects, or calls one of our functions wrongly."""
    if isinstance(error, AttributeError):
        about = getattr(error, "obj", None)
        kind = about if isinstance(about, type) else type(about)
        return kind.__module__.partition(".")[0] == "prepbench"
    called = _WRONG_CALL.match(str(error)) if isinstance(error, TypeError) else None
    return called is not None and any(_could_say(each, called) for each in _own_functions(called["name"]))


_WRONG_CALL = re.compile(
    r"(?P<name>[\w.<>]+)\(\) (?:takes (?:from (?P<least>\d+) to )?(?P<most>\d+) positional arguments? but|"
    r"got (?:an unexpected keyword argument|multiple values for argument) '(?P<keyword>\w+)'|"
    r"got some positional-only arguments|takes no arguments|"
    r"missing \d+ required (?:positional|keyword-only) arguments?: '(?P<missing>\w+)')"
)
"""What Python says of a call whose arguments do not fit, where functions in C say nearly the same."""


def _could_say(code: types.CodeType, called: re.Match[str]) -> bool:
    """Return whether Python says this of a function with this code; another one may have its name."""
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if called["most"] is not None:
        return int(called["most"]) == code.co_argcount and int(called["least"] or 0) <= code.co_argcount
    if called["missing"] is not None:
        return called["missing"] in names
    if called["keyword"] is not None:
        return (called["keyword"] in names) == ("multiple values" in called[0])
    return True


@functools.lru_cache(maxsize=256)
def _own_functions(name: str) -> tuple[types.CodeType, ...]:
    """Return the code of our functions with this qualified name, the only identification in an error."""
    functions = [each for each in gc.get_objects() if type(each) is types.FunctionType and each.__qualname__ == name]
    return tuple(each.__code__ for each in functions if each.__code__.co_filename.startswith(_OWN))


def _message(error: BaseException) -> str:
    frames = list(_frames(error))
    own = next((frame for frame in reversed(frames) if _is_own(frame)), frames[-1])
    code = own.tb_frame.f_code
    place = f"{code.co_filename.removeprefix(_OWN)}:{own.tb_lineno} ({code.co_qualname})"
    involved = (re.search(_PACKAGE, each.tb_frame.f_code.co_filename) for each in frames)
    names = dict.fromkeys(["prepbench", "Python", "torch", *(found[1] for found in involved if found)])
    versions = {name: found for name in names if (found := installed(name))}
    return (
        f"prepbench itself failed at {place}: {type(error).__name__}: {sentence(error)} Your model and your data are "
        f"not the reason. {''.join(map(untested_remark, versions))}Report it to the developers of prepbench with this "
        "text, its traceback and what `python -m prepbench info` prints. Versions: "
        f"{', '.join(' '.join(each) for each in versions.items())}."
    )
