"""What the dashboard's counters cost: iterations of about a millisecond on two workers, some runs
counted and some not, in turn. `python -m benchmarks.dashboard`"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

import ostinato as ost
from ostinato.sessions import current

ROWS, CENTRES, RUNS, TURN = 120_001, 12, 10_000, 20
_took: dict[bool, list[float]] = {True: [], False: []}


def take_turns(dask_worker: Any) -> None:
    """From now on, every other few runs of this worker happen without clocks."""
    from ostinato.runtime import worker
    from ostinato.runtime.messages.persistent import Mail

    counted = worker.SLOW, Mail.start, Mail.wait
    step = worker.Worker.step

    def begin(self: Any, finish: Any = None) -> Any:
        comm, self._finish = self._comm, finish
        comm.going.add(self)
        for start in self._starts:
            start()
        return self

    def wait(self: Any) -> None:
        for has_gone in self._tests:
            if not has_gone():
                self._comm.until(has_gone)
        self._comm.going.discard(self)
        if self._finish is not None:
            self._finish()

    def switched(self: Any, loaded: Any, arrays: Any) -> Any:
        on = loaded.runs // TURN % 2 == 0
        if loaded.runs % TURN == 0:
            found = counted if on else (float("inf"), begin, wait)
            worker.SLOW, Mail.start, Mail.wait = found  # type: ignore
        start = time.perf_counter()
        made = step(self, loaded, arrays)
        _took[on].append(time.perf_counter() - start)
        return made

    worker.Worker.step = switched  # type: ignore[method-assign]
    dask_worker._took = _took


def look(dask_worker: Any) -> tuple[dict[bool, list[float]], float]:
    """Seconds of each run, and of reading all counters once."""
    from ostinato.runtime.dashboard import page

    looks = []
    for _ in range(50):
        start = time.perf_counter()
        page.teller(dask_worker).heartbeat()
        looks.append(time.perf_counter() - start)
    return dask_worker._took, statistics.median(looks)


def lloyd(x: Any, c: Any) -> Any:
    near = ((x[:, None, :] - c) ** 2).sum(2).argmin(1)
    chosen = (near[:, None] == np.arange(CENTRES)).astype("float32")
    return chosen.T @ x / (chosen.sum(0)[:, None] + 1)


def main() -> None:
    with ost.LocalCluster(2, threads=2) as cluster:
        r = np.random.default_rng(0)
        x = ost.asarray(r.normal(size=(ROWS, 16)).astype(np.float32), split=0)
        c = ost.asarray(r.normal(size=(CENTRES, 16)).astype(np.float32))
        step = ost.compile(lloyd)
        for _ in range(100):
            c = step(x, c)
        current().wait()
        cluster.client.run(take_turns)
        for _ in range(RUNS):
            c = step(x, c)
        current().wait()
        for address, (took, each) in cluster.client.run(look).items():
            on, off = (statistics.quantiles(took[k], n=10) for k in (True, False))
            print(address)
            for name, k in (("tenth", 0), ("third", 2), ("half", 4)):
                cost = 100 * (on[k] / off[k] - 1)
                print(
                    f"  {name:8} {1e3 * off[k]:.4f} ms, counted {1e3 * on[k]:.4f} ms, {cost:+.2f} %"
                )
            print(f"  reading the counters, twice a second: {1e6 * each:.0f} µs")


if __name__ == "__main__":
    main()
