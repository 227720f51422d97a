from __future__ import annotations

from tests.compile.search.conftest import model as model
from tests.compile.search.conftest import samples as samples
