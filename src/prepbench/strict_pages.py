"""HTML of notebook outputs that also reads well where a page shows most tags as their source text.

``nbconvert --sanitize-html`` writes every tag but those of text and lists as text, and drops all attributes but
``class`` and ``id``. It says nothing of this while a notebook runs, so that each output has to be ready for it.
"""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from itertools import zip_longest

_KEPT = frozenset(
    ["a", "abbr", "acronym", "b", "blockquote", "code", "div", "em", "i", "li", "ol", "pre", "span", "strong", "ul"]
)
_VOID = frozenset(["br", "col", "hr", "img", "input", "wbr"])
# also tables: the body that its parser adds to each would be shown as text
_BOXED = frozenset(
    [
        "button",
        "canvas",
        "details",
        "iframe",
        "img",
        "input",
        "math",
        "script",
        "select",
        "style",
        "svg",
        "table",
        "video",
    ]
)
_BLOCKS = frozenset(["article", "div", "dd", "dl", "dt", "figcaption", "figure", "footer", "header", "p", "section"])

# What such a page would show as source text stands in a box. The page's own style hides a box with these classes
# (JupyterLab's theme and the classic one have them), and the attribute, which such a page drops, shows it elsewhere.
# Twice, for pages such as marimo's, which read the last and know nothing of what is important.
_BOX = '<span class="lm-Widget lm-mod-hidden hidden" style="display:inline!important;display:inline">'
_ELSEWHERE = 'hidden="" style="display:none"'

# JupyterLab and nbconvert's lab template set a bare `pre` in letters of different widths: columns would not line up
_BARE = re.compile(r"(<pre\b[^>]*>)(?!\s*<code\b)(.*?)(</pre>)", re.DOTALL)
_AS_CODE = r'\1<code style="background:none;white-space:inherit;word-break:normal">\2</code>\3'

_LONGEST = 20_000  # letters
_WIDEST = 110  # letters of a line

_ADDED = {
    "p": {"style": "margin:0 0 1em"},
    "small": {"style": "font-size:smaller"},
    "hr": {"style": "border-top:1px solid #8888;margin:8px 0"},
}


def for_strict_pages_only(text: str) -> str:
    """Return preformatted text that only those pages show that show no picture; its end is cut where it is long."""
    cut = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return f"<pre {_ELSEWHERE}><code>{html.escape(cut)}</code></pre>"


def for_strict_pages(page: str) -> str:
    """Return HTML that looks the same and is readable in pages that allow tags of text and lists only.

    Pictures, styles and folded parts are left out there; what describes them (``alt``, ``aria-label``, the summary)
    takes their place, and aligned text that of a table. Preformatted text is marked as code, which JupyterLab's pages
    need to keep its columns. Given to itself again, it stays as it is.

    Args:
        page: a piece of HTML, as an output has it.

    Returns:
        The HTML.

    Example:
        >>> for_strict_pages("<h4>Layers</h4>")
        '<div role="heading" aria-level="4" style="margin:1em 0 .3em"><b>Layers</b></div>'
        >>> "lm-mod-hidden" in for_strict_pages('<img alt="a chart" src="chart.png"/>')
        True
    """
    if _BOX in page:
        return page
    writer = _Writer()
    writer.feed(_BARE.sub(_AS_CODE, page))
    writer.close()
    return "".join(writer.parts)


