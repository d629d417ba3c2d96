"""Saying in sentences why a release is where it is. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from canaryctl.controller.forecast_report import plan_lines, still_needs
from canaryctl.controller.model import GateRecord, Release, ReleaseEvent
from canaryctl.controller.report import outcome_of
from canaryctl.controller.states import Phase
from canaryctl.gates.outcome import GateResult, Outcome

_NOW = {
    Phase.PENDING: "is recorded and nothing has been started",
    Phase.PREFLIGHT: "is being compared with the machine",
    Phase.DEPLOYING: "is starting its canary",
    Phase.WARMING: "is capturing graphs and running every warm-up bucket",
    Phase.PROGRESSING: "is moving traffic in steps",
    Phase.PAUSED: "is held; gates go on",
    Phase.PROMOTING: "is growing to full size before it takes all traffic",
    Phase.WATCHING: "has all traffic while the previous runtime is still warm",
    Phase.SUCCEEDED: "was promoted",
    Phase.ROLLING_BACK: "is being rolled back",
    Phase.ROLLED_BACK: "was rolled back",
    Phase.FAILED: "failed: no rollback rung was healthy, and a person is needed",
}

_ORDER = (Outcome.FAILED, Outcome.ERROR, Outcome.INCONCLUSIVE, Outcome.PASSED)


def explain(
    release: Release, gates: Sequence[GateRecord], events: Sequence[ReleaseEvent]
) -> tuple[str, ...]:
    """Paragraphs: where it is and why, each gate worst first, and what is waited for."""
    title = f"{release.document.name}@{release.document.version}"
    plan = next((event.data["plan"] for event in events if "plan" in event.data), None)
    lines = [f"Release {release.id} of {title} for {release.service} {_NOW[release.phase]}."]
    if release.reason:
        lines.append(f"Reason: {release.reason}.")
    if release.rollback_target:
        lines.append(f"Traffic was returned to: {release.rollback_target}.")
    if release.hold and outcome_of(release) == "held":
        lines.append(f"It waits: {release.hold}.")
    for record in sorted(gates, key=lambda r: (_ORDER.index(r.result.outcome), r.gate)):
        result = record.result
        harmless = result.no_harm and result.outcome is Outcome.INCONCLUSIVE
        harm = " No harm found within the declared detectable size." if harmless else ""
        open_ = result.outcome is Outcome.INCONCLUSIVE and not harmless
        need = _need(result, plan) if open_ else ""
        lines.append(
            f"Gate {result.name} {_words(result.outcome)}: {result.reason}.{harm}{need}".replace(
                "..", "."
            )
        )
    if plan is not None:
        lines += ["As planned before it began:", *(f"  {line}" for line in plan_lines(plan))]
    told = (event for event in events if event.kind in ("phase", "step", "operator"))
    lines += [f"{event.at:%H:%M:%S} {event.message}.".replace("..", ".") for event in told]
    return tuple(lines)


def _need(result: GateResult, plan: Mapping[str, Any] | None) -> str:
    if result.needed is None:
        return ""
    rest = still_needs(plan, result.name, result.needed, result.samples) if plan else None
    more = f", about {rest} more at the traffic that was planned for" if rest else ""
    return f" It needs {result.needed} canary samples in all and has {result.samples}{more}."


def _words(outcome: Outcome) -> str:
    return {
        Outcome.FAILED: "failed",
        Outcome.ERROR: "could not be judged (error)",
        Outcome.INCONCLUSIVE: "is inconclusive",
        Outcome.PASSED: "passed",
    }[outcome]
