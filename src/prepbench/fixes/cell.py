"""A notebook cell with the changed classes and functions of a model, and the lines that install them."""

from __future__ import annotations

import ast
import builtins
import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import libcst as cst
import torch

from prepbench.fixes import syntax
from prepbench.fixes.site import Function, Part
from prepbench.fixes.syntax import Expression
from prepbench.objects.parts import (
    PLAIN,
    attributes,
    cell_contents,
    data_parts,
    functions_in,
    is_user_file,
)
from prepbench.objects.parts import (
    Part as ValuePart,
)
from prepbench.objects.parts import (
    expression as expression_of,
)
from prepbench.running.source_lines import CodePath

_LIKE = '''def like(old, new):
    """The function ``new`` with the globals, variables and defaults of ``old``."""
    cells = dict(zip(old.__code__.co_freevars, old.__closure__ or ()))
    closure = tuple(cells[name] for name in new.__code__.co_freevars)
    made = types.FunctionType(new.__code__, old.__globals__, old.__name__, old.__defaults__, closure)
    made.__kwdefaults__ = old.__kwdefaults__
    return made

'''


def cell_of(model: torch.nn.Module, sources: Iterable[syntax.SourceText]) -> str:
    """Return Python source that changes a model called ``model``; it runs on its own.

    Classes get subclasses with the changed methods, and functions are defined anew; the lines below install them
    where the model and its source files look them up.
    """
    changed = [source for source in sources if source.changes()]
    if not changed:
        return "# nothing was changed\n"
    return _Cell(model, changed).text()


