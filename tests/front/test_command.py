"""The command line, in processes of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys
import ostinato as ost
x = ost.zeros((500, 500), dtype=ost.float32)
f = ost.compile(lambda x: x @ x)
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
    later = run(tmp_path, "job.py", OSTINATO_TUNE="read", **environment)
    assert later.stdout == "[] __main__ True\n", later.stderr
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
    wrong = run(tmp_path, "-m", "ostinato", "tune", "--seconds", "0", "x.py", **environment)
    assert wrong.returncode == 2
    assert "0: needed more than 0 seconds" in wrong.stderr
    word = run(tmp_path, "-c", "import ostinato", OSTINATO_TUNE="maybe", **environment)
    assert "OSTINATO_TUNE='maybe': needed on or read or off" in word.stderr
