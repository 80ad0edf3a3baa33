"""What tests of pipes run under mpiexec: `mpiexec -n 2 python -m tests.io_pipeline.crew_jobs NAME FOLDER`."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI
from ostinato.io_pipeline.array_files import Hdf5Source, NpySource
from ostinato.io_pipeline.feed import folders
from ostinato.io_pipeline.feed.described import as_data, from_data
from ostinato.io_pipeline.feed.kept_boxes import Boxes
from ostinato.io_pipeline.feed.pipe import Pipe
from ostinato.io_pipeline.feed.share import Share
from ostinato.ops.core.tree import flatten
from ostinato.runtime import bind

import ostinato as ost

RANK = MPI.COMM_WORLD.rank
READ: list[str] = []  # files that this process has read


@ost.io.stage("halve_values")
@dataclass(frozen=True)
class Halve(ost.io.Stage):
    """Known to all, since all ran this."""

    def image(self, xp: Any, x: Any, drawn: Any) -> Any:
        return x // 2


@ost.io.stage("sleep_on")
@dataclass(frozen=True)
class Sleep(ost.io.Stage):
    """One worker takes long."""

    rank: int
    seconds: float = 0.8

    def image(self, xp: Any, x: Any, drawn: Any) -> Any:
        if self.rank == RANK:
            time.sleep(self.seconds)
        return x


NAMED: list[str] = []  # the scenario, if it is one of several


def say(**what: Any) -> None:
    print(json.dumps({NAMED[-1]: what} if NAMED else what), flush=True)


def each() -> None:
    """Scenarios of one crew, one after another: such as change nothing before all connect."""
    for name in sys.argv[3:]:
        NAMED.append(name)
        globals()[name]()
        if (session := ost.session()) is not None:
            session.close()


def pictures(root: str, batch: int = 8, tail: str = "keep") -> Pipe:
    return (
        ost.io.images(f"{root}/**/*.jpg", labels="folder")
        .shuffle(seed=7)
        .decode()
        .random_resized_crop(16)
        .random_flip()
        .normalize((0.5, 0.4, 0.3), 0.2)
        .batch(batch, tail=tail)
    )


def _watch_threads(root: str) -> None:
    """Hands write down how many threads make samples."""

    def watch() -> None:
        while True:
            names = [t.name for t in threading.enumerate()]
            count = sum(n.startswith("ostinato-feed") for n in names)
            Path(f"{root}/threads.{RANK}").write_text(str(count))
            time.sleep(0.05)

    threading.Thread(target=watch, daemon=True).start()


def _threads(root: str) -> int:
    """Of all other processes together, when they had time to end."""
    for _ in range(100):
        time.sleep(0.1)
        texts = [Path(f"{root}/threads.{r}").read_text() for r in range(1, MPI.COMM_WORLD.size)]
        if "" not in texts and not (count := sum(map(int, texts))):
            return count
    return count


def same(found: Any, wanted: Any) -> bool:
    """Whether two streams have the same bits."""
    found, wanted = ([tuple(map(np.asarray, b)) for b in x] for x in (found, wanted))
    return len(found) == len(wanted) and all(
        a.dtype == b.dtype and np.array_equal(a, b)
        for one, other in zip(found, wanted, strict=True)
        for a, b in zip(one, other, strict=True)
    )


def _count_files() -> None:
    content = folders.content

    def counted(path: str) -> bytes:
        READ.append(path)
        return content(path)

    folders.content = counted  # type: ignore[assignment]
    has_read = folders.Files.has_read

    def noted(self: Any, indices: Any, files: Any) -> None:  # by machine code
        READ.extend(self.paths[k] for k in indices)
        has_read(self, indices, files)

    folders.Files.has_read = noted  # type: ignore[method-assign]


def epochs() -> None:
    """Each reads its own part of each batch; nobody sends a sample; a batch is one order."""
    _count_files()
    if RANK:
        import atexit

        atexit.register(lambda: print("\n" + json.dumps({f"read{RANK}": len(READ)}), flush=True))
    session = ost.connect()
    pipe = pictures(sys.argv[2])
    wanted = [[*pipe.to("numpy").epoch(e)] for e in (1, 2)]
    READ.clear()
    comm = session.engine.lead.communicator  # type: ignore[attr-defined]
    sent = sum(comm.bytes_to)
    right = []
    layouts = set()
    for e in (1, 2):
        found = []
        for x, y in pipe.epoch(e):
            layouts.add(str(x.layout))
            found.append((x, y))
        right.append(len(found))
        session.wait()
        between = sum(comm.bytes_to) - sent
        right.append(same(found, wanted[e - 1]))
        sent = sum(comm.bytes_to)
    orders = session.stats()["orders"]
    say(
        right=right, between=between, orders=orders, read0=len(READ), layouts=[*layouts],
        explained=pipe.explain(),
    )  # fmt: skip


def tails() -> None:
    """Fewer samples than workers, samples of other lengths, texts: whatever one worker makes alone."""
    root = sys.argv[2]
    tars, small = f"{root}/lengths.tar", np.arange(11)
    ost.connect()
    pipes = {
        "one left": pictures(root, 13),
        "padded": pictures(root, 13, "pad"),
        "few": pictures(root, 1).run_with(threads=3, chunk=1),
        "lengths": ost.io.shards(tars, ("npy", "cls")).shuffle(5).batch(4, tail="keep", pad=-1),
        "texts": ost.io.shards(tars, ("txt", "cls")).batch(4, tail="keep"),
        "on a device": pictures(root).on_device("normalize"),
        "a dict": ost.io.arrays({"a": f"{root}/rows.npy", "label": small}).batch(3, tail="keep"),
    }
    right = {}
    for name, pipe in pipes.items():
        wanted = [*pipe.to("numpy").epoch(2)]
        found = [*pipe.epoch(2)]
        if name == "a dict":
            found, wanted = ([tuple(b.values()) for b in x] for x in (found, wanted))
        right[name] = same(found, wanted) and not isinstance(pipe.cursor.held, str)
    say(right=right)


def slabs() -> None:
    """Volumes in files, of which each reads its slab alone."""
    root = sys.argv[2]
    read = [0]
    before = NpySource.read

    def counted(self: Any, out: Any, box: Any) -> None:
        read[0] += out.nbytes
        before(self, out, box)

    NpySource.read = counted  # type: ignore[method-assign]
    started, starter = [0], bind.starter

    def noted(*given: Any) -> Any:
        started[0] += 1
        return starter(*given)

    bind.starter = noted
    if RANK:
        import atexit

        def told() -> None:
            found = {f"read{RANK}": read[0], f"started{RANK}": started[0]}
            print("\n" + json.dumps(found), flush=True)

        atexit.register(told)
    session = ost.connect()
    rows = {name: f"{root}/{name}.npy" for name in ("volume", "mask")} | {"label": np.arange(6)}
    pipe = ost.io.arrays(rows).shuffle(1).random_flip3d().normalize3d(10.0, 3.0)
    pipe = pipe.batch(2, split=sys.argv[3], halo=int(sys.argv[4]))
    wanted = [*pipe.to("numpy").epoch(1)]
    read[0] = 0
    depth = 1 + ("depth", "height").index(sys.argv[3])

    def second(x: Any) -> Any:
        before, here, behind = (
            tuple(
                slice(k, x.shape[d] - 2 + k) if d == depth else slice(None) for d in range(x.ndim)
            )
            for k in range(3)
        )
        return x[before] + x[behind] - 2 * x[here]

    smooth = ost.compile(lambda x, y: (second(x), second(y)))
    right, layouts = [], []
    for found, batch in zip(pipe.epoch(1), wanted, strict=True):
        for z, x in zip(
            smooth(found["volume"], found["mask"]), (batch["volume"], batch["mask"]), strict=True
        ):
            right.append(np.allclose(np.asarray(z), second(x), atol=1e-4))
        right += [np.array_equal(np.asarray(found[f]), batch[f]) for f in batch]
        layouts = [str(found[f].layout) for f in ("volume", "mask", "label")]
    orders = session.stats()["orders"]
    say(right=right, layouts=layouts, read0=read[0], started0=started[0], orders=orders)


def boxes() -> None:
    """Volumes in slabs, kept: bytes that each reads in each epoch, and how many boxes it was given."""
    root, mesh = sys.argv[2], tuple(map(int, sys.argv[3].split(",")))
    read, counts, before, offers = [0], list[Any](), Hdf5Source.read, Share.offers
    mine = list[Share]()

    def counted(self: Any, out: Any, box: Any) -> None:
        read[0] += out.nbytes
        before(self, out, box)

    def count() -> None:
        if mine:
            (boxes,) = (one for one in mine.pop()._given if isinstance(one, Boxes))
            counts.append([read[0], boxes.lines.fetched, boxes.own.room.used])
        read[0] = 0

    def offered(self: Share, host: str) -> list[Any]:  # nobody asks before all have done so
        count()
        mine.append(self)
        return offers(self, host)

    Hdf5Source.read, Share.offers = counted, offered  # type: ignore[method-assign]
    if RANK:
        import atexit

        def tell() -> None:
            count()
            print("\n" + json.dumps({f"counts{RANK}": counts}), flush=True)

        atexit.register(tell)
    session = ost.connect(mesh=mesh)

    def pipe(**more: Any) -> Pipe:
        found = ost.io.volumes([f"{root}/{k}.h5" for k in range(7)], labels=[*range(7)], **more)
        return found.cache(int(sys.argv[4])) if sys.argv[4] != "0" else found

    def behind(found: Pipe) -> Pipe:
        split, halo = ("samples", "depth")[-len(mesh) :], (0, 1)[-len(mesh) :]
        return found.shuffle(3).random_flip3d().batch(2, split=split, halo=halo)

    plain = ost.io.volumes([f"{root}/{k}.h5" for k in range(7)], labels=[*range(7)])
    wanted = [[*behind(plain).to("numpy").epoch(e)] for e in (1, 2, 3)]
    kept = behind(pipe())
    right = [same([*kept.epoch(1 + k)], wanted[k]) for k in range(2)]
    batches = iter(kept.epoch(3))
    first = [next(batches) for _ in range(2)]
    state = json.loads(json.dumps(kept.state()))
    right.append(same([*first, *batches], wanted[2]))
    session.wait()
    count()
    other = behind(pipe())
    right.append(same([*other.epoch(other.restore(state))], wanted[2][2:]))
    session.wait()
    say(right=right, counts0=counts[:3])


def rates() -> None:
    """Of several bad files each worker has few, and all together too many."""
    session, said = ost.connect(), []
    plain = ost.io.images(f"{sys.argv[2]}/**/*.jpg", labels="folder").shuffle(1)
    for do in ("skip", "replace"):
        pipe = plain.decode().on_error(do, most=0.003).resize((16, 16)).batch(4, tail="keep")
        for one in (pipe, pipe.to("numpy")):
            count, error = 0, ""
            try:
                for _ in one.epoch(1):
                    count += 1
                    session.wait()
            except ost.errors.SampleError as found:
                error = str(found)
            said.append([count, error])
    say(said=said, total=float(np.asarray(ost.ones((10,), split=0).sum())))


def later() -> None:
    """Stages that are left to the plans of who takes batches: what crosses, and what a plan does."""
    session, right, said = ost.connect(), {}, {}
    plain = ost.io.images(f"{sys.argv[2]}/**/*.jpg", labels="folder").shuffle(7).decode()
    flipped = plain.resize((12, 18)).random_flip().random_flip(0.3, vertical=True)
    chains = {
        "normalize": (flipped.normalize(0.4, 0.2), ("normalize",)),
        "all": (flipped.center_crop(10).normalize(0.4, 0.2), ()),
    }
    step = ost.compile(lambda x, y: ((x * 2).sum((1, 2, 3)), y + 1))
    for name, (chain, stages) in chains.items():
        for size in (8, 9, 1):  # of 27: evenly, not evenly, fewer than workers
            pipe = chain.batch(size, tail="keep").on_device(*stages)
            wanted = [*pipe.to("numpy").epoch(1)]
            found = [*pipe.epoch(1)]
            right[f"{name} {size}"] = same(found, wanted)
            assert not isinstance(pipe.cursor.held, str)
            sums = [step(x, y) for x, y in pipe.epoch(1)]
            right[f"{name} {size} in a step"] = all(
                np.allclose(
                    np.asarray(x), 2 * np.asarray(b[0]).sum((1, 2, 3)), rtol=1e-3, atol=1e-2
                )
                for (x, _), b in zip(sums, wanted, strict=True)
            )
    pipe = chains["all"][0].on_error("skip").batch(8).on_device()
    right["with faults"] = same([*pipe.epoch(1)], [*pipe.to("numpy").epoch(1)])
    said["inputs"] = [str(s.bare) for s in step.plan.lowered.inputs][:1]
    session.wait()
    say(right=right, **said)


def borders() -> None:
    """Compressed volumes in slabs with halos: how many chunks each inflates."""
    root, seen, before = sys.argv[2], [0], Hdf5Source._chunk

    def counted(self: Any, at: Any) -> Any:
        seen[0] += 1
        return before(self, at)

    Hdf5Source._chunk = counted  # type: ignore[method-assign]
    if RANK:
        import atexit

        atexit.register(lambda: print("\n" + json.dumps({f"seen{RANK}": seen[0]}), flush=True))
    mesh = tuple(map(int, sys.argv[3].split(",")))
    ost.connect(mesh=mesh)
    pipe = ost.io.volumes([f"{root}/{k}.h5" for k in range(5)]).shuffle(3).random_flip3d()
    pipe = pipe.batch(2, split=("samples", "depth")[-len(mesh) :], halo=(0, 2)[-len(mesh) :])
    wanted = [*pipe.to("numpy").epoch(1)]
    pipe = from_data(as_data(pipe)).to("ostinato")  # with nothing kept
    seen[0] = 0
    found = [*pipe.epoch(1)]
    right = all(np.array_equal(np.asarray(x), y) for x, y in zip(found, wanted, strict=True))
    say(right=right, seen0=seen[0])


def goes_on() -> None:
    """From a state in the middle of an epoch, of whomever; after breaks; after failures of other things."""
    if RANK:
        _watch_threads(sys.argv[2])
    session = ost.connect()
    pipe = pictures(sys.argv[2])
    wanted = [*pipe.to("numpy").epoch(3)]
    first = []
    for batch in pipe.epoch(3):
        first.append(batch)
        if len(first) == 2:
            break
    state = json.loads(json.dumps(pipe.state()))
    other = pictures(sys.argv[2]).run_with(threads=3, chunk=2)
    rest = [*other.epoch(other.restore(state))]
    alone = pictures(sys.argv[2]).to("numpy")
    same_alone = same([*alone.epoch(alone.restore(state))], wanted[2:])
    found, errors = [], []
    inverse = ost.compile(ost.linalg.inv)
    for k, batch in enumerate(pipe.epoch(3)):
        found.append(batch)
        if k == 1:  # an operation fails, and the epoch goes on
            try:
                np.asarray(inverse(ost.zeros((3, 3))))
            except ost.errors.LinAlgError as error:
                errors.append(str(error))
    right = [same(first, wanted[:2]), same(rest, wanted[2:]), same_alone, same(found, wanted)]
    with pipe.epoch(4) as batches:
        next(batches)
    left = [_threads(sys.argv[2])]  # after `close`,
    for _ in pipe.epoch(5):
        break
    session.wait()  # and after breaking off, at the next order
    left.append(_threads(sys.argv[2]))
    say(right=right, errors=errors, left=left)


def meshes() -> None:
    """Four workers in two rows, parts in whole blocks; epochs side by side, none at all, and at their end."""
    root = sys.argv[2]
    session = ost.connect(mesh=(2, 2), numerics="any-workers")
    right = {}
    for size, tail in ((8, "keep"), (5, "pad"), (100, "drop"), (100, "keep")):
        pipe = pictures(root, size, tail)
        right[f"{size} {tail}"] = same([*pipe.epoch(1)], [*pipe.to("numpy").epoch(1)])
    one, two = pictures(root), pictures(root, 9)
    pairs = [*zip(one.epoch(2), two.epoch(3), strict=False)]
    for k, pipe in enumerate((one, two)):
        wanted = [*pipe.to("numpy").epoch(2 + k)]
        right[f"beside another {k}"] = same([p[k] for p in pairs], wanted[: len(pairs)])
    whole = pictures(root)
    assert len([*whole.epoch(4)]) == 4
    other = pictures(root)
    epoch = other.restore(whole.state())
    right["at the end"] = [*other.epoch(epoch)] == []
    right["after it"] = same([*other], [*whole.to("numpy").epoch(epoch + 1)])
    volumes = ost.io.arrays({"volume": f"{root}/volume.npy", "label": np.arange(4)})
    (batch,) = volumes.batch(4, split=("samples", "height")).epoch()
    right["a volume"] = np.array_equal(np.asarray(batch["volume"]), np.load(f"{root}/volume.npy"))
    layouts = [str(batch[name].layout) for name in ("volume", "label")]
    say(right=right, layouts=layouts, orders=session.stats()["orders"])


def damaged() -> None:
    """One file that cannot be decoded: at the user's line; the crew works on; left out or replaced."""
    session = ost.connect()
    root = sys.argv[2]
    plain = ost.io.images(f"{root}/**/*.jpg", labels="folder").shuffle(1)
    error: Any = None
    try:
        for _ in plain.decode().resize((16, 16)).batch(8, tail="keep").epoch():
            session.wait()
    except ost.errors.SampleError as found:
        error = found
    total = float(np.asarray(ost.ones((10,), split=0).sum()))
    right, faults = [], []
    for do in ("skip", "replace"):
        pipe = plain.decode().on_error(do).resize((16, 16)).batch(8, tail="keep")
        local = pipe.to("numpy")
        wanted = [*local.epoch(1)]
        right.append(same([*pipe.epoch(1)], wanted))
        named = [[(f.place, f.name, f.stage) for f in p.faults()] for p in (pipe, local)]
        faults.append(named[0] == named[1] != [])
    single = plain.decode().on_error("skip").resize((16, 16)).batch(1)  # no batch without a sample
    right.append(same([*single.epoch(1)], [*single.to("numpy").epoch(1)]))
    say(error=str(error), line=getattr(error, "line", ""), total=total, right=right, faults=faults)


