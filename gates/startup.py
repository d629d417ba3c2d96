"""``graph_memory`` and ``ready_time``: what the graphs of a runtime cost before the first request.

They follow from one start of each engine, so that they are exact and spend no α: against a fixed
limit, the baseline's, or both. An engine that exports them is believed before its log, and one
that tells neither is unknown, never zero.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from canaryctl.common.metrics import AnySignal, Signal
from canaryctl.gates.base import GateContext, Look, StartFacts, State
from canaryctl.gates.late_work import late_work
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.gates.readings import told
from canaryctl.gates.records import settle, settled, undecided
from canaryctl.gates.samples import ArmWindow, Missing, Series
from canaryctl.gates.spec import GateSpec
from canaryctl.gates.wording import change, percent, seconds, size

GRAPH_MEMORY, READY_TIME = "graph_memory", "ready_time"

_READY = "ready"
_GRAPHS = "graphs"
_STAGES = ("load", "compile", "capture", "warmup")
_ONCE = ("compile", "capture")  # stages that are over when an engine is ready
_CLOCK_S = 0.01
"""Two readings of one stage may differ by so much: a log rounds."""


@dataclass(frozen=True, slots=True)
class _Arm:
    """``worst``: of the instances, the one with the largest value."""

    worst: str
    value: float
    parts: Mapping[str, Mapping[str, float]]  # instance → everything it told

    @property
    def of_worst(self) -> Mapping[str, float]:
        return self.parts[self.worst]


class StartGate(ABC):
    """The largest value among an arm's instances."""

    hard = False
    _title: str
    _signal: Signal
    _label: str  # of the signal's series: what is told apart
    _part: str  # the one that is judged

    def __init__(self, spec: GateSpec, context: GateContext) -> None:
        self.spec = spec
        self._tolerance = spec.max_regression if context.has_baseline else None

    @property
    @abstractmethod
    def _limit(self) -> float | None: ...

    @abstractmethod
    def _show(self, value: float) -> str: ...

    @abstractmethod
    def _facts(self, start: StartFacts) -> Mapping[str, float]: ...

    def _late(
        self, state: State, canary: _Arm, starts: Mapping[str, StartFacts]
    ) -> tuple[State, str | None]:
        """The state after a look, and what happened after the start that should not have."""
        del canary, starts
        return state, None

    def _because(self, canary: _Arm, baseline: _Arm | None) -> str:
        """What explains a failure, as the end of a sentence."""
        del canary, baseline
        return ""

    def needs(self) -> frozenset[AnySignal]:
        return frozenset({self._signal})

    def start(self) -> State:
        return {"failed": None, "looks": 0, "seen": {}, "late": {}}

    def look(self, state: State, look: Look) -> tuple[State, GateResult]:
        kept = settled(state)
        if kept is not None:
            return state, kept
        canary = self._read(look, look.canary, "canary")
        baseline = None if self._tolerance is None else self._read(look, look.baseline, "baseline")
        late = None
        if isinstance(canary, _Arm):
            starts = {name: look.start[name] for name in canary.parts if name in look.start}
            state, late = self._late({**state, "looks": state["looks"] + 1}, canary, starts)
        result = self._judge(state, canary, baseline, late)
        return settle(state, result), result

    def _judge(
        self,
        state: State,
        canary: _Arm | Missing,
        baseline: _Arm | Missing | None,
        late: str | None,
    ) -> GateResult:
        if isinstance(canary, Missing):
            return undecided(self.spec.name, state, f"unknown: {canary.reason}")
        limits = [] if self._limit is None else [self._limit]
        if isinstance(baseline, _Arm) and self._tolerance is not None and baseline.value > 0:
            limits.append(baseline.value * (1 + self._tolerance))
        said = self._said(canary, baseline if isinstance(baseline, _Arm) else None)
        limit = min(limits) if limits else None
        compared = baseline if isinstance(baseline, _Arm) else None
        broken = limit is not None and canary.value > limit * (1 + 1e-9)
        if late is not None or broken:
            why = late if late is not None else self._because(canary, compared)
            return self._result(state, Outcome.FAILED, f"{said}{why}", canary, compared, limit)
        if isinstance(baseline, Missing):
            return undecided(self.spec.name, state, f"{said}; unknown: {baseline.reason}")
        if limit is None:
            lacks = "there is no baseline to compare it with"
            if baseline is not None:
                lacks = f"the baseline has {self._show(0)}, of which there is no multiple"
            return undecided(self.spec.name, state, f"{said}; {lacks}")
        return self._result(state, Outcome.PASSED, said, canary, compared, limit)

    def _said(self, canary: _Arm, baseline: _Arm | None) -> str:
        said = f"{self._title} of the canary is {self._show(canary.value)}"
        if self._limit is not None:
            said += f" (allowed {self._show(self._limit)})"
        if baseline is not None and self._tolerance is not None:
            said += (
                f" against {self._show(baseline.value)} of the baseline "
                f"({change(canary.value, baseline.value)}, allowed +{percent(self._tolerance)})"
            )
        return said

    def _result(
        self,
        state: State,
        outcome: Outcome,
        reason: str,
        canary: _Arm,
        baseline: _Arm | None,
        limit: float | None,
    ) -> GateResult:
        return GateResult(
            self.spec.name,
            outcome,
            reason,
            value=canary.value,
            baseline=None if baseline is None else baseline.value,
            limit=limit,
            samples=len(canary.parts),
            no_harm=outcome is Outcome.PASSED,
            valid_looks=state["looks"],
            details={
                "canary": {name: dict(parts) for name, parts in canary.parts.items()},
                "baseline": None
                if baseline is None
                else {name: dict(parts) for name, parts in baseline.parts.items()},
            },
        )

    def _read(self, look: Look, arm: ArmWindow | None, who: str) -> _Arm | Missing:
        parts: dict[str, dict[str, float]] = {}
        for instance, value in told(arm, self._signal):
            found = dict(self._facts(look.start.get(instance, StartFacts())))
            if isinstance(value, Series):
                for labels, number in value.values.items():
                    found[dict(labels).get(self._label, "")] = number
            if self._part not in found:
                why = value.reason if isinstance(value, Missing) else f"{self._part} is absent"
                return Missing(
                    f"no {self._signal.value} from the {who}: {instance}: {why}, and its log does "
                    "not tell"
                )
            parts[instance] = found
        if not parts:
            return Missing(
                f"no {self._signal.value} from the {who}: none of its instances was read"
            )
        worst = max(parts, key=lambda name: parts[name][self._part])
        return _Arm(worst, parts[worst][self._part], parts)


