"""Concrete syntax, from which kinds of changes are built, and the text of files as they are and changed."""

from __future__ import annotations

import ast
import difflib
import functools
import itertools
import linecache
import types
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import libcst as cst
from libcst.helpers import parse_template_expression, parse_template_statement

from prepbench.errors import PrepbenchError
from prepbench.running.source_lines import CodePath, cell_flags, file_codes, forget_copy, note_copy, source_line

Statement = cst.BaseStatement
Expression = cst.BaseExpression

_PLAIN = (
    cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.Integer, cst.Float, cst.SimpleString, cst.List, cst.Dict,
    cst.FormattedString,
)  # fmt: skip


def expression(template: str, **parts: Expression | str) -> Expression:
    """Parse an expression from a template such as ``"torch.where({condition}, {yes}, {no})"``."""
    return parse_template_expression(template, **_nodes(template, parts))


def statement(template: str, **parts: Expression | str) -> Any:
    """Parse a statement from a template."""
    return parse_template_statement(template, **_nodes(template, parts))


def _nodes(template: str, parts: Mapping[str, Expression | str]) -> Any:
    """Return the parts that a template names, as syntax."""
    used = {name: part for name, part in parts.items() if f"{{{name}}}" in template}
    return {name: cst.parse_expression(part) if isinstance(part, str) else part for name, part in used.items()}


def atom(node: Expression) -> Expression:
    """Return the expression in parentheses, where it needs them beside an operator or a dot."""
    if isinstance(node, _PLAIN) or node.lpar:
        return node
    return node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def text_of(node: cst.CSTNode) -> str:
    """Return the node as source, without surrounding whitespace and comments."""
    return cst.Module([]).code_for_node(node).strip()


def quoted(text: str) -> cst.SimpleString:
    """Return a text as a literal."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
    return cst.SimpleString(f'"{escaped}"')


def bare(node: Expression) -> Expression:
    """Return the expression without outer parentheses, as an argument of a call."""
    needed = isinstance(node, cst.Tuple | cst.GeneratorExp | cst.NamedExpr | cst.Yield)
    return node if needed or not node.lpar else node.with_changes(lpar=node.lpar[1:], rpar=node.rpar[:-1])


def same(one: cst.CSTNode, other: cst.CSTNode) -> bool:
    """Return whether two nodes have the same source."""
    return text_of(one) == text_of(other)


def body_of(block: cst.BaseSuite) -> list[Statement]:
    """Return the statements of a block, each on a line of its own."""
    if isinstance(block, cst.SimpleStatementSuite):
        return [cst.SimpleStatementLine([small]) for small in block.body]
    return [line for each in block.body if isinstance(each, Statement) for line in _own_lines(each)]


def _own_lines(each: Statement) -> list[Statement]:
    if not isinstance(each, cst.SimpleStatementLine) or len(each.body) < 2:
        return [each]
    lines = [cst.SimpleStatementLine([part.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)]) for part in each.body]
    lines[0] = lines[0].with_changes(leading_lines=each.leading_lines)
    return list(lines)


def block_of(statements: Sequence[Statement]) -> cst.IndentedBlock:
    """Return a block of statements."""
    return cst.IndentedBlock(list(statements) or [cst.SimpleStatementLine([cst.Pass()])])


def orelse_of(node: cst.If) -> list[Statement]:
    """Return the statements of the ``else`` of an ``if``; an ``elif`` is an ``if`` in it."""
    if node.orelse is None:
        return []
    return [node.orelse] if isinstance(node.orelse, cst.If) else body_of(node.orelse.body)


def small_of(line: Statement) -> Any:
    """Return the one small statement of a line; None for others."""
    return line.body[0] if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 else None


def blocks_around(block: cst.BaseSuite, inner: cst.CSTNode) -> list[cst.BaseSuite]:
    """Return the blocks from one down to that of a statement; empty if a loop or a function lies between them."""
    if inner in body_of(block):
        return [block]
    for each in body_of(block):
        for part in _blocks_of(each):
            if found := blocks_around(part, inner):
                return [block, *found]
    return []


def _blocks_of(node: Any) -> list[cst.BaseSuite]:
    """Return the blocks of an ``if`` with all its sides, or of a ``with``."""
    if isinstance(node, cst.With | cst.Else):
        return [node.body]
    return [node.body, *_blocks_of(node.orelse)] if isinstance(node, cst.If) else []


def lines_after(blocks: Sequence[cst.BaseSuite]) -> list[Statement]:
    """Return the statements that follow the innermost of such blocks in the others."""
    found: list[Statement] = []
    for outer, block in itertools.pairwise(blocks):
        lines = body_of(outer)
        at = next(i for i, each in enumerate(lines) if any(part is block for part in walk(each)))
        found += lines[at + 1 :]
    return found


def walk(node: cst.CSTNode | Iterable[cst.CSTNode]) -> Iterator[cst.CSTNode]:
    """Yield a node, or several, and all descendants."""
    for each in [node] if isinstance(node, cst.CSTNode) else node:
        yield each
        yield from walk(each.children)


def walk_here(node: cst.CSTNode | Iterable[cst.CSTNode]) -> Iterator[cst.CSTNode]:
    """Yield a node and all nodes inside it, except the content of functions and classes."""
    for each in [node] if isinstance(node, cst.CSTNode) else node:
        yield each
        if not isinstance(each, cst.FunctionDef | cst.ClassDef | cst.Lambda):
            yield from walk_here(each.children)


def walk_traced(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield the nodes of :func:`walk_here`, except branches that ask whether the model is being traced."""
    yield node
    if isinstance(node, cst.If) and "is_compiling()" in text_of(node.test):
        return
    if not isinstance(node, cst.FunctionDef | cst.ClassDef | cst.Lambda):
        for part in node.children:
            yield from walk_traced(part)


