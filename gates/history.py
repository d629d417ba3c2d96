"""What an A/A history says of a latency: how strongly its observations depend on each other.

A history is equal engines beside each other under the load of the release, observed for an
hour or more. Slow requests come in bursts (a queue, a long prompt), so that their counts vary
φ times as much as those of independent ones; φ and how long a burst lasts decide which rule may
judge a latency and what a block of it is. Pure: windows in, a history out.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from canaryctl.common.errors import InputError
from canaryctl.common.metrics import AnySignal, Signal
from canaryctl.gates.deltas import columns
from canaryctl.gates.readings import Buckets, histogram
from canaryctl.gates.samples import ArmWindow, Histogram, Missing
from canaryctl.gates.stats import dependence, edges

QUANTILES: Mapping[str, float] = {"p99": 0.99, "p95": 0.95, "p90": 0.9, "p50": 0.5}
SIGNALS: Mapping[str, Signal] = {
    "ttft": Signal.TTFT,
    "tpot": Signal.TPOT,
    "itl": Signal.ITL,
    "e2e": Signal.E2E,
    "prefill": Signal.PREFILL,
}

VERSION = 1
ENOUGH_S = 3600.0
DRIFT_S = 7200.0
"""In less, the load may happen to drift little: bursts then look shorter than they can be."""
LEAST_LOOKS = 4
"""Of a block, where no history says how long a burst lasts or one spans less than ``DRIFT_S``."""
BLOCK_S = 300.0
ENOUGH_EXCEEDANCES = 20
"""φ cannot exceed the number of exceedances it was found from: a handful always looks alike."""


class HistoryError(InputError):
    """A document that is no A/A history."""


@dataclass(frozen=True, slots=True)
class Dependence:
    """Of one signal at one quantile.

    ``phi``: variance of five-minute counts of exceedances over that of independent ones, ≥ 1.
    ``phi_upper``: its upper 90 % bound. ``block_looks``: L*, the looks after which counts vary
    almost as in five minutes; of a history shorter than ``DRIFT_S`` at least ``LEAST_LOOKS``.
    ``engines``, ``blocks``: how many were observed for how long.
    """

    phi: float
    phi_upper: float
    block_looks: int
    engines: int
    blocks: int


@dataclass(frozen=True, slots=True)
class AaHistory:
    """``look_s``: seconds of a look; ``span_s``: how long it was observed.

    ``dependences``: (signal, quantile as 0–1) → what was found. A pair that is absent had no
    exceedance, or too few: its dependence is unknown.
    ``pasts``: signal → what all engines together did in the last half hour, by which a gate
    places its edges until its own baseline has a past.
    """

    look_s: float
    span_s: float
    dependences: Mapping[tuple[AnySignal, float], Dependence] = field(default_factory=dict)
    pasts: Mapping[AnySignal, Buckets] = field(default_factory=dict)

    @property
    def lacks(self) -> str | None:
        """Why nothing at all can be taken from it, in words; None: it is long enough."""
        if _spans(self.span_s, self.look_s, ENOUGH_S):
            return None
        return (
            f"the A/A history spans {self.span_s / 60:.0f} of the {ENOUGH_S / 60:.0f} minutes "
            "that it takes"
        )

    def dependence(self, signal: AnySignal, p: float) -> Dependence | None:
        """None: unknown, because the pair is absent or the whole history too short."""
        return None if self.lacks else self.dependences.get((signal, p))

    def block_s(self, found: Dependence) -> float:
        """How long a block has to be. L* is a time: a release may look more or less often."""
        return found.block_looks * self.look_s

    def as_document(self) -> dict[str, Any]:
        """As JSON; :func:`from_document` reads it back."""
        return {
            "version": VERSION,
            "look_s": self.look_s,
            "span_s": self.span_s,
            "dependences": [
                {
                    "signal": signal.value,
                    "quantile": p,
                    "phi": found.phi,
                    "phi_upper": found.phi_upper,
                    "block_looks": found.block_looks,
                    "engines": found.engines,
                    "blocks": found.blocks,
                }
                for (signal, p), found in self.dependences.items()
            ],
            "pasts": [
                {
                    "signal": signal.value,
                    "edges": past.finite,  # without +Inf, which JSON does not have
                    "cumulative": list(past.cumulative),
                }
                for signal, past in self.pasts.items()
            ],
        }


def learn(looks: Sequence[ArmWindow]) -> AaHistory:
    """From what equal engines did look by look, oldest first: an arm whose instances are the
    engines. For each latency signal and each of ``QUANTILES``.

    The edge whose exceedances are counted is placed as the gate places it, from the half hour
    before each look (at first, from the whole). A look in which an engine is missing is left out
    together with its block; an engine that is missing in half of the looks is not counted at all.
    """
    spans = [delta.span_s for window in looks for delta in window.deltas]
    if not spans:
        return AaHistory(look_s=0.0, span_s=0.0)
    look_s = median(spans)
    span_s = look_s * sum(bool(window.deltas) for window in looks)
    most = max(1, round(BLOCK_S / look_s))
    least = 1 if _spans(span_s, look_s, DRIFT_S) else min(LEAST_LOOKS, most)
    found: dict[tuple[AnySignal, float], Dependence] = {}
    pasts: dict[AnySignal, Buckets] = {}
    for signal in SIGNALS.values():
        read = _same_edges(_per_engine(looks, signal))
        past = _past(read, look_s)
        if past is not None:
            pasts[signal] = past
        for p in QUANTILES.values():
            one = _dependence(_exceedances(read, p, look_s), most, least)
            if one is not None:
                found[signal, p] = one
    return AaHistory(look_s, span_s, found, pasts)


_Read = tuple[Buckets, list[list[int]]] | None
"""A look: all engines together, and the cumulative counts of each; None: not all were read."""


def _per_engine(looks: Sequence[ArmWindow], signal: Signal) -> list[_Read]:
    by_name: list[dict[str, Histogram]] = [
        {
            delta.instance: value
            for delta in window.deltas
            if isinstance(value := delta.values.get(signal), Histogram)
        }
        for window in looks
    ]
    names = sorted({name for each in by_name for name in each})
    engines = [n for n in names if 2 * sum(n in each for each in by_name) > len(looks)]
    found: list[_Read] = []
    for window, each in zip(looks, by_name, strict=True):
        kept = tuple(d for d in window.deltas if d.instance in engines)
        pooled = histogram(ArmWindow(kept, len(kept)), signal, "history")
        if not engines or isinstance(pooled, Missing) or any(n not in each for n in engines):
            found.append(None)
        else:
            found.append((pooled, [[c for _, c in each[n].buckets] for n in engines]))
    return found


def _same_edges(read: Sequence[_Read]) -> list[_Read]:
    """Only the looks that have the edges of the latest one."""
    grid = next((each[0].edges for each in reversed(read) if each is not None), None)
    return [each if each is not None and each[0].edges == grid else None for each in read]


def _past(read: Sequence[_Read], look_s: float) -> Buckets | None:
    chunks: list[edges.Chunk] = []
    for index, each in enumerate(read):
        if each is not None:
            chunks = edges.remember(chunks, index * look_s, each[0].cumulative)
            grid = each[0].edges
    return Buckets(grid, tuple(edges.recall(chunks))) if chunks else None


def _exceedances(read: Sequence[_Read], p: float, look_s: float) -> list[dependence.Counts]:
    known = [each[0].cumulative for each in read if each is not None]
    whole = [sum(column) for column in zip(*known, strict=True)]
    chunks: list[edges.Chunk] = []
    found: list[dependence.Counts] = []
    for index, each in enumerate(read):
        if each is None:
            found.append(None)
            continue
        pooled, engines = each
        past = edges.recall(chunks)
        placed_by = past if edges.learned(past, p) else whole
        question = edges.choose(pooled.edges, placed_by, p=p, r=0.0, m=0.0)
        found.append(
            None if question is None else [edges.exceedances(e, question.i) for e in engines]
        )
        chunks = edges.remember(chunks, index * look_s, pooled.cumulative)
    return found


def _spans(span_s: float, look_s: float, asked_s: float) -> bool:
    return span_s + look_s > asked_s * (1 - 1e-6)  # n scrapes have n−1 differences


def _dependence(looks: Sequence[dependence.Counts], most: int, least: int) -> Dependence | None:
    five_minutes = dependence.blocks(looks, most)
    count = dependence.usable(five_minutes)
    counted = sum(sum(each) for each in five_minutes if each is not None)
    phi = dependence.phi(five_minutes)
    if phi is None or count < 2 or counted < ENOUGH_EXCEEDANCES:
        return None
    engines = next(len(each) for each in five_minutes if each is not None)
    clamped = max(1.0, phi)
    return Dependence(
        phi=clamped,
        phi_upper=dependence.upper(clamped, dependence.degrees_of_freedom(engines, count)),
        block_looks=max(least, dependence.shortest(looks, most, phi)),
        engines=engines,
        blocks=count,
    )


def from_document(document: object) -> AaHistory:
    """What :meth:`AaHistory.as_document` wrote; HistoryError says what is wrong with it."""
    whole = _keys(document, _WHOLE, "an A/A history")
    if whole["version"] != VERSION:
        raise HistoryError(f"found version {whole['version']!r}, expected {VERSION}")
    found: dict[tuple[AnySignal, float], Dependence] = {}
    for where, row in _rows(whole, "dependences"):
        key, one = _row(row, where)
        if key in found:
            raise HistoryError(f"{where}: {key[0].value} at {key[1]:g} comes twice")
        found[key] = one
    pasts: dict[AnySignal, Buckets] = {}
    for where, row in _rows(whole, "pasts"):
        signal, past = _past_row(row, where)
        if signal in pasts:
            raise HistoryError(f"{where}: {signal.value} comes twice")
        pasts[signal] = past
    look_s = _number(whole["look_s"], "look_s", least=0.0)
    if found and not look_s:
        raise HistoryError("look_s: found 0, expected more")
    return AaHistory(look_s, _number(whole["span_s"], "span_s", least=0.0), found, pasts)


_WHOLE = ("version", "look_s", "span_s", "dependences", "pasts")


def _rows(whole: Mapping[str, Any], name: str) -> Iterator[tuple[str, object]]:
    if not isinstance(whole[name], list):
        raise HistoryError(f"{name}: found {whole[name]!r}, expected a list")
    for index, row in enumerate(whole[name]):
        yield f"{name}[{index}]", row


def _past_row(value: object, where: str) -> tuple[Signal, Buckets]:
    row = _keys(value, ("signal", "edges", "cumulative"), where)
    for name in ("edges", "cumulative"):
        if not isinstance(row[name], list):
            raise HistoryError(f"{where}.{name}: found {row[name]!r}, expected a list")
    grid = [_number(e, f"{where}.edges", least=0.0) for e in row["edges"]]
    counts = [_whole(c, f"{where}.cumulative", least=0) for c in row["cumulative"]]
    if len(counts) != len(grid) + 1:
        raise HistoryError(
            f"{where}.cumulative: found {len(counts)} counts, expected {len(grid) + 1}: one for "
            "each edge and one for +Inf"
        )
    found = columns(Histogram(tuple(zip([*grid, math.inf], counts, strict=True)), 0.0))
    if isinstance(found, str):
        raise HistoryError(f"{where}: {found}")
    return _signal(row["signal"], f"{where}.signal"), Buckets(*found)


def _signal(value: object, where: str) -> Signal:
    for signal in SIGNALS.values():
        if signal.value == value:
            return signal
    raise HistoryError(
        f"{where}: found {value!r}, expected one of {', '.join(s.value for s in SIGNALS.values())}"
    )


_ROW = ("signal", "quantile", "phi", "phi_upper", "block_looks", "engines", "blocks")


def _row(value: object, where: str) -> tuple[tuple[Signal, float], Dependence]:
    row = _keys(value, _ROW, where)
    if row["quantile"] not in QUANTILES.values():
        expected = ", ".join(f"{p:g}" for p in QUANTILES.values())
        raise HistoryError(
            f"{where}.quantile: found {row['quantile']!r}, expected one of {expected}"
        )
    phi = _number(row["phi"], f"{where}.phi", least=1.0)
    return (_signal(row["signal"], f"{where}.signal"), row["quantile"]), Dependence(
        phi=phi,
        phi_upper=_number(row["phi_upper"], f"{where}.phi_upper", least=phi),
        block_looks=_whole(row["block_looks"], f"{where}.block_looks", least=1),
        engines=_whole(row["engines"], f"{where}.engines", least=1),
        blocks=_whole(row["blocks"], f"{where}.blocks", least=2),
    )


def _keys(value: object, expected: Sequence[str], where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict) or set(value) != set(expected):
        shown = ", ".join(map(str, value)) if isinstance(value, dict) else repr(value)
        raise HistoryError(f"{where}: found {shown}, expected the keys {', '.join(expected)}")
    return value


def _number(value: object, where: str, *, least: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise HistoryError(f"{where}: found {value!r}, expected a number")
    if value < least:
        raise HistoryError(f"{where}: found {value:g}, expected {least:g} or more")
    return float(value)


def _whole(value: object, where: str, *, least: int) -> int:
    number = _number(value, where, least=least)
    if number != int(number):
        raise HistoryError(f"{where}: found {value!r}, expected a whole number")
    return int(number)
