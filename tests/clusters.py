"""What tests of processes need, and whether processes are gone."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.sessions import JOB

ROOT = Path(__file__).resolve().parents[1]
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
MPIEXEC = shutil.which("mpiexec", path=PATH)
PATIENCE = 60.0  # seconds until processes count as still there


def needs(*modules: str) -> pytest.MarkDecorator:
    """These modules and mpiexec, outside of its jobs."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    missing += ["mpiexec"] if MPIEXEC is None else []
    reason = f"needs {', '.join(missing)}: pip install 'ostinato[cluster]'"
    return pytest.mark.skipif(bool(missing) or JOB > 1, reason=reason)


needs_mpi = needs("mpi4py")
needs_dask = needs("mpi4py", "distributed", "dask_mpi")
needs_page = needs("mpi4py", "distributed", "dask_mpi", "bokeh", "prometheus_client")


def gone(processes: Iterable[int]) -> bool:
    """Whether all of them ended, within some seconds."""
    left, end = [*processes], time.monotonic() + PATIENCE
    while left := [*filter(_runs, left)]:
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def job(*arguments: str) -> Any:
    """What a scenario of runtime/jobs.py says that is one process."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OSTINATO_CACHE": "off"}
    run = subprocess.run(
        [sys.executable, "-m", "tests.runtime.jobs", *arguments],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout.splitlines()[-1])


def with_key(cluster: Any) -> dict[str, str]:
    """An environment in which Dask's clients find a cluster's key."""
    names = ("CA_FILE", "CLIENT__CERT", "CLIENT__KEY")
    return {f"DASK_DISTRIBUTED__COMM__TLS__{n}": cluster.security.tls_ca_file for n in names}


def _runs(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"  # what ended may wait for its parent to look
