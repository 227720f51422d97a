"""Every link inside the site leads to a page and an anchor that are there."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_OUTSIDE = ("http", "https", "mailto", "data", "javascript")


@dataclass
class Page:
    """What is of interest in a page.

    Attributes:
        links: where its links lead, as they are written.
        assets: scripts, styles and pictures that it loads.
        ids: its anchors.
        said: links in its text; those of the navigation beside it are not among them.
    """

    links: list[str] = field(default_factory=list)
    assets: list[str] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    said: list[str] = field(default_factory=list)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = Page()
        self.articles = 0

    def handle_endtag(self, tag: str) -> None:
        self.articles -= tag == "article"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value}
        self.page.ids.update(values[name] for name in ("id", "name") if name in values)
        self.articles += tag == "article"
        if tag == "a" and "href" in values:
            self.page.links.append(values["href"])
            if self.articles:
                self.page.said.append(values["href"])
        elif tag == "link" and values.get("rel") in ("stylesheet", "icon", "preload"):
            self.page.assets.append(values.get("href", ""))
        elif tag in ("script", "img", "iframe", "source") and "src" in values:
            self.page.assets.append(values["src"])


@cache
def read(site: Path) -> dict[str, Page]:
    """All pages of a site by their path in it."""
    pages = {}
    for file in sorted(site.rglob("*.html")):
        reader = _Reader()
        reader.feed(file.read_text(encoding="utf-8"))
        pages[file.relative_to(site).as_posix()] = reader.page
    return pages


def target(page: str, link: str) -> tuple[str, str] | None:
    """Where a link leads: a path in the site and an anchor; None for a link to somewhere else."""
    parts = urlsplit(link)
    if parts.scheme in _OUTSIDE or parts.netloc:
        return None
    path = os.path.normpath(os.path.join(os.path.dirname(page), unquote(parts.path))) if parts.path else page
    return path, unquote(parts.fragment)


def problems(site: Path) -> list[str]:
    """What is wrong with the links of a site, a line each: dead pages and anchors, files from elsewhere."""
    pages = read(site)
    found = []
    for name, page in pages.items():
        for link in page.links:
            where = target(name, link)
            if where is None:
                continue
            path, anchor = where
            if path not in pages:
                if not (site / path).is_file():
                    found.append(f"{name}: {link} leads to no page")
            elif anchor and anchor not in pages[path].ids:
                found.append(f"{name}: {link} leads to no anchor")
        for asset in page.assets:
            where = target(name, asset)
            if where is None and not asset.startswith("data:"):
                found.append(f"{name}: {asset} would be loaded from elsewhere")
            elif where is not None and not (site / where[0]).is_file():
                found.append(f"{name}: {asset} is not there")
    return found


def clicks(site: Path, start: str = "index.html", depth: int = 3) -> dict[str, int]:
    """How many clicks each page is away from the first one by links in texts, up to ``depth``."""
    pages = read(site)
    away = {start: 0}
    edge = [start]
    for step in range(1, depth + 1):
        reached = {where[0] for name in edge for link in pages[name].said if (where := target(name, link))}
        edge = sorted(name for name in reached if name in pages and name not in away)
        away.update(dict.fromkeys(edge, step))
    return away
