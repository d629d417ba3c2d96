"""Judging: scrape the arms, take exact differences, ask every gate, fold to a verdict.

Hard gates listen to events and are asked at every tick; the others look once an interval.
What each look saw is kept as evidence. Gate states live in the store, so a controller that
starts again goes on with the same evidence; only the window under way is lost.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from canaryctl.common.metrics import AnySignal, Signal, references
from canaryctl.controller import likeness
from canaryctl.controller.catalog import Catalog
from canaryctl.controller.likeness import Trail, follow
from canaryctl.controller.model import GateRecord, Instance, Release, ReleaseKind
from canaryctl.controller.plan import HARD_GATES, Plan
from canaryctl.controller.states import Phase
from canaryctl.controller.store import Store
from canaryctl.controller.view import InstanceView, PoolView
from canaryctl.gates.base import Event, Gate, GateContext, Look, State
from canaryctl.gates.deltas import awaited, next_start, readable, window
from canaryctl.gates.fold import fold
from canaryctl.gates.outcome import GateResult, Outcome, Verdict
from canaryctl.gates.registry import build, compares_latency, spends_alpha, undecidable
from canaryctl.gates.samples import ArmWindow, Histogram, HistogramSet, Missing, Scrape, Series
from canaryctl.gates.sources.base import SampleSource, Target
from canaryctl.gates.spec import GateSpec

WARM_LOOK_S = 1.0
"""Before traffic there is nothing to wait an interval for: two scrapes this far apart."""

PROGRESS_DEFAULT = GateSpec(name="progress", max_seconds="10s")
_IMPLICIT = {
    "engine_exit": GateSpec(name="engine_exit", max=0),
    "oom": GateSpec(name="oom", max=0),
    "progress": PROGRESS_DEFAULT,
}


@dataclass(frozen=True, slots=True)
class EvidenceRow:
    """One scrape that a look used."""

    instance: str
    at: datetime
    source: str
    raw: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Judgement:
    """``records`` are to be stored in the same commit as what is decided on them."""

    verdict: Verdict
    records: tuple[GateRecord, ...] = ()
    evidence: tuple[EvidenceRow, ...] = ()
    changes: tuple[str, ...] = ()  # gates whose outcome is another than before, in words
    looked: bool = False  # a whole look was taken at this tick
    blind: str | None = None  # why the gates see nothing of an arm at the moment


@dataclass(slots=True)
class _Memory:
    """What is kept between two looks at one release."""

    gates: dict[str, Gate]
    states: dict[str, State]
    results: dict[str, GateResult]
    scrapes: dict[str, Scrape] = field(default_factory=dict)  # where the next window begins
    asked_at: datetime | None = None
    awaits: bool = False  # when last asked, an instance had no new sample yet
    blind: str | None = None  # why an arm could not be read when last asked
    trail: Trail = field(default_factory=Trail)
    looks: int = 0
    step: int = -1
    step_requests: int = 0


def gate_specs(release: Release, plan: Plan) -> tuple[GateSpec, ...]:
    """The gates that judge this release: those declared that can apply, and every hard one."""
    declared = release.document.gates
    if release.kind is ReleaseKind.ROLLBACK:
        specs = [spec for spec in declared if spec.name in HARD_GATES]
    elif plan.compares:
        specs = list(declared)
    else:
        specs = [spec for spec in declared if not _needs_baseline(spec)]
    names = {spec.name for spec in specs}
    return (*specs, *(spec for name, spec in _IMPLICIT.items() if name not in names))


def gate_context(release: Release, plan: Plan, specs: Sequence[GateSpec]) -> GateContext:
    """What holds for all gates of the release: α is shared by those that spend it."""
    return GateContext(
        gates_total=max(1, sum(spends_alpha(spec) for spec in specs)),
        detectable=release.document.rollout.detectable,
        interval_s=release.document.rollout.interval,
        canary_share=plan.deciding_share,
        has_baseline=plan.compares,
    )


def undecidable_gates(release: Release, plan: Plan) -> tuple[str, ...]:
    """Gates that could never support promotion, known before anything is started."""
    specs = gate_specs(release, plan)
    context = gate_context(release, plan, specs)
    found = [f"{s.name}: {why}" for s in specs if (why := undecidable(s, context)) is not None]
    if plan.compares and all(step.unequal_load for step in plan.steps):
        compared = [s.name for s in specs if compares_latency(s)]
        reasons = {step.unequal_load for step in plan.steps if step.unequal_load}
        found += [f"{name}: no step compares like with like ({min(reasons)})" for name in compared]
    return tuple(found)


def _needs_baseline(spec: GateSpec) -> bool:
    return spec.max_regression is not None and spec.max_ratio is None and spec.max_seconds is None


class Judge:
    """The gates of a service's release. ``source``: release → where its samples come from.
    ``metrics_url``: an instance's metrics page. ``labels``: what a store of samples knows an
    instance by, while the release is active."""

    def __init__(
        self,
        store: Store,
        source: Callable[[Release], SampleSource],
        catalog: Catalog,
        metrics_url: Callable[[InstanceView], str],
        labels: Callable[[Instance, Release], Mapping[str, str]],
        executor: Executor,
    ) -> None:
        self._store, self._source, self._catalog = store, source, catalog
        self._metrics_url, self._labels, self._executor = metrics_url, labels, executor
        self._memories: dict[str, _Memory] = {}

    def looks(self, release: str) -> int:
        memory = self._memories.get(release)
        return memory.looks if memory else 0

    def step_requests(self, release: Release) -> int:
        memory = self._memories.get(release.id)
        return memory.step_requests if memory and memory.step == release.step else 0

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
        memory = self._memory(release, plan)
        if memory.step != release.step:
            memory.step, memory.step_requests = release.step, 0
        canary = [m for m in pools.get(release.pool, PoolView()).members if m.serving]
        baseline = (
            [m for m in pools.get(plan.baseline_pool, PoolView()).members if m.serving]
            if plan.baseline_pool
            else []
        )
        base = Look(
            at=now.timestamp(),
            canary=ArmWindow((), len(canary)),
            baseline=ArmWindow((), len(baseline)) if plan.compares else None,
            canary_events=tuple(events),
            progress_checks=progress_checks,
        )
        evidence: tuple[EvidenceRow, ...] = ()
        looked = False
        look = base
        if canary and self._due(memory, release, now):
            look, evidence, looked = self._look(memory, base, release, plan, canary, baseline, now)
        records, changes = [], []
        for name, gate in memory.gates.items():
            if not (gate.hard or looked):
                continue
            before = memory.results.get(name)
            state, result = gate.look(memory.states[name], look)
            memory.states[name], memory.results[name] = state, result
            # That nothing is known yet is no news.
            outcome = before.outcome if before else Outcome.INCONCLUSIVE
            if outcome is not result.outcome:
                changes.append(f"{name} is {result.outcome.value}: {result.reason}")
            elif not looked:
                continue
            records.append(GateRecord(release.id, name, now, state, result))
        verdict = fold(
            [self._standing(memory, name) for name in memory.gates],
            required=tuple(memory.gates),
            promote_on=release.document.rollout.promote_on.value,
        )
        return Judgement(verdict, tuple(records), evidence, tuple(changes), looked, memory.blind)

    def _standing(self, memory: _Memory, name: str) -> GateResult:
        return memory.results.get(name) or GateResult(
            name, Outcome.INCONCLUSIVE, "not looked at yet"
        )

    def _memory(self, release: Release, plan: Plan) -> _Memory:
        memory = self._memories.get(release.id)
        if memory is None:
            specs = gate_specs(release, plan)
            context = gate_context(release, plan, specs)
            gates = {spec.name: build(spec, context) for spec in specs}
            memory = _Memory(
                gates=gates,
                states={name: gate.start() for name, gate in gates.items()},
                results={},
            )
            for record in self._store.gate_records(release.id):
                if record.gate in gates:
                    memory.states[record.gate] = dict(record.state)
                    memory.results[record.gate] = record.result
            self._memories = {release.id: memory}  # one active release a service
        return memory

    def _due(self, memory: _Memory, release: Release, now: datetime) -> bool:
        if memory.asked_at is None:
            return True
        interval = release.document.rollout.interval
        if release.phase is Phase.WARMING or memory.awaits:
            interval = min(interval, WARM_LOOK_S)
        return (now - memory.asked_at).total_seconds() >= interval

    def _look(
        self,
        memory: _Memory,
        base: Look,
        release: Release,
        plan: Plan,
        canary: Sequence[InstanceView],
        baseline: Sequence[InstanceView],
        now: datetime,
    ) -> tuple[Look, tuple[EvidenceRow, ...], bool]:
        members = {m.instance.id: m for m in (*canary, *baseline)}
        scrapes = self._scrape(release, list(members.values()), memory, now)
        before = memory.scrapes
        memory.asked_at, memory.awaits = now, bool(awaited(before, scrapes))
        arms = {"canary": canary, "baseline": baseline if plan.compares else ()}
        memory.blind = _blind(arms, scrapes)
        if memory.awaits:
            return base, (), False
        memory.scrapes = next_start(before, scrapes)
        evidence = tuple(
            EvidenceRow(s.instance, now, s.source, s.raw, _values(s)) for s in scrapes.values()
        )
        if not before:
            return base, evidence, False
        canary_window = window(before, scrapes, [m.instance.id for m in canary])
        if memory.blind is None and canary_window.deltas:
            memory.looks += 1
        baseline_window = (
            window(before, scrapes, [m.instance.id for m in baseline]) if plan.compares else None
        )
        answered = _requests(canary_window)
        memory.step_requests += answered
        memory.trail, unlike = follow(
            memory.trail, release, plan, before, canary_window, baseline_window, base.at
        )
        look = Look(
            at=base.at,
            canary=canary_window,
            baseline=baseline_window,
            unequal_load=unlike.load,
            unequal_prefix=unlike.prefix,
            weight=release.weight,
            canary_limits=self._limits(canary),
            baseline_limits=self._limits(baseline),
            canary_events=base.canary_events,
            progress_checks=base.progress_checks,
        )
        return look, evidence, True

    def _scrape(
        self,
        release: Release,
        members: Sequence[InstanceView],
        memory: _Memory,
        now: datetime,
    ) -> dict[str, Scrape]:
        wanted: set[AnySignal] = set(likeness.SIGNALS)
        wanted.update(*(gate.needs() for gate in memory.gates.values()))
        source = self._source(release)

        def read(member: InstanceView) -> Scrape:
            artifact = self._catalog.artifact(member.instance.digest)
            known = self._catalog.engine(artifact.digest).metrics(artifact.runtime.engine.version)
            target = Target(
                instance=member.instance.id,
                url=self._metrics_url(member),
                labels=self._labels(member.instance, release),
            )
            return source.read(target, references(wanted, known), now.timestamp())

        return {scrape.instance: scrape for scrape in self._executor.map(read, members)}

    def _limits(self, members: Sequence[InstanceView]) -> Mapping[str, int] | None:
        if not members:
            return None
        limits = self._catalog.artifact(members[0].instance.digest).runtime.limits
        return {
            "max_num_seqs": limits.max_num_seqs,
            "max_num_batched_tokens": limits.max_num_batched_tokens,
            "max_model_len": limits.max_model_len,
        }


def _requests(arm: ArmWindow) -> int:
    total = 0.0
    for delta in arm.deltas:
        value = delta.values.get(Signal.REQUESTS)
        if isinstance(value, Series):
            total += value.total
    return round(total)


def _blind(arms: Mapping[str, Sequence[InstanceView]], scrapes: Mapping[str, Scrape]) -> str | None:
    """Why no instance of an arm can be read, in the words of the first one."""
    for who, members in arms.items():
        read = [scrapes[member.instance.id] for member in members]
        if read and not any(readable(scrape) for scrape in read):
            reasons = [v.reason for v in read[0].values.values() if isinstance(v, Missing)]
            return f"{who} {read[0].instance}: {reasons[0]}"
    return None


def _values(scrape: Scrape) -> dict[str, Any]:
    """A readable digest of a scrape; the raw lines hold everything."""
    found: dict[str, Any] = {}
    for signal, value in scrape.values.items():
        if isinstance(value, Series):
            found[signal.value] = value.total
        elif isinstance(value, Histogram):
            found[signal.value] = {"count": value.count, "sum": value.sum}
        elif isinstance(value, HistogramSet):
            found[signal.value] = {"count": sum(h.count for h in value.histograms.values())}
        else:
            found[signal.value] = {"missing": value.reason}
    return found
