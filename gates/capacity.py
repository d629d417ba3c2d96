"""``max_concurrency``: requests an engine can hold at once, against the baseline's.

It follows from limits and KV cache alone, so that it is exact and spends no α. Where the canary is
driven at the concurrency that it has to hold, ⌊(1−r)·C_B⌋, the requests that miss their objective
there are judged as well: a one-sample Bernoulli e-process against a budget of misses.
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
"""The share of requests that may miss their objective while the canary is driven."""


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
        self._misses = ShareLimit(MISSES, 1.0, bars, "missed their objective", "requests")

    def needs(self) -> frozenset[AnySignal]:
        return frozenset({Signal.CACHE_CONFIG, Signal.RUNNING, Signal.WAITING})

    def start(self) -> State:
        return {"failed": None, "looks": 0, "held": 0.0, "misses": self._misses.start()}

    def look(self, state: State, look: Look) -> tuple[State, GateResult]:
        kept = settled(state)
        if kept is not None:
            return state, kept
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
        if look.saturation is not None:
            kept_it, missed = look.saturation
            state["misses"] = self._misses.look(
                state["misses"], look.at, k_fail=missed, k_pass=missed, n=kept_it + missed
            )
        result = self._result(state, canary, baseline, len(look.canary.deltas))
        return settle(state, result), result

    def _result(self, state: State, canary: float, baseline: float, instances: int) -> GateResult:
        limit = (1 - self._tolerance) * baseline
        outcome = Outcome.PASSED if canary >= limit * (1 - 1e-9) else Outcome.FAILED
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
