"""The SLO of an artifact, and what a run served within it (goodput). Pure.

The SLO is the artifact's gates with an absolute limit on a latency that clients see. A gate holds
a quantile of all requests to its limit; goodput holds every request to it, whatever the quantile.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from canaryctl.gates import latency
from canaryctl.gates.spec import GateSpec
from canaryctl.runtimes.load.report import Outcome

OF_REQUEST: Final[Mapping[str, Callable[[Outcome], float | None]]] = {
    "ttft": attrgetter("ttft_s"),
    "tpot": attrgetter("tpot_s"),
    "itl": attrgetter("itl_max_s"),
    "e2e": attrgetter("e2e_s"),
}
"""A request's own value, in seconds; its ITL is the longest one, as its mean is its TPOT."""

BETWEEN_TOKENS: Final = ("tpot", "itl")

Slo = Mapping[str, float]
"""Latency → the most seconds that a request may have; empty: no SLO."""


def slo_of(gates: Iterable[GateSpec]) -> dict[str, float]:
    """Of several gates of one latency the least limit, since a request has to meet them all."""
    found: dict[str, float] = {}
    for spec in gates:
        name = spec.name.partition("_")[0]
        if spec.name in latency.NAMES and name in OF_REQUEST and spec.max_seconds is not None:
            found[name] = min(found.get(name, math.inf), spec.max_seconds)
    return found


@dataclass(frozen=True, slots=True)
class Goodput:
    """Of ``asked`` requests, failed and never sent ones among them, ``met`` were answered within
    every limit: their ``output_tokens``, and the most of them ``in_flight`` at once (None: it is
    not known when they were sent)."""

    asked: int
    met: int
    output_tokens: int
    in_flight: int | None

    @property
    def share(self) -> float:
        return self.met / self.asked


def goodput(outcomes: Sequence[Outcome], slo: Slo, *, asked: int) -> Goodput | str:
    """Why it is unknown, in words, where no request was asked or none tells a latency that has a
    limit. ``slo``: not empty."""
    if not slo:
        raise ValueError("goodput needs an SLO, found no limit")
    if not asked:
        return "no request was asked"
    answered = [outcome for outcome in outcomes if outcome.failed is None]
    for name in slo:
        if answered and all(OF_REQUEST[name](outcome) is None for outcome in answered):
            return f"no answered request tells its {name.upper()}"
    met = [one for one in answered if all(_meets(one, *limit) for limit in slo.items())]
    return Goodput(asked, len(met), sum(one.output_tokens for one in met), _at_once(met))


def _meets(outcome: Outcome, name: str, limit_s: float) -> bool:
    """A single token has nothing between tokens; any other latency that is not told is not met."""
    value = OF_REQUEST[name](outcome)
    if value is None:
        return name in BETWEEN_TOKENS and outcome.output_tokens == 1
    return value <= limit_s


def _at_once(outcomes: Sequence[Outcome]) -> int | None:
    """The most that were open at one moment; one that ends as another is sent is not."""
    changes: list[tuple[float, int]] = []
    for outcome in outcomes:
        if outcome.sent_s is None or outcome.e2e_s is None:
            return None
        changes += [(outcome.sent_s, 1), (outcome.sent_s + outcome.e2e_s, -1)]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most
