"""Checkpoints: what was saved comes back bit for bit on any workers, and nothing else is ever believed."""

from __future__ import annotations

import collections
import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ostinato.io_pipeline import steps
from ostinato.io_pipeline.chunks import ChunkSource
from ostinato.io_pipeline.sinks import ZarrSink
from ostinato.ops.core import disk, exchange
from ostinato.ops.core.exchange import chunks_of
from ostinato.ops.core.spec import DTYPES
from ostinato.ops.core.tree import flatten

import ostinato as ost
from ostinato.errors import ArgumentError, DataFileError, LayoutError, TracedValueError
from tests.front import killed
from tests.sessions import MESHES, use


@dataclass
class Layer:
    w: Any
    b: Any


Point = collections.namedtuple("Point", "x y")


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # which takes its time on busy disks
    chunks_of.cache_clear()
    monkeypatch.setattr(exchange, "CHUNK", 256)
    yield
    chunks_of.cache_clear()


def bits(tree: Any) -> list[Any]:
    leaves = flatten(tree)[0]
    return [
        (x.dtype, x.shape, np.asarray(x).tobytes()) if hasattr(x, "dtype") else (type(x), repr(x))
        for x in leaves
    ]


def arrays() -> dict[str, np.ndarray]:
    """Of every dtype, made of random bytes: NaN of all kinds, infinities, zeros of both signs."""
    r = np.random.default_rng(3)
    made = {}
    for name, dtype in DTYPES.items():
        raw = r.integers(0, 2 if name == "bool" else 256, 13 * 6 * dtype.itemsize, np.uint8)
        made[name] = raw.view(dtype).reshape(13, 6)
    return made | {"none": np.zeros((0, 4)), "one": np.float32(-0.0), "line": np.arange(5)}


# -- what was saved is loaded ----------------------------------------------------------------------
def test_a_tree_comes_back(tmp_path: Path) -> None:
    tree = {
        "layers": [Layer(ost.ones((3, 4)), np.arange(4)), Layer(ost.zeros(2), None)],
        "numbers": (1, True, -2.5, math.inf, 3 - 1j, 2**127, "text ✓", b"\x00\xff", None),
        "empty": [{}, [], ()],
        "point": Point(ost.asarray(2.0), "y"),
        3: {(1, "a"): np.float32(7)},
        None: ost.arange(3),
    }
    ost.save_state(tmp_path / "new" / "c", tree, step=0)
    found = ost.load_state(tmp_path / "new" / "c")
    assert found.keys() == tree.keys()
    assert found["numbers"] == tree["numbers"]
    assert [type(v) for v in found["numbers"]] == [type(v) for v in tree["numbers"]]
    assert found["empty"] == tree["empty"]
    assert found["point"].keys() == {"x", "y"}
    assert found["layers"][1]["b"] is None
    assert np.asarray(found["layers"][0]["w"]).tolist() == np.ones((3, 4)).tolist()
    assert found[3][1, "a"].dtype == np.float32
    again = ost.load_state(tmp_path / "new" / "c", like=tree)
    assert isinstance(again["layers"][0], Layer)
    assert isinstance(again["point"], Point)
    assert bits(again) == bits(tree)
    assert flatten(again)[1] == flatten(tree)[1]


@pytest.mark.parametrize("writers", MESHES, ids=str)
def test_any_workers_and_any_layout(tmp_path: Path, writers: tuple[int, ...]) -> None:
    values = arrays()
    with use(writers, "any-workers" if writers == (3,) else "same-plan"):
        tree = {
            f"{name} {split}": ost.asarray(value, split=split)
            for name, value in values.items()
            for split in (None, *range(value.ndim))
        }
        ost.save_state(tmp_path, tree, step=1)
        for name, x in ost.load_state(tmp_path).items():
            assert x.split == tree[name].split, "as it lay when it was saved"
    for readers in ((1,), (2,), (4,), (3, 2)):
        with use(readers):
            for split in ("as saved", None, 0, 1, (0, 1)[: len(readers)]):
                found = ost.load_state(tmp_path, split=split)
                assert bits(found) == bits(tree)
            found = ost.load_state(
                tmp_path, split=lambda name, shape: len(shape) - 1 if shape else None
            )
            assert bits(found) == bits(tree)
            assert readers == (1,) or found["float32 0"].split == 1


