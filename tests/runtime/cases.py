"""Tests that another module runs again, elsewhere."""

from __future__ import annotations

import inspect
from typing import Any


def of(test: Any) -> list[dict[str, Any]]:
    """All that a test is parametrized with."""
    found: list[dict[str, Any]] = [{}]
    for mark in getattr(test, "pytestmark", []):
        names, values = mark.args[0], mark.args[1]
        if isinstance(names, str):
            rows = [{names: v} for v in values]
        else:
            rows = [dict(zip(names, v, strict=True)) for v in values]
        found = [f | row for f in found for row in rows]
    assert set(inspect.signature(test).parameters) <= set(found[0])
    return found
