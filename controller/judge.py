"""Judging: scrape the arms, take exact differences, ask every gate, fold to a verdict.

Hard gates listen to events and are asked at every tick; the others look once an interval.
What each look saw and made of it is recorded in the commit of what is decided on it, and only
then does it count: a look whose commit fails is taken again, from where the last one ended. So
the records alone say every verdict again (:mod:`canaryctl.controller.replay`), and a controller
that starts again goes on with the same evidence; only the window under way is lost.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from canaryctl.common.metrics import AnySignal, Signal, references
from canaryctl.controller import likeness
from canaryctl.controller.catalog import Catalog
from canaryctl.controller.declared import declared, start_facts
from canaryctl.controller.likeness import Trail, follow
from canaryctl.controller.model import (
    Evidence,
    GateRecord,
    Instance,
    LookRecord,
    Measurement,
    Release,
    ReleaseKind,
)
from canaryctl.controller.parity import ParityWatch, Standing
from canaryctl.controller.plan import HARD_GATES, Plan
from canaryctl.controller.saturation import Driven, SaturationWatch
from canaryctl.controller.states import Phase
from canaryctl.controller.store import Store
from canaryctl.controller.view import InstanceView, PoolView
from canaryctl.gates.base import Event, Gate, GateContext, Look, State
from canaryctl.gates.capacity import MAX_CONCURRENCY, MaxConcurrencyGate
from canaryctl.gates.deltas import awaited, next_start, readable, window
from canaryctl.gates.fold import fold
from canaryctl.gates.history import AaHistory
from canaryctl.gates.outcome import GateResult, Outcome, Verdict, unseen
from canaryctl.gates.parity import OUTPUT_PARITY
from canaryctl.gates.records import state_digest
from canaryctl.gates.registry import (
    has_fixed_limit,
    needs_equal_load,
    spends_alpha,
    undecidable,
)
from canaryctl.gates.samples import ArmWindow, Histogram, HistogramSet, Missing, Scrape, Series
from canaryctl.gates.sources.base import SampleSource, Target
from canaryctl.gates.spec import GateSpec
from canaryctl.gates.step_time import STEP_TIME
from canaryctl.gates.terms import GateTerms

WARM_LOOK_S = 1.0
"""Before traffic there is nothing to wait an interval for: two scrapes this far apart."""

PROGRESS_DEFAULT = GateSpec(name="progress", max_seconds="10s")
_IMPLICIT = {
    "engine_exit": GateSpec(name="engine_exit", max=0),
    "oom": GateSpec(name="oom", max=0),
    "progress": PROGRESS_DEFAULT,
}


@dataclass(frozen=True, slots=True)
class Judgement:
    """``records``, ``look`` and ``evidence`` are to be stored in the same commit as what is
    decided on them; then :meth:`Judge.recorded` is to be told."""

    verdict: Verdict
    records: tuple[GateRecord, ...] = ()
    look: LookRecord | None = None  # with the same results as ``records``
    evidence: tuple[Evidence, ...] = ()
    changes: tuple[str, ...] = ()  # gates whose outcome is another than before, in words
    looked: bool = False  # a whole look was taken at this tick
    blind: str | None = None  # why the gates see nothing of an arm at the moment


@dataclass(slots=True)
class _Memory:
    """What is kept between two looks at one release."""

    release: str
    promote_on: str
    gates: dict[str, Gate]
    states: dict[str, State]
    results: dict[str, GateResult]
    scrapes: dict[str, Scrape] = field(default_factory=dict)  # where the next window begins
    since: float = 0.0  # samples of before show the controller's own requests
    asked_at: datetime | None = None
    awaits: bool = False  # when last asked, an instance had no new sample yet
    blind: str | None = None  # why an arm could not be read when last asked
    trail: Trail = field(default_factory=Trail)
    looks: int = 0
    step: int = -1
    step_requests: int = 0

    def copy(self) -> "_Memory":
        return replace(self, states=dict(self.states), results=dict(self.results))


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


def gate_terms(release: Release, plan: Plan, history: AaHistory | None = None) -> GateTerms:
    """What the release is judged by. It is fixed when the release is recorded: whatever happens
    later, the gates share one α."""
    specs = gate_specs(release, plan)
    context = gate_context(release, plan, specs, history)
    return GateTerms(specs, context, release.document.rollout.promote_on.value)


def gate_context(
    release: Release,
    plan: Plan,
    specs: Sequence[GateSpec],
    history: AaHistory | None = None,
) -> GateContext:
    """What holds for all gates of the release: α is shared by those that spend it."""
    return GateContext(
        gates_total=max(1, sum(spends_alpha(spec) for spec in specs)),
        detectable=release.document.rollout.detectable,
        interval_s=release.document.rollout.interval,
        canary_share=plan.deciding_share,
        has_baseline=plan.compares,
        history=history,
    )


def undecidable_gates(release: Release, plan: Plan, terms: GateTerms) -> dict[str, str]:
    """Gates that could never support promotion, known before anything is started, and why."""
    specs, context = terms.specs, terms.context
    found = {s.name: why for s in specs if (why := undecidable(s, context)) is not None}
    if plan.compares and all(step.unequal_load for step in plan.steps):
        reasons = {step.unequal_load for step in plan.steps if step.unequal_load}
        why = f"no step compares like with like ({min(reasons)})"
        found |= {s.name: why for s in specs if needs_equal_load(s)}
    if plan.eager_baseline:
        why = (
            "the baseline of a first release is its eager variant, which replays no graph; declare "
            "the gate from the next release on"
        )
        found |= {s.name: why for s in specs if s.name == STEP_TIME}
    return found


def _needs_baseline(spec: GateSpec) -> bool:
    return spec.max_regression is not None and not has_fixed_limit(spec)


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
        parity: ParityWatch | None = None,
        saturation: SaturationWatch | None = None,
    ) -> None:
        """``parity``, ``saturation``: None: nobody measures it, and the gate stays inconclusive."""
        self._parity, self._saturation = parity, saturation
        self._store, self._source, self._catalog = store, source, catalog
        self._metrics_url, self._labels, self._executor = metrics_url, labels, executor
        self._memory: _Memory | None = None  # of the one active release, as recorded
        self._latest: _Memory | None = None  # with what was judged last, recorded or not

    def looks(self, release: str) -> int:
        memory = self._latest
        return memory.looks if memory and memory.release == release else 0

    def step_requests(self, release: Release) -> int:
        memory = self._latest
        if memory is None or (memory.release, memory.step) != (release.id, release.step):
            return 0
        return memory.step_requests

    @property
    def driven(self) -> str | None:
        """The instance that is being driven to its limit; None: none is."""
        return self._saturation.driven if self._saturation is not None else None

    def recorded(self) -> None:
        """What was judged last is in the store, or changed nothing that belongs there."""
        self._memory = self._latest

    def close(self) -> None:
        """Send no more requests: another controller may be about to."""
        if self._saturation is not None:
            self._saturation.stop()

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
        memory = self._latest = self._remembered(release, plan).copy()
        if memory.step != release.step:
            memory.step, memory.step_requests = release.step, 0
        beside = plan.baseline_in(release)
        canary = [m for m in pools.get(release.pool, PoolView()).members if m.serving]
        baseline = [m for m in pools.get(beside, PoolView()).members if m.serving] if beside else []
        parity = self._measured(memory, release, plan, pools)
        driven = Driven() if parity.pending else self._driven(memory, release, plan, pools, now)
        memory.since = max(memory.since, driven.ended_at or 0.0)
        base = Look(
            at=now.timestamp(),
            canary=ArmWindow((), len(canary)),
            baseline=ArmWindow((), len(baseline)) if plan.compares else None,
            canary_events=tuple(events),
            progress_checks=progress_checks,
            parity=parity.found,
            saturation=driven.found,
        )
        evidence: tuple[Evidence, ...] = ()
        looked = False
        look = base
        # Requests that measure something come before the first window, as those of warm-up do.
        measuring = parity.pending or driven.pending
        if canary and not measuring and self._due(memory, release, now):
            look, evidence, looked = self._look(memory, base, release, plan, canary, baseline, now)
        records, changes = [], []
        for name, gate in memory.gates.items():
            if not (gate.hard or looked):
                continue
            before = memory.results.get(name)
            state, result = gate.look(memory.states[name], look)
            memory.results[name] = result
            # That nothing is known yet is no news.
            outcome = before.outcome if before else Outcome.INCONCLUSIVE
            if outcome is not result.outcome:
                changes.append(f"{name} is {result.outcome.value}: {result.reason}")
            elif not looked:
                continue  # nothing to record, so that nothing may count
            memory.states[name] = state
            records.append(GateRecord(release.id, name, now, state, result))
        verdict = fold(
            [memory.results.get(name) or unseen(name) for name in memory.gates],
            required=tuple(memory.gates),
            promote_on=memory.promote_on,
        )
        return Judgement(
            verdict,
            tuple(records),
            _look_record(release.id, now, look, verdict, records) if records else None,
            evidence,
            tuple(changes),
            looked,
            memory.blind,
        )

    def _measured(
        self, memory: _Memory, release: Release, plan: Plan, pools: Mapping[str, PoolView]
    ) -> Standing:
        if self._parity is None or OUTPUT_PARITY not in memory.gates:
            return Standing()
        return self._parity.look(release, plan, pools)

    def _driven(
        self,
        memory: _Memory,
        release: Release,
        plan: Plan,
        pools: Mapping[str, PoolView],
        now: datetime,
    ) -> Driven:
        """What its state has recorded is not measured, nor counted, again."""
        gate = memory.gates.get(MAX_CONCURRENCY)
        if self._saturation is None or not isinstance(gate, MaxConcurrencyGate):
            return Driven()
        if not gate.awaits_driving(memory.states[MAX_CONCURRENCY]):
            return Driven()
        return self._saturation.look(release, plan, pools, gate, now)

    def _remembered(self, release: Release, plan: Plan) -> _Memory:
        """As recorded; read from the store when this judge has recorded nothing yet."""
        memory = self._memory
        if memory is None or memory.release != release.id:
            terms = self._store.gate_terms(release.id) or gate_terms(release, plan)
            gates = terms.gates()
            memory = _Memory(
                release=release.id,
                promote_on=terms.promote_on,
                gates=gates,
                states={name: gate.start() for name, gate in gates.items()},
                results={},
            )
            for record in self._store.gate_records(release.id):
                if record.gate in gates:
                    memory.states[record.gate] = dict(record.state)
                    memory.results[record.gate] = record.result
            self._memory = memory
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
    ) -> tuple[Look, tuple[Evidence, ...], bool]:
        members = {m.instance.id: m for m in (*canary, *baseline)}
        scrapes = self._scrape(release, list(members.values()), memory, now)
        before = memory.scrapes
        early = any(scrape.at < memory.since for scrape in scrapes.values())
        memory.asked_at, memory.awaits = now, early or bool(awaited(before, scrapes))
        arms = {"canary": canary, "baseline": baseline if plan.compares else ()}
        memory.blind = _blind(arms, scrapes)
        if memory.awaits:
            return base, (), False
        memory.scrapes = next_start(before, scrapes)
        evidence = tuple(
            Evidence(release.id, now, s.instance, s.source, s.raw, _values(s))
            for s in scrapes.values()
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
            parity=base.parity,
            saturation=base.saturation,
            declared=self._declared(release),
            start={m.instance.id: start_facts(m.instance) for m in members.values()},
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

    def _declared(self, release: Release) -> Mapping[str, str]:
        runtime = self._catalog.artifact(release.digest).runtime
        return declared(runtime, self._catalog.engine(release.digest).resolved_grid(runtime))

    def _limits(self, members: Sequence[InstanceView]) -> Mapping[str, int] | None:
        if not members:
            return None
        limits = self._catalog.artifact(members[0].instance.digest).runtime.limits
        return {
            "max_num_seqs": limits.max_num_seqs,
            "max_num_batched_tokens": limits.max_num_batched_tokens,
            "max_model_len": limits.max_model_len,
        }


def _look_record(
    release: str, now: datetime, look: Look, verdict: Verdict, records: Sequence[GateRecord]
) -> LookRecord:
    return LookRecord(
        release=release,
        seq=0,  # the store numbers it
        at=now,
        look=look,
        outcome=verdict.outcome,
        promotable=verdict.promotable,
        measurements=tuple(
            Measurement(r.gate, r.result, state_digest(dict(r.state))) for r in records
        ),
    )


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