def test_axes_are_counted_from_the_end_too(tmp_path: Path) -> None:
    value = np.arange(12.0).reshape(3, 4)
    with use((2,)):
        x = ost.asarray(value, split=-1)
        assert x.split == 1
        ost.save_state(tmp_path, x, step=1)
        for split in ("as saved", -1, [1], np.int64(1)):
            found = ost.load_state(tmp_path, split=split)
            assert found.split == 1
            assert bits(found) == bits(value)
        assert ost.load_state(tmp_path, split=5).split is None, "it has no such axis"
        for wrong in ("rows", 1.0, ["rows"], True):
            for use_it in (
                lambda wrong=wrong: ost.load_state(tmp_path, split=wrong),
                lambda wrong=wrong: ost.asarray(value, split=wrong).sum().item(),
            ):
                with pytest.raises(LayoutError, match=r"needed None, an axis below 2, or a tuple"):
                    use_it()


def test_like_says_how_arrays_lie(tmp_path: Path) -> None:
    with use((2,)):
        tree = {"a": ost.asarray(np.ones((4, 6)), split=0), "b": ost.zeros(3)}
        ost.save_state(tmp_path, tree, step=1)
        other = {"a": ost.asarray(np.zeros((4, 6)), split=1), "b": ost.ones(3)}
        assert other["a"].split == 1
        assert ost.load_state(tmp_path, like=other)["a"].split == 1
        assert ost.load_state(tmp_path, like=other, split=None)["a"].split is None
        for like, message in (
            ({"a": other["a"]}, r"got \['a', 'b'\] in the checkpoint at like; needed \['a'\], as in like"),
            ([1, 2], r"got a dict in the checkpoint at like; needed a list"),
            ({"a": ost.ones((4, 5)), "b": 0}, r"float64\[4,6\] in the checkpoint at like\['a'\]; needed float64\[4,5\]"),
            ({"a": np.ones((4, 6), "f4"), "b": 0}, r"\(.*test_states.py:\d+\): got .*; needed float32\[4,6\], as in like\.$"),
            ({"a": None, "b": 0}, r"got an array in the checkpoint at like\['a'\]; needed None"),
            ({"a": 1, "b": (1,)}, r"at like\['b'\]; needed a tuple"),
        ):  # fmt: skip
            with pytest.raises(ArgumentError, match=message):
                ost.load_state(tmp_path, like=like)


