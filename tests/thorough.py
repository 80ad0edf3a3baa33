"""How many examples random tests draw: few in each run of the tests, all with OSTINATO_TRUST=thorough.

settings(max_examples=few(75))"""

from __future__ import annotations

import os

THOROUGH = os.environ.get("OSTINATO_TRUST") == "thorough"


def few(count: int) -> int:
    """A third of them, unless a thorough run was asked for."""
    return count if THOROUGH else -(-count // 3)
