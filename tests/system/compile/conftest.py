from __future__ import annotations

from tests.compile.compile.conftest import net as net
