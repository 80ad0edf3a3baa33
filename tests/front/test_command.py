"""The command line, in processes of its own."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from ostinato.runtime.crew import dask as crew_dask

import ostinato as ost
from ostinato import command, command_info
from ostinato.errors import SessionError
from tests.clusters import gone, needs_dask, needs_mpi

SCRIPT = """
import sys
import ostinato as ost
x = ost.zeros((500, 500), dtype=ost.float32)
f = ost.compile(numerics="fast")(lambda x: x @ x)  # otherwise one way has its bits
f(x)
print(sys.argv[1:], __name__, "timed   " in f.plan.explain())
if "stop" in sys.argv:
    sys.exit(7)
"""


def run(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OSTINATO_CACHE": str(folder / "cache"), **env}
    command = [sys.executable, *words]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=folder, timeout=120
    )


def test_no_command_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == 0
    assert "ostinato run -n 4 train.py" in capsys.readouterr().out


@pytest.mark.cpu_only
def test_tune_runs_a_script_and_keeps_what_it_found(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    tuned = run(
        tmp_path, "-m", "ostinato", "tune", "--seconds", "20", "job.py", "-a", "b", **environment
    )
    assert tuned.returncode == 0, tuned.stderr
    assert tuned.stdout == "['-a', 'b'] __main__ True\n"
    assert "choices timed in" in tuned.stderr
    assert "matmul -> float32[500,500]" in tuned.stderr
    assert str(tmp_path / "cache" / "tuned") in tuned.stderr
    kept = "not kept: the machine was busy" not in tuned.stderr
    assert any((tmp_path / "cache" / "tuned").glob("*.jsonl")) is kept
    later = run(tmp_path, "job.py", OSTINATO_TUNE="read", **environment)
    assert later.stdout == f"[] __main__ {kept}\n", later.stderr
    never = run(tmp_path, "job.py", OSTINATO_TUNE="off", OSTINATO_CACHE="off", **environment)
    assert never.stdout == "[] __main__ False\n", never.stderr


def test_a_script_that_stops_is_reported_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(SCRIPT)
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    ended = run(tmp_path, "-m", "ostinato", "tune", "job.py", "stop", **environment)
    assert ended.returncode == 7
    assert "choices timed in" in ended.stderr


def test_what_is_asked_wrongly_is_said(tmp_path: Path) -> None:
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    missing = run(tmp_path, "-m", "ostinato", "tune", "nothing.py", **environment)
    assert missing.returncode == 2
    assert missing.stderr == "ostinato tune: nothing.py is no file; give a Python script\n"
    for seconds in ("0", "nan", "abc"):
        wrong = run(tmp_path, "-m", "ostinato", "tune", "--seconds", seconds, "x.py", **environment)
        assert wrong.returncode == 2
        needed = "needed a number of seconds above 0, such as 300\n"
        assert wrong.stderr.endswith(f"argument --seconds: got {seconds}; {needed}")
    word = run(tmp_path, "-c", "import ostinato", OSTINATO_TUNE="maybe", **environment)
    assert "OSTINATO_TUNE='maybe': needed on or read or off" in word.stderr
    for text in ("soon", "1.9", "nan", "inf", "-8"):
        silence = run(tmp_path, "-c", "import ostinato", OSTINATO_HEARTBEAT=text, **environment)
        assert f"OSTINATO_HEARTBEAT='{text}': needed seconds, 2 or more." in silence.stderr


# -- processes -----------------------------------------------------------------------------
ON_TWO = """
import sys, time
import numpy as np
import ostinato as ost
ost.connect()

@ost.compile
def halve(x):
    return x / x.sum()

x = ost.asarray(np.ones(8), split=0)
for _ in range(30):
    x = halve(x)
print(sys.argv[1:], ost.session().workers, float(x.sum()), flush=True)
if "wait" in sys.argv:
    workers = ost.session().stats()["workers"]
    print("processes", *[w["process"] for w in workers], flush=True)
    time.sleep(100)
sys.exit(5)
"""
HERE = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OSTINATO_CACHE": "off"}


@needs_mpi
def test_run_starts_processes_and_says_which_plans_ran(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(ON_TWO)
    command = ("-m", "ostinato", "run", "-n", "2", "--stats", "job.py", "--epochs", "3")
    ended = run(tmp_path, *command, **HERE)
    assert ended.returncode == 5, ended.stderr
    assert ended.stdout == "['--epochs', '3'] 2 1.0\n"
    head, line, *_ = [x for x in ended.stderr.splitlines() if x.startswith("plan ") or "halve" in x]
    assert head.split() == ["plan", "function", "runs", "a", "run"]
    plan, name, runs, _, unit = line.split()
    assert re.fullmatch("[0-9a-f]{12}", plan)
    assert (name, runs) == ("halve", "30")
    assert unit in ("us", "ms", "s")


@needs_mpi
def test_run_says_that_a_process_was_killed(tmp_path: Path) -> None:
    """Whoever mpich's launcher ends with it."""
    (tmp_path / "job.py").write_text(
        "import os, signal, ostinato as ost\n"
        "s = ost.connect()\n"
        "f = ost.compile(lambda x: x / x.sum())\n"
        "x = f(ost.ones(12, split=0))\n"
        "os.kill(s.stats()['workers'][1]['process'], signal.SIGKILL)\n"
        "while True:\n"
        "    x = f(x)\n"
    )
    words = ("-m", "ostinato", "run", "-n", "2", "job.py")
    made = run(tmp_path, *words, PYTHONPATH=os.pathsep.join(sys.path))
    assert made.returncode != 0
    said = ("ostinato run: a process was killed", "process manager error")  # or the launcher broke
    assert any(words in made.stderr for words in said), made.stderr


