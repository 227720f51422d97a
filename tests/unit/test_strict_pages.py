"""HTML that stays readable where a page shows most tags as their source text."""

from __future__ import annotations

import re

import pytest
from nbconvert.filters.strings import clean_html

from prepbench.strict_pages import for_strict_pages, for_strict_pages_only

PIECES = {
    "a heading and a line": "<h4>Layers</h4><p class='x'>int8 &amp; int4<br/>second line</p><hr/>",
    "a table": "<table><thead><tr><th>layer</th><th>bits</th></tr></thead>"
    "<tbody><tr><td>enc&lt;0&gt;</td><td><b>8</b></td></tr></tbody></table><small>two layers</small>",
    "a picture": '<style>.a{color:red}</style><div><img alt="a chart" src="data:image/svg+xml;base64,AAAA"/></div>',
    "a folded part": "<details><summary>3 <b>changes</b></summary><pre>x &lt; y</pre>"
    "<details><summary>inner</summary></details></details>",
    "a drawing": '<svg viewBox="0 0 1 1" aria-label="waveform"><g><path d="M0 0"/></g></svg>',
    "a button": '<div><button type="button">Repair</button></div>',
}
SHOWN = {
    "a heading and a line": ["Layers", "int8 & int4", "second line"],
    "a table": ["layer   bits", "enc<0>  8", "two layers"],
    "a picture": ["a chart"],
    "a folded part": ["3 changes"],
    "a drawing": ["waveform"],
    "a button": [],
}
HIDDEN = re.compile(r'<span class="lm-Widget lm-mod-hidden hidden">.*?</span>', re.DOTALL)


def text_of(page: str) -> str:
    """What is left of a page when its tags are gone, each block in a line of its own."""
    lines = re.sub(r"</?(div|pre)[^>]*>", "\n", page)
    text = re.sub(r"<[^>]*>", "", lines)
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


@pytest.mark.parametrize("name", PIECES)
def test_what_the_sanitizer_leaves_has_no_markup_as_text(name: str) -> None:
    cleaned = clean_html(for_strict_pages(PIECES[name]))
    seen = HIDDEN.sub("", cleaned)
    lines = [line for line in text_of(seen).splitlines() if line.strip()]
    assert lines == SHOWN[name]


@pytest.mark.parametrize("name", PIECES)
def test_elsewhere_everything_is_as_it_was(name: str) -> None:
    made = for_strict_pages(PIECES[name])
    for tag in re.findall(r"<(?:table|img|svg|style|details|button|th|summary|td)\b[^>]*>", PIECES[name]):
        assert tag in made
    assert made.count("<span") == made.count("</span>")
    assert made.count("<div") == made.count("</div>")
    assert for_strict_pages(made) == made


@pytest.mark.parametrize("page", ["<pre>a  b</pre>", "<div><pre style='margin:0'>a  b</pre></div>"])
def test_preformatted_text_is_code_which_keeps_its_columns_in_jupyterlab(page: str) -> None:
    made = for_strict_pages(page)
    assert re.search(r"<pre[^>]*><code[^>]*>a  b</code></pre>", made)
    assert for_strict_pages(made) == made
    assert re.search(r"<pre[^>]*><code>a  b</code></pre>", clean_html(made))


def test_a_box_is_shown_by_pages_that_read_the_last_style_and_drop_what_is_important() -> None:
    (style,) = re.findall(r'hidden" style="([^"]*)"', for_strict_pages('<img alt="a chart" src="chart.png"/>'))
    declared = dict(each.split(":") for each in style.split(";"))
    assert declared == {"display": "inline"}


def test_a_wide_table_becomes_a_block_for_each_row() -> None:
    remedy = "Return tensors only. " * 9
    rows = f"<tr><th>module</th><th>remedy</th></tr><tr><td>encoder</td><td>{remedy}</td></tr>"
    assert f"module: encoder\nremedy: {remedy.strip()}" in for_strict_pages(f"<table>{rows}</table>")


def test_names_of_a_model_are_no_markup() -> None:
    hostile = "<img src=x onerror=alert(1)>"
    assert "<img" not in for_strict_pages_only(hostile)
    cell = hostile.replace("<", "&lt;").replace(">", "&gt;")
    assert for_strict_pages(f"<table><tr><td>{cell}</td></tr></table>").count("<img") == 0
    assert for_strict_pages(f"<p>{cell}</p>") == f'<div style="margin:0 0 1em">{cell}</div>'
    assert '<img alt="&quot;&gt;' in for_strict_pages('<img alt="&quot;&gt;&lt;b&gt;" src="x"/>')
    assert "&lt;b&gt;</span>" in for_strict_pages('<img alt="&quot;&gt;&lt;b&gt;" src="x"/>')


def test_a_long_text_is_cut() -> None:
    assert len(for_strict_pages_only("x" * 100_000)) < 21_000


def test_a_table_without_a_head_keeps_its_pairs_where_it_is_too_wide() -> None:
    rows = f"<tr><td>Target</td><td>{'wide ' * 30}</td></tr><tr><td>Bits</td><td>8</td></tr>"
    page = f"<table><tbody>{rows}</tbody></table>"
    lines = [line for line in text_of(HIDDEN.sub("", clean_html(for_strict_pages(page)))).splitlines() if line.strip()]
    assert lines == [f"Target: {'wide ' * 30}".rstrip(), "Bits: 8"]
