"""Like with like: whether a look's two arms can be compared at all. Pure.

Latency depends on the batch and on what the prefix cache holds, so it is compared only while each
canary engine gets as many requests as each baseline engine, and finds as much of its prompts in
the cache. What counts as load is what *arrives*: answers and sequences in flight follow from how
fast an engine is, and an arm that is slower must not be excused by the queue that it builds up.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from math import sqrt

from canaryctl.common.metrics import AnySignal, Signal
from canaryctl.common.units import format_duration
from canaryctl.controller.model import Release
from canaryctl.controller.plan import Plan, PlannedStep
from canaryctl.controller.states import Phase
from canaryctl.gates.samples import ArmWindow, Scrape, Series, Value

SIGNALS = frozenset(
    {
        Signal.REQUESTS,
        Signal.RUNNING,
        Signal.WAITING,
        Signal.PREFIX_HITS,
        Signal.PREFIX_QUERIES,
    }
)
"""What is read beside what the gates ask for. Only requests must be there."""

TRAILING_S = 300.0
"""A difference too small for one window adds up over the step; one that is over is forgotten."""

LOAD_TOLERANCE = 0.2
"""At moderate load a batch that is a fifth larger makes a step a few per cent slower: less than
the least tolerance that a latency gate takes."""

PREFIX_TOLERANCE = 0.1
"""Of hit ratios, 0-1. A tenth of the prompt more to compute is a tenth more prefill: as much as
the tolerance of a gate that asks for 10 %."""

SIGMAS = 3.0
SAME_MOMENT_REQUESTS = 2.0
"""Where both arms are asked the same at the same moments only the moments of their scrapes
differ."""


@dataclass(frozen=True, slots=True)
class Unlike:
    """Why the arms cannot be compared, in words (None: they can). ``prefix`` concerns what a
    prompt costs alone, ``load`` all of latency."""

    load: str | None = None
    prefix: str | None = None


@dataclass(frozen=True, slots=True)
class ArmLoad:
    """What reached an arm: ``requests`` over ``engine_s``, the seconds of all its engines together.

    ``hits`` of the prompt tokens ``queries`` were found in the prefix cache; None: not said.
    ``running``: sequences at once on an engine at the end, None: not said.
    """

    requests: float
    engine_s: float
    hits: float | None = None
    queries: float | None = None
    running: float | None = None

    @property
    def rate(self) -> float:
        """Requests per second and engine."""
        return self.requests / self.engine_s

    @property
    def hit_ratio(self) -> float | None:
        """Where requests came and none of them looked anything up, nothing was found."""
        if self.hits is None or self.queries is None:
            return None
        return self.hits / self.queries if self.queries else 0.0


@dataclass(frozen=True, slots=True)
class Chunk:
    """One window of both arms. ``at``: its end, seconds since the epoch."""

    at: float
    span_s: float
    canary: ArmLoad
    baseline: ArmLoad


@dataclass(frozen=True, slots=True)
class Trail:
    """The windows of the present step that are not too old. Kept in memory only: a controller
    that starts again begins with an empty one."""

    step: tuple[int, datetime | None] | None = None
    chunks: tuple[Chunk, ...] = field(default=())


def arm_load(before: Mapping[str, Scrape], arm: ArmWindow) -> ArmLoad | None:
    """What reached the arm in this window; None where no engine of it says. ``before``: the
    scrapes that the window began with."""
    requests = engine_s = 0.0
    hits: list[float | None] = []
    queries: list[float | None] = []
    running: list[float | None] = []
    for delta in arm.deltas:
        answered = _total(delta.values.get(Signal.REQUESTS))
        if answered is None:
            continue
        after = _in_flight(delta.values)
        earlier = _in_flight(before[delta.instance].values)
        waiting_more = 0.0 if after is None or earlier is None else after - earlier
        requests += max(0.0, answered + waiting_more)
        engine_s += delta.span_s
        hits.append(_total(delta.values.get(Signal.PREFIX_HITS)))
        queries.append(_total(delta.values.get(Signal.PREFIX_QUERIES)))
        running.append(_total(delta.values.get(Signal.RUNNING)))
    if not engine_s:
        return None
    mean = _sum(running)
    return ArmLoad(
        requests=requests,
        engine_s=engine_s,
        hits=_sum(hits),
        queries=_sum(queries),
        running=None if mean is None else mean / len(running),
    )


def follow(
    trail: Trail,
    release: Release,
    plan: Plan,
    before: Mapping[str, Scrape],
    canary: ArmWindow,
    baseline: ArmWindow | None,
    at: float,
) -> tuple[Trail, Unlike]:
    """One more look: the trail with it, and what makes its arms unlike each other.

    ``before``: scrapes that the windows began with. ``at``: now, seconds since the epoch.
    """
    if baseline is None:
        return Trail(), Unlike()
    if release.phase not in (Phase.PROGRESSING, Phase.PAUSED):
        return Trail(), Unlike(f"traffic is not shared by steps while {release.phase.value}")
    if release.step_at is None:
        return Trail(), Unlike("the step's weight is not in force yet")
    key = (release.step, release.step_at)
    trail = trail if trail.step == key else Trail(key)
    planned = plan.steps[release.step]
    began = min((before[d.instance].at for d in (*canary.deltas, *baseline.deltas)), default=at)
    if began < release.step_at.timestamp():
        return trail, Unlike(
            planned.unequal_load or "the window began before the step's weight was in force"
        )
    loads = arm_load(before, canary), arm_load(before, baseline)
    latest: Chunk | None = None
    if loads[0] is not None and loads[1] is not None:
        latest = Chunk(at, _span_s(canary, baseline), loads[0], loads[1])
        kept = tuple(chunk for chunk in trail.chunks if chunk.at > at - TRAILING_S)
        trail = Trail(key, (*kept, latest))
    load = planned.unequal_load or _lacking(planned, canary, baseline)
    if latest is None:
        return trail, Unlike(load)
    whole = _together(trail.chunks)
    load = load or _unequal(planned, latest) or _unequal(planned, whole)
    return trail, Unlike(load, _unequal_prefix(whole))


def _lacking(planned: PlannedStep, canary: ArmWindow, baseline: ArmWindow) -> str | None:
    """An arm that is not whole spreads its share of the traffic over fewer engines."""
    for who, arm, wanted in (
        ("canary", canary, planned.canary_replicas),
        ("baseline", baseline, planned.baseline_replicas),
    ):
        if arm.instances < wanted:
            return f"{arm.instances} of {wanted} {who} engines serve"
    return None


def _unequal(planned: PlannedStep, chunk: Chunk) -> str | None:
    """Rates that differ by more than the tolerance and what chance explains.

    Users' requests are split at random: the difference of two Poisson rates λ has the variance
    λ(1/E_c + 1/E_b), E in engine-seconds. The controller's own are the same on every engine.
    """
    canary, baseline = chunk.canary, chunk.baseline
    pooled = (canary.requests + baseline.requests) / (canary.engine_s + baseline.engine_s)
    chance = (
        SAME_MOMENT_REQUESTS / chunk.span_s
        if planned.step.load is not None
        else SIGMAS * sqrt(pooled * (1 / canary.engine_s + 1 / baseline.engine_s))
    )
    most = max(canary.rate, baseline.rate)
    if abs(canary.rate - baseline.rate) <= LOAD_TOLERANCE * most + chance:
        return None
    at_once = (
        f" ({canary.running:.1f} and {baseline.running:.1f} sequences run at once)"
        if canary.running is not None and baseline.running is not None
        else ""
    )
    return (
        f"in the last {format_duration(round(chunk.span_s, 1))} "
        f"{canary.rate * chunk.span_s:.0f} requests came to each canary engine and "
        f"{baseline.rate * chunk.span_s:.0f} to each baseline engine{at_once}"
    )


def _unequal_prefix(chunk: Chunk) -> str | None:
    """Hit ratios that differ by more than the tolerance and what chance explains.

    A prompt is found as a whole or not at all at worst, so a ratio p of n requests has at most
    the variance p(1-p)/n.
    """
    ratios = chunk.canary.hit_ratio, chunk.baseline.hit_ratio
    counts = chunk.canary.requests, chunk.baseline.requests
    if ratios[0] is None or ratios[1] is None or not all(counts):
        return None
    pooled = (ratios[0] * counts[0] + ratios[1] * counts[1]) / sum(counts)
    chance = SIGMAS * sqrt(max(0.0, pooled * (1 - pooled)) * sum(1 / count for count in counts))
    if abs(ratios[0] - ratios[1]) <= PREFIX_TOLERANCE + chance:
        return None
    return (
        f"the canary found {ratios[0]:.0%} of its prompts in the prefix cache and the baseline "
        f"{ratios[1]:.0%}"
    )


def _together(chunks: tuple[Chunk, ...]) -> Chunk:
    return Chunk(
        at=chunks[-1].at,
        span_s=sum(chunk.span_s for chunk in chunks),
        canary=_added([chunk.canary for chunk in chunks]),
        baseline=_added([chunk.baseline for chunk in chunks]),
    )


def _added(loads: list[ArmLoad]) -> ArmLoad:
    return ArmLoad(
        requests=sum(load.requests for load in loads),
        engine_s=sum(load.engine_s for load in loads),
        hits=_sum([load.hits for load in loads]),
        queries=_sum([load.queries for load in loads]),
        running=loads[-1].running,
    )


def _span_s(*arms: ArmWindow) -> float:
    """Of a store of samples the arms' windows need not be equally long: the longer one."""
    return max(delta.span_s for arm in arms for delta in arm.deltas)


def _in_flight(values: Mapping[AnySignal, Value]) -> float | None:
    return _sum([_total(values.get(Signal.RUNNING)), _total(values.get(Signal.WAITING))])


def _total(value: Value | None) -> float | None:
    return value.total if isinstance(value, Series) else None


def _sum(values: list[float | None]) -> float | None:
    """None where one of them is not known."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
