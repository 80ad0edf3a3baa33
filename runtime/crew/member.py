"""One worker of a crew: its parts of operands by their handles, its plans, and what it does when an
order comes. The lead and the others do the same; only where a value enters or leaves is it the
lead's."""

from __future__ import annotations

import contextlib
import logging
import socket
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any

import numpy as np
from ostinato.ops.core.device import Device
from ostinato.ops.core.encode import Malformed, decode_spec, integer, listing, need
from ostinato.ops.core.exchange import chunks_of, held_pieces, written
from ostinato.ops.core.helpers import begin_to_help
from ostinato.ops.core.layout import Box, intersect, slices, volume
from ostinato.ops.core.spec import Spec, copied, empty_aligned, is_own
from ostinato.ops.core.targets import targets
from ostinato.ops.cpu.threads import blas_threads
from ostinato.planner.file import decode_plan
from ostinato.runtime.engine import box_of, measured
from ostinato.runtime.messages.mpi import MpiCommunicator
from ostinato.runtime.messages.on_device import DeviceCommunicator
from ostinato.runtime.profile_tape import Steps
from ostinato.runtime.worker import Loaded, Worker

from ostinato.errors import OstinatoError

from .crew_feeding import Portion, layout_of, mapped, slab_of
from .orders import LEAD, Order, described

SESSION = 1 << 40  # handles of one session of a crew
# seconds of a plan's run, which the lead may put off until the next order
MAX_PUT_OFF_SECONDS = 0.001
AHEAD = 4  # boxes that were put together and wait to be written
openers: dict[str, Callable[..., Any]] = {}  # of files, by what they are; the front door fills it
_log = logging.getLogger("distributed.worker.ostinato")  # what Dask shows of its workers
_log.addHandler(logging.NullHandler())  # without Dask, errors reach the user and nobody else


