from __future__ import annotations

from tests.compile.package.conftest import net as net
