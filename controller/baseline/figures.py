"""What an engine did between two scrapes and what its clients saw, as figures. Pure.

Every figure that the engine or the client cannot give is None: unknown, never zero.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from canaryctl.common.metrics import AnySignal, Signal
from canaryctl.controller.baseline.slo import Goodput, Slo, goodput
from canaryctl.gates.deltas import Skipped, delta
from canaryctl.gates.samples import Histogram, HistogramSet, Labels, Scrape, Series, Value
from canaryctl.runtimes.load.report import LoadReport, Outcome

SIGNALS: Final = (
    Signal.STEPS,
    Signal.TOKENS_ACTUAL,
    Signal.TOKENS_PADDED,
    Signal.STEP_TIME,
    Signal.ITL,
    Signal.MEMORY,
    Signal.STARTUP,
    Signal.CACHE_CONFIG,
    Signal.ATTESTATION,
)
"""What a baseline run reads of an engine."""

SHARES: Final = (0.5, 0.95, 0.99)
LATENCIES: Final = ("ttft", "tpot", "itl", "e2e")


@dataclass(frozen=True, slots=True)
class Latency:
    """Quantiles in seconds by nearest rank; of ITL, the engine's upper bucket edge of it (None
    where that is unbounded). ``count``: observations."""

    p50: float | None
    p95: float | None
    p99: float | None
    count: int


@dataclass(frozen=True, slots=True)
class Graphs:
    """Shares from 0 to 1. ``coverage``: of all steps those that replayed a graph. Of pure-decode
    steps that a captured graph is for, ``hit`` replayed one (``full`` in mode FULL) and
    ``fallback`` ran eager; ``beyond``: pure-decode steps larger than the grid, of all of them.
    ``padding``: tokens computed beyond those scheduled, over those scheduled. ``untold``: steps
    of which the engine cannot tell whether they were pure decode."""

    steps: float
    coverage: float | None
    hit: float | None
    full: float | None
    fallback: float | None
    beyond: float | None
    padding: float | None
    untold: float


@dataclass(frozen=True, slots=True)
class DecodeSteps:
    """Steps of decodes alone of one mode and captured size: how many, the tokens that they were
    asked for, and the seconds that one took in the mean (None: not timed)."""

    mode: str
    bucket: int
    steps: float
    tokens: float
    mean_s: float | None


@dataclass(frozen=True, slots=True)
class Run:
    """One stage under the load, once. ``unknown``: what the engine did not say, and why.

    ``saturated``: the client could not keep to its plan, so that latencies are its own.
    ``goodput``: within the artifact's SLO; None also where it has none. ``begun_at``: of the scrape
    before the load, in seconds since 1970.
    """

    requests: int
    failed: int
    elapsed_s: float
    output_tokens: int
    saturated: bool
    latency: Mapping[str, Latency | None]
    graphs: Graphs | None
    unknown: tuple[str, ...] = ()
    goodput: Goodput | None = None
    begun_at: float | None = None
    decode_steps: tuple[DecodeSteps, ...] = ()

    @property
    def decode_step_s(self) -> float | None:
        """The mean over all that were timed; None where none was."""
        timed = [(one.steps, one.mean_s) for one in self.decode_steps if one.mean_s is not None]
        count = sum(steps for steps, _ in timed)
        return sum(steps * mean_s for steps, mean_s in timed) / count if count else None

    @property
    def tokens_per_s(self) -> float:
        return self.output_tokens / self.elapsed_s

    @property
    def tokens_per_s_within_slo(self) -> float | None:
        return None if self.goodput is None else self.goodput.output_tokens / self.elapsed_s


def measured(
    report: LoadReport, outcomes: Sequence[Outcome], before: Scrape, after: Scrape, slo: Slo
) -> Run:
    """A run from what its clients saw, and from the engine's counts around it."""
    good = [outcome for outcome in outcomes if outcome.failed is None]
    found = delta(before, after)
    values: Mapping[AnySignal, Value] = {} if isinstance(found, Skipped) else found.values
    unknown = [] if not isinstance(found, Skipped) else [f"the engine's counts: {found.reason}"]
    graphs = graphs_of(values)
    if isinstance(graphs, str):
        unknown += [] if isinstance(found, Skipped) else [f"graphs: {graphs}"]
    itl = values.get(Signal.ITL)
    if not isinstance(itl, Histogram):
        unknown += [] if isinstance(found, Skipped) else [f"itl: {_why(itl)}"]
    within = goodput(outcomes, slo, asked=report.sent + report.not_sent) if slo else None
    if isinstance(within, str):
        unknown.append(f"goodput: {within}")
    return Run(
        requests=report.sent,
        failed=report.failed + report.unfinished + report.not_sent,
        elapsed_s=report.elapsed_s,
        output_tokens=sum(outcome.output_tokens for outcome in good),
        saturated=report.saturated,
        latency={
            "ttft": ranked(outcome.ttft_s for outcome in good),
            "tpot": ranked(outcome.tpot_s for outcome in good),
            "itl": edged(itl) if isinstance(itl, Histogram) else None,
            "e2e": ranked(outcome.e2e_s for outcome in good),
        },
        graphs=None if isinstance(graphs, str) else graphs,
        unknown=tuple(unknown),
        goodput=None if isinstance(within, str) else within,
        begun_at=before.at,
        decode_steps=decode_steps_of(values),
    )