class _Cell:
    """The changes of all files as one cell."""

    def __init__(self, model: torch.nn.Module, sources: list[syntax.SourceText]) -> None:
        self._codes: dict[tuple[str, types.CodeType], ChangedCode] = {}
        for source in sources:
            self._codes |= changed_codes(source)
        self._places = places_of(model)
        self._files = files_of(model, {source.file for source in sources})
        self._names = CellNames(self._files)
        self._live = {code for value in self._values() for code in self._changed_in(value)}
        self._made: dict[type, str] = {}
        self._functions: dict[int, str] = {}

    def text(self) -> str:
        """Return imports, definitions, and the lines that install them."""
        body = [*self._plain_functions(), *self._classes(), *self._held()]
        if any(re.search(r"\blike\(", part) for part in body):
            body.insert(0, _LIKE)
            self._names.library("types")
        return "\n".join([*self._names.imports(), "", *body]) + "\n"

    def _values(self) -> Iterator[Any]:
        """Yield all functions, and all members of classes, that the model can reach."""
        for place in self._places:
            yield place.value
            for kind in type(place.value).__mro__:
                yield from vars(kind).values()
        for names in self._files.values():
            for value in names.values():
                yield from vars(value).values() if isinstance(value, type) else [value]

    def _changed_in(self, value: Any) -> Iterator[tuple[str, types.CodeType]]:
        for function in functions_in(value):
            if key_of(function.__code__) in self._codes:
                yield key_of(function.__code__)

    def _wanted(self, function: types.FunctionType) -> ChangedCode | None:
        """Return the change of a function; None if only its inner functions from other places differ."""
        changed = self._codes.get(key_of(function.__code__))
        if changed is None or changed.is_own:
            return changed
        inner = [code for code, other in self._codes.items() if other.is_inside(changed)]
        return None if inner and all(code in self._live for code in inner) else changed

    # -- functions of files --------------------------------------------------------------------------------------------

    def _plain_functions(self) -> Iterator[str]:
        """Yield functions that files have by name, and the lines that install them there."""
        for file, names in self._files.items():
            for name, value in list(names.items()):
                for function in functions_in(value):
                    changed = self._wanted(function)
                    is_plain = changed is not None and changed.is_plain(file, name)
                    if changed is None or not is_plain or id(value) in self._functions:
                        continue
                    own = self._names.taken(name, value)
                    self._functions[id(value)] = own
                    node = changed.function.with_changes(name=cst.Name(own))
                    text = defined(self._names.applied(node, function))
                    if changed.makes_defaults and function is value:
                        where = self._names.where(name, names)
                        text = f"defaults = {where}.__defaults__\n\n\n{text}\n\n\n{own}.__defaults__ = defaults"
                    yield text + "\n"
                    yield from self._names.assigned(value, own)

    # -- classes -------------------------------------------------------------------------------------------------------

    def _classes(self) -> Iterator[str]:
        """Yield a subclass for each class with changed methods, and the lines that switch objects to it."""
        wheres: dict[type, Place] = {}
        for place in self._places:
            wheres.setdefault(type(place.value), place)
        for kind, place in wheres.items():
            yield from self._subclass(kind, f"type({place.where})")
        modules = [kind for kind in wheres if kind in self._made and issubclass(kind, torch.nn.Module)]
        if modules:
            table = ", ".join(f"{self._names.of_class(kind)}: {self._made[kind]}" for kind in modules)
            yield f"fixed = {{{table}}}"
            yield "for module in model.modules():\n    module.__class__ = fixed.get(type(module), type(module))\n"
        for place in self._places:
            made = self._made.get(type(place.value))
            if made is not None and not place.is_registered:
                yield f'object.__setattr__({place.where}, "__class__", {made})\n'
        for kind in self._autograd_functions():
            yield from self._subclass(kind, "")
            if kind in self._made:
                yield from self._names.assigned(kind, self._made[kind])

    def _subclass(self, kind: type, where: str) -> Iterator[str]:
        if kind in self._made or kind is object:
            return
        for index, base in enumerate(kind.__mro__[1:], 1):
            if base in kind.__bases__:
                yield from self._subclass(base, f"{where}.__mro__[{index}]")
        members = self._members(kind)
        bases = [self._made[base] for base in kind.__bases__ if base in self._made]
        if not members and not bases:
            return
        made = self._made[kind] = self._names.fresh(f"Fixed{kind.__name__.lstrip('_')}")
        name, alias = self._names.class_name(kind, where)
        lines: list[str] = []
        free: dict[str, str] = {}
        for member, function, changed in members:
            node = method(changed.function, kind, name, member, vars(kind)[member], function)
            lines.append(indented(defined(self._names.applied(node, function))))
            free |= dict.fromkeys(variables_of(changed.function, function), f"{name}.{member}")
        text = f"class {made}({', '.join([name, *bases])}):\n" + ("\n\n".join(lines) or "    pass")
        for member, function, changed in members:
            if changed.makes_defaults and function is vars(kind)[member]:
                text += f"\n\n\n{made}.{member}.__defaults__ = {name}.{member}.__defaults__"
        yield alias
        yield f"{self._with_variables(made, text, free)}\n\n"

    def _with_variables(self, made: str, text: str, free: dict[str, str]) -> str:
        """Return a class whose methods read variables of an enclosing function."""
        if not free:
            return text
        self._names.library("inspect")
        values = [
            f'{name}=inspect.getclosurevars(inspect.unwrap({where})).nonlocals["{name}"]'
            for name, where in free.items()
        ]
        body = indented(f"{text}\n\nreturn {made}")
        return f"def changed({', '.join(free)}):\n{body}\n\n\n{made} = changed({', '.join(values)})"

    def _members(self, kind: type) -> list[tuple[str, types.FunctionType, ChangedCode]]:
        """Return the changed functions of a class, with the names of the members that they belong to."""
        found = []
        for name, member in vars(kind).items():
            for function in functions_in(member):
                changed = self._wanted(function)
                if changed is not None and changed.is_function:
                    found.append((name, function, changed))
        return found

    def _autograd_functions(self) -> list[type]:
        values = [value for names in self._files.values() for value in names.values() if isinstance(value, type)]
        return [kind for kind in dict.fromkeys(values) if issubclass(kind, torch.autograd.Function)]

    # -- functions that objects hold -----------------------------------------------------------------------------------

    def _held(self) -> Iterator[str]:
        """Yield functions that the model holds: lambdas, bound methods, and closures."""
        for place in self._places:
            definitions: list[str] = []
            image = self._image(place.value, place.where, definitions)
            if image:
                yield "".join(definitions) + place.set_to(image) + "\n"
        for names in self._files.values():
            for name, value in list(names.items()):
                is_function = isinstance(value, types.FunctionType) and id(value) not in self._functions
                if not is_function or self._wanted(value) is None:
                    continue
                definitions = []
                where = self._names.read(name, value, names)
                image = self._image(value, where, definitions)
                if image:
                    yield "".join(definitions) + "\n".join(self._names.assigned(value, image))

    def _image(self, value: Any, where: str, definitions: list[str]) -> str:
        """Return an expression for the replacement of a value; "" if the value stays."""
        if id(value) in self._functions:
            return self._functions[id(value)]
        if isinstance(value, types.MethodType):
            is_found = getattr(value.__self__, value.__func__.__name__, None) == value
            if is_found and any(self._changed_in(value.__func__)):
                return f"{where}.__self__.{value.__func__.__name__}"
            image = "" if is_found else self._image(value.__func__, f"{where}.__func__", definitions)
            return f"{self._names.library('types')}.MethodType({image}, {where}.__self__)" if image else ""
        if hasattr(value, "func") and hasattr(value, "keywords"):
            image = self._image(value.func, f"{where}.func", definitions)
            library = self._names.library("functools")
            return f"{library}.partial({image}, *{where}.args, **{where}.keywords)" if image else ""
        if not isinstance(value, types.FunctionType):
            return ""
        changed = self._wanted(value)
        return self._function(changed, value, where, definitions) if changed is not None else ""

    def _function(self, changed: ChangedCode, value: types.FunctionType, where: str, definitions: list[str]) -> str:
        node, free = changed.without_defaults(), value.__code__.co_freevars
        if "torch" in syntax.read_names(node) and "torch" not in value.__globals__:
            self._names.library("torch")
            definitions.append(f'{where}.__globals__["torch"] = torch\n\n')
        if isinstance(node, cst.Lambda):
            new = syntax.text_of(node)
        else:
            new = self._names.fresh(node.name.value)
            definition = defined(node.with_changes(name=cst.Name(new), decorators=()))
            definitions.append("" if free else f"{definition}\n\n\n")
        if free:
            name = self._names.fresh("changed")
            inner = f"return {new}" if isinstance(node, cst.Lambda) else f"{definition}\n\nreturn {new}"
            definitions.append(f"def {name}({', '.join(free)}):\n{indented(inner)}\n\n\n")
            new = f"{name}({', '.join('None' for _ in free)})"
        return f"like({where}, {new})"


