"""Operands that a plan gathers are gathered once while they stay the same.

An operand never changes, so what was gathered of it can be used as long as it comes again. After the same
one came a few times in a row, it is gathered for good, and from then on a plan runs to which that is given
(planner/gathered.py). When another one comes, or the operand is gone, the replica goes, too. Who gives the
orders decides it, by which operand it is: so all workers meet in the same collectives."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from ostinato.ops.core.operand import Operand
from ostinato.planner.gathered import Gather, gather_of, given
from ostinato.planner.plan import Key, Plan
from ostinato.planner.seeing.explain import amount
from ostinato.runtime.engine import Launcher
from ostinato.runtime.packed_weights import UseCount

MIN_BYTES, RARELY = 1 << 16, 100  # bytes; what is smaller must come that often to be worth a plan


class _Site:
    """A gather of a plan, and what comes to it."""

    def __init__(self, gather: Gather) -> None:
        self.gather = gather
        self.use_count = UseCount() if gather.bytes >= MIN_BYTES else UseCount(RARELY)
        self.came: Callable[[], Operand | None] = lambda: None
        self.replica: Operand | None = None
        self.was_kept = False  # of the one that comes

    def comes(self, operand: Operand) -> bool:
        """Whether the same one has come often enough."""
        if self.came() is not operand:
            self.ends()
            self.came = weakref.ref(operand)
        return self.use_count.again()

    def keep(self, operand: Operand, replica: Operand) -> None:
        """Keep what was gathered of it, until it is gone."""
        me = weakref.ref(self)

        def gone(_: Any) -> None:
            site = me()
            if site is not None:
                site.replica = None

        self.came = weakref.ref(operand, gone)
        self.replica, self.was_kept = replica, True

    def ends(self) -> None:
        self.use_count.ends(self.was_kept)
        self.replica, self.was_kept = None, False


class Replicas:
    """A launcher of a plan that gathers operands. `launches`: a plan as it is run here, or that of a key."""

    def __init__(
        self,
        plan: Plan,
        plain: Launcher,
        found: Sequence[Gather],
        launches: Callable[[Key | Plan], tuple[Plan, Launcher] | None],
    ) -> None:
        self.plan, self.plain = plan, plain
        self.launches = launches
        self.sites = [_Site(g) for g in found]
        self.makers: dict[int, Launcher | None] = {}  # of replicas
        self.made: dict[tuple[int, ...], tuple[Plan, Launcher] | None] = {}

    def __call__(self, operands: Sequence[Operand]) -> list[Operand]:
        due = [s.comes(operands[s.gather.operand]) for s in self.sites]
        if not any(due):
            return self.plain(operands)
        which = tuple([k for k, is_due in enumerate(due) if is_due and self._maker(k)])
        launch = self._launch(which) if which else None
        if launch is None:
            return self.plain(operands)
        try:
            return launch([*operands, *(self._replica(k, operands) for k in which)])
        except BaseException:
            self.forget()  # what they were made of may be lost
            raise

    def _launch(self, which: tuple[int, ...]) -> Launcher | None:
        """Launcher of the plan to which these are given; None if it exceeds the memory limit."""
        if which not in self.made:
            made = given(self.plan, which)
            limit = self.plan.target.memory_limit
            fits = limit is None or made.peak_bytes <= limit
            self.made[which] = self.launches(made) if fits else None
            if self.made[which] is not None:
                size = sum(self.sites[k].gather.bytes for k in which)
                names = ", ".join(self._name(k) for k in which)
                self.plan.report.append(
                    f"gathered  once while it stays the same: {names}, {amount(size)} of each worker; "
                    f"these runs are of plan {made.id[:12]}"
                )
        found = self.made[which]
        return None if found is None else found[1]

    def _name(self, k: int) -> str:
        at = self.sites[k].gather.operand
        return self.plan.names[at] if at < len(self.plan.names) else f"input {at}"

    def _maker(self, k: int) -> Launcher | None:
        """Launcher of the plan that makes a replica; None if it would lie otherwise."""
        if k not in self.makers:
            gather = self.sites[k].gather
            found = self.launches(gather_of(self.plan, gather))
            fits = found is not None and found[0].out_specs == (gather.spec,)
            self.makers[k] = found[1] if found is not None and fits else None
        return self.makers[k]

    def _replica(self, k: int, operands: Sequence[Operand]) -> Operand:
        site, maker = self.sites[k], self.makers[k]
        found = site.replica
        if found is None:
            assert maker is not None
            (found,) = maker([operands[site.gather.operand]])
            site.keep(operands[site.gather.operand], found)
        return found

    def forget(self) -> None:
        """Let go of all replicas."""
        for site in self.sites:
            site.ends()
            site.came = lambda: None

    @property
    def ids(self) -> list[str]:
        """Ids of plans that ran in the place of this one."""
        return [found[0].id for found in self.made.values() if found is not None]
