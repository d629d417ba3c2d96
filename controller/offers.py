"""What would make a gate decidable that is not: other numbers, each tried with the same forecast
as the plan itself and offered only where it fits. Pure."""

import math
from collections.abc import Iterator
from dataclasses import replace

from canaryctl.common.units import format_duration, format_ratio
from canaryctl.controller.artifact.schema import PromoteOn
from canaryctl.controller.forecast import (
    ReleaseForecast,
    Survey,
    forecast_gate,
    forecast_release,
)
from canaryctl.controller.model import Release
from canaryctl.controller.plan import make_plan
from canaryctl.gates.history import ENOUGH_S, QUANTILES, AaHistory, Dependence
from canaryctl.gates.latency import NAMES as LATENCY_NAMES
from canaryctl.gates.latency import named
from canaryctl.gates.spec import GateSpec
from canaryctl.gates.unfinished import DISPATCHED_VS_FINISHED
from canaryctl.gates.wording import about

LARGER = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)  # detectable, and margins
AGES_S = (10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0)
DEADLINES = (2, 4, 8, 16, 32)
SHORTER = (0.5, 0.25, 0.1)
_LEAST_INTERVAL_S = 0.5

Variant = tuple[str, Release, GateSpec]


def forecast_with_offers(release: Release, survey: Survey) -> ReleaseForecast:
    """The forecast, with what would help each gate that it refuses."""
    found = forecast_release(release, survey)
    specs = {spec.name: spec for spec in release.document.gates}
    gates = tuple(
        replace(gate, offers=offers(release, specs[gate.name], survey))
        if gate.refused and gate.name in specs
        else gate
        for gate in found.gates
    )
    return replace(found, gates=gates)


def offers(release: Release, spec: GateSpec, survey: Survey) -> tuple[str, ...]:
    """Of each kind of change, the smallest one with which the gate can be decided in time."""
    kinds = (
        _quantiles, _ages, _detectables, _margins, _even_share, _longer, _intervals, _deadlines,
    )  # fmt: skip
    found = []
    for kind in kinds:
        for words, changed, asked in kind(release, spec):
            tried = forecast_gate(changed, asked, survey)
            if tried.sure is not None and not (tried.refused or tried.warning):
                found.append(f"{words}: decided after about {about(tried.sure.seconds)}")
                break
    return (*found, *_history(release, spec, survey))


def _history(release: Release, spec: GateSpec, survey: Survey) -> tuple[str, ...]:
    """What an A/A history would bring at best: requests that turn out to be independent."""
    if survey.history is not None or spec.name not in LATENCY_NAMES or not spec.max_regression:
        return ()
    independent = Dependence(phi=1.0, phi_upper=1.0, block_looks=1, engines=5, blocks=12)
    signal = named(spec.name).signal
    known = AaHistory(
        look_s=release.document.rollout.interval,
        span_s=ENOUGH_S,
        dependences={(signal, p): independent for p in QUANTILES.values()},
    )
    tried = forecast_gate(release, spec, replace(survey, history=known))
    if tried.sure is None or tried.refused or tried.warning:
        return ()
    when = about(tried.sure.seconds)
    return (f"an A/A history (`canaryctl gates history`): decided after {when} at best",)


def _changed(release: Release, **rollout: object) -> Release:
    document = release.document
    changed = document.rollout.model_copy(update=rollout)
    return replace(release, document=document.model_copy(update={"rollout": changed}))


def _with(release: Release, spec: GateSpec, asked: GateSpec) -> Release:
    gates = tuple(asked if gate.name == spec.name else gate for gate in release.document.gates)
    return replace(release, document=release.document.model_copy(update={"gates": gates}))


