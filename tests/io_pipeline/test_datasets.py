"""Published formats of data sets, as others write them; hostile files; what is made."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.errors import ArgumentError, DataFileError

sets = ost.io.datasets


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).integers(0, 256, shape, np.uint8)


def idx(x: np.ndarray, kind: int = 8) -> bytes:
    return struct.pack(f">4B{x.ndim}I", 0, 0, kind, x.ndim, *x.shape) + x.tobytes()


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize("dot", ["-", "."])
def test_mnist(tmp_path: Path, end: str, dot: str) -> None:
    x, y = numbers(5, 28, 28), numbers(5)
    for name, array in (("images", x), ("labels", y)):
        data = idx(array)
        path = tmp_path / f"train-{name}{dot}idx{array.ndim}-ubyte{end}"
        path.write_bytes(gzip.compress(data) if end else data)
    images, labels = sets.mnist(tmp_path)
    np.testing.assert_array_equal(images, x)
    np.testing.assert_array_equal(labels, y)
    assert labels.dtype == np.int64
    for batch, _ in ost.io.arrays(images, labels).batch(5):
        assert batch.shape == (5, 28, 28)
    with pytest.raises(
        DataFileError, match=r"t10k-images-idx3-ubyte or t10k-images\.idx3-ubyte or .*\.gz"
    ):
        sets.mnist(tmp_path, "test")
    with pytest.raises(ArgumentError, match="split='valid'; needed 'train' or 'test'"):
        sets.mnist(tmp_path, "valid")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0\x08",
        b"GIF8" + bytes(100),
        idx(numbers(5, 28, 28))[:-1],
        struct.pack(">4B3I", 0, 0, 8, 3, 2**32 - 1, 2**32 - 1, 2**32 - 1),
        bytes([0, 0, 8, 255]),
        gzip.compress(idx(numbers(5, 28, 28)))[:200],
        b"\x1f\x8b" + bytes(40),
    ],
)
def test_damaged_arrays(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "train-images-idx3-ubyte").write_bytes(data)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(numbers(5)))
    with pytest.raises(DataFileError, match="train-images-idx3-ubyte"):
        sets.mnist(tmp_path)


def test_labels_of_other_images(tmp_path: Path) -> None:
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(numbers(5, 28, 28)))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(numbers(4)))
    with pytest.raises(DataFileError, match="a label for each image"):
        sets.mnist(tmp_path)


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("form", ["bin", "py"])
def test_cifar10(tmp_path: Path, form: str, inner: bool) -> None:
    folder = tmp_path / f"cifar-10-batches-{form}" if inner else tmp_path
    folder.mkdir(exist_ok=True)
    x, y = numbers(10, 32, 32, 3), numbers(10) % 10
    flat = x.transpose(0, 3, 1, 2).reshape(10, 3072)
    for k in range(5):
        rows, names = flat[2 * k : 2 * k + 2], y[2 * k : 2 * k + 2]
        if form == "bin":
            data = np.concatenate([names[:, None], rows], 1).tobytes()
            (folder / f"data_batch_{k + 1}.bin").write_bytes(data)
        else:
            content = {b"data": rows, b"labels": names.tolist(), b"batch_label": b"of five"}
            (folder / f"data_batch_{k + 1}").write_bytes(pickle.dumps(content, 2))
    images, labels = sets.cifar10(tmp_path)
    np.testing.assert_array_equal(images, x)
    np.testing.assert_array_equal(labels, y)
    with pytest.raises(
        DataFileError, match=r"test_batch\.bin or cifar-10-batches-bin/test_batch\.bin or"
    ):
        sets.cifar10(tmp_path, "test")


@pytest.mark.parametrize("form", ["bin", "py"])
def test_cifar100(tmp_path: Path, form: str) -> None:
    rows, fine, coarse = numbers(4, 3072), numbers(4) % 100, numbers(4) % 20
    if form == "bin":
        data = np.concatenate([coarse[:, None], fine[:, None], rows], 1).tobytes()
        (tmp_path / "test.bin").write_bytes(data)
    else:
        content = {b"data": rows, b"fine_labels": fine.tolist(), b"coarse_labels": coarse.tolist()}
        (tmp_path / "test").write_bytes(pickle.dumps(content, 2))
    for kind, wanted in (("fine", fine), ("coarse", coarse)):
        images, labels = sets.cifar100(tmp_path, "test", kind)
        np.testing.assert_array_equal(labels, wanted)
        np.testing.assert_array_equal(images[1, 2, 3], rows[1].reshape(3, 32, 32)[:, 2, 3])
    with pytest.raises(ArgumentError, match="needed 'fine' or 'coarse'"):
        sets.cifar100(tmp_path, "test", "rough")


class Hostile:
    def __reduce__(self) -> Any:
        return os.system, ("touch ran",)


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps({b"data": Hostile()}),
        pickle.dumps(Hostile(), 0),
        pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 2]})[:-100],
        pickle.dumps({b"data": np.zeros((2, 30), np.uint8), b"labels": [1, 2]}),
        pickle.dumps({b"data": np.zeros((2, 3072)), b"labels": [1, 2]}),
        pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": ["a", "b"]}),
        pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]}),
        pickle.dumps([1, 2]),
        b"cos\nsystem\n(S'touch ran'\ntR.",
        b"",
        b"\x80\x02]q\x00",
    ],
)
def test_hostile_pickles(tmp_path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test_batch").write_bytes(data)
    with pytest.raises(DataFileError):
        sets.cifar10(tmp_path, "test")
    assert not (tmp_path / "ran").exists()


def test_what_is_made_is_the_same_for_a_seed() -> None:
    x, y = sets.shapes(40, size=24, seed=3)
    more, labels = sets.shapes(50, size=24, seed=3)
    np.testing.assert_array_equal(more[:40], x)
    np.testing.assert_array_equal(labels[:40], y)
    assert set(y) == set(range(len(sets.SHAPES)))
    assert (sets.shapes(40, size=24, seed=4)[0] != x).any()
    plain, _ = sets.shapes(20, size=24, noise=0.0)
    for picture in plain:
        corners = picture[[0, 0, -1, -1], [0, -1, 0, -1]]
        assert abs(picture.astype(int) - corners[0]).max() > 30, "something is drawn"


def test_tables_can_be_learnt() -> None:
    x, y = sets.moons(300, noise=0.0)
    assert np.allclose(np.hypot(*(x[y == 0]).T), 1, atol=1e-6)
    x, y = sets.blobs(300, classes=4, features=3, spread=0.1)
    means = np.stack([x[y == k].mean(0) for k in range(4)])
    assert (np.linalg.norm(x[:, None] - means, axis=2).argmin(1) == y).all()
    pytest.importorskip("sklearn")
    parts = [sets.digits(split) for split in ("train", "test", "all")]
    assert [len(labels) for _, labels in parts] == [1437, 360, 1797]
    assert parts[0][0].max() == 1.0
