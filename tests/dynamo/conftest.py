from __future__ import annotations

from tests.compile.models import net as net
