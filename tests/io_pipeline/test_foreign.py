"""Samples of other libraries: tensors, pictures, whatever is an array, and functions that collate them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from PIL import Image

import ostinato as ost
from ostinato.errors import ArgumentError, SampleError
from tests.front.test_interop import Tensor


class Capsule:
    """An array by DLPack alone."""

    def __init__(self, x: np.ndarray[Any, Any]) -> None:
        self.x = x

    def __dlpack__(self, **more: Any) -> Any:
        return self.x.__dlpack__(**more)

    def __dlpack_device__(self) -> Any:
        return self.x.__dlpack_device__()


ROWS = np.arange(24, dtype=np.float32).reshape(6, 4)


class Parameter(Tensor):
    """A subclass from another module, as those of torch.nn are."""


MAKERS: list[Any] = [Tensor, Parameter, Capsule, ost.asarray, lambda x: x]


@pytest.mark.parametrize("make", MAKERS, ids=["tensor", "subclass", "dlpack", "ours", "numpy"])
def test_what_is_an_array_elsewhere_is_one_here(make: Any) -> None:
    items = [(make(row), k) for k, row in enumerate(ROWS)]
    source = ost.io.samples(items).to("numpy")
    for pipe in (source.batch(6), source.map(lambda t: t).batch(6), source.cache().batch(6)):
        ((x, y),) = pipe.epoch(0)
        assert (type(x), x.dtype) == (np.ndarray, np.float32)
        np.testing.assert_array_equal(x, ROWS)
        assert y.tolist() == list(range(6))
    assert [type(x) for x, _ in source.epoch(0)] == [np.ndarray] * 6
    kept = source.filter(lambda t: t[1] % 2).batch(3)
    np.testing.assert_array_equal(next(kept.epoch(0))[0], ROWS[1::2])
    streamed = ost.io.stream(lambda: iter(items)).batch(6).to("numpy")
    np.testing.assert_array_equal(next(streamed.epoch(0))[0], ROWS)


def pictures(mode: str) -> list[tuple[Image.Image, int]]:
    rng = np.random.default_rng(0)
    made = [Image.fromarray(rng.integers(0, 256, (9, 7, 3), "u1")).convert(mode) for _ in range(4)]
    return [(x, k) for k, x in enumerate(made)]


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "1", "RGBA", "LA", "CMYK"])
def test_pictures_are_images(mode: str) -> None:
    items = pictures(mode)
    wanted = {"P": "RGB", "1": "L", "LA": "RGBA", "CMYK": "RGB"}.get(mode, mode)
    reference = np.stack([np.asarray(x.convert(wanted)) for x, _ in items])
    reference = reference.reshape(4, 9, 7, -1)
    plain = ost.io.samples(items).to("numpy")
    np.testing.assert_array_equal(next(plain.batch(4).epoch(0))[0], reference)
    if reference.shape[-1] != 3:
        return
    same = ost.io.arrays(reference, kinds=["image"]).to("numpy")
    for pipe in (plain.decode(), plain.map(lambda t: t)):  # with machine code, and without
        x, _ = next(pipe.random_flip().normalize().batch(4).epoch(0))
        np.testing.assert_array_equal(
            x, next(same.decode().random_flip().normalize().batch(4).epoch(0))
        )


def test_masks_keep_their_numbers_and_functions_see_the_picture() -> None:
    items = [x for x, _ in pictures("P")]
    masked = [{"image": x, "mask": x} for x in items]
    batch = next(ost.io.samples(masked).batch(4).to("numpy").epoch(0))
    np.testing.assert_array_equal(batch["mask"], np.stack([np.asarray(x) for x in items]))
    assert batch["image"].shape == (4, 9, 7, 3)
    turned = ost.io.samples(items).map(lambda x: x.transpose(Image.Transpose.TRANSPOSE))
    assert next(turned.center_crop(5).batch(4).to("numpy").epoch(0)).shape == (4, 5, 5, 3)


# -- functions that put samples together -------------------------------------------------------
def ragged(samples: list[Any]) -> dict[str, Any]:
    """As for sentences: all in one row, and where each ends."""
    rows = [np.asarray(x) for x, _ in samples]
    labels = [y for _, y in samples]
    return {"flat": np.concatenate(rows), "ends": np.cumsum([*map(len, rows)]), "label": labels}


def test_a_function_puts_batches_together() -> None:
    items = [(np.arange(k), k) for k in range(1, 8)]
    pipe = ost.io.samples(items).shuffle(3).batch(3, collate=ragged).to("numpy")
    found = list(pipe.epoch(1))
    assert [len(b["ends"]) for b in found] == [3, 3, 1]
    wanted = [
        y for b in ost.io.samples(items).shuffle(3).batch(3, pad=0).epoch(1) for y in b[1].tolist()
    ]
    assert [y for b in found for y in b["label"]] == wanted
    assert [len(b["flat"]) for b in found] == [sum(b["label"]) for b in found]
    threads = [list(pipe.run_with(threads=n, chunk=1, tune=False).epoch(1)) for n in (1, 4)]
    for a, b in itertools.product(threads, [found]):
        assert [x["flat"].tolist() for x in a] == [x["flat"].tolist() for x in b]
    filtered = ost.io.samples(items).filter(lambda t: t[1] > 4).batch(2, collate=ragged)
    assert [b["label"] for b in filtered.to("numpy").epoch(0)] == [[5, 6], [7]]
    assert "batch(size=3, collate=ragged)" in repr(pipe)
    state = pipe.state()
    pipe.restore(state)
    with pytest.raises(ArgumentError, match="the state of another pipe"):
        ost.io.samples(items).shuffle(3).batch(3).restore(state)


def test_tensors_reach_it_as_they_are_and_its_own_become_arrays() -> None:
    seen: list[type] = []

    def stacked(samples: list[Any]) -> Any:
        seen.extend(type(x) for x, _ in samples)
        return Tensor(np.stack([x.values for x, _ in samples])), [y for _, y in samples]

    pipe = ost.io.samples([(Tensor(row), k) for k, row in enumerate(ROWS)])
    x, y = next(pipe.batch(6, collate=stacked).to("numpy").epoch(0))
    assert {*seen} == {Tensor}
    np.testing.assert_array_equal(x, ROWS)
    assert y == list(range(6))
    rows = ost.io.arrays((ROWS, np.arange(6))).batch(
        6, collate=lambda s: np.stack([x for x, _ in s])
    )
    np.testing.assert_array_equal(next(rows.to("numpy").epoch(0)), ROWS)  # arrays with no stage
    sheet = ost.io.samples(pictures("RGB")).batch(2, collate=lambda s: len(s)).preview
    assert callable(sheet)


def test_a_function_that_fails_names_the_batch_and_the_line() -> None:
    def broken(samples: list[Any]) -> Any:
        raise KeyError("none")

    pipe = ost.io.samples([1, 2, 3]).batch(2, collate=broken)
    with pytest.raises(
        SampleError, match=r"batch 0 of epoch 0, in batch\(collate=broken\).*KeyError"
    ):
        next(pipe.to("numpy").epoch(0))
    with pytest.raises(ArgumentError, match=r"got collate=3; needed a function"):
        ost.io.samples([1]).batch(1, collate=3)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"beside pad= or split="):
        ost.io.samples([1]).batch(1, collate=broken, pad=0)
    images = ost.io.arrays(np.zeros((4, 6, 6, 3), "u1"), kinds=["image"]).random_flip()
    with pytest.raises(ArgumentError, match="batches that a function has put together"):
        images.batch(2, collate=broken).on_device()
