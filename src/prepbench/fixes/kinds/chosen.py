"""What data selects, such as modules, numbers, texts and functions: all are computed, and the result is selected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import libcst as cst
import torch
from torch import nn

from prepbench.fixes import syntax
from prepbench.fixes.kinds.conditions import depends_on_data
from prepbench.fixes.kinds.numbers import Numbers
from prepbench.fixes.kinds.row_sources import assigned_once
from prepbench.fixes.site import Kind, Proposal, Site
from prepbench.fixes.syntax import Expression


def propose_chosen_by_number(site: Site) -> Iterator[Proposal]:
    """Propose to rewrite every call of a selected module, and every selected number or tensor."""
    choices = Choices(site)
    found: dict[cst.CSTNode, cst.CSTNode] = {}
    inside: set[cst.CSTNode] = set()
    for node in site.expressions(cst.Call | cst.Subscript):
        if node in inside:
            continue
        new = choices.called(node) if isinstance(node, cst.Call) else choices.read(node)
        if new is not None:
            found[node] = new
            inside.update(syntax.walk_here(node))
    if not found:
        return
    function = syntax.replaced(site.function, found | choices.no_longer_read(found))
    yield Proposal(function)


@dataclass(frozen=True)
class _Choice:
    """An expression that depends on a number.

    Attributes:
        one: the expression for one of the possibilities, with a placeholder's name.
        all: the possibilities.
        index: the index of the selected possibility, as a tensor.
        counts_from_end: whether negative numbers count from the end.
    """

    one: Callable[[str], Expression]
    all: Expression
    index: Expression
    counts_from_end: bool = False


class Choices:
    """Finds selections by a number that comes from data."""

    def __init__(self, site: Site) -> None:
        self._site, self._numbers = site, Numbers(site)
        self._assigned: dict[str, list[cst.Assign]] = {}
        for node in site.expressions(cst.Assign):
            for target in node.targets:
                self._assigned.setdefault(syntax.text_of(target.target), []).append(node)

    def called(self, call: cst.Call) -> Expression | None:
        """Return the call of a selected module as a selection between calls."""
        chosen = self._of(call.func)
        if chosen is None:
            return None
        return self._stacked(chosen, lambda each: cst.Call(syntax.atom(chosen.one(each)), call.args))

    def read(self, node: cst.Subscript) -> Expression | None:
        """Return a selected number or tensor as a selection between tensors."""
        fact, chosen = self._site.fact(node), self._of(node)
        if chosen is None or not (fact.is_number or fact.is_tensor):
            return None
        template = "{x}" if fact.is_tensor else "{torch}.tensor({x})"
        return self._stacked(
            chosen, lambda each: syntax.expression(template, torch=self._site.torch, x=syntax.bare(chosen.one(each)))
        )

    def no_longer_read(self, found: dict[cst.CSTNode, cst.CSTNode]) -> dict[cst.CSTNode, Any]:
        """Return removals of assignments to names that only the replaced code read."""
        replaced_names = {
            part.value for node in found for part in syntax.walk_here(node) if isinstance(part, cst.Name)
        }  # fmt: skip
        gone: dict[cst.CSTNode, Any] = {}
        for line in self._site.expressions(cst.SimpleStatementLine):
            small = syntax.small_of(line)
            if not isinstance(small, cst.Assign) or self._of(small.value) is None:
                continue
            name = syntax.text_of(small.targets[0].target)
            reads = [n for n in self._site.expressions(cst.Name) if n.value == name]
            inside = [
                n for node in found for n in syntax.walk_here(node) if isinstance(n, cst.Name) and n.value == name
            ]
            if name in replaced_names and len(reads) == len(inside) + 1:
                gone[line] = cst.RemoveFromParent()
        return gone

    def _stacked(self, chosen: _Choice, made: Callable[[str], Expression]) -> Expression:
        each = self._site.fresh("each")
        # an index out of range must raise, and only lists count from the end
        taken = "{index}" if chosen.counts_from_end else "{torch}.where({index} < 0, len({all}), {index})"
        return syntax.expression(
            f"{{torch}}.stack([{{one}} for {each} in {{all}}])[{taken}.reshape(1)].squeeze(0)",
            torch=self._site.torch, one=made(each), all=syntax.bare(chosen.all), index=syntax.atom(chosen.index),
        )  # fmt: skip

    def _of(self, node: cst.CSTNode) -> _Choice | None:
        """Return the alternatives of an expression; None where no number from data selects."""
        if isinstance(node, cst.Name):
            assigned = self._assigned.get(node.value, [])
            is_plain = (
                len(assigned) == 1 and not self._site.fact(node).is_tensor and not self._site.fact(node).is_number
            )
            return self._of(assigned[0].value) if is_plain else None
        if isinstance(node, cst.Subscript) and len(node.slice) == 1 and isinstance(node.slice[0].slice, cst.Index):
            return self._of_item(node.value, node.slice[0].slice.value)
        if isinstance(node, cst.Call) and syntax.text_of(node.func) == "getattr" and len(node.args) == 2:
            return self._of_attribute(node)
        return None

    def _of_item(self, table: Expression, index: Expression) -> _Choice | None:
        number = self._number_in(index)
        if number is not None and _names_numbers(self._site.fact(table).values):
            return _Choice(
                lambda each: syntax.expression("{t}[{k}]", t=table, k=syntax.replaced(index, {number: cst.Name(each)})),
                syntax.expression("range(len({t}))", t=table), self._tensor(number),
            )  # fmt: skip
        if number is None and self._is_data(index):
            if _has_labels(self._site.fact(table).values):
                return _Choice(
                    cst.Name, syntax.expression("{t}.values()", t=syntax.atom(table)), self._place(table, index), True
                )
            possible = self._possibilities(table)
            is_list = possible is table
            return _Choice(cst.Name, possible, self._tensor(index), is_list) if possible is not None else None
        key = self._of(index)
        if key is None:
            return None
        return _Choice(
            lambda each: syntax.expression("{t}[{k}]", t=table, k=key.one(each)),
            key.all,
            key.index,
            key.counts_from_end,
        )

    def _of_attribute(self, call: cst.Call) -> _Choice | None:
        owner, name = call.args[0].value, call.args[1].value
        number = self._number_in(name)
        if number is None:
            return None
        prefix = next((p.value for p in getattr(name, "parts", ()) if isinstance(p, cst.FormattedStringText)), None)
        owners = self._site.fact(owner).values
        if prefix is None or not owners:
            return None
        count = next(i for i in range(10_000) if not hasattr(owners[0], f"{prefix}{i}"))
        return _Choice(
            lambda each: syntax.replaced(call, {number: cst.Name(each)}), syntax.expression(f"range({count})"),
            self._tensor(number),
        ) if count else None  # fmt: skip

    def _number_in(self, key: Expression) -> Expression | None:
        """Return the number in ``str(number)`` or ``f"head_{number}"``."""
        if isinstance(key, cst.Call) and syntax.text_of(key.func) == "str" and len(key.args) == 1:
            return key.args[0].value if self._is_data(key.args[0].value) else None
        if isinstance(key, cst.FormattedString):
            parts = [part.expression for part in key.parts if isinstance(part, cst.FormattedStringExpression)]
            return parts[0] if len(parts) == 1 and self._is_data(parts[0]) else None
        return None

    def _place(self, table: Expression, label: Expression) -> Expression:
        """Return the index of a label among the keys of a dict; their count if it is not among them."""
        tensor = self._tensor(label)
        return syntax.expression(
            "({torch}.tensor(list({t}), device={k}.device) != {k}).long().cumprod(0).sum(0)",
            torch=self._site.torch, t=syntax.bare(table), k=syntax.atom(tensor),
        )  # fmt: skip

    def _is_data(self, node: Expression) -> bool:
        if self._site.fact(node).kinds & {"str"}:
            return False  # chosen by data, too
        return self._site.fact(node).is_tensor or self._numbers.is_number(node)

    def _tensor(self, node: Expression) -> Expression:
        """Return an index as a tensor of integers; one of bools would be a mask."""
        found = self._numbers.tensor(node)
        parts = {dtype for part in syntax.walk_here(node) for dtype in self._site.fact(part).dtypes}
        return found if torch.bool not in parts else syntax.expression("{x}.long()", x=syntax.atom(found))

    def _possibilities(self, table: Expression) -> Expression | None:
        """Return all values of a list, or of a dict whose keys count from 0; None for tensors and others."""
        values = self._site.fact(table).values
        if values and all(isinstance(value, nn.ModuleList | nn.Sequential | list | tuple) for value in values):
            return table
        if values and all(isinstance(value, dict) and list(value) == list(range(len(value))) for value in values):
            return syntax.expression("{t}.values()", t=syntax.atom(table))
        return None


def _has_labels(tables: list[Any]) -> bool:
    """Return whether the keys of dicts are numbers, other than those from 0 on."""
    return bool(tables) and all(
        isinstance(table, dict)
        and all(isinstance(key, int) for key in table)
        and list(table) != list(range(len(table)))
        for table in tables
    )


def _names_numbers(tables: list[Any]) -> bool:
    """Return whether the keys of dicts end in the numbers from 0 on."""
    return bool(tables) and all(
        isinstance(table, dict | nn.ModuleDict | nn.ParameterDict)
        and all(str(key).endswith(str(number)) for number, key in enumerate(table))
        for table in tables
    )


CHOSEN_BY_NUMBER = Kind(
    "all modules are called, and the result of one is chosen",
    "the modules only compute values, of one shape and dtype",
    propose_chosen_by_number,
)


def propose_texts(site: Site) -> Iterator[Proposal]:
    """Propose to rewrite ``table["a" if c else "b"]``, and names of such texts that are compared or looked up."""
    yield from _looked_up(site)
    if isinstance(site.function, cst.FunctionDef):
        yield from _named(site)


def _is_text(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.SimpleString)


def _chosen(site: Site, node: cst.CSTNode) -> cst.IfExp | None:
    """Return a selection between two texts by data."""
    is_choice = isinstance(node, cst.IfExp) and _is_text(node.body) and _is_text(node.orelse)
    return node if isinstance(node, cst.IfExp) and is_choice and depends_on_data(site, node.test) else None


def _looked_up(site: Site) -> Iterator[Proposal]:
    found: dict[cst.CSTNode, Any] = {}
    for node in site.expressions(cst.Subscript | cst.Call):
        key = _key(node)
        choice = None if key is None else _chosen(site, key)
        if choice is not None and key is not None:
            sides = [syntax.replaced(node, {key: side}) for side in (choice.body, choice.orelse)]
            found[node] = _if(choice.test, *sides)
    if found:
        yield Proposal(syntax.replaced(site.function, found))


def _key(node: cst.CSTNode) -> Expression | None:
    """Return the key of ``table[key]`` or ``getattr(owner, key)``."""
    if isinstance(node, cst.Subscript) and len(node.slice) == 1 and isinstance(node.slice[0].slice, cst.Index):
        key: Expression = node.slice[0].slice.value
        return key
    is_getattr = isinstance(node, cst.Call) and syntax.text_of(node.func) == "getattr" and len(node.args) == 2
    return node.args[1].value if isinstance(node, cst.Call) and is_getattr else None


def _if(test: Expression, yes: Expression, no: Expression) -> Expression:
    return syntax.expression("({yes} if {c} else {no})", c=syntax.atom(test), yes=syntax.atom(yes), no=syntax.atom(no))


def _named(site: Site) -> Iterator[Proposal]:
    """Propose to name the condition instead of the text in ``mode = "a" if c else "b"``, also as a statement."""
    for line in site.expressions(cst.SimpleStatementLine | cst.If):
        name, choice = _assigned(site, line)
        if choice is None:
            continue
        flag = site.fresh(f"is_{name}")
        uses = _uses(site, name, choice, cst.Name(flag))
        reads = [n for n in site.expressions(cst.Name) if n.value == name and not any(n is t for t in _targets(line))]
        inside = {n for node in uses for n in syntax.walk_here(node)}
        if not uses or any(read not in inside for read in reads):
            continue
        made = syntax.assignment(flag, choice.test).with_changes(leading_lines=line.leading_lines)
        yield Proposal(syntax.replaced(site.function, {line: made, **uses}))
        return


def _assigned(site: Site, line: cst.CSTNode) -> tuple[str, cst.IfExp | None]:
    """Return the name and the selection of a statement that assigns one of two texts."""
    if isinstance(line, cst.SimpleStatementLine):
        small = syntax.small_of(line)
        name = syntax.text_of(small.targets[0].target) if isinstance(small, cst.Assign) else ""
        choice = _chosen(site, small.value) if name.isidentifier() else None
        return (name, choice) if choice is not None and assigned_once(site, name) is small.value else ("", None)
    assert isinstance(line, cst.If)
    sides = [syntax.body_of(line.body), syntax.orelse_of(line)]
    smalls = [syntax.small_of(side[0]) if len(side) == 1 else None for side in sides]
    if not all(isinstance(small, cst.Assign) and _is_text(small.value) for small in smalls):
        return "", None
    targets: list[Any] = [small.targets[0].target for small in smalls if small is not None]
    is_name = isinstance(targets[0], cst.Name) and syntax.same(*targets)
    if not is_name or not depends_on_data(site, line.test):
        return "", None
    return syntax.text_of(targets[0]), cst.IfExp(line.test, *(small.value for small in smalls if small is not None))


def _targets(line: cst.CSTNode) -> list[cst.CSTNode]:
    return [t.target for node in syntax.walk_here(line) if isinstance(node, cst.Assign) for t in node.targets]


def _uses(site: Site, name: str, choice: cst.IfExp, flag: cst.Name) -> dict[cst.CSTNode, Any]:
    """Return replacements for comparisons with the name, and for lookups by it."""
    found: dict[cst.CSTNode, Any] = {}
    for node in site.expressions(cst.Comparison | cst.Subscript | cst.Call):
        key = _key(node)
        if key is not None and syntax.text_of(key) == name:
            found[node] = _if(flag, *(syntax.replaced(node, {key: side}) for side in (choice.body, choice.orelse)))
        elif isinstance(node, cst.Comparison) and syntax.text_of(node.left) == name and len(node.comparisons) == 1:
            target = node.comparisons[0]
            sides = [
                _is_text(target.comparator) and _same_text(target.comparator, s) for s in (choice.body, choice.orelse)
            ]
            if sum(sides) == 1 and isinstance(target.operator, cst.Equal | cst.NotEqual):
                holds = sides[0] is isinstance(target.operator, cst.Equal)
                found[node] = flag if holds else syntax.expression("(not {f})", f=flag)
    return found


def _same_text(one: Any, other: Any) -> bool:
    return bool(one.evaluated_value == other.evaluated_value)


CHOSEN_TEXTS = Kind(
    "what a text chooses is chosen by the condition",
    "the text is only compared, or looked up",
    propose_texts,
)
