"""Loops whose number of iterations depends on data: a bounded loop with a mask of the active iterations."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import libcst as cst

from prepbench.fixes.kinds.branches import Branches, with_body
from prepbench.fixes.kinds.conditions import choice, condition_of, depends_on_data
from prepbench.fixes.kinds.numbers import numbers_after
from prepbench.fixes.kinds.proven_bounds import Bound, bound_of_count, bound_of_while, count_of, step_of
from prepbench.fixes.kinds.sides import side_of
from prepbench.fixes.proof import ASSUMED
from prepbench.fixes.site import Kind, Limit, Proposal, Site
from prepbench.fixes.syntax import (
    CannotFix,
    Expression,
    Statement,
    assignment,
    atom,
    block_of,
    body_of,
    expression,
    has_exit,
    orelse_of,
    quoted,
    read_names,
    replaced,
    small_of,
    statement,
    stored_names,
    text_of,
    walk_here,
)

# ``continue`` in a loop, as the other side of its condition.


def without_continue(statements: Sequence[Statement]) -> list[Statement]:
    """Rewrite ``if c: ...; continue`` and the rest as ``if c: ... else: rest``."""
    for index, each in enumerate(statements):
        if not (isinstance(each, cst.If) and has_exit(each, cst.Continue)):
            continue
        body, rest = body_of(each.body), list(statements[index + 1 :])
        if not isinstance(small_of(body[-1]), cst.Continue) or has_exit([*body[:-1], *orelse_of(each)], cst.Continue):
            raise CannotFix("the loop goes on in more than one way at once")
        if has_exit(rest, cst.Break):
            raise CannotFix("the loop goes on and is left")
        other = without_continue([*orelse_of(each), *rest])
        orelse = cst.Else(block_of(other)) if other else None
        # in place, because others refer to this node by identity
        object.__setattr__(each, "body", block_of(body[:-1]))
        object.__setattr__(each, "orelse", orelse)
        return [*statements[:index], each]
    return list(statements)


# Reads of ``x[:, i]`` in a loop that may count beyond the tensor's size.


def counted_reads(site: Site, node: cst.For) -> dict[cst.Subscript, int]:
    """Return the reads of ``x[:, i]`` in a loop that counts ``i``, with the dim that it counts along."""
    name, found = text_of(node.target), {}
    for part in walk_here(node.body):
        if isinstance(part, cst.Subscript) and site.fact(part).is_tensor and site.fact(part.value).is_tensor:
            slices = [element.slice for element in part.slice]
            at = [i for i, each in enumerate(slices) if isinstance(each, cst.Index) and text_of(each.value) == name]
            if at and all(_is_full(each) for each in slices[: at[0]]):
                found[part] = at[0]
    return found


def _is_full(each: cst.BaseSlice) -> bool:
    return isinstance(each, cst.Slice) and each.lower is None and each.upper is None


class Clamped(cst.CSTTransformer):
    """Reads ``x[:, i]`` at the last row where ``i`` is beyond it."""

    def __init__(self, site: Site, name: str, reads: Mapping[cst.Subscript, int]) -> None:
        super().__init__()
        self._site, self._name = site, name
        self._reads = {text_of(part): at for part, at in reads.items()}

    def block(self, statements: Sequence[Statement]) -> list[Statement]:
        """Return statements whose reads of ``x[:, i]`` are clamped."""
        made: Any = [each.visit(self) for each in statements]
        return list(made)

    def leave_Subscript(self, original_node: cst.Subscript, updated_node: cst.Subscript) -> cst.Subscript:
        at = self._reads.get(text_of(original_node))
        if at is None:
            return updated_node
        last = expression(
            f"{{torch}}.sym_min({self._name}, {{x}}.shape[{at}] - 1)", torch=self._site.torch, x=updated_node.value
        )
        elements = list(updated_node.slice)
        elements[at] = elements[at].with_changes(slice=cst.Index(last))
        return updated_node.with_changes(slice=elements)


Loop = cst.For | cst.While
_EXITS = (cst.Break, cst.Continue, cst.Return)
_LEAVING = (cst.Break, cst.Return)


def propose(site: Site) -> Iterator[Proposal]:
    """Propose to rewrite the failing loop: around the line, or on it."""
    if isinstance(site.function, cst.Lambda):
        return
    loops = [node for node in site.expressions(cst.For | cst.While) if _needs_bound(site, node)]
    around = [node for node in loops if site.place(node)[0] <= site.line <= site.place(node)[2]]
    for node in [*around[::-1], *(node for node in loops if node not in around)][:1]:
        numbers = numbers_after(site, node)
        for is_clamped, back in itertools.product(
            (False, True) if _counted_reads(site, node) else (False,), ([], numbers) if numbers else ([],)
        ):
            masked = _Masked(site, node, is_clamped)
            new = [*masked.statements(), *back]
            replacements = {node: cst.FlattenSentinel(new), **masked.stacks}
            function = masked.after(new) if masked.returns else replaced(site.function, replacements)
            yield Proposal(function, tuple(masked.conditions), masked.assumption, masked.skips_in_trace, masked.limit)


def _counted_reads(site: Site, node: Loop) -> dict[cst.Subscript, int]:
    """Return the reads of ``x[:, i]`` in a loop whose count ``i`` data bounds."""
    return counted_reads(site, node) if isinstance(node, cst.For) and count_of(site, node) is not None else {}


def _needs_bound(site: Site, node: Loop) -> bool:
    if isinstance(node, cst.While):
        return depends_on_data(site, node.test) or _breaks(site, node)
    return count_of(site, node) is not None or _breaks(site, node)


def _breaks(site: Site, node: Loop) -> bool:
    """Return whether data decides when the loop ends."""
    return any(
        isinstance(part, cst.If) and depends_on_data(site, part.test) and has_exit(part, *_EXITS)
        for part in walk_here(node.body)
    )


@dataclass
class _Masked:
    """One loop with a mask.

    Attributes:
        is_clamped: whether a step that is not active reads the last row of tensors that have no other.
        conditions: the conditions that the loop ends by.
        assumption: the bound, in words; "" where the code proves it.
        limit: the bound as data.
        stacks: the replacements of stacks of lists that the loop appends to.
    """

    site: Site
    node: Loop
    is_clamped: bool = False
    conditions: list[Any] = field(default_factory=list)
    assumption: str = ""
    limit: Limit | None = None
    stacks: dict[cst.CSTNode, Any] = field(default_factory=dict)
    _bound: Bound | None = None
    _count: Expression | None = None

    def __post_init__(self) -> None:
        if self.node.orelse is not None:
            raise CannotFix("the loop has an else")
        if self.returns and not isinstance(self.node, cst.For):
            raise CannotFix("the loop is left by return")
        inner = [node for node in self.site.expressions(cst.If | cst.IfExp) if self._is_inner(node)]
        self.conditions += [self.site.place(node.test) for node in inner]
        self._branches = Branches(self.site, inner)
        self._active = self._branches.fresh("active")
        self._result = self._branches.fresh("result") if self.returns else ""

    def _is_inner(self, node: Any) -> bool:
        inside = any(part is node for part in walk_here(self.node.body))
        exits = isinstance(node, cst.If) and has_exit(node, *_LEAVING)
        return inside and not exits and depends_on_data(self.site, node.test)

    @property
    def skips_in_trace(self) -> bool:
        """Return whether something is skipped during tracing."""
        return self._branches.skips_in_trace

    def statements(self) -> list[Statement]:
        """Return the replacement of the loop."""
        if isinstance(self.node, cst.While):
            return self._while()
        count = count_of(self.site, self.node)
        return self._range(count) if count is not None else self._breaking()

    def _while(self) -> list[Statement]:
        assert isinstance(self.node, cst.While)
        self._bound = self._most(self.node.test, bound_of_while(self.site, self.node))
        if depends_on_data(self.site, self.node.test):
            self.conditions.append(self.site.place(self.node.test))
        condition = condition_of(self.site, self.node.test)
        may_leave = has_exit(self.node.body, *_LEAVING)
        if may_leave:  # a row that has left the loop stays inactive
            condition = expression("{a} & {c}", a=cst.Name(self._active), c=atom(condition))
        first = [] if text_of(self.node.test) == "True" else [assignment(self._active, condition)]
        body = [*first, *self._predicated(body_of(self.node.body))]
        loop, checks = self._loop(cst.Name("_"), body), self._checks(expression("~{c}", c=atom(condition)))
        if not may_leave:
            return [loop, *checks]
        return [self._start(), loop.with_changes(leading_lines=()), *checks]

    def _range(self, count: Expression) -> list[Statement]:
        assert isinstance(self.node, cst.For)
        assert isinstance(self.node.iter, cst.Call)
        self._bound = self._most(self.node.iter, bound_of_count(self.site, self.node.iter.args[0].value))
        made: list[Statement] = []
        if not isinstance(count, cst.Name):
            name = self._branches.fresh("count")
            made.append(assignment(name, count))
            count = cst.Name(name)
        self._count = count
        target = self.node.target
        if isinstance(target, cst.Name) and target.value == "_":
            target = cst.Name(self._branches.fresh("step"))
        active = expression("{i} < {count}", i=cst.ensure_type(target, cst.Name), count=count)
        body = [assignment(self._active, active), *self._predicated(body_of(self.node.body))]
        checks = self._checks(expression(f"{{count}} <= {self._bound.most}", count=count))
        if self.is_clamped:
            reads = _counted_reads(self.site, self.node)
            body = Clamped(self.site, text_of(target), reads).block(body)
            sizes = dict.fromkeys(f"{text_of(part.value)}.shape[{at}]" for part, at in reads.items())
            checks += [self._within(count, size) for size in sizes]
        loop = self._loop(target, body)
        first = [made[0].with_changes(leading_lines=self.node.leading_lines)] if made else []
        if made:
            loop = loop.with_changes(leading_lines=())
        return [*first, loop, *checks]

    def _breaking(self) -> list[Statement]:
        """Return a loop over a known sequence that data may leave early."""
        assert isinstance(self.node, cst.For)
        body = self._predicated(body_of(self.node.body))
        if not has_exit(self.node.body, *_LEAVING):
            loop = self.node.with_changes(body=block_of(body))
            return [loop]
        loop = self.node.with_changes(body=block_of(body), leading_lines=())
        return [self._start(), loop]

    def _start(self) -> Statement:
        start = assignment(self._active, expression("{torch}.tensor(True)", torch=self.site.torch))
        return start.with_changes(leading_lines=self.node.leading_lines)

    def _loop(self, target: Any, body: Sequence[Statement]) -> cst.For:
        assert self._bound is not None
        made: cst.For = statement(f"for {text_of(target)} in {self._bound.steps}:\n    pass")
        return made.with_changes(body=block_of(body), leading_lines=self.node.leading_lines)

    def _most(self, deciding: cst.CSTNode, proven: Bound | None) -> Bound:
        """Return the most iterations: those that the code proves, that the user gave, or that the samples needed."""
        bounds = self.site.bounds
        names, line = read_names(deciding), self.site.source.original_line(self.site.place(self.node)[0])
        if isinstance(bounds, Mapping):
            given = [value for name, value in bounds.items() if name in names]
            bounds = given[0] if given else None
        if proven is not None and (bounds is None or bounds >= proven.most):
            return proven
        if bounds is not None:
            self.assumption = f"the loop on line {line} needs at most {bounds} iterations, as given by bounds="
            most = int(bounds)
        else:
            most = max(self.site.fact(deciding).given, default=0) or 1
            self.assumption = (
                f"the loop on line {line} needs at most {most} iterations, the most that the samples need; "
                "bounds= takes more, and more are refused at run time"
            )
        self.limit = Limit(line, most, is_given=bounds is not None)
        return Bound(f"range({most})", most)

    def _checks(self, holds: Expression) -> list[Statement]:
        """Return the checks that raise for a call that violates an assumption."""
        if self.limit is None:
            return []
        line: Statement = statement(
            "{torch}._assert_async({holds}, {text})", torch=self.site.torch, holds=holds,
            text=quoted(f"more than {self.limit.most} iterations, {ASSUMED}"),
        )  # fmt: skip
        return [line]

    def _within(self, count: Expression, size: str) -> Statement:
        line: Statement = statement(
            f"{{torch}}._assert_async({{count}} <= {size}, {{text}})", torch=self.site.torch, count=count,
            text=quoted(f"the loop goes beyond {size}"),
        )  # fmt: skip
        return line

    # -- the body ------------------------------------------------------------------------------------------------------

    def _predicated(self, statements: Sequence[Statement]) -> list[Statement]:
        """Return the body, with an effect only while the loop is active."""
        made: list[Statement] = []
        statements = without_continue(statements)
        segment: list[Statement] = []
        for each in statements:
            if isinstance(each, cst.If) and has_exit(each, *_LEAVING):
                made += self._assigned(segment)
                segment = []
                made += self._left(each)
            else:
                segment.append(each)
        return [*made, *self._assigned(segment)]

    def _assigned(self, statements: Sequence[Statement]) -> list[Statement]:
        """Return statements whose names change only while the loop is active."""
        needs_mask = has_exit(self.node.body, *_LEAVING) or isinstance(self.node, cst.While) or self._bound
        if not needs_mask:
            return self._branches.block(statements)
        first, masked, last = self._counters_apart(statements)
        side = side_of(self._branches, self._branches.block(masked), "next")
        condition = cst.Name(self._active)
        made = [*first, *side.statements]
        for name, value in side.values.items():
            new = choice(self.site, condition, value, cst.Name(name)) if self._is_carried(name) else value
            if new is not value and self._begins_empty(name):
                new = expression(f"{{v}} if {name} is None else {{w}}", v=atom(value), w=atom(new))
            made.append(assignment(name, new))
        for text, (target, value) in list(side.writes.items()):
            if isinstance(target, cst.Call) and self._is_stacked(target):
                made.append(cst.SimpleStatementLine([cst.Expr(target.with_changes(args=[cst.Arg(value)]))]))
                del side.writes[text]
        effects = type(side)()
        return [*made, *side.effects(self.site, condition, effects), *last]

    def _counters_apart(
        self, statements: Sequence[Statement]
    ) -> tuple[list[Statement], list[Statement], list[Statement]]:
        """Split off counters that need no mask, to be counted before and after the other statements."""
        first: list[Statement] = []
        masked: list[Statement] = []
        last: list[Statement] = []
        for index, each in enumerate(statements):
            name = set(stored_names(each))
            if not self._is_counter(each):
                masked.append(each)
            elif not name & read_names(statements[index + 1 :]):
                last.append(each)
            elif not name & read_names(statements[:index]):
                first.append(each)
            else:
                masked.append(each)
        return first, masked, last

    def _left(self, each: cst.If) -> list[Statement]:
        """Rewrite ``if condition: ...; break``: its statements run first, and then the loop is inactive."""
        body = body_of(each.body)
        last = small_of(body[-1])
        if each.orelse is not None or not isinstance(last, _LEAVING) or has_exit(body[:-1], *_LEAVING):
            raise CannotFix("the loop is left in more than one way at once")
        condition = condition_of(self.site, each.test)
        if depends_on_data(self.site, each.test):
            self.conditions.append(self.site.place(each.test))
        made: list[Statement] = []
        if len(body) > 1 or isinstance(last, cst.Return):
            name, active = self._branches.fresh("leaving"), self._active
            made.append(assignment(name, expression("{a} & {c}", a=cst.Name(active), c=atom(condition))))
            self._active = name
            made += self._assigned(body[:-1])
            made += self._kept(last)
            self._active = active
            condition = cst.Name(name)
        template = "{a} & ~{c}" if depends_on_data(self.site, each.test) else "{a} & (not {c})"
        value = expression(template, a=cst.Name(self._active), c=atom(condition))
        return [*made, assignment(self._active, value)]

    # -- a loop that return leaves -------------------------------------------------------------------------------------

    @property
    def returns(self) -> bool:
        """Return whether a ``return`` leaves the loop."""
        return has_exit(self.node.body, cst.Return)

    def _kept(self, last: Any) -> list[Statement]:
        """Keep the value that is returned from the loop for later; until one is selected, the first stands in."""
        if not isinstance(last, cst.Return):
            return []
        if last.value is None:
            raise CannotFix("the loop is left by a return of nothing")
        parts = {"r": cst.Name(self._result), "v": atom(last.value), "l": cst.Name(self._active)}
        value = expression("{v} if {r} is None else {torch}.where({l}, {v}, {r})", torch=self.site.torch, **parts)
        return [assignment(self._result, value)]

    def after(self, loop: Sequence[Statement]) -> cst.CSTNode:
        """Return the function with the masked loop, and with the selection of its result at the end."""
        assert isinstance(self.site.function, cst.FunctionDef)
        statements = body_of(self.site.function.body)
        if self.node not in statements:
            raise CannotFix("return leaves a loop inside of another statement")
        at = statements.index(self.node)
        *rest, last = self._branches.block(statements[at + 1 :]) or [cst.SimpleStatementLine([cst.Return()])]
        final = small_of(last)
        if not isinstance(final, cst.Return) or final.value is None or has_exit(rest, cst.Return):
            raise CannotFix("the function ends without a value after a loop that return leaves")
        parts = {"r": cst.Name(self._result), "v": atom(final.value), "l": cst.Name(self._active)}
        value = expression("{v} if {r} is None else {torch}.where({l}, {v}, {r})", torch=self.site.torch, **parts)
        start = assignment(self._result, cst.Name("None"))
        end = cst.SimpleStatementLine([cst.Return(value)])
        return with_body(self.site.function, [*statements[:at], start, *loop, *rest, end])

    def _is_stacked(self, append: cst.Call) -> bool:
        """Return whether a list is only stacked after the loop; surplus rows are then cut off."""
        assert isinstance(append.func, cst.Attribute)
        name, count = append.func.value, self._count
        if count is None or not isinstance(name, cst.Name):
            return False
        stacks = [
            call for call in self.site.expressions(cst.Call)
            if text_of(call.func).endswith(".stack") and call.args and text_of(call.args[0].value) == name.value
            and all(text_of(arg.value) == "0" for arg in call.args[1:])
        ]  # fmt: skip
        uses = [node for node in self.site.expressions(cst.Name) if node.value == name.value]
        if len(uses) != len(stacks) + 2:  # its list, and the call that appends
            return False
        self.stacks.update({call: expression("{s}[: int({n})]", s=call, n=count) for call in stacks})
        return True

    def _is_carried(self, name: str) -> bool:
        """Return whether a name has a value before the loop."""
        first = self.site.place(self.node)[0]
        lines = self.site.expressions(cst.Assign | cst.AugAssign | cst.AnnAssign | cst.NamedExpr)
        before = any(self.site.place(n)[0] < first and name in stored_names(n) for n in lines)
        # names that a return leaves without a value are read only where the loop was active to its end
        only_returns = self.returns and not has_exit(self.node.body, cst.Break)
        if not before and not only_returns and name not in self.site.parameters and self._is_read_after(name):
            raise CannotFix(f"{name!r} has a value only if the loop runs at least once")
        return before or name in self.site.parameters

    def _begins_empty(self, name: str) -> bool:
        """Return whether a name is None until the first iteration of a loop that has one."""
        first = self.site.place(self.node)[0]
        lines = [
            n for n in self.site.expressions(cst.Assign) if self.site.place(n)[0] < first and name in stored_names(n)
        ]
        is_none = [text_of(n.value) == "None" and isinstance(n.targets[0].target, cst.Name) for n in lines]
        return isinstance(self.node, cst.For) and self._count is None and bool(is_none) and is_none[-1]

    def _is_read_after(self, name: str) -> bool:
        last = self.site.place(self.node)[2]
        reads = [n for n in self.site.expressions(cst.Name) if n.value == name and self.site.has_place(n)]
        return any(self.site.place(n)[0] > last for n in reads)

    def _is_counter(self, each: Statement) -> bool:
        """Return whether it is ``count += 1`` of a Python number that nothing reads after the loop."""
        name = next(iter(stored_names(each)), "")
        return step_of(small_of(each), name) is not None and not self._is_read_after(name)


LOOPS = Kind(
    "a loop that data ends becomes a bounded loop with a mask",
    "the loop needs no more iterations than its bound, and one that is not active has no effect",
    propose,
)
