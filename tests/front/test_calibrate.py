"""`ostinato calibrate`: what is measured has sense, and is what predictions go by."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ostinato.planner.machine import NOMINAL, Machine, keep, known

import ostinato as ost
from ostinato import calibration, command, command_info, settings
from ostinato.calibration import Calibration, calibrate, rate_of
from tests.cuda_host import COMPILER
from tests.fake_device import KERNELS
from tests.sessions import JOB


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(settings, "cache", tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less is measured."""
    monkeypatch.setattr(calibration, "STREAM", (1 << 16, 1 << 22))
    monkeypatch.setattr(calibration, "SIDES", (32, 64))
    monkeypatch.setattr(calibration, "SAMPLES", 4)
    monkeypatch.setattr(calibration, "MANY_ELEMENTS", 1 << 12)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.usefixtures("few")
def test_what_is_measured_has_sense(workers: int, cache: Path) -> None:
    with ost.connect(workers):
        found = calibrate(1.0)
    assert known("cpu", (workers,)) == found
    assert 0 < found.call_seconds < 1e-2
    assert 0 <= found.run_seconds < 1
    assert all(1e6 < rate < 1e16 for _, rate in found.stream)
    assert {r.dtype for r in found.products} == {"float32", "float64", "bfloat16", "float16"}
    assert 0 <= found.background <= 1
    assert found.away is not None
    assert found.away.name == "disk"
    assert 0 < found.away.seconds < 1
    assert 1e5 < found.away.bandwidth < 1e13
    if workers == 2:
        ((_, link),) = found.levels
        kinds = {s.kind: s for s in link.seen}
        assert kinds.keys() == {"all_reduce", "reduce_scatter", "all_gather", "all_to_all"}
        assert all(s.workers == 2 and 0 < s.seconds < 1 for s in kinds.values())


@pytest.mark.skipif(JOB > 1, reason="workers of such a device are threads")
@pytest.mark.parametrize("device", ["fake", KERNELS] if COMPILER else ["fake"])
def test_what_leaves_a_gpu_has_room(device: str) -> None:
    """The stand-in refuses copies beyond the host's memory that was asked for."""
    with ost.connect(device=device) as session:
        found = Calibration(session, 0.5).away()
    assert found.name == "host"
    assert 0 < found.seconds < 1


@pytest.mark.usefixtures("few")
def test_each_axis_of_a_mesh_has_its_link(cache: Path) -> None:
    with ost.connect(mesh=(2, 2)) as session:
        levels = Calibration(session, 0.5).levels()
    assert [n for n, _ in levels] == [2, 0]
    assert [link.name for _, link in levels] == ["axis 1", "axis 0"]


def test_a_rate_and_where_half_of_it_is_reached() -> None:
    times = [(n, (n + 1e6) / 1e9) for n in (1e5, 1e8)]
    found = rate_of("float32", times)
    assert found.most == pytest.approx(1e9)
    assert found.half == pytest.approx(1e6)
    assert rate_of("float32", [(1e5, 1e-5), (1e8, 1.0)]).most == pytest.approx(1e10)


def test_explain_goes_by_what_was_measured(cache: Path) -> None:
    work = ost.compile(lambda x: ost.sort(x, axis=0))
    slow: Machine = Machine.from_data({**NOMINAL.data, "name": "slow", "call_seconds": 3.0})
    with ost.connect(1):
        work(np.ones((64, 8), np.float32))
        before = work.plan.explain()
        assert "of a nominal machine" in before
        keep(slow, 1, apart=False)
        after = work.plan.explain()
    assert "predicted 3 s per run" in after
    assert "of a nominal machine" not in after
    assert "x as predicted" in after


def test_sessions_decide_by_what_was_measured(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow: Machine = Machine.from_data({**NOMINAL.data, "name": "slow", "call_seconds": 3.0})
    keep(slow, 2, apart=False)
    monkeypatch.setattr(settings, "machine", "here")
    with ost.connect(2) as two, ost.connect(1) as one:
        assert two.target.machine == slow
        assert one.target.machine is NOMINAL
    work = ost.compile(lambda x: x + 1)
    with ost.connect(2):
        work(ost.ones((8, 8), split=0))
        assert work.plan.target.machine == slow
    monkeypatch.setattr(settings, "machine", "prompt")
    with ost.connect(2) as two:
        assert two.target.machine.name == "prompt"


@pytest.mark.usefixtures("few")
def test_the_command(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["calibrate", "-n", "1", "--seconds", "0.5"]) == 0
    said = capsys.readouterr().out
    assert dict(command_info.facts())["calibrated"] == "cpu 1 threads"
    for word in ("to start a plan", "GB/s", "products float32", f"{cache / 'machine.json'}"):
        assert word in said
    with pytest.raises(SystemExit):
        command.main(["calibrate", "-n", "some"])
    assert "numbers such as 2,4" in capsys.readouterr().err
    cache.with_name("file").touch()
    settings.cache = cache.with_name("file") / "cache"
    assert command.main(["calibrate", "-n", "1", "--seconds", "0.1"]) == 0
    assert (
        f"kept nowhere, since {settings.cache / 'machine.json'} cannot" in capsys.readouterr().out
    )
