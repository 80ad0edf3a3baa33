"""Only files of our own are removed, replaced or believed: the cache, arrays and checkpoints that are written.

The cache holds machine code: it is used where nobody else can have written it, and what is removed carries our
names and marks."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.io_pipeline import sinks
from ostinato.ops.core import disk, disk_cache
from ostinato.ops.cpu.jit import llvm
from ostinato.planner import cache as plan_cache
from ostinato.planner.tuning.tuner import Known

import ostinato as ost
from ostinato import command, settings
from ostinato.errors import DataFileError
from tests.clusters import ROOT, needs_mpi
from tests.runtime.test_job import mpiexec
from tests.sessions import use
from tests.trust.conftest import Tally

OTHER = 54321  # some other user
needs_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may give files away"
)
UNUSED = "is not used as a part of the cache"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place for a cache, in a process that was told of nothing yet."""
    place = tmp_path / "cache"
    use_cache(place, monkeypatch)
    return place


def use_cache(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "cache", place)
    fresh(monkeypatch)


def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a new process would be."""
    disk_cache.open_cache.cache_clear()
    llvm._tidy.cache_clear()
    monkeypatch.setattr(disk_cache, "_told", False)
    monkeypatch.setattr(llvm, "_made", {})
    llvm.linked.cache_clear()


def work(scale: float = 2.0) -> str:
    """Make a plan and its kernels, or find them; where the plan came from."""
    x = np.linspace(0, 1, 50_000)
    with ost.connect():
        f = ost.compile(lambda x: ost.tanh(x) * scale + ost.exp(x))
        np.testing.assert_allclose(np.asarray(f(x)), np.tanh(x) * scale + np.exp(x))
        g = ost.compile(lambda x: x - x * scale)
        np.testing.assert_allclose(np.asarray(g(x)), x - x * scale, atol=1e-12)
        return f.misses[-1].source


def tree(folder: Path) -> dict[str, Any]:
    """All that is in a folder: names, kinds, owners, modes, contents."""
    found = {}
    for place, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            path = Path(place) / name
            facts = path.lstat()
            content: Any = None
            if stat.S_ISLNK(facts.st_mode):
                content = os.readlink(path)
            elif stat.S_ISREG(facts.st_mode):
                content = path.read_bytes()
            found[str(path.relative_to(folder))] = facts.st_uid, facts.st_mode, content
    return found


def entries(place: Path) -> Iterator[Path]:
    for name in ("plans", "kernels", "texts", "tuned", "machine.json"):
        top = place / name
        yield from (p for p in [top, *top.rglob("*")] if p.is_file())


def told(run: Callable[[], Any]) -> list[str]:
    """What is said about the cache meanwhile."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run()
    return [str(w.message) for w in found if UNUSED in str(w.message)]


# -- what is removed -----------------------------------------------------------------------
HEX = "0123456789abcdef" * 2
OLD = "plans/0-0123456789ab"


def plant(cache: Path, outside: Path) -> set[str]:
    """Look-alikes in a cache, none of which are ours; links that lead to what looks like ours outside."""
    outside.mkdir()
    good = disk_cache._head(f"kernels/{HEX}.o", b"code") + b"\ncode"
    theirs: dict[str, Any] = {
        "thesis.plan": b"of my life",
        "plans/floor.plan": b"of my house",
        "plans/2024/floor.plan": b"of my house",
        "plans/0-old/a.plan": b"of my house",
        f"{OLD}/notes.txt": b"mine",
        f"{OLD}/{HEX}.plan": b"a plan of mine, by chance under this name",
        f"{OLD}/{HEX}.plan.txt": good,
        f"{OLD}/{HEX[:-1]}.plan": good,
        f"{OLD}/.{HEX}.plan.0123456789ab.part": b"half of mine",
        f"{OLD}/deeper/{HEX}.plan": good,
        "kernels/linux.o": b"\x7fELF",
        f"kernels/{HEX}.o/inside": b"in a folder of this name",
        f"kernels/{HEX.upper()}.o": good,
        "tuned/piano.jsonl": b"{}",
        f"tuned/{HEX[:16]}.jsonl": b"[]",
        "kernels.tar": b"mine",
        "other/kernels/" + HEX + ".o": good,
    }
    for name, content in theirs.items():
        path = cache / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, (1e9, 1e9))
    (outside / f"{HEX}.plan").write_bytes(good)
    (outside / f"{HEX}.o").write_bytes(good)
    links = {
        "plans/1-aaaaaaaaaaaa": outside,
        f"{OLD}/{'b' * 32}.plan": outside / f"{HEX}.plan",
        f"kernels/{'b' * 32}.o": outside / f"{HEX}.o",
        f"kernels/{'c' * 32}.o": outside / "nothing",
    }
    for name, target in links.items():
        (cache / name).symlink_to(target)
    os.mkfifo(cache / f"kernels/{'d' * 32}.o")
    names = {*theirs, *links, f"kernels/{'d' * 32}.o"}
    if os.geteuid() == 0:
        for name in (f"kernels/{'e' * 32}.o", f"{OLD}/{'e' * 32}.plan"):
            (cache / name).write_bytes(good)
            os.chown(cache / name, OTHER, OTHER)
            names.add(name)
    return names


