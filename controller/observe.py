"""Observing: what every instance of a service is doing now. It looks, records, and decides
nothing; warm-up and progress checks are the only requests it makes."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from canaryctl.common.metrics import Signal, references
from canaryctl.controller.catalog import Catalog
from canaryctl.controller.model import Instance, InstanceState
from canaryctl.controller.view import InstanceView
from canaryctl.gates.samples import Histogram, Scrape, Series, Value
from canaryctl.gates.sources.base import SampleSource, Target
from canaryctl.runtimes.engines.base import NO_SIZES, EngineFault, LogFacts, Stage
from canaryctl.runtimes.health import Health, read_health
from canaryctl.runtimes.httpclient import client
from canaryctl.runtimes.logtail import LogTail
from canaryctl.runtimes.placements.base import Liveness, Placement, Status
from canaryctl.runtimes.readiness import assess, overdue
from canaryctl.runtimes.replays import BucketKind, Replays, StepCounts
from canaryctl.runtimes.warmup import WarmupRun, WarmupState, plan_requests

HEALTH_TIMEOUT_S = 0.5
_LATE_NAMED = 20  # kept by name, the latest, of what an instance compiled or captured when ready

# Of an engine that was ready; its process may take a while to end after either.
_DEATHS: Mapping[Health, str] = {
    Health.DEAD: "answers 503: its engine is dead",
    Health.REFUSED: "refuses connections: its server has closed",
}


@dataclass(slots=True)
class _Tracker:
    """What is remembered of one instance between ticks; all of it can be found out again."""

    log: LogTail
    facts: LogFacts = field(default_factory=LogFacts)
    warmup: WarmupRun | None = None
    grid: tuple[int, ...] | None = None
    attested: dict[str, str] | None = None
    grid_read: bool = False
    memory_bytes: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Seen:
    """An instance after a look, and the faults that the look found."""

    view: InstanceView
    faults: tuple[tuple[EngineFault, str], ...] = ()


class Observer:
    """Looks at instances. ``deadlines``: instance → seconds allowed for each stage."""

    def __init__(
        self,
        catalog: Catalog,
        placement: Placement,
        source: SampleSource,
        executor: Executor,
        deadlines: Callable[[Instance], Mapping[str, float]],
    ) -> None:
        self._catalog, self._placement, self._source = catalog, placement, source
        self._executor, self._deadlines = executor, deadlines
        self._trackers: dict[str, _Tracker] = {}
        self._http = client(HEALTH_TIMEOUT_S)

    def observe(self, instances: Sequence[Instance], now: datetime) -> tuple[Seen, ...]:
        """All of them, side by side: one that does not answer delays no other."""
        known = {instance.id for instance in instances}
        for gone in self._trackers.keys() - known:
            self._forget(gone)
        return tuple(self._executor.map(lambda instance: self._look(instance, now), instances))

    def base_url(self, instance: Instance) -> str:
        """Where a started instance listens."""
        if instance.handle is None:
            raise AssertionError(f"{instance.id} has not been started")
        return self._placement.base_url(instance.handle)

    def first_tokens(self, instance: Instance, now: datetime) -> float | None:
        """How many requests got a first token from it since it started; None: it cannot say."""
        found = self.read(instance, (Signal.TTFT,), now).values.get(Signal.TTFT)
        return float(found.count) if isinstance(found, Histogram) else None

    def close(self) -> None:
        for instance in list(self._trackers):
            self._forget(instance)
        self._http.close()

    def _forget(self, instance: str) -> None:
        tracker = self._trackers.pop(instance)
        if tracker.warmup is not None:
            tracker.warmup.cancel()

    def _look(self, instance: Instance, now: datetime) -> Seen:
        if instance.state is InstanceState.REQUESTED:
            return Seen(InstanceView(instance, alive=False))
        status = self._placement.status(instance.id, instance.digest, instance.handle)
        if instance.state is InstanceState.STOPPING:
            alive = status.liveness is Liveness.RUNNING
            running = self._running_requests(instance, now) if alive else 0
            return Seen(InstanceView(instance, alive, running_requests=running))
        tracker = self._tracker(instance)
        # The log is read after the status: what an engine said before it died is there by now.
        self._read_log(instance, tracker)
        faults = [(EngineFault.OOM, line) for line in tracker.facts.out_of_memory[:1]]
        if status.liveness is not Liveness.RUNNING:
            return self._ended(instance, tracker, status, faults)
        health = self._health(instance)
        if instance.state is InstanceState.STARTING:
            return self._starting(instance, tracker, health, faults, now)
        return self._ready(instance, tracker, health, faults)

    def _tracker(self, instance: Instance) -> _Tracker:
        if instance.id not in self._trackers:
            log = LogTail(self._placement.log_path(instance.id))
            self._trackers[instance.id] = _Tracker(log)
        return self._trackers[instance.id]

    def _read_log(self, instance: Instance, tracker: _Tracker) -> None:
        read, lines = tracker.log.offset, tracker.log.lines()
        if tracker.log.offset != read:
            version = self._catalog.artifact(instance.digest).runtime.engine.version
            tracker.facts = self._catalog.engine(instance.digest).read_log(lines, version)

    def _ended(
        self,
        instance: Instance,
        tracker: _Tracker,
        status: Status,
        faults: list[tuple[EngineFault, str]],
    ) -> Seen:
        code = "unknown" if status.exit_code is None else str(status.exit_code)
        why = f"; it said: {tracker.facts.fatal[-1].strip()}" if tracker.facts.fatal else ""
        detail = f"{instance.id} ended without being asked, exit code {code}{why}"
        faults.append((EngineFault.EXIT, detail))
        after = replace(instance, exit_code=status.exit_code, reason=detail)
        return Seen(InstanceView(after, alive=False), tuple(faults))

    def _health(self, instance: Instance) -> Health:
        path = self._catalog.engine(instance.digest).health_path()
        return read_health(self._http, self.base_url(instance) + path)

    def _starting(
        self,
        instance: Instance,
        tracker: _Tracker,
        health: Health,
        faults: list[tuple[EngineFault, str]],
        now: datetime,
    ) -> Seen:
        spec = self._catalog.artifact(instance.digest).runtime
        warmup = tracker.warmup.progress() if tracker.warmup is not None else None
        if health is Health.GOOD and not tracker.grid_read:
            self._read_page(instance, tracker, now)
        readiness = assess(
            tracker.facts,
            alive=True,
            health_ok=health is Health.GOOD,
            spec=spec,
            warmed=warmup is not None and warmup.state is WarmupState.DONE,
            captured=_captured(tracker),
            previous=instance.stages,
            now=now,
        )
        fault = readiness.fault and f"readiness: {readiness.fault}"
        listening = health is Health.GOOD
        if Stage.CAPTURED in readiness.stages and listening and warmup is None and not fault:
            tracker.warmup = self._warm(instance, _captured(tracker), now)
        if warmup is not None and warmup.state is WarmupState.FAILED:
            fault = f"warmup: {warmup.reason}"
        late = overdue(readiness.stages, self._deadlines(instance), now)
        if late and not fault:
            fault = f"readiness: {late}"
        ready = Stage.READY in readiness.stages and not fault
        if ready:
            # What the warm-up had compiled and captured is in the log by now, and is not late.
            self._read_log(instance, tracker)
        after = replace(
            instance,
            stages=readiness.stages,
            state=InstanceState.READY if ready else InstanceState.STARTING,
            facts=_facts(tracker),
        )
        return Seen(InstanceView(after, alive=True, fault=fault), tuple(faults))

    def _warm(self, instance: Instance, grid: tuple[int, ...] | None, now: datetime) -> WarmupRun:
        artifact = self._catalog.artifact(instance.digest)
        speculative = artifact.runtime.speculative
        # Speculative decoding runs as many tokens of a sequence as were accepted: no one size.
        proof = (
            Replays.of(artifact.runtime.graph.mode, grid, lambda: self._replays(instance, now))
            if grid and not speculative
            else None
        )
        return WarmupRun(
            self.base_url(instance),
            self._catalog.engine(instance.digest).model_name(artifact.runtime),
            plan_requests(artifact.runtime.warmup_plan, artifact.runtime.limits),
            replays=proof,
        )

    def _replays(self, instance: Instance, now: datetime) -> StepCounts | None:
        """Steps that replayed a graph; None: the engine does not say."""
        steps = self.read(instance, (Signal.STEPS,), now).values.get(Signal.STEPS)
        return step_counts(steps) if isinstance(steps, Series) else None

    def _ready(
        self,
        instance: Instance,
        tracker: _Tracker,
        health: Health,
        faults: list[tuple[EngineFault, str]],
    ) -> Seen:
        why = _DEATHS.get(health)
        if why is not None:
            faults.append((EngineFault.EXIT, f"{instance.id} {why}"))
        after = replace(instance, facts=_with_late_work(instance.facts, tracker.facts))
        return Seen(InstanceView(after, alive=why is None), tuple(faults))

    def _read_page(self, instance: Instance, tracker: _Tracker, now: datetime) -> None:
        """What the engine itself reports of its start; what it cannot say stays unknown."""
        values = self.read(instance, (Signal.GRID, Signal.MEMORY, Signal.ATTESTATION), now).values
        tracker.grid_read = True
        tracker.grid = _grid(values.get(Signal.GRID))
        memory = values.get(Signal.MEMORY)
        if isinstance(memory, Series):
            kinds = ((dict(labels).get("kind"), size) for labels, size in memory.values.items())
            tracker.memory_bytes = {kind: size for kind, size in kinds if kind is not None}
        told = values.get(Signal.ATTESTATION)
        if isinstance(told, Series):
            tracker.attested = {name: text for labels in told.values for name, text in labels}

    def _running_requests(self, instance: Instance, now: datetime) -> int | None:
        values = self.read(instance, (Signal.RUNNING, Signal.WAITING), now).values
        counts = [v.total for v in values.values() if isinstance(v, Series)]
        return round(sum(counts)) if len(counts) == len(values) and counts else None

    def read(self, instance: Instance, signals: Sequence[Signal], now: datetime) -> Scrape:
        """Signals from the instance's own page."""
        artifact = self._catalog.artifact(instance.digest)
        engine = self._catalog.engine(instance.digest)
        known = engine.metrics(artifact.runtime.engine.version)
        target = Target(instance.id, self.base_url(instance) + engine.metrics_path(), {})
        return self._source.read(target, references(signals, known), now.timestamp())


