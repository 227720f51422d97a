"""The reference: a page for each public name from its docstring, settings as tables, and what leads there."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import prepbench as pb
from prepbench.errors import PrepbenchError
from prepbench.settings.validation import Settings
from prepbench.targets import TARGETS

GROUPS = {
    "Capture": "recursive_trace RobustTracer GraphCollection capture Captured Axis DynamicAxes Sample record_inputs "
    "check_traceability",
    "Fix and prepare": "fix prepare_model PreparationReport validate_model prune",
    "Compile": "compile_model CompiledModel load_compiled KeptStages",
    "Settings": "QuantizationSettings LayerQuantizationSettings PruningSettings LayerPruningSettings CompileOptions "
    f"DeploymentSettings {' '.join(sorted(target.settings_type.__name__ for target in TARGETS))} "
    "LoraSettings explain_settings",
    "Train back": "trainable TrainableModel recover Recovery",
    "Compare and measure": "compare Comparison metrics Generation profile Profile sensitivity Sensitivity "
    "inspect_layer LayerInspection",
    "Search": "search SearchResult Budget sweep SweepResult Results load_results",
    "Look": "diagram Bench demo static",
    "Jobs and errors": "Job Progress Cancelled show_progress PrepbenchError PrepbenchWarning",
}
"""Public names by what they are for; a test holds them to ``prepbench.__all__``."""


def stage(folder: Path) -> None:
    """Write the page of each public name, and the page that lists them."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = ["# Reference\n\nEvery public name, `import prepbench as pb`.\n"]
    pages = []
    for group, names in GROUPS.items():
        rows = "\n".join(
            f"| [`{name}`]({page_name(name)}.rst) | {_markdown(summary(name))} |" for name in names.split()
        )
        parts.append(f"## {group}\n\n| name | what it is |\n|---|---|\n{rows}\n")
        pages += names.split()
    toc = "\n".join(page_name(name) for name in pages)
    parts.append(f"```{{toctree}}\n:hidden:\n\n{toc}\n```\n")
    (folder / "index.md").write_text("\n".join(parts))
    for name in pages:
        (folder / f"{page_name(name)}.rst").write_text(page(name))


def page_name(name: str) -> str:
    """The file of a name, without its ending; names that differ in case only would be one file on some disks."""
    others = [other for other in pb.__all__ if other.lower() == name.lower() and other != name]
    return f"{name}-class" if others and name[0].isupper() else name


def documented(name: str) -> Any:
    """What a public name stands for; the function of a package that is one, too."""
    value = getattr(pb, name)
    return value._function() if hasattr(value, "_call_home") else value


def summary(name: str) -> str:
    """The first sentence of the docstring, on one line."""
    text = inspect.getdoc(documented(name)) or ""
    first = " ".join(text.partition("\n\n")[0].split())
    return re.split(r"(?<=[.])\s", first)[0]


def _markdown(text: str) -> str:
    text = re.sub(r":\w+:`~?([\w.]+\.)?(\w+)`", r"`\2`", text)
    return text.replace("``", "`").replace("|", "\\|")


def page(name: str) -> str:
    """The page of a public name, in reStructuredText."""
    value = documented(name)
    head = f"{name}\n{'=' * len(name)}\n\n.. currentmodule:: prepbench\n\n"
    if isinstance(value, ModuleType):
        return head + _module(value)
    if inspect.isclass(value) and issubclass(value, Settings):
        return head + _settings(value)
    if inspect.isclass(value):
        return head + f".. autoclass:: {name}\n   :members:\n   :inherited-members: {_foreign(value)}\n"
    return head + f".. autofunction:: {name}\n"


def _foreign(value: type) -> str:
    """The bases whose methods are not ours, for ``:inherited-members:``."""
    names = [base.__name__ for base in value.__mro__ if not base.__module__.startswith("prepbench")]
    return ", ".join(dict.fromkeys(names))


