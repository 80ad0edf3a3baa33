"""Plans whose layouts were drawn instead of chosen: each node runs in one of a few ways, whatever that costs.

What the planner would never choose on shapes as small as those of tests has to be right, too."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from ostinato.planner.layouts import options
from ostinato.planner.passes import interior

from tests.sessions import forget_plans


@contextmanager
def forced(seed: int, ways: int = 3) -> Iterator[None]:
    """Within it, of all ways to give a node's indices to mesh axes only these many are there."""
    draw, every = random.Random(seed), options.shardings

    def some(*args: Any) -> Iterator[Any]:
        found = list(every(*args))
        yield from draw.sample(found, min(ways, len(found)))

    forget_plans()
    try:
        with mock.patch.multiple(
            options, shardings=some, _direct=options._direct.__wrapped__
        ):  # without what was found before
            yield
    finally:
        forget_plans()


@contextmanager
def interiors_cut() -> Iterator[None]:
    """Within it, all that reads halos is done in pieces, however small these are."""
    forget_plans()
    try:
        with mock.patch.multiple(interior, WORTH=-1.0, THIN=0.0):
            yield
    finally:
        forget_plans()
