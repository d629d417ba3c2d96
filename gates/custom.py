"""Gates that an artifact makes of the engine's own metrics, under a name of their own.

``numerator`` and ``denominator``: events per observation, two counters. ``histogram`` and
``quantile``: a latency. They are judged by the rules of error_rate and of ttft_p99; only where
the numbers come from is the artifact's. Whether the engine exports them is known at the first
look: a name that it does not is an error with those that come close, never a pass.
"""

import re
from collections.abc import Iterable

from canaryctl.common.metrics import AnySignal, CustomSignal, MetricKind, MetricRef
from canaryctl.gates.base import GateContext, Look
from canaryctl.gates.counts import PHI_STEPS, CountGate, Tally, tally_of
from canaryctl.gates.latency import PHI_TOKENS, Asked, LatencyGate
from canaryctl.gates.samples import ArmWindow, Missing
from canaryctl.gates.spec import GateSpec, MetricSelector

PHI_UNKNOWN = PHI_STEPS
"""How far counts of an unknown kind depend on each other is unknown as well: as engine steps."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
_PARTS = ("_bucket", "_count", "_sum")
_RATIO, _HISTOGRAM = ("numerator", "denominator"), ("histogram", "quantile")


class CustomRatioGate(CountGate):
    """Events of one counter per observation of another."""

    def __init__(self, spec: GateSpec, context: GateContext) -> None:
        if spec.numerator is None or spec.denominator is None:
            raise ValueError(f"{spec.name} lacks numerator or denominator; check specs first")
        self._title = spec.name
        self._unit = f"counts of {_shown(spec.denominator)}"
        self._subject = f"are in {_shown(spec.numerator)}"
        self._phi = PHI_UNKNOWN if spec.phi is None else spec.phi
        self._events = _signal(spec, "numerator", spec.numerator, MetricKind.COUNTER)
        self._observations = _signal(spec, "denominator", spec.denominator, MetricKind.COUNTER)
        super().__init__(spec, context)

    def needs(self) -> frozenset[AnySignal]:
        return frozenset({self._events, self._observations})

    def _tally(self, look: Look, arm: ArmWindow | None, who: str) -> Tally | Missing:
        del look
        return tally_of(arm, who, events=self._events, observations=self._observations)


def custom_histogram_gate(spec: GateSpec, context: GateContext) -> LatencyGate:
    """A quantile of a histogram of seconds."""
    if spec.histogram is None or spec.quantile is None:
        raise ValueError(f"{spec.name} lacks histogram or quantile; check specs first")
    asked = Asked(
        signal=_signal(spec, "histogram", spec.histogram, MetricKind.HISTOGRAM),
        quantiles=(spec.quantile,),
        title=f"{spec.name} ({spec.histogram.metric})",
        unit="observations",
        phi=PHI_TOKENS if spec.phi is None else spec.phi,
    )
    return LatencyGate(spec, context, asked)


def _shown(selector: MetricSelector) -> str:
    labels = " and ".join(f"{name}={pattern}" for name, pattern in selector.labels.items())
    return f"{selector.metric} with {labels}" if labels else selector.metric


def _signal(spec: GateSpec, part: str, selector: MetricSelector, kind: MetricKind) -> CustomSignal:
    ref = MetricRef(
        selector.metric,
        kind,
        match=selector.labels,
        sum_over=selector.sum_over,
        born_at_zero=selector.absent is None,
        exists_with=selector.metric if selector.absent == "zero" else None,
    )
    return CustomSignal(f"{spec.name}.{part}", ref)


def faults(spec: GateSpec) -> Iterable[tuple[str, str]]:
    """What is wrong with how a custom gate is made: (field, message)."""
    if _NAME.fullmatch(spec.name) is None:
        yield (
            "name",
            (
                f"found {spec.name!r}, expected lower-case letters, digits and underscores, "
                "at most 63, a letter first"
            ),
        )
    given = [part for part in (*_RATIO, *_HISTOGRAM) if getattr(spec, part) is not None]
    if set(given) not in (set(_RATIO), set(_HISTOGRAM)):
        yield (
            given[0],
            (
                f"found {' and '.join(given)}, expected either numerator and denominator, or "
                "histogram and quantile"
            ),
        )
    if spec.histogram is not None:
        yield from _histogram_faults(spec.histogram)


def _histogram_faults(histogram: MetricSelector) -> Iterable[tuple[str, str]]:
    name = histogram.metric
    part = next((part for part in _PARTS if name.endswith(part)), None)
    if part is not None:
        yield (
            "histogram",
            f"found {name}, expected the histogram's own name: {name.removesuffix(part)}",
        )
    elif not name.endswith("_seconds"):
        yield "histogram", f"found {name}, expected a histogram of seconds, named …_seconds"
    if histogram.absent is not None:
        yield "histogram", "absent: zero is for counters; a histogram that is absent is unknown"
