"""What tests of trust share: how thorough they are, and the counts that `python -m tests.trust` prints."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.thorough import THOROUGH

Tally = Callable[[str, int], None]


@pytest.fixture(scope="session")
def thorough() -> bool:
    """Whether the long form was asked for: `python -m tests.trust --thorough`."""
    return THOROUGH


@pytest.fixture
def tally(record_property: Callable[[str, object], None]) -> Tally:
    """Adds to a count of this file's line: `tally("signals", 20_000)`."""

    def add(what: str, count: int) -> None:
        record_property(what, count)

    return add