def stored_names(node: cst.CSTNode | Iterable[cst.CSTNode]) -> dict[str, None]:
    """Return the names that statements assign to, in order."""
    found: dict[str, None] = {}
    for each in walk_here(node):
        targets: list[Any] = []
        if isinstance(each, cst.Assign):
            targets = [target.target for target in each.targets]
        elif isinstance(each, cst.AugAssign | cst.AnnAssign | cst.For | cst.NamedExpr):
            targets = [each.target]
        elif isinstance(each, cst.AsName | cst.FunctionDef):
            targets = [each.name]
        for target in targets:
            found.update(dict.fromkeys(target_names(target)))
    return found


def target_names(target: cst.CSTNode) -> list[str]:
    """Return the names among the targets of an assignment, not those of attributes and items."""
    if isinstance(target, cst.Name):
        return [target.value]
    if isinstance(target, cst.Tuple | cst.List):
        return [name for element in target.elements for name in target_names(element.value)]
    return []


def read_names(node: cst.CSTNode | Iterable[cst.CSTNode]) -> set[str]:
    """Return all names in some nodes, except attributes, keywords of calls, and plain targets of assignments."""
    found: set[str] = set()
    for each in [node] if isinstance(node, cst.CSTNode) else node:
        if isinstance(each, cst.Name):
            found.add(each.value)
        elif isinstance(each, cst.Attribute | cst.Arg):
            found |= read_names(each.value)
        elif isinstance(each, cst.Assign):
            found |= read_names(each.value)
            found |= read_names([t.target for t in each.targets if not isinstance(t.target, cst.Name)])
        else:
            found |= read_names(each.children)
    return found


def read_first(statements: Sequence[Statement]) -> set[str]:
    """Return the names that statements read before they assign them."""
    found: set[str] = set()
    stored: set[str] = set()
    for each in statements:
        augmented = {name for node in walk_here(each) if isinstance(node, cst.AugAssign) for name in stored_names(node)}
        found |= (read_names(each) | augmented) - stored
        stored |= set(stored_names(each))
    return found


class Renamed(cst.CSTTransformer):
    """Renames names, or replaces them by expressions; attributes and keywords stay."""

    def __init__(self, names: Mapping[str, str]) -> None:
        super().__init__()
        self._names = names

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> Any:
        name = self._names.get(original_node.value)
        return updated_node if name is None else updated_node.with_changes(value=name)

    def visit_Attribute_attr(self, node: cst.Attribute) -> None:
        self._held = self._names
        self._names = {}

    def leave_Attribute_attr(self, node: cst.Attribute) -> None:
        self._names = self._held

    def visit_Arg_keyword(self, node: cst.Arg) -> None:
        self._held_keyword = self._names
        self._names = {}

    def leave_Arg_keyword(self, node: cst.Arg) -> None:
        self._names = self._held_keyword


