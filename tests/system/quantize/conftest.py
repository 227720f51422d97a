from __future__ import annotations

from tests.compile.quantize.conftest import quantize as quantize
