"""One tick of one service: observe → judge → decide → commit → reconcile.

The intent is committed before any effect, in the same transaction as the verdict it rests on.
The tick is re-entrant by construction: it starts from the store every time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

from canaryctl.common.errors import TemporaryError
from canaryctl.controller.catalog import Catalog
from canaryctl.controller.decide import Decision, decide
from canaryctl.controller.desired import desired
from canaryctl.controller.discovery import TargetsFile
from canaryctl.controller.errors import StaleWriteError
from canaryctl.controller.judge import Judge, Judgement, gate_specs
from canaryctl.controller.loads import StepLoads
from canaryctl.controller.model import (
    Fault,
    Instance,
    Lease,
    Release,
    ReleaseEvent,
    Service,
)
from canaryctl.controller.observe import Observer, Seen
from canaryctl.controller.plan import Plan, make_plan
from canaryctl.controller.progress import ProgressWatch
from canaryctl.controller.reconcile import Reconciler, Trouble, settled
from canaryctl.controller.states import FINAL, Phase
from canaryctl.controller.store import Store
from canaryctl.controller.view import InstanceView, LoadState, PoolView, View
from canaryctl.gates.base import Event
from canaryctl.runtimes.engines.base import EngineFault
from canaryctl.runtimes.progress import ProbeTarget
from canaryctl.runtimes.routers.base import Router

JUDGED = frozenset(
    {
        Phase.DEPLOYING,
        Phase.WARMING,
        Phase.PROGRESSING,
        Phase.PAUSED,
        Phase.PROMOTING,
        Phase.WATCHING,
    }
)
"""Gates live in every phase in which the canary runs."""

PROGRESS_S = 10.0
"""How long one token may take where the artifact does not say."""

Preflight = Callable[[Release, View], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Tick:
    """What one tick left behind."""

    release: Release | None
    settled: bool
    troubles: tuple[Trouble, ...] = ()
    wanted: Mapping[str, int] = field(default_factory=dict)  # weight by pool
    effective: Mapping[str, int] | None = None  # as the router reported; None: it did not say


@dataclass(slots=True)
class _Known:
    """Remembered between ticks; all of it is made anew after a restart."""

    preflight: dict[str, tuple[str, ...]] = field(default_factory=dict)
    progress: dict[str, ProgressWatch] = field(default_factory=dict)
    troubles: tuple[Trouble, ...] = ()


class ServiceController:
    """Acts on one service under its lease."""

    def __init__(
        self,
        service: str,
        store: Store,
        catalog: Catalog,
        observer: Observer,
        judge: Judge,
        reconciler: Reconciler,
        router: Router,
        loads: StepLoads,
        preflight: Preflight,
        watch: Callable[..., ProgressWatch] = ProgressWatch,
        targets: TargetsFile | None = None,
    ) -> None:
        """``targets``: what tells Prometheus of the instances; None: nobody does."""
        self.service = service
        self._store, self._catalog = store, catalog
        self._observer, self._judge, self._reconciler = observer, judge, reconciler
        self._router, self._loads = router, loads
        self._preflight, self._watch, self._targets = preflight, watch, targets
        self._known = _Known()

    def tick(self, now: datetime, fence: Lease) -> Tick:
        """Raises FencedError when the lease is lost; every other trouble is in the result."""
        service = self._store.service(self.service)
        troubles = self._ensure_router(service, fence)
        release = self._store.active_release(self.service)
        plan = make_plan(release) if release else None
        seen = self._observe(release, plan, fence, now)
        view = self._view(service, release, plan, seen, now)
        judgement = self._judged(view, release, plan)
        if judgement is not None and release is not None:
            view = replace(
                view,
                verdict=judgement.verdict,
                looked=self._judge.looks(release.id) > 0,
                blind=judgement.blind,
                step_requests=self._judge.step_requests(release),
            )
        try:
            view = self._decide(view, judgement, fence)
        except StaleWriteError:
            # Another writer was first: nothing was decided, and the next tick reads anew.
            return Tick(release, False)
        return self._act(view, troubles, fence)

    # Observe

    def _ensure_router(self, service: Service, fence: Lease) -> tuple[Trouble, ...]:
        """A release is decided, and engines are looked after, whether the router runs or not."""
        try:
            self._router.ensure(service.name, service.port, fence.token)
        except TemporaryError as error:
            return (Trouble("router", str(error)),)
        return ()

    def _observe(
        self, release: Release | None, plan: Plan | None, fence: Lease, now: datetime
    ) -> tuple[Seen, ...]:
        instances = self._store.instances(service=self.service, live_only=True)
        seen = self._observer.observe(instances, now)
        for before, item in zip(instances, seen, strict=True):
            if item.view.instance != before:
                self._store.update_instance(item.view.instance, fence=fence, now=now)
        if release is not None and plan is not None and release.phase in JUDGED:
            self._progress(release, plan, seen, now)
            for fault in self._faults(release, seen, now):
                self._store.add_fault(fault, fence=fence)
        return seen

    def _progress(self, release: Release, plan: Plan, seen: Sequence[Seen], now: datetime) -> None:
        """Whether every warm instance of both arms generates, again and again."""
        if release.id not in self._known.progress:
            spec = next(s for s in gate_specs(release, plan) if s.name == "progress")
            timeout_s = spec.max_seconds or PROGRESS_S
            watch = self._watch(interval_s=min(PROGRESS_S, timeout_s) / 2, timeout_s=timeout_s)
            self._known.progress = {release.id: watch}
        self._known.progress[release.id].look(
            {
                item.view.instance.id: ProbeTarget(
                    self._observer.base_url(item.view.instance),
                    self._catalog.engine(item.view.instance.digest).model_name(
                        self._catalog.artifact(item.view.instance.digest).runtime
                    ),
                    partial(self._observer.first_tokens, item.view.instance, now),
                )
                for item in seen
                # One that is driven to its limit has no room for one more.
                if item.view.serving and item.view.instance.id != self._judge.driven
            },
            now,
        )

    def _faults(self, release: Release, seen: Sequence[Seen], now: datetime) -> list[Fault]:
        faults = []
        for item in seen:
            instance = item.view.instance
            if instance.pool != release.pool:
                continue
            faults += [Fault(release.id, instance.id, k, now, text) for k, text in item.faults]
            stuck = self._known.progress[release.id].stuck(instance.id)
            if stuck and item.view.serving:
                faults.append(Fault(release.id, instance.id, EngineFault.NO_PROGRESS, now, stuck))
        return faults

    def _view(
        self,
        service: Service,
        release: Release | None,
        plan: Plan | None,
        seen: Sequence[Seen],
        now: datetime,
    ) -> View:
        pools: dict[str, list[InstanceView]] = {}
        for item in seen:
            pools.setdefault(item.view.instance.pool, []).append(item.view)
        view = View(
            now=now,
            service=service,
            release=release,
            plan=plan,
            pools={name: PoolView(tuple(members)) for name, members in pools.items()},
            effective=self._router.effective_weights(service.name),
        )
        if release is None or plan is None:
            return view
        if release.phase is Phase.PREFLIGHT and release.id not in self._known.preflight:
            self._known.preflight = {release.id: self._preflight(release, view)}
        return replace(
            view,
            requests=self._store.pending_requests(release.id),
            preflight_faults=self._known.preflight.get(release.id),
            load=self._load(release, plan, view),
        )

    def _load(self, release: Release, plan: Plan, view: View) -> LoadState:
        """The requests of a step with ``load`` go to both arms alike, beside the router."""
        step = plan.steps[min(release.step, len(plan.steps) - 1)].step
        if release.phase is not Phase.PROGRESSING or step.load is None:
            self._loads.stop(release.id)
            return LoadState()
        if release.step_at is None:
            return LoadState()
        planned = plan.steps[release.step]
        arms = {release.pool: planned.canary_replicas}
        if plan.baseline_pool is not None:
            arms[plan.baseline_pool] = planned.baseline_replicas
        if any(view.pool(pool).ready < replicas for pool, replicas in arms.items()):
            # Requests to one arm alone would compare nothing, and fill one cache alone.
            self._loads.stop(release.id)
            return LoadState()
        urls = tuple(
            self._observer.base_url(member.instance)
            for pool in arms
            for member in view.pool(pool).members
            if member.serving
        )
        return self._loads.state(release, step, urls)

    # Judge and decide

    def _judged(self, view: View, release: Release | None, plan: Plan | None) -> Judgement | None:
        if release is None or plan is None or release.phase not in JUDGED:
            return None
        events = [
            Event(fault.kind.value, fault.instance, fault.at.timestamp(), fault.detail)
            for fault in self._store.faults(release.id)
        ]
        watch = self._known.progress[release.id]
        checks = sum(watch.good(m.instance.id) for m in view.pool(release.pool).members)
        return self._judge.judge(
            release, plan, view.pools, events=events, progress_checks=checks, now=view.now
        )

    def _decide(self, view: View, judgement: Judgement | None, fence: Lease) -> View:
        release = view.release
        if release is None:
            return view
        eager = self._catalog.eager_digest(release.digest)
        decision = decide(view, desired(view, eager))
        if decision is None:
            return view
        gate_events = _gate_events(release, judgement, view.now)
        rests_on = judgement and (judgement.records or judgement.evidence)
        if not (decision.changes(release) or gate_events or rests_on):
            self._judge.recorded()
            return view
        after = self._commit(decision, gate_events, judgement, fence, view.now)
        self._judge.recorded()
        return replace(view, release=after, service=self._store.service(self.service))

    def _commit(
        self,
        decision: Decision,
        gate_events: tuple[ReleaseEvent, ...],
        judgement: Judgement | None,
        fence: Lease,
        now: datetime,
    ) -> Release:
        stable = decision.stable
        return self._store.commit(
            decision.release,
            (*gate_events, *decision.events),
            fence=fence,
            now=now,
            gates=judgement.records if judgement else (),
            look=judgement.look if judgement else None,
            evidence=judgement.evidence if judgement else (),
            answers=decision.answers,
            stable=(stable.digest, stable.pool, stable.replicas, stable.release)
            if stable
            else None,
        )

    # Act

    def _act(self, view: View, troubles: tuple[Trouble, ...], fence: Lease) -> Tick:
        release = view.release
        eager = self._catalog.eager_digest(release.digest) if release else None
        wanted = desired(view, eager)
        troubles += self._reconciler.reconcile(wanted, view, self._release_of, fence)
        troubles += self._publish(view)
        self._tell(release, troubles, fence, view.now)
        done = release is None or release.phase in FINAL
        return Tick(
            release,
            done and settled(wanted, view),
            troubles,
            wanted=wanted.weights,
            effective=view.effective,
        )

    def _publish(self, view: View) -> tuple[Trouble, ...]:
        """Tell Prometheus what runs."""
        if self._targets is None:
            return ()
        active = view.release is not None and view.release.phase not in FINAL
        members = [m.instance for pool in view.pools.values() for m in pool.members]
        seen = (active, frozenset((i.id, i.pool, i.state) for i in members))
        try:
            self._targets.update(seen, view.now)
        except TemporaryError as error:
            return (Trouble("the discovery file", str(error)),)
        return ()

    def _tell(
        self,
        release: Release | None,
        troubles: tuple[Trouble, ...],
        fence: Lease,
        now: datetime,
    ) -> None:
        """A trouble is told once, not at every tick that it lasts."""
        new = [t for t in troubles if t not in self._known.troubles]
        self._known.troubles = troubles
        if release is None or release.phase in FINAL or not new:
            return
        events = tuple(
            ReleaseEvent(release.id, 0, now, "effect", f"{t.what}: {t.why}") for t in new
        )
        self._store.commit(release, events, fence=fence, now=now)

    def _release_of(self, pool: str) -> Release:
        return release_of(self._store, pool)

    def close(self) -> None:
        self._judge.close()
        self._observer.close()
        self._loads.close()


def _gate_events(
    release: Release, judgement: Judgement | None, now: datetime
) -> tuple[ReleaseEvent, ...]:
    if judgement is None:
        return ()
    return tuple(ReleaseEvent(release.id, 0, now, "gate", change) for change in judgement.changes)


def release_of(store: Store, pool: str) -> Release:
    """The release whose document holds a pool's secrets, drain and stage deadlines: the one that
    made it, or, of a fresh baseline, the one that made the stable pool that it stands beside."""
    release = store.release(pool.split(".", 1)[0])
    if pool == release.fresh_pool and release.previous_pool is not None:
        return release_of(store, release.previous_pool)
    return release


def stage_deadlines(store: Store) -> Callable[[Instance], Mapping[str, float]]:
    """Instance → seconds for each stage, from the release that made its pool."""

    def allowed(instance: Instance) -> Mapping[str, float]:
        limits = release_of(store, instance.pool).document.rollout.stage_deadlines
        return {
            "load": limits.load,
            "compile": limits.compile,
            "capture": limits.capture,
            "warm": limits.warm,
        }

    return allowed