def _grid(info: Value | None) -> tuple[int, ...] | None:
    """The sizes that the engine itself reports; None: it cannot say."""
    if not isinstance(info, Series):
        return None
    for labels in info.values:
        sizes = dict(labels).get("sizes")
        if sizes is not None:
            return _sizes(sizes)
    return None


def _captured(tracker: _Tracker) -> tuple[int, ...] | None:
    """The grid: as the log says that it was captured, else as the engine's page has it."""
    told = tracker.facts.resolved.get("graph_sizes")
    return tracker.grid if told is None else _sizes(told)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split(",") if size not in ("", NO_SIZES))


_HELD: Mapping[str | None, BucketKind] = {"true": BucketKind.DECODE, "false": BucketKind.MIXED}
"""What a step held, by its label ``pure_decode``; any other value: unknown."""


def step_counts(steps: Series) -> StepCounts:
    """Of the engine's steps, those that replayed a graph."""
    found: dict[tuple[BucketKind | None, int], float] = {}
    for labels, count in steps.values.items():
        label = dict(labels)
        size = label.get("bucket", "")
        if label.get("mode", "NONE") != "NONE" and size.isdigit():
            key = (_HELD.get(label.get("pure_decode")), int(size))
            found[key] = found.get(key, 0.0) + count
    return found


