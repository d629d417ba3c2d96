"""A world that goes wrong, for tests of the whole controller: engines, router and looks are small
fakes that keep the promises of their protocols, and the process may end before any effect."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from canaryctl.common.errors import PermanentError, TemporaryError
from canaryctl.controller.artifact.schema import ArtifactDocument
from canaryctl.controller.judge import Judgement
from canaryctl.controller.model import (
    Instance,
    InstanceState,
    Release,
)
from canaryctl.controller.observe import Seen
from canaryctl.controller.plan import HARD_GATES, Plan
from canaryctl.controller.states import FINAL, Phase
from canaryctl.controller.store import upgrade
from canaryctl.controller.view import InstanceView, LoadState, PoolView
from canaryctl.gates.base import Event
from canaryctl.gates.fold import fold
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.runtimes.engines.base import EngineFault, Stage
from canaryctl.runtimes.placements.base import Handle, InstanceRequest, Liveness, Status
from canaryctl.runtimes.routers.base import RouterAddress, RouteTable

START = datetime(2026, 1, 1, tzinfo=UTC)
SERVICE = "chat"
TICK_S = 0.25
LEASE_OVER_S = 7.0  # after this much time a dead holder's lease has expired
BEFORE_PROMOTION = frozenset(Phase) - FINAL - {Phase.WATCHING, Phase.PROMOTING}


class Crash(BaseException):
    """The process ends here."""


@dataclass
class Effects:
    """Counts effects on the world; the process may end before or after any of them."""

    ends_in: int | None = None

    def point(self) -> None:
        if self.ends_in is not None:
            self.ends_in -= 1
            if self.ends_in <= 0:
                self.ends_in = None
                raise Crash


@dataclass
class Engines:
    """The placement: what runs outlives the controller."""

    effects: Effects
    running: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    cannot_start: int = 0  # so many starts fail for good
    ports: int = 20_000
    name: str = "process"

    def ensure(self, request: InstanceRequest) -> Handle:
        self.effects.point()
        handle = Handle(request.instance, request.digest, 1, 0.0, request.port, "log")
        if request.instance in self.running | self.ended:
            return handle
        if self.cannot_start:
            self.cannot_start -= 1
            raise PermanentError("no such program")
        self.running.add(request.instance)
        self.effects.point()
        return handle

    def status(self, instance: str, digest: str, handle: Handle | None) -> Status:
        if instance in self.running:
            return Status(Liveness.RUNNING)
        return Status(Liveness.EXITED if instance in self.ended else Liveness.ABSENT)

    def stop(
        self,
        instance: str,
        digest: str,
        handle: Handle | None,
        *,
        grace_s: float,
        token: int | None = None,
    ) -> bool:
        """Not at once, as a real process does not end at once."""
        self.effects.point()
        gone = instance not in self.running
        self.die(instance)
        self.effects.point()
        return gone

    def die(self, instance: str) -> None:
        self.running.discard(instance)
        self.ended.add(instance)

    def log_path(self, instance: str) -> Path:
        return Path(instance)

    def base_url(self, handle: Handle) -> str:
        return f"http://{handle.instance}"

    def free_port(self) -> int:
        self.ports += 1
        return self.ports


@dataclass
class Routes:
    """The router. It lives on without the controller, and may lose its table or stop."""

    effects: Effects
    table: RouteTable = field(default_factory=lambda: RouteTable(SERVICE, ()))
    runs: bool = True
    on_apply: Callable[[RouteTable], None] = lambda table: None
    name: str = "envoy"

    def ensure(self, service: str, port: int, token: int | None = None) -> RouterAddress:
        if not self.runs:
            raise TemporaryError("the router does not come up")
        return RouterAddress("http://users", "http://admin")

    def apply(self, table: RouteTable, token: int | None = None) -> None:
        self.effects.point()
        if not self.runs:
            raise TemporaryError("the router does not answer")
        self.on_apply(table)
        self.table = table
        self.effects.point()

    def effective_weights(self, service: str) -> dict[str, int] | None:
        return self.table.weights if self.runs else None

    def remove(self, service: str) -> None:
        self.table = RouteTable(SERVICE, ())


@dataclass
class Looks:
    """The observer: a running engine gains one stage a look, and is ready after the last."""

    engines: Engines
    never_ready: set[str] = field(default_factory=set)

    def observe(self, instances: Sequence[Instance], now: datetime) -> tuple[Seen, ...]:
        return tuple(self._look(instance, now) for instance in instances)

    def _look(self, instance: Instance, now: datetime) -> Seen:
        runs = instance.id in self.engines.running
        if instance.state is InstanceState.REQUESTED:
            return Seen(InstanceView(instance, alive=False))
        if instance.state is InstanceState.STOPPING:
            return Seen(InstanceView(instance, runs, running_requests=0))
        if not runs:
            why = f"{instance.id} ended"
            return Seen(InstanceView(instance, alive=False), ((EngineFault.EXIT, why),))
        if instance.state is InstanceState.READY:
            return Seen(InstanceView(instance, alive=True))
        if instance.id in self.never_ready:
            return Seen(InstanceView(instance, alive=True, fault="warmup: bucket 8"))
        stages = dict(instance.stages)
        stages[next(stage for stage in Stage if stage not in stages)] = now
        state = InstanceState.READY if Stage.READY in stages else InstanceState.STARTING
        return Seen(InstanceView(replace(instance, stages=stages, state=state), alive=True))

    def base_url(self, instance: Instance) -> str:
        return f"http://{instance.id}"

    def first_tokens(self, instance: Instance, now: datetime) -> float | None:
        return None

    def close(self) -> None:
        pass


@dataclass
class Gates:
    """The judge: hard gates listen to events; the one soft gate says what the test wants. What
    it found is remembered over restarts, as the store remembers it."""

    soft: dict[str, Outcome] = field(default_factory=dict)
    promotable: bool = False  # at the latest look
    counted: int = 100
    driven: str | None = None

    def looks(self, release: str) -> int:
        return 1

    def step_requests(self, release: Release) -> int:
        return self.counted

    def recorded(self) -> None:
        pass

    def close(self) -> None:
        pass

    def judge(
        self,
        release: Release,
        plan: Plan,
        pools: Mapping[str, PoolView],
        *,
        events: Sequence[Event],
        progress_checks: int,
        now: datetime,
    ) -> Judgement:
        exits = any(event.kind == "exit" for event in events)
        found = dict.fromkeys(HARD_GATES, Outcome.PASSED)
        if exits:
            found["engine_exit"] = Outcome.FAILED
        found["error_rate"] = self.soft.get(release.id, Outcome.PASSED)
        results = [GateResult(n, o, f"{n} says so", valid_looks=9) for n, o in found.items()]
        verdict = fold(results, required=tuple(found), promote_on="proven")
        self.promotable = verdict.promotable
        return Judgement(verdict)


@dataclass
class NoLoads:
    """Every generated load goes well. ``asked``: the engines that are sent requests now."""

    asked: tuple[str, ...] = ()

    def state(self, release: Release, step: object, urls: tuple[str, ...]) -> LoadState:
        self.asked = urls
        return LoadState()

    def stop(self, release: str) -> None:
        self.asked = ()

    def close(self) -> None:
        pass


class NoWatch:
    """Every warm engine generates: a hang is a gate's failure like any other."""

    def __init__(self, **_: float) -> None:
        pass

    def look(self, targets: object, now: datetime) -> None:
        pass

    def good(self, instance: str) -> int:
        return 1

    def stuck(self, instance: str) -> str | None:
        return None


