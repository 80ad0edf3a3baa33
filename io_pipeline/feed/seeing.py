"""What a pipe costs, for people and for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ostinato.ops.cpu.threads import cores

from .executor import Work
from .stage import Filter, Map
from .stats import report

WAITS = 0.05  # of its time that a loop waits at least where the feed binds,
HANDS = 1e-4  # and seconds: in less a batch that is there is handed over, on a busy machine
SHARE = 0.3  # of threads' time that something takes at least to be what binds them
BUSY = 0.85  # of the cores that are at work where they bind
IDLE = 0.5  # cores' worth of a process in which no thread waits for Python's lock
# A function's wait of more microseconds, and so many times its CPU time, is not for the lock; in a
# process in which nobody waits for that, one of more microseconds than it computes.
TIMES, MIN_WAIT_US = 4, 500
MIN_IDLE_WAIT_US = 50

CAUSES = {
    "step": "the step binds",
    "none": "nothing binds: batches are there when they are asked for",
    "uneven": "some batches come late, though the feed is fast enough on average",
    "cpu": "the feed binds: the cores do",
    "threads": "the feed binds: its threads are all at work, and cores are left",
    "read": "the feed binds: reading does",
    "waits": "the feed binds: functions of its stages wait for something of their own",
    "lock": "the feed binds: threads wait for Python's lock, or for cores that others use",
}


def as_data(work: Work) -> dict[str, Any]:
    """The figures of an epoch. Times of stages are microseconds of a sample, all others seconds."""
    recipe, consumer = work.recipe, work.consumer
    stages = report(["read", *(p.stage.name for p in recipe.chain.stages)], work.costs)
    if recipe.batched is not None:
        names = ["batch", *(p.stage.name for p in recipe.batched.stages)]
        stages += report(names, work.behind)
    whole = sum(row["wall_us"] for row in stages)
    of_users, cores_used, (on, off) = _of_users(work), work.used(), work.processors()
    delay = off / on if on else 0.0
    for k, row in enumerate(stages):
        row["wait_us"] = max(row["wall_us"] - row["cpu_us"], 0.0)
        row["own_us"] = row["wait_us"] if k in of_users and _is_own(row, cores_used, delay) else 0.0
        row["share"] = row["wall_us"] / whole if whole else 0.0
    busy, made = work.so_far()
    step, wait = consumer.step.as_data(), consumer.wait.as_data()
    per_batch = made / max(made_batches(work), 1)
    feed = busy / max(made, 1) * per_batch / max(work.active, 1)
    found = {
        "epoch": work.epoch,
        "batches": consumer.batches,
        "samples": made,
        "threads": work.active,
        "computing": work.active * on / busy
        if busy
        else 0.0,  # of these, at a time; 0: nobody knows
        "chunk": work.chunk,
        "ahead": work.ahead,
        "ready": sum(batch.is_done for batch in [*work.coming]),
        "being_made": sum(batch.taken > 0 and not batch.is_done for batch in [*work.open]),
        "room": work.room,
        "batch_bytes": work.batch_bytes,
        "cores": cores(),
        "stages": stages,
        "later": recipe.later.names if recipe.later is not None else [],
        "kept": recipe.source.kept(),
        "feed": feed,  # seconds of a batch, if its threads never have to wait for room
        "step": step,
        "wait": wait,
        "busy": busy,  # seconds of threads that had something to do,
        "on_core": on,  # of these on a core,
        "in_line": off,  # and in line for one
        "first": consumer.first,
        "given": list(recipe.given),
        "decisions": list(work.decisions),
        "is_tried": work.is_tried,
    }
    found["binds"] = binds(found)
    iteration = step["mean"] + wait["mean"]
    found["headspace"] = step["mean"] / feed if feed and iteration else 0.0
    found["limit"] = limit(found)
    return found


def _of_users(work: Work) -> set[int]:
    """Which of the stages are functions of the user's."""
    chains = [work.recipe.chain, work.recipe.batched]
    placed = [p for c in chains if c is not None for p in (None, *c.stages)]
    return {k for k, p in enumerate(placed) if p is not None and isinstance(p.stage, Map | Filter)}