# The names that a cell uses: imports, names of its own, and where a file's changed functions are put.


Names = dict[str, Any]
_OWN = ("model", "module", "fixed", "like", "changed")


def files_of(model: torch.nn.Module, files: Iterable[str]) -> dict[str, Names]:
    """Return the global names of files, as the functions of a model see them."""
    wanted = set(files)
    found: dict[str, Names] = {}
    queue: list[Any] = []
    for place in places_of(model):
        queue += [place.value, *(member for kind in type(place.value).__mro__ for member in vars(kind).values())]
    seen: set[int] = set()
    while queue and wanted - set(found):
        for function in functions_in(queue.pop()):
            names = function.__globals__
            if is_user_file(function.__code__.co_filename):
                if function.__code__.co_filename in wanted:
                    found.setdefault(function.__code__.co_filename, names)
                if id(names) not in seen:
                    seen.add(id(names))
                    queue += [value for value in names.values() if isinstance(value, types.FunctionType)]
                    queue += [
                        each for value in names.values() if isinstance(value, type) for each in vars(value).values()
                    ]
    return found


class CellNames:
    """Maps every value that a cell reads to one name, and every name to one value."""

    def __init__(self, files: Mapping[str, Names]) -> None:
        self._files = files
        self._used: dict[str, Any] = dict.fromkeys(_OWN)
        self._imports: dict[str, str] = {}
        self._classes: dict[type, str] = {}

    def imports(self) -> list[str]:
        """Return the import lines."""
        lines = list(self._imports.values())
        plain = [line for line in lines if line.startswith("import ")]
        return [*sorted(set(plain)), *dict.fromkeys(line for line in lines if line not in plain)]

    def fresh(self, base: str) -> str:
        """Return an unused name."""
        names = [base, *(f"{base}_{number}" for number in range(2, 1000))]
        is_taken = [name in self._used or any(name in names for names in self._files.values()) for name in names[:50]]
        chosen = next((name for name, taken in zip(names, is_taken, strict=False) if not taken), names[-1])
        self._used[chosen] = object()
        return chosen

    def library(self, name: str) -> str:
        """Return the name of a library that the cell imports."""
        self._imports[name] = f"import {name}"
        self._used.setdefault(name, sys.modules.get(name))
        return name

    def taken(self, name: str, value: Any) -> str:
        """Return the name of a function that the cell defines: its own, unless another file's has it."""
        if self._used.get(name, value) is not value:
            name = self.fresh(name)
        self._used[name] = value
        return name

    # -- what files have -----------------------------------------------------------------------------------------------

    def read(self, name: str, value: Any, names: Names) -> str:
        """Return the name by which the cell reads a global of a file; it is imported where the cell lacks it."""
        if _is_main(names):
            return name
        if self._used.get(name, value) is value:
            own = name
        else:
            own = next(
                n for n in (f"{name}_{number}" for number in range(2, 1000)) if self._used.get(n, value) is value
            )
        if own not in self._used:
            self._used[own] = value
            self._imports[own] = _import_line(name, own, value, names)
        return own

    def where(self, name: str, names: Names) -> str:
        """Return the expression for a file's current value of a name."""
        if _is_main(names):
            return name
        self.library("sys")
        return f"sys.modules[{names['__name__']!r}].{name}"

    def applied(self, node: Any, function: types.FunctionType) -> Any:
        """Return a definition with the cell's names for the values that it reads."""
        names = function.__globals__
        node = quoted_annotations(node, names, set(dir(builtins)) | set(function.__code__.co_freevars))
        used = sorted(syntax.read_names(node) - set(_local_names(node)))
        found = {name: self.read(name, names[name], names) for name in used if name in names}
        if "torch" in used and "torch" not in names:
            self.library("torch")
        return syntax.renamed(node, {name: own for name, own in found.items() if own != name})

    def of_class(self, kind: type) -> str:
        """Return the expression for a class that was passed to :meth:`class_name`."""
        return self._classes[kind]

    def class_name(self, kind: type, where: str) -> tuple[str, str]:
        """Return the expression for a class, ``where`` if it has no name, and the line that it requires."""
        names = self._globals_of(kind)
        first, *rest = kind.__qualname__.split(".")
        value = names.get(first) if names is not None else None
        found = value
        for part in rest:
            found = getattr(found, part, None)
        if names is not None and found is kind:
            self._classes[kind] = ".".join([self.read(first, value, names), *rest])
            return self._classes[kind], ""
        name = self._classes[kind] = self.fresh(f"Original{kind.__name__.lstrip('_')}")
        return name, f"{name} = {where}\n\n"

    def _globals_of(self, kind: type) -> Names | None:
        own = [names for names in self._files.values() if names.get("__name__") == kind.__module__]
        module = sys.modules.get(kind.__module__)
        return own[0] if own else vars(module) if module is not None else None

    def assigned(self, value: Any, image: str) -> list[str]:
        """Return the lines that replace a value in all files that use it."""
        lines = []
        for names in _tables(self._files.values()):
            for name in [name for name, held in list(names.items()) if held is value]:
                where = self.where(name, names)
                lines += [f"{where} = {image}\n"] if where != image else []
        return lines