def _quantiles(release: Release, spec: GateSpec) -> Iterator[Variant]:
    if spec.name not in LATENCY_NAMES:
        return
    name, _, quantile = spec.name.partition("_")
    order = ("p99", "p95", "p90", "p50")
    taken = {gate.name for gate in release.document.gates}
    below = order[order.index(quantile) + 1 :] if quantile else order
    for lower in below[:-1]:
        if f"{name}_{lower}" not in taken:
            asked = spec.model_copy(update={"name": f"{name}_{lower}"})
            yield f"{asked.name} in its place", _with(release, spec, asked), asked


def _ages(release: Release, spec: GateSpec) -> Iterator[Variant]:
    """A longer limit on the age of requests, or one where there is none: how often they pile up
    can never be shown to be equal."""
    if spec.name != DISPATCHED_VS_FINISHED:
        return
    proven = release.document.rollout.promote_on is PromoteOn.PROVEN
    dropped = spec.max_regression is not None and (proven or spec.max_seconds is None)
    for limit in AGES_S:
        if limit <= (spec.max_seconds or 0.0):
            continue
        change: dict[str, object] = {"max_seconds": limit}
        words = f"max_seconds: {format_duration(limit)}"
        if dropped:
            change["max_regression"] = None
            words += " in place of max_regression"
        asked = spec.model_copy(update=change)
        yield words, _with(release, spec, asked), asked


def _detectables(release: Release, spec: GateSpec) -> Iterator[Variant]:
    rollout = release.document.rollout
    if rollout.promote_on is not PromoteOn.NO_HARM:
        return
    for larger in LARGER:
        if larger > rollout.detectable:
            yield f"detectable: {format_ratio(larger)}", _changed(release, detectable=larger), spec


def _margins(release: Release, spec: GateSpec) -> Iterator[Variant]:
    if release.document.rollout.promote_on is not PromoteOn.PROVEN:
        return
    if spec.max_regression is None:
        return
    for larger in LARGER:
        if larger > spec.margin:
            asked = spec.model_copy(update={"margin": larger})
            yield f"margin: {format_ratio(larger)}", _with(release, spec, asked), asked


def _even_share(release: Release, spec: GateSpec) -> Iterator[Variant]:
    """A last step at which each engine of both arms gets as much."""
    rollout, plan = release.document.rollout, make_plan(release)
    last = rollout.steps[-1]
    if not plan.compares or last.load is not None or last.pause:
        return
    for weight in range(last.weight + 1, 100):
        step = last.model_copy(update={"weight": weight})
        changed = _changed(release, steps=(*rollout.steps, step))
        if make_plan(changed).steps[-1].unequal_load is None:
            yield f"a last step of weight {weight}", changed, spec


def _longer(release: Release, spec: GateSpec) -> Iterator[Variant]:
    """The last step is held as long as it takes; one before it is as long as its ``bake``."""
    rollout, plan = release.document.rollout, make_plan(release)
    comparing = [i for i, s in enumerate(plan.steps) if s.unequal_load is None]
    if not comparing or comparing[-1] == len(plan.steps) - 1 or comparing[-1] >= len(rollout.steps):
        return
    index = comparing[-1]
    bake = max(rollout.steps[index].bake, rollout.interval)
    for times in DEADLINES:
        step = rollout.steps[index].model_copy(update={"bake": bake * times})
        steps = (*rollout.steps[:index], step, *rollout.steps[index + 1 :])
        words = f"bake: {format_duration(bake * times)} at the step of weight {step.weight}"
        yield words, _changed(release, steps=steps), spec


def _intervals(release: Release, spec: GateSpec) -> Iterator[Variant]:
    interval = release.document.rollout.interval
    for part in SHORTER:
        shorter = math.floor(interval * part * 10) / 10
        if shorter >= _LEAST_INTERVAL_S:
            words = f"interval: {format_duration(shorter)}"
            yield words, _changed(release, interval=shorter), spec


def _deadlines(release: Release, spec: GateSpec) -> Iterator[Variant]:
    deadline = release.document.rollout.progress_deadline
    for times in DEADLINES:
        words = f"progress_deadline: {format_duration(deadline * times)}"
        yield words, _changed(release, progress_deadline=deadline * times), spec