def tuned() -> None:
    """One worker is slow: all change threads, chunks and batches ahead, and all at the same batches."""
    from ostinato.io_pipeline.tuner.together import Together
    from ostinato.runtime.crew.crew_feeding import Portion

    root, now, switches = sys.argv[2], [0], list[Any]()
    batch, go_on = Portion.batch, Together._go_on

    def numbered(self: Any, number: int, *more: Any) -> Any:
        now[0] = number
        return batch(self, number, *more)

    def noted(self: Any, work: Any, config: Any) -> None:
        found = [now[0], config.threads, config.ahead, config.chunk]
        if switches[-1:] != [found]:
            switches.append(found)
        go_on(self, work, config)

    Portion.batch, Together._go_on = numbered, noted  # type: ignore[method-assign]
    if RANK:
        import atexit

        atexit.register(lambda: print("\n" + json.dumps({f"switches{RANK}": switches}), flush=True))
    session = ost.connect()
    pipe = ost.io.images(f"{root}/**/*.jpg").repeat(30).shuffle(1).decode().resize((16, 16))
    pipe = pipe.sleep_on(1, 0.004).batch(8)
    add = ost.compile(lambda x: x.sum())
    epoch = 0
    while epoch < 2 or (epoch < 20 and (len(switches) < 4 or max(s[1] for s in switches) < 2)):
        for x in pipe.epoch(epoch):  # on a busy machine few laps may count
            add(x)
        epoch += 1
    session.wait()
    orders = session.stats()["orders"]["batch"]
    say(switches0=switches, orders=orders, batches=epoch * len(pipe))


