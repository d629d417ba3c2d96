"""Judges the recorded hour of two equal engines, whole and cut into windows, in both directions,
and the minutes in which one of them had less CPU."""

import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from canaryctl.gates.history import AaHistory
from canaryctl.gates.offline import Judged, judge, learn_history
from canaryctl.gates.outcome import Outcome
from canaryctl.gates.samplefile import BASELINE, CANARY, Sample, read_samples
from canaryctl.gates.spec import GateSpec

GATES = tuple(
    f"{signal}{quantile}"
    for signal in ("ttft", "tpot", "itl", "e2e")
    for quantile in ("_p99", "_p95", "_p90", "_p50", "")
)
EQUAL, SLOWER = "equal.jsonl.gz", "slower.jsonl.gz"
REGRESSION = "10%"
FAIL = "FAIL"
WINDOW_S = 1200.0

Samples = Sequence[Sample]


@dataclass(frozen=True, slots=True)
class Row:
    """``failed`` of ``tried`` judgements of equal engines; ``slow``, ``slow_history``: what was
    said of the slower one, without and with the history of the equal hour."""

    gate: str
    failed: int
    tried: int
    largest: float
    phi: str
    slow: str
    slow_history: str

    def line(self) -> str:
        return (
            f"| {self.gate} | {self.failed} / {self.tried} | {self.largest:.2f} | {self.phi} "
            f"| {self.slow} | {self.slow_history} |"
        )


HEAD = """| gate | equal: failed | largest ln E | φ | slower, no history | slower, with history |
| --- | --- | --- | --- | --- | --- |"""


def page(folder: Path) -> str:
    """The table, from ``equal.jsonl.gz`` and ``slower.jsonl.gz``."""
    equal, slower = (_read(folder / name) for name in (EQUAL, SLOWER))
    history = learn_history([replace(sample, arm=BASELINE) for sample in equal])
    rows = [_row(gate, equal, slower, history) for gate in GATES]
    failed = [sum(FAIL in text for text in texts) for texts in zip(*map(_slow, rows), strict=True)]
    summary = (
        f"Equal engines: {sum(row.failed for row in rows)} of {sum(row.tried for row in rows)} "
        f"judgements failed. Slower engine: {failed[0]} of {len(rows)} gates failed it without a "
        f"history, {failed[1]} with that of the equal hour."
    )
    return "\n".join([summary, "", HEAD, *(row.line() for row in rows)]) + "\n"


def _slow(row: Row) -> tuple[str, str]:
    return row.slow, row.slow_history


def _row(gate: str, equal: Samples, slower: Samples, history: AaHistory) -> Row:
    spec = GateSpec(name=gate, max_regression=REGRESSION)
    found = [judge(samples, spec) for samples in _cuts(equal)]
    logs = [judged.log_e("fail") for judged in found]
    return Row(
        gate=gate,
        failed=sum(judged.result.outcome is Outcome.FAILED for judged in found),
        tried=len(found),
        largest=max(log for log in logs if log is not None),
        phi=_phi(gate, history),
        slow=_said(judge(slower, spec)),
        slow_history=_said(judge(slower, spec, history=history)),
    )


def _cuts(samples: Samples) -> Iterator[Samples]:
    """The hour and its thirds, with either engine as the canary."""
    swapped = [replace(s, arm=CANARY if s.arm == BASELINE else BASELINE) for s in samples]
    last = max(sample.at for sample in samples)
    for one in (samples, swapped):
        yield one
        begin = 0.0
        while begin + WINDOW_S <= last + 1:
            yield [s for s in one if begin <= s.at <= begin + WINDOW_S]
            begin += WINDOW_S


def _phi(gate: str, history: AaHistory) -> str:
    signal, _, quantile = gate.partition("_")
    found = {
        p: dependence.phi
        for (known, p), dependence in history.dependences.items()
        if known.value == signal
    }
    if quantile:
        phi = found.get(float(quantile.replace("p", "0.")))
        return "unknown" if phi is None else f"{phi:.1f}"
    return f"{min(found.values()):.1f}–{max(found.values()):.1f}" if found else "unknown"


def _said(judged: Judged) -> str:
    result = judged.result
    measured = ""
    if result.value is not None and result.baseline:
        measured = f" ({result.value / result.baseline - 1:+.0%})"
    if result.outcome is Outcome.FAILED and judged.decided_at is not None:
        minutes = judged.decided_at / 60
        return f"{FAIL} after {minutes:.1f} min, {result.samples} observations{measured}"
    return f"{result.outcome.value}{measured}"


def _read(path: Path) -> list[Sample]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return read_samples(path.name, file)
