"""Judging a file of samples by the very gates that judge releases. Pure.

Lines are gathered to rounds, as a controller scrapes: every instance once in each. The window
between two rounds is a look. The first line of an instance only says where its counts begin, a
line that is missing makes its next window longer, and a counter that falls is a restart.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any

from canaryctl.common.errors import InputError
from canaryctl.common.metrics import AnySignal, Signal
from canaryctl.common.units import format_duration
from canaryctl.gates import latency
from canaryctl.gates.base import GateContext, Look, State
from canaryctl.gates.deltas import next_start, window
from canaryctl.gates.history import QUANTILES, SIGNALS, AaHistory, learn
from canaryctl.gates.outcome import GateResult, Outcome, unseen
from canaryctl.gates.registry import build, check
from canaryctl.gates.samplefile import ARMS, BASELINE, CANARY, Sample
from canaryctl.gates.samples import ArmWindow, Missing, Scrape
from canaryctl.gates.spec import GateSpec

_NO_LINE = Missing("there is no line for this look")


@dataclass(frozen=True, slots=True)
class Judged:
    """``decided_at``: when the outcome was reached that stands at the end, in the file's own
    seconds; None while nothing is decided. ``result``: of that look, else of the last one."""

    result: GateResult
    decided_at: float | None
    looks: int
    notes: tuple[str, ...]

    def log_e(self, side: str) -> float | None:
        """ln E; ``side``: fail or pass. Of several rules: the largest, and the least. None: the
        gate does not compute it, or nothing was judged."""
        found = [rule[f"log_e_{side}"] for rule in self.result.rules]
        if not found or any(value is None for value in found):
            return None
        return float(max(found) if side == "fail" else min(found))

    def as_document(self) -> dict[str, Any]:
        result = self.result
        return {
            "gate": result.name,
            "outcome": result.outcome.value,
            "decided_at": self.decided_at,
            "canary_requests": result.samples,
            "log_e_fail": self.log_e("fail"),
            "log_e_pass": self.log_e("pass"),
            "needed_requests": result.needed,
            "reason": result.reason,
            "looks": self.looks,
            "notes": list(self.notes),
        }


def judge(
    samples: Sequence[Sample],
    spec: GateSpec,
    *,
    gates_total: int = 1,
    detectable: float = 0.5,
    history: AaHistory | None = None,
) -> Judged:
    """Ask the gate at every look of the file. InputError for a gate that one histogram cannot
    answer or whose limits are wrong, and for samples of another signal."""
    signal = judged_signal(spec)
    own = [sample for sample in samples if sample.signal in (None, signal)]
    if not own:
        others = sorted({s.signal.value for s in samples if s.signal is not None})
        raise InputError(
            f"{spec.name} is judged by samples of {signal.value}; found only {', '.join(others)}"
        )
    context = GateContext(
        gates_total=gates_total,
        detectable=detectable,
        interval_s=_interval_s(own) or 0.0,
        canary_share=_canary_share(own),
        history=history,
    )
    gate = build(spec, context)
    state: State = gate.start()
    standing, decided_at, kept = unseen(spec.name), None, None
    looks = 0
    for at, arms in _looks(own, signal):
        looks += 1
        state, result = gate.look(state, Look(at, arms[CANARY], arms[BASELINE]))
        if result.outcome is not standing.outcome:
            decided = result.outcome in (Outcome.FAILED, Outcome.PASSED)
            decided_at, kept = (at, result) if decided else (None, None)
        standing = result
    if not looks:
        standing = replace(standing, reason="one round of samples is no look: it takes two")
    notes = (*_notes(own), *_history_notes(spec, signal, history))
    return Judged(kept or standing, decided_at, looks, notes)


def judged_signal(spec: GateSpec) -> Signal:
    """Whose histogram the samples must be."""
    if spec.name not in latency.NAMES:
        known = ", ".join(latency.NAMES)
        raise InputError(f"found the gate {spec.name!r}, expected one on a histogram: {known}")
    mistakes = check([spec])
    if mistakes:
        raise InputError("\n".join(f"{field}: {message}" for _, field, message in mistakes))
    return SIGNALS[spec.name.partition("_")[0]]


def learn_history(samples: Sequence[Sample], signal: Signal | None = None) -> AaHistory:
    """The A/A history of a file of baseline samples. ``signal``: of lines that name none."""
    canary = next((s for s in samples if s.arm != BASELINE), None)
    if canary is not None:
        raise InputError(
            f"line {canary.line}: found the arm {canary.arm}; a history is of equal engines, "
            f"all of them {BASELINE}"
        )
    unnamed = next((s for s in samples if s.signal is None), None)
    if unnamed is not None and signal is None:
        raise InputError(
            f"line {unnamed.line} names no signal; expected one of {', '.join(SIGNALS)}"
        )
    return learn([arms[BASELINE] for _, arms in _looks(samples, signal)])


def _looks(
    samples: Sequence[Sample], signal: Signal | None
) -> Iterator[tuple[float, Mapping[str, ArmWindow]]]:
    """(when, arm → window) for every round but the first. ``signal``: of lines without one."""
    before: dict[str, dict[str, Scrape]] = {arm: {} for arm in ARMS}
    known: dict[str, dict[str, None]] = {arm: {} for arm in ARMS}
    for number, round_ in enumerate(_rounds(samples)):
        at = round_[-1].at
        after = {arm: _scrapes(round_, arm, signal, known[arm], at) for arm in ARMS}
        if number:
            yield at, {arm: window(before[arm], after[arm], known[arm]) for arm in ARMS}
        before = {arm: next_start(before[arm], after[arm]) for arm in ARMS}


def _scrapes(
    round_: Sequence[Sample], arm: str, signal: Signal | None, known: dict[str, None], at: float
) -> dict[str, Scrape]:
    """What was read of each series, of those too that have no line. Adds new ones to ``known``."""
    values: dict[str, dict[AnySignal, Any]] = {name: {} for name in known}
    times: dict[str, float] = {}
    for sample in round_:
        read_as = sample.signal or signal
        if sample.arm == arm and read_as is not None:
            known.setdefault(sample.series)
            values.setdefault(sample.series, {})[read_as] = sample.histogram
            times[sample.series] = sample.at
    missing: dict[AnySignal, Any] = {signal or Signal.TTFT: _NO_LINE}
    return {
        name: Scrape(name, times.get(name, at), found or missing) for name, found in values.items()
    }


def _rounds(samples: Sequence[Sample]) -> Iterator[list[Sample]]:
    """Samples in the order of their times, every series once at most in each round, and no
    further apart in it than half of the interval at which they come."""
    interval_s = _interval_s(samples)
    round_: list[Sample] = []
    seen: set[tuple[str, str, Signal | None]] = set()
    for sample in samples:
        key = (sample.arm, sample.series, sample.signal)
        late = interval_s is not None and round_ and sample.at - round_[0].at > interval_s / 2
        if key in seen or late:
            yield round_
            round_, seen = [], set()
        round_.append(sample)
        seen.add(key)
    if round_:
        yield round_


def _interval_s(samples: Iterable[Sample]) -> float | None:
    """The median time between two lines of a series; None: no series has two."""
    times: dict[tuple[str, str, Signal | None], list[float]] = {}
    for sample in samples:
        times.setdefault((sample.arm, sample.series, sample.signal), []).append(sample.at)
    gaps = [b - a for each in times.values() for a, b in pairwise(each)]
    return median(gaps) if gaps else None


def _per_series(samples: Iterable[Sample]) -> dict[str, list[int]]:
    """Arm → what each of its series counted from its first line to its last; without restarts."""
    first: dict[tuple[str, str], int] = {}
    last: dict[tuple[str, str], int] = {}
    for sample in samples:
        key = (sample.arm, sample.series)
        first.setdefault(key, sample.histogram.count)
        last[key] = sample.histogram.count
    return {arm: [max(0, last[k] - first[k]) for k in first if k[0] == arm] for arm in ARMS}


def _canary_share(samples: Iterable[Sample]) -> float:
    counted = _per_series(samples)
    canary, baseline = sum(counted[CANARY]), sum(counted[BASELINE])
    return canary / (canary + baseline) if canary + baseline else 0.0


def _notes(samples: Sequence[Sample]) -> Iterator[str]:
    """What the file cannot say by itself."""
    counted = _per_series(samples)
    for arm in ARMS:
        if not counted[arm]:
            yield f"the file has no line of the {arm}"
    if any(sample.stratum is not None for sample in samples):
        yield "the strata of an arm are added up"
    if not counted[CANARY] or not counted[BASELINE]:
        return
    each = {arm: sum(counted[arm]) / len(counted[arm]) for arm in ARMS}
    if abs(each[CANARY] - each[BASELINE]) > 0.2 * max(each.values()):
        yield (
            f"a canary instance answered {each[CANARY]:.0f} requests and a baseline instance "
            f"{each[BASELINE]:.0f}: latency is comparable only at equal load, which is not checked"
        )


def _history_notes(spec: GateSpec, signal: Signal, history: AaHistory | None) -> Iterator[str]:
    if history is None:
        yield (
            "no A/A history: how strongly requests depend on each other is unknown, so that "
            "blocks of four looks decide and a pass is not on offer"
        )
        return
    if history.lacks:
        yield f"{history.lacks}: judged as without one"
        return
    span = format_duration(round(history.span_s))
    quantile = spec.name.partition("_")[2]
    for name in (quantile,) if quantile else QUANTILES:
        found = history.dependence(signal, QUANTILES[name])
        if found is None:
            yield f"{name}: too few exceedances in the A/A history of {span} to learn from"
        else:
            yield (
                f"{name}: φ {found.phi:.3g} (at most {found.phi_upper:.3g} with 90 % confidence) "
                f"from {found.engines} engines over {span}"
            )