def renamed(node: Any, names: Mapping[str, str]) -> Any:
    """Return a node with renamed names."""
    return node.visit(Renamed(names)) if names else node


def assignment(name: str, value: Expression) -> cst.SimpleStatementLine:
    """Return ``name = value``."""
    return cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(cst.Name(name))], bare(value))])


def has_exit(node: cst.CSTNode | Iterable[cst.CSTNode], *kinds: type[cst.CSTNode]) -> bool:
    """Return whether statements contain one of these kinds (``return``, ``break``, ...)."""
    return any(isinstance(each, kinds) for each in walk_here(node))


def ends_in_return(statements: Sequence[Statement]) -> bool:
    """Return whether every path through some statements returns."""
    if not statements:
        return False
    last = statements[-1]
    if isinstance(small_of(last), cst.Return | cst.Raise):
        return True
    if isinstance(last, cst.If) and last.orelse is not None:
        return ends_in_return(body_of(last.body)) and ends_in_return(orelse_of(last))
    return False


def with_import(text: str, name: str) -> str:
    """Return a file's text with ``import name`` as the first of its imports, unless it has it."""
    tree = ast.parse(text)
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    bound = [alias.asname or alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names]
    if name in bound:
        return text
    others = [node for node in imports if getattr(node, "module", "") != "__future__"]
    first = tree.body[0] if tree.body else None
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    before = imports[-1] if imports else first if is_text else None
    at = others[0].lineno - 1 if others else (before.end_lineno or 0) if before is not None else 0
    lines = text.split("\n")
    return "\n".join([*lines[:at], f"import {name}", *lines[at:]])


class Replaced(cst.CSTTransformer):
    """Replaces nodes by others, by identity."""

    def __init__(self, replacements: Mapping[cst.CSTNode, Any]) -> None:
        super().__init__()
        self._replacements = replacements

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        return self._replacements.get(original_node, updated_node)


def replaced(node: Any, replacements: Mapping[cst.CSTNode, Any]) -> Any:
    """Return a node with replacements in it."""
    return node.visit(Replaced(replacements)) if replacements else node


# The text of a user's file: original, changed, and as code.


