"""Values that leave a device's memory for a while, and come back: the planner puts these into programs; nobody
types them.

    stash             a value begins to go to the host's memory, or to a disk; pending until it is there
    fetch             what went there begins to come back; pending until it is here
    wait              the other half of both (collective.py)

What was stashed is a value without memory here: only `fetch` reads it. `turn` tells one fetch from another."""

from __future__ import annotations

from ..core.index import opaque
from ..core.parameters import whole
from ..core.registry import Specs, op
from ..core.spec import Spec
from .collective import _wire_cost

STASH, FETCH = "stash", "fetch"
OFFLOADED = (STASH, FETCH)


def _stash_rule(x: Spec) -> Specs:
    return (Spec(x.shape, x.dtype, None, True),)


op(STASH, infer=_stash_rule, indices=opaque, cost=_wire_cost, made_by="machine")
op(
    FETCH,
    infer=lambda x, *, turn: (Spec(x.shape, x.dtype, None, True),),
    takes={"turn": whole(0)},
    indices=opaque,
    cost=_wire_cost,
    made_by="machine",
)
