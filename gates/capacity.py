"""``max_concurrency``: requests an engine can hold at once, against the baseline's.

It follows from limits and KV cache alone, so that it is exact and spends no α. With ``confirm:
saturation`` the canary is driven as well, before any traffic, by ⌊(1−r)·C_B⌋ requests of
``max_model_len`` at once: those that it does not hold, because it lets them wait, preempts or
fails them, are judged by a one-sample Bernoulli e-process against a budget of misses.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

from canaryctl.common.metrics import AnySignal, Signal
from canaryctl.gates.base import GateContext, Look, State
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.gates.readings import each_series, told
from canaryctl.gates.records import settle, settled, undecided
from canaryctl.gates.rules import standing
from canaryctl.gates.rules.share_limit import ShareLimit
from canaryctl.gates.rules.standing import Bars
from canaryctl.gates.samples import ArmWindow, Missing, Series
from canaryctl.gates.spec import GateSpec
from canaryctl.gates.wording import change, percent

MAX_CONCURRENCY = "max_concurrency"
NAMES = (MAX_CONCURRENCY,)

MISSES = 0.01
"""The share of requests that may be missed while the canary is driven."""

_LONGEST = 4
"""It is driven no longer than so many times what a pass takes of one that misses none."""


class MaxConcurrencyGate:
    """The least of ``max_num_seqs`` and KV tokens / ``max_model_len``, of the arm's least
    instance."""

    hard = False

    def __init__(self, spec: GateSpec, context: GateContext) -> None:
        self.spec = spec
        self._tolerance = spec.max_regression or 0.0
        # Its part of α comes on top of those that are counted, since few releases drive it.
        counted = replace(context, gates_total=context.gates_total + 1)
        bars = Bars.of(spec, counted, rules=1)
        self._misses = ShareLimit(MISSES, 1.0, bars, "were not held", "requests")
        self._most = _LONGEST * (self._misses.to_pass(0.0) or math.inf)

    def needs(self) -> frozenset[AnySignal]:
        read = {Signal.CACHE_CONFIG, Signal.RUNNING, Signal.WAITING}
        return frozenset(read | {Signal.PREEMPTIONS} if self.spec.confirm else read)

    def start(self) -> State:
        begun = {"failed": None, "looks": 0, "held": 0.0, "misses": self._misses.start()}
        return {**begun, "undriven": None} if self.spec.confirm else begun

    def awaits_driving(self, state: State) -> bool:
        """Whether nothing is recorded yet of driving the canary, which the gate asks for."""
        return bool(
            self.spec.confirm
            and settled(state) is None
            and not (state["misses"]["n"] or state["undriven"])
        )

    def drive_at(self, look: Look) -> int | Missing | None:
        """How many requests the canary has to hold at once; Missing: that is not known; None: by
        its own account it does not, so that driving it would tell nothing more."""
        canary = _concurrency(look.canary, look.canary_limits, "canary")
        baseline = _concurrency(look.baseline, look.baseline_limits, "baseline")
        if isinstance(canary, Missing):
            return canary
        if isinstance(baseline, Missing):
            return baseline
        together = math.floor(self._limit(baseline) * (1 + 1e-9))
        if not self._holds(canary, baseline):
            return None
        return together or Missing(
            f"{self._limit(baseline):.2f} requests at once are less than one"
        )

    def driven_enough(self, held: int, missed: int) -> bool:
        """Whether so many requests decide it, or more would be too many."""
        n = held + missed
        state = self._misses.look(self._misses.start(), 0.0, k_fail=missed, k_pass=missed, n=n)
        found = self._misses.standing(state)
        return n > 0 and (found.passed or found.failed or n >= self._most)

    def _limit(self, baseline: float) -> float:
        return (1 - self._tolerance) * baseline

    def _holds(self, canary: float, baseline: float) -> bool:
        return canary >= self._limit(baseline) * (1 - 1e-9)

    def look(self, state: State, look: Look) -> tuple[State, GateResult]:
        kept = settled(state)
        if kept is not None:
            return state, kept
        if isinstance(look.saturation, Missing) and self.spec.confirm:
            state = {**state, "undriven": look.saturation.reason}
        elif isinstance(look.saturation, tuple):
            held, missed = look.saturation
            misses = self._misses.look(
                state["misses"], look.at, k_fail=missed, k_pass=missed, n=held + missed
            )
            state = {**state, "misses": misses}
        canary = _concurrency(look.canary, look.canary_limits, "canary")
        baseline = _concurrency(look.baseline, look.baseline_limits, "baseline")
        missing = next((m for m in (canary, baseline) if isinstance(m, Missing)), None)
        if isinstance(canary, Missing) or isinstance(baseline, Missing):
            why = missing.reason if missing is not None else ""
            return state, undecided(self.spec.name, state, f"unknown: {why}")
        state = {
            **state,
            "looks": state["looks"] + 1,
            "held": max(state["held"], _held_while_others_waited(look.canary)),
        }
        result = self._result(state, canary, baseline, len(look.canary.deltas))
        return settle(state, result), result

    def _result(self, state: State, canary: float, baseline: float, instances: int) -> GateResult:
        limit = self._limit(baseline)
        outcome = Outcome.PASSED if self._holds(canary, baseline) else Outcome.FAILED
        reason = (
            f"the canary holds {canary:.1f} requests at once against {baseline:.1f} of the "
            f"baseline ({change(canary, baseline)}, allowed -{percent(self._tolerance)})"
        )
        if state["held"]:
            reason += f"; it was seen to hold {state['held']:.0f} while others waited"
        driven = self._misses.standing(state["misses"])
        if state["misses"]["n"] and outcome is Outcome.PASSED:
            outcome = standing.outcome([driven])
            reason += f"; driven at {math.floor(limit)} at once, {driven.claim}"
            if outcome is Outcome.INCONCLUSIVE:
                reason += f"; {driven.waits}"
            else:
                sure = standing.chance(self.spec.alpha)
                shown = f"shown at confidence {percent(1 - self.spec.beta)}"
                reason += f"; {sure if outcome is Outcome.FAILED else shown}"
        elif self.spec.confirm and outcome is Outcome.PASSED:
            outcome = Outcome.INCONCLUSIVE
            why = state["undriven"] or "it was not driven yet"
            reason += f"; to be confirmed by {math.floor(limit)} at once: {why}"
        return GateResult(
            self.spec.name,
            outcome,
            reason,
            value=canary,
            baseline=baseline,
            limit=limit,
            samples=instances,
            needed=driven.needed if outcome is Outcome.INCONCLUSIVE else None,
            no_harm=outcome is Outcome.PASSED,
            valid_looks=state["looks"],
            details={"held": state["held"], "driven": dict(driven.details)},
        )


def _held_while_others_waited(arm: ArmWindow) -> float:
    """Requests that one instance was running while it let others wait: only then is what runs
    what it can hold."""
    waiting = {n: v.total for n, v in told(arm, Signal.WAITING) if isinstance(v, Series)}
    running = {n: v.total for n, v in told(arm, Signal.RUNNING) if isinstance(v, Series)}
    full = [r for n, r in running.items() if waiting.get(n, 0.0) > 0 and math.isfinite(r)]
    return max(full, default=0.0)


def _concurrency(
    arm: ArmWindow | None, limits: Mapping[str, int] | None, who: str
) -> float | Missing:
    if limits is None or not all(limits.get(k, 0) > 0 for k in ("max_num_seqs", "max_model_len")):
        return Missing(f"max_num_seqs and max_model_len of the {who} are not known")
    infos = each_series(arm, Signal.CACHE_CONFIG, who)
    if isinstance(infos, Missing):
        return infos
    held = []
    for instance, info in infos:
        for labels in info.values:
            tokens = _kv_tokens(dict(labels))
            if tokens is None:
                return Missing(
                    f"{instance} of the {who} gives neither kv_cache_size_tokens nor "
                    "num_gpu_blocks and block_size as numbers"
                )
            held.append(min(float(limits["max_num_seqs"]), tokens / limits["max_model_len"]))
    if not held:
        return Missing(f"the {who} gives no cache configuration")
    return min(held)


def _kv_tokens(labels: Mapping[str, str]) -> float | None:
    stated = _number(labels.get("kv_cache_size_tokens"))
    if stated is not None:
        return stated
    blocks, size = _number(labels.get("num_gpu_blocks")), _number(labels.get("block_size"))
    return None if blocks is None or size is None else blocks * size


def _number(text: str | None) -> float | None:
    try:
        found = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return found if math.isfinite(found) and found > 0 else None
