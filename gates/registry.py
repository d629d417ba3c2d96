"""Gates by name: what there is, which limits each takes, and how one is made."""

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from canaryctl.common.errors import UnknownNameError
from canaryctl.common.metrics import AnySignal
from canaryctl.common.units import format_ratio
from canaryctl.gates import (
    attestation,
    capacity,
    counts,
    custom,
    events,
    graphs,
    latency,
    parity,
    startup,
    step_time,
    unfinished,
    warmup,
)
from canaryctl.gates.base import Gate, GateContext
from canaryctl.gates.spec import GateSpec

LIMITS = ("max_regression", "max_ratio", "min_ratio", "max", "max_seconds", "max_bytes", "max_nats")


@dataclass(frozen=True, slots=True)
class Family:
    """``limits``: those that the gate takes, of which it needs one unless it ``has_default``.
    ``one_look``: what it judges is there once the canary is warm, before any traffic."""

    make: Callable[[GateSpec, GateContext], Gate]
    limits: tuple[str, ...]
    has_default: bool = False
    spends_alpha: bool = True
    hard: bool = False
    has_own_exposure: bool = False
    one_look: bool = False

    @property
    def plans(self) -> bool:
        """Whether its exposure is that of the release's ``detectable``."""
        return self.spends_alpha and not self.has_own_exposure


# What a gate reads is the same in each.
_ANY_RELEASE = GateContext(gates_total=1, detectable=1.0, interval_s=1.0, canary_share=0.5)

Mistake = tuple[int, str, str]
"""(index of the gate in the list, its field, message); the field is ``name`` for the gate as a
whole."""


_LATENCY = Family(latency.LatencyGate, ("max_regression", "max_seconds"))
GATES: Mapping[str, Family] = {
    **dict.fromkeys(latency.NAMES, _LATENCY),
    counts.ERROR_RATE: Family(counts.ErrorRateGate, ("max_ratio", "max_regression")),
    graphs.GRAPH_FALLBACK: Family(graphs.GraphFallbackGate, ("max_ratio", "max_regression")),
    graphs.GRAPH_HIT: Family(graphs.GraphHitGate, ("min_ratio",)),
    graphs.BEYOND_GRID: Family(graphs.BeyondGridGate, ("max_ratio",)),
    graphs.PADDING_RATIO: Family(graphs.PaddingRatioGate, ("max_ratio", "max_regression")),
    step_time.STEP_TIME: Family(step_time.StepTimeGate, ("max_regression",)),
    unfinished.DISPATCHED_VS_FINISHED: Family(
        unfinished.UnfinishedGate, ("max_seconds", "max_regression"), has_own_exposure=True
    ),
    startup.GRAPH_MEMORY: Family(
        startup.GraphMemoryGate, ("max_bytes", "max_regression"), spends_alpha=False, one_look=True
    ),
    startup.READY_TIME: Family(
        startup.ReadyTimeGate, ("max_seconds", "max_regression"), spends_alpha=False, one_look=True
    ),
    warmup.WARMUP: Family(
        warmup.WarmupGate, (), has_default=True, spends_alpha=False, one_look=True
    ),
    attestation.ATTESTATION: Family(
        attestation.AttestationGate, (), has_default=True, spends_alpha=False, one_look=True
    ),
    parity.OUTPUT_PARITY: Family(
        parity.OutputParityGate, ("max_ratio", "max_nats"), has_own_exposure=True, one_look=True
    ),
    capacity.MAX_CONCURRENCY: Family(
        capacity.MaxConcurrencyGate, ("max_regression",), spends_alpha=False, one_look=True
    ),
    events.OOM: Family(events.OomGate, ("max",), spends_alpha=False, hard=True),
    events.ENGINE_EXIT: Family(
        events.EngineExitGate, ("max",), has_default=True, spends_alpha=False, hard=True
    ),
    events.PROGRESS: Family(events.ProgressGate, ("max_seconds",), spends_alpha=False, hard=True),
}
CUSTOM_RATIO = Family(custom.CustomRatioGate, ("max_ratio", "max_regression"))
CUSTOM_HISTOGRAM = Family(custom.custom_histogram_gate, ("max_regression", "max_seconds"))
HARD_NAMES = frozenset(name for name, family in GATES.items() if family.hard)


def known_names() -> tuple[str, ...]:
    return tuple(sorted(GATES))


def build(spec: GateSpec, context: GateContext) -> Gate:
    """The gate; UnknownNameError for a name that is none. Check the specs first."""
    return _family(spec).make(spec, context)


def needs(spec: GateSpec) -> frozenset[AnySignal]:
    """The signals that the gate reads, whatever the release; none of a gate with mistakes."""
    if check([spec]):
        return frozenset()
    return build(spec, _ANY_RELEASE).needs()


def spends_alpha(spec: GateSpec) -> bool:
    """Whether the gate counts in ``GateContext.gates_total``."""
    return _family(spec).spends_alpha


def compares_latency(spec: GateSpec) -> bool:
    """Whether the gate compares latencies of both arms, which needs an equal load."""
    return spec.max_regression is not None and _family(spec) in (_LATENCY, CUSTOM_HISTOGRAM)


def needs_equal_load(spec: GateSpec) -> bool:
    """Whether what the gate compares depends on the load of an engine."""
    piles_up = spec.name == unfinished.DISPATCHED_VS_FINISHED and spec.max_regression is not None
    return piles_up or compares_latency(spec)


