"""Plans that were made: in memory by their key, on disk by their id.

A folder holds one file per plan, named by its id; each version of the code that plans has a folder
of its own. Files appear whole or not at all, so any number of processes may share it. A file that is
damaged, from another version or somebody else's is a miss and makes way for a good one
(ops/core/disk_cache.py). When the folder is full, the least recently used go."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from ostinato.ops.core import disk_cache
from ostinato.ops.core.encode import Malformed
from ostinato.ops.core.locks import cached_property, make_lock

from .file import code_version, decode_plan, encode_plan
from .plan import Key, Plan

KEPT = 1024  # plans in memory
SPARED = 8  # of them at the most that ran lately when one has to go
_SWEEP = 32  # writes between two looks at the folder, or a quarter of its files, if that is more


class PlanCache:
    """Safe for several threads; on disk, for several processes."""

    def __init__(
        self,
        folder: Path | None = None,
        limit: int = 1 << 28,
        dropped: Callable[[Plan], None] = lambda plan: None,
        ran_lately: Callable[[str], bool] = lambda plan_id: False,
    ) -> None:
        self.plans: OrderedDict[Key, Plan] = OrderedDict()
        self.lock = make_lock()
        self.dropped = dropped
        self.ran_lately = ran_lately
        self.disk = disk_cache.open_cache(folder)
        self.limit = limit
        self.writes = 0

    @cached_property
    def folder(self) -> str:
        """Where plans of this version are; to find out which one this is takes a while."""
        return f"plans/{code_version()}"

    def get(self, key: Key) -> tuple[Plan, str] | None:
        """The plan and where it was, "memory" or "disk"."""
        with self.lock:
            plan = self.plans.get(key)
            if plan is not None:
                self.plans.move_to_end(key)
                return plan, "memory"
        plan = self._read(key)
        if plan is None:
            return None
        self._keep(plan)
        return plan, "disk"

    def put(self, plan: Plan, lasting: Plan | None = None) -> None:
        """Keep a plan; on disk as another one of its key, if that is given."""
        self._keep(plan)
        self._write(plan if lasting is None else lasting)

    def _keep(self, plan: Plan) -> None:
        with self.lock:
            self.plans[plan.key] = plan
            old = self._oldest() if len(self.plans) > KEPT else None
        if old is not None:
            self.dropped(old)

    def _oldest(self) -> Plan:
        """One to drop: calls of compiled functions run plans without a look in here, so what was
        running since it came to the end of the row begins anew."""
        for _ in range(SPARED):
            key, plan = next(iter(self.plans.items()))
            if not self.ran_lately(plan.id):
                break
            self.plans.move_to_end(key)
        return self.plans.popitem(last=False)[1]

    def clear(self) -> None:
        """Forget all that is in memory; whoever ran it lets go by himself."""
        with self.lock:
            self.plans.clear()

    # -- disk ------------------------------------------------------------------------------
    def _name(self, plan_id: str) -> str:
        return f"{self.folder}/{plan_id}.plan"

    def _read(self, key: Key) -> Plan | None:
        return self.plan_of(key.id, key)

    def plan_of(self, plan_id: str, key: Key | None = None) -> Plan | None:
        """A plan that is kept under this id; with its key, it need not be proven."""
        data = None if self.disk.asked is None else self.disk.read(self._name(plan_id))
        try:
            return decode_plan(data, key) if data is not None else None
        except Malformed:
            return None

    def _write(self, plan: Plan) -> None:
        """Keep a plan on disk, if there is a folder."""
        if self.limit == 0 or self.disk.asked is None:
            return
        self.disk.write(self._name(plan.id), encode_plan(plan, kept=True))
        self.writes -= 1
        if self.writes <= 0:
            self.writes = max(_SWEEP, self.sweep() // 4)

    def sweep(self) -> int:
        """Remove what was not used for longest, until the folder is within its limit. How many are left."""
        return self.disk.keep_within(self.folder, self.limit)
