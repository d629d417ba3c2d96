"""Hard gates: predicates on what placement, log and progress probe saw. They spend no α."""

from abc import ABC, abstractmethod
from dataclasses import replace

from canaryctl.common.metrics import Signal
from canaryctl.gates.base import GateContext, Look, State
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.gates.readings import series
from canaryctl.gates.records import settle, settled
from canaryctl.gates.samples import Missing
from canaryctl.gates.spec import GateSpec
from canaryctl.gates.wording import plural, seconds

OOM, ENGINE_EXIT, PROGRESS = "oom", "engine_exit", "progress"
NAMES = (OOM, ENGINE_EXIT, PROGRESS)

_OOM_EVENT, _EXIT_EVENT, _NO_PROGRESS_EVENT = "oom", "exit", "no_progress"


class EventGate(ABC):
    """Fails at the first look that breaks it."""

    hard = True

    def __init__(self, spec: GateSpec, context: GateContext) -> None:
        del context  # an event is one in every release
        self.spec = spec

    def needs(self) -> frozenset[Signal]:
        """None: they work without metrics."""
        return frozenset()

    def start(self) -> State:
        return {"failed": None, "looks": 0}

    def look(self, state: State, look: Look) -> tuple[State, GateResult]:
        kept = settled(state)
        if kept is not None:
            return state, kept
        watched = look.canary.instances > 0
        state, result = self._judge({**state, "looks": state["looks"] + watched}, look)
        if result.outcome is Outcome.PASSED and not watched:
            result = replace(
                result,
                outcome=Outcome.INCONCLUSIVE,
                reason="no canary instance is running, so that nothing was watched",
            )
        return settle(state, result), result

    @abstractmethod
    def _judge(self, state: State, look: Look) -> tuple[State, GateResult]: ...

    def _result(
        self, state: State, outcome: Outcome, reason: str, value: float, limit: float
    ) -> GateResult:
        return GateResult(
            self.spec.name,
            outcome,
            reason,
            value=value,
            limit=limit,
            samples=state["looks"],
            valid_looks=state["looks"],
        )


def _told(look: Look, kind: str) -> tuple[int, str]:
    """How many events of the kind there are, and the latest in words."""
    events = [event for event in look.canary_events if event.kind == kind]
    return len(events), f"{events[-1].instance}: {events[-1].detail}" if events else ""


class OomGate(EventGate):
    """Out-of-memory events, from logs and exits and, where there is one, the engine's counter.
    Both may tell of the same event, so that the larger number counts."""

    def needs(self) -> frozenset[Signal]:
        return frozenset({Signal.OOM})

    def start(self) -> State:
        return {**super().start(), "counted": 0.0}

    def _judge(self, state: State, look: Look) -> tuple[State, GateResult]:
        allowed = self.spec.max or 0
        seen, latest = _told(look, _OOM_EVENT)
        counted = series(look.canary, Signal.OOM, "canary")
        if isinstance(counted, Missing):
            note = f"seen in logs and exits alone ({counted.reason})"
        else:
            state = {**state, "counted": state["counted"] + sum(counted.values())}
            note = "seen in logs, exits and the engine's counter"
        events = max(float(seen), state["counted"])
        if events > allowed:
            where = latest or "the engine's counter rose"
            reason = f"{plural(events, 'out-of-memory event')} (allowed {allowed}): {where}"
            return state, self._result(state, Outcome.FAILED, reason, events, allowed)
        reason = f"{plural(events, 'out-of-memory event')} (allowed {allowed}), {note}"
        return state, self._result(state, Outcome.PASSED, reason, events, allowed)


class EngineExitGate(EventGate):
    """Engines that ended without being asked, whatever their exit code."""

    def _judge(self, state: State, look: Look) -> tuple[State, GateResult]:
        allowed = self.spec.max or 0
        events, latest = _told(look, _EXIT_EVENT)
        said = f"{plural(events, 'unrequested engine exit')} (allowed {allowed})"
        if events > allowed:
            reason = f"{said}: {latest}"
            return state, self._result(state, Outcome.FAILED, reason, events, allowed)
        return state, self._result(state, Outcome.PASSED, said, events, allowed)


class ProgressGate(EventGate):
    """One generated token in bounded time: a hung engine answers its health check for ever."""

    def _judge(self, state: State, look: Look) -> tuple[State, GateResult]:
        stalls, latest = _told(look, _NO_PROGRESS_EVENT)
        limit = self.spec.max_seconds or 0.0
        if stalls:
            reason = f"no token within {seconds(limit)}: {latest}"
            return state, self._result(state, Outcome.FAILED, reason, stalls, limit)
        if look.progress_checks < 1:
            reason = f"no generation of one token has ended within {seconds(limit)} yet"
            waiting = self._result(state, Outcome.INCONCLUSIVE, reason, 0, limit)
            return state, replace(waiting, valid_looks=0)
        reason = (
            f"{plural(look.progress_checks, 'generation')} of one token, all within "
            f"{seconds(limit)}"
        )
        return state, self._result(state, Outcome.PASSED, reason, 0, limit)