def _tables(files: Iterable[Names]) -> list[Names]:
    """Return the global names of all modules of the user."""
    found = {id(names): names for names in files}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(module, types.ModuleType) and isinstance(file, str) and is_user_file(file):
            found[id(vars(module))] = vars(module)
    return list(found.values())


def _is_main(names: Names) -> bool:
    """Return whether a cell has these names already, as for ``__main__`` and for modules that cannot be imported."""
    name = names.get("__name__", "")
    return name == "__main__" or vars(sys.modules.get(name, builtins)) is not names


def _import_line(name: str, own: str, value: Any, names: Names) -> str:
    alias = "" if own == name else f" as {own}"
    if isinstance(value, types.ModuleType):
        full = value.__name__
        if full == own:
            return f"import {full}"
        parent, _, last = full.rpartition(".")
        if parent and last == own:
            return f"from {parent} import {last}"
        return f"import {full} as {own}"
    return f"from {names['__name__']} import {name}{alias}"


def _local_names(node: Any) -> set[str]:
    """Return the parameters and assigned names of a function."""
    if not isinstance(node, cst.FunctionDef | cst.Lambda):
        return set()
    stored = set(syntax.stored_names(node.body)) if isinstance(node, cst.FunctionDef) else set()
    return stored | {part.name.value for part in syntax.walk(node.params) if isinstance(part, cst.Param)}


