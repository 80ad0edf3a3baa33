"""What tests of stages share: a stage on a sample, on a device that is not NumPy, in pipes."""

from __future__ import annotations

from typing import Any

import numpy as np
from ostinato.io_pipeline.feed.sample_draws import Draws
from ostinato.io_pipeline.feed.stage import DEVICE, Stage

import ostinato as ost
from tests.fake_xp import DeviceArray, from_host, to_host, xp

Array = np.ndarray[Any, Any]


def drawn_for(stage: Stage, shape: tuple[int, ...], place: int = 0) -> Any:
    return stage.draw(Draws(1, 0).seek(place, 0), shape) if stage.is_random else None


def run(stage: Stage, x: Any, kind: str = "image", place: int = 0, **more: Any) -> Any:
    """What a stage makes of one field; it leaves the field itself alone."""
    before = x.copy()
    shape = more.pop("shape", x.shape)
    drawn = drawn_for(stage, shape, place)
    method = stage.method(kind)
    assert method is not None
    found = method(np, x, drawn, shape) if kind == "boxes" else method(np, x, drawn)
    np.testing.assert_array_equal(x, before)
    return found


def check_device(stage: Stage, x: Array, kind: str = "image", places: int = 4, **more: Any) -> None:
    """The same on a device: to the bit if it says so, else almost."""
    assert DEVICE in stage.places
    shape = more.pop("shape", x.shape)
    for place in range(places):
        drawn = drawn_for(stage, shape, place)
        method: Any = stage.method(kind)
        given = (shape,) if kind == "boxes" else ()
        wanted = method(np, x, drawn, *given)
        there = method(xp, from_host(x), drawn, *given)
        assert isinstance(there, DeviceArray)
        found = to_host(there)
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        if stage.exact:
            np.testing.assert_array_equal(found, wanted)
        else:
            atol = 1 if x.dtype.kind == "u" else 1e-5
            np.testing.assert_allclose(found.astype(float), wanted.astype(float), atol=atol)


def check_threads(stages: list[Stage], x: Any, kinds: list[str], batched: list[Stage] = ()) -> None:  # type: ignore[assignment]
    """The same bits, whatever threads and chunks."""

    def epoch(threads: int, chunk: int) -> list[Any]:
        pipe = ost.io.arrays(*x, kinds=kinds).shuffle(seed=5)
        for stage in stages:
            pipe = pipe.then(stage)
        pipe = pipe.batch(4, tail="keep")
        for stage in batched:
            pipe = pipe.then(stage)
        batches = pipe.to("numpy").run_with(threads=threads, chunk=chunk).epoch(2)
        return [b if isinstance(b, tuple) else (b,) for b in batches]

    wanted = epoch(1, 8)
    assert wanted
    for threads, chunk in ((2, 1), (8, 3), (4, 64)):
        for found, was in zip(epoch(threads, chunk), wanted, strict=True):
            for a, b in zip(found, was, strict=True):
                assert (a.dtype, a.shape) == (b.dtype, b.shape)
                assert a.tobytes() == b.tobytes()
