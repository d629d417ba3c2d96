"""``max_concurrency``: requests an engine can hold at once, against the baseline's. It follows
from limits and KV cache alone, so that it is exact and spends no α."""

import math
from collections.abc import Mapping

from canaryctl.common.metrics import Signal
from canaryctl.gates.base import GateContext, Look, State
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.gates.readings import each_series
from canaryctl.gates.records import settle, settled
from canaryctl.gates.samples import AMBIGUOUS, ArmWindow, Missing
from canaryctl.gates.spec import GateSpec
from canaryctl.gates.wording import change, percent

MAX_CONCURRENCY = "max_concurrency"
NAMES = (MAX_CONCURRENCY,)


class MaxConcurrencyGate:
    """The least of ``max_num_seqs`` and KV tokens / ``max_model_len``, of the arm's least
    instance."""

    hard = False

    def __init__(self, spec: GateSpec, context: GateContext) -> None:
        del context  # the baseline comes with each look
        self.spec = spec
        self._tolerance = spec.max_regression or 0.0

    def needs(self) -> frozenset[Signal]:
        return frozenset({Signal.CACHE_CONFIG})

    def start(self) -> State:
        return {"failed": None, "looks": 0}

    def look(self, state: State, look: Look) -> tuple[State, GateResult]:
        kept = settled(state)
        if kept is not None:
            return state, kept
        canary = _concurrency(look.canary, look.canary_limits, "canary")
        baseline = _concurrency(look.baseline, look.baseline_limits, "baseline")
        missing = next((m for m in (canary, baseline) if isinstance(m, Missing)), None)
        if isinstance(canary, Missing) or isinstance(baseline, Missing):
            why = missing.reason if missing is not None else ""
            outcome = Outcome.ERROR if AMBIGUOUS in why else Outcome.INCONCLUSIVE
            return state, GateResult(
                self.spec.name, outcome, f"unknown: {why}", valid_looks=state["looks"]
            )
        state = {**state, "looks": state["looks"] + 1}
        limit = (1 - self._tolerance) * baseline
        held = canary >= limit * (1 - 1e-9)
        result = GateResult(
            self.spec.name,
            Outcome.PASSED if held else Outcome.FAILED,
            f"the canary holds {canary:.1f} requests at once against {baseline:.1f} of the "
            f"baseline ({change(canary, baseline)}, allowed -{percent(self._tolerance)})",
            value=canary,
            baseline=baseline,
            limit=limit,
            samples=len(look.canary.deltas),
            no_harm=held,
            valid_looks=state["looks"],
        )
        return settle(state, result), result


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