def stored() -> None:
    """Each sample is decoded once, wherever; later epochs get it from who has it, as far as there is room."""
    from ostinato.io_pipeline.feed import cached
    from ostinato.io_pipeline.feed.cached import Cached

    root, room = sys.argv[2], int(sys.argv[3])
    mine, counts, init = list[Cached](), list[Any](), Cached.__init__

    def noted(self: Cached, *given: Any, **named: Any) -> None:
        mine.append(self)
        init(self, *given, **named)

    def counted() -> list[int]:
        cache = mine[-1]
        others = cache.others
        assert others is not None
        return [cache.made, others.fetched, others.bytes, cache.space.used]

    Cached.__init__ = noted  # type: ignore[method-assign]
    meet = Cached.meet

    def met(self: Cached, *given: Any) -> None:
        if self.others is not None:
            counts.append(counted())
        meet(self, *given)

    Cached.meet = met  # type: ignore[method-assign]
    if RANK:
        import atexit

        def tell() -> None:
            print("\n" + json.dumps({f"counts{RANK}": [*counts, counted()]}), flush=True)

        atexit.register(tell)
    assert cached
    session = ost.connect()
    pipe = ost.io.images(f"{root}/**/*.jpg", labels="folder").decode().resize((16, 16))
    pipe = pipe.cache(room).shuffle(3).random_flip().batch(8, tail="keep")
    plain = ost.io.images(f"{root}/**/*.jpg", labels="folder").decode().resize((16, 16))
    plain = plain.shuffle(3).random_flip().batch(8, tail="keep").to("numpy")
    right = [same([*pipe.epoch(e)], [*plain.epoch(e)]) for e in range(3)]
    session.wait()
    say(right=right, counts0=[*counts, counted()], held=isinstance(pipe.cursor.held, str))


