"""The records that the store keeps, as frozen values. Times are timezone-aware UTC."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from canaryctl.controller.artifact.schema import ArtifactDocument
from canaryctl.controller.states import Phase, Trigger
from canaryctl.gates.base import Look
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.runtimes.engines.base import EngineFault, Stage
from canaryctl.runtimes.placements.base import Handle
from canaryctl.runtimes.spec import RuntimeSpec


class ReleaseKind(StrEnum):
    FIRST = "first"  # the service has no stable artifact yet
    RELEASE = "release"
    ROLLBACK = "rollback"  # back to an earlier artifact or to eager: hard gates only


class InstanceState(StrEnum):
    REQUESTED = "requested"  # intent: the row exists, the process may or may not
    STARTING = "starting"  # the process runs; readiness stages follow
    READY = "ready"  # warmed; may take traffic
    STOPPING = "stopping"  # intent: drained, then ended
    STOPPED = "stopped"  # ended because it was asked to
    DEAD = "dead"  # ended without being asked, or never became ready


LIVE_STATES = frozenset(
    {InstanceState.REQUESTED, InstanceState.STARTING, InstanceState.READY, InstanceState.STOPPING}
)


@dataclass(frozen=True, slots=True)
class Artifact:
    """An immutable runtime. ``eager_of``: the digest it was derived from with graphs off."""

    digest: str  # "sha256:…" over the canonical runtime
    name: str
    version: str
    service: str
    runtime: RuntimeSpec
    created_at: datetime
    eager_of: str | None = None

    @property
    def title(self) -> str:
        return f"{self.name}@{self.version}"


@dataclass(frozen=True, slots=True)
class Service:
    """A serving target. ``stable_pool``: the pool whose instances run the stable artifact."""

    name: str
    port: int  # of the router
    created_at: datetime
    stable_digest: str | None = None
    stable_pool: str | None = None
    stable_replicas: int = 1
    stable_release: str | None = None  # whose document holds secrets and stage deadlines


@dataclass(frozen=True, slots=True)
class Release:
    """One attempt to make an artifact stable.

    ``revision`` counts the writes: an update names the revision it was decided on.
    ``step``: index into the plan's steps; ``weight``: the canary's wanted share, per cent.
    ``rollback_target``: the rung that took the traffic back, once known.
    """

    id: str
    service: str
    kind: ReleaseKind
    digest: str
    document: ArtifactDocument
    phase: Phase
    revision: int
    created_at: datetime
    phase_at: datetime  # when the phase was entered
    deadline_at: datetime  # progress deadline, wall clock
    previous_digest: str | None = None
    previous_pool: str | None = None
    previous_replicas: int = 1
    step: int = 0
    step_at: datetime | None = None  # when the step's weight was in force
    weight: int = 0
    reason: str | None = None
    rollback_target: str | None = None  # previous, eager, or none
    hold: str | None = None  # what the release waits for, in words
    finished_at: datetime | None = None

    @property
    def pool(self) -> str:
        return self.id

    @property
    def eager_pool(self) -> str:
        return f"{self.id}.eager"

    @property
    def fresh_pool(self) -> str:
        """Of the stable artifact's instances that were started beside the canary."""
        return f"{self.id}.baseline"


@dataclass(frozen=True, slots=True)
class Instance:
    """One running engine of an artifact. ``stages``: stage → when it was seen complete.

    ``facts``: what was learnt of it (KV tokens, graph bytes, captured grid, log faults).
    ``restarts``: how many instances of this slot died before it; sets the back-off.
    """

    id: str
    service: str
    pool: str
    digest: str
    state: InstanceState
    created_at: datetime
    port: int
    gpus: tuple[int, ...] = ()
    handle: Handle | None = None
    stages: Mapping[Stage, datetime] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    exit_code: int | None = None
    ended_at: datetime | None = None
    stop_at: datetime | None = None  # when stopping was asked for
    restarts: int = 0
    not_before: datetime | None = None  # back-off: start no earlier
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class GpuClaim:
    """What an instance needs of GPUs: ``count`` of ``candidates``, each to ``fraction`` (0-1].

    ``inventory``: whose GPUs the indices count ("local", "simulated"). ``share``: other
    instances that share too may be on the same GPU, as long as the fractions add up to one.
    """

    inventory: str
    candidates: tuple[int, ...]
    count: int
    fraction: float
    share: bool


@dataclass(frozen=True, slots=True)
class GpuLease:
    """A GPU that an instance holds. Gone when the instance has ended."""

    inventory: str
    gpu: int
    instance: str
    fraction: float
    shared: bool


@dataclass(frozen=True, slots=True)
class Fault:
    """An engine event, stored as it was seen."""

    release: str
    instance: str
    kind: EngineFault
    at: datetime
    detail: str


@dataclass(frozen=True, slots=True)
class ReleaseEvent:
    """One entry of a release's log. ``seq`` counts from 1 without holes."""

    release: str
    seq: int
    at: datetime
    kind: str  # phase, step, hold, gate, operator, rung, effect
    message: str
    from_phase: Phase | None = None
    to_phase: Phase | None = None
    trigger: Trigger | None = None
    actor: str = "controller"
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a source answered, word for word, and the values read from it."""

    release: str
    at: datetime
    instance: str
    source: str
    raw: str
    values: Any  # JSON types


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one look of one gate found: one per gate and look, and it stands.

    ``state_digest``: of the gate's state afterwards
    (:func:`canaryctl.gates.records.state_digest`).
    """

    gate: str
    result: GateResult
    state_digest: str


@dataclass(frozen=True, slots=True)
class LookRecord:
    """One look of a release: all that was known, and what the gates asked at it made of it.

    ``seq`` counts from 1 without holes; the store gives it. ``outcome`` and ``promotable`` are
    the verdict's over all gates, those included that were last asked at an earlier look.
    """

    release: str
    seq: int
    at: datetime
    look: Look
    outcome: Outcome
    promotable: bool
    measurements: tuple[Measurement, ...]


class Verb(StrEnum):
    PROMOTE = "promote"
    ABORT = "abort"
    PAUSE = "pause"
    RESUME = "resume"
    SUPERSEDE = "supersede"


@dataclass(frozen=True, slots=True)
class OperatorRequest:
    """What a person asked for. Recorded at once, acted on by whoever holds the lease."""

    id: int
    release: str
    verb: Verb
    actor: str
    reason: str
    at: datetime
    answered_at: datetime | None = None
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class GateRecord:
    """A gate's stored standing: its state to resume from, and its latest result."""

    release: str
    gate: str
    at: datetime
    state: Mapping[str, Any]
    result: GateResult


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to act. ``token`` rises with every new holder; writes are checked against it."""

    name: str
    holder: str
    token: int
    expires_at: datetime
