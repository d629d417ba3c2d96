"""Engines of a baseline run or a calibration: started by the placement in a pool of their own,
outside releases, observed until they are ready, and stopped."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from canaryctl.common.clock import Clock
from canaryctl.common.errors import CanaryctlError, ConflictError
from canaryctl.common.metrics import AnySignal, references
from canaryctl.controller.artifact.schema import ArtifactDocument
from canaryctl.controller.artifact.secrets import resolve_secrets
from canaryctl.controller.baseline.figures import SIGNALS
from canaryctl.controller.baseline.leftovers import Leftovers, none_left
from canaryctl.controller.baseline.stages import Stage
from canaryctl.controller.catalog import Catalog
from canaryctl.controller.model import Artifact, GpuClaim, GpuLease, Instance, InstanceState
from canaryctl.controller.observe import Observer
from canaryctl.controller.room import Arm, shortage
from canaryctl.controller.store.gpus import Occupant, pick
from canaryctl.gates.samples import Scrape
from canaryctl.gates.sources.base import SampleSource, Target
from canaryctl.runtimes.engines.base import Engine
from canaryctl.runtimes.engines.base import Stage as Reached
from canaryctl.runtimes.placements.base import InstanceRequest, Placement
from canaryctl.runtimes.spec import RuntimeSpec

_LOOK_S: Final = 0.1


class StageError(CanaryctlError):
    """An engine of a stage did not become ready; the message says why."""


@dataclass(frozen=True, slots=True)
class Up:
    """A ready engine of a stage."""

    stage: Stage
    instance: Instance
    url: str
    model: str


@dataclass(slots=True)
class _Artifacts:
    """The stages' runtimes as artifacts, which need not be in the store."""

    document: ArtifactDocument
    known: dict[str, Artifact] = field(default_factory=dict)

    def add(self, stage: Stage, now: datetime) -> None:
        self.known[stage.digest] = Artifact(
            digest=stage.digest,
            name=f"{self.document.name}.{stage.name}",
            version=self.document.version,
            service=self.document.service,
            runtime=stage.runtime,
            created_at=now,
        )

    def artifact(self, ref: str, /) -> Artifact:
        return self.known[ref]


