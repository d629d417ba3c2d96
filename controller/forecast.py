"""The forecast of a release: when each gate can decide, at which step, and whether that is before
the deadline. Pure: from the release's plan and a survey of the baseline as it serves now.

Evidence adds up over the steps at which a gate can judge. Steps do not wait for gates; only the
last one is held until the promotion rule is met, or until the deadline.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from canaryctl.controller.artifact.schema import OnInconclusive, PromoteOn
from canaryctl.controller.decide import MIN_STEP_REQUESTS, STEP_LOAD_REQUESTS
from canaryctl.controller.judge import gate_terms, undecidable_gates
from canaryctl.controller.model import Release
from canaryctl.controller.plan import Plan, PlannedStep, make_plan
from canaryctl.gates import registry
from canaryctl.gates.history import AaHistory
from canaryctl.gates.latency import LatencyGate
from canaryctl.gates.needs import Forecast, Forecasting, Need, StepTraffic, Target, order
from canaryctl.gates.samples import ArmWindow
from canaryctl.gates.spec import GateSpec
from canaryctl.gates.wording import about

_SURE = {
    PromoteOn.NO_HARM: (Target.NO_HARM, Target.PROVEN_90),
    PromoteOn.PROVEN: (Target.PROVEN_90,),
}
_LIKELY = {
    PromoteOn.NO_HARM: (Target.NO_HARM, Target.PROVEN_50),
    PromoteOn.PROVEN: (Target.PROVEN_50,),
}


@dataclass(frozen=True, slots=True)
class Rate:
    """Requests a second to the whole service. ``most``: what it may be at most, chance allowed
    for. ``seen``: the requests counted in ``over_s`` seconds; None: a person said so."""

    per_s: float
    most: float
    seen: int | None = None
    over_s: float | None = None

    @classmethod
    def given(cls, per_s: float) -> "Rate":
        return cls(per_s, per_s)

    @classmethod
    def counted(cls, requests: int, over_s: float) -> "Rate":
        """Two standard deviations of a Poisson count up: a plan is not refused on bad luck."""
        return cls(requests / over_s, (requests + 2 * requests**0.5 + 2) / over_s, requests, over_s)


@dataclass(frozen=True, slots=True)
class Survey:
    """The service as it is before the release.

    ``past``: all that the stable instances counted since they started; None: nothing is known.
    ``rate``: None: no traffic. ``silence``: why one of the two is None.
    ``history``: of equal engines beside each other; None: how observations depend is unknown.
    ``startup_s``: what a stable instance took until it was warm. ``load_rates``: requests a
    second to each engine, by the ``load`` of a step.
    """

    past: ArmWindow | None = None
    rate: Rate | None = None
    silence: str | None = None
    history: AaHistory | None = None
    startup_s: float | None = None
    load_rates: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepForecast:
    """``requests_per_s``: to the canary arm; None: not known. ``least_s``: how long it lasts at
    least. ``grows_s``: before that, until more canary instances are warm."""

    planned: PlannedStep
    share: float
    requests_per_s: float | None
    least_s: float
    grows_s: float


@dataclass(frozen=True, slots=True)
class Moment:
    """``seconds``: since traffic began; ``step``: an index."""

    step: int
    seconds: float


@dataclass(frozen=True, slots=True)
class GateForecast:
    """One gate. ``forecast``: at the step that decides; None: there is none, and the gate is
    ``judged`` as observations come, or else decides by what happens, without waiting, or with
    its ``one_look`` at the canary before any traffic.

    ``likely``, ``sure``: when it allows promotion, of a canary as good as the baseline, with a
    probability of 50 % and 90 %. ``fails``: when one that is worse by ``detectable`` has failed,
    with 50 %. None: never, or not known.
    ``need``: what it takes until ``likely``.
    ``refused``: why it cannot be decided; ``offers``: what would help. ``warning``: why it may
    not be.
    """

    name: str
    forecast: Forecast | None = None
    judged: bool = True
    one_look: bool = False
    need: Need | None = None
    likely: Moment | None = None
    sure: Moment | None = None
    fails: Moment | None = None
    refused: str | None = None
    warning: str | None = None
    offers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReleaseForecast:
    """``steps_s``: how long the steps last at least; ``likely_s``, ``sure_s``: from when traffic
    begins until the promotion rule is met; None: not known or never."""

    release: Release
    survey: Survey
    steps: tuple[StepForecast, ...]
    gates: tuple[GateForecast, ...]
    steps_s: float

    @property
    def refusals(self) -> tuple[str, ...]:
        """A line for each gate that cannot be decided, with what would help."""
        return tuple(
            f"{gate.name}: {gate.refused}" + "".join(f"\n  - {offer}" for offer in gate.offers)
            for gate in self.gates
            if gate.refused
        )

    @property
    def likely_s(self) -> float | None:
        return self._until([gate.likely for gate in self.gates if gate.forecast])

    @property
    def sure_s(self) -> float | None:
        return self._until([gate.sure for gate in self.gates if gate.forecast])

    def _until(self, moments: Sequence[Moment | None]) -> float | None:
        known = [moment.seconds for moment in moments if moment is not None]
        return max([*known, self.steps_s]) if len(known) == len(moments) else None


def forecast_release(release: Release, survey: Survey) -> ReleaseForecast:
    """All gates of the release, without offers."""
    plan = make_plan(release)
    steps = step_forecasts(release, plan, survey, survey.rate.per_s if survey.rate else None)
    specs = gate_terms(release, plan, survey.history).specs
    gates = tuple(forecast_gate(release, spec, survey) for spec in specs)
    return ReleaseForecast(
        release, survey, steps, gates, sum(step.grows_s + step.least_s for step in steps)
    )


def forecast_gate(release: Release, spec: GateSpec, survey: Survey) -> GateForecast:
    """One gate of the release's document."""
    rate = survey.rate
    measured = _judged(release, spec, survey, rate.per_s if rate else None)
    plan = make_plan(release)
    terms = gate_terms(release, plan, survey.history)
    impossible = undecidable_gates(release, plan, terms).get(spec.name)
    if not measured:
        one_look = registry.needs_one_look(spec)
        return GateForecast(
            spec.name,
            judged=registry.spends_alpha(spec) and not one_look,
            one_look=one_look,
            refused=impossible,
        )
    generous = _judged(release, spec, survey, rate.most if rate else None)
    rollout = release.document.rollout
    sure = _when(measured, _SURE[rollout.promote_on])
    refused = _refusal(release, generous)
    if refused:  # even then; told is what was measured
        refused = _refusal(release, measured) or refused
    warning = None
    if refused and rollout.on_inconclusive is OnInconclusive.PROMOTE:
        refused, warning = None, f"{refused}; it would be promoted undecided (on_inconclusive)"
    left_s = rollout.progress_deadline - (survey.startup_s or 0.0)
    if not refused and sure is not None and sure.seconds > left_s:
        warning = warning or (
            f"it takes about {about(sure.seconds)}, and {about(max(0.0, left_s))} are left of the "
            "progress deadline once the canary is warm"
        )
    forecast = _deciding(measured).forecast
    return GateForecast(
        name=spec.name,
        forecast=forecast,
        need=_first(forecast, _LIKELY[rollout.promote_on]),
        likely=_when(measured, _LIKELY[rollout.promote_on]),
        sure=sure,
        fails=_when(measured, (Target.FAIL_50,)),
        refused=impossible or refused,
        warning=warning,
    )


