from __future__ import annotations

from tests.compile.dynamo.conftest import net as net
