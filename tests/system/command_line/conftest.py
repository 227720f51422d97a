from __future__ import annotations

from tests.compile.command_line.conftest import script as script
