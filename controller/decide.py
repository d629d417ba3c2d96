"""Deciding: (view, wanted weights) → the next record of the release and its events. Pure.

Rules are tried in order and the first that has something to say wins, so that a failed gate
overrides a person's ``promote`` and both override the mere passing of time. Each rule says
which phases it is for and which race it settles.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from canaryctl.controller.artifact.schema import Baseline, OnInconclusive
from canaryctl.controller.desired import Desired
from canaryctl.controller.model import Release, ReleaseEvent, Verb
from canaryctl.controller.plan import HARD_GATES, Plan
from canaryctl.controller.rungs import best_rung, rungs
from canaryctl.controller.states import ACTIVE, FINAL, Phase, Trigger, advance
from canaryctl.controller.view import View
from canaryctl.gates.outcome import Outcome
from canaryctl.runtimes.engines.base import Stage

MIN_STEP_REQUESTS = 20
"""Requests that the canary must have answered at a step before the next one."""


BLIND = "the metrics cannot be read"
"""What a release holds for while its gates see nothing: no step and no promotion is blind."""

STEP_LOAD_REQUESTS = 200
"""The same for a step under generated load that does not say how many."""


@dataclass(frozen=True, slots=True)
class StableChange:
    """What becomes the service's stable runtime, in the same commit as the final phase."""

    digest: str
    pool: str
    replicas: int
    release: str | None  # that the runtime came with


@dataclass(frozen=True, slots=True)
class Decision:
    """``release`` carries the revision that was decided on; the store refuses a stale one."""

    release: Release
    events: tuple[ReleaseEvent, ...] = ()
    answers: Mapping[int, str] = field(default_factory=dict)
    stable: StableChange | None = None

    def changes(self, before: Release) -> bool:
        return bool(self.events or self.answers) or self.release != before


@dataclass(frozen=True, slots=True)
class Case:
    """One release at one tick."""

    release: Release
    plan: Plan
    view: View
    desired: Desired

    def move(
        self, trigger: Trigger, message: str, *, actor: str = "controller", **changes: Any
    ) -> Decision:
        """The decision to take ``trigger``, with its event."""
        phase = advance(self.release.phase, trigger)
        now = self.view.now
        after = replace(
            self.release,
            phase=phase,
            phase_at=now if phase is not self.release.phase else self.release.phase_at,
            finished_at=now if phase in FINAL else None,
            hold=None,
            **changes,
        )
        event = ReleaseEvent(
            release=self.release.id,
            seq=0,  # the store numbers
            at=now,
            kind="step" if trigger is Trigger.STEP else "phase",
            message=message,
            from_phase=self.release.phase,
            to_phase=phase,
            trigger=trigger,
            actor=actor,
            data={"step": after.step, "weight": after.weight},
        )
        return Decision(after, (event,))

    def roll_back(self, trigger: Trigger, reason: str, *, actor: str = "controller") -> Decision:
        """The failed verdict, the reason and the intent to return traffic are one record."""
        return self.move(trigger, reason, actor=actor, reason=reason, weight=0, step_at=None)

    def note(self, kind: str, message: str) -> ReleaseEvent:
        return ReleaseEvent(
            release=self.release.id, seq=0, at=self.view.now, kind=kind, message=message
        )

    def hold(self, why: str, detail: str = "") -> Decision:
        """Stay, and say what is waited for. The detail (numbers that move) makes no event."""
        words = f"{why}: {detail}" if detail else why
        if words == self.release.hold:
            return Decision(self.release)
        known = (self.release.hold or "").startswith(why)
        events = () if known else (self.note("hold", words),)
        return Decision(replace(self.release, hold=words), events)


Rule = Callable[[Case], Decision | None]


def decide(view: View, desired: Desired) -> Decision | None:
    """The next step of the service's release; None when no release is active."""
    release, plan = view.release, view.plan
    if release is None or plan is None or release.phase in FINAL:
        return None
    case = Case(release, plan, view, desired)
    for rule in RULES:
        decision = rule(case)
        if decision is not None:
            return decision
    return Decision(release)


_BEFORE_ROLLBACK = ACTIVE - {Phase.ROLLING_BACK}