def test_zarr_reads_a_checkpoint(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    values = {k: v for k, v in arrays().items() if k != "bfloat16"}
    with use((3,)):
        tree = {k: ost.asarray(v, split=0 if v.ndim else None) for k, v in values.items()}
        ost.save_state(tmp_path, {"p": [tree]}, step=12)
    group = zarr.open_group(tmp_path / "step-12", mode="r")
    for name, value in values.items():
        found = group[f"p.0.{name}"]
        assert found.dtype == value.dtype
        assert found[...].tobytes() == value.tobytes()


def test_each_block_has_one_writer_and_is_read_by_who_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrote: list[Any] = []
    write, checked = ZarrSink.write, ChunkSource._checked
    monkeypatch.setattr(
        ZarrSink,
        "write",
        lambda s, part, box: (wrote.append((s.path, box)), write(s, part, box))[1],
    )
    got: list[str] = []
    monkeypatch.setattr(
        ChunkSource, "_checked", lambda s, name: (got.append(name), checked(s, name))[1]
    )
    value = np.random.default_rng(0).normal(size=(96, 8))
    with use((3,)):
        ost.save_state(tmp_path, [ost.asarray(value, split=0), ost.asarray(value)], step=1)
        assert len(set(wrote)) == len(wrote) == 48
        got.clear()
        ost.load_state(tmp_path, split=0)
    counts = collections.Counter(name for name in got if name != "zarr.json")
    assert len(counts) == 24
    assert set(counts.values()) == {2}, "each chunk of both arrays by one worker"


def test_values_that_are_pending_or_in_a_file(tmp_path: Path) -> None:
    value = np.random.default_rng(0).normal(size=(50, 4))
    np.save(tmp_path / "x.npy", value)
    x = ost.load(tmp_path / "x.npy", resident=False)
    y = ost.asarray(value) * 2
    ost.save_state(tmp_path / "c", {"x": x, "y": y}, step=1)
    found = ost.load_state(tmp_path / "c")
    np.testing.assert_array_equal(np.asarray(found["x"]), value)
    np.testing.assert_array_equal(np.asarray(found["y"]), value * 2)


def test_names_of_folders(tmp_path: Path) -> None:
    tree = {
        "a": {"b": np.ones(1)},
        "a.b": np.ones(2),
        "../x": np.ones(3),
        "": [np.ones(4)],
        "manifest": np.ones(5),
    }
    tree |= {"A": {"B": np.ones(6)}, "ö": np.ones(7), "l" * 300: np.ones(8), "l" * 301: np.ones(9)}
    ost.save_state(tmp_path / "c", tree, step=1)
    assert bits(ost.load_state(tmp_path / "c")) == bits(tree)
    names = {p.name for p in (tmp_path / "c" / "step-1").iterdir()}
    assert {
        "A.B",
        "a.b~2",
        "a.b~3",
        "x",
        "0",
        "manifest~2",
        "state",
        "manifest",
        "zarr.json",
    } <= names
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


# -- several steps ----------------------------------------------------------------------------------
def test_the_newest_stay(tmp_path: Path) -> None:
    for step in range(6):
        ost.save_state(tmp_path, step, step=step)
    assert ost.saved_steps(tmp_path) == [3, 4, 5]
    assert ost.load_state(tmp_path) == 5
    assert ost.load_state(tmp_path, step=3) == 3
    ost.save_state(tmp_path, "again", step=4)  # of a run that went back
    assert ost.saved_steps(tmp_path) == [3, 5, 4]
    assert ost.load_state(tmp_path) == "again"
    ost.save_state(tmp_path, 1, step=1, keep=2)
    assert ost.saved_steps(tmp_path) == [4, 1]
    ost.save_state(tmp_path, 0, step=0, keep=None)
    ost.save_state(tmp_path, 9, step=9, keep=1)
    assert ost.saved_steps(tmp_path) == [9]
    assert sorted(p.name for p in tmp_path.iterdir()) == [".lock", "step-9"]


def test_an_old_step_goes_only_when_the_new_one_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ost.save_state(tmp_path, "old", step=1, keep=1)

    def seen(self: Any, gone: list[int]) -> None:
        assert gone == [1]
        assert ost.load_state(tmp_path) == "new"
        raise KeyboardInterrupt

    monkeypatch.setattr(steps.Steps, "_forget", seen)
    with pytest.raises(KeyboardInterrupt):
        ost.save_state(tmp_path, "new", step=2, keep=1)
    assert ost.saved_steps(tmp_path) == [1, 2]


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs Linux")
def test_all_is_on_the_disk_before_a_step_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    replace = steps.replace_folder

    def seen(handle: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{handle}")))

    def named(part: Path, target: Path, **how: Any) -> None:
        there = {part, *part.rglob("*")}
        assert len(there) == 12
        assert set(synced) == there, "files, and the names in folders"
        assert synced[-2:] == [part / "manifest", part]
        synced.clear()
        replace(part, target, **how)

    monkeypatch.setattr(os, "fsync", seen)
    monkeypatch.setattr(steps, "replace_folder", named)
    ost.save_state(tmp_path, {"w": np.ones((16, 6)), "b": np.ones(2)}, step=1)
    assert synced == [tmp_path]


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs Linux")
@pytest.mark.parametrize("exchange", [True, False])
def test_a_step_that_is_replaced_goes_when_the_new_name_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool
) -> None:
    ost.save_state(tmp_path, "old", step=1)
    did: list[Any] = []
    remove = shutil.rmtree

    def removes(folder: Any, **how: Any) -> None:
        if (Path(folder) / "manifest").exists():
            did.append(("removed", Path(folder).name))
        remove(folder, **how)

    def seen(handle: int) -> None:
        did.append(("synced", Path(os.readlink(f"/proc/self/fd/{handle}"))))

    monkeypatch.setattr(os, "fsync", seen)
    monkeypatch.setattr(shutil, "rmtree", removes)
    if not exchange:
        monkeypatch.setattr(disk, "_exchange", lambda a, b: False)
    ost.save_state(tmp_path, "new", step=1)
    assert did[-2] == ("synced", tmp_path)
    assert did[-1] == ("removed", ".step-1.part" if exchange else ".step-1.part.old")


def test_a_step_whose_name_was_just_taken(tmp_path: Path) -> None:
    """Its writer died before the new one had the name."""
    ost.save_state(tmp_path, "old", step=1)
    (tmp_path / "step-1").rename(tmp_path / ".step-1.part.old")
    (tmp_path / ".step-1.part").mkdir()
    assert ost.saved_steps(tmp_path) == [1]
    assert ost.load_state(tmp_path) == "old"
    ost.save_state(tmp_path, 2, step=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".lock", "step-1", "step-2"]
    assert ost.load_state(tmp_path, step=1) == "old"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_that_was_forked_while_a_step_was_written_stops_nobody(tmp_path: Path) -> None:
    code = (
        "import os, sys, signal, ostinato as ost\n"
        "from ostinato.io_pipeline.steps import Steps\n"
        "with Steps(sys.argv[1]).writing(1):\n"
        "    pid = os.fork() or signal.pause()\n"
        "signal.alarm(60)\n"
        "ost.save_state(sys.argv[1], 2, step=2)\n"
        "os.kill(pid, signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert ost.saved_steps(tmp_path) == [2]


# -- damage -----------------------------------------------------------------------------------------
def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flipped(data: bytes) -> bytes:
    k = len(data) * 2 // 3
    return data[:k] + bytes([data[k] ^ 16]) + data[k + 1 :]


def test_a_damaged_checkpoint_is_named_and_an_older_one_loaded(tmp_path: Path) -> None:
    tree = {"w": np.random.default_rng(0).normal(size=(20, 6)), "b": np.arange(3), "n": 1}
    ost.save_state(tmp_path, tree, step=1)
    ost.save_state(tmp_path, tree | {"n": 2}, step=2)
    whole = tmp_path / "whole"
    shutil.copytree(tmp_path / "step-2", whole)
    files = [p for p in whole.rglob("*") if p.is_file()]
    assert len(files) == 9
    for path in files:
        for damage in (cut, flipped, None):
            target = tmp_path / "step-2" / path.relative_to(whole)
            if damage is None:
                target.unlink()
            else:
                target.write_bytes(damage(path.read_bytes()))
            with pytest.warns(RuntimeWarning) as said:
                assert bits(ost.load_state(tmp_path)) == bits(tree)
            (warning,) = said
            text = str(warning.message)
            assert text.startswith(
                "the checkpoint of step 2 is damaged, so an older one is loaded. "
            )
            assert path.name in text
            assert "test_states.py:" in text
            assert warning.filename == __file__
            with pytest.raises(DataFileError, match="step-2"):
                ost.load_state(tmp_path, step=2)
            target.write_bytes(path.read_bytes())
    assert ost.load_state(tmp_path)["n"] == 2
    (tmp_path / "step-2" / "manifest").write_bytes(b"")
    ost.save_state(tmp_path, tree | {"n": 3}, step=3, keep=1)
    assert ost.load_state(tmp_path, step=3)["n"] == 3
    assert ost.saved_steps(tmp_path) == [3, 2], "what is damaged is left for people to look at"


def test_no_checkpoint(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        assert ost.saved_steps(path) == []
        with pytest.raises(
            DataFileError,
            match=r"\(.*test_states.py:\d+\): got no checkpoint that is whole; needed one",
        ):
            ost.load_state(path)
    with pytest.raises(DataFileError, match=r"step-7.manifest: got No such file"):
        ost.load_state(tmp_path, step=7)


ODD = [None, -1, 3, 2**70, 1.5, "x", "../w", "float32", [], {}, [[]], {"array": 9}, {"b": "?"}, {"dict": [[[], 1]]}]  # fmt: skip


def test_hostile_manifests(tmp_path: Path) -> None:
    """Whatever a manifest says, with the right checksum: an error, or a tree; never a crash."""
    ost.save_state(tmp_path, {"w": [np.ones((3, 2)), None], "n": 2.5}, step=1)
    good = steps.Steps(tmp_path).read(1)
    refused = []

    @settings(deadline=None, max_examples=400, derandomize=True)
    @given(st.data())
    def each(data: Any) -> None:
        content = json.loads(json.dumps(good))
        places = list(inner(content))
        for node, key in data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=3)):
            node[key] = data.draw(st.sampled_from(ODD))
        rest = json.dumps(content).encode()
        digest = hashlib.sha256(b"1\n" + rest).hexdigest().encode()
        head = b"ostinato state 1 1 " + digest
        (tmp_path / "step-1" / "manifest").write_bytes(head + b"\n" + rest)
        try:
            ost.load_state(tmp_path, step=1)
        except DataFileError:
            refused.append(content)

    each()
    assert 100 < len(refused) < 400


def inner(node: Any) -> Any:
    """All places of something that JSON tells of."""
    for key in list(node) if isinstance(node, dict) else range(len(node)):
        yield node, key
        if isinstance(node[key], (dict, list)):
            yield from inner(node[key])


# -- killed -----------------------------------------------------------------------------------------
@pytest.mark.cpu_only
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_may_be_killed_at_any_moment() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.front.killed", "30"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=300,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    found = re.fullmatch(r"(\d+) moments, 30 kills, (\d+) checkpoints, .*", run.stdout.strip())
    assert found is not None
    assert int(found[1]) > 30
    assert int(found[2]) >= 30


def test_the_check_of_killed_processes_can_fail(tmp_path: Path) -> None:
    killed.save(tmp_path, 1)
    killed.save(tmp_path, 2)
    assert killed.check(tmp_path) == 2
    chunk = next((tmp_path / "step-2" / "w").glob("c.*"))
    chunk.write_bytes(flipped(chunk.read_bytes()))
    with pytest.raises(RuntimeWarning, match="step 2 is damaged"):
        killed.check(tmp_path)


# -- in the background ------------------------------------------------------------------------------
@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_written_behind_is_what_was_there(
    tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    write = ZarrSink.write
    monkeypatch.setattr(ZarrSink, "write", lambda *a: (gate.wait(30), write(*a))[1])
    numbers = np.arange(40.0)
    with use((workers,)):
        step = ost.compile(lambda w: w * 2 + 1, donate=["w"])
        w = step(ost.asarray(np.ones((64, 64)), split=0))
        saving = ost.save_state(tmp_path, {"w": w, "n": numbers}, step=1, wait=False)
        numbers[:] = 0
        for _ in range(3):
            w = step(w)
        assert np.asarray(w)[0, 0] == 31
        assert not saving.done
        assert repr(saving) == "<Saving: step 1, on its way>"
        assert steps.Steps(tmp_path).known() == []
        threading.Timer(0.1, gate.set).start()
        assert ost.saved_steps(tmp_path) == [1], "it waits"
        assert saving.done
        saving.wait()
        found = ost.load_state(tmp_path)
        assert (np.asarray(found["w"]) == 3).all()
        np.testing.assert_array_equal(np.asarray(found["n"]), np.arange(40.0))


def test_one_is_written_at_a_time_and_none_fails_unheard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(5):
        ost.save_state(tmp_path, {"n": np.full(9, step)}, step=step, wait=False)
    ost.save_state(tmp_path, 5, step=5).wait()
    assert ost.saved_steps(tmp_path) == [3, 4, 5]
    monkeypatch.setattr(
        ZarrSink, "create", lambda self: (_ for _ in ()).throw(DataFileError("full."))
    )
    saving = ost.save_state(tmp_path, np.ones(3), step=6, wait=False)
    message = r"the checkpoint of step 6 was not written. full \(.*test_states.py:\d+\)"
    with pytest.raises(DataFileError, match=message):
        saving.wait()
    saving.wait()
    ost.save_state(tmp_path, np.ones(3), step=6, wait=False)
    with pytest.raises(DataFileError, match=message):
        ost.save_state(tmp_path, 7, step=7)
    monkeypatch.undo()
    ost.save_state(tmp_path, 7, step=7)
    assert ost.load_state(tmp_path) == 7
    assert not [p for p in tmp_path.iterdir() if p.name.endswith(".part")]


def test_what_failed_is_told_at_the_end(tmp_path: Path) -> None:
    code = (
        "import ostinato as ost, sys\n"
        "ost.save_state(sys.argv[1], ost.ones(3), step=1, wait=False)\n"
        "ost.save_state('/dev/null/x', ost.ones(3), step=2, wait=False)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True
    )
    assert "the checkpoint of step 2 was not written" in run.stderr
    assert ost.saved_steps(tmp_path) == [1], "a process does not end before its checkpoint is there"


@pytest.mark.parametrize("end", ["", "ost.session().close()\n"], ids=["script", "session"])
def test_nothing_ends_before_its_checkpoint_is_there(tmp_path: Path, end: str) -> None:
    """Large arrays are written by threads, which Python gives to nobody once a script has ended."""
    code = (
        "import ostinato as ost, sys\n"
        "ost.connect(2)\n"
        "state = {k: ost.ones((2, 1 << 18), split=0) * k for k in range(6)}\n"
        "saving = ost.save_state(sys.argv[1], state, step=1, wait=False)\n"
    )
    said = "print(saving.done)\n" if end else ""
    run = subprocess.run(
        [sys.executable, "-c", code + end + said, str(tmp_path)], capture_output=True, text=True
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == ("True\n" if end else "")
    assert ost.saved_steps(tmp_path) == [1]
    assert (np.asarray(ost.load_state(tmp_path)[5]) == 5).all()


# -- trouble ----------------------------------------------------------------------------------------
def test_what_has_no_meaning(tmp_path: Path) -> None:
    for state, message in (
        ({"f": len}, r"got a builtin_function_or_method at state\['f'\]; needed arrays, numbers"),
        (
            {"d": {frozenset(): 1}},
            r"got the key frozenset\(\) in a dict; needed strings or numbers",
        ),
        ({(2**70,): 1}, r"got the key \(1180591620717411303424,\) in a dict; needed strings or"),
    ):
        with pytest.raises(ArgumentError, match=message):
            ost.save_state(tmp_path, state, step=1)
    for kind, message in (
        ({"step": -1}, r"save_state\(step=\) .*: got -1; needed a whole number that is 0 or more"),
        ({"step": 1.0}, r"got 1.0"),
        ({"step": True}, r"got True"),
        ({"step": 1, "keep": 0}, r"save_state\(keep=\) .*: got 0; needed a whole number that is 1 or more"),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=message):
            ost.save_state(tmp_path, 1, **kind)
    with pytest.raises(TracedValueError):
        ost.compile(lambda x: ost.save_state(tmp_path, x, step=1) or x)(ost.ones(3))
    (tmp_path / "file").write_text("")
    with pytest.raises(
        DataFileError,
        match=r"step 1 was not written. .*needed a folder to write checkpoints to \(.*test_states",
    ):
        ost.save_state(tmp_path / "file", 1, step=1)
    assert ost.saved_steps(tmp_path) == []
