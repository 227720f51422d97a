from __future__ import annotations

from tests.compile.bench.conftest import untimed as untimed
