"""A cluster on this machine: Dask's scheduler and workers, started under MPI."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from ostinato.errors import ArgumentError, CommunicatorError, SessionError
from ostinato.ops.core.disk import write_page
from ostinato.ops.core.user_line import misfit, user_line
from ostinato.runtime.crew import forks, preload
from ostinato.runtime.crew.crew import among_processes
from ostinato.runtime.crew.dask import client_of, give_up
from ostinato.runtime.crew.keeper import Job, sweep
from ostinato.runtime.dashboard import page

from . import settings
from .cards import cluster_card
from .sessions import Session, connect, here, leave, sessions_of
from .states import forgive_lost

T = TypeVar("T")
START = 60.0  # seconds for all to be there
ASKED = 3.0  # seconds for an answer, before it is asked again
LOOK = 0.5  # seconds between looks at the processes that start
ANSWER = 2.0  # seconds for a scheduler to end by itself
NEEDS = {"mpi4py": "mpi4py", "distributed": "distributed", "dask_mpi": "dask-mpi"}
TLS = [f"{who}__{what}" for who in ("client", "scheduler", "worker") for what in ("cert", "key")]
TLS += ["ca_file"]  # all are one key, with its certificate: who has it belongs to the cluster


def mpiexec() -> list[str]:
    """The command that starts processes, beside this Python or on the PATH."""
    beside = Path(sys.executable).parent
    found = shutil.which("mpiexec", path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        do = "pip install mpich mpi4py"
        raise misfit(SessionError, "starting processes", got="no mpiexec", needed="an MPI", do=do)
    says = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    # Hydra would end the script with a worker that dies, before it can say what happened
    return [found, "-disable-auto-cleanup"] if "HYDRA" in says.upper() else [found]


def check_installed(who: str, needs: dict[str, str]) -> None:
    missing = [pip for name, pip in needs.items() if importlib.util.find_spec(name) is None]
    if missing:
        needed, do = "Dask and MPI", f"pip install {' '.join([*missing, 'mpich'])}"
        raise misfit(SessionError, who, got="no " + ", ".join(missing), needed=needed, do=do)


class LocalCluster:
    """Workers that are processes of this machine, under a Dask scheduler with its dashboard, in use from
    now on, as those of `ost.connect` are, until it is closed.

        with ost.LocalCluster(4) as cluster:
            print(cluster.dashboard_link)
            x = ost.random.normal((1_000_000, 16), split=0)

    All of them listen on 127.0.0.1 alone. Dask's speak TLS, with a key that is made for this cluster and
    lies in a file that only this user can read; other clients of Dask's need `cluster.security`.
    `cluster.connect()` makes more sessions. When it is closed, or nobody holds it any more, the session
    that was there before is used again; arrays that its workers held are lost. threads: cores that all
    workers share, else all. heartbeat: seconds without a sign of life after which a worker counts as lost.
    restart: see `run`."""

    def __init__(
        self,
        workers: int = 2,
        *,
        threads: int | None = None,
        heartbeat: float | None = None,
        dashboard: bool = True,
        restart: bool = False,
    ) -> None:
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
            needed = "a whole number of 1 or more"
            raise misfit(ArgumentError, "LocalCluster", got=f"workers={workers!r}", needed=needed)
        if heartbeat is not None and not settings.is_heartbeat(heartbeat):
            got = f"heartbeat={heartbeat!r}"
            needed = f"{settings.LEAST_HEARTBEAT:g} seconds or more"
            raise misfit(ArgumentError, "LocalCluster", got=got, needed=needed)
        check_installed("LocalCluster", NEEDS | {"cryptography": "cryptography"})
        if among_processes():
            got = "a process that mpiexec started beside others, which would each start a cluster"
            do = "call ost.connect() to use those that are there, or start the script without mpiexec"
            raise misfit(SessionError, "LocalCluster", got=got, needed="one process", do=do)
        self.workers = workers
        self.threads = threads
        self.heartbeat = heartbeat
        self.dashboard = dashboard
        self.restart = restart
        self.session: Session | None = None
        self._first: Session | None = None  # as long as nobody asked for one
        self.options: dict[str, Any] = {}
        self.client: Any = None
        self.dashboard_link = self.scheduler_address = ""
        self._start()
        try:
            self._first = self.connect()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        from distributed.security import Security

        made = Security.temporary()  # which takes a moment in which nobody is there to clear up
        self.job = Job("cluster")
        self.folder = self.job.folder
        self.log = self.folder / "log"
        self._finish = weakref.finalize(self, self.job.end, (None, 1.0), (signal.SIGTERM, 1.0))
        file, secret = self.folder / "scheduler.json", self.folder / "tls.pem"
        try:
            self.job.begin(
                self._command(file), self._environment(secret), "log", subprocess.DEVNULL
            )
            with open(secret, "x", opener=lambda path, flags: os.open(path, flags, 0o600)) as out:
                out.write(made.tls_client_key + made.tls_client_cert)
            given = {f"tls_{name.replace('__', '_')}": str(secret) for name in TLS}
            self.security = Security(require_encryption=True, **given)
            self.job.start()
            with self._watched():
                self._meet(file)
        except BaseException:
            self.close()
            raise

    def _command(self, file: Path) -> list[str]:
        return [
            *mpiexec(),
            *("-n", str(self.workers + 1)),
            *(sys.executable, "-m", "dask_mpi.cli"),
            *("--scheduler-file", str(file), "--interface", _loopback()),
            *("--scheduler-port", "0", "--protocol", "tls"),
            *("--worker-class", "distributed.Worker", "--nthreads", "1", "--memory-limit", "0"),
            *("--local-directory", str(self.folder)),
            *(("--dashboard-address", "127.0.0.1:0") if self.dashboard else ("--no-dashboard",)),
        ]

    def _environment(self, secret: Path) -> dict[str, str]:
        env = {
            **os.environ,
            **preload.environment(),
            **dict.fromkeys(
                (f"DASK_DISTRIBUTED__COMM__TLS__{n.upper()}" for n in TLS), str(secret)
            ),
            "DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "True",
            "DASK_TEMPORARY_DIRECTORY": str(self.folder),
            "DASK_DISTRIBUTED__WORKER__HTTP__ROUTES": "[]",
            "UCX_NET_DEVICES": _loopback(),  # where MPI listens, by either of its libraries
            "FI_TCP_IFACE": _loopback(),
        }
        env["PYTHONPATH"] = os.pathsep.join([home(), *filter(None, [env.get("PYTHONPATH")])])
        if self.heartbeat is not None:
            env["OSTINATO_HEARTBEAT"] = str(self.heartbeat)
        return env

    def _meet(self, file: Path) -> None:
        end = time.monotonic() + START
        while (address := _address(file)) is None:
            self._check_start(end)
            time.sleep(0.02)
        self.client = self._asked(lambda wait: client_of(address, self.security, wait), end)
        self._asked(lambda wait: self.client.wait_for_workers(self.workers, timeout=wait), end)
        self.dashboard_link = str(self.client.dashboard_link)
        if self.client.run_on_scheduler(page.install):
            self.dashboard_link = f"{self.dashboard_link.removesuffix('/status')}/{page.NAME}"
        self.scheduler_address = str(self.client.scheduler.address)
        weakref.finalize(self, _dropped, self.client, self.workers).atexit = False

    def _asked(self, ask: Callable[[float], T], end: float) -> T:
        """Ask somebody who may not answer, again and for longer, as long as there is hope."""
        wait = ASKED
        while True:
            try:
                return ask(wait)
            except OSError:  # and with it TimeoutError
                self._check_start(end)
            wait *= 2

    def _check_start(self, end: float) -> None:
        failed = self.job.poll() is not None or "Traceback" in self._tail()
        if failed or time.monotonic() > end:
            got = "processes that did not start: " + self._tail()
            raise SessionError.because("LocalCluster", got=got, needed="a scheduler and workers")

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """While processes meet: nobody waits for one that was stopped for as long as a heartbeat may fail
        to come. All of them end."""
        done, limit = threading.Event(), self.heartbeat or settings.heartbeat
        found: list[int] = []

        def watch() -> None:
            while not found and not done.wait(LOOK):
                if (stopped := self.job.stopped(limit)) is not None:
                    found.append(stopped)
                    sweep(self.job.mark, "")

        watching = threading.Thread(target=watch, name="ostinato-start", daemon=True)
        watching.start()
        try:
            yield
        except Exception:
            if not found:
                raise
            got = f"process {found[0]}, which was stopped for {limit:g} s while all started"
            needed, do = "processes that run", "start again"
            raise SessionError.because("LocalCluster", got=got, needed=needed, do=do) from None
        finally:
            done.set()
            watching.join()

    def _tail(self) -> str:
        text = self.log.read_text(errors="replace").strip() if self.log.exists() else ""
        return text[-2000:] or "they said nothing"

    def check_open(self) -> None:
        """An error where the workers are gone, or another process's."""
        if os.getpid() != self.job.owner:
            raise forks.not_here()
        closed = self.client is None
        if closed or any(s.is_lost for s in sessions_of(self.scheduler_address)):
            got = "a cluster that was closed" if closed else "a cluster that lost a worker"
            needed = "one whose workers are there"
            do = f"start another: with ost.LocalCluster({self.workers})"
            raise misfit(SessionError, "LocalCluster", got=got, needed=needed, do=do)

    def connect(self, **options: Any) -> Session:
        """A session of this cluster's workers, in use from now on; options as those of ost.connect."""
        self.check_open()
        options.setdefault("threads", self.threads)
        self.options = options
        with self._watched():
            self.session = connect(self.client, **options)
        first, self._first = self._first, None
        if first is not None and first.holds_nothing:
            first.close()
        return self.session

    def run(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function in this cluster's session. With `restart=True` it is called again, on the
        workers that remain, all in a row, when one of them died: it should begin with what its last
        checkpoint holds (`ost.load_state`)."""
        while True:
            if self.session is None:
                self.connect(**self.options)
            assert self.session is not None
            try:
                return function(*args)
            except CommunicatorError:
                if not self.restart or not self.session.is_lost or self.workers == 1:
                    raise
            self.close()
            forgive_lost()
            self.options.pop("mesh", None)  # of more workers
            self.workers -= 1
            self._start()

    def stats(self) -> dict[str, Any]:
        """Messages and bytes of control that iterations took, by kind, and each worker's state."""
        if self.session is None or self.client is None:
            self.connect()
        assert self.session is not None
        return self.session.stats()

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write what the workers did so far as a page (HTML) that needs nothing from elsewhere: plans, the
        times of their operations, predicted and measured, what each worker did, memory, messages."""
        self.check_open()
        messages = self.stats()["orders"]
        self.client.run(page.tell)
        text = self.client.run_on_scheduler(page.report, messages)
        write_page(path, text)

    def close(self) -> None:
        """End all processes; those of a forked child's parent stay."""
        if os.getpid() != self.job.owner:
            return
        open_ = sessions_of(self.scheduler_address)
        well = self.job.poll() is None and not any(s.is_lost for s in open_)
        for session in open_:
            with contextlib.suppress(Exception):
                session.close()
        self.session = self._first = None
        client, self.client = self.client, None
        log = logging.getLogger("distributed.client")
        before = log.level
        log.setLevel(logging.CRITICAL)  # it would tell at length that it misses the scheduler
        if client is not None and well:
            with contextlib.suppress(Exception):
                client.sync(client._shutdown, callback_timeout=ANSWER)
        self._finish()
        if client is not None:
            with contextlib.suppress(Exception):
                client.close(timeout=0.5)
            give_up(client)
        log.setLevel(before)

    def __enter__(self) -> LocalCluster:
        if self._first is None or here() is not self._first:
            self.connect()
        self._first = None
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _repr_html_(self) -> str:
        return cluster_card(self)

    def __repr__(self) -> str:
        workers = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        closed = ", closed" if self.client is None else ""
        return f"<LocalCluster: {workers}, dashboard {self.dashboard_link}{closed}>"


def _dropped(client: Any, workers: int) -> None:
    """Nobody holds a cluster any more, so that its processes end."""
    if client.status == "closed":
        return
    was_in_use = leave(str(client.scheduler.address))
    # it may be this one's loop
    threading.Thread(target=give_up, args=(client,), daemon=True).start()
    if was_in_use:
        file, _, line = user_line().rpartition(":")
        text = (
            f"LocalCluster({workers}): its workers end, as nobody holds it any more, and arrays that they "
            f"held are lost; give it a name that stays (cluster = ost.LocalCluster({workers})), or use `with`."
        )
        warnings.warn_explicit(text, UserWarning, file or __name__, int(line or 1))


def _address(file: Path) -> str | None:
    """Address of a scheduler, once it has written it."""
    try:
        return str(json.loads(file.read_text())["address"])
    except (FileNotFoundError, ValueError):
        return None


def _loopback() -> str:
    """The name of this machine's own network."""
    return "lo0" if sys.platform == "darwin" else "lo"


def home() -> str:
    """Where this package is imported from, which workers shall, too."""
    return str(Path(__file__).resolve().parents[1])
