"""The engine of a crew: operands are handles, and a run is one small order.

What a handle stands for lies on the workers; the lead, which works too, has its own part of it. A
handle that nobody refers to any more is freed with the next order."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from ostinato.ops.core import activity
from ostinato.ops.core.device import described, device_of
from ostinato.ops.core.encode import encode_spec
from ostinato.ops.core.helpers import check_thread, helper
from ostinato.ops.core.layout import Layout, Mesh
from ostinato.ops.core.operand import Operand
from ostinato.ops.core.spec import DTYPES, Spec, lent
from ostinato.ops.core.user_line import misfit
from ostinato.planner.file import encode_plan
from ostinato.planner.plan import Measured, Plan, Program
from ostinato.runtime.bound import may_fail_later
from ostinato.runtime.engine import Launcher, measured
from ostinato.runtime.timing import trials

from ostinato.errors import CommunicatorError, SessionError

from .channel import Channel
from .crew import Lead
from .crew_feeding import MOST_LEAVES, Feed
from .member import SESSION
from .orders import rebuilt

SHORTEST, LONGEST = 0.001, 0.05  # seconds between looks at what is being written


class Handle(Operand):
    """An operand that lies on the workers of a crew."""

    __slots__ = ("made", "number", "source")
    engine: CrewEngine

    def __init__(
        self, spec: Spec, engine: CrewEngine, number: int, made: int, source: Any = None
    ) -> None:
        self.spec = spec
        self.shared = self.spoiled = False
        self.engine = engine
        self.number = number
        self.made = made  # by which order
        self.source = source  # of what lies in a file

    def __del__(self) -> None:
        self.engine.dropped.append(self.number)


class CrewEngine:
    def __init__(self, lead: Lead | Channel, mesh: Mesh, device: str = "cpu") -> None:
        self.device = device
        self.lead = lead
        self.mesh = mesh
        self.size = lead.size
        self.closed = False
        self.base = next(lead.sessions) * SESSION
        self.next = self.base + 1
        self.dropped: list[int] = []
        self.launchers: dict[str, Launcher] = {}
        self.known: set[bytes] = set()  # plans that the workers have
        self.unsure = 0  # the first order since somebody looked whether all went well

    @property
    def lock(self) -> threading.RLock:
        check_thread()
        return self.lead.ordering

    @property
    def is_elsewhere(self) -> bool:
        return self.lead.member is None

    @property
    def is_new(self) -> bool:
        """Whether nothing was made here yet."""
        return self.next == self.base + 1

    @property
    def is_lost(self) -> bool:
        """Whether a worker died, and with it what all of them held."""
        return self.lead.fatal is not None

    @property
    def threads(self) -> int:
        member = self.lead.member
        return member.worker.threads if member is not None else self.lead.threads  # type: ignore[union-attr]

    # -- operands --------------------------------------------------------------------------
    def _new(self, count: int = 1) -> int:
        first, self.next = self.next, self.next + count
        return first

    def _freed(self) -> list[int]:
        """Handles that nobody has any more; meanwhile others may drop more."""
        freed = self.dropped[:]
        del self.dropped[: len(freed)]
        return freed

    def _order(self, kind: str, **what: Any) -> Any:
        with self.lock:
            self.check_open()
            freed = self._freed()
            try:
                with self._seen():
                    return self.lead.order(kind, freed=freed, **what)
            except BaseException:
                self.dropped += freed  # it may not have been sent
                raise

    def _seen(self) -> Any:
        """Workers elsewhere show nothing here, so that this waits for them is what is seen."""
        here = self.lead.member is not None
        return contextlib.nullcontext() if here else activity.task(activity.RUN, "the workers")

    def _make(self, kind: str, spec: Spec, source: Any = None, **what: Any) -> Handle:
        """An order that makes an operand, which is freed also if somebody interrupts this."""
        with self.lock:
            made = Handle(spec, self, self._new(), 0, source)
            self._order(kind, first=made.number, **what)
            made.made = self.lead.number
            return made

    def put(self, value: Any, layout: Layout, again: bool = False) -> Operand:
        spec = Spec(value.shape, value.dtype, layout)
        value = np.asarray(device_of(value).to_host(value), order="C")
        return self._make("put", spec, text=encode_spec(spec), value=value)

    def attach(self, source: Any, layout: Layout) -> Operand:
        spec = Spec(source.shape, source.dtype, layout.on_disk)
        return self._make("attach", spec, source, text=source.as_data())

    def read(self, source: Any, layout: Layout) -> Operand:
        spec = Spec(source.shape, source.dtype, layout)
        return self._make("read", spec, text=[source.as_data(), encode_spec(spec)])

    def target(self, sink: Any, number: int, layout: Layout) -> Operand:
        spec = Spec((), np.dtype(np.int64), layout)
        return self._make("target", spec, text=[number, sink.as_data()])

    def write(self, operand: Operand, sink: Any) -> list[Any]:
        assert isinstance(operand, Handle)
        said = [sink.as_data(), encode_spec(operand.spec)]
        with self.lock:
            self.look()
            self._check_made((operand,))
            writing = self._make("write", operand.spec, operands=(operand.number,), text=said)
        pause = SHORTEST
        while None in (shares := self._written(writing)):
            time.sleep(pause)
            pause = min(2 * pause, LONGEST)
        for rank, share in enumerate(shares):
            if isinstance(share, dict):
                raise rebuilt(share, f"worker {rank}")
        return [tuple(f) if isinstance(f, list) else f for share in shares for f in share]

    def _written(self, writing: Handle) -> list[Any]:
        with self.lock:
            self.lead.check()
            self._check_made((writing,))
            found: list[Any] = self._order("ask", text=["written", writing.number])
            return found

    def adopt(self, array: Any, layout: Layout) -> Operand:
        """An operand of the chunks of a Dask array that these workers keep."""
        from . import dask

        assert isinstance(self.lead, Channel)
        spec = Spec(tuple(map(int, array.shape)), np.dtype(array.dtype), layout)
        starts = [np.cumsum([0, *sizes]).tolist() for sizes in array.chunks]
        kept, keepers = dask.keep(self.lead, array)
        rows = [
            [key, [[s[k], s[k + 1]] for s, k in zip(starts, key[1:], strict=True)], keeper]
            for key, keeper in keepers
        ]
        made = self._make("adopt", spec, text=[encode_spec(spec), rows])
        self.wait()  # as Dask lets go of what nobody holds
        del kept
        return made

    def keep_parts(self, operand: Operand, ranks: Sequence[int]) -> list[Any]:
        """Dask's futures of copies of the parts on these workers; nobody may write over them before."""
        from . import dask

        assert isinstance(operand, Handle)
        assert isinstance(self.lead, Channel)
        with self.lock:
            self.wait()
            self.look()
            return dask.keep_parts(self.lead, operand.number, ranks)

    def get(self, operand: Operand) -> np.ndarray[Any, Any]:
        assert isinstance(operand, Handle)
        with self.lock:
            self._check_there()
            self.lead.check()
            self.look()
            self._check_made((operand,))
            layout = operand.spec.layout
            assert layout is not None
            member = self.lead.member
            if member is not None and (layout.is_whole or layout.stored):
                self.lead.settle()  # type: ignore[union-attr]
                whole = member.whole(operand.number, operand.spec)
                operand.shared = True
            else:
                said = encode_spec(operand.spec)
                whole = self._order("get", operands=(operand.number,), text=said)
        return lent(whole)

    def _check_there(self) -> None:
        if self.closed:
            got = "one that lay on the workers of a session that was closed"
            do = "read it (np.asarray) or save it (ost.save) before its session ends"
            raise misfit(SessionError, "reading an array", got=got, needed="an open session", do=do)

    def look(self) -> None:
        """An error if a run on devices found something wrong; what was made since the look before is lost."""
        first, self.unsure = self.unsure, 0
        if not first:
            return
        last = self.lead.number
        said = [s for s in self._order("ask", text=["wrong"]) if s is not None]
        if said:
            error = rebuilt(said[0], "a worker")
            self.lead.lost.append((first, last, str(error)))
            raise error

    def _check_made(self, operands: Sequence[Handle]) -> None:
        """An error for what was to be made by an order that failed."""
        for first, last, why in self.lead.lost:
            for o in operands:
                if first <= o.made <= last:
                    raise CommunicatorError(
                        f"this array was to be made by order {o.made}, but order {first} failed "
                        f"({why.removesuffix('.')}); make it again."
                    )

    # -- batches of samples ----------------------------------------------------------------
    def describe(self, said: Any, pipe: Any) -> Operand | str:
        """A pipe, from now on known to the workers; or why one of them cannot open it."""
        with self.lock:
            spec = Spec((), DTYPES["uint8"], Layout.whole(self.mesh))
            made = Handle(spec, self, self._new(), 0)
            value = None if self.is_elsewhere else pipe
            found = self._order("describe", first=made.number, text=said, value=value)
            made.made = self.lead.number
        return next((f"worker {rank}: {why}" for rank, why in enumerate(found) if why), made)

    def feed(
        self,
        pipe: Operand,
        layout: Layout,
        about: Sequence[int],
        size: int,
        progress: bool,
        tunes: bool,
    ) -> Feed:
        """An epoch of a pipe, from a place on, with batches of so many samples in a layout."""
        return Feed(self, pipe, layout, about, size, progress, tunes)

    def make(self, kind: str, spec: Spec, **what: Any) -> Handle:
        return self._make(kind, spec, **what)

    def told(self, kind: str, specs: Sequence[Spec], of: Handle, text: Any) -> list[Handle]:
        """An order that makes operands, of which all is known before."""
        with self.lock:
            self.check_open()
            self._check_made((of,))
            first = self._new(len(specs))
            made = [Handle(s, self, n, self.lead.number + 1) for n, s in enumerate(specs, first)]
            freed = self._freed()
            try:
                self.lead.tell(kind, operands=(of.number,), first=first, freed=freed, text=text)
            except BaseException:
                self.dropped += freed
                raise
            return made

    def asked(
        self, kind: str, of: Handle, text: Any, specs: Callable[[Any], Sequence[Spec]]
    ) -> tuple[Any, list[Handle]]:
        """One whose operands are known by its answer."""
        with self.lock:
            self._check_made((of,))
            first = self._new(MOST_LEAVES)
            made: list[Handle] = []
            try:
                answer = self._order(kind, operands=(of.number,), first=first, text=text)
                for number, spec in enumerate(specs(answer), first):
                    made.append(Handle(spec, self, number, self.lead.number))
            except BaseException:
                self.dropped += range(first + len(made), first + MOST_LEAVES)
                raise
            return answer, made

    def ask(self, what: str, of: Handle) -> list[Any]:
        with self.lock:
            self._check_made((of,))
            found: list[Any] = self._order("ask", text=[what, of.number])
            return found

    # -- plans -----------------------------------------------------------------------------
    def launcher(self, plan: Plan) -> Launcher:
        found = self.launchers.get(plan.id)
        if found is None:
            found = self.launchers[plan.id] = self._launcher(plan)
        return found

    def _launcher(self, plan: Plan) -> Launcher:
        identity = bytes.fromhex(plan.id)
        specs, lead, known = plan.program.graph.out_specs, self.lead, self.known
        lock = lead.ordering
        count, reuse = len(specs), [k for _, k in plan.program.reuse]
        dropped = self.dropped
        may_fail = not described(self.device).is_host and may_fail_later(plan.program)

        def launch(operands: Sequence[Operand]) -> list[Operand]:
            if helper.on:
                check_thread()
            with lock:
                if lead.lost:
                    self._check_made(operands)  # type: ignore[arg-type]
                if identity not in known:
                    self._load(plan, identity)
                first = self.next
                self.next = first + count
                freed = self._freed() if dropped else []
                made = lead.number + 1
                if may_fail:
                    self.unsure = self.unsure or made
                results: list[Operand] = []
                for number, spec in enumerate(specs, first):
                    results.append(Handle(spec, self, number, made))
                try:
                    lead.run(identity, [o.number for o in operands], first, freed)  # type: ignore[attr-defined]
                except BaseException:
                    self.dropped += freed
                    for k in reuse if lead.number >= made else ():  # it was sent
                        operands[k].spoiled = True
                    raise
                return results

        return launch

    def _load(self, plan: Plan, identity: bytes) -> None:
        self.check_open()
        if not self.lead.plans[identity]:
            self._order("load", plan=identity, text=encode_plan(plan).decode(), value=plan)
        self.lead.plans[identity] += 1
        self.known.add(identity)

    def plan_of(self, plan_id: str) -> Plan | None:
        member = self.lead.member
        loaded = member.worker.plans.get(plan_id) if member is not None else None
        return loaded.plan if loaded is not None else None

    def ran_lately(self, plan_id: str) -> bool:
        member = self.lead.member
        loaded = member.worker.plans.get(plan_id) if member is not None else None
        if loaded is None:
            return False
        before, loaded.seen = loaded.seen, loaded.runs
        return before != loaded.runs

    def forget(self, plan_id: str) -> None:
        """Drop a plan that the cache let go. Who still has it sends it again when it runs."""
        with self.lock:
            self.launchers.pop(plan_id, None)
            self._drop(bytes.fromhex(plan_id))

    def _drop(self, identity: bytes) -> None:
        if identity not in self.known or self.lead.forked:
            return
        self.known.discard(identity)
        self.lead.plans[identity] -= 1
        if not self.lead.plans[identity] and not self.closed:
            self._order("forget", plan=identity)

    def measured(self, plan_id: str) -> Measured | None:
        if self.lead.member is not None:
            plans = self.lead.member.worker.plans
            return measured([plans[plan_id]]) if plan_id in plans else None
        if self.closed or self.lead.forked or self.lead.fatal is not None:
            return None
        found = self._order("ask", text=["measured", plan_id])[0]
        if found is None:
            return None
        runs, best, mean, steps, how = found
        return Measured(runs, best, mean, {int(k): s for k, s in steps.items()}, how)

    def trials(self, programs: Sequence[Program], limit: float) -> list[list[float]]:
        if self.lead.member is None:  # what is fastest here says nothing about the workers
            return []
        memory = self.lead.member.memory
        with self.lock, np.errstate(all="ignore"):
            return trials(programs, limit, self.threads, memory)

    # -- the crew --------------------------------------------------------------------------
    def wait(self) -> None:
        """Return when everybody has done all that was ordered."""
        with self.lock:
            self.check_open()
            with self._seen():
                self.lead.wait(self._freed())
            self.look()

    def stats(self) -> dict[str, Any]:
        """Messages and bytes of orders by kind, and each worker's state."""
        workers = self._order("ask", text=["state"])
        return {"orders": self.lead.stats(), "workers": workers}

    def record(self) -> None:
        self._order("ask", text=["record"])

    def recorded(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._order("ask", text=["recorded"])
        return found

    def check_open(self) -> None:
        if self.closed:
            raise SessionError("the session was closed; call ost.connect() for a new one.")

    def rest(self) -> None:
        with self.lock:
            self.launchers.clear()
            if self.closed or self.is_lost:
                return
            try:
                for identity in tuple(self.known):
                    self._drop(identity)
            except CommunicatorError:
                # else who uses it hears of that, and not who used another since
                if not self.is_lost:
                    raise

    def abandon(self) -> bool:
        return self.closed  # orders are given by who may wait

    def close(self) -> None:
        with self.lock:
            if self.closed:
                return
            if isinstance(self.lead, Channel):
                self.lead.close()
            elif self.lead.fatal is None and not self.lead.forked:
                self._order("reset", first=self.base)
                for identity in tuple(self.known):
                    self._drop(identity)
            self.closed = True
            self.launchers.clear()
