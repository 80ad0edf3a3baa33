"""Who starts a job under mpiexec and sees to its end, whatever is stopped or killed meanwhile.

    program ── starts ──► keeper ── starts ──► mpiexec ──► proxy ──► workers

All of them carry a mark in their environment, by which they are found: mpiexec gives each worker a session of
its own. The keeper, this file run as a script without the rest of the package, kills what carries the mark
when the program is gone, and removes its folder and what MPI left in shared memory; so does the program
(`Job.end`), and so do workers (preload.py) if the keeper is gone, too. SIGKILL also ends who was stopped. The
keeper has a process group of its own in the program's session: one that is stopped when the program dies is
then the system's to wake, which sends SIGHUP and SIGCONT to groups that nobody is left to continue."""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

EVERY = 0.5  # seconds between looks whether the program is there
SURELY = 5.0  # seconds for what was killed to be gone
KILLED = 128 + signal.SIGKILL
MARK, PROGRAM, FOLDER = "OSTINATO_JOB", "OSTINATO_PROGRAM", "OSTINATO_FOLDER"
SHARED = Path("/dev/shm")
NAMES = ("mpich_shm_", "ucx_shm_posix_")  # of memory that MPI shares between processes


# -- the program ---------------------------------------------------------------------------
class Job:
    """Processes that a command starts. They end with this process, and take their folder with them."""

    def __init__(self, name: str) -> None:
        self.mark = f"{int(time.time())}-{secrets.token_hex(8)}"
        self.folder = Path(tempfile.gettempdir()) / f"ostinato-{name}-{self.mark}"
        self.owner = os.getpid()
        self.keeper: subprocess.Popen[bytes] | None = None
        self.go = self.tells = -1  # ends of pipes: "start", and the command's status
        self.status: int | None = None
        # processes that were looked at: whether they carry the mark
        self.ours: dict[int, bool] = {}
        self.since: dict[int, float] = {}  # those that stand still

    def begin(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        log: str = "",
        stdin: int | None = None,
    ) -> None:
        """There is a keeper, and then a folder, so that whoever dies now leaves neither. The command
        starts when it is told to (`start`). log: a file of the folder for all that is said."""
        told, self.go = os.pipe()
        self.tells, tell = os.pipe()
        words = [str(self.owner), str(told), str(tell), log, *command]
        out = subprocess.DEVNULL if log else None
        try:
            self.keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, *words],
                env={**env, **self.environment()},
                stdin=stdin,
                stdout=out,
                stderr=out,
                pass_fds=[told, tell],
                process_group=0,
            )
        finally:
            os.close(told)
            os.close(tell)
        self.folder.mkdir(mode=0o700)

    def start(self) -> None:
        go, self.go = self.go, -1
        os.write(go, b".")
        os.close(go)

    def environment(self) -> dict[str, str]:
        """By which processes know whose they are."""
        return {
            MARK: self.mark,
            PROGRAM: f"{self.owner}:{_born(self.owner)}@{platform.node()}",
            FOLDER: str(self.folder),
            "SPT_NOENV": "1",  # setproctitle would write over the mark
        }

    def poll(self, patience: float = 0.0) -> int | None:
        """The command's exit status, as a shell has it, or that of a keeper that was killed; None while it
        runs, also after so many seconds."""
        if self.status is None and self.tells >= 0:
            ready = select.poll()
            ready.register(self.tells, select.POLLIN)
            if ready.poll(1000 * patience):
                self.status = int(os.read(self.tells, 16) or KILLED)
        return self.status

    def stopped(self, seconds: float) -> int | None:
        """One of its processes that somebody stopped (SIGSTOP) so long ago, as looks now and then show."""
        there = _processes()
        self.ours = {p: self.ours[p] if p in self.ours else _carries(p, self.mark) for p in there}
        now = time.monotonic()
        still = [p for p, is_ours in self.ours.items() if is_ours and _state(p)[:1] == ["T"]]
        self.since = {p: self.since.get(p, now) for p in still}
        return next((p for p, since in self.since.items() if now - since > seconds), None)

    def leave(self) -> None:
        """The command has ended by itself: the keeper and the folder go."""
        if os.getpid() != self.owner:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.keeper is not None:
            self.keeper.kill()
            self.keeper.wait()
        for end in (self.go, self.tells):
            if end >= 0:
                os.close(end)
        self.go = self.tells = -1

    def end(self, *kindly: tuple[signal.Signals | None, float]) -> None:
        """All of it. kindly: signals for mpiexec to end by itself, and how long each may take; else, and for
        who is left, surely. A forked child leaves it alone."""
        if os.getpid() != self.owner:
            return
        for sign, patience in kindly if self.tells >= 0 else ():
            if sign is not None and self.keeper is not None:
                self.keeper.send_signal(sign)
            if self.poll(patience) is not None:
                break
        sweep(self.mark, str(self.folder))
        self.leave()