def needs_one_look(spec: GateSpec) -> bool:
    """Whether the first look at a warm canary decides the gate."""
    return _family(spec).one_look


def has_fixed_limit(spec: GateSpec) -> bool:
    """Whether the gate can judge a canary that there is nothing to compare with."""
    fixed = (spec.max_ratio, spec.min_ratio, spec.max_seconds, spec.max_bytes, spec.max_nats)
    return any(limit is not None for limit in fixed)


def undecidable(spec: GateSpec, context: GateContext) -> str | None:
    """Why this gate can never support promotion in this release, known before it begins."""
    family = _family(spec)
    if family.hard or spec.max_regression is None:
        return None
    if not context.has_baseline:
        lacks = "there is no baseline to compare max_regression with"
        return None if has_fixed_limit(spec) else lacks
    if family.plans and context.detectable <= spec.max_regression:
        return (
            f"max_regression {format_ratio(spec.max_regression)} is not below the detectable "
            f"{format_ratio(context.detectable)}: no exposure can show that nothing happened"
        )
    return None


def check(specs: Sequence[GateSpec]) -> list[Mistake]:
    """Everything that is wrong with a list of gates."""
    mistakes: list[Mistake] = []
    seen: dict[str, int] = {}
    for index, spec in enumerate(specs):
        if spec.name not in GATES and not spec.is_custom:
            mistakes.append((index, "name", _unknown(spec.name)))
            continue
        if spec.name in seen:
            message = f"{spec.name} is gate {seen[spec.name] + 1} already; each name goes once"
            mistakes.append((index, "name", message))
        seen.setdefault(spec.name, index)
        found = [*_custom(spec), *_limits(spec), *_numbers(spec)]
        mistakes += [(index, field, message) for field, message in found]
    return mistakes


def _family(spec: GateSpec) -> Family:
    if spec.name in GATES:
        return GATES[spec.name]
    if spec.numerator is not None or spec.denominator is not None:
        return CUSTOM_RATIO
    if spec.histogram is not None or spec.quantile is not None:
        return CUSTOM_HISTOGRAM
    raise UnknownNameError("gate", spec.name, GATES)


def _custom(spec: GateSpec) -> Iterable[tuple[str, str]]:
    if spec.name in GATES:
        if spec.is_custom or spec.phi is not None:
            yield (
                "name",
                (
                    f"{spec.name} says itself what it measures; a gate of your own metrics "
                    "(numerator and denominator, or histogram and quantile) needs a name of its own"
                ),
            )
        return
    yield from custom.faults(spec)


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name, GATES, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return (
        f"found the gate {name!r}, expected one of {', '.join(known_names())}{hint}, or a gate of "
        "your own with numerator and denominator, or histogram and quantile"
    )


def _limits(spec: GateSpec) -> list[tuple[str, str]]:
    family = _family(spec)
    given = [limit for limit in LIMITS if getattr(spec, limit) is not None]
    takes = " or ".join(family.limits) or "none"
    found = [
        (limit, f"{spec.name} takes no {limit}; it takes {takes}")
        for limit in given
        if limit not in family.limits
    ]
    if not family.has_default and not any(limit in family.limits for limit in given):
        found.append(("name", f"{spec.name} has no limit; it needs {takes}"))
    if spec.interpolate and spec.name not in latency.NAMES and spec.histogram is None:
        found.append(("interpolate", f"{spec.name} takes no interpolate: it reads no latency"))
    if spec.confirm and spec.name not in capacity.NAMES:
        found.append(("confirm", f"{spec.name} takes no confirm: it is for max_concurrency"))
    return found


def _numbers(spec: GateSpec) -> list[tuple[str, str]]:
    found = []
    for name, value in (("alpha", spec.alpha), ("beta", spec.beta)):
        if not 0 < value < 0.5:
            found.append(
                (name, f"found {format_ratio(value)}, expected more than 0 % and less than 50 %")
            )
    for name, ratio in (("max_ratio", spec.max_ratio), ("min_ratio", spec.min_ratio)):
        fault = None if ratio is None else _ratio_fault(spec, name, ratio)
        if ratio is not None and fault is not None:
            found.append((name, f"found {format_ratio(ratio)}, {fault}"))
    if spec.max_seconds is not None and spec.max_seconds <= 0:
        found.append(("max_seconds", "found 0s, expected more"))
    if spec.max_regression is not None:
        found += _tolerance(spec, spec.max_regression)
    return found


def _ratio_fault(spec: GateSpec, name: str, ratio: float) -> str | None:
    if spec.name == graphs.PADDING_RATIO:
        return graphs.ratio_fault(ratio)
    if 0 < ratio < 1:
        return None
    unshowable = "0 %" if name == "max_ratio" else "100 %"
    return (
        f"expected more than 0 % and less than 100 % ({unshowable} is what no number of "
        "observations can show)"
    )


def _tolerance(spec: GateSpec, tolerance: float) -> list[tuple[str, str]]:
    if spec.name in capacity.NAMES:
        if tolerance < 1:
            return []
        return [("max_regression", f"found {format_ratio(tolerance)}, expected less than 100 %")]
    if (compares_latency(spec) or spec.name == step_time.STEP_TIME) and tolerance <= 0:
        return [("max_regression", "found 0%, expected more: no two runs are equally fast")]
    if "margin" in spec.model_fields_set and spec.margin <= tolerance:
        expected = f"more than max_regression ({format_ratio(tolerance)}), which is allowed"
        return [("margin", f"found {format_ratio(spec.margin)}, expected {expected}")]
    return []