@needs_mpi
@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", 128 + signal.SIGSEGV),
        ("os.kill(os.getpid(), signal.SIGINT)", 128 + signal.SIGINT),
        ("sys.exit(11)", 11),
    ],
)
def test_run_ends_with_the_status_of_its_script(tmp_path: Path, end: str, status: int) -> None:
    """As a shell says it, whatever becomes of the others meanwhile."""
    (tmp_path / "job.py").write_text(
        f"import os, signal, sys, ostinato as ost\nost.connect()\n{end}\n"
    )
    ended = run(tmp_path, "-m", "ostinato", "run", "-n", "2", "job.py", **HERE)
    assert ended.returncode == status, ended.stderr


@needs_mpi
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_run_ends_all_when_it_is_asked_to(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "job.py").write_text(ON_TWO)
    job = subprocess.Popen(
        [sys.executable, "-m", "ostinato", "run", "-n", "2", "job.py", "wait"],
        cwd=tmp_path,
        env=os.environ | HERE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert job.stdout is not None
        assert job.stdout.readline() == "['wait'] 2 1.0\n"
        processes = [int(p) for p in job.stdout.readline().split()[1:]]
        assert len(processes) == 2
        job.send_signal(number)
        assert job.wait(30) == 128 + number
        assert gone(processes)
    finally:
        job.kill()
        job.communicate()


@needs_mpi
def test_run_draws_on_a_terminal(tmp_path: Path) -> None:
    pytest.importorskip("rich")
    (tmp_path / "job.py").write_text(ON_TWO)
    ours, theirs = pty.openpty()
    job = subprocess.Popen(
        [sys.executable, "-m", "ostinato", "run", "-n", "2", "job.py"],
        cwd=tmp_path,
        env=os.environ | HERE | {"TERM": "xterm", "COLUMNS": "100"},
        stdout=subprocess.DEVNULL,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # the terminal ends with its last writer
        while more := os.read(ours, 4096):
            shown += more
    os.close(ours)
    assert job.wait(60) == 5
    assert re.search(rb"[0-9a-f]{12}.*halve.*30", shown)


@needs_dask
def test_workers_for_a_cluster_that_is_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distributed import Client

    environment = os.environ | HERE
    file = tmp_path / "scheduler.json"
    started = []

    def start(*words: str) -> subprocess.Popen[bytes]:
        with open(tmp_path / f"log{len(started)}", "wb") as log:
            job = subprocess.Popen(
                [sys.executable, "-m", *words],
                cwd=tmp_path,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        started.append(job)
        return job

    try:
        start(
            *("distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"),
            *("--no-dashboard", "--scheduler-file", str(file)),
        )
        for _ in range(600):
            if file.exists() and file.stat().st_size:
                break
            time.sleep(0.1)
        with Client(scheduler_file=str(file), set_as_default=False) as client:
            monkeypatch.setattr(crew_dask, "ANSWER", 0.1)
            with pytest.raises(SessionError, match="got a Dask cluster without workers; needed"):
                ost.connect(client)
        with pytest.raises(SessionError, match="got a Dask client that is closed"):
            ost.connect(client)
        monkeypatch.setattr(crew_dask, "ANSWER", 60.0)
        workers = start(
            *("ostinato", "worker", "--scheduler-file", str(file), "-n", "2"),
            *("--interface", "lo"),
        )
        with (
            Client(scheduler_file=str(file), set_as_default=False) as client,
            ost.connect(client) as session,  # which waits for them
        ):
            assert session.workers == 2
            x = ost.asarray(np.arange(10.0), split=0)
            assert float((x * x).sum()) == 285
            processes = [w["process"] for w in session.stats()["workers"]]
        workers.send_signal(signal.SIGTERM)
        assert workers.wait(30) == 128 + signal.SIGTERM
        assert gone(processes)
    finally:
        for job in reversed(started):
            job.terminate()
            job.wait(30)


# -- what is there -------------------------------------------------------------------------
def test_info_names_versions_and_what_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command.main(["info"]) == 0
    said = capsys.readouterr().out
    assert re.search(rf"^numpy +{re.escape(np.__version__)}$", said, re.M)
    assert re.search(r"^cores +\d+, threads \d+$", said, re.M)
    real = command_info.version
    monkeypatch.setattr(command_info, "version", lambda p: "" if p == "zarr" else real(p))
    assert command.main(["info"]) == 0
    said = capsys.readouterr().out.partition("\nmissing\n")[2]
    assert re.search(r"^  zarr +for Zarr files: pip install 'ostinato\[io\]'$", said, re.M)


def test_the_cache_is_listed_shown_and_pruned(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(
        "import ostinato as ost\n"
        "f = ost.compile(lambda x: (x * x).sum())\n"
        "for n in (3, 4):\n    f(ost.ones((n,)))\n    print(f.plan.id)\n"
    )
    environment = {"PYTHONPATH": HERE["PYTHONPATH"], "OSTINATO_TUNE": "off"}
    ids = run(tmp_path, "job.py", **environment).stdout.split()
    assert len(ids) == 2

    def cache(*words: str) -> subprocess.CompletedProcess[str]:
        return run(tmp_path, "-m", "ostinato", "cache", *words, **environment)

    listed = cache("list").stdout
    for plan, n in zip(ids, (3, 4), strict=True):
        assert re.search(rf"^{plan[:12]} .* x: float64\[{n}\] +float64\[\]$", listed, re.M), listed
    shown = cache("show", ids[0][:8])
    assert shown.stdout.startswith(f"plan {ids[0][:12]} ")
    assert "predicted" in shown.stdout
    unknown = cache("show", "xyz")
    assert unknown.returncode == 2
    needed = "no plan with an id that begins with 'xyz'; see `ostinato cache list`\n"
    assert unknown.stderr == f"ostinato cache: {needed}"
    old = tmp_path / "cache" / "plans" / "0-0123456789ab"
    old.mkdir()
    (old / f"{'a' * 32}.plan").write_text("ostinato plan 0 of another version")
    (Path(listed.split(" in ")[-1].split("\n")[0]) / "gone.plan").symlink_to(tmp_path / "nothing")
    assert cache("list").returncode == 0, "another process may remove a plan meanwhile"
    count = int(re.search(r"^(\d+) plans, ", listed, re.M)[1])  # type: ignore[index]
    assert cache("prune").stdout.startswith(f"1 plans removed, 0.0 MB; {count} plans stay")
    assert not old.exists()
    plans = [p for p in (tmp_path / "cache" / "plans").glob("*/*.plan") if p.is_file()]
    newest = max(plans, key=lambda p: p.stat().st_mtime)
    least = f"{(newest.stat().st_size + 100) / 1e6}"
    assert "; 1 plans stay" in cache("prune", "--keep-mb", least).stdout
    assert cache("prune", "--all", "--keep-mb", "1").returncode == 2
    assert "; 0 plans stay" in cache("prune", "--all").stdout
    assert cache("list").stdout.startswith("0 plans, 0.0 MB")
    off = run(tmp_path, "-m", "ostinato", "cache", "list", **HERE)
    assert off.stderr == "ostinato cache: OSTINATO_CACHE is off, so plans are kept nowhere\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run nothing.py", "ostinato run: nothing.py is no file; give a Python script"),
        ("run -n 0 x.py", "argument -n: got 0; needed a whole number of 1 or more"),
        ("worker", "ostinato worker: give the scheduler's address, or --scheduler-file FILE"),
        ("worker h", "ostinato worker: got h; needed an address such as tcp://h:8786"),
        ("worker h:1", "ostinato worker: got h:1; needed an address such as tcp://h:1"),
        ("run", "ostinato run: error: the following arguments are required: script"),
        ("tune", "ostinato tune: error: the following arguments are required: script"),
        ("cache prune --keep-mb x", "got x; needed a number of megabytes, such as 50"),
        ("cache prune --keep-mb inf", "got inf; needed a number of megabytes, such as 50"),
    ],
)
def test_a_wrong_word_is_answered_by_a_sentence(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = command.main(words.split())
    except SystemExit as end:
        status = int(end.code or 0)
    assert status == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(said)


def test_it_says_which_version_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        command.main(["--version"])
    assert not end.value.code
    assert capsys.readouterr().out == f"ostinato {ost.__version__}\n"


def test_an_mpi_that_is_missing_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "job.py"
    script.write_text("")
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    assert command.main(["run", str(script)]) == 2
    assert "pip install mpich mpi4py" in capsys.readouterr().err


def test_bench_is_the_benchmarks_of_a_checkout(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert command.main(["bench"]) == 0
    assert "cluster " in capfd.readouterr().out
    monkeypatch.setattr(command, "ROOT", tmp_path)
    assert command.main(["bench"]) == 2
    assert "clone the repository" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["info", "run", "worker", "cache", "tune", "bench"])
def test_help_has_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main([name, "--help"])
    assert f"    ostinato {name}" in capsys.readouterr().out
