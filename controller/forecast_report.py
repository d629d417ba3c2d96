"""A forecast for people and programs: the document that is kept with a release and printed by
``release --dry-run``, and what it says in sentences. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from canaryctl.controller.forecast import GateForecast, Moment, Rate, ReleaseForecast, StepForecast
from canaryctl.gates.needs import Need
from canaryctl.gates.wording import about, percent, whole

Document = Mapping[str, Any]


def forecast_document(forecast: ReleaseForecast) -> dict[str, Any]:
    """JSON types. Seconds count from when traffic begins; null: never, or not known."""
    release, survey = forecast.release, forecast.survey
    rollout = release.document.rollout
    return {
        "service": release.service,
        "artifact": f"{release.document.name}@{release.document.version}",
        "kind": release.kind.value,
        "decidable": not forecast.refusals,
        "promote_on": rollout.promote_on.value,
        "detectable": rollout.detectable,
        "interval_s": rollout.interval,
        "rate": _rate(survey.rate),
        "silence": survey.silence,
        "startup_s": survey.startup_s,
        "steps_s": forecast.steps_s,
        "likely_s": forecast.likely_s,
        "sure_s": forecast.sure_s,
        "deadline_s": rollout.progress_deadline,
        "steps": [_step(index, step) for index, step in enumerate(forecast.steps)],
        "gates": [_gate(gate) for gate in forecast.gates],
    }


def _rate(rate: Rate | None) -> dict[str, Any] | None:
    if rate is None:
        return None
    return {"requests_per_s": rate.per_s, "requests": rate.seen, "over_s": rate.over_s}


def _step(index: int, step: StepForecast) -> dict[str, Any]:
    return {
        "step": index + 1,
        "weight": step.planned.step.weight,
        "canary_replicas": step.planned.canary_replicas,
        "canary_requests_per_s": step.requests_per_s,
        "least_s": step.least_s,
        "pause": step.planned.step.pause,
        "unequal_load": step.planned.unequal_load,
    }


def _gate(gate: GateForecast) -> dict[str, Any]:
    found = gate.forecast
    return {
        "name": gate.name,
        "judged": gate.judged,
        "one_look": gate.one_look,
        "rule": found.rule if found else None,
        "unit": found.unit if found else None,
        "canary_per_s": found.per_s if found else None,
        "needs": {target.value: _need(need) for target, need in found.needs.items()}
        if found
        else {},
        "lacks": {target.value: why for target, why in found.lacks.items()} if found else {},
        "needs_in_words": gate.need.words(found.unit) if found and gate.need else None,
        "least": found.least if found else None,
        "harm": found.harm if found else None,
        "effective_tolerance": found.tolerance if found else None,
        "notes": list(found.notes) if found else [],
        "fails": _moment(gate.fails),
        "likely": _moment(gate.likely),
        "sure": _moment(gate.sure),
        "refused": gate.refused,
        "offers": list(gate.offers),
        "warning": gate.warning,
    }


def _need(need: Need) -> dict[str, Any]:
    return {
        "samples": None if need.samples is None else whole(need.samples),
        "blocks": need.blocks,
        "seconds": need.seconds,
    }


def _moment(moment: Moment | None) -> dict[str, Any] | None:
    return None if moment is None else {"step": moment.step + 1, "seconds": moment.seconds}


def plan_lines(document: Document) -> tuple[str, ...]:
    """The plan of a release in sentences, from its document."""
    lines = [_traffic(document)]
    waiting = [gate for gate in document["gates"] if gate["rule"] or gate["refused"]]
    for gate in waiting:
        lines += gate_lines(gate, document)
    rest = [gate for gate in document["gates"] if not (gate["rule"] or gate["refused"])]
    for words, judged, one_look in (
        ("Judged as observations come, without a forecast", True, False),
        ("Decided at the first look at the warm canary, before any traffic", False, True),
        ("Decided by what happens, without waiting", False, False),
    ):
        kind = (judged, one_look)  # a plan of before it was told has none of the second
        names = [g["name"] for g in rest if (g["judged"], g.get("one_look", False)) == kind]
        if names:
            lines.append(f"{words}: {', '.join(names)}.")
    lines.append(_whole(document))
    return tuple(lines)


def _traffic(document: Document) -> str:
    rate = document["rate"]
    if rate is None:
        return f"No traffic to plan on: {document['silence']}."
    per_s = f"{rate['requests_per_s']:.3g} requests a second"
    if rate["requests"] is None:
        return f"Planned for {per_s}, as given."
    return f"Planned for {per_s}: {rate['requests']} were counted in {about(rate['over_s'])}."


def _whole(document: Document) -> str:
    if not document["decidable"]:
        return "This plan cannot decide its gates: it is refused."
    deadline = about(document["deadline_s"])
    startup = (
        f" (the stable runtime took {about(document['startup_s'])} to start)"
        if document["startup_s"]
        else ""
    )
    rule = document["promote_on"]
    if document["likely_s"] is None:
        return (
            f"The steps take {about(document['steps_s'])} at least; when {rule} is met cannot be "
            f"said beforehand. The progress deadline is {deadline}{startup}."
        )
    sure = document["sure_s"]
    within = (
        f" (within {about(sure)} with 90 %)"
        if sure and about(sure) != about(document["likely_s"])
        else ""
    )
    return (
        f"A sound canary meets {rule} about {about(document['likely_s'])} after traffic "
        f"begins{within}. The progress deadline is {deadline}{startup}."
    )


def gate_lines(gate: Document, document: Document) -> list[str]:
    """One gate: what it waits for, when a bad canary fails, and what stands in the way."""
    name = gate["name"]
    if gate["refused"]:
        offers = [f"  would help: {offer}" for offer in gate["offers"]]
        return [f"{name} cannot be decided: {gate['refused']}.", *offers]
    rule = f"{name} ({gate['rule']})"
    least = "at least " if gate["least"] else ""
    if gate["likely"] is not None:
        when = f"step {gate['likely']['step']}, {about(gate['likely']['seconds'])} after traffic"
        earliest = " at the earliest" if gate["least"] else ""
        after = f"{least}{gate['needs_in_words']}"
        lines = [f"{rule} allows promotion after {after}: at {when} begins{earliest}."]
    elif gate["needs_in_words"] is not None:
        why = f" ({gate['least']})" if gate["least"] else ""
        lines = [f"{rule} takes {least}{gate['needs_in_words']}; how long, cannot be said{why}."]
    else:
        lines = [f"{rule}: {'; '.join(dict.fromkeys(gate['lacks'].values()))}."]
    if gate["fails"] is not None and not gate["least"]:
        worse = gate.get("harm") or f"worse by {percent(document['detectable'])}"
        lines.append(
            f"  A canary {worse} fails after about {about(gate['fails']['seconds'])}, half of the "
            "time sooner."
        )
    lines += [f"  {name}: {note}." for note in gate["notes"]]
    if gate["warning"]:
        lines.append(f"  {name} may not be decided: {gate['warning']}.")
    return lines


def still_needs(document: Document, name: str, needed: int, samples: int) -> str | None:
    """How long the rest of a gate's observations takes at the planned rate; None: not known."""
    per_s: Sequence[float] = [
        gate["canary_per_s"]
        for gate in document["gates"]
        if gate["name"] == name and gate["canary_per_s"]
    ]
    if not per_s or needed <= samples:
        return None
    return about((needed - samples) / per_s[0])
