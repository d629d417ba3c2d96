"""``warmup``: each bucket of the warm-up plan replayed the graph that it is for, and nothing is
compiled or captured once the engine is ready.

That requests were sent proves no replay; the engine's own count of steps does. Exact, without α,
before any traffic; where an engine does not count, nothing is known and nothing passes. What is
late shows in the engine's log, at any time of the release.
"""

from collections.abc import Mapping

from canaryctl.common.metrics import AnySignal, Signal
from canaryctl.gates.base import GateContext, Look, StartFacts, State
from canaryctl.gates.late_work import late_work
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.gates.readings import told
from canaryctl.gates.records import settle, settled, undecided
from canaryctl.gates.samples import Missing
from canaryctl.gates.spec import GateSpec
from canaryctl.gates.wording import plural

WARMUP = "warmup"
NO_GRAPHS = "NONE"  # a graph mode
MIXED = "mixed"  # how names of buckets of steps with prompts begin (StartFacts.runs)


class WarmupGate:
    """Every bucket with a graph, on every instance of the canary, in every run."""

    hard = False

    def __init__(self, spec: GateSpec, context: GateContext) -> None:
        del context  # nothing is compared with a baseline
        self.spec = spec

    def needs(self) -> frozenset[AnySignal]:
        return frozenset({Signal.STEPS})

    def start(self) -> State:
        return {"failed": None, "looks": 0, "late": {}}

    def look(self, state: State, look: Look) -> tuple[State, GateResult]:
        kept = settled(state)
        if kept is not None:
            return state, kept
        values = tuple(told(look.canary, Signal.STEPS))
        starts = {n: look.start[n] for n, _ in values if n in look.start}
        known, late = late_work(state.get("late", {}), starts)
        state = {**state, "late": known}
        if late is not None:
            result = self._result(state, Outcome.FAILED, f"not all was warm: {late}", 1, {})
            return settle(state, result), result
        missing = [v.reason for _, v in values if isinstance(v, Missing)]
        if missing or not values:
            why = missing[0] if missing else "none of its instances was read"
            return state, undecided(self.spec.name, state, f"no steps from the canary: {why}")
        mode = (look.declared or {}).get("graph_mode")
        state = {**state, "looks": state["looks"] + 1}
        result = self._judge(state, starts, mode)
        return settle(state, result), result

    def _judge(
        self, state: State, starts: Mapping[str, StartFacts], mode: str | None
    ) -> GateResult:
        runs = {f"{name}: {b}": n for name, s in starts.items() for b, n in s.runs.items()}
        replays = {f"{name}: {b}": n for name, s in starts.items() for b, n in s.replays.items()}
        details = {"runs": runs, "replays": replays}
        idle = [bucket for bucket, least in replays.items() if least < 1]
        if idle and mode != NO_GRAPHS:
            reason = (
                f"warmed and not replayed: {', '.join(idle)}; in a run of each no step replayed "
                "its graph, so that users would run eager, or wait for a capture"
            )
            return self._result(state, Outcome.FAILED, reason, len(idle), details)
        if mode == NO_GRAPHS:
            said = "no graph is declared, so that none has to be replayed"
            return self._result(state, Outcome.PASSED, said, 0, details)
        silent = sorted(runs.keys() - replays.keys())
        if silent or not runs:
            why = f"the engine did not say of {', '.join(silent)}" if silent else "nothing was run"
            why = f"not known whether graphs were replayed: {why}"
            return undecided(self.spec.name, state, why, details)
        mixed = sum(f": {MIXED} " in name for name in replays)
        said = plural(len(replays) - mixed, "decode bucket")
        said += f" and {plural(mixed, 'mixed-token bucket')}" if mixed else ""
        said += " replayed in every run of the warm-up"
        return self._result(state, Outcome.PASSED, said, 0, details)

    def _result(
        self,
        state: State,
        outcome: Outcome,
        reason: str,
        value: int,
        details: Mapping[str, Mapping[str, int]],
    ) -> GateResult:
        return GateResult(
            self.spec.name,
            outcome,
            reason,
            value=value,
            limit=0,
            samples=sum(details.get("runs", {}).values()),
            no_harm=outcome is Outcome.PASSED,
            valid_looks=state["looks"],
            details=details,
        )