def gate_failed(case: Case) -> Decision | None:
    """Any phase before the rollback. A failure overrides every request and every deadline."""
    verdict = case.view.verdict
    if case.release.phase not in _BEFORE_ROLLBACK or verdict is None or not verdict.failed:
        return None
    first = verdict.failed[0]
    trigger = Trigger.ENGINE_EXIT if first.name == "engine_exit" else Trigger.GATE_FAILED
    return case.roll_back(trigger, f"{first.name}: {first.reason}")


def canary_unready(case: Case) -> Decision | None:
    """Any phase before the rollback: a canary that can never become ready is not waited for."""
    if case.release.phase not in _BEFORE_ROLLBACK:
        return None
    fault = case.view.pool(case.release.pool).fault
    return case.roll_back(Trigger.GATE_FAILED, fault) if fault else None


def operator(case: Case) -> Decision | None:
    """What a person asked for, in the order of asking; each request is answered once."""
    for request in case.view.requests:
        decision = _answer(case, request.verb, request.actor, request.reason)
        answer = "done"
        if decision is None:
            answer = f"refused: the release is {case.release.phase.value}"
            decision = Decision(
                case.release,
                (case.note("operator", f"{request.verb.value} {answer}"),),
            )
        return replace(decision, answers={request.id: answer})
    return None


def _answer(case: Case, verb: Verb, actor: str, reason: str) -> Decision | None:
    phase = case.release.phase
    said = f"{verb.value} by {actor}" + (f": {reason}" if reason else "")
    if verb is Verb.ABORT and phase in _BEFORE_ROLLBACK:
        return case.roll_back(Trigger.ABORT, said, actor=actor)
    if verb is Verb.SUPERSEDE and phase in _BEFORE_ROLLBACK:
        return case.roll_back(Trigger.SUPERSEDE, said, actor=actor)
    if verb is Verb.PAUSE and phase is Phase.PROGRESSING:
        return case.move(Trigger.PAUSE, said, actor=actor)
    if verb is Verb.RESUME and phase is Phase.PAUSED:
        return _resume(case, said, actor)
    if verb is Verb.PROMOTE and phase in (Phase.PROGRESSING, Phase.PAUSED):
        return case.move(Trigger.PROMOTE, said, actor=actor, weight=100)
    return None


def _resume(case: Case, said: str, actor: str) -> Decision:
    """Resuming at a step that pauses by plan goes on to the next one."""
    if case.plan.steps[case.release.step].step.pause and _has_next(case):
        return case.move(Trigger.RESUME, said, actor=actor, **_next_step(case))
    return case.move(Trigger.RESUME, said, actor=actor)


def deadline(case: Case) -> Decision | None:
    """A release that is not decided ends by its policy, whatever else cannot be reached."""
    release = case.release
    before_all_traffic = _BEFORE_ROLLBACK - {Phase.WATCHING}
    if release.phase not in before_all_traffic or case.view.now < release.deadline_at:
        return None
    missing = case.view.verdict.missing if case.view.verdict else ()
    waited = "; ".join(missing) or release.hold or f"still {release.phase.value}"
    policy = release.document.rollout.on_inconclusive
    if policy is OnInconclusive.PROMOTE and release.phase is Phase.PROGRESSING:
        return case.move(
            Trigger.PROMOTE, f"deadline: undecided ({waited}); on_inconclusive: promote", weight=100
        )
    return case.roll_back(Trigger.DEADLINE, f"deadline: undecided at the deadline: {waited}")


def _pending(case: Case) -> Decision:
    wants_fresh = case.release.document.rollout.baseline is Baseline.FRESH
    if not wants_fresh or case.plan.fresh_baseline:
        return case.move(Trigger.START, "preflight begins")
    with_what = "its eager variant" if case.plan.eager_baseline else "nothing"
    return case.move(
        Trigger.START,
        f"preflight begins; baseline: fresh is for releases beside a stable runtime, and this "
        f"{case.release.kind.value} release is compared with {with_what}",
    )


def _preflight(case: Case) -> Decision:
    faults = case.view.preflight_faults
    if faults is None:
        return case.hold("preflight checks")
    if faults:
        return case.roll_back(Trigger.REFUSED, "preflight: " + "; ".join(faults))
    return case.move(Trigger.CHECKED, "preflight found no fault")