def document(
    number: int,
    *,
    graphs: bool,
    replicas: int,
    pause: bool,
    baseline: str = "stable",
    loaded: bool = False,
) -> ArtifactDocument:
    """``loaded``: the steps begin with one under the controller's own load."""
    before = [{"weight": 0, "load": "generated"}] if loaded else []
    return ArtifactDocument.model_validate(
        {
            "apiVersion": "canaryctl/v1",
            "kind": "RuntimeArtifact",
            "name": "chat-model",
            "version": str(number),
            "service": SERVICE,
            "runtime": {
                "engine": {"name": "simulated", "version": "0.25.1", "args": {"seed": number}},
                "model": {"id": "m"},
                "graph": {"mode": "FULL" if graphs else "NONE"},
                **({} if graphs else {"warmup_plan": {"decode_buckets": [1]}}),
            },
            "replicas": replicas,
            "rollout": {
                "baseline": baseline,
                "steps": [*before, {"weight": 25, "bake": "1s"}, {"weight": 50, "pause": pause}],
                "interval": "1s",
                "drain": "2s",
                "progress_deadline": "2m",
                "rollback_window": "3s",
                "stage_deadlines": {"load": "10s", "compile": "10s", "capture": "10s"},
            },
            "gates": [{"name": "error_rate", "max_ratio": "5%"}],
        }
    )


@cache
def empty_database() -> Path:
    path = Path(tempfile.mkdtemp(prefix="canaryctl-machine-")) / "empty.db"
    upgrade(f"sqlite:///{path}")
    return path


@dataclass
class TestClock:
    """Time that only the test moves."""

    __test__ = False
    at: datetime = START

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return (self.at - START).total_seconds()

    def sleep(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)
