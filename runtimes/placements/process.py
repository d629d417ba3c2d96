"""Engines as detached processes of this machine.

Below ``state_dir/instances/<instance>/`` lie the engine's log, the files that it is started
with (``launch/``) and what a controller that knows nothing must learn: that the instance was
started, and since when it is asked to end. Whether it runs is never read from a file, only from
the system.
"""

import dataclasses
import json
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from canaryctl.common.errors import InputError, PermanentError, TemporaryError
from canaryctl.runtimes.fencing import Fence, Stage
from canaryctl.runtimes.placements.base import Handle, InstanceRequest, Liveness, Status
from canaryctl.runtimes.processes import LocalProcess, Processes, clean_environment

HOST = "127.0.0.1"
# Below the range that Linux takes for outgoing connections (32768 and up), so that a port stays
# free while the engine loads, and above those of well-known services.
_PORTS = range(20_000, 32_768)
_PORT_TRIES = 200

_INSTANCE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class ProcessPlacement:
    """See :class:`canaryctl.runtimes.placements.base.Placement`.

    An instance runs at most once: one that ran and ended, or was asked to end, is not started
    again under its name. ``now``: seconds since the epoch.
    """

    name = "process"

    def __init__(self, state_dir: Path, now: Callable[[], float] = time.time) -> None:
        self._root = state_dir.resolve() / "instances"
        self._now = now
        self._processes = Processes()
        self._guard = threading.Lock()  # over the memory of exit codes
        self._issued_ports: set[int] = set()

    def ensure(self, request: InstanceRequest) -> Handle:
        """Start the instance unless it runs, and say which process it is.

        One that has ended gets the handle it had: :meth:`status` says that it exited. Raises
        PermanentError when it cannot be started, or may not be any more.
        """
        files = self._files(request.instance)
        files.create()
        with files.fence.hold(request.token) as stage:
            recorded = files.started()
            running = self._find(request.instance, request.digest, recorded)
            if running is not None:
                if recorded is None:
                    files.record_start(running, stage)
                return running
            if recorded is not None:
                if recorded.digest != request.digest:
                    raise PermanentError(
                        f"instance {request.instance} was started with artifact "
                        f"{recorded.digest}, not {request.digest}; use another instance name"
                    )
                return recorded
            self._require_never_begun(request.instance, files)
            handle = self._start(request, files, stage)
            files.record_start(handle, stage)
            return handle

    def status(self, instance: str, digest: str, handle: Handle | None) -> Status:
        files = self._files(instance)
        if handle is None:
            handle = files.started()
            found = self._find(instance, digest, handle)
            if found is not None:
                return Status(Liveness.RUNNING, handle=found)
            if handle is None:
                return Status(Liveness.EXITED if files.wrote_log() else Liveness.ABSENT)
            if handle.digest != digest:
                return Status(Liveness.ABSENT)
        _require_same(instance, digest, handle)
        if self._runs(handle):
            return Status(Liveness.RUNNING, handle=handle)
        with self._guard:
            exit_code = self._processes.status(_process(handle)).exit_code
        return Status(Liveness.EXITED, exit_code=exit_code, handle=handle)

    def stop(
        self,
        instance: str,
        digest: str,
        handle: Handle | None,
        *,
        grace_s: float,
        token: int | None = None,
    ) -> bool:
        """Ask the engine and its children to end; after ``grace_s`` since the first call, also
        of an earlier controller, kill them. True when nothing of them is left."""
        files = self._files(instance)
        files.create()
        if handle is not None:
            _require_same(instance, digest, handle)
        elif (recorded := files.started()) is not None and recorded.digest == digest:
            handle = recorded
        with files.fence.hold(token) as stage:  # so that none starts while it is being ended
            asked_at = files.record_stop(self._now(), stage)
            overdue = self._now() - asked_at >= grace_s
            process = _process(handle) if handle else None
            with self._guard:
                gone = self._processes.stop(
                    self._markers(instance, digest), process, grace_s=0.0 if overdue else grace_s
                )
        return gone and (handle is None or not self._runs(handle))

    def log_path(self, instance: str) -> Path:
        return self._files(instance).log

    def base_url(self, handle: Handle) -> str:
        return f"http://{HOST}:{handle.port}"

    def free_port(self) -> int:
        """A port that nothing listens on, given out only once by this placement."""
        for _ in range(_PORT_TRIES):
            port = secrets.choice(_PORTS)
            if port in self._issued_ports:
                continue
            with socket.socket() as probe:
                try:
                    probe.bind((HOST, port))
                except OSError:
                    continue
            self._issued_ports.add(port)
            return port
        raise TemporaryError(
            f"found no free port between {_PORTS.start} and {_PORTS.stop - 1} in "
            f"{_PORT_TRIES} tries; see what listens there (ss -ltn)"
        )

    def _files(self, instance: str) -> "_Files":
        if not _INSTANCE_NAME.fullmatch(instance):
            raise InputError(
                f"instance name {instance!r}: expected letters, digits, '.', '_' and '-', "
                "at most 128, beginning with a letter or digit"
            )
        return _Files(self._root / instance)

    def _find(self, instance: str, digest: str, recorded: Handle | None) -> Handle | None:
        found = self._processes.find(self._markers(instance, digest))
        if found is None or (recorded is not None and recorded.pid != found.pid):
            return None  # a child that outlived the engine is not the engine
        port = _environment_of(found).get(_PORT_VARIABLE)
        if port is None or _is_another(found, self._markers(instance, digest)):
            return None
        return self._handle(instance, digest, int(port), found)

    def _runs(self, handle: Handle) -> bool:
        process = _process(handle)
        with self._guard:
            running = self._processes.status(process).running
        return running and not _is_another(process, self._markers(handle.instance, handle.digest))

    def _markers(self, instance: str, digest: str) -> dict[str, str]:
        """Of the state directory too: two controllers of one machine may use the same name."""
        return {
            "CANARYCTL_INSTANCE": instance,
            "CANARYCTL_ARTIFACT_DIGEST": digest,
            "CANARYCTL_INSTANCE_DIR": str(self._files(instance).directory),
        }

    def _require_never_begun(self, instance: str, files: "_Files") -> None:
        if files.stop_asked_at() is not None:
            raise PermanentError(
                f"instance {instance} was asked to stop before it started; use another name"
            )
        if files.wrote_log():
            raise PermanentError(
                f"instance {instance} ran and ended before its start could be recorded; "
                f"see {files.log} and use another instance name"
            )

    def _start(self, request: InstanceRequest, files: "_Files", stage: Stage) -> Handle:
        for name, text in request.launch.files.items():
            stage.write(files.launch / name, text)
        argv = request.launch.argv_with(str(files.launch))
        try:
            # `python -m` imports from where it starts first: nothing must lie in the way.
            with self._guard, stage.entering(files.directory) as way:
                process = self._processes.start(
                    argv,
                    markers=self._markers(request.instance, request.digest),
                    env={**_environment(request), _PORT_VARIABLE: str(request.port)},
                    log_path=files.log,
                    cwd=way,
                )
        except (OSError, ValueError, psutil.NoSuchProcess) as error:
            raise PermanentError(
                f"cannot start instance {request.instance} with {request.launch.argv[0]!r}: {error}"
            ) from error
        return self._handle(request.instance, request.digest, request.port, process)

    def _handle(self, instance: str, digest: str, port: int, process: LocalProcess) -> Handle:
        return Handle(
            instance=instance,
            digest=digest,
            pid=process.pid,
            started_at=process.created_at,
            port=port,
            log_path=str(self.log_path(instance)),
        )


