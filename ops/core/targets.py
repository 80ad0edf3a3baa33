"""Files that plans write to. An operand of the plan is a number, by which each worker finds its own."""

from __future__ import annotations

import secrets
from typing import Any

targets: dict[int, Any] = {}  # sinks, by these numbers


def new_number() -> int:
    """One that nobody else has, in whichever process."""
    return secrets.randbits(62)
