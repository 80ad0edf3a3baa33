"""The random programs find a bug in every rule in which one was planted."""

from __future__ import annotations

import pytest

from tests.planner.plants import PLANTS, hunt


@pytest.mark.parametrize("name", PLANTS)
def test_planted_bug_is_found(name: str) -> None:
    assert hunt(name) is not None