class GraphMemoryGate(StartGate):
    """GPU memory that the captured graphs take."""

    _title, _signal, _label, _part = "Graph memory", Signal.MEMORY, "kind", _GRAPHS

    @property
    def _limit(self) -> float | None:
        return self.spec.max_bytes

    def _show(self, value: float) -> str:
        return size(value)

    def _facts(self, start: StartFacts) -> Mapping[str, float]:
        return start.bytes


class ReadyTimeGate(StartGate):
    """Seconds from the start of the process until the engine is ready; and nothing compiled or
    captured after that, for which a user would have to wait."""

    _title, _signal, _label, _part = "Time until ready", Signal.STARTUP, "stage", _READY

    @property
    def _limit(self) -> float | None:
        return self.spec.max_seconds

    def _show(self, value: float) -> str:
        return seconds(value)

    def _facts(self, start: StartFacts) -> Mapping[str, float]:
        return start.seconds

    def _late(
        self, state: State, canary: _Arm, starts: Mapping[str, StartFacts]
    ) -> tuple[State, str | None]:
        """By the engine's own times of its start, and by its log."""
        known, said = late_work(state.get("late", {}), starts)
        late = said and f"; {said}"
        seen: dict[str, dict[str, float]] = {**state["seen"]}
        for instance, parts in canary.parts.items():
            now = {stage: parts[stage] for stage in _ONCE if stage in parts}
            before = seen.setdefault(instance, now)
            for stage, took in now.items():
                if took > before.get(stage, took) + _CLOCK_S:
                    late = late or (
                        f"; {instance} went on with {stage} after it was ready: from "
                        f"{seconds(before[stage])} to {seconds(took)}, which a request waits for"
                    )
            seen[instance] = {**now, **before}
        return {**state, "seen": seen, "late": known}, late

    def _because(self, canary: _Arm, baseline: _Arm | None) -> str:
        stages = {name: canary.of_worst[name] for name in _STAGES if name in canary.of_worst}
        if not stages:
            return ""
        than = {} if baseline is None else baseline.of_worst
        stage = max(stages, key=lambda name: stages[name] - than.get(name, 0.0))
        against = f" against {seconds(than[stage])}" if stage in than else ""
        return f"; most of it by {stage}, which took {seconds(stages[stage])}{against}"
