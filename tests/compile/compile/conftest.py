from __future__ import annotations

from tests.compile.compile.models import net as net
