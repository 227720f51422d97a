"""``python -m docs.tools.build``: the site in ``build/docs/html``, from committed files, without network or kernels.

Everything that Sphinx reads is put together in ``build/docs/source`` first: the pages of this folder, notebooks with
live outputs, and pages generated from code. Warnings are errors, and so is a link that leads nowhere.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import time
from pathlib import Path

from docs.tools import errors, gallery, links, notebooks, reference
from prepbench.views.page import script

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def stage(source: Path) -> None:
    """Put together what Sphinx reads."""
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(DOCS, source, ignore=shutil.ignore_patterns("tools", "__pycache__", "*.graph.json"))
    (source / "changelog.md").write_text((ROOT / "CHANGELOG.md").read_text())
    shutil.copytree(ROOT / "notebooks" / "images", source / "images")
    notebooks.stage(source / "tutorials")
    reference.stage(source / "reference")
    gallery.stage(source / "gallery")
    (source / "errors.rst").write_text(errors.page())
    (source / "glossary.rst").write_text(glossary((ROOT / "ARCHITECTURE.md").read_text()))
    _list_others(source)
    static = source / "_static"
    (static / "diagram.css").write_text(script("diagram.css"))
    layout = json.dumps(script("layout.js"))
    (static / "prepbench-layout.js").write_text(f"globalThis.prepbenchLayout = {layout};\n")
    shutil.copy(_plotly(), static / "plotly.min.js")


def _list_others(source: Path) -> None:
    """Add the pages that no list names to that of the first page, so that a new page needs no list."""
    index = source / "index.md"
    listed = "".join(page.read_text() for page in (index, source / "guides" / "index.md"))
    others = [
        page.stem for page in sorted(source.glob("*.md")) if not re.search(rf"^(\.\./)?{page.stem}$", listed, re.M)
    ]
    names = "\n".join(name for name in others if name != "index")
    index.write_text(f"{index.read_text()}\n```{{toctree}}\n:hidden:\n\n{names}\n```\n" if names else index.read_text())


def _plotly() -> Path:
    import plotly

    return Path(plotly.__file__).parent / "package_data" / "plotly.min.js"


def glossary(architecture: str) -> str:
    """The glossary of ARCHITECTURE.md, with an anchor for each word."""
    table = architecture.partition("## Glossary\n")[2].partition("\n## ")[0]
    lines = ["Glossary", "========", "", ".. glossary::", ""]
    for words, meaning in re.findall(r"^\| (.+?) \| (.+) \|$", table, re.MULTILINE):
        if words in ("word", "---"):
            continue
        terms = [f"   {word.strip()}" for word in words.split(",")]
        lines += [*terms, f"      {meaning.replace('`', '``')}", ""]
    return "\n".join(lines)


def build(output: Path, source: Path) -> int:
    """Build the site; the number of problems, each of which is printed."""
    from sphinx.cmd.build import main

    stage(source)
    failed = main(["-q", "-W", "--keep-going", "-E", "-b", "html", str(source), str(output)])
    found = links.problems(output)
    for problem in found:
        sys.stderr.write(f"{problem}\n")
    return int(bool(failed)) + len(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "docs", help="where to build")
    folder = parser.parse_args().folder
    begin = time.perf_counter()
    shutil.rmtree(folder / "html", ignore_errors=True)
    count = build(folder / "html", folder / "source")
    shutil.rmtree(folder / "html" / ".doctrees", ignore_errors=True)
    size = sum(file.stat().st_size for file in (folder / "html").rglob("*") if file.is_file())
    pages = sum(1 for _ in (folder / "html").rglob("*.html"))
    took = time.perf_counter() - begin
    sys.stdout.write(f"{pages} pages, {size / 1e6:.1f} MB, {took:.0f} s, {count} problems\n")
    sys.stdout.write(f"Open {(folder / 'html' / 'index.html').as_uri()}\n")
    sys.exit(bool(count))


if __name__ == "__main__":
    main()
