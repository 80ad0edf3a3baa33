"""Plans that were made: in memory by their key, on disk by their id.

A folder holds one file per plan, named by its id; each version of the code that plans has a folder
of its own. Files appear whole or not at all, so any number
of processes may share it. A file that is damaged or from another version is a miss and makes way
for a good one. When the folder is full, the least recently used go."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from ostinato.errors import PlanFileError

from .file import code_version, read_plan, write_plan
from .plan import Key, Plan

KEPT = 1024  # plans in memory
SPARED = 8  # of them at the most that ran lately when one has to go
_FRESH = 60.0  # seconds for which a file's time of use is good enough
_SWEEP = 32  # writes between two looks at the folder's size


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
        self.lock = threading.RLock()  # a finalizer may come back here
        self.dropped = dropped
        self.ran_lately = ran_lately
        self.folder = folder / "plans" / code_version() if folder is not None else None
        self.limit = limit
        self.writes = 0

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

    def put(self, plan: Plan) -> None:
        self._keep(plan)
        self._write(plan)

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
    def path(self, plan_id: str) -> Path | None:
        return self.folder / f"{plan_id}.plan" if self.folder is not None else None

    def _read(self, key: Key) -> Plan | None:
        path = self.path(key.id)
        if path is None or not os.path.isfile(path):  # nor anything that one may not look at
            return None
        try:
            plan = read_plan(path, key)
        except PlanFileError:
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _FRESH:
                os.utime(path)
        return plan

    def _write(self, plan: Plan) -> None:
        """Keep a plan on disk; a folder that cannot be written is no reason to fail."""
        path = self.path(plan.id)
        if path is None or self.limit == 0:
            return
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_plan(plan, path)
        self.writes += 1
        if self.writes % _SWEEP == 1:
            self.sweep()

    def kept(self) -> list[Path]:
        """What is in the folder; nothing if it is not there, or not for this process to read."""
        with contextlib.suppress(OSError):
            return list(self.folder.iterdir()) if self.folder is not None else []
        return []

    def sweep(self) -> None:
        """Remove what was not used for longest, until the folder is within its limit."""
        files = []
        now = time.time()
        for path in self.kept():
            with contextlib.suppress(OSError):
                facts = path.stat()
                if path.suffix == ".part" and now - facts.st_mtime > 3600:
                    path.unlink()  # of a process that died while it wrote
                elif path.suffix == ".plan":
                    files.append((facts.st_mtime, facts.st_size, path))
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self.limit:
                break
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size