def ours(cache: Path) -> set[str]:
    """Files of this version and earlier ones, of which some were left half written long ago."""
    good = disk_cache._head("anything", b"code") + b"\ncode"
    made = {
        f"{OLD}/{'1' * 32}.plan": good,
        f"{OLD}/{'2' * 32}.plan": b"ostinato plan 1 as they were before",
        f"{OLD}/.{'3' * 32}.plan.0123456789ab.part": good[:9],
        "plans/3-ffffffffffff/" + "4" * 32 + ".plan": good,
    }
    for name, content in made.items():
        path = cache / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, (1e9, 1e9))
    return set(made)


@pytest.mark.parametrize("how", [["prune"], ["prune", "--all"], ["prune", "--keep-mb", "0"]])
def test_prune_removes_what_is_ours(
    folder: Path, tmp_path: Path, how: list[str], tally: Tally, monkeypatch: pytest.MonkeyPatch
) -> None:
    work()
    theirs, mine = plant(folder, tmp_path / "outside"), ours(folder)
    before, outside = tree(folder), tree(tmp_path / "outside")
    fresh(monkeypatch)
    assert command.main(["cache", *how]) == 0
    after = tree(folder)
    assert tree(tmp_path / "outside") == outside
    assert {n: before[n] for n in theirs} == {n: after.get(n) for n in theirs}
    if how == ["prune"]:
        mine.discard(f"{OLD}/.{'3' * 32}.plan.0123456789ab.part")  # of a version that nobody runs
    assert not {n for n in mine if n.endswith(".plan")} & set(after)
    assert not (folder / "plans/3-ffffffffffff").exists(), "nothing else was in it"
    gone = set(before) - set(after)
    tops = {"plans", "kernels", "texts", "tuned", "machine.json"}
    assert all(n.split("/")[0] in tops for n in gone)
    tally("look-alikes that stayed", len(theirs))