class _Writer(HTMLParser):
    """Writes each tag as it is, as another one, or in a box."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.parts: list[str] = []
        self._box = ""  # the tag that opened the box
        self._depth = 0  # of tags of that name
        self._instead = ""
        self._in_summary = False
        self._rows: list[list[str]] = []
        self._has_head = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        raw, known = self.get_starttag_text() or "", dict(attrs)
        if self._box:
            self.parts.append(raw)
            self._depth += tag == self._box
            self._look(tag)
        elif tag in _BOXED:
            self._instead = known.get("alt") or known.get("aria-label") or ""
            self.parts += [_BOX, raw]
            if tag in _VOID:
                self._end_of_box()
            else:
                self._box, self._depth = tag, 1
        else:
            self.parts.append(raw if tag in _KEPT else _start(tag, known))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID and self._box == tag:
            self._close(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._box:
            self.parts.append(f"</{tag}>")
            self._close(tag)
        elif tag in _KEPT:
            self.parts.append(f"</{tag}>")
        elif tag not in _VOID:
            self.parts.append("</b></div>" if _level(tag) else f"</{_other(tag)}>")

    def handle_data(self, data: str) -> None:
        self._write(data)

    def handle_entityref(self, name: str) -> None:
        self._write(f"&{name};")

    def handle_charref(self, name: str) -> None:
        self._write(f"&#{name};")

    def _write(self, text: str) -> None:
        self.parts.append(text)
        if self._in_summary:
            self._instead += html.unescape(text)
        elif self._box == "table" and self._rows and self._rows[-1]:
            self._rows[-1][-1] += html.unescape(text)

    def _look(self, tag: str) -> None:
        """Note where the text begins that takes the place of the box."""
        self._in_summary = self._in_summary or (tag == "summary" and self._depth == 1)
        if self._box != "table":
            return
        if tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th") and self._rows:
            self._rows[-1].append("")
            self._has_head = self._has_head or tag == "th"
        elif self._rows and self._rows[-1]:
            self._rows[-1][-1] += " " * (tag in ("br", "p", "pre", "div", "small"))

    def _close(self, tag: str) -> None:
        self._in_summary = self._in_summary and tag != "summary"
        self._depth -= tag == self._box
        if not self._depth:
            self._end_of_box()

    def _end_of_box(self) -> None:
        self.parts.append("</span>")
        if self._rows:
            self.parts.append(for_strict_pages_only(_aligned(self._rows, has_head=self._has_head)))
        elif self._instead:
            tag = "div" if self._box == "details" else "span"
            self.parts.append(f"<{tag} {_ELSEWHERE}>{html.escape(self._instead)}</{tag}>")
        self._box, self._depth, self._instead, self._in_summary = "", 0, "", False
        self._rows, self._has_head = [], False


def _aligned(rows: list[list[str]], *, has_head: bool) -> str:
    """Return the rows as columns of text; as a block of lines for each where that is too wide to be read."""
    cells = [[" ".join(cell.split()) for cell in row] for row in rows if any(cell.strip() for cell in row)]
    widths = [max(map(len, column)) for column in zip_longest(*cells, fillvalue="")]
    if sum(widths) + 2 * len(widths) <= _WIDEST:
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in cells)
    if not has_head:
        return "\n".join(": ".join(filter(None, row)) for row in cells)
    head, *body = cells
    return "\n\n".join(
        "\n".join(f"{name}: {cell}" for name, cell in zip_longest(head, row, fillvalue="") if cell) for row in body
    )


def _start(tag: str, known: dict[str, str | None]) -> str:
    """Return a tag that says the same."""
    if tag == "br":
        return "<div></div>"
    if level := _level(tag):
        return f"{_tag('div', {'role': 'heading', 'aria-level': level, 'style': 'margin:1em 0 .3em'}, known)}<b>"
    end = "</div>" if tag == "hr" else ""
    return _tag("div" if tag == "hr" else _other(tag), _ADDED.get(tag, {}), known) + end


def _level(tag: str) -> str:
    return tag[1] if tag[:1] == "h" and tag[1:].isdigit() else ""


def _other(tag: str) -> str:
    return "div" if tag in _BLOCKS else "span"


def _tag(tag: str, added: dict[str, str], known: dict[str, str | None]) -> str:
    """Return a start tag; where both have a style, the known one comes last, so that it wins."""
    both: dict[str, str | None] = {**added, **known}
    if added.get("style") and known.get("style"):
        both["style"] = f"{added['style']};{known['style']}"
    written = (f' {name}="{html.escape(value)}"' for name, value in both.items() if value is not None)
    return f"<{tag}{''.join(written)}>"