class _Files:
    """What is remembered of one instance."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log = directory / "engine.log"
        self.launch = directory.absolute() / "launch"  # what the engine is started with
        self._started = directory / "started.json"
        self._stop_asked = directory / "stop-asked"
        # No instance's name has a dot first.
        self.fence = Fence(directory.parent / ".fences" / directory.name)

    def create(self) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def record_start(self, handle: Handle, stage: Stage) -> None:
        stage.write(self._started, json.dumps(dataclasses.asdict(handle)))

    def started(self) -> Handle | None:
        text = _read(self._started)
        return None if text is None else Handle(**json.loads(text))

    def record_stop(self, now: float, stage: Stage) -> float:
        """When stopping was first asked for, in seconds since the epoch."""
        asked_at = self.stop_asked_at()
        if asked_at is None:
            stage.write(self._stop_asked, repr(now))
            return now
        return asked_at

    def stop_asked_at(self) -> float | None:
        text = _read(self._stop_asked)
        return None if text is None else float(text)

    def wrote_log(self) -> bool:
        return self.log.exists() and self.log.stat().st_size > 0


_PORT_VARIABLE = "CANARYCTL_PORT"  # so that the handle of a found process is complete


def _process(handle: Handle) -> LocalProcess:
    return LocalProcess(handle.pid, handle.started_at)


def _environment(request: InstanceRequest) -> dict[str, str]:
    environment = {**clean_environment(), **request.launch.env, **request.secrets}
    paths = [*request.launch.pythonpath, environment.get("PYTHONPATH", "")]
    if any(paths):
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    if request.gpus:
        # CUDA numbers the fastest GPU first unless told to count as the driver does.
        environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(str(gpu) for gpu in request.gpus)
    return environment


def _require_same(instance: str, digest: str, handle: Handle) -> None:
    if (handle.instance, handle.digest) != (instance, digest):
        raise ValueError(
            f"expected the handle of {instance} ({digest}), "
            f"found that of {handle.instance} ({handle.digest})"
        )


def _environment_of(process: LocalProcess) -> Mapping[str, str]:
    """Empty for one that is just ending."""
    try:
        environment: Mapping[str, str] = psutil.Process(process.pid).environ()
    except psutil.NoSuchProcess:
        return {}
    return environment


def _is_another(process: LocalProcess, markers: Mapping[str, str]) -> bool:
    """Whether it is known not to be the engine that this user started for this instance."""
    try:
        environment = _environment_of(process)
        if environment and psutil.Process(process.pid).uids().real != os.getuid():
            return True
    except (psutil.AccessDenied, PermissionError):
        return True
    except psutil.NoSuchProcess:
        return False
    return bool(environment) and any(
        environment.get(name) != value for name, value in markers.items()
    )


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None
