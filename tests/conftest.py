"""Plans of tests are kept nowhere on disk, unless a test says so."""

from __future__ import annotations

import os

os.environ.setdefault("OSTINATO_CACHE", "off")
