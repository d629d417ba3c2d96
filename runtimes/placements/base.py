"""Where instances run. All methods are idempotent; effects happen only here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from canaryctl.runtimes.engines.base import Launch


@dataclass(frozen=True, slots=True)
class InstanceRequest:
    """One instance to run.

    ``instance`` is unique for ever; with ``digest`` and the placement's own directory it is in
    the process's environment (CANARYCTL_INSTANCE, CANARYCTL_ARTIFACT_DIGEST,
    CANARYCTL_INSTANCE_DIR), so that the instance is found again and none other is ever taken
    for it, also not that of another controller of the same machine. ``secrets`` go into the
    environment and nowhere else: never into a log, a table or a repr.
    """

    instance: str
    digest: str
    launch: Launch
    port: int
    gpus: tuple[int, ...] = ()
    token: int | None = None  # fencing token of whoever starts it
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Handle:
    """What is stored of a started instance; JSON-serialisable."""

    instance: str
    digest: str
    pid: int
    started_at: float  # process creation time, seconds since the epoch, as the kernel says
    port: int
    log_path: str


class Liveness(StrEnum):
    RUNNING = "running"
    EXITED = "exited"  # it ran and has ended; any exit that was not asked for is a failure
    ABSENT = "absent"  # never started here, or nothing is known of it


@dataclass(frozen=True, slots=True)
class Status:
    liveness: Liveness
    exit_code: int | None = None  # None: still running, or not known
    handle: Handle | None = None


class Placement(Protocol):
    """A place where instances run.

    ``token``: the fencing token of whoever acts; None for one that is alone. Once a higher one
    has acted on an instance nothing of a lower one lands: StaleTokenError.
    """

    name: str

    def ensure(self, request: InstanceRequest) -> Handle:
        """Start the instance unless it runs; find it again after a crash of the controller.

        ``launch.files`` are there before it starts, and ``launch.argv_with`` names their folder.
        """

    def status(self, instance: str, digest: str, handle: Handle | None) -> Status:
        """Look, and change nothing."""

    def stop(
        self,
        instance: str,
        digest: str,
        handle: Handle | None,
        *,
        grace_s: float,
        token: int | None = None,
    ) -> bool:
        """Ask it to end, then make it; True when nothing of it is left. Does not block long:
        called again each tick until True."""

    def log_path(self, instance: str) -> Path: ...

    def base_url(self, handle: Handle) -> str: ...

    def free_port(self) -> int: ...