@dataclass(frozen=True)
class SourceText:
    """The text of one file or notebook cell.

    Attributes:
        file: the name that Python knows it by.
        original: the text as the user wrote it.
        text: the text with changes.
    """

    file: str
    original: str
    text: str

    @classmethod
    def of(cls, file: str) -> SourceText:
        """Return the text of a file, notebook cell or other source that Python's tracebacks can show.

        Raises:
            CannotFix: there is none, or it is not Python.
        """
        linecache.checkcache(file)
        text = "".join(linecache.getlines(file))
        if not text:
            raise CannotFix(f"the source of {file} is not available")
        try:
            _codes(text, file, cell_flags(file))
        except SyntaxError as error:
            raise CannotFix(f"{file} is not Python: {error.msg}") from error
        return cls(file, text, text)

    @property
    def name(self) -> str:
        """The name by which tracebacks find the changed text."""
        is_changed = self.text != self.original
        return (
            f"<fixed {source_line(self.file, 1).file} {zlib.crc32(self.text.encode()):08x}>"
            if is_changed
            else self.file
        )

    def with_text(self, text: str) -> SourceText:
        return replace(self, text=text)

    def shown(self) -> None:
        """Register the changed text for tracebacks and source lines."""
        if self.name != self.file:
            note_copy(self.name, self.file, self.original_line)
            linecache.cache[self.name] = (len(self.text), None, self.text.splitlines(True), self.name)

    def forgotten(self) -> None:
        """Undo :meth:`shown`."""
        if self.name != self.file:
            forget_copy(self.name)
            linecache.cache.pop(self.name, None)

    def codes(self) -> dict[CodePath, types.CodeType]:
        """Return the changed text as code objects."""
        return _codes(self.text, self.name, cell_flags(self.file))

    def original_codes(self) -> dict[CodePath, types.CodeType]:
        """Return the user's text as code objects."""
        return _codes(self.original, self.file, cell_flags(self.file))

    def only(self, within: Collection[CodePath]) -> SourceText:
        """Return the text in which the other functions are as the user wrote them."""
        old, new = self.original_codes(), self.codes()
        changed = [path for path, code in old.items() if path in new and not equal_but_for_lines(code, new[path])]
        others = [path for path in changed if not any(_is_around(path, one) or _is_around(one, path) for one in within)]
        outermost = [path for path in others if not any(path != one and _is_around(one, path) for one in others)]
        before, after = self.original.splitlines(True), self.text.splitlines(True)
        users, own = _spans(self.original), _spans(self.text)
        spans = [(own.get(new[path].co_firstlineno), users.get(old[path].co_firstlineno)) for path in outermost]
        for now, then in sorted((now, then) for now, then in spans if now and then)[::-1]:
            after[now[0] - 1 : now[1]] = before[then[0] - 1 : then[1]]
        return self.with_text("".join(after))

    def changes(self, within: Collection[CodePath] | None = None) -> dict[types.CodeType, types.CodeType]:
        """Return the changed code by the code that it replaces; all of it, or only that inside of some functions."""
        now = self.codes()
        return {
            old: now[path]
            for path, old in self.original_codes().items()
            if now.get(path, old) != old and (within is None or any(path[: len(p)] == p for p in within))
        }

    def original_line(self, line: int) -> int:
        """Return the line of the user's file that a line of the changed text came from, or the one before it."""
        before, after = self.original.splitlines(), self.text.splitlines()
        for _, a, b, c, d in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
            if c <= line - 1 < d:
                return min(a + (line - 1 - c), max(b - 1, a)) + 1
        return min(line, len(before))

    def is_new(self, line: int, since: str) -> bool:
        """Return whether a line of the changed text is not in an earlier text."""
        before, after = since.splitlines(), self.text.splitlines()
        blocks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()
        return not any(block.b <= line - 1 < block.b + block.size for block in blocks)

    def changed_lines(self, since: str) -> tuple[int, int]:
        """Return the first and the last changed line of an earlier text; 1 and 1 if all are."""
        before, after = since.splitlines(), self.text.splitlines()
        changes = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
        lines = [(a + 1, max(a + 1, b)) for kind, a, b, *_ in changes if kind != "equal"]
        return (lines[0][0], lines[-1][1]) if lines else (1, 1)

    def diff(self, since: str | None = None) -> str:
        """Return the unified diff of the user's file, or of an earlier ``since``, with the file's line numbers."""
        before, name = self.original if since is None else since, source_line(self.file, 1).file
        lines = difflib.unified_diff(before.splitlines(True), self.text.splitlines(True), name, name, n=2)
        earlier = replace(self, text=before)
        return "".join(_renumbered(line, earlier) if line.startswith("@@") else line for line in lines)


def _is_around(outer: CodePath, path: CodePath) -> bool:
    """Return whether a function is the other, or has it inside."""
    return path[: len(outer)] == outer


def _spans(text: str) -> dict[int, tuple[int, int]]:
    """Return the first and last line of each function and class, by the first line, which is that of a decorator."""
    found: dict[int, tuple[int, int]] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            decorators = getattr(node, "decorator_list", [])
            first, last = min(each.lineno for each in (node, *decorators)), node.end_lineno or node.lineno
            found[first] = first, max(last, found.get(first, (0, 0))[1])
    return found


def _renumbered(header: str, earlier: SourceText) -> str:
    """Return the header of a diff with the number of its first line in the user's file."""
    _, old, new, *_ = header.split()
    first, _, count = old[1:].partition(",")
    line = earlier.original_line(int(first)) if int(first) else 0
    return f"@@ -{line}{',' + count if count else ''} {new} @@\n"


@functools.lru_cache(maxsize=256)
def _codes(text: str, name: str, flags: int | None) -> dict[CodePath, types.CodeType]:
    return file_codes(ast.parse(text), name, flags)


def equal_but_for_lines(one: types.CodeType, other: types.CodeType | None) -> bool:
    """Return whether two code objects differ in their lines at most."""
    if other is None or len(one.co_consts) != len(other.co_consts):
        return False
    left, right = ((c.co_code, c.co_names, c.co_varnames, c.co_freevars, c.co_cellvars) for c in (one, other))
    if left != right:
        return False
    return all(
        equal_but_for_lines(a, b if isinstance(b, types.CodeType) else None)
        if isinstance(a, types.CodeType)
        else repr(a) == repr(b)
        for a, b in zip(one.co_consts, other.co_consts, strict=True)
    )


# ``CannotFix``: a kind of change does not apply.


class CannotFix(PrepbenchError, ValueError):
    """The change does not apply or would be wrong; the message says why."""