class StageEngines:
    """``pool``: what they are started for, the beginning of their names. ``claim``: what an engine
    needs of GPUs. ``occupants``: who holds GPUs now by the store; ``strangers``: who uses some
    beside, as far as it matters.

    A context: no engine started in it outlives it.
    """

    def __init__(
        self,
        document: ArtifactDocument,
        adapter: Engine,
        *,
        pool: str,
        placement: Placement,
        source: SampleSource,
        executor: Executor,
        clock: Clock,
        host: str,
        state_dir: Path,
        claim: Callable[[Engine, RuntimeSpec], GpuClaim | None],
        occupants: Callable[[], Sequence[Occupant]],
        strangers: Callable[[], Sequence[Occupant]],
    ) -> None:
        self._document, self._adapter, self._pool = document, adapter, pool
        self._placement, self._source, self._clock = placement, source, clock
        self._host, self._state_dir = host, state_dir
        self._claim, self._occupants, self._strangers = claim, occupants, strangers
        self._artifacts = _Artifacts(document)
        allowed = document.rollout.stage_deadlines
        limits = {
            "load": allowed.load,
            "compile": allowed.compile,
            "capture": allowed.capture,
            "warm": allowed.warm,
        }
        self._observer = Observer(
            Catalog(self._artifacts, lambda _: adapter),
            placement,
            source,
            executor,
            lambda _: limits,
        )
        self._leftovers = Leftovers(state_dir, placement)
        self._up: dict[str, Instance] = {}
        self._leases: dict[str, list[Occupant]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(none_left(self._state_dir, self._placement))
            stack.callback(self._observer.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def fit_together(self, stages: Sequence[Stage]) -> bool:
        """Whether there are GPUs for one engine of every stage at once."""
        arms = [Arm(s.name, 1, self._claim(self._adapter, s.runtime)) for s in stages]
        return shortage(arms, self._occupants()) is None

    def start(self, stage: Stage, limit_s: float) -> Up:
        """Start one engine and wait until it is ready; StageError when it is not in time, or
        never will be. It is stopped then."""
        now = self._clock.now()
        self._artifacts.add(stage, now)
        name = f"{self._pool}-{now:%Y%m%dT%H%M%S%f}-{stage.name}"
        port = self._placement.free_port()
        gpus = self._gpus(name, stage.runtime)
        self._leftovers.begin(name, stage.digest)
        handle = self._placement.ensure(
            InstanceRequest(
                instance=name,
                digest=stage.digest,
                launch=self._adapter.launch(stage.runtime, host=self._host, port=port),
                port=port,
                gpus=gpus,
                secrets=resolve_secrets(self._document.secrets),
            )
        )
        self._up[name] = Instance(
            id=name,
            service=self._document.service,
            pool=self._pool,
            digest=stage.digest,
            state=InstanceState.STARTING,
            created_at=now,
            port=port,
            gpus=gpus,
            handle=handle,
            stages={Reached.STARTED: now},
        )
        try:
            ready = self._until_ready(name, limit_s)
        except StageError:
            self.stop(name)
            raise
        return Up(
            stage,
            ready,
            self._placement.base_url(handle),
            self._adapter.model_name(stage.runtime),
        )

    def _until_ready(self, name: str, limit_s: float) -> Instance:
        until = self._clock.now().timestamp() + limit_s
        while True:
            now = self._clock.now()
            seen = next(
                s for s in self._observer.observe(tuple(self._up.values()), now)
                if s.view.instance.id == name
            )  # fmt: skip
            instance = self._up[name] = seen.view.instance
            if instance.state is InstanceState.READY:
                return instance
            log = self._placement.log_path(name)
            if not seen.view.alive or seen.view.fault is not None:
                raise StageError(f"{seen.view.fault or instance.reason}; see {log}")
            if now.timestamp() > until:
                reached = max(instance.stages, key=lambda stage: stage.order).value
                raise StageError(
                    f"it is not ready after {limit_s:g} s: it came as far as {reached}; see {log}"
                )
            self._clock.sleep(_LOOK_S)

    def scrape(self, up: Up, signals: Sequence[AnySignal] = SIGNALS) -> Scrape:
        """What the engine says of itself now."""
        known = self._adapter.metrics(up.stage.runtime.engine.version)
        target = Target(up.instance.id, up.url + self._adapter.metrics_path(), {})
        at = self._clock.now().timestamp()
        return self._source.read(target, references(signals, known), at)

    def require_alone(self, up: Up) -> None:
        """ConflictError where an engine of a service has come onto one of its GPUs meanwhile."""
        claim = self._claim(self._adapter, up.stage.runtime)
        inventory = None if claim is None else claim.inventory
        for lease in (occupant.lease for occupant in self._occupants()):
            if lease.inventory == inventory and lease.gpu in up.instance.gpus:
                raise ConflictError(
                    f"{lease.instance} came onto GPU {lease.gpu} while {up.stage.name} was "
                    "measured there, which counts for nothing now; try again"
                )

    def stop(self, name: str) -> None:
        """Stop an engine by its instance's name, and wait until it is gone."""
        self._leftovers.end(name, self._up[name].digest)
        del self._up[name]
        self._leases.pop(name, None)

    def _gpus(self, name: str, runtime: RuntimeSpec) -> tuple[int, ...]:
        claim = self._claim(self._adapter, runtime)
        if claim is None:
            return ()
        own = [occupant for leases in self._leases.values() for occupant in leases]
        held = (*self._occupants(), *self._strangers(), *own)
        there = [o for o in held if o.lease.inventory == claim.inventory]
        picked = pick(claim, there)
        self._leases[name] = [
            Occupant(
                GpuLease(claim.inventory, gpu, name, claim.fraction, claim.share),
                InstanceState.READY,
            )
            for gpu in picked
        ]
        return picked


def reached(instance: Instance) -> Mapping[str, str]:
    """Stage of readiness → when it was seen complete, ISO 8601."""
    return {stage.value: at.isoformat() for stage, at in instance.stages.items()}
