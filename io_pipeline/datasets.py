"""Data that people know, in the file formats in which it is published, and data that is made.

Each function gives NumPy's arrays, images and labels: `ost.io.arrays(x, y).shuffle(seed=7).batch(128)`.
Nothing is downloaded. Of CIFAR's pickles only arrays, lists, texts and numbers are read; what names
anything else is refused."""

from __future__ import annotations

import gzip
import io
import math
import os
import pickle
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ostinato.ops.core.user_line import misfit

from ostinato.errors import ArgumentError, DataFileError

Table = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
Folder = str | os.PathLike[str]

__all__ = ["SHAPES", "blobs", "cifar10", "cifar100", "digits", "mnist", "moons", "shapes"]

SHAPES = ("disc", "square", "triangle", "cross", "ring")
_IDX = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def __dir__() -> list[str]:
    return __all__


# -- files ----------------------------------------------------------------------------------
def _found(who: str, folder: Folder, choices: Sequence[str]) -> Path:
    """The first of some files that is there."""
    for name in choices:
        if (path := Path(folder) / name).is_file():
            return path
    got = "a folder without it" if Path(folder).is_dir() else "no such folder"
    needed = f"a file {' or '.join(choices)}"
    do = "download the data set, and name the folder with its files"
    raise misfit(DataFileError, f"{who}({os.fspath(folder)!r})", got=got, needed=needed, do=do)


def _bad(path: Path, got: str, needed: str) -> Exception:
    return misfit(DataFileError, f"file {path}", got=got, needed=needed)