def step_forecasts(
    release: Release, plan: Plan, survey: Survey, per_s: float | None
) -> tuple[StepForecast, ...]:
    """Every step of the plan, at ``per_s`` requests a second to the service (None: unknown)."""
    found = []
    before = plan.steps[0].canary_replicas + plan.steps[0].baseline_replicas
    for planned in plan.steps:
        step, canary = planned.step, planned.canary_replicas
        both = canary + planned.baseline_replicas
        if step.load is not None:
            rate = survey.load_rates.get(step.load)
            rate = None if rate is None else rate * canary
            wanted = step.requests or STEP_LOAD_REQUESTS
        else:
            rate = None if per_s is None else per_s * step.weight / 100
            wanted = MIN_STEP_REQUESTS if step.weight > 0 else 0
        like = planned.unequal_load is None
        found.append(
            StepForecast(
                planned,
                share=canary / both if like else step.weight / 100,
                requests_per_s=rate,
                least_s=max(step.bake, wanted / rate if rate else 0.0),
                grows_s=(survey.startup_s or 0.0) if both > before else 0.0,
            )
        )
        before = both
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Judged:
    """``judges``: the gate's evidence grows at this step."""

    step: StepForecast
    forecast: Forecast
    judges: bool


def _judged(release: Release, spec: GateSpec, survey: Survey, per_s: float | None) -> list[_Judged]:
    """The gate at every step; empty: it has nothing to wait for."""
    plan = make_plan(release)
    context = gate_terms(release, plan, survey.history).context
    gate = registry.build(spec, context)
    if not isinstance(gate, Forecasting):
        return []
    found = []
    for step in step_forecasts(release, plan, survey, per_s):
        reaches = step.planned.step.weight > 0 or step.planned.step.load is not None
        needs_like = isinstance(gate, LatencyGate) or registry.needs_equal_load(spec)
        like = step.planned.unequal_load is None or not needs_like
        # How the baseline exceeds follows from its past, how often from the traffic: both or none.
        past = survey.past if step.requests_per_s is not None else None
        traffic = StepTraffic(
            step.requests_per_s, step.share, context.interval_s, step.planned.canary_replicas
        )
        found.append(_Judged(step, gate.forecast(past, traffic), reaches and like))
    return found