def _arms(case: Case, step: int) -> tuple[tuple[str, int], ...]:
    """The pools that the release itself starts, with the engines that the step needs of each."""
    planned = case.plan.steps[step]
    canary = (case.release.pool, planned.canary_replicas)
    if case.plan.own_baseline and case.plan.baseline_pool is not None:
        return (canary, (case.plan.baseline_pool, planned.baseline_replicas))
    return (canary,)


def _cold(case: Case, step: int) -> str | None:
    """Which of them is not whole and warm yet, in words."""
    for pool, replicas in _arms(case, step):
        ready = case.view.pool(pool).ready
        if ready < replicas:
            return f"{ready} of {replicas} instances of {pool} are warm"
    return None


def _deploying(case: Case) -> Decision:
    """The model is loaded on every canary instance of the first step (and the baseline's)."""
    for pool, replicas in _arms(case, 0):
        members = case.view.pool(pool).members
        loaded = all(Stage.LOADED in member.instance.stages for member in members)
        if not loaded or len(members) < replicas:
            return case.hold(f"{pool} loads its model")
    return case.move(Trigger.DEPLOYED, "the model is loaded")


def _warming(case: Case) -> Decision:
    cold = _cold(case, 0)
    if cold:
        return case.hold(cold)
    if case.view.blind:
        return case.hold(BLIND, case.view.blind)
    if case.view.verdict is None or not case.view.looked:
        return case.hold("first look at the warm canary, before any traffic")
    first = case.plan.steps[0].step
    return case.move(
        Trigger.WARM,
        f"every required bucket is warm; step 1 of {len(case.plan.steps)}, weight {first.weight}",
        step=0,
        weight=first.weight,
        step_at=None,
    )


def _progressing(case: Case) -> Decision:
    """The current step first comes into force, then bakes, then gives way to the next."""
    release, view = case.release, case.view
    planned = case.plan.steps[release.step]
    if release.step_at is None:
        cold = _cold(case, release.step)
        if cold:
            return case.hold(cold)
        if not view.in_force(case.desired.weights):
            return case.hold(f"the router does not report weight {release.weight} yet")
        after = replace(release, step_at=view.now, hold=None)
        return Decision(
            after,
            (case.note("step", f"step {release.step + 1} in force, weight {release.weight}"),),
        )
    if view.blind:
        return case.hold(BLIND, view.blind)
    waiting = _step_waits(case)
    if waiting:
        return case.hold(waiting)
    if planned.step.pause:
        return case.move(Trigger.PAUSE, f"step {release.step + 1} asks for a person: resume it")
    if _has_next(case):
        change = _next_step(case)
        return case.move(
            Trigger.STEP,
            f"step {release.step + 2} of {len(case.plan.steps)}, weight {change['weight']}",
            **change,
        )
    return _promotion(case)


def _step_waits(case: Case) -> str | None:
    """What the current step still needs, in words."""
    release, view = case.release, case.view
    planned = case.plan.steps[release.step]
    if view.verdict is None:
        return "no look at the gates yet"
    unclean = [
        result
        for result in view.verdict.results
        if result.name in HARD_GATES and result.outcome is not Outcome.PASSED
    ]
    if unclean:
        return f"{unclean[0].name}: {unclean[0].reason}"
    if planned.step.load is not None:
        if view.load.fault:
            return f"the generated load failed: {view.load.fault}"
        wanted = planned.step.requests or STEP_LOAD_REQUESTS
        if view.step_requests < wanted:
            return f"the generated load runs: {wanted} requests to each engine"
    bake = timedelta(seconds=planned.step.bake)
    if release.step_at is not None and view.now < release.step_at + bake:
        return f"step {release.step + 1} bakes"
    if planned.step.weight > 0 and view.step_requests < MIN_STEP_REQUESTS:
        return (
            f"fewer than {MIN_STEP_REQUESTS} requests were answered by the canary at "
            f"step {release.step + 1}"
        )
    return None


def _promotion(case: Case) -> Decision:
    verdict = case.view.verdict
    if verdict is None:
        return case.hold("no look at the gates yet")
    if verdict.promotable:
        return case.move(
            Trigger.PROMOTE,
            f"every gate allows promotion ({case.release.document.rollout.promote_on.value})",
            weight=100,
        )
    return case.hold("promotion waits", "; ".join(verdict.missing))