def _is_own(row: dict[str, Any], cores: float, delay: float) -> bool:
    """Whether a function sleeps, or waits for a network or a process, rather than for Python's lock or for
    a core: for the lock a thread waits while others compute, and not for long; how much threads wait
    for cores, the system knows."""
    cpu = row["cpu_us"]
    least = max(cpu, MIN_IDLE_WAIT_US) if cores < IDLE else max(TIMES * cpu, MIN_WAIT_US)
    return bool(row["wait_us"] - delay * cpu > least)


def made_batches(work: Work) -> int:
    """Batches that were handed out, or wait for it."""
    return work.consumer.batches + sum(batch.is_done for batch in [*work.coming])


def binds(stats: dict[str, Any]) -> str:
    """Find what an iteration waits for, one of `CAUSES`; nothing if nobody knows yet."""
    step, wait = stats["step"]["mean"], stats["wait"]["mean"]
    rows = stats["stages"]
    wall = sum(row["wall_us"] for row in rows)
    if not step + wait or not wall:
        return ""
    has_spare = stats["feed"] < (1 - WAITS) * step
    if wait < WAITS * (step + wait):
        return "step" if has_spare else "none"
    if wait < HANDS:
        return "none"
    if has_spare:
        return "uneven"
    busy, on, off = (stats.get(k, 0.0) for k in ("busy", "on_core", "in_line"))
    delay = off / on if on else 0.0  # what threads are in line for a core is nobody's wait
    waits = [max(row["wait_us"] - delay * row.get("cpu_us", 0.0), 0.0) for row in rows]
    if waits[0] > max(SHARE * wall, sum(waits) / 2):
        return "read"
    own = sum(row.get("own_us", 0.0) for row in rows)
    if own > max(SHARE * wall, sum(waits) / 2):
        return "waits"
    part = sum(row["wait_us"] for row in rows) / wall  # of their time that threads wait,
    if on and busy:  # also between stages
        part = max(1 - on / busy, 0.0)
    if (1 - part) * stats["threads"] >= BUSY * stats["cores"]:
        return "cpu"
    return "lock" if part > SHARE else "threads"


def limit(stats: dict[str, Any]) -> str:
    """Say in words what an iteration waits for, and how much there is to spare."""
    if not stats["binds"]:
        return ""
    said = CAUSES[stats["binds"]]
    if stats["binds"] in ("step", "uneven"):
        return f"{said}: the feed could be {stats['headspace']:.2g} times as fast as the step needs"
    if stats["binds"] == "none":
        return said
    return f"{said}; a batch takes it {1 / max(stats['headspace'], 1e-3):.2g} times the step"


# -- as text -----------------------------------------------------------------------------------
def explain(stats: dict[str, Any]) -> str:
    """The figures of an epoch in words."""
    if not stats:
        return "no epoch was begun yet"
    given = stats["given"]

    def how(name: str) -> str:
        return " (given)" if name in given else ""

    ahead = f"{stats['ahead'] / 1e6:.3g} MB"
    threads = f"{stats['threads']} thread{'' if stats['threads'] == 1 else 's'}"
    lines = [
        f"epoch {stats['epoch']}: {stats['batches']} batches; {threads}{how('threads')}, "
        f"chunk {stats['chunk']}{how('chunk')}, {ahead} ahead{how('ahead')}"
        f"{' (being tried)' if stats['is_tried'] else ''}, {stats['ready']} batches ready",
        "",
        f"{'stage':24}{'cpu µs':>10}{'wait µs':>10}{'share':>8}{'bytes':>12}",
    ]
    if "worker" in stats:
        lines.insert(0, f"worker {stats['worker']} of {stats['workers']} waited longest")
    lines += [
        f"{row['stage']:24}{row['cpu_us']:10.1f}{row['wait_us']:10.1f}{row['share']:8.0%}"
        f"{row['bytes']:12,.0f}{'   its own waiting' if row['own_us'] else ''}"
        for row in stats["stages"]
    ]
    if stats["later"]:
        lines.append(f"{', '.join(stats['later'])}: in the plans of who takes batches")
    lines += [_cache(kept) for kept in stats["kept"]]
    step, wait = stats["step"], stats["wait"]
    on_cores = f", {stats['computing']:.2g} threads on cores" if stats["computing"] else ""
    lines += [
        "",
        f"a batch takes {time_of(stats['feed'])} of the feed{on_cores}; the loop's step {spread(step)}, "
        f"its wait {spread(wait)}; the first batch came after {time_of(stats['first'])}",
    ]
    if stats["limit"]:
        lines.append(stats["limit"])
    if stats["decisions"]:
        lines += ["", "the tuner, last", *(f"  {said}" for said in stats["decisions"])]
    return "\n".join(lines)


