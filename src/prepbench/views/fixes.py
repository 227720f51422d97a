"""What a notebook shows of fixes: a card for each, with its change before and after, its proof and what it assumes."""

from __future__ import annotations

import html
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any

_STYLE = """<style>
.pb-fix{border:1px solid #8888;border-radius:4px;padding:6px 10px;margin:6px 0}
.pb-fix>div{display:flex;gap:12px;flex-wrap:wrap}
.pb-fix figure{flex:1 1 300px;min-width:0;margin:4px 0}
.pb-fix pre{margin:0;overflow-x:auto;white-space:pre;background:none;text-align:left}
</style>"""


def fixed_bundle(fixed: Any) -> dict[str, Any]:
    """A headline, a card for each fix, and one for each failure that stays."""
    count, left = len(fixed.applied), len(fixed.remaining)
    verdict = "can be captured as one graph" if fixed.passed else "still fails"
    headline = f"<b>{html.escape(type(fixed.model).__name__)}</b> {verdict}: {count} fixed, {left} left"
    cards = [_fix_card(fix) for fix in fixed.applied] + [_draft_card(draft) for draft in fixed.remaining]
    return {"text/plain": repr(fixed), "text/html": f"{_STYLE}\n<p>{headline}</p>{''.join(cards)}"}


def fix_cards(fixes: Iterable[Any]) -> str:
    """A card for each fix; empty where there are none."""
    cards = "".join(_fix_card(fix) for fix in fixes)
    return f"{_STYLE}\n<p>Fixes, which <code>pb.fix(model, samples)</code> applies:</p>{cards}" if cards else ""


def _fix_card(fix: Any) -> str:
    lines = [f"✓ <b>{_name(fix.fqn)}</b> {html.escape(fix.place)}: {html.escape(fix.kind)}"]
    lines += [f"<small>Right if {html.escape(fix.right_if)}. Proof: {html.escape(fix.proof)}.</small>"]
    if fix.assumption:
        lines.append(f"<small>Assumes: {html.escape(fix.assumption)}.</small>")
    return f'<div class="pb-fix">{"<br/>".join(lines)}{_change(fix.diff)}</div>'


def _draft_card(draft: Any) -> str:
    failure = draft.failure
    place = f" {PurePath(failure.source.file).name}:{failure.source.line}" if failure.source else ""
    lines = [f"✕ <b>{_name(failure.fqn)}</b>{html.escape(place)}: {html.escape(failure.kind)}"]
    lines.append(f"<small>No fix: {html.escape(draft.reason)}</small>")
    what = "Draft, not proven" if draft.fix is None else f"Draft, proven but for that: {html.escape(draft.fix.proof)}"
    change = f"<small>{what}: {html.escape(draft.kind)}</small>{_change(draft.diff)}" if draft.diff else ""
    if draft.fix is not None:
        lines.append(f"<small><code>model_with({html.escape(repr(draft.fqn))})</code> applies it all the same.</small>")
    frame = f"<pre>{html.escape(failure.frame)}</pre>"
    return f'<div class="pb-fix">{"<br/>".join(lines)}{frame}{change}</div>'


def _name(fqn: str) -> str:
    return html.escape(fqn or "the model itself")


def _change(diff: str) -> str:
    """The lines before and after, beside each other."""
    lines = [line for line in diff.splitlines() if not line.startswith(("---", "+++"))]
    sides = (("before", " -"), ("after", " +"))
    parts = []
    for title, signs in sides:
        text = "\n".join("⋯" if line.startswith("@@") else line[1:] for line in lines if line[:1] in f"{signs}@")
        parts.append(f"<figure><figcaption><small>{title}</small></figcaption><pre>{html.escape(text)}</pre></figure>")
    return f"<div>{''.join(parts)}</div>" if diff else ""
