"""How requests were answered: single outcomes, folded into a report. Pure."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

NO_ARTIFACT = "unknown"  # the answer did not say which artifact gave it
_LATE_S = 0.05  # a client that sends so much later than planned is itself the bottleneck


class Failed(StrEnum):
    """When a request failed: the user of a retrying router must only ever see the second."""

    BEFORE_RESPONSE = "before_response"  # refused, 4xx, 5xx, reset or timed out unanswered
    CUT_OFF = "cut_off"  # while it was being answered


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request. Latencies in seconds from when it was sent; None where there is none.

    ``tpot_s``: (last token - first token) / (tokens - 1). ``itl_max_s``: the longest time from one
    part of the answer to the next. ``sent_s``: when it was sent, by a clock that only rises.
    """

    target: str
    failed: Failed | None = None
    reason: str | None = None
    artifact: str | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    itl_max_s: float | None = None
    e2e_s: float | None = None
    output_tokens: int = 0
    sent_s: float | None = None


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Nearest rank, in seconds."""

    p50: float
    p90: float
    p99: float
    count: int


@dataclass(frozen=True, slots=True)
class Summary:
    """Requests answered together; ``ttft`` and the like are None without a value."""

    ok: int
    failed: int
    output_tokens: int
    ttft: Quantiles | None
    tpot: Quantiles | None
    e2e: Quantiles | None
    failures: dict[str, dict[str, int]] = field(default_factory=dict)  # when → reason → count


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a run did.

    ``not_sent``: requests skipped, for all targets, at ``max_concurrency``.
    ``unfinished``: open when the run was stopped; neither ok nor failed.

    ``saturated``: the client could not keep to its plan, so that its latencies are its own.
    """

    elapsed_s: float
    sent: int
    not_sent: int
    unfinished: int
    lag_p99_s: float | None  # sent after the planned time
    saturated: bool
    targets: dict[str, Summary]
    artifacts: dict[str, Summary]  # by the name in the response; of all targets

    @property
    def ok(self) -> int:
        return sum(summary.ok for summary in self.targets.values())

    @property
    def failed(self) -> int:
        return sum(summary.failed for summary in self.targets.values())

    def as_document(self) -> dict[str, Any]:
        """JSON types only."""
        return {"ok": self.ok, "failed": self.failed, **asdict(self)}

    def as_text(self) -> str:
        ends = f"{self.ok} ok, {self.failed} failed, {self.unfinished} unfinished"
        sent = f"{self.sent} requests sent in {self.elapsed_s:.1f} s"
        lines = [f"{sent}: {ends}; {self.not_sent} not sent"]
        if self.saturated:
            lag = _milliseconds(self.lag_p99_s)
            lines.append(f"THE CLIENT WAS SATURATED (lag p99 {lag}): its latencies are its own")
        for title, group in (("target", self.targets), ("artifact", self.artifacts)):
            for name, summary in sorted(group.items()):
                lines.append(f"{title} {name}: {summary.ok} ok, {summary.failed} failed")
                lines += _latency_lines(summary)
                if title == "target":
                    lines += [
                        f"  failed {when.replace('_', ' ')}: {count} × {reason}"
                        for when, reasons in sorted(summary.failures.items())
                        for reason, count in sorted(reasons.items())
                    ]
        return "\n".join(lines)


def quantiles(values: Iterable[float | None]) -> Quantiles | None:
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    p50, p90, p99 = (known[math.ceil(share * len(known)) - 1] for share in (0.5, 0.9, 0.99))
    return Quantiles(p50=p50, p90=p90, p99=p99, count=len(known))


def summarise(outcomes: Sequence[Outcome]) -> Summary:
    failures: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        if outcome.failed is not None:
            failures[outcome.failed.value][outcome.reason or "unknown"] += 1
    answered = [outcome for outcome in outcomes if outcome.failed is None]
    return Summary(
        ok=len(answered),
        failed=len(outcomes) - len(answered),
        output_tokens=sum(outcome.output_tokens for outcome in outcomes),
        ttft=quantiles(outcome.ttft_s for outcome in answered),
        tpot=quantiles(outcome.tpot_s for outcome in answered),
        e2e=quantiles(outcome.e2e_s for outcome in answered),
        failures={when: dict(reasons) for when, reasons in failures.items()},
    )


def report(
    targets: Sequence[str],
    outcomes: Sequence[Outcome],
    *,
    elapsed_s: float,
    lags_s: Sequence[float],
    not_sent: int,
    unfinished: int,
) -> LoadReport:
    """Failures without any response belong to a target, and to no artifact."""
    by_target: dict[str, list[Outcome]] = {target: [] for target in targets}
    by_artifact: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_target[outcome.target].append(outcome)
        if outcome.artifact is not None:
            by_artifact[outcome.artifact].append(outcome)
    lag = quantiles(lags_s)
    return LoadReport(
        elapsed_s=elapsed_s,
        sent=len(outcomes) + unfinished,
        not_sent=not_sent,
        unfinished=unfinished,
        lag_p99_s=None if lag is None else lag.p99,
        saturated=not_sent > 0 or (lag is not None and lag.p99 > _LATE_S),
        targets={target: summarise(group) for target, group in by_target.items()},
        artifacts={artifact: summarise(group) for artifact, group in by_artifact.items()},
    )


def _latency_lines(summary: Summary) -> list[str]:
    named = (("ttft", summary.ttft), ("tpot", summary.tpot), ("e2e", summary.e2e))
    return [
        f"  {name:<4} p50 {_milliseconds(q.p50)}  p90 {_milliseconds(q.p90)}  "
        f"p99 {_milliseconds(q.p99)}"
        for name, q in named
        if q is not None
    ]


def _milliseconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1000:.1f} ms"