class Member:
    def __init__(self, communicator: MpiCommunicator, threads: int | None, memory: Device) -> None:
        self.communicator = communicator
        self.memory, self.is_host = memory, memory.is_host  # of parts
        self.rank = communicator.rank
        self.parts: dict[int, Any] = {}
        self.plans: dict[bytes, Loaded] = {}
        self.talks: Any = communicator  # about parts
        if not memory.is_host:
            self.talks = DeviceCommunicator(communicator, memory)
        self.worker = Worker(self.rank, self.talks, memory, threads)
        self.steps = Steps()
        self.files = ThreadPoolExecutor(1, "ostinato-files", begin_to_help)

    # -- orders ----------------------------------------------------------------------------
    def obey(self, order: Order, value: Any = None) -> Any:
        """Do what is asked. A value enters, and an answer is given, at the lead only."""
        if not self.is_host:
            self.memory.use()
        self.free(order.freed)
        if order.kind == "run":
            return self.run(order.plan, order.operands, order.first)
        do: Callable[[Order, Any], Any] = getattr(self, f"_{order.kind}")
        return do(order, value)

    def free(self, handles: Sequence[int]) -> None:
        for handle in handles:
            self.parts.pop(handle, None)

    def run(self, plan: bytes, operands: Sequence[int], first: int) -> None:
        if not self.is_host:  # at the lead, any thread may come
            self.memory.use()
        loaded, parts = self.plans.get(plan), self.parts
        if loaded is None:
            raise Malformed(f"plan {plan.hex()[:8]}, which worker {self.rank} was not given")
        with blas_threads(self.worker.threads) if loaded.multiplies else contextlib.nullcontext():
            made = self.worker.step(loaded, [parts[h] for h in operands])
        for part in made:
            parts[first] = part
            first += 1

    def is_short(self, plan: bytes) -> bool:
        """Whether a run of it takes little time."""
        loaded = self.plans.get(plan)
        return loaded is not None and loaded.best < MAX_PUT_OFF_SECONDS

    def _load(self, order: Order, value: Any) -> None:
        if order.plan in self.plans:
            return
        plan = value if value is not None else decode_plan(order.text.encode(), trusted=True)
        need(plan.id == order.plan.hex(), f"plan {plan.id[:8]} under the name {order.plan.hex()}")
        self.worker.load(plan)
        self.plans[order.plan] = self.worker.plans[plan.id]
        _log.info(
            "ostinato: worker %d loaded plan %s (%s), %d operations",
            *(self.rank, plan.id[:8], plan.called or "read", len(plan.program.graph.nodes)),
        )

    def _forget(self, order: Order, value: Any) -> None:
        self.plans.pop(order.plan, None)
        self.worker.unload(order.plan.hex())

    def _put(self, order: Order, value: Any) -> None:
        """The lead has the value; everybody gets a part of it."""
        spec = decode_spec(order.text)
        assert spec.layout is not None
        comm, layout, shape = self.communicator, spec.layout, spec.shape
        if layout.is_whole:
            if self.rank != LEAD:
                out = empty_aligned(shape, spec.dtype)
            else:  # its share of a run may wait, and the caller may change his array meanwhile
                out = value if is_own(value) or not self.is_host else copied(value)
            everybody = tuple(range(comm.size))
            if comm.size > 1:
                comm.start_broadcast(out, out, LEAD, everybody).wait()
            self.parts[order.first] = self.memory.from_host(out)
            return
        everything = tuple((0, n) for n in shape)
        if self.rank != LEAD:
            out = empty_aligned(layout.local_shape(shape, self.rank), spec.dtype)
            comm.start_exchange([], [(LEAD, out)] if out.size else []).wait()
            self.parts[order.first] = self.memory.from_host(out)
            return
        sends = []
        for rank in range(comm.size):
            box = layout.box(shape, rank)
            part = value[slices(box, everything)]
            if rank == LEAD:
                self.parts[order.first] = self.memory.copy_from_host(part)
            elif volume(box):
                sends.append((rank, part))
        comm.start_exchange(sends, []).wait()

    def _attach(self, order: Order, value: Any) -> None:
        self.parts[order.first] = openers["source"](order.text)

    def _target(self, order: Order, value: Any) -> None:
        """Its own sink, as long as the operand is there."""
        number, said = listing(order.text, longest=2)
        targets[integer(number, 0)] = openers["sink"](said)
        self.parts[order.first] = made = self.memory.copy_from_host(np.asarray(number))
        weakref.finalize(made, targets.pop, number, None)

    def _read(self, order: Order, value: Any) -> None:
        """Each reads its part of the array in a file."""
        said, about = listing(order.text, longest=2)
        spec = decode_spec(about)
        assert spec.layout is not None
        found = box_of(openers["source"](said), spec.layout.box(spec.shape, self.rank))
        self.parts[order.first] = self.memory.from_host(found)

    def _adopt(self, order: Order, value: Any) -> None:
        """Everybody sends of its chunks what the others get of them."""
        about, rows = listing(order.text, longest=2)
        spec = decode_spec(about)
        layout, shape = spec.layout, spec.shape
        assert layout is not None
        boxes = [layout.box(shape, rank) for rank in range(self.communicator.size)]
        mine = boxes[self.rank]
        out = empty_aligned([hi - lo for lo, hi in mine], spec.dtype)
        sends, receives = [], []
        for key, has, keeper in rows:
            box: Box = tuple((lo, hi) for lo, hi in has)
            here: Any = openers["chunk"](tuple(key)) if keeper == self.rank else None
            for rank, wanted in enumerate(boxes):
                piece = intersect(box, wanted)
                if not volume(piece):
                    continue
                if keeper == rank == self.rank:
                    out[slices(piece, mine)] = here[slices(piece, box)]
                elif rank == self.rank:
                    receives.append((keeper, out[slices(piece, mine)]))
                elif keeper == self.rank:
                    sends.append((rank, np.asarray(here[slices(piece, box)], spec.dtype)))
        self.communicator.start_exchange(sends, receives).wait()
        self.parts[order.first] = self.memory.from_host(out)

    def _write(self, order: Order, value: Any) -> None:
        """Each box goes into the file by one who has it, or some of it, from a thread of its own, so that
        orders go on. What the sink gives for each is there to be asked for."""
        said, about = listing(order.text, longest=2)
        spec, sink = decode_spec(about), openers["sink"](said)
        layout, chunks, part = spec.layout, sink.chunks, self.parts[order.operands[0]]
        assert layout is not None
        if layout.stored and chunks is None:
            chunks = chunks_of(layout, spec.shape, spec.dtype.itemsize)
        jobs: list[Future[Any]] = []
        self.parts[order.first] = jobs
        for writer, boxes in enumerate(written(layout, spec.shape, chunks)):
            for box in boxes:
                found = self._box(part, spec, box, writer)
                if found is None:
                    continue
                jobs.append(self.files.submit(sink.write, found, box))
                is_made = not self.is_host or not np.may_share_memory(found, part)
                if len(jobs) > AHEAD and is_made:
                    wait(jobs[-AHEAD - 1 : -AHEAD])  # what is put together takes memory

    def _written(self, handle: int) -> Any:
        """Results of the sink for each box, or why it did not; None while there is more to write."""
        jobs = self.parts[handle]
        if not all(job.done() for job in jobs):
            return None
        wrong = next((e for job in jobs if (e := job.exception()) is not None), None)
        return [job.result() for job in jobs] if wrong is None else described(wrong)

    def _box(self, part: Any, spec: Spec, box: Box, writer: int) -> Any:
        """A box of a value, at its writer, with what others have of it."""
        layout, mine = spec.layout, self.rank == writer
        assert layout is not None
        if layout.stored:
            return box_of(part, box) if mine else None
        pieces = list(held_pieces(layout, spec.shape, box))
        own = layout.box(spec.shape, self.rank)
        if pieces == [(writer, box)]:
            return self._seen(part[(*slices(box, own), ...)]) if mine else None
        whole: Any = empty_aligned([hi - lo for lo, hi in box], spec.dtype) if mine else None
        sends, receives = [], []
        for rank, piece in pieces:
            if mine and rank == writer:
                whole[slices(piece, box)] = self._seen(part[(*slices(piece, own), ...)])
            elif mine:
                receives.append((rank, whole[slices(piece, box)]))
            elif rank == self.rank:
                sends.append((writer, self._seen(part[(*slices(piece, own), ...)])))
        self.communicator.start_exchange(sends, receives).wait()
        return whole

    def _seen(self, part: Any) -> Any:
        """A part, or some of it, on the host; not if what it was to be made of never arrived."""
        found = self.memory.to_host(part)
        if not self.is_host:
            self.talks.check()
        return found

    def _get(self, order: Order, value: Any) -> Any:
        """All parts, put together at the lead."""
        spec = decode_spec(order.text)
        return self.whole(order.operands[0], spec)

    def whole(self, handle: int, spec: Spec) -> Any:
        if not self.is_host:
            self.memory.use()
        return self._box(self.parts[handle], spec, tuple((0, n) for n in spec.shape), LEAD)

    def _describe(self, order: Order, value: Any) -> Any:
        """Describe what each cannot open of a pipe. The lead has it already, if the program is here."""
        why = ""
        try:
            self.parts[order.first] = value if value is not None else openers["pipe"](order.text)
        except Exception as error:  # of files that are elsewhere, stages that nobody knows
            why = str(error) or type(error).__name__
        return self.communicator.gather_text(why, LEAD)

    def _feed(self, order: Order, value: Any) -> None:
        epoch, start, about = listing(order.text, longest=3)
        layout = layout_of(about)
        comm, rows = self.communicator, mapped(layout, (0,))
        has_slabs = rows.splits != layout.splits
        share = openers["share"](
            self.parts[order.operands[0]],
            integer(epoch, 0),
            integer(start, 0),
            lambda count: rows.box((count,), self.rank)[0],
            partial(slab_of, layout) if has_slabs else None,
            self.rank,
            comm.check,
            value,
        )
        host = "127.0.0.1" if comm.beside == comm.size else own_address()
        self.parts[order.first] = Portion(share, layout, comm, host)

    def _batch(self, order: Order, value: Any) -> Any:
        number, agrees, tunes = listing(order.text, longest=3)
        portion = self.parts[order.operands[0]]
        made, answer = portion.batch(integer(number, 0), bool(agrees), bool(tunes))
        for handle, array in enumerate(made, order.first):
            self.parts[handle] = self.memory.next_from_host(array)
        return answer

    def _wait(self, order: Order, value: Any) -> None:
        self.wait()

    def wait(self) -> None:
        """A byte to the lead from everybody."""
        if self.rank == LEAD:
            self.communicator.signals()
        else:
            self.communicator.signal(LEAD)

    def _ask(self, order: Order, value: Any) -> Any:
        """Gather what each worker says at the lead, in the order of ranks."""
        what, *more = listing(order.text, longest=2)
        if what == "state":
            said: Any = self.state()
        elif what == "record":
            self.steps.begin()
            self.worker.record()
            said = None
        elif what == "recorded":
            said = self._recorded()
        elif what == "wrong":
            said = self._wrong()
        elif what == "measured" and len(more) == 1:
            said = self.measured(str(more[0]))
        elif what == "written" and len(more) == 1:
            said = self._written(more[0])
        elif what in ("faults", "stats") and len(more) == 1:
            said = getattr(self.parts[more[0]].share, what)()
        else:
            raise Malformed(f"a question about {what!r:.40}")
        return self.communicator.gather_text(said, LEAD)

    def _wrong(self) -> dict[str, Any] | None:
        """Faults of runs that nobody knows yet."""
        try:
            self.worker.look()
        except OstinatoError as error:
            return described(error)
        return None

    def _recorded(self) -> dict[str, Any]:
        """Record of what ran here since that was asked for, and what else took long."""
        steps, self.steps = self.steps, Steps()
        steps.end()
        return self.worker.recorded() | steps.as_data()

    def _reset(self, order: Order, value: Any) -> None:
        """The operands of a session are gone: those whose handles it counted."""
        for handle in [h for h in self.parts if h // SESSION == order.first // SESSION]:
            del self.parts[handle]

    def recover(self, comm: Any, until: Callable[[Any], None]) -> None:
        """Begin anew after a failure, on another communicator."""
        self.talks.restart(comm, until)
        self.worker.restart()
        _log.warning("ostinato: worker %d begins anew after a failure", self.rank)

    def state(self) -> dict[str, Any]:
        """About this worker, for people."""
        return self.worker.state() | {
            "operands": len(self.parts),
            "operand_bytes": sum(getattr(x, "nbytes", 0) for x in self.parts.values()),
        }

    def measured(self, plan: str) -> list[Any] | None:
        """Measurements of a plan's runs here."""
        loaded = self.worker.plans.get(plan)
        found = measured([loaded]) if loaded is not None else None
        if found is None:
            return None
        return [found.runs, found.best, found.mean, found.steps, found.how]


def own_address() -> str:
    """Where other machines find this one. Some give their name to themselves alone: then it is the end of a
    way outwards, which is looked up and not taken."""
    found = socket.gethostbyname(socket.gethostname())
    if found.startswith("127."):
        with contextlib.suppress(OSError), socket.socket(type=socket.SOCK_DGRAM) as way:
            way.connect(("198.51.100.1", 9))
            found = way.getsockname()[0]
    return found
