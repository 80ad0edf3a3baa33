"""What tests run under mpiexec on GPUs that are not there: `mpiexec -n 3 python -m tests.runtime.gpu_jobs NAME`.

Processes have no NCCL that could be faked between them: what they send goes through their memory."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import numpy as np

import ostinato as ost
from tests import fake_cuda, fake_device, fake_nccl
from tests.runtime.descent import train
from tests.runtime.jobs import RANK, SIZE, caught, fail_in, say

DEVICE = os.environ.get("TESTED_DEVICE", "fake")
fake_cuda.Device.count = 2  # on this machine
fake_nccl.available = False
X = np.random.default_rng(0).normal(size=(301, 7))


def everything() -> None:
    """Values come and go, plans run, files are written; all of it on a GPU of each process's own."""

    session = ost.connect(device=DEVICE)
    x = ost.asarray(X, split=0)
    others = ost.asarray(X, split=1), x.resplit(1), x
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.zarr"
        ost.save(path, x * 2)
        stored = np.asarray(ost.load(path, split=0) + 1)
        np.save(rows := Path(folder) / "rows.npy", X.astype("f4"))
        pipe = ost.io.arrays(rows).batch(43)
        batches = [np.asarray(batch * 2.0) for batch in pipe.epoch(0)]
    y = ost.asarray(X[:, 0], split=0)
    w, values = train(ost.zeros(7), x, y, 6)
    say(
        values=all((np.asarray(v) == X).all() for v in others),
        stored=bool(np.allclose(stored, X * 2 + 1)),
        trained=[*values, *map(float, w)],
        states=[[w["device"], w["messages"]] for w in session.stats()["workers"]],
        running=np.asarray(ost.compile(lambda x: ost.cumulative_sum(x, axis=0))(x))[-1].tolist(),
        fed=bool((np.concatenate(batches) == X.astype("f4") * 2).all()),
    )


def fails(rank: str) -> None:
    """One worker fails; all begin anew."""
    fail_in(3, int(rank))
    ost.connect(device=DEVICE)
    f = ost.compile(lambda x: x.sum(0))
    x = ost.asarray(X, split=0)

    def run() -> None:
        for _ in range(5):
            np.asarray(f(x))

    error = caught(run)
    other = caught(lambda: ost.connect(device="cpu"))
    pick, inside = ost.compile(lambda x, i: x[i].sum(0)), np.arange(9)
    bad = pick(x, ost.asarray(np.array([*inside, 777]), split=0))
    outside = [caught(lambda: np.asarray(bad))["text"] for _ in range(2)]
    picked = np.asarray(pick(x, ost.asarray(inside, split=0))).tolist()
    say(outside=outside, picked=picked)
    say(error=error["kind"], text=error["text"], other=other["text"], sum=np.asarray(f(x)).tolist())


if __name__ == "__main__":
    assert RANK < SIZE
    assert not fake_device.FAKE.is_host
    globals()[sys.argv[1]](*sys.argv[2:])
