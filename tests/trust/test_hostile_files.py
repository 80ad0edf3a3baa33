"""A hostile npy, Zarr or HDF5 file or checkpoint gives one named error at once, or its own right numbers.

Whatever a file says, nothing is allocated before it is known to be there, and nothing outside is read."""

from __future__ import annotations

import bz2
import functools
import gc
import gzip
import json
import os
import resource
import shutil
import subprocess
import sys
import time
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.errors import DataFileError, OstinatoError
from tests.trust.conftest import Tally

VALUE = np.arange(60, dtype="f4").reshape(12, 5)
MEMORY = 200 << 20


def refused(path: Path, match: str | None = None) -> None:
    """One sentence, of either way to load, before any number is used, or when some are."""
    for resident in (True, False):
        start = time.process_time()
        with pytest.raises(DataFileError, match=match) as found:
            np.asarray(ost.load(path, resident=resident)[:3])
        assert "\n" not in str(found.value)
        assert len(str(found.value)) < 800
        assert time.process_time() - start < 30, "not a hang"


def npy(folder: Path, header: str | bytes, version: bytes = b"\x01\x00", body: bytes = b"") -> Path:
    text = header.encode() if isinstance(header, str) else header
    length = len(text).to_bytes(2 if version == b"\x01\x00" else 4, "little")
    path = folder / "x.npy"
    path.write_bytes(b"\x93NUMPY" + version + length + text + body)
    return path