def _with_late_work(known: Mapping[str, Any], facts: LogFacts) -> Mapping[str, Any]:
    """Of an instance that is ready: what it compiled or captured since, all of it counted and the
    latest named, since gates ask what is new."""
    before = known.get("work_before_ready")
    late = () if before is None else facts.late_work[before:]
    # A log that is read anew is not read to its end at once.
    if len(late) <= known.get("late_work_unnamed", 0) + len(known.get("late_work", ())):
        return known
    named = late[-_LATE_NAMED:]
    return {**known, "late_work": [*named], "late_work_unnamed": len(late) - len(named)}


def _facts(tracker: _Tracker) -> dict[str, Any]:
    facts, captured = tracker.facts, _captured(tracker)
    found: dict[str, Any] = {
        "stage_seconds": dict(facts.stage_seconds),
        "graph_bytes": facts.graph_bytes,
        "weights_bytes": facts.weights_bytes,
        "kv_cache_bytes": facts.kv_cache_bytes,
        "kv_cache_tokens": facts.kv_cache_tokens,
        "max_concurrency": facts.max_concurrency,
        "memory_bytes": tracker.memory_bytes or None,
        "captured_sizes": None if captured is None else list(captured),
        "attested": tracker.attested and {**tracker.attested, **facts.resolved},
        "resolved": dict(facts.resolved),
        "resolved_by": dict(facts.resolved_by),
        "warnings": list(facts.warnings[:20]),
        "work_before_ready": len(facts.late_work),
    }
    if tracker.warmup is not None:
        found["warmup"] = [
            {
                "kind": t.kind.value,
                "bucket": t.bucket,
                "repeat": t.repeat,
                "seconds": t.seconds,
                "graph": t.graph,
                "replayed": t.replayed,
            }
            for t in tracker.warmup.progress().times
        ]
    return found