def _module(value: ModuleType) -> str:
    """A module of functions: those that it, or a module beside it, defines for callers."""
    package = value.__name__.rpartition(".")[0]
    functions = [
        name
        for name, member in vars(value).items()
        if inspect.isfunction(member)
        and member.__module__.startswith(package)
        and name[0] != "_"
        and inspect.signature(member).return_annotation in ("float", "Metric", "Callable[[Any, Any], float]")
    ]
    parts = "".join(f".. autofunction:: {value.__name__}.{name}\n\n" for name in functions)
    return f"{inspect.getdoc(value)}\n\n{parts}"


def _settings(value: type) -> str:
    """Settings with a row for each field: default, what is allowed, what it means."""
    text = inspect.getdoc(value) or ""
    before, meanings, after = split_attributes(text)
    parts = [f".. py:class:: {value.__name__}(*, ...)\n", _indented(before)]
    rows = []
    for field in dataclasses.fields(value):  # type: ignore[arg-type]
        meaning = re.sub(r"\s*Default (``[^`]*``|[\w.]+)\.$", "", meanings.get(field.name, ""))
        cells = (f"``{field.name}``", f"``{field.default!r}``", allowed(value, field.name), meaning)
        rows.append("   * - " + "\n     - ".join(_indented(cell, 7).lstrip() for cell in cells))
    if rows:
        table = ".. list-table::\n   :header-rows: 1\n   :widths: 26 10 22 42\n   :class: settings\n\n"
        table += "   * - field\n     - default\n     - allowed\n     - what it does\n" + "\n".join(rows)
        parts.append(_indented(table))
    parts += [_indented(_examples(after)), _indented(".. rubric:: Methods\n")]
    for method in _public_methods(value):
        parts.append(_indented(f".. automethod:: {value.__name__}.{method}\n"))
    return "\n\n".join(parts)


def _public_methods(value: type) -> list[str]:
    return [
        name
        for name, member in inspect.getmembers(value)
        if not name.startswith("_") and (inspect.isfunction(member) or inspect.ismethod(member))
    ]


def split_attributes(text: str) -> tuple[str, dict[str, str], str]:
    """What a docstring says before its list of attributes, what each means, and what follows."""
    before, found, rest = text.partition("Attributes:\n")
    if not found:
        before, _, example = text.partition("Example:\n")
        return before, {}, f"Example:\n{example}" if example else ""
    body, _, after = re.sub(r"\n(?=\S)", "\0", rest, count=1).partition("\0")
    meanings = {}
    for match in re.finditer(r"^    (\w+): (.*(?:\n        .*)*)", body, re.MULTILINE):
        meanings[match[1]] = " ".join(match[2].split())
    return before, meanings, after


def _examples(text: str) -> str:
    """The example of a docstring as a block."""
    match = re.search(r"Examples?:\n((?:    .*\n?|\n)*)", text)
    return f".. rubric:: Example\n\n.. code-block:: pycon\n\n{match[1]}" if match else ""


def _indented(text: str, by: int = 3) -> str:
    return "\n".join(f"{' ' * by}{line}" if line.strip() else "" for line in text.splitlines())


def allowed(settings: type, field: str) -> str:
    """What a field takes, in the words of the error that anything else raises; from the code that checks it."""
    try:
        settings(**{field: object()})
    except PrepbenchError as error:
        match = re.search(rf"\b{field} must be (.*?),? got ", str(error), re.DOTALL)
        if match:
            words = match[1] if "None" in match[1] or not _is_optional(settings, field) else f"None, or {match[1]}"
            return re.sub(r"'([^']*)'", r"``'\1'``", words).replace("None", "``None``")
    raise ValueError(f"{settings.__name__}.{field} takes anything, or its error does not say what it takes.")


def _is_optional(settings: type, field: str) -> bool:
    return any(each.name == field and each.default is None for each in dataclasses.fields(settings))
