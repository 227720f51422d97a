"""Code in the pages runs as printed."""

from __future__ import annotations

import linecache
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
WITH_CODE = [page for page in PAGES if re.search(r"^```python\n", page.read_text(), re.MULTILINE)]


class SmallNet(nn.Module):
    """A classifier of 8×8 images, small enough to compile in seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
        self.hidden, self.classifier = nn.Linear(32, 16), nn.Linear(16, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.classifier(torch.relu(self.hidden(self.features(image).flatten(1))))


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_runs_as_printed(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    images = torch.randn(8, 1, 8, 8)
    values = {
        "model": SmallNet().eval(),
        "samples": [images[:2], images[:3]],
        "calibration": [images[:4], images[4:]],
        "data": [(images, torch.randint(0, 10, (8,)))],
    }
    for block in blocks:
        exec(_findable(block, page), values)  # the pages are the project's own


def _findable(block: str, page: Path) -> Any:
    """The code of a block, whose lines Python's tools find as they find those of a notebook's cell."""
    name = f"<{page.stem}-{hash(block)}>"
    linecache.cache[name] = (len(block), None, block.splitlines(keepends=True), name)
    # without the future statements of this file, with which prepbench would not find the same code in the lines
    return compile(block, name, "exec", dont_inherit=True)
