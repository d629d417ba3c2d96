"""Detached local processes: started, found again, looked at and ended.

A process is started as the leader of its own session, so that it lives on when the controller
dies and its whole family can be ended together. It is known by markers in its environment
(unique ``CANARYCTL_…`` variables that the caller chooses) and by pid with creation time; a pid
alone is never trusted.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

KEPT_VARIABLES = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "TMPDIR", "TZ", "USER")

# The kernel counts creation in ticks since boot; the boot time that turns them into a date
# moves by up to a second from reader to reader.
_CREATION_TOLERANCE_S = 2.0


@dataclass(frozen=True, slots=True)
class LocalProcess:
    """A started process: ``created_at`` in seconds since the epoch, as the kernel says."""

    pid: int
    created_at: float


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """``exit_code`` is None while it runs, and where only its parent was told the code.

    A process ended by signal N has the exit code -N.
    """

    running: bool
    exit_code: int | None = None


def clean_environment(keep: Sequence[str] = KEPT_VARIABLES) -> dict[str, str]:
    """The few variables of this process that any program needs, and no other."""
    return {name: os.environ[name] for name in keep if name in os.environ}


class _Detached(subprocess.Popen[bytes]):
    """A child that is meant to outlive this object, and so is no forgotten resource."""

    def __del__(self) -> None:
        pass


class Processes:
    """The detached processes that one adapter looks after.

    It remembers only what a parent alone can know (exit codes) and when a process was asked to
    end; everything else is read from the system each time, so that a new controller that knows
    nothing finds the same processes.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._children: dict[LocalProcess, _Detached] = {}
        self._asked_to_end_at: dict[frozenset[tuple[str, str]], float] = {}

    def start(
        self,
        argv: Sequence[str],
        *,
        markers: Mapping[str, str],
        env: Mapping[str, str],
        log_path: Path,
        cwd: Path | None = None,
    ) -> LocalProcess:
        """Start ``argv`` with ``env`` and ``markers`` as its whole environment.

        Output and errors are appended to ``log_path``. Raises OSError when it cannot start.
        It does not look whether one runs already: :meth:`find` does.
        """
        _require(markers)
        log_path.parent.mkdir(parents=True, exist_ok=True)
        # setproctitle, which engines use, would write over the environment that marks them.
        environment = {"SPT_NOENV": "1", **env, **markers}
        log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            child = _Detached(
                list(argv),
                env=environment,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        finally:
            os.close(log)
        process = LocalProcess(child.pid, psutil.Process(child.pid).create_time())
        self._children[process] = child
        self._asked_to_end_at.pop(_key(markers), None)
        return process

    def find(self, markers: Mapping[str, str]) -> LocalProcess | None:
        """The running process that was started with these markers; None when there is none.

        Its descendants carry the markers too: the session leader born first is the one.
        """
        leaders = [process for process in _marked(markers) if _session(process.pid) == process.pid]
        return min(leaders, key=lambda process: (process.created_at, process.pid), default=None)

    def status(self, process: LocalProcess) -> ProcessStatus:
        """Whether this very process runs. One that has ended is reaped if it was our child."""
        child = self._children.get(process)
        if child is not None:
            exit_code = child.poll()
            return ProcessStatus(running=exit_code is None, exit_code=exit_code)
        return ProcessStatus(running=_is_alive(process))

    def members(
        self, markers: Mapping[str, str], process: LocalProcess | None = None
    ) -> tuple[LocalProcess, ...]:
        """All that still runs of it: what carries the markers, and the session of ``process``."""
        _require(markers)
        found = set(_marked(markers))
        if process is not None:
            found.update(_session_members(process))
        return tuple(sorted(found, key=lambda member: (member.created_at, member.pid)))

    def stop(
        self, markers: Mapping[str, str], process: LocalProcess | None = None, *, grace_s: float
    ) -> bool:
        """Ask the process and its family to end, and kill them once ``grace_s`` has passed.

        Does not wait: call again until True, which means that nothing of it is left. The grace
        begins with the first call.
        """
        remaining = self.members(markers, process)
        key = _key(markers)
        if not remaining:
            self._reap()
            self._asked_to_end_at.pop(key, None)
            return True
        first_call = key not in self._asked_to_end_at
        asked_at = self._asked_to_end_at.setdefault(key, self._monotonic())
        if self._monotonic() - asked_at >= grace_s:
            _signal(remaining, signal.SIGKILL)
        elif first_call:
            _signal(remaining, signal.SIGTERM)
        return False

    def stop_and_wait(
        self,
        markers: Mapping[str, str],
        process: LocalProcess | None = None,
        *,
        grace_s: float,
        timeout_s: float,
    ) -> bool:
        """:meth:`stop`, repeated for at most ``timeout_s``; False when something is left."""
        deadline = self._monotonic() + timeout_s
        while not self.stop(markers, process, grace_s=grace_s):
            if self._monotonic() >= deadline:
                return False
            time.sleep(0.02)
        return True

    def _reap(self) -> None:
        for child in self._children.values():
            child.poll()


def _require(markers: Mapping[str, str]) -> None:
    """Without markers every process of the machine would be ours."""
    if not markers or not all(name.startswith("CANARYCTL_") for name in markers):
        raise ValueError(f"expected markers named CANARYCTL_…, found {sorted(markers)}")


def _key(markers: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    return frozenset(markers.items())


def _marked(markers: Mapping[str, str]) -> Iterator[LocalProcess]:
    _require(markers)
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            if all(environment.get(name) == value for name, value in markers.items()):
                yield LocalProcess(process.pid, process.create_time())
        except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
            continue  # it ended meanwhile, or is another user's: not one that we started


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None


def _is_alive(process: LocalProcess) -> bool:
    try:
        found = psutil.Process(process.pid)
        same = abs(found.create_time() - process.created_at) <= _CREATION_TOLERANCE_S
        return same and found.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _session_members(process: LocalProcess) -> Iterator[LocalProcess]:
    """What runs in the session that ``process`` leads, also after it has ended itself.

    While a session has members the kernel gives its number to no new process; so another
    process with that pid says that the session is gone.
    """
    try:
        leader_created_at = psutil.Process(process.pid).create_time()
    except psutil.NoSuchProcess:
        leader_created_at = process.created_at
    if abs(leader_created_at - process.created_at) > _CREATION_TOLERANCE_S:
        return
    for member in psutil.process_iter():
        if _session(member.pid) != process.pid:
            continue
        try:
            if member.status() != psutil.STATUS_ZOMBIE:
                yield LocalProcess(member.pid, member.create_time())
        except psutil.NoSuchProcess:
            continue


def _signal(processes: Sequence[LocalProcess], number: signal.Signals) -> None:
    for process in processes:
        if _is_alive(process):
            try:
                os.kill(process.pid, number)
            except ProcessLookupError:
                continue
