"""The caches of plans: hits, damage, several processes, limits."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core import disk_cache
from ostinato.planner import cache as cache_module
from ostinato.planner import pipeline
from ostinato.planner.cache import PlanCache

import ostinato as ost
from ostinato import progress, settings
from ostinato.sessions import Session


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(settings, "cache", tmp_path)
    return tmp_path


@pytest.fixture
def session(folder: Path) -> Iterator[Session]:
    with ost.connect() as s:
        yield s


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.plan"))


def source_of(function: Any, *args: Any) -> str:
    f = ost.compile(function)
    f(*args)
    return f.misses[-1].source


def program(x: Any) -> Any:
    return ost.tanh(x @ x.T).sum(0) * 2


ROOTS = """
def roots(x):
    def step(y):
        z = y - 1
        return ost.linalg.cholesky(z)
    return ost.repeat(2, step, x)
"""


def test_a_plan_from_disk_names_lines_as_they_are_today(folder: Path) -> None:
    """Down into bodies, though the program moved, and was made in another file."""
    x = ost.eye(3)  # without what is taken away it is not definite
    for name, moved, source in (("before.py", 0, "made"), ("after.py", 5, "disk")):
        found: dict[str, Any] = {"ost": ost}
        exec(compile("\n" * moved + ROOTS, name, "exec"), found)
        with ost.connect():
            f = ost.compile(found["roots"])
            with pytest.raises(np.linalg.LinAlgError, match=f"{name}:{moved + 5}"):
                np.asarray(f(x))
            assert f.misses[-1].source == source
            assert f"{name}:{moved + 6}" in f.plan.explain()
            assert {x.partition(":")[0] for x in f.plan.lowered.lines()} - {""} == {name}


def test_memory_then_disk(folder: Path) -> None:
    with ost.connect():
        assert source_of(program, ost.ones((3, 3))) == "made"
        assert source_of(program, ost.ones((3, 3))) == "memory"
        assert source_of(program, ost.ones((4, 3))) == "made"
    with ost.connect():
        assert source_of(program, ost.ones((3, 3))) == "disk"
        assert source_of(program, ost.ones((3, 3))) == "memory"
    assert all(len(p.stem) == 32 for p in files(folder))


def test_a_hit_on_disk_runs_no_pass(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ost.connect():
        source_of(program, np.ones((3, 3)))

    def never(*args: Any) -> Any:
        raise AssertionError("planned")

    monkeypatch.setattr(pipeline, "PASSES", (never,))
    with ost.connect():
        f = ost.compile(program)
        y = f(np.ones((3, 3)))
        np.testing.assert_allclose(np.asarray(y), np.tanh(np.full((3, 3), 3.0)).sum(0) * 2)


@pytest.mark.parametrize(
    "damage",
    [
        lambda p: p.write_bytes(b""),
        lambda p: p.write_bytes(p.read_bytes()[:-5]),
        lambda p: p.write_bytes(p.read_bytes()[:-5] + b"xxxxx"),
        lambda p: p.write_bytes(p.read_bytes().replace(b"ostinato plan ", b"ostinato plan 9", 1)),
        lambda p: (p.unlink(), p.mkdir()),
    ],
)
@pytest.mark.filterwarnings("ignore:.*is not used as a part of the cache:RuntimeWarning")
def test_a_damaged_file_is_a_miss_and_makes_way(folder: Path, damage: Any) -> None:
    with ost.connect():
        source_of(program, np.ones((3, 3)))
    (path,) = files(folder)
    damage(path)
    with ost.connect():
        assert source_of(program, np.ones((3, 3))) == "made"
    if path.is_file():
        with ost.connect():
            assert source_of(program, np.ones((3, 3))) == "disk"


@pytest.mark.filterwarnings("ignore:.*is not used as a part of the cache:RuntimeWarning")
def test_the_file_of_another_plan_under_this_name_is_a_miss(folder: Path) -> None:
    with ost.connect():
        source_of(program, np.ones((3, 3)))
        source_of(program, np.ones((4, 4)))
    a, b = files(folder)
    a.write_bytes(b.read_bytes())
    with ost.connect():
        kinds = {source_of(program, np.ones((3, 3))), source_of(program, np.ones((4, 4)))}
    assert kinds == {"made", "disk"}


def test_other_versions_of_the_code_have_their_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ost.connect():
        source_of(program, np.ones((3, 3)))
    monkeypatch.setattr(cache_module, "code_version", lambda: "1-0123456789ab")
    with ost.connect():
        assert source_of(program, np.ones((3, 3))) == "made"
    assert len(files(folder)) == 2


def test_the_least_recently_used_go_first(folder: Path) -> None:
    with ost.connect() as session:
        for n in range(2, 12):
            source_of(program, np.ones((n, n)))
        plans = session.plans
    by_age = files(folder)
    for age, path in enumerate(by_age):
        os.utime(path, (1e9 + age, 1e9 + age))
    sizes = [p.stat().st_size for p in by_age]
    plans.limit = sum(sizes[-4:])
    plans.sweep()
    assert files(folder) == sorted(by_age[-4:])


def test_leftovers_of_dead_writers_go(folder: Path) -> None:
    with ost.connect() as session:
        source_of(program, np.ones((3, 3)))
        plan = files(folder)[0]
        part = plan.parent / f".{plan.name}.0123456789ab.part"
        for half in (b"", plan.read_bytes()[:10], plan.read_bytes()[:-9]):
            part.write_bytes(half)
            session.plans.sweep()
            assert part.exists(), "somebody may be writing it"
            os.utime(part, (1e9, 1e9))
            session.plans.sweep()
            assert not part.exists()


def test_no_folder_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "cache", None)
    with ost.connect():
        assert source_of(program, np.ones((3, 3))) == "made"
    monkeypatch.setattr(settings, "cache", Path("/proc/nowhere"))
    with ost.connect():
        assert source_of(program, np.ones((3, 3))) == "made"


def test_in_memory_only_so_many() -> None:
    dropped: list[Any] = []
    with ost.connect() as session:
        session.plans.dropped = dropped.append
        f = ost.compile(lambda x: x + 1)
        kept = cache_module.KEPT
        cache_module.KEPT = 3
        try:
            for n in range(1, 7):
                f(np.ones(n))
        finally:
            cache_module.KEPT = kept
        assert len(session.plans.plans) == 3
        assert len(dropped) == 3
        np.testing.assert_array_equal(np.asarray(f(np.ones(1))), [2.0])  # dropped, and still good


def _work(folder: str, seed: int) -> int:
    """A process that plans the same few functions as all others do, in its own order."""
    settings.cache = Path(folder)
    order = np.random.default_rng(seed).permutation(np.arange(2, 8))
    with ost.connect():
        for n in order:
            f = ost.compile(program)
            y = np.asarray(f(np.ones((int(n), 3))))
            np.testing.assert_allclose(y, np.tanh(np.full((n, n), 3.0)).sum(0) * 2)
    return 0


@pytest.mark.parametrize("seen", [[], ["plans"], [f".{disk_cache.MARKER}.0123456789ab.part"]])
def test_a_folder_that_another_process_makes_at_this_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: list[str]
) -> None:
    """The other's marker is not there yet, or not among the names that were listed just before it was."""
    if seen == ["plans"]:
        (tmp_path / disk_cache.MARKER).write_bytes(disk_cache.SAID)
    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", lambda path: seen)
        cache = disk_cache.Cache(tmp_path)
        cache.write("kernels/" + 32 * "0" + ".o", b"code")
    assert cache.root == tmp_path
    assert disk_cache.Cache(tmp_path).root == tmp_path