def graphs_of(values: Mapping[AnySignal, Value]) -> Graphs | str:
    """The counted steps as shares; why not, in words, where the engine does not count them."""
    counted = values.get(Signal.STEPS)
    if not isinstance(counted, Series):
        return _why(counted)
    steps = [(dict(labels), count) for labels, count in counted.values.items()]

    def sum_of(*modes: str, beyond: bool | None = None, pure: str | None = "true") -> float:
        return sum(
            count
            for said, count in steps
            if (not modes or said["mode"] in modes)
            and (pure is None or said["pure_decode"] == pure)
            and (beyond is None or (said.get("reason") == "beyond_grid") is beyond)
        )

    total = sum_of(pure=None)
    full, replayed = sum_of("FULL"), sum_of("FULL", "PIECEWISE")
    fallback, beyond = sum_of("NONE", beyond=False), sum_of("NONE", beyond=True)
    eligible = replayed + fallback
    return Graphs(
        steps=total,
        coverage=_share(sum_of("FULL", "PIECEWISE", pure=None), total),
        hit=_share(replayed, eligible),
        full=_share(full, eligible),
        fallback=_share(fallback, eligible),
        beyond=_share(beyond, eligible + beyond),
        padding=_padding(values),
        untold=sum_of(pure="unknown"),
    )


def decode_steps_of(values: Mapping[AnySignal, Value]) -> tuple[DecodeSteps, ...]:
    """By mode and size; none where the engine does not count its steps or their tokens."""
    counted, asked = values.get(Signal.STEPS), values.get(Signal.TOKENS_ACTUAL)
    if not isinstance(counted, Series) or not isinstance(asked, Series):
        return ()
    found: dict[tuple[str, int], list[float]] = {}
    for labels, count in counted.values.items():
        said = dict(labels)
        if said["pure_decode"] == "true" and count:
            one = found.setdefault((said["mode"], int(said["bucket"])), [0.0, 0.0])
            one[0] += count
            one[1] += asked.values[labels]
    means = _mean_step_s(values.get(Signal.STEP_TIME))
    return tuple(
        DecodeSteps(mode, bucket, count, tokens, means.get((mode, bucket)))
        for (mode, bucket), (count, tokens) in sorted(found.items())
    )


def _mean_step_s(value: Value | None) -> dict[tuple[str, int], float]:
    if not isinstance(value, HistogramSet):
        return {}
    said = ((dict(labels), histogram) for labels, histogram in value.histograms.items())
    return {
        (labels["mode"], int(labels["bucket"])): histogram.sum / histogram.count
        for labels, histogram in said
        if histogram.count
    }


def _padding(values: Mapping[AnySignal, Value]) -> float | None:
    actual, padded = values.get(Signal.TOKENS_ACTUAL), values.get(Signal.TOKENS_PADDED)
    if not isinstance(actual, Series) or not isinstance(padded, Series) or not actual.total:
        return None
    return padded.total / actual.total - 1


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def ranked(values: Iterable[float | None]) -> Latency | None:
    """Quantiles of single values by nearest rank."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    p50, p95, p99 = (known[math.ceil(share * len(known)) - 1] for share in SHARES)
    return Latency(p50, p95, p99, len(known))


def edged(histogram: Histogram) -> Latency | None:
    """Quantiles of a histogram: the upper edge of the bucket that holds each."""
    if not histogram.count:
        return None

    def at(share: float) -> float | None:
        rank = math.ceil(share * histogram.count)
        edge = next(edge for edge, count in histogram.buckets if count >= rank)
        return edge if math.isfinite(edge) else None

    p50, p95, p99 = map(at, SHARES)
    return Latency(p50, p95, p99, histogram.count)


@dataclass(frozen=True, slots=True)
class Spread:
    """Of repeats: the median, the least and the most."""

    median: float
    least: float
    most: float


def spread(values: Iterable[float | None]) -> Spread | None:
    """None where one of the repeats does not know its value, or there was none."""
    found = list(values)
    known = [value for value in found if value is not None]
    if not known or len(known) < len(found):
        return None
    return Spread(median(known), min(known), max(known))


def by_label(value: Value | None, label: str) -> dict[str, float]:
    """The values of a gauge set by one of its labels; empty where the engine does not say."""
    if not isinstance(value, Series):
        return {}
    return {name: size for labels, size in value.values.items() if (name := _said(labels, label))}


def info(value: Value | None) -> dict[str, str]:
    """The labels of an info; empty where the engine does not say."""
    if not isinstance(value, Series) or not value.values:
        return {}
    return dict(next(iter(value.values)))


def _said(labels: Labels, name: str) -> str | None:
    return dict(labels).get(name)


def _why(value: Any) -> str:
    reason = getattr(value, "reason", None)
    return str(reason) if reason else "the engine does not say"