# -- whoever ends all ----------------------------------------------------------------------
def sweep(mark: str, folder: str) -> None:
    """Kill all other processes that carry a mark, and remove what they leave."""
    end = time.monotonic() + SURELY
    while (killed := _killed(mark)) and time.monotonic() < end:
        for held in killed:
            gone = select.poll()
            gone.register(held, select.POLLIN)
            gone.poll(max(0.0, 1000 * (end - time.monotonic())))
            os.close(held)
    for path in _forgotten(float(mark.partition("-")[0])):
        with contextlib.suppress(OSError):
            path.unlink()
    while folder and os.path.isdir(folder) and time.monotonic() < end:
        shutil.rmtree(folder, ignore_errors=True)  # in which this process may still write


def sweep_beside(mark: str, folder: str) -> None:
    """Sweep in a process of its own, that has no mark: who carries one ends before this is done."""
    env = {name: text for name, text in os.environ.items() if name != MARK}
    command = [sys.executable, "-I", "-S", __file__, mark, folder]
    subprocess.Popen(command, env=env, start_new_session=True)


def _killed(mark: str) -> list[int]:
    """Handles of those that were still there. All are stopped first, so that nobody does anything about it."""
    found: list[int] = []
    for pid in _processes():
        if pid == os.getpid():
            continue
        with contextlib.suppress(OSError):
            held = os.pidfd_open(pid)  # before the look, so that its number cannot be another's
            try:
                if _carries(pid, mark):
                    signal.pidfd_send_signal(held, signal.SIGSTOP)
                    found.append(held)
            finally:
                if held not in found:
                    os.close(held)
    for held in found:
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(held, signal.SIGKILL)
    return found


def _forgotten(since: float) -> list[Path]:
    """Memory of this user's that has had a name since then, and that no process has any more. MPI gives
    it names of its own, which stay if one is killed before all have met."""
    found = []
    with contextlib.suppress(OSError):
        for path in SHARED.iterdir():
            with contextlib.suppress(OSError):
                facts = path.lstat()
                ours = path.name.startswith(NAMES) and facts.st_uid == os.getuid()
                if ours and facts.st_ctime >= since:
                    found.append(path)
    if found:
        used = set(_used())
        found = [path for path in found if str(path) not in used]
    return found


def _used() -> Iterator[str]:
    """Shared memory that processes of this user have, by name."""
    for pid in _processes():
        with contextlib.suppress(OSError):
            for fd in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    yield os.readlink(fd.path)
        with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", errors="replace") as maps:
            for line in maps:
                if str(SHARED) in line:
                    yield line.split(maxsplit=5)[5].strip()


def _processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:  # of a system without it: keeper and mpiexec end all the same
        return []


def _carries(pid: int, mark: str) -> bool:
    try:
        return f"\0{MARK}={mark}\0".encode() in b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def _state(pid: int) -> list[str]:
    """State of a process, by the system: a letter for what it does, and facts; nothing if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    found = text.rpartition(")")[2].split()
    return [] if found[0] in "ZX" else found


def _born(pid: int) -> str:
    """When a process began, in the system's ticks; empty if it has ended, or nobody knows."""
    found = _state(pid)
    return found[19] if found else ""


def is_there(program: str) -> bool:
    """Whether a process runs that `Job.environment` has named."""
    pid, _, born = program.partition(":")
    if born:
        return _born(int(pid)) == born
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


# -- the keeper ----------------------------------------------------------------------------
def main(program: int, told: int, tell: int, log: str, *command: str) -> int:
    mark, folder = os.environ[MARK], os.environ[FOLDER]
    asked: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        asked.append(number)

    def nap() -> bool:
        """For a moment, or until a signal comes; whether the program is there."""
        if select.select([awake], [], [], EVERY)[0]:
            os.read(awake, 512)
        return os.getppid() == program

    awake, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, ask)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while not asked and os.getppid() == program:
        if told in select.select([told, awake], [], [], EVERY)[0]:
            break
    if select.select([told], [], [], 0)[0] and os.read(told, 1):
        os.close(told)
        out = os.open(Path(folder, log), os.O_WRONLY | os.O_CREAT, 0o600) if log else None
        job = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
        there = os.getppid() == program
        while there and job.poll() is None:
            there = nap()
            while asked:
                job.send_signal(asked.pop(0))
        if there:
            status = int(job.wait())
            if status < 0:
                sweep(mark, "")
            with contextlib.suppress(OSError):  # of a program that has just died
                os.write(tell, str(status if status >= 0 else 128 - status).encode())
        while there and not asked:  # the folder is the program's, which may die
            there = nap()
        if there:
            return 0
        if job.poll() is None:
            job.kill()
    sweep(mark, folder)
    return 1


if __name__ == "__main__":
    if len(sys.argv) == 3:
        sweep(*sys.argv[1:])
    else:
        ends = map(int, sys.argv[1:4])
        sys.exit(main(*ends, *sys.argv[4:]))  # type: ignore[arg-type]