def test_several_processes_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    team = [context.Process(target=_work, args=(str(tmp_path), k)) for k in range(4)]
    for process in team:
        process.start()
    for process in team:
        process.join(120)
    assert [p.exitcode for p in team] == [0] * 4
    assert len(files(tmp_path)) == 6
    assert not list(tmp_path.rglob("*.part"))


CHILD = """
import ostinato as ost
f = ost.compile(lambda x: ost.tanh(x @ x.T).sum(0) * 2)
f(ost.ones((3, 3)))
print(f.misses[-1].source)
"""


def test_another_process_hits_the_disk(tmp_path: Path) -> None:
    env = {**os.environ, "OSTINATO_CACHE": str(tmp_path)}
    said = [
        subprocess.run(
            [sys.executable, "-c", CHILD], env=env, capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    assert [s.strip() for s in said] == ["made", "disk"]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("OSTINATO_DEBUG", "9", "needed a whole number from 0 to 4"),
        ("OSTINATO_DEBUG", "loud", "needed a whole number from 0 to 4"),
        ("OSTINATO_CACHE_MB", "-1", "needed a whole number"),
    ],
)
def test_bad_settings_are_refused(name: str, value: str, message: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", "import ostinato"],
        env={**os.environ, name: value},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert f"{name}='{value}': {message}" in run.stderr


def test_settings_may_be_changed_while_it_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a notebook: the next session, or the next plan that is made, takes what is set then."""
    with ost.connect():
        monkeypatch.setenv("OSTINATO_DEBUG", "1")
        ost.compile(lambda x: x * 1.25 + 3)(np.ones(7))
        assert "plan" in capsys.readouterr().err
    monkeypatch.setenv("OSTINATO_CACHE", str(tmp_path))
    with ost.connect():
        assert settings.cache == tmp_path
        ost.compile(lambda x: x * 1.5 + 3)(np.ones(7))
    assert files(tmp_path)
    monkeypatch.setenv("OSTINATO_CACHE", "off")
    with ost.connect():
        assert settings.cache is None
        assert settings.tune == os.environ.get("OSTINATO_TUNE", "read")
    monkeypatch.setattr(progress, "screen_here", lambda: screen)
    screen = progress.Terminal()
    for wanted, shown in (("auto", screen), ("off", None)):
        monkeypatch.setenv("OSTINATO_PROGRESS", wanted)
        with ost.connect():
            assert progress._watch.screen is shown
    monkeypatch.setenv("OSTINATO_DEBUG", "loud")
    with pytest.raises(ValueError, match="OSTINATO_DEBUG='loud': needed a whole number from 0"):
        ost.connect()
    monkeypatch.undo()
    settings.read()


def test_a_cache_of_size_zero_writes_nothing(folder: Path) -> None:
    plans = PlanCache(folder, 0)
    with ost.connect() as session:
        f = ost.compile(program)
        f(np.ones((3, 3)))
        plan = f.plan
        assert session.plans.limit > 0
    for path in files(folder):
        path.unlink()
    plans.put(plan)
    assert not files(folder)


def test_a_folder_that_one_may_not_look_into_is_no_reason_to_fail(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A name that is too long is refused by the system as a folder of somebody else's is."""
    monkeypatch.setattr(settings, "cache", tmp_path / ("x" * 300))
    with ost.connect() as session:
        assert source_of(program, ost.ones((4, 4))) == "made"
        session.plans.sweep()
        assert session.plans.disk.root is None


def test_who_has_no_home_keeps_plans_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", nobody)
    monkeypatch.delenv("OSTINATO_CACHE", raising=False)
    assert settings._cache("") is None