def _deciding(judged: Sequence[_Judged]) -> _Judged:
    """The last step at which the gate judges; of a gate that never does, the last one."""
    return next((j for j in reversed(judged) if j.judges), judged[-1])


def _when(judged: Sequence[_Judged], targets: Sequence[Target]) -> Moment | None:
    """When the first of ``targets`` is reached; None: never, or the time is not known."""
    done = at_s = 0.0
    for index, each in enumerate(judged):
        at_s += each.step.grows_s
        need_s = _seconds(each.forecast, targets) if each.judges else None
        if need_s is not None:
            rest_s = max(0.0, 1 - done) * need_s
            if rest_s <= each.step.least_s or index == len(judged) - 1:
                return Moment(index, at_s + rest_s)
            done += each.step.least_s / need_s
        at_s += each.step.least_s
    return None


def _first(forecast: Forecast, targets: Sequence[Target]) -> Need | None:
    """What is needed for the target that is reached first."""
    needs = [forecast.needs[target] for target in targets if target in forecast.needs]
    return min(needs, key=order, default=None)


def _seconds(forecast: Forecast, targets: Sequence[Target]) -> float | None:
    need = _first(forecast, targets)
    return None if need is None else need.seconds


def _refusal(release: Release, judged: Sequence[_Judged]) -> str | None:
    """Why the gate cannot be decided even at the most traffic that the survey allows for."""
    rollout = release.document.rollout
    targets = _SURE[rollout.promote_on]
    deciding = _deciding(judged)
    if not deciding.judges:
        return None  # what can never be compared is refused by its plan
    forecast = deciding.forecast
    need = _first(forecast, targets)
    if need is None:
        return forecast.lacks[targets[0]]
    amount = ("at least " if forecast.least else "") + need.words(forecast.unit)
    found = _when(judged, targets)
    if found is None:
        if need.seconds is None:
            return None  # the time is not known
        ends = deciding.step.planned.step
        return (
            f"it takes {amount}, and the last step that compares like with "
            f"like (weight {ends.weight}) ends before that"
        )
    if found.seconds <= rollout.progress_deadline:
        return None
    return (
        f"it takes {amount}, {about(found.seconds)} of traffic, and the "
        f"progress deadline is {about(rollout.progress_deadline)}"
    )