# -- places -----------------------------------------------------------------------------------------------------------

_TABLES = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
_MOST_PLACES = 20_000


@dataclass(frozen=True)
class Place:
    """A function or object that a model holds.

    Attributes:
        where: the expression that reads it.
        value: the function or object.
        is_registered: whether it is in ``model.modules()``.
        owner: the expression of a tuple that it is a part of; "" for others.
        index: which part.
    """

    where: str
    value: Any
    is_registered: bool = False
    owner: str = ""
    index: int = 0

    def set_to(self, image: str) -> str:
        """Return the line that assigns a replacement."""
        if not self.owner:
            return f"{self.where} = {image}"
        return f"{self.owner} = ({self.owner}[:{self.index}] + ({image},) + {self.owner}[{self.index + 1}:])"


def places_of(model: torch.nn.Module) -> list[Place]:
    """Return the functions and objects of classes that a model called ``model`` holds, modules first."""
    modules = [Place(f"model.get_submodule({fqn!r})" if fqn else "model", m, True) for fqn, m in model.named_modules()]
    found, seen = list(modules), {id(place.value) for place in modules}
    waiting = [part for place in modules for part in _inside(place)][::-1]
    while waiting and len(found) < _MOST_PLACES:
        place = waiting.pop()
        value, is_known = place.value, id(place.value) in seen
        is_code = _is_code(value)
        if isinstance(value, (*PLAIN, torch.Tensor, type, types.ModuleType)) or (is_known and not is_code):
            continue
        # several places may hold one function, and all of them are to be changed
        if is_code or (hasattr(value, "__dict__") and not isinstance(value, dict)):
            found.append(place)
        if not is_known:
            waiting += reversed(_inside(place))
        if not isinstance(value, types.MethodType):  # each access makes a new one
            seen.add(id(value))
    return found


def _is_code(value: Any) -> bool:
    home = type(value).__module__
    return isinstance(value, types.FunctionType | types.MethodType) or home in ("functools", "_functools")


def _inside(place: Place) -> list[Place]:
    value, where = place.value, place.where
    if isinstance(value, dict) and where.endswith("_hooks"):  # their numbers differ from run to run
        return [Place(f"{where}[list({where})[{number}]]", part) for number, part in enumerate(list(value.values()))]
    if type(value) is tuple:
        return [Place(f"{where}[{number}]", part, False, where, number) for number, part in enumerate(value)]
    if isinstance(value, types.MethodType):
        found: list[ValuePart] = [(("attr", "__self__"), value.__self__)]
    elif isinstance(value, types.FunctionType):
        found = [(("cell", number), part) for number, part in cell_contents(value).items()]
    elif isinstance(value, torch.nn.Module):
        found = [(("attr", name), part) for name, part in attributes(value).items() if name not in _TABLES]
    else:
        found = [] if _is_code(value) else data_parts(value)
    return [Place(expression_of(where, (step,)), part) for step, part in found]


# The syntax of changed functions, in a form for a cell.


