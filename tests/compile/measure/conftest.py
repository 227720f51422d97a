from __future__ import annotations

from tests.system.measure.conftest import exported as exported
