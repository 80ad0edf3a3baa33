"""Plans whose layouts were drawn instead of chosen: each node runs in one of a few ways, whatever that costs.

What the planner would never choose on shapes as small as those of tests has to be right, too."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from ostinato.ops.core.graph import Graph
from ostinato.ops.planned.collective import collective_of
from ostinato.planner.layouts import options
from ostinato.planner.passes import interior, wide_halos

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


@contextmanager
def halos_widened() -> Iterator[None]:
    """Within it, whatever can be made with halos is, so that as few as can be are sent."""
    forget_plans()
    try:
        prices = {"node_price": lambda self, k: 0.0, "sent_price": wide_halos.Chains.is_sent}
        with (
            mock.patch.multiple(
                wide_halos,
                _is_better=lambda *_: True,
                _turns_seconds=lambda target, _, body: halos_in(wide_halos.sent(body, target)),
            ),
            mock.patch.multiple(wide_halos.Chains, **prices),
        ):
            yield
    finally:
        forget_plans()


def halos_in(graph: Graph) -> int:
    return sum(collective_of(n.op, n.kw) == "halo" for n in graph.nodes)