def _content(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise _bad(path, str(error), "a file that can be read") from None


def _split(who: str, split: str, **names: str) -> str:
    if split not in names:
        got = f"split={split!r:.60}"
        raise misfit(ArgumentError, who, got=got, needed=" or ".join(map(repr, names)))
    return names[split]


def mnist(folder: Folder, split: str = "train") -> Table:
    """MNIST, Fashion-MNIST, and others in their format (IDX, with .gz or without): images of shape
    (n, 28, 28), uint8, and labels. split: "train" or "test".

    >>> import struct
    >>> from pathlib import Path
    >>> head = struct.pack(">4B3I", 0, 0, 8, 3, 2, 28, 28)
    >>> _ = Path("t10k-images-idx3-ubyte").write_bytes(head + bytes(2 * 28 * 28))
    >>> _ = Path("t10k-labels-idx1-ubyte").write_bytes(struct.pack(">4BI", 0, 0, 8, 1, 2) + bytes([7, 2]))
    >>> x, y = ost.io.datasets.mnist(".", "test")
    >>> x.shape, y.tolist()
    ((2, 28, 28), [7, 2])
    """
    stem = _split("mnist", split, train="train", test="t10k")
    found = []
    for kind in ("images-idx3", "labels-idx1"):
        names = [
            f"{stem}-{k}-ubyte{end}" for end in ("", ".gz") for k in (kind, kind.replace("-", "."))
        ]
        found.append(_idx(_found("mnist", folder, names)))
    return _checked(Path(folder), *found)


def _checked(path: Path, images: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> Table:
    if len(images) != len(labels) or labels.ndim != 1:
        got = f"images {images.shape} and labels {labels.shape}"
        raise _bad(path, got, "a label for each image")
    return images, labels.astype(np.int64)


def _idx(path: Path) -> np.ndarray[Any, Any]:
    """An array in the format of MNIST's files."""
    data = _content(path)
    needed = "an array in IDX format"
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _IDX:
        raise _bad(path, f"a beginning {data[:4]!r}", needed)
    dtype, start = np.dtype(_IDX[data[2]]), 4 + 4 * data[3]
    shape = [int.from_bytes(data[k : k + 4], "big") for k in range(4, min(start, len(data)), 4)]
    if len(data) != start + math.prod(shape) * dtype.itemsize:
        raise _bad(path, f"{len(data)} bytes for shape {tuple(shape)}", f"{needed}, whole")
    return np.frombuffer(data, dtype, offset=start).reshape(shape).astype(dtype.newbyteorder("="))


def cifar10(folder: Folder, split: str = "train") -> Table:
    """CIFAR-10 in its binary or its Python format: images of shape (n, 32, 32, 3), uint8, and labels.

    >>> from pathlib import Path
    >>> _ = Path("test_batch.bin").write_bytes(bytes([9]) + bytes(3072))
    >>> x, y = ost.io.datasets.cifar10(".", "test")
    >>> x.shape, y.tolist()
    ((1, 32, 32, 3), [9])
    """
    parts = [f"data_batch_{k}" for k in range(1, 6)]
    names = (
        parts if _split("cifar10", split, train="train", test="test") == "train" else ["test_batch"]
    )
    return _cifar("cifar10", folder, names, "cifar-10-batches-", ("labels",), 0)


def cifar100(folder: Folder, split: str = "train", labels: str = "fine") -> Table:
    """CIFAR-100, likewise; labels: "fine" for 100 classes, "coarse" for the 20 that they belong to.

    >>> from pathlib import Path
    >>> _ = Path("train.bin").write_bytes(bytes([3, 42]) + bytes(3072))
    >>> ost.io.datasets.cifar100(".")[1], ost.io.datasets.cifar100(".", labels="coarse")[1]
    (array([42]), array([3]))
    """
    which = ("coarse", "fine").index(
        _split("cifar100(labels=)", labels, fine="fine", coarse="coarse")
    )
    names = [_split("cifar100", split, train="train", test="test")]
    keys = ("coarse_labels", "fine_labels")
    return _cifar("cifar100", folder, names, "cifar-100-", keys, which)


def _cifar(
    who: str, folder: Folder, names: list[str], inner: str, keys: tuple[str, ...], which: int
) -> Table:
    images, labels = [], []
    ends = ("bin", "py") if len(keys) == 1 else ("binary", "python")
    for name in names:
        places = [f"{name}.bin", f"{inner}{ends[0]}/{name}.bin", name, f"{inner}{ends[1]}/{name}"]
        path = _found(who, folder, places)
        data = _content(path)
        if path.suffix == ".bin":
            width = len(keys) + 3072
            if not data or len(data) % width:
                raise _bad(path, f"{len(data)} bytes", f"images of {width} bytes each")
            rows = np.frombuffer(data, np.uint8).reshape(-1, width)
            images.append(rows[:, len(keys) :])
            labels.append(rows[:, which])
            continue
        found = _unpickled(path, data)
        try:
            x, y = np.asarray(found[b"data"]), np.asarray(found[keys[which].encode()])
            if x.dtype != np.uint8 or x.shape[1:] != (3072,) or y.dtype.kind not in "iu":
                raise ValueError
        except (KeyError, TypeError, ValueError, IndexError):
            needed = f"data and {keys[which]} of images of 32 x 32"
            raise _bad(path, "other content", needed) from None
        images.append(x)
        labels.append(y)
    pixels = np.concatenate(images).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return _checked(Path(folder), np.ascontiguousarray(pixels), np.concatenate(labels))


class _Plain(pickle.Unpickler):
    """A reader of pickles that makes arrays and nothing else that has a name."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in (("numpy", "ndarray"), ("numpy", "dtype")):
            return getattr(np, name)
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return np._core.multiarray._reconstruct  # type: ignore[attr-defined]
        if (module, name) == ("_codecs", "encode"):  # as protocol 2 has bytes
            return _latin
        raise pickle.UnpicklingError(f"{module}.{name}, which is no array")


def _latin(text: str, code: str = "latin1") -> bytes:
    return text.encode("latin1")


def _unpickled(path: Path, data: bytes) -> Any:
    try:
        return _Plain(io.BytesIO(data), encoding="bytes").load()
    except Exception as error:  # whatever a damaged one makes of itself
        got = str(error) or type(error).__name__
        raise _bad(path, got, "a pickle of arrays, lists and texts, as CIFAR's files are") from None


# -- made -----------------------------------------------------------------------------------
def digits(split: str = "all") -> Table:
    """Handwritten digits that scikit-learn brings: 1,797 images of 8 x 8, float32 from 0 to 1, and labels.
    split: "train", "test" (every fifth one), or "all".

    >>> x, y = ost.io.datasets.digits("test")
    >>> x.shape, y[:5].tolist()
    ((360, 8, 8), [0, 5, 0, 5, 0])
    """
    which = _split("digits", split, all="all", train="train", test="test")
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        needed, do = "scikit-learn, which has them", "pip install scikit-learn"
        raise misfit(ArgumentError, "digits", got="no scikit-learn", needed=needed, do=do) from None
    found = load_digits()
    x, y = (found.images / 16).astype(np.float32), found.target.astype(np.int64)
    is_test = np.arange(len(y)) % 5 == 0
    keep = is_test if which == "test" else ~is_test if which == "train" else is_test | True
    return x[keep], y[keep]


def shapes(n: int, size: int = 32, seed: int = 0, noise: float = 8.0) -> Table:
    """Pictures of a disc, a square, a triangle, a cross or a ring, at any place, size, turn and in any
    colours: images of shape (n, size, size, 3), uint8, and labels, by `SHAPES`. The first of n are
    the first of more.

    >>> x, y = ost.io.datasets.shapes(4, size=16, seed=1)
    >>> x.shape, [ost.io.datasets.SHAPES[k] for k in y]
    ((4, 16, 16, 3), ['triangle', 'triangle', 'cross', 'triangle'])
    """
    images = np.empty((n, size, size, 3), np.uint8)
    labels = np.empty(n, np.int64)
    for k in range(n):
        images[k], labels[k] = _shape(np.random.default_rng((seed, k)), size, noise)
    return images, labels


def _shape(r: np.random.Generator, size: int, noise: float) -> tuple[Any, int]:
    kind, turn = int(r.integers(len(SHAPES))), r.uniform(0, 2 * np.pi)
    radius = r.uniform(0.2, 0.4) * size
    y, x = np.mgrid[:size, :size] + 0.5 - r.uniform(radius, size - radius, (2, 1, 1))
    x, y = np.cos(turn) * x + np.sin(turn) * y, np.cos(turn) * y - np.sin(turn) * x
    outside = (  # how far a pixel is outside of it
        lambda: np.hypot(x, y) - radius,
        lambda: np.maximum(abs(x), abs(y)) - 0.8 * radius,
        lambda: np.maximum(abs(x) * 0.866 - y / 2, y) - 0.6 * radius,
        lambda: np.maximum(
            np.minimum(abs(x), abs(y)) - 0.25 * radius, np.maximum(abs(x), abs(y)) - radius
        ),
        lambda: abs(np.hypot(x, y) - 0.8 * radius) - 0.2 * radius,
    )[kind]()
    ground = r.uniform(0, 255, 3)
    colour = (ground + r.uniform(80, 175, 3)) % 256  # which is another one
    share = np.clip(0.5 - outside, 0, 1)[..., None]
    picture = ground + share * (colour - ground) + r.normal(0, 1, (size, size, 3)) * noise
    return np.clip(picture, 0, 255).astype(np.uint8), kind


def moons(n: int, noise: float = 0.1, seed: int = 0) -> Table:
    """Two half circles that reach into each other: points (n, 2), float32, and labels.

    >>> x, y = ost.io.datasets.moons(100)
    >>> x.shape, y[:4].tolist()
    ((100, 2), [0, 1, 0, 1])
    """
    r = np.random.default_rng(seed)
    y = np.arange(n) % 2
    angle = r.uniform(0, np.pi, n)
    x = np.stack([np.cos(angle) * (1 - 2 * y) + y, np.sin(angle) * (1 - 2 * y) + y / 2], 1)
    return (x + r.normal(0, 1, x.shape) * noise).astype(np.float32), y


def blobs(n: int, classes: int = 3, features: int = 2, spread: float = 1.0, seed: int = 0) -> Table:
    """Clouds of points around as many centres as there are classes: points (n, features), float32, and
    labels.

    >>> x, y = ost.io.datasets.blobs(100, classes=4)
    >>> x.shape, y[:5].tolist()
    ((100, 2), [0, 1, 2, 3, 0])
    """
    r = np.random.default_rng(seed)
    centres, y = r.uniform(-10, 10, (classes, features)), np.arange(n) % classes
    return (centres[y] + r.normal(0, spread, (n, features))).astype(np.float32), y