def alone() -> None:
    """What workers cannot be told of is made by the program."""
    ost.connect()
    plain = ost.io.images(f"{sys.argv[2]}/**/*.jpg").decode().resize((16, 16))
    pipes = {
        "stage": plain.halve_values().batch(8),
        "map": plain.map(lambda x: x // 2).batch(8),
        "memory": ost.io.arrays(np.zeros((1 << 18, 5), np.int8)).batch(1 << 16),
        "samples": ost.io.samples([np.arange(3), np.arange(3)]).batch(2),
    }
    said, right = {}, []
    for name, pipe in pipes.items():
        right.append(same([(b,) for b in pipe.epoch()], [(b,) for b in pipe.to("numpy").epoch()]))
        said[name] = pipe.cursor.held if isinstance(pipe.cursor.held, str) else ""
    say(right=right, said=said, explained=pipes["map"].explain().splitlines()[-1])


def interrupted() -> None:
    """Ctrl-C while batches are made: it comes at once, and the next epoch is as ever."""
    session = ost.connect()
    root = sys.argv[2]
    plain = ost.io.images(f"{root}/**/*.jpg").decode().resize((16, 16))
    seen, took = [], 0.0
    for rank in range(2):  # who waits is the lead, or another
        timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
        start = time.perf_counter()
        try:
            timer.start()
            for _ in plain.sleep_on(rank, 2.5).batch(8).run_with(threads=1).epoch():
                session.wait()
        except KeyboardInterrupt:
            took = max(took, time.perf_counter() - start)
            seen.append("KeyboardInterrupt")
        timer.cancel()
    pipe = pictures(root)
    say(seen=seen, took=took, right=same([*pipe.epoch(1)], [*pipe.to("numpy").epoch(1)]))


def trained() -> None:
    """Training that is broken off in the middle of an epoch, and goes on."""
    ost.connect()
    adam = ost.optim.Adam(0.01)
    w = {"w": ost.zeros((108, 3), dtype="float32"), "b": ost.zeros(3, dtype="float32")}

    def loss(w: Any, x: Any, y: Any) -> Any:
        return ost.nn.cross_entropy(x[:, ::4, ::4].reshape((-1, 108)) @ w["w"] / 255 + w["b"], y)

    def step(state: Any, batch: Any) -> Any:
        value, slopes = ost.value_and_grad(loss)(state[0], *batch)
        return adam.update(state[0], slopes, state[1]), {"loss": value}

    def train(folder: str, callbacks: Any = ()) -> Any:
        pipe = ost.io.images(f"{sys.argv[2]}/**/*.jpg", labels="folder").decode().resize((24, 24))
        return ost.fit(
            step,
            (w, adam.init(w)),
            pipe.shuffle(seed=7).batch(8),
            epochs=2,
            checkpoint=Path(sys.argv[3]) / folder,
            save_every=2,
            resume=True,
            callbacks=callbacks,
            progress=False,
        )

    class Breaks:
        def on_step(self, run: Any) -> None:
            if run.step == 7:
                raise InterruptedError

    whole, history = train("whole")
    try:
        train("broken", [Breaks()])
    except InterruptedError:
        end, told = train("broken")
    pairs = zip(flatten(whole)[0], flatten(end)[0], strict=True)
    same = all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs)
    say(same=same, histories=told.epochs == history.epochs, losses=[r["loss"] for r in told.epochs])


if __name__ == "__main__":
    run: Callable[[], None] = globals()[sys.argv[1]]
    run()