def test_limits_remove_what_is_ours(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caches' own limits, by the same rule."""
    work()
    theirs = plant(folder, tmp_path / "outside")
    before = tree(folder)
    monkeypatch.setattr(llvm, "MOST_KEPT", 0)
    monkeypatch.setattr(settings, "cache_bytes", 1)
    fresh(monkeypatch)
    work(3.0)
    for kind in ("plans", "kernels", "texts", "tuned"):
        disk_cache.open_cache(folder).keep_within(kind, 0)
    after = tree(folder)
    assert {n: before[n] for n in theirs} == {n: after.get(n) for n in theirs}
    left = {str(f.path.relative_to(folder)) for f in disk_cache.open_cache(folder).files()}
    assert left <= theirs, "what is there has names of ours, and no more"


IMPORTANT = {
    "letter.txt": b"mine",
    "plans/house.plan": b"mine",
    "plans/0-0123456789ab/" + HEX + ".plan": b"mine, by chance",
    "kernels/" + HEX + ".o": b"a kernel of mine",
    "kernels/popcorn.txt": b"mine",
    "texts/" + HEX + ".z": b"a text of mine",
    "tuned/piano.jsonl": b"{}",
    "machine.json": b'{"washing": true}',
}


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o700])
@pytest.mark.parametrize("also", [(), (".ostinato-cache",), ("ostinato-cache/x.txt",)])
def test_a_folder_with_other_files_is_left_as_it_is(
    folder: Path, mode: int, also: tuple[str, ...], tally: Tally, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever OSTINATO_CACHE says: not one file, mode or time of what was there changes."""
    for name, content in {**IMPORTANT, **dict.fromkeys(also, b"mine, too")}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir():
            path.chmod(mode)
    before, seen = tree(folder), folder.stat().st_mode

    def all_of_it() -> None:
        for how in ([], ["--all"]):
            work()
            assert command.main(["cache", "prune", *how]) == 0
            assert command.main(["cache", "list"]) == 0

    said = told(all_of_it)
    after = tree(folder)
    assert {n: after.get(n) for n in before} == before
    assert folder.stat().st_mode == seen
    inside = set(after) - set(before)
    if "ostinato-cache/x.txt" in also:
        assert not inside
        assert len(said) == 1
    else:
        assert {n.split("/")[0] for n in inside} == {"ostinato-cache"}
        assert not said
        fresh(monkeypatch)
        work()
        fresh(monkeypatch)
        assert work() == "disk"
    tally("foreign files that stayed", len(before))


def test_random_trees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tally: Tally, thorough: bool) -> None:  # fmt: skip
    """Names and contents put together at random from parts of ours: what goes has both."""
    rng = np.random.default_rng(0)
    parts = {
        "folder": ["plans", OLD, "plans/1-zz", "kernels", "tuned", "", "mine", f"plans/{HEX}"],
        "name": [f"{HEX}.plan", f"{HEX}.o", f"{HEX[:16]}.jsonl", "machine.json", "x.plan", "x", f".{HEX}.o.0123456789ab.part"],
        "content": [b"", b"mine", disk_cache._head("x", b"") + b"\n", b"ostinato", b"0" * 16 + b"\x7fELF", b"0" * 16 + b" {}", b"\xff" * 80],
    }  # fmt: skip
    count = 300 if thorough else 30
    for k in range(count):
        place = tmp_path / str(k)
        place.mkdir()
        if k % 2:
            (place / disk_cache.MARKER).write_bytes(disk_cache.SAID)
        for _ in range(rng.integers(1, 12)):
            folder, name, content = (p[rng.integers(len(p))] for p in parts.values())
            path = place / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                path.write_bytes(content)
                os.utime(path, (1e9, 1e9))
        before = tree(place)
        use_cache(place, monkeypatch)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            command.main(["cache", "prune", "--all"])
            for kind in ("plans", "kernels", "tuned", ""):
                disk_cache.open_cache(place).keep_within(kind, 0)
        after = tree(place)
        for name in set(before) - set(after):
            content = before[name][2]
            if content is None:  # a folder of a version, with nothing left in it
                assert disk_cache.re.fullmatch(rf"plans/{disk_cache._VERSION}", name)
                continue
            at, _, file = name.rpartition("/")
            plain = file.removeprefix(".").removesuffix(".0123456789ab.part")
            assert any(
                disk_cache.re.fullmatch(a, at) and disk_cache.re.fullmatch(b, plain)
                for a, b in disk_cache._FILES.items()
            ), name
            assert disk_cache._BEGINS.match(content) or (
                file[0] == "." and content in (b"", b"ostinato")
            )
    tally("random trees pruned", count)


# -- what is believed ----------------------------------------------------------------------
def test_all_is_for_this_user_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0)
    try:
        work()
        Known(folder, "here").disk.add("tuned/0123456789abcdef.jsonl", ["{}"])
        disk_cache.open_cache(folder).write("machine.json", b"{}")
    finally:
        os.umask(before)
    modes = {n: stat.S_IMODE(mode) for n, (_, mode, _) in tree(folder).items()}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    kinds = {n.split("/")[0] for n in modes}
    assert kinds == {"plans", "kernels", "tuned", "machine.json", disk_cache.MARKER}
    for name, mode in modes.items():
        assert mode == (0o700 if (folder / name).is_dir() else 0o600), name


def test_folders_of_earlier_versions_are_closed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("plans/1-0123456789ab", "kernels", "tuned"):
        (folder / name).mkdir(parents=True)
    (folder / f"kernels/{HEX}.o").write_bytes(b"x" * 16 + b"\x7fELF")
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    fresh(monkeypatch)
    assert work() == "made"
    assert (folder / disk_cache.MARKER).read_bytes() == disk_cache.SAID
    for path in (folder, folder / "plans", folder / "kernels"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700, path
    fresh(monkeypatch)
    assert work() == "disk"


SPOILS: dict[str, Callable[[Path], object]] = {
    "others may write to it": lambda p: p.chmod(0o602),
    "its group may write to it": lambda p: p.chmod(0o620),
    "it is somebody else's": lambda p: os.chown(p, OTHER, OTHER),
    "it is another's content": lambda p: p.write_bytes(next(swapped(p)).read_bytes()),
    "it is a link": lambda p: p.symlink_to(p.rename(p.with_suffix(".moved"))),
    "it is cut off": lambda p: p.write_bytes(p.read_bytes()[:-1]),
    "one bit is another": lambda p: p.write_bytes(
        p.read_bytes()[:-9] + bytes([p.read_bytes()[-9] ^ 4]) + p.read_bytes()[-8:]
    ),
}


def swapped(path: Path) -> Iterator[Path]:
    return (p for p in sorted(path.parent.iterdir()) if p != path and p.suffix == path.suffix)


@pytest.mark.parametrize("kind", ["plans", "kernels"])
@pytest.mark.parametrize("spoil", SPOILS)
def test_what_others_may_have_written_is_a_miss(
    folder: Path, kind: str, spoil: str, tally: Tally, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one sentence; afterwards there is a good one in its place. No other code ever runs."""
    if "somebody" in spoil and os.geteuid() != 0:
        pytest.skip("only root may give files away")
    work()
    whole = disk_cache.open_cache(folder)
    spoiled = [f.path for f in whole.files(kind)]
    assert len(spoiled) > 1
    contents = {p: p.read_bytes() for p in spoiled}
    for path in spoiled if "another's" not in spoil else spoiled[:1]:
        SPOILS[spoil](path)
    fresh(monkeypatch)
    made: list[str] = []
    make = llvm._machine_code
    monkeypatch.setattr(llvm, "_machine_code", lambda text: made.append(text) or make(text))
    said = told(lambda: made.append(work()))
    assert len(said) == 1, said
    assert str(spoiled[0].parent) in said[0]
    assert "needed what only this user can have written" in said[0]
    if kind == "kernels":
        assert len(made) > 1
    elif "another's" not in spoil:
        assert "made" in made
    fresh(monkeypatch)
    assert not told(work)
    for path, content in contents.items():
        assert not path.is_symlink()
        assert path.stat().st_uid == os.geteuid()
        assert kind == "plans" or path.read_bytes() == content
    tally("files that were not believed", len(spoiled))


def test_lines_of_others_are_not_believed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, name = disk_cache.open_cache(folder), "tuned/0123456789abcdef.jsonl"
    disk.add(name, ["a", "b"])
    path = folder / name
    first, second = path.read_text().splitlines()
    path.write_text(f"{first}\n{second[:-1]}c\nc\n{second}\n\n{first[:8]}")
    assert disk.lines(name) == ["a", "b"]
    (folder / "tuned/fedcba9876543210.jsonl").write_text(f"{first}\n")
    os.chmod(folder / "tuned/fedcba9876543210.jsonl", 0o600)
    assert disk.lines("tuned/fedcba9876543210.jsonl") == [], "of another machine"
    path.chmod(0o666)
    assert len(told(lambda: disk.lines(name))) == 1
    assert disk.lines(name) == []
    disk.add(name, ["d"])
    assert disk.lines(name) == ["d"], "nor is it added to"


@needs_root
@pytest.mark.parametrize("mode", [0o755, 0o777, 0o1777, 0o700])
@pytest.mark.parametrize("what", ["", "plans", "kernels"])
def test_a_folder_of_somebody_elses_holds_nothing(
    folder: Path, mode: int, what: str, tally: Tally, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that another user made first in a folder that all share."""
    folder.mkdir(mode=0o700)
    (folder / disk_cache.MARKER).write_bytes(disk_cache.SAID)
    (folder / what).mkdir(exist_ok=True)
    os.chown(folder / what, OTHER, OTHER)
    (folder / what).chmod(mode)

    def twice() -> None:
        for _ in range(2):
            assert work() == "made" or what == "kernels"

    said = told(twice)
    assert len(said) == 1
    assert f"one of user {OTHER}, not of this user" in said[0]
    assert "set OSTINATO_CACHE to a folder of your own" in said[0]
    assert not list((folder / what).rglob("*.o")) + list((folder / what).rglob("*.plan"))
    assert (folder / what).stat().st_uid == OTHER
    tally("folders that were not used", 1)


def test_a_cache_of_ours_that_all_may_write_to_is_closed(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    work()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_links_are_followed_to_the_cache_and_not_out_of_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link that the user gave is his; one in the cache is nobody's."""
    (tmp_path / "scratch").mkdir()
    folder.symlink_to(tmp_path / "scratch")
    work()
    assert (tmp_path / "scratch" / "plans").is_dir()
    (tmp_path / "scratch" / "kernels").rename(tmp_path / "elsewhere")
    (tmp_path / "scratch" / "kernels").symlink_to(tmp_path / "elsewhere")
    fresh(monkeypatch)
    before = tree(tmp_path / "elsewhere")
    said = told(lambda: work(5.0))
    assert len(said) == 1
    assert "something else than a folder" in said[0]
    assert tree(tmp_path / "elsewhere") == before


def test_a_new_process_warns_once_and_works(folder: Path) -> None:
    """As a user sees it."""
    code = (
        "import numpy as np, ostinato as ost\n"
        "f = ost.compile(lambda x: ost.tanh(x) * 2 + x)\n"
        "print(float(f(np.ones(50_000)).sum()), f.misses[-1].source)\n"
    )
    env = {**os.environ, "OSTINATO_CACHE": str(folder), "PYTHONPATH": str(ROOT)}

    def run() -> tuple[str, str]:
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        )
        return done.stdout.split()[1], done.stderr

    assert run() == ("made", "")
    assert run() == ("disk", "")
    for path in entries(folder):
        path.chmod(0o666)
    source, said = run()
    assert source == "made"
    assert said.count(UNUSED) == 1
    assert "RuntimeWarning" in said
    assert run() == ("disk", "")


def test_the_plan_of_another_id_is_a_miss(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with the digest that its content would have under its own name."""
    work()
    plans = plan_cache.PlanCache(folder)
    names = [f.path.name for f in plans.disk.files("plans")]
    data = plans.disk.read(f"{plans.folder}/{names[0]}")
    assert data is not None
    plans.disk.write(f"{plans.folder}/{names[1]}", data)
    fresh(monkeypatch)
    work()


# -- what is saved -------------------------------------------------------------------------
KINDS = (".npy", ".h5", ".zarr")
LEFT = ".x.npy.0123abcd.part"


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == ".h5":
        pytest.importorskip("h5py")
    return str(request.param)


class Watcher:
    """What is synced and renamed, in order; at each renaming, what was written since it was synced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.did: list[tuple[str, str]] = []
        self.unsynced: list[str] = []
        self.synced: dict[str, tuple[int, int]] = {}
        fsync, exchange = os.fsync, disk._exchange
        monkeypatch.setattr(os, "fsync", lambda handle: (fsync(handle), self._synced(handle))[0])
        for name in ("replace", "rename"):
            monkeypatch.setattr(os, name, self._renaming(getattr(os, name)))
        monkeypatch.setattr(disk, "_exchange", self._renaming(exchange))

    def _synced(self, handle: int) -> None:
        path = os.readlink(f"/proc/self/fd/{handle}")
        self.synced[path] = state(path)
        self.did.append(("sync", path))

    def _renaming(self, rename: Any) -> Any:
        def renamed(a: Any, b: Any) -> Any:
            for path in [a, *Path(a).rglob("*")]:
                if self.synced.get(str(path)) != state(path):
                    self.unsynced.append(str(path))
            self.did.append(("rename", str(b)))
            return rename(a, b)

        return renamed


def state(path: Any) -> tuple[int, int]:
    facts = os.stat(path)
    return (facts.st_mtime_ns, facts.st_mode) if stat.S_ISREG(facts.st_mode) else (0, 0)


needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no /proc")


@needs_proc
@pytest.mark.parametrize("workers", [1, 3])
def test_all_is_synced_before_it_has_the_name(
    tmp_path: Path, kind: str, workers: int, tally: Tally, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the folder after; new files and old ones, by rows and by columns, in new groups of a store."""
    count = 0
    with use((workers,)):
        for name in (None, "deep/group/a", "deep/b") if kind != ".npy" else (None,):
            path = tmp_path / f"x{'' if name is None else 'g'}{kind}"
            for split in (0, 1, None):
                x = ost.asarray(np.random.default_rng(0).normal(size=(60, 50)), split=split)
                with monkeypatch.context() as patched:
                    seen = Watcher(patched)
                    ost.save(path, x, dataset=name)
                assert not seen.unsynced
                renamed = [n for n, (what, _) in enumerate(seen.did) if what == "rename"]
                assert len(renamed) == 1
                target = seen.did[renamed[0]][1]
                assert ("sync", os.path.dirname(target)) in seen.did[renamed[0] :]
                np.testing.assert_array_equal(np.asarray(ost.load(path, dataset=name)), x)
                count += 1
    tally("savings whose order was looked at", count)


@needs_proc
def test_plans_and_pages_are_synced_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the user named goes where his link leads, with the mode that was there."""
    f = ost.compile(lambda x: x + 1)
    plan = f.plan_for(ost.zeros(3))
    (tmp_path / "real").write_text("old")
    (tmp_path / "real").chmod(0o640)
    (tmp_path / "a.plan").symlink_to("real")
    with monkeypatch.context() as patched:
        seen = Watcher(patched)
        plan.to_file(tmp_path / "a.plan")
    assert not seen.unsynced
    assert seen.did[-1] == ("sync", str(tmp_path))
    assert (tmp_path / "a.plan").is_symlink()
    assert stat.S_IMODE((tmp_path / "real").stat().st_mode) == 0o640
    assert ost.Plan.from_file(tmp_path / "real").id == plan.id


@needs_proc
def test_a_checkpoint_and_all_folders_above_it_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {"w": np.ones((50, 40)), "b": np.zeros(3), "n": 3}
    with monkeypatch.context() as patched:
        seen = Watcher(patched)
        ost.save_state(tmp_path / "new" / "run" / "states", state, step=1)
    assert not seen.unsynced
    synced = [path for what, path in seen.did if what == "sync"]
    for folder in ("", "new", "new/run", "new/run/states"):
        assert str(tmp_path / folder) in synced, f"the name of what is new in {folder!r}"
    assert seen.did[-1] == ("sync", str(tmp_path / "new" / "run" / "states"))


def modes(path: Path) -> set[tuple[int, int, int]]:
    files = [path] if path.is_file() else [path, *path.rglob("*")]
    found = set()
    for file in files:
        facts = file.stat()
        found.add((stat.S_IMODE(facts.st_mode), facts.st_uid, facts.st_gid))
    return found


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o666])
def test_mode_and_owner_stay(tmp_path: Path, kind: str, mode: int, tally: Tally) -> None:
    path = tmp_path / f"x{kind}"
    before = os.umask(0o027)
    try:
        ost.save(path, np.zeros(5))
        (me, group), high = (path.stat().st_uid, path.stat().st_gid), 0o750
        new = {(0o640, me, group)} | ({(high, me, group)} if path.is_dir() else set())
        assert modes(path) == new, "as umask says"
        owner = (OTHER, OTHER) if me == 0 else (me, group)
        for file in [path, *path.rglob("*")]:
            file.chmod(mode | (mode & 0o444) >> 2 if file.is_dir() else mode)
            os.chown(file, *owner)
        kept_so = modes(path)
        for workers in (1, 2):
            with use((workers,)):
                ost.save(path, ost.asarray(np.arange(600.0).reshape(60, 10), split=0))
                assert modes(path) == kept_so
    finally:
        os.umask(before)
    tally("savings that kept mode and owner", 2)


def test_nobody_looks_at_what_is_half_written(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen = tmp_path / f"x{kind}", []
    ost.save(path, np.zeros(5))
    kinds = {".npy": sinks.NpySink, ".h5": sinks.Hdf5Sink, ".zarr": sinks.ZarrSink}
    write = kinds[kind].write

    def looked_at(self: Any, *args: Any) -> Any:
        (stage,) = (p for p in tmp_path.iterdir() if p.name.endswith(".part"))
        seen.append(stat.S_IMODE(stage.stat().st_mode))
        return write(self, *args)

    monkeypatch.setattr(kinds[kind], "write", looked_at)
    ost.save(path, np.ones(5))
    assert seen == [0o700]
    assert os.listdir(tmp_path) == [path.name]


def test_what_may_not_be_written_to_stays(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `open`, though the folder would allow it; nor are pipes replaced."""
    path = tmp_path / f"x{kind}"
    ost.save(path, np.zeros(5))
    before = tree(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "access", lambda path, how: False)  # nobody tells root so
        with pytest.raises(DataFileError, match="Permission denied"):
            ost.save(path, np.ones(5))
    assert tree(tmp_path) == before
    if kind != ".zarr":
        os.mkfifo(tmp_path / f"pipe{kind}")
        with pytest.raises(DataFileError, match="something else than a file there"):
            ost.save(tmp_path / f"pipe{kind}", np.ones(5))
        assert (tmp_path / f"pipe{kind}").is_fifo()


def test_links_lead_to_what_is_written(tmp_path: Path, kind: str) -> None:
    (tmp_path / "far").mkdir()
    real, link = tmp_path / "far" / f"real{kind}", tmp_path / f"b{kind}"
    (tmp_path / f"a{kind}").symlink_to(f"far/real{kind}")
    link.symlink_to(f"a{kind}")
    for value in (1.0, 2.0):  # at first it leads to nothing
        ost.save(link, [value])
        assert ost.load(real).tolist() == [value]
        assert link.is_symlink()
        assert os.listdir(tmp_path / "far") == [real.name]


# -- who dies ------------------------------------------------------------------------------
def test_live_writers_are_left_alone_and_dead_ones_cleared(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"x{kind}"
    about = (None if kind != ".h5" else "data", (3,), np.dtype("f8"), (3,))
    live = sinks.open_sink(path, *about)
    live.create()
    child = os.fork() if hasattr(os, "fork") else pytest.skip("no fork")
    if not child:
        dead = sinks.open_sink(path, *about)
        dead.create()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    stages = {p.name for p in tmp_path.iterdir()}
    assert len(stages) == 2
    ost.save(tmp_path / f"y{kind}", [1.0])
    assert {p.name for p in tmp_path.iterdir()} == stages | {f"y{kind}"}, "another target's"
    ost.save(path, [1.0])
    mine = os.path.basename(os.path.dirname(live.part))
    assert {p.name for p in tmp_path.iterdir()} == {mine, path.name, f"y{kind}"}
    live.write(np.arange(3.0), ((0, 3),))
    if kind == ".h5":  # of which each writer must know what was there
        with pytest.raises(DataFileError, match="one writer at a time"):
            live.finish()
        live.discard()
    else:
        live.finish()
        assert ost.load(path).tolist() == [0, 1, 2]
    assert {p.name for p in tmp_path.iterdir()} == {path.name, f"y{kind}"}


def test_what_only_looks_left_behind_stays(tmp_path: Path, tally: Tally) -> None:
    mark = disk._MARK + b"another machine"
    plants: dict[str, bytes] = {
        f"{LEFT}.txt": b"mine",
        "x.npy.0123abcd.part/lock": disk._MARK,
        ".x.npy.0123abcX.part/lock": disk._MARK,
        ".y.npy.0123abcd.part/lock": disk._MARK,
        f"{LEFT}/lock": b"a lock of mine",
        f"{LEFT}/x.npy": b"mine",
        ".x.npy.0123abce.part/notes": b"mine",
        ".x.npy.0123abcf.part": b"a file of mine",
        ".x.npy.01234567.part/lock": mark,
        ".x.npy.01234567.part/x.npy": b"of a writer on another machine, whose locks we may not see",
    }
    for name, content in plants.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    before = tree(tmp_path)
    ost.save(tmp_path / "x.npy", [1.0])
    after = tree(tmp_path)
    after.pop("x.npy")
    assert after == before
    for path in (tmp_path / ".x.npy.01234567.part").iterdir():
        os.utime(path, (1e9, 1e9))
    ost.save(tmp_path / "x.npy", [1.0])
    gone = set(before) - set(tree(tmp_path))
    assert {n.split("/")[0] for n in gone} == {".x.npy.01234567.part"}, "nobody's after a day"
    tally("look-alikes that stayed", len(plants))


def test_an_old_one_that_was_moved_aside_comes_back(tmp_path: Path) -> None:
    """Where the system cannot exchange two names, a kill may come between two steps."""
    path = tmp_path / "x.zarr"
    ost.save(path, [1.0, 2.0])
    stage = tmp_path / ".x.zarr.0123abcd.part"
    stage.mkdir()
    (stage / "lock").write_bytes(disk._MARK + disk.platform.node().encode())
    path.rename(stage / "x.zarr.old")
    sinks.open_sink(path, None, (1,), np.dtype("f8"), (1,)).create()
    assert ost.load(path).tolist() == [1.0, 2.0]
    assert not stage.exists()


def test_killed_at_any_step(tmp_path: Path, kind: str, tally: Tally, thorough: bool) -> None:
    """Before the n-th call of the system's, for each n: the old or the new one is there, and the next writer
    leaves nothing else."""
    some = "1" if thorough else "6"
    command = [sys.executable, "-m", "tests.trust.test_own_files", str(tmp_path), kind, some]
    env = {**os.environ, "OSTINATO_CACHE": "off", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=1200, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    kills = int(done.stdout.split()[0])
    assert kills >= 8
    tally("writers killed", kills)


def killed_at_any_step() -> None:
    """What that runs. It forks before any thread or worker is there."""
    folder, kind = Path(sys.argv[1]), sys.argv[2]
    kills = 0
    some = int(sys.argv[3])
    for k, (workers, is_new) in enumerate(((1, True), (1, False), (2, False))):
        for n in range(k % some, 400, some):
            place = folder / f"{workers}-{is_new}-{n}"
            place.mkdir()
            if not killed_at(place / f"x{kind}", n, workers, is_new):
                break
            kills += 1
        else:
            raise AssertionError("it never ends")
    print(kills)


def killed_at(path: Path, n: int, workers: int, is_new: bool) -> int:
    """How a writer ended that was killed at its n-th call; 0 if it made fewer."""
    dataset, old = None if path.suffix == ".npy" else "g/a", np.zeros((8, 3))

    def save(x: Any) -> Callable[[], None]:
        return lambda: ost.save(path, x, dataset=dataset)

    if not is_new:
        in_child(save(old))
    ended = in_child(save(value()), n, workers)
    assert is_new or path.exists(), "the old one is gone"
    if path.exists():
        in_child(lambda: check_one_of(path, dataset, [value().tobytes(), old.tobytes()]))
    in_child(save(value()))
    in_child(lambda: check_one_of(path, dataset, [value().tobytes()]))
    assert os.listdir(path.parent) == [path.name], (n, os.listdir(path.parent))
    left = [str(p) for p in path.rglob("*") if p.name.endswith((".part", "lock"))]
    assert not left, left
    return ended


def value() -> Any:
    return np.arange(24.0).reshape(8, 3) + 1


def check_one_of(path: Path, dataset: str | None, found: list[bytes]) -> None:
    assert np.asarray(ost.load(path, dataset=dataset)).tobytes() in found, path


def in_child(run: Callable[[], object], kill_at: int = -1, workers: int = 1) -> int:
    """Do it in a fork, which is killed before its n-th call; its status."""
    child = os.fork()
    if child:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status == (0 if kill_at < 0 or status == 0 else -signal.SIGKILL), status
        return status
    try:
        with ost.connect(workers):
            if kill_at >= 0:
                die_at(kill_at)
            run()
            os._exit(0)
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def die_at(n: int) -> None:
    count = [0]

    def step(event: str, *about: object) -> None:
        if event in ("open", "fsync") or (event.startswith("os.") and event != "os.kill"):
            count[0] += 1
            if count[0] > n:
                os.kill(os.getpid(), signal.SIGKILL)

    fsync, exchange = os.fsync, disk._exchange
    os.fsync = lambda handle: (step("fsync"), fsync(handle))[1]  # type: ignore[assignment,func-returns-value]
    disk._exchange = lambda a, b: (step("fsync"), exchange(a, b))[1]  # type: ignore[func-returns-value]
    sys.addaudithook(step)


# -- processes -----------------------------------------------------------------------------
JOB = """
import os, sys, numpy as np, ostinato as ost
folder = sys.argv[1]
with ost.connect() as session:
    for kind in (".npy", ".h5", ".zarr"):
        for k, split in enumerate((0, 1, None)):
            x = ost.asarray(np.arange(600.0).reshape(60, 10) + k, split=split)
            ost.save(f"{folder}/x{kind}", x)
            assert np.array_equal(np.asarray(ost.load(f"{folder}/x{kind}")), np.asarray(x))
    print("saved by", session.workers, flush=True)
"""


@needs_mpi
def test_processes_keep_modes_and_leave_nothing(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    place, script = tmp_path / "files", tmp_path / "job.py"
    place.mkdir()
    script.write_text(JOB)
    for kind in KINDS:
        ost.save(place / f"x{kind}", np.zeros(3))
    for path in place.rglob("*"):
        path.chmod(0o750 if path.is_dir() else 0o640)
    job = mpiexec(3, str(script), str(place))
    assert "saved by 3" in job.stdout, job.stderr[-3000:]
    assert sorted(os.listdir(place)) == [f"x{kind}" for kind in sorted(KINDS)]
    for path in place.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o750 if path.is_dir() else 0o640), path


if __name__ == "__main__":
    killed_at_any_step()