def head(shape: str, descr: str = "'<f4'", order: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n"


NPY: dict[str, str] = {
    "negative": head("(-1, 5)"),
    "negative twice": head("(-4, -5)"),
    "gigantic": head("(9223372036854775807, 2)"),
    "overflowing": head("(4294967296, 4294967296, 4294967296)"),
    "nothing of gigantic": head("(0, 9223372036854775807, 9223372036854775807)"),
    "longer than it is": head("(1000000000000,)"),
    "a hundred axes": head(f"({'1, ' * 100})"),
    "bool": head("(True, 5)"),
    "float": head("(3.0, 5)"),
    "nan": head("(nan,)"),
    "no tuple": head("5"),
    "deep": head("(" * 3000 + ")" * 3000),
    "signs": head("(" + "-" * 9000 + "1,)"),
    "digits": head(f"({'9' * 5000},)"),
    "object": head("(3,)", "'|O'"),
    "text": head("(3,)", "'<U99999999'"),
    "bytes": head("(3,)", "'|V2000000000'"),
    "fields": head("(3,)", "[('a', '<f4')]"),
    "pad": head("(3,)", "[('', '|V2000000000')]"),
    "order": head("(3,)", order="7"),
    "no dict": "[1, 2]\n",
    "other names": "{'descr': '<f4', 'shape': (3,)}\n",
    "call": "__import__('os').abort()\n",
    "empty": "",
}


def test_npy(tmp_path: Path, tally: Tally) -> None:
    for header in NPY.values():
        refused(npy(tmp_path, header, body=VALUE.tobytes()))
        tally("hostile files", 1)
    for version in (b"\x02\x00", b"\x03\x00", b"\x09\x07"):
        path = tmp_path / "x.npy"
        path.write_bytes(b"\x93NUMPY" + version + b"\xff\xff\xff\xff" + b"{")
        refused(path)
    (tmp_path / "folder.npy").mkdir()
    refused(tmp_path / "folder.npy")
    os.mkfifo(tmp_path / "pipe.npy")
    refused(tmp_path / "pipe.npy", "not a regular file")
    os.mkfifo(tmp_path / "pipe.h5")
    refused(tmp_path / "pipe.h5", "not a regular file")


# -- Zarr ------------------------------------------------------------------------------------------
def zarr(folder: Path, **changed: Any) -> Path:
    """A store of ours, of which something else is said."""
    path = folder / "x.zarr"
    ost.save(path, VALUE)
    about = json.loads((path / "zarr.json").read_text())
    for name, value in changed.items():
        if value is None:
            del about[name]
        elif name == "chunks":
            about["chunk_grid"]["configuration"]["chunk_shape"] = value
        else:
            about[name] = value
    (path / "zarr.json").write_text(json.dumps(about))
    return path


ZARR: dict[str, dict[str, Any]] = {
    "negative": {"shape": [-12, 5]},
    "gigantic": {"shape": [1 << 62, 1 << 62]},
    "a hundred axes": {"shape": [1] * 100, "chunks": [1] * 100},
    "float": {"shape": [12.5, 5]},
    "text": {"shape": "12"},
    "nothing": {"shape": None},
    "chunks of 0": {"chunks": [0, 5]},
    "negative chunks": {"chunks": [-1, 5]},
    "other axes": {"chunks": [12]},
    "gigantic chunks": {"chunks": [1 << 40, 1 << 40]},
    "larger chunks": {"chunks": [13, 5]},
    "unknown codec": {"codecs": [{"name": "../../x"}]},
    "no codec": {"codecs": []},
    "fill out of range": {"data_type": "uint8", "fill_value": 300},
    "fill of text": {"fill_value": "fill"},
    "fill of lists": {"fill_value": [[[]]]},
    "fill of no integer": {"data_type": "int32", "fill_value": 1.5},
    "unknown dtype": {"data_type": "object"},
    "dtype of lists": {"data_type": [1, 2]},
    "other format": {"zarr_format": 7},
    "grid": {"chunk_grid": {"name": "../x"}},
    "keys": {"chunk_key_encoding": {"name": "default", "configuration": {"separator": "/../"}}},
}


@pytest.mark.filterwarnings("ignore")
def test_zarr(tmp_path: Path, tally: Tally) -> None:
    pytest.importorskip("zarr")
    for changed in ZARR.values():
        path = zarr(tmp_path, **changed)
        refused(path)
        tally("hostile files", 1)
    path = zarr(tmp_path)
    for text in ("[" * 100_000, '{"a":' * 100_000, "7", "", "nul", '{"shape": 1e999}'):
        (path / "zarr.json").write_text(text)
        refused(path)
    with open(path / "zarr.json", "wb") as file:
        file.truncate(20 << 30)  # a hole
    refused(path)


def test_chunks_of_zarr(tmp_path: Path) -> None:
    """Larger, smaller, behind a link, or no file at all."""
    outside = tmp_path / "secret"
    outside.write_bytes(VALUE.tobytes())
    for spoil in (
        lambda c: c.write_bytes(VALUE.tobytes() + b"1234"),
        lambda c: c.write_bytes(VALUE.tobytes()[:-4]),
        lambda c: (c.unlink(), c.symlink_to(outside)),
        lambda c: (c.unlink(), os.mkfifo(c)),
        lambda c: (c.unlink(), c.mkdir()),
    ):
        path = zarr(tmp_path)
        (chunk,) = path.glob("c*")
        spoil(chunk)
        refused(path, "chunk c.0.0")
        shutil.rmtree(path)
    path = zarr(tmp_path, chunk_key_encoding={"name": "default"})  # c/0/0
    (chunk,) = path.glob("c.*")
    chunk.unlink()
    (tmp_path / "elsewhere" / "0").mkdir(parents=True)
    (tmp_path / "elsewhere" / "0" / "0").write_bytes(VALUE.tobytes())
    (path / "c").symlink_to(tmp_path / "elsewhere")
    refused(path, "chunk c/0/0 behind a link")
    with pytest.raises(DataFileError, match="a name of the store's own"):
        ost.load(path, dataset="../elsewhere")


def zeros(megabytes: int, packer: Any) -> bytes:
    """Packed by and by: who packs them needs no memory that would hide what it takes to read them."""
    piece = bytes(1 << 20)
    return b"".join(packer.compress(piece) for _ in range(megabytes)) + bytes(packer.flush())


@functools.cache
def zero() -> bytes:
    """50 MB in 50 KB."""
    return zeros(50, zlib.compressobj(9))


FRAME = b"\x28\xb5\x2f\xfd"
ROWS = b"".join(bytes([n, 0, 16, 0]) for n in [2] * 4000)  # Zstandard's runs of 128 KiB
PACKED: dict[str, tuple[str, Callable[[], bytes]]] = {
    # chunks that hold much more than the 240 bytes of theirs
    "zlib": ("zlib", zero),
    "gzip": ("gzip", lambda: zeros(50, zlib.compressobj(9, wbits=31))),
    "members": ("gzip", lambda: gzip.compress(b"1" * 200) * 300),
    "bz2": ("bz2", lambda: zeros(200, bz2.BZ2Compressor())),
    "zstd says": ("zstd", lambda: FRAME + b"\xe0" + (1 << 33).to_bytes(8, "little") + ROWS),
    "zstd has": ("zstd", lambda: FRAME + b"\x00\x58" + ROWS + bytes([3, 0, 16, 0])),
    "blosc": (
        "blosc",
        lambda: b"\x02\x01\x01\x04" + b"\xff\xff\xff\x7f" * 2 + b"\x20\0\0\0" + bytes(16),
    ),
    "lz4": ("lz4", lambda: b"\xff\xff\xff\x7f" + bytes(50)),
    "long": ("zlib", lambda: zero() + bytes(1 << 20)),
    "cut off": ("zlib", lambda: zlib.compress(VALUE.tobytes())[:-9]),
    "short": ("zlib", lambda: zlib.compress(VALUE.tobytes()[:-4])),
    "damaged": ("zlib", lambda: b"\x78\x9c" + bytes(range(200))),
    "no zstd": ("zstd", lambda: b"1234" * 9),
    "empty": ("zstd", lambda: b""),
}


def packed(folder: Path, codec: str, chunk: bytes, version: int = 3) -> Path:
    """A store with one chunk, which is said to be compressed."""
    path = folder / "x.zarr"
    path.mkdir(exist_ok=True)
    if version == 3:
        shutil.rmtree(path)
        zarr(folder, codecs=[{"name": "bytes"}, {"name": codec}])
        (path / "c.0.0").write_bytes(chunk)
        return path
    about = {"zarr_format": 2, "shape": [12, 5], "chunks": [12, 5], "dtype": "<f4", "order": "C"}
    about |= {"filters": None, "fill_value": 0, "compressor": {"id": codec}}
    (path / ".zarray").write_text(json.dumps(about))
    (path / "0.0").write_bytes(chunk)
    return path


def inflated_too_far(folder: str) -> None:
    """In a process of its own: prints the memory that it took to refuse them."""
    high = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # noqa: E731
    path = packed(Path(folder), "zlib", zlib.compress(VALUE.tobytes()))
    np.testing.assert_array_equal(np.asarray(ost.load(path, resident=False)[:3]), VALUE[:3])
    made = [(codec, chunk()) for codec, chunk in PACKED.values()]
    before = high()
    for codec, chunk in made:
        for version in (3, 2):
            refused(packed(Path(folder), codec, chunk, version), "chunk (c.)?0.0")
            shutil.rmtree(Path(folder) / "x.zarr")
    print((high() - before) * 1024)


def of_itself(code: str, folder: Path) -> int:
    root = str(Path(__file__).resolve().parents[2])
    text = (
        f"import sys; sys.path.insert(0, {root!r})\nfrom tests.trust.test_hostile_files import *\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", f"{text}{code}({str(folder)!r})"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return int(ran.stdout)


def test_chunks_that_inflate_too_far(tmp_path: Path, tally: Tally) -> None:
    """Much that few bytes hold, or say that they hold."""
    pytest.importorskip("numcodecs")
    assert of_itself("inflated_too_far", tmp_path) < 20 << 20
    tally("hostile files", 2 * len(PACKED))


def test_many_chunks_in_few_bytes(tmp_path: Path) -> None:
    """2^24 of them, all but one of which are not there: legal, and read at once."""
    path = zarr(tmp_path, shape=[1 << 24], chunks=[1], fill_value=3.0)
    for chunk in path.glob("c*"):
        chunk.unlink()
    (path / "c.77").write_bytes(np.float32(5).tobytes())
    found = np.asarray(ost.load(path))
    assert found[77] == 5
    assert np.count_nonzero(found == 3) == (1 << 24) - 1
    np.testing.assert_array_equal(np.asarray(ost.load(path, resident=False)[76:79]), [3, 5, 3])
    path = zarr(tmp_path, shape=[1 << 40], chunks=[1])
    with pytest.raises(DataFileError, match="resident=False"):
        ost.load(path)
    assert float(ost.load(path, resident=False)[1 << 39]) == 0


def test_checkpoints(tmp_path: Path, tally: Tally) -> None:
    """A manifest with a right digest that says anything."""
    from ostinato.io_pipeline import steps as io_steps

    ost.save_state(tmp_path / "c", {"a": ost.asarray(VALUE), "n": 3}, step=1)
    manifest = next((tmp_path / "c" / "step-1").glob("[!.]*anifest*"))
    line, rest = manifest.read_bytes().split(b"\n", 1)
    number = int(line[len(io_steps.MAGIC) :].split()[0])
    rng = np.random.default_rng(0)
    for _ in range(200):
        changed = json.loads(rest)
        spot(changed, rng)
        data = json.dumps(changed, separators=(",", ":")).encode()
        first = b"%s %d %s\n" % (io_steps.MAGIC, number, io_steps._digest(number, data).encode())
        manifest.write_bytes(first + data)
        with warnings.catch_warnings():  # of damage
            warnings.simplefilter("ignore")
            assert_right(tmp_path)
        tally("changed headers", 1)


def assert_right(folder: Path) -> None:
    try:
        found = ost.load_state(folder / "c")
    except OstinatoError:
        return
    for leaf in found.values() if isinstance(found, dict) else ():
        if isinstance(leaf, ost.Array) and leaf.shape == VALUE.shape:
            np.asarray(leaf)


STRANGE: tuple[Any, ...] = (
    *(-1, 0, 1, 7, 1 << 24, 1 << 40, 1 << 62, 1 << 64, 10**400, 0.5, 1e308, True, None, "", "../x"),
    *("NaN", "float64", "uint8", "O", [], {}, [[]], [1] * 40, [-1], ["a"], {"a": 1}, "/etc/passwd"),
)


def spot(tree: Any, rng: Any) -> None:
    """Change one thing of a tree of JSON, or take it away."""
    places: list[tuple[Any, Any]] = []

    def walk(at: Any) -> None:
        for key in list(at) if isinstance(at, dict) else range(len(at)):
            places.append((at, key))
            if isinstance(at[key], (dict, list)):
                walk(at[key])

    walk(tree)
    at, key = places[rng.integers(len(places))]
    if rng.integers(6):
        at[key] = STRANGE[rng.integers(len(STRANGE))]
    elif isinstance(at, dict):
        del at[key]
    else:
        at.pop(key)


# -- HDF5 ------------------------------------------------------------------------------------------
def test_hdf5(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    (tmp_path / "secret").write_bytes(VALUE.tobytes())
    ost.save(tmp_path / "other.h5", VALUE)

    def external(file: Any) -> None:
        file.create_dataset("x", (12, 5), "f4", external=[(str(tmp_path / "secret"), 0, 240)])

    def virtual(file: Any) -> None:
        layout = h5py.VirtualLayout((12, 5), "f4")
        layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "x", (12, 5))
        file.create_virtual_dataset("x", layout)

    def link(file: Any) -> None:
        file["x"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "x")

    makers: dict[str, Callable[[Any], Any]] = {
        "numbers lie in other files": external,
        "whose numbers lie in other": virtual,
        "the datasets none": link,
        "Python objects": lambda f: f.create_dataset("x", (3,), h5py.vlen_dtype(np.int32)),
        "got dtype": lambda f: f.create_dataset("x", (3,), np.dtype([("a", "f4")])),
        "without extents": lambda f: f.create_dataset("x", data=h5py.Empty("f4")),
        "resident=False|extents": lambda f: f.create_dataset("x", (1 << 40, 1 << 20), "f4"),
        "chunks": lambda f: f.create_dataset("x", (1 << 40,), "f4", chunks=(1 << 29,)),
    }
    for match, make in makers.items():
        (tmp_path / "x.h5").unlink(missing_ok=True)
        with h5py.File(tmp_path / "x.h5", "w") as file:
            make(file)
        if match.startswith("resident"):
            with pytest.raises(DataFileError, match=match):
                ost.load(tmp_path / "x.h5")
            continue
        refused(tmp_path / "x.h5", match)
    (tmp_path / "x.h5").unlink()
    with h5py.File(tmp_path / "x.h5", "w") as file:  # legal, and read where it is needed
        file.create_dataset("x", (1 << 33, 8), "f4", chunks=(1024, 8), fillvalue=2)[1 << 20] = 7
    x = ost.load(tmp_path / "x.h5", resident=False)
    np.testing.assert_array_equal(np.asarray(x[(1 << 20) - 1 : (1 << 20) + 1, 0]), [2, 7])
    with pytest.raises(DataFileError, match="resident=False"):
        ost.load(tmp_path / "x.h5")


def hdf5_inflated_too_far(folder: str) -> None:
    """The same of HDF5."""
    import h5py

    high = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # noqa: E731
    before = 0
    for chunk in (None, zero(), zero() + bytes(1 << 20), zero()[:99], b"1234"):
        for way in ({}, {"shuffle": True}, {"fletcher32": True}):
            path = Path(folder) / f"{len(os.listdir(folder))}.h5"
            with h5py.File(path, "w") as file:
                x = file.create_dataset(
                    "x", (12, 5), "f4", chunks=(12, 5), compression="gzip", **way
                )
                if chunk is None:
                    x[...] = VALUE
                else:
                    x.id.write_direct_chunk((0, 0), chunk)
            if chunk is not None:
                refused(path, r"the chunk at \(0, 0\)")
                continue
            np.testing.assert_array_equal(np.asarray(ost.load(path, resident=False)[:3]), VALUE[:3])
            before = high()
    print((high() - before) * 1024)


def test_chunks_of_hdf5_that_inflate_too_far(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    assert of_itself("hdf5_inflated_too_far", tmp_path) < 20 << 20


# -- headers by chance -----------------------------------------------------------------------------
CHILD = """
import resource, sys, warnings
warnings.simplefilter("ignore")
import numpy as np
sys.path.insert(0, {root!r})
from tests.trust.test_hostile_files import tried
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
tried({kind!r}, {folder!r}, {first}, {count})
"""


def mutated(kind: str, folder: Path, seed: int) -> Path:
    """A file of which bytes or words of the header are others."""
    rng = np.random.default_rng(seed)
    if kind == "zarr":
        path = folder / "m.zarr"
        about = json.loads((path / "first.json").read_text())
        for _ in range(int(rng.integers(1, 3))):
            spot(about, rng)
        (path / "zarr.json").write_text(json.dumps(about))
        return path
    suffix = {"npy": ".npy", "hdf5": ".h5"}[kind]
    data = bytearray((folder / f"first{suffix}").read_bytes())
    size = 128 if kind == "npy" else len(data)
    for _ in range(int(rng.integers(1, 6))):
        at = int(rng.integers(size))
        match rng.integers(4):
            case 0:
                data[at] = int(rng.integers(256))
            case 1:
                data[at] ^= 1 << int(rng.integers(8))
            case 2 if kind == "npy":
                word = [b"-", b"9", b"(", b"True", b"1e9", b"<f8", b"|O", b"'", b","][
                    rng.integers(9)
                ]
                data[at : at + len(word)] = word
            case _:
                data[at : at + 8] = int(rng.choice([0, 1 << 31, (1 << 63) - 1])).to_bytes(
                    8, "little"
                )
    path = folder / f"m{suffix}"
    path.write_bytes(data)
    return path


def tried(kind: str, folder: str, first: int, count: int) -> None:
    """In a process of its own: prints how many were refused, read, and the memory that it took."""
    outcomes = {"refused": 0, "read": 0}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed in range(first, first + count):
        print("seed", seed, flush=True)
        path = mutated(kind, Path(folder), seed)
        for resident in (True, False):
            try:
                np.asarray(ost.load(path, resident=resident)[:2])
                outcomes["read"] += 1
            except OstinatoError:
                outcomes["refused"] += 1
        if kind == "hdf5":
            gc.collect()
    used = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    print(json.dumps({**outcomes, "bytes": used}), flush=True)


@pytest.mark.parametrize("kind", ["npy", "zarr", "hdf5"])
def test_changed_headers(kind: str, tmp_path: Path, tally: Tally, thorough: bool) -> None:
    np.save(tmp_path / "first.npy", VALUE)
    if kind == "zarr":
        pytest.importorskip("zarr")
        ost.save(tmp_path / "m.zarr", VALUE)
        (tmp_path / "m.zarr" / "zarr.json").rename(tmp_path / "m.zarr" / "first.json")
    if kind == "hdf5":
        h5py = pytest.importorskip("h5py")
        with h5py.File(tmp_path / "first.h5", "w") as file:
            file.create_dataset("x", data=VALUE, chunks=(4, 5), compression="gzip")
    count = 5000 if thorough else 200
    root = str(Path(__file__).resolve().parents[2])
    code = CHILD.format(root=root, kind=kind, folder=str(tmp_path), first=0, count=count)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, (ran.stdout[-200:], ran.stderr[-2000:])
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["refused"] + found["read"] == 2 * count
    assert found["refused"] > count // 10
    assert found["bytes"] < MEMORY + (128 << 20), found  # libraries and the first plan among it
    tally("changed headers", count)
