"""Sessions: which workers there are, and what the plans made for them must keep to."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from ostinato import settings
from ostinato.errors import ArgumentError, LayoutError, OstinatoError
from ostinato.ops.core import activity
from ostinato.ops.core.array import Array, Term, changing, settled
from ostinato.ops.core.device import DEVICES, LATER, Absent, Device, find
from ostinato.ops.core.helpers import check_thread, helper
from ostinato.ops.core.layout import Layout
from ostinato.ops.core.locks import cached_property, make_lock
from ostinato.ops.core.operand import File, Host, Operand, Split
from ostinato.ops.core.signals import Living
from ostinato.ops.core.tracebacks import door
from ostinato.ops.core.user_line import misfit
from ostinato.ops.flow.callback import name_functions
from ostinato.planner.cache import KEPT, PlanCache
from ostinato.planner.gathered import gathers
from ostinato.planner.machine import HERE, known
from ostinato.planner.passes.layouts import resolve
from ostinato.planner.pipeline import make_plan, tune
from ostinato.planner.plan import NUMERICS, Choice, Key, Measured, Numerics, Plan, Target
from ostinato.planner.policy import Precision, check_precision
from ostinato.planner.seeing.explain import told
from ostinato.planner.tuning.sites import Site
from ostinato.planner.tuning.tuner import Budget, Known, Tuner, machine
from ostinato.runtime.crew.crew import job_crew, job_size
from ostinato.runtime.crew.crew_engine import CrewEngine
from ostinato.runtime.engine import Engine, Launcher, LocalEngine

from . import watching
from .cards import session_card
from .offloading import check_offload, fitting_offload
from .pending import FORMS, Numbers, Pending, Ready
from .progress import show_as_set
from .replicas import Replicas


class _Witness:
    """What the runs of a plan have shown, as long as its engine is there."""

    def __init__(self, engine: Engine, plan_id: str) -> None:
        self.engine, self.plan_id = weakref.ref(engine), plan_id

    def __call__(self) -> Measured | None:
        engine = self.engine()
        return engine.measured(self.plan_id) if engine is not None else None


class CacheEntry(Protocol):
    """What a compiled function keeps for calls of one signature."""

    def drop(self) -> None: ...


class Function(Protocol):
    """A compiled function."""

    def forget_session(self, number: int) -> None: ...


class Recording(Protocol):
    """What writes down what the workers of sessions do."""

    def begin(self, session: Session) -> None: ...

    def end(self, session: Session) -> None: ...


class _Made:
    """What was made for a session, and goes when it ends, whoever ends it: it does not know the session."""

    def __init__(self, number: int, engine: Engine) -> None:
        self.number = number
        self.engine = engine
        self.functions: Living[Function] = Living()
        self.entries: dict[str, Living[CacheEntry]] = {}  # by plan
        self.replicas: dict[str, Replicas] = {}

    def forget(self, plan: Plan) -> None:
        """The cache let a plan go, and so does everybody."""
        self.engine.forget(plan.id)
        replicas = self.replicas.pop(plan.id, None)
        if replicas is not None:
            replicas.forget()
            for other in replicas.ids:
                self.engine.forget(other)
        for entry in self.entries.pop(plan.id, ()):
            entry.drop()

    def ran_lately(self, plan_id: str) -> bool:
        """Whether a plan ran since this was asked last, or one in its place."""
        replicas = self.replicas.get(plan_id)
        ids = [plan_id, *(replicas.ids if replicas is not None else ())]
        ran = [self.engine.ran_lately(each) for each in ids]  # all are asked
        return any(ran)

    def forget_all(self) -> None:
        for replicas in self.replicas.values():
            replicas.forget()
        self.replicas.clear()
        self.entries.clear()
        for function in self.functions:
            function.forget_session(self.number)
        self.functions.clear()

    def abandon(self) -> None:
        """Nobody has the session any more, though it was not closed. This runs at any moment, so it
        waits for nobody."""
        self.forget_all()
        if not self.engine.abandon():
            _left.append(self.engine)


class Session:
    """Workers, and the plans that they know. Made by `ost.connect`; also a context manager."""

    def __init__(self, engine: Engine, target: Target, scheduler: str = "") -> None:
        self.number = next(_numbers)
        self.scheduler = scheduler  # the address of Dask's, if the workers are its
        self.engine = engine
        self.target = target
        self._made = _Made(self.number, engine)
        self.plans = PlanCache(
            settings.cache, settings.cache_bytes, self._made.forget, self._made.ran_lately
        )
        self.refused = set[Key]()  # what needs more memory than it may
        self.pending: dict[tuple[Any, ...], Pending] = {}  # operations that ran, by their form
        self._before: Session | None = None  # in a context of its own: what was in use before
        self.settling = make_lock()
        self._over: Session | None = None  # what it took the place of, until it is used itself
        weakref.finalize(self, self._made.abandon).atexit = False
        _living.add(self)

    @property
    def workers(self) -> int:
        return self.target.workers

    # -- operands --------------------------------------------------------------------------
    def put(
        self,
        value: np.ndarray[Any, Any],
        split: Split = None,
        halos: Mapping[int, int] | None = None,
        again: bool = False,
    ) -> Operand:
        """halos: so many of their neighbours' places parts have as well, on both sides, by axes. again: it is
        one of many alike that come after each other."""
        if split is None:
            return self.engine.put(value, self.everywhere, again)
        blocks = self.target.numerics == "any-workers"
        layout = resolve(split, self.target.mesh, value.shape, blocks)
        return self.engine.put(value, layout.with_halos(halos or {}, value.shape), again)

    @cached_property
    def everywhere(self) -> Layout:
        """Return the layout of what everybody has all of."""
        return resolve(None, self.target.mesh, (), self.target.numerics == "any-workers")

    def attach(self, source: Any, split: Split = None, resident: bool = False) -> Operand:
        """An operand that stays in its file, or is read from it now."""
        if source.once and self.workers > 1:
            got = f"an iterator for {self.workers} workers"
            needed = "what each of them can read its part of"
            do = "give a function of a block's slices, or connect one worker"
            raise misfit(ArgumentError, "from_blocks", got=got, needed=needed, do=do)
        blocks = self.target.numerics == "any-workers"
        layout = resolve(split, self.target.mesh, source.shape, blocks)
        return (self.engine.read if resident else self.engine.attach)(source, layout)

    def hold(self, operand: Operand) -> Operand:
        """The operand as one of this session's."""
        if operand.engine is self.engine:
            return operand
        if isinstance(operand, Host):
            held = self.put(operand.value, operand.split)
            held.shared = operand.shared
            return held
        if isinstance(operand, File):
            return self.attach(operand.source, operand.split)
        if operand.spec.layout is not None and operand.spec.layout.stored:
            return self.attach(operand.source, _first_split(operand.spec.layout))  # type: ignore[attr-defined]
        value = operand.engine.get(operand)
        layout = operand.spec.layout
        assert layout is not None
        if layout.workers == self.workers:
            return self.engine.put(value, layout)
        return self.put(value, _first_split(layout))

    def hold_array(self, x: Array) -> Operand:
        """A materialised Array's operand, moved here if it was elsewhere. Sessions of other threads may
        move the Array on, so what this returns is what to use."""
        operand = settled(x)
        held = self.hold(operand)
        if held is not operand:
            with changing:
                if x._operand is operand:
                    x.spec, x._operand = held.spec, held  # in this order: who sees it sees its spec
                    term = x._term
                    if term is not None and term.operands is not None:
                        term.operands[x._k] = held
        return held

    def hold_leaf(self, term: Term, k: int, operand: Operand) -> Operand:
        """Hold a leaf of a graph that came to this operand."""
        x = term.held(k)
        if x is not None and x._operand is operand:
            return self.hold_array(x)
        held = self.hold(operand)
        assert term.operands is not None
        term.operands[k] = held
        return held

    def transfer(self, kind: str, what: str, nbytes: int) -> AbstractContextManager[object]:
        """A step that reads or writes files, which people may watch."""
        here = not isinstance(self.engine, LocalEngine)  # processes read and write their shares
        return activity.transfer(kind, what, nbytes // (self.workers if here else 1))

    # -- plans -----------------------------------------------------------------------------
    def plan(
        self, key: Key, names: tuple[str, ...] = (), called: str = "", quick: bool = False
    ) -> tuple[Plan, str]:
        """The plan of a key, and where it came from: memory, disk, or made; `quick` as `make_plan` has
        it."""
        self._begin()
        graph = name_functions(key.graph)  # the cache holds no functions
        kept = key if graph is key.graph else replace(key, graph=graph)
        found = self.plans.get(kept)
        if found is None:
            settings.read()
            made = make_plan(kept, names, called, quick)
            found = self._tuned(made), "made"
            self._put(found[0], made)
        elif found[1] == "memory":
            return found[0].for_trace(key, names, called), "memory"
        elif found[1] == "disk" and (tuned := self._tuned(found[0])) is not found[0]:
            self._put(tuned, found[0])
            found = tuned, "disk"
        found[0].witness.append(_Witness(self.engine, found[0].id))
        return found if kept is key else (found[0].for_trace(key, names, called), found[1])

    def ready(self, plan: Plan) -> Ready:
        """Make ready to run a plan of pending operations."""
        return Ready(plan, self.target, self.launcher(plan))

    def know_pending(
        self, form: tuple[Any, ...], values: Numbers, fixed: Numbers, plan: Plan, ready: Ready
    ) -> None:
        """Remember how to run pending operations of this form that hold no functions, with these
        numbers, of which some are fixed."""
        if form not in self.pending and len(self.pending) >= FORMS:
            self.pending.clear()
        known = self.pending.get(form)
        if known is None:
            known = self.pending[form] = Pending(values)
        known.ready[fixed] = ready
        self._made.entries.setdefault(plan.id, Living()).add(ready)

    def refuse(self, key: Key) -> None:
        """Remember that this needs more memory than it may, so that nobody plans it again."""
        if len(self.refused) >= KEPT:
            self.refused.clear()
        self.refused.add(key)

    def launcher(self, plan: Plan) -> Launcher:
        """Runs a plan; errors name the lines of whom the plan was made for."""
        launch = self._launcher(plan.original or plan)
        ran = self.engine.plan_of(plan.id) or plan.original or plan
        if ran is plan:
            return launch
        engine: Any = self.engine

        def launch_at_its_lines(operands: Sequence[Operand]) -> list[Operand]:
            try:
                made = launch(operands)
            except OstinatoError as error:
                raise plan.with_its_lines(error, ran) from error.__cause__
            if getattr(engine, "unsure", None):  # an error may show later
                engine.at_lines = lambda error: plan.with_its_lines(error, ran)
            return made

        return launch_at_its_lines

    def _launcher(self, plan: Plan) -> Launcher:
        """With what is gathered for good, where a plan gathers operands."""
        plain = self.engine.launcher(plan)
        if self.workers == 1 or plan.key.gathered:
            return plain
        replicas = self._made.replicas.get(plan.id)
        if replicas is None:
            if not (found := gathers(plan)):
                return plain
            me = weakref.ref(self)

            def launches(asked: Key | Plan) -> tuple[Plan, Launcher] | None:
                session = me()
                if session is None:
                    return None
                known = session._tuned(asked) if isinstance(asked, Plan) else session.plan(asked)[0]
                return known, session.engine.launcher(known)

            replicas = Replicas(plan, plain, found, launches)
            self._made.replicas[plan.id] = replicas
        return replicas

    def _begin(self) -> None:
        """It is used: what it took the place of gives its memory and threads back, until somebody
        uses it again."""
        check_thread()
        over, self._over = self._over, None
        if over is not None and not over.engine.closed:
            over.rest()
        while _left:
            with contextlib.suppress(IndexError):
                _left.pop().rest()

    def _tuned(self, plan: Plan) -> Plan:
        """The plan with what timing decides, unless it has that already for this machine."""
        if settings.tune == "off" or self.engine.is_elsewhere:
            return plan
        has = plan.tuned is not None and plan.tuned.machine == self.tuner.known.machine
        if has and not settings.tune_again:
            return plan
        return tune(plan, lambda found, room: self.tuner(found, room), self.engine.threads)

    def _put(self, plan: Plan, before: Plan) -> None:
        """Into the cache; what was timed on a busy machine, in memory only: on disk it is as it was before."""
        sure = plan is before or plan.tuned is None or self.tuner.was_calm(plan.tuned)
        self.plans.put(plan, None if sure else before)

    @cached_property
    def tuner(self) -> Tuner:
        """Made when there is something to choose: it looks at the machine and reads a file."""
        known = Known(settings.cache, machine(self.engine.threads, DEVICES[self.target.device]))
        times, again = settings.tune == "on", settings.tune_again
        return Tuner(self.engine.trials, known, budget, times, again, _report)

    def keep(self, function: Function, entry: CacheEntry, plan: Plan) -> None:
        """An entry of a compiled function, which goes with its plan, or with this session."""
        self._made.functions.add(function)
        self._made.entries.setdefault(plan.id, Living()).add(entry)
        if self.engine.closed:  # meanwhile, by another thread
            entry.drop()

    def rest(self) -> None:
        """Give memory, threads and plans back; what is asked next makes them anew. Arrays stay."""
        self._made.forget_all()
        self.plans.clear()
        self.pending.clear()
        self.engine.rest()

    def wait(self) -> None:
        """Return when the workers have done all that was asked of them."""
        self.engine.wait()

    def stats(self) -> dict[str, Any]:
        """Messages and bytes of control that iterations took, by kind, and each worker's state."""
        return self.engine.stats()

    @property
    def is_lost(self) -> bool:
        """Whether one of the workers died, and with it what all held."""
        return self.engine.is_lost

    @property
    def holds_nothing(self) -> bool:
        """Whether nobody used it yet, of workers that are processes."""
        return isinstance(self.engine, CrewEngine) and self.engine.is_new

    # -- life ------------------------------------------------------------------------------
    def close(self) -> None:
        """Give the workers back. Arrays that they made in this process stay, for the next session."""
        check_thread()
        for finish in before_close:
            finish()
        for each in profiles:
            each.end(self)
        watching.end(self)
        self._made.forget_all()
        self.engine.close()
        self.plans.clear()
        _look()

    def __enter__(self) -> Session:
        self.engine.check_open()
        with _lock:
            self._over = None  # which is used again at the end
            known = [s for s in _everybodys if s is not self]
            if _is_everybodys():
                _everybodys[:] = [*known, self]
            else:
                _everybodys[:] = known
                if _own.get() is not self:
                    _set_own(self)
            _look()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _repr_html_(self) -> str:
        return session_card(self)

    def __repr__(self) -> str:
        t = self.target
        mesh = "x".join(map(str, t.mesh))
        workers = "1 worker" if t.workers == 1 else f"{t.workers} workers"
        return f"<Session: {workers}, mesh {mesh}, {t.device}, numerics {t.numerics}>"


# -- which session is in use ---------------------------------------------------------------
# The main thread's sessions are everybody's who has none of his own. One that another thread makes, or
# an asyncio task enters, is of this thread or task, and of tasks that it starts.
MAX_REMEMBERED = 16  # sessions that were made and not closed, to come back to

# everybody's, as long as nobody has one of his own: for who is in haste
in_use: Session | None = None
_everybodys: list[Session] = []  # the last one is in use
_own: ContextVar[Session | None] = ContextVar("ostinato_session", default=None)
_is_shared = True  # whether nobody ever had one of his own
_living: Living[Session] = Living()
_left: deque[Engine] = deque()  # of sessions that nobody has any more, still to be closed
_numbers = itertools.count(1)
_lock = make_lock()

before_close: list[Callable[[], None]] = []  # what still needs the workers
profiles: list[Recording] = []  # what wants to know what they do: one, or none
budget = Budget()  # for timing, of this process
_report: list[tuple[Site, Choice, bool]] = []  # what it timed, and whether that was kept


def here() -> Session | None:
    """The session in use in this thread or task, if there is one."""
    session = _own.get()
    while session is not None and session.engine.closed:
        session = session._before
    if session is not None:
        return session
    last = _everybodys[-1:]  # in one step: other threads close sessions
    return last[0] if last else None


def sessions_of(scheduler: str) -> list[Session]:
    """Open sessions of this process whose workers are a Dask scheduler's, whoever connected."""
    return [s for s in _living if s.scheduler == scheduler != "" and not s.engine.closed]


def leave(scheduler: str) -> bool:
    """Workers end, and nobody can wait for them: no session of theirs is used any more; whether the one in
    use here was."""
    found = sessions_of(scheduler)
    was_in_use = here() in found
    for session in found:
        session.engine.closed = True
    _look()
    return was_in_use


def _look() -> None:
    """Who is in haste finds what is in use now."""
    global in_use
    with _lock:
        _everybodys[:] = [s for s in _everybodys if not s.engine.closed][-MAX_REMEMBERED:]
        in_use = _everybodys[-1] if _is_shared and _everybodys else None


def _is_everybodys() -> bool:
    """Whether a session that is entered here is for all who have none of their own."""
    return threading.current_thread() is threading.main_thread() and not _in_task()


def _in_task() -> bool:
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


def _publish(session: Session) -> None:
    """Use a session from now on. A cell of a notebook is a task of the main thread, and the next cell
    another: so what they connect without `with` is everybody's."""
    if threading.current_thread() is threading.main_thread() and _own.get() is None:
        with _lock:
            session._over = _everybodys[-1] if _everybodys else None
            _everybodys.append(session)
            _look()
    else:
        session._over = _own.get()
        _set_own(session)


def _set_own(session: Session) -> None:
    global _is_shared
    _is_shared = False
    before = session._before = _own.get()
    for _ in range(MAX_REMEMBERED):
        before = before._before if before is not None else None
    if before is not None:
        before._before = None
    _own.set(session)
    _look()


@contextlib.contextmanager
def using(session: Session | None) -> Iterator[None]:
    """Within it, everybody uses this session, or, with None, a new one."""
    global _everybodys
    with _lock:
        before, _everybodys = _everybodys, [] if session is None else [session]
        _look()
    try:
        yield
    finally:
        with _lock:
            _everybodys = before
            _look()


class _Inside(threading.local):
    depth = 0


_inside = _Inside()


class one_by_one:
    """Threads that would do the same do it one after another, and the later ones find it done. That only
    saves work: who is within such a thing already, or a run, as finalizers are, waits for nobody, so that no
    two threads ever wait for each other."""

    __slots__ = ("lock", "session", "taken")

    def __init__(self, lock: threading.RLock, session: Session) -> None:
        self.lock, self.session = lock, session

    def __enter__(self) -> None:
        inside = _inside.depth or helper.on or self.session.engine.lock._is_owned()  # type: ignore[attr-defined]
        self.taken = self.lock.acquire(blocking=not inside)
        _inside.depth += 1

    def __exit__(self, *_: object) -> None:
        _inside.depth -= 1
        if self.taken:
            self.lock.release()


def _first_split(layout: Layout) -> Split:
    return next((s for s in layout.splits if isinstance(s, int)), None)


def check_numerics(who: str, numerics: str) -> str:
    """One of the names of promises."""
    return _one_of(who, "numerics", numerics, NUMERICS)


def _one_of(who: str, what: str, given: str, names: Sequence[str]) -> str:
    if given not in names:
        needed = " or ".join(map(repr, names))
        raise misfit(ArgumentError, who, got=f"{what}={given!r}", needed=needed)
    return given


def check_memory_limit(
    who: str, limit: int | None, what: str = "memory_limit", least: int = 1
) -> int | None:
    """Bytes, or None for no limit."""
    if limit is None or (is_whole(limit) and limit >= least):
        return None if limit is None else int(limit)
    needed = f"a whole number of bytes per worker, {least} or more"
    do = f"write e.g. {what}=4 * 2**30 for 4 GiB, or leave it out for no limit"
    raise misfit(ArgumentError, who, got=f"{what}={limit!r}", needed=needed, do=do)


def is_whole(x: Any) -> bool:
    return isinstance(x, (int, np.integer)) and not isinstance(x, bool)


@door
def connect(
    workers: Any = None,
    *,
    mesh: tuple[int, ...] | None = None,
    numerics: Numerics = "same-plan",
    memory_limit: int | None = None,
    threads: int | None = None,
    precision: str | Precision = "as-written",
    device: str | None = None,
    offload: bool | str | os.PathLike[str] | None = None,
) -> Session:
    """Workers to compute with, from now on: this process with all its cores, or n workers that are
    threads of it; under `mpiexec -n 4 python script.py` its processes: the first runs the script and works,
    the others serve it from here on, until it ends; or those of a Dask cluster whose workers were
    started under MPI, given by a client or an address.

    mesh: how the workers are arranged, e.g. (3, 2); arrays are split along its axes. numerics:
    "same-plan" (the same plan gives the same bits), "any-workers" (so does any number of workers),
    "fast" (timing on a machine may choose ways with other bits; on a GPU, relu and gelu behind products
    have other bits, and relu makes 0 of NaN).
    memory_limit: bytes per worker; a plan that needs more runs block after block of an index, or is
    refused before it runs if that is not enough. threads: at most so many cores are used, which
    workers share; else all that this process may use, or OMP_NUM_THREADS. precision: "mixed_bf16" and
    "mixed_f16" round what float32 products multiply to halves, which some processors multiply much
    faster; sums and all else stay float32. "mixed_tf32" lets GPUs multiply float32 by TF32. "f32" and
    "f64" compute in that dtype between arguments and results, which keep theirs; an ost.Precision says
    each by name. device: where workers keep arrays and compute, "cpu" or "cuda": each process has a GPU
    of its own, threads of one share it. offload: as in `compile`, where that says nothing else.

    >>> session = ost.connect(workers=2)
    >>> ost.arange(4, split=0).layout
    split 0 of 2
    >>> session.close()
    """
    session = _opened(workers, mesh, numerics, memory_limit, threads, precision, device, offload)
    _publish(session)
    watching.begin(session)
    return session


def _opened(
    workers: Any,
    mesh: tuple[int, ...] | None,
    numerics: str,
    memory_limit: int | None,
    threads: int | None,
    precision: str | Precision,
    device: str | None = None,
    offload: bool | str | os.PathLike[str] | None = None,
) -> Session:
    """A session, in use nowhere yet."""
    settings.read()
    show_as_set()
    cluster = None
    if workers is not None and not is_whole(workers):
        cluster, workers = _cluster(workers), None
    check_numerics("connect", numerics)
    limit = check_memory_limit("connect", memory_limit)
    if threads is not None and not (is_whole(threads) and threads > 0):
        needed, do = "a whole number of 1 or more", "leave it out to use all cores"
        raise misfit(ArgumentError, "connect", got=f"threads={threads!r}", needed=needed, do=do)
    policy = check_precision("connect", precision)
    job = 1 if cluster is not None else job_size()
    apart = cluster is not None or job > 1
    device = settings.device if device is None else device
    if cluster is None or device not in (*DEVICES, *LATER):  # else its workers look for it
        _device(device)
    place = fitting_offload("connect", check_offload("connect", offload), device)
    engine: Engine
    scheduler = ""
    if cluster is not None:
        from ostinato.runtime.crew import dask

        with contextlib.ExitStack() as stack:
            client = stack.enter_context(dask.as_client(cluster))
            there = dask.await_workers(client)
            mesh = _mesh(mesh, None, there, f"{there} workers of the cluster")
            channel = dask.begin(client, threads, device)
            scheduler = str(client.scheduler.address)
            channel.until_closed = stack.pop_all()
        engine = CrewEngine(channel, mesh, device)
    elif job > 1:
        mesh = _mesh(mesh, workers, job, f"{job} processes that mpiexec started")
        engine = CrewEngine(job_crew(threads, device), mesh, device)
    else:
        mesh = _mesh(mesh, workers)
        engine = LocalEngine(math.prod(mesh), mesh, threads, device)
    model = known(device, mesh, apart) if settings.machine == HERE else None
    target = Target(mesh, device, numerics, limit, precision=policy, named=model, offload=place)
    session = Session(engine, target, scheduler)
    for each in profiles:
        each.begin(session)
    return session


def _device(name: Any) -> Device:
    """Where workers are to compute."""
    try:
        return find(name)
    except Absent as error:
        got, needed = f"device={name!r}", str(error)
        raise misfit(ArgumentError, "connect", got=got, needed=needed) from None


def _cluster(given: Any) -> Any:
    """A Dask client, or the address of a scheduler."""
    if (isinstance(given, str) and "://" in given) or hasattr(given, "scheduler_info"):
        return given
    if callable(check := getattr(given, "check_open", None)):  # a LocalCluster of ours
        check()
    client = getattr(given, "client", None)
    if hasattr(client, "scheduler_info"):
        return client
    needed = 'a number of workers, a Dask client, or an address such as "tcp://127.0.0.1:8786"'
    raise misfit(ArgumentError, "connect", got=repr(given)[:80], needed=needed)


def _mesh(
    mesh: tuple[int, ...] | None, workers: int | None, there: int | None = None, who: str = ""
) -> tuple[int, ...]:
    """How the workers are arranged, which have to be all that are there."""
    if mesh is None:
        mesh = (workers if workers is not None else there or 1,)
    axes = mesh if isinstance(mesh, (tuple, list)) else ()
    if not 1 <= len(axes) <= 4 or not all(is_whole(n) and n > 0 for n in axes):
        needed = "one to four axes of 1 worker or more, such as (3, 2)"
        raise misfit(LayoutError, "connect", got=f"mesh {mesh!r}", needed=needed)
    mesh = tuple(map(int, axes))
    count = math.prod(mesh)
    if workers is not None and workers != count:
        got = f"workers={workers}, mesh={mesh}"
        raise misfit(LayoutError, "connect", got=got, needed=f"a mesh of {workers} workers")
    if there is not None and count != there:
        got = f"{f'{workers=}' if workers is not None else f'a mesh of {count}'} for the {who}"
        do = "leave workers= and mesh= out to use all in a row"
        raise misfit(LayoutError, "connect", got=got, needed=f"one of {there}", do=do)
    return mesh


def timed() -> list[str]:
    """Describe what timing showed in this process, a line for each choice."""
    kept = told([choice for _, choice, calm in _report if calm])
    busy = told([choice for _, choice, calm in _report if not calm])
    return [*kept, *(f"{line}; not kept: the machine was busy, time it again" for line in busy)]


def current() -> Session:
    """The session in use; one worker in this process if none was asked for.

    >>> ost.session().target.device
    'cpu'
    """
    session = here()
    if session is None:
        with _lock:
            session = here()
            if session is None:
                session = _opened(None, None, "same-plan", None, None, "as-written")
                _everybodys.append(session)
                _look()
                watching.begin(session)
    return session