def _has_next(case: Case) -> bool:
    return case.release.step + 1 < len(case.plan.steps)


def _next_step(case: Case) -> dict[str, Any]:
    step = case.release.step + 1
    return {"step": step, "weight": case.plan.steps[step].step.weight, "step_at": None}


def _paused(case: Case) -> Decision:
    return case.hold("paused: `canaryctl resume` or `canaryctl promote` goes on")


def _promoting(case: Case) -> Decision:
    ready = case.view.pool(case.release.pool).ready
    if ready < case.plan.replicas:
        return case.hold(f"{ready} of {case.plan.replicas} instances are warm")
    if not case.view.in_force({case.release.pool: 100}):
        return case.hold("the router does not report weight 100 yet")
    return case.move(Trigger.SERVING, "all traffic is on the canary; the previous stays warm")


def _watching(case: Case) -> Decision:
    release = case.release
    window = timedelta(seconds=release.document.rollout.rollback_window)
    if case.view.now < release.phase_at + window:
        return case.hold("watching until the rollback window ends")
    return replace(
        case.move(Trigger.DONE, f"{release.document.name}@{release.document.version} is stable"),
        stable=StableChange(release.digest, release.pool, case.plan.replicas, release.id),
    )


def _rolling_back(case: Case) -> Decision:
    """Traffic returns to the first healthy rung; with none, the best one serving is held."""
    release, view = case.release, case.view
    best = best_rung(release, view)
    if best is not None:
        if not view.in_force({best.pool: 100}):
            return case.hold(f"traffic returns to {best.rung.value}")
        return _restored(case, best.rung.value, best.pool, best.replicas)
    wait = timedelta(seconds=_rung_patience_s(release))
    if rungs(release, view) and view.now < release.phase_at + wait:
        return case.hold("no rung is healthy yet; whoever serves keeps serving")
    return _no_rung(case)


def _restored(case: Case, rung: str, pool: str, replicas: int) -> Decision:
    release = case.release
    stable = None
    if pool == release.eager_pool:
        target = case.desired.target(pool)
        if target is None:
            raise AssertionError(f"traffic is on {pool}, which is not desired")
        stable = StableChange(target.digest, pool, replicas, release.id)
    return replace(
        case.move(
            Trigger.RESTORED, f"{rung} serves all traffic: {release.reason}", rollback_target=rung
        ),
        stable=stable,
    )


def _no_rung(case: Case) -> Decision:
    """FAILED keeps whoever serves: that becomes what the service stands on."""
    release = case.release
    holder = next((pool for pool, weight in case.desired.weights.items() if weight), None)
    words = f"{holder} keeps serving" if holder else "nothing serves"
    decision = case.move(
        Trigger.NO_RUNG,
        f"no healthy rung: {words}; a person is needed. {release.reason}",
        rollback_target="none",
    )
    target = case.desired.target(holder) if holder else None
    if target is None or holder == release.previous_pool:
        return decision
    if holder == release.fresh_pool:  # the stable artifact, to be as many as it was
        of, replicas = case.view.service.stable_release, release.previous_replicas
    else:
        of, replicas = release.id, target.replicas
    return replace(decision, stable=StableChange(target.digest, target.pool, replicas, of))


def _rung_patience_s(release: Release) -> float:
    """How long a rung may take to become healthy: its stages, each at its own deadline."""
    stages = release.document.rollout.stage_deadlines
    return stages.load + stages.compile + stages.capture + stages.warm


_BY_PHASE: dict[Phase, Callable[[Case], Decision]] = {
    Phase.PENDING: _pending,
    Phase.PREFLIGHT: _preflight,
    Phase.DEPLOYING: _deploying,
    Phase.WARMING: _warming,
    Phase.PROGRESSING: _progressing,
    Phase.PAUSED: _paused,
    Phase.PROMOTING: _promoting,
    Phase.WATCHING: _watching,
    Phase.ROLLING_BACK: _rolling_back,
}


def by_phase(case: Case) -> Decision | None:
    """Nothing urgent: what the phase itself waits for."""
    return _BY_PHASE[case.release.phase](case)


RULES: tuple[Rule, ...] = (gate_failed, canary_unready, operator, deadline, by_phase)