@dataclass(frozen=True)
class ChangedCode:
    """A function whose text changed."""

    source: syntax.SourceText
    path: CodePath
    function: Any
    is_own: bool

    @property
    def is_function(self) -> bool:
        """Return whether it is a ``def``."""
        return isinstance(self.function, cst.FunctionDef)

    def is_plain(self, file: str, name: str) -> bool:
        """Return whether it is a function that a file has by this name."""
        return self.is_function and self.source.file == file and self.path == ((name, 0),)

    def is_inside(self, other: ChangedCode) -> bool:
        """Return whether it is defined inside another function."""
        own, outer = self.path, other.path
        return self.source is other.source and len(own) > len(outer) and own[: len(outer)] == outer

    @property
    def makes_defaults(self) -> bool:
        """Return whether its defaults are evaluated at the definition, so that calls may have changed them."""
        makes = (cst.List, cst.Dict, cst.Set, cst.Call, cst.ListComp, cst.DictComp, cst.SetComp)
        defaults = [part.default for part in syntax.walk(self.function.params) if isinstance(part, cst.Param)]
        return any(isinstance(node, makes) for each in defaults if each is not None for node in syntax.walk(each))

    def without_defaults(self) -> Any:
        """Return the syntax with ``None`` for defaults that can be evaluated only at the original definition."""
        found: dict[cst.CSTNode, Any] = {
            part: part.with_changes(default=cst.Name("None"), annotation=None)
            for part in syntax.walk(self.function.params)
            if isinstance(part, cst.Param) and part.default is not None and not _is_literal(part.default)
        }
        return syntax.replaced(self.function, found)


def key_of(code: types.CodeType) -> tuple[str, types.CodeType]:
    """Return the identity of a code object: two files may hold codes that compare equal."""
    return code.co_filename, code


def changed_codes(source: syntax.SourceText) -> dict[tuple[str, types.CodeType], ChangedCode]:
    """Return the changed functions of a file, by the code of the user's functions."""
    old, found = source.original_codes(), {}
    for path, code in source.codes().items():
        before = old.get(path)
        if before is None or syntax.equal_but_for_lines(code, before):
            continue
        node = _node_of(source, code)
        if node is not None:
            found[key_of(before)] = ChangedCode(
                source, path, node, not syntax.equal_but_for_lines(_bare(code), _bare(before))
            )
    return found


def _bare(code: types.CodeType) -> types.CodeType:
    """Return the code without its inner functions."""
    return code.replace(co_consts=tuple(None if isinstance(c, types.CodeType) else c for c in code.co_consts))


def _node_of(source: syntax.SourceText, code: types.CodeType) -> Function | None:
    """Return the syntax of a function's code; None for a class's."""
    part = Part.at(source, code.co_firstlineno)
    for node in syntax.walk(part.module):
        if not isinstance(node, cst.FunctionDef | cst.Lambda) or node not in part.positions:
            continue
        name = "<lambda>" if isinstance(node, cst.Lambda) else node.name.value
        first = min([part.place(node)[0], *(part.place(each)[0] for each in getattr(node, "decorators", ()))])
        if (code.co_name, code.co_firstlineno) == (name, first) and _is_lambda_at(code, node, part, source):
            return node
    return None


def _is_lambda_at(code: types.CodeType, node: Function, part: Part, source: syntax.SourceText) -> bool:
    """Return whether a lambda's body is the one that the code returns: one line may hold several."""
    if isinstance(node, cst.FunctionDef):
        return True
    places = [(line, first) for line, _, first, last in code.co_positions() if line and first is not None and last]
    if not places:
        return True
    line, column = places[-1]
    text = source.text.split("\n")[line - 1]
    own = len(text.encode()[:column].decode(errors="ignore"))
    return part.place(node)[:2] <= (line, own) < part.place(node)[2:]


def variables_of(node: cst.FunctionDef, function: types.FunctionType) -> list[str]:
    """Return the variables of an enclosing function that a method reads."""
    return [name for name in function.__code__.co_freevars if name != "__class__" and name in syntax.read_names(node)]


def method(
    node: cst.FunctionDef, kind: type, name: str, member: str, value: Any, function: types.FunctionType
) -> cst.FunctionDef:
    """Return a method with the same meaning in a subclass.

    ``super()`` and private names name their class, names of the class in the header are qualified by it, and parts
    of properties keep the other parts.
    """
    first = node.params.params[0].name.value if node.params.params else "self"
    changed: Any = node.visit(_OutOfClass(kind, name, first))
    header = _Header(kind, name, function.__globals__)
    parts: dict[str, Any] = {
        "decorators": [header.read(each) for each in changed.decorators],
        "params": header.read(changed.params),
        "returns": header.read(changed.returns) if changed.returns is not None else None,
    }
    if isinstance(value, property):
        accessor = {id(value.fset): "setter", id(value.fdel): "deleter"}.get(id(function), "getter")
        parts["decorators"] = [cst.Decorator(syntax.expression(f"{name}.{member}.{accessor}"))]
    made: cst.FunctionDef = changed.with_changes(**parts)
    return made