def _cache(kept: dict[str, Any]) -> str:
    if not kept["behind"]:
        return "cache: its place is chosen by the first samples"
    on_disk = f", {kept['disk']} on disk" if kept["disk"] else ""
    return (
        f"cache behind {kept['behind']}: {kept['samples']} samples in memory "
        f"({kept['memory'] / 1e6:.3g} MB){on_disk}"
    )


def time_of(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def spread(times: dict[str, float]) -> str:
    """Print the mean, from which all is concluded, and how far times are from it."""
    half, most = (time_of(times[k]) for k in ("median", "p90"))
    return f"{time_of(times['mean'])} lately (half of all within {half}, 90 % within {most})"


# -- for Prometheus ----------------------------------------------------------------------------
def metrics(stats: dict[str, Any]) -> str:
    """In its text format, version 0.0.4."""
    return "".join(f"{line}\n" for line in _lines(stats)) if stats else ""


def _lines(stats: dict[str, Any]) -> Iterator[str]:
    for name, key, kind, what in (
        ("batches_total", "batches", "counter", "Batches that were taken in the epoch"),
        ("samples_total", "samples", "counter", "Samples that were made in the epoch"),
        ("epoch", "epoch", "gauge", "Number of the epoch"),
        ("threads", "threads", "gauge", "Threads that make samples"),
        ("chunk_samples", "chunk", "gauge", "Samples that a thread takes at a time"),
        ("ahead_bytes", "ahead", "gauge", "Bytes of batches that may wait"),
        ("ready_batches", "ready", "gauge", "Batches that wait to be taken"),
        ("feed_seconds", "feed", "gauge", "Time of a batch that the feed needs"),
    ):
        yield from _head(name, kind, what)
        yield f"ostinato_feed_{name} {stats[key]:.9g}"
    for name, what in (("step", "The loop's own time for a batch"), ("wait", "Its wait for it")):
        times = stats[name]
        yield from _head(f"{name}_seconds", "summary", what)
        for part, key in ((0.5, "median"), (0.9, "p90")):
            yield f'ostinato_feed_{name}_seconds{{quantile="{part}"}} {times[key]:.9g}'
        yield f"ostinato_feed_{name}_seconds_sum {times['total']:.9g}"
        yield f"ostinato_feed_{name}_seconds_count {max(stats['batches'] - 1, 0)}"
    for name, key, what in (
        ("cpu", "cpu_us", "Time on a core of a sample in a stage"),
        ("stage_wait", "wait_us", "Time of a sample in a stage that is not on a core"),
    ):
        yield from _head(f"{name}_seconds", "gauge", what)
        for k, row in enumerate(stats["stages"]):
            label = row["stage"].replace("\\", r"\\").replace('"', r"\"")
            place = f'{{stage="{label}",place="{k}"}}'
            yield f"ostinato_feed_{name}_seconds{place} {row[key] / 1e6:.9g}"


def _head(name: str, kind: str, what: str) -> Iterator[str]:
    yield f"# HELP ostinato_feed_{name} {what}"
    yield f"# TYPE ostinato_feed_{name} {kind}"
