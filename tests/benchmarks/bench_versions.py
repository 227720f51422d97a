"""The zoo on each torch from the oldest to the newest, and on what pip installs without pins: :mod:`tests.versions`.

It makes an environment of several gigabytes for each, and keeps them in ``.versions``.
"""

from __future__ import annotations

from tests.versions.__main__ import main

if __name__ == "__main__":
    raise SystemExit(main())