class _OutOfClass(cst.CSTTransformer):
    """Qualifies ``super()`` and private names by their class."""

    def __init__(self, kind: type, name: str, first: str) -> None:
        super().__init__()
        self._kind, self._name, self._first = kind, name, first

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> Expression:
        if syntax.text_of(updated_node.func) == "super" and not updated_node.args:
            return syntax.expression(f"super({self._name}, {self._first})")
        return updated_node

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> Any:
        name = updated_node.value
        if name == "__class__":
            return cst.parse_expression(self._name)
        if name.startswith("__") and not name.endswith("__"):
            return updated_node.with_changes(value=f"_{self._kind.__name__.lstrip('_')}{name}")
        return updated_node

    def visit_Attribute_attr(self, node: cst.Attribute) -> None:
        self._held = self._name
        self._name = "__class__"  # an attribute of this name stays

    def leave_Attribute_attr(self, node: cst.Attribute) -> None:
        self._name = self._held


class _Header(cst.CSTTransformer):
    """Rewrites decorators, defaults and annotations for outside of the class: qualifies names, quotes unknown ones."""

    def __init__(self, kind: type, name: str, names: dict[str, Any]) -> None:
        super().__init__()
        self._kind, self._name, self._globals = kind, name, names

    def read(self, node: Any) -> Any:
        return node.visit(self)

    def visit_Param_name(self, node: cst.Param) -> None:
        self._held, self._kind = self._kind, object

    def leave_Param_name(self, node: cst.Param) -> None:
        self._kind = self._held

    def visit_Attribute_attr(self, node: cst.Attribute) -> None:
        self._held, self._kind = self._kind, object

    def leave_Attribute_attr(self, node: cst.Attribute) -> None:
        self._kind = self._held

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> Any:
        name = updated_node.value
        if name in vars(self._kind) and name not in self._globals and not name.startswith("__"):
            return syntax.expression(f"{self._name}.{name}")
        return updated_node

    def visit_Lambda(self, node: cst.Lambda) -> bool:
        return False


def defined(node: Any) -> str:
    """Return a definition at the left margin."""
    if isinstance(node, cst.FunctionDef):
        node = node.with_changes(leading_lines=())
    return cst.Module([]).code_for_node(node).rstrip()


def indented(text: str) -> str:
    """Return indented statements; lines inside of a string literal keep their indentation."""
    inside = _lines_in_texts(text)
    return "\n".join(
        f"    {line}" if line.strip() and number not in inside else line
        for number, line in enumerate(text.split("\n"), 1)
    )


def _lines_in_texts(text: str) -> set[int]:
    """Return the lines, from 1, that begin inside of a string literal."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant | ast.JoinedStr) and node.end_lineno is not None:
            found.update(range(node.lineno + 1, node.end_lineno + 1))
    return found


def quoted_annotations(node: Any, names: dict[str, Any], known: set[str]) -> Any:
    """Return a definition whose annotations are quoted where they use names that only a type checker knows."""
    found: dict[cst.CSTNode, Any] = {}
    for part in syntax.walk(node.params) if hasattr(node, "params") else ():
        if isinstance(part, cst.Annotation):
            found[part] = _quoted(part, names, known)
    if getattr(node, "returns", None) is not None:
        found[node.returns] = _quoted(node.returns, names, known)
    return syntax.replaced(node, found)


def _quoted(part: cst.Annotation, names: dict[str, Any], known: set[str]) -> cst.Annotation:
    unknown = {name for name in syntax.read_names(part.annotation) if name not in names and name not in known}
    text = syntax.text_of(part.annotation)
    return part if not unknown else part.with_changes(annotation=cst.SimpleString(repr(text)))


def _is_literal(node: Expression) -> bool:
    if isinstance(node, cst.UnaryOperation):
        return _is_literal(node.expression)
    return isinstance(node, cst.Integer | cst.Float | cst.SimpleString) or syntax.text_of(node) in (
        "None",
        "True",
        "False",
    )
