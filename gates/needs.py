"""What a gate will take, as values: amounts of evidence, and the time they come to at a step."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

from canaryctl.gates.outcome import VALID_LOOKS
from canaryctl.gates.samples import ArmWindow
from canaryctl.gates.wording import plural, whole


class Target(StrEnum):
    """What is waited for. 50 and 90: it is there by then with a probability of so many per cent."""

    FAIL_50 = "fail_50"  # of a canary that is worse by ``detectable``
    FAIL_90 = "fail_90"
    NO_HARM = "no_harm"  # the exposure from which a gate claims it, of a sound canary
    PROVEN_50 = "pass_50"  # of a canary as good as the baseline
    PROVEN_90 = "pass_90"


FAILING = frozenset({Target.FAIL_50, Target.FAIL_90})
PASSING = frozenset({Target.PROVEN_50, Target.PROVEN_90})


@dataclass(frozen=True, slots=True)
class StepTraffic:
    """What one step gives. ``requests_per_s``: to the whole canary arm; None: not known.
    ``share``: the canary's part π of the observations of both arms. ``engines``: of the canary."""

    requests_per_s: float | None
    share: float
    look_s: float
    engines: int = 1


@dataclass(frozen=True, slots=True)
class Amount:
    """``samples``: canary observations (0: as many as come); ``blocks`` of ``looks`` looks each;
    ``lead``: canary observations before the rule begins to judge. ``guess``: canary observations
    that are likely, but not sure, to be the least: shown, and never turned into time. ``watch_s``:
    how long it has to be watched whatever is observed; ``lead_s``: seconds before the rule begins
    to judge."""

    samples: float = 0.0
    blocks: int = 0
    looks: int = 1
    lead: float = 0.0
    guess: float = 0.0
    watch_s: float = 0.0
    lead_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RuleForecast:
    """What one rule of a gate takes. ``lacks``: why a target is absent from ``amounts``.

    ``least``: why the amounts are only the least that any data would take; None: they follow
    from the baseline's own. ``tolerance``: the smallest regression that the baseline's buckets
    can show, where that is not the one asked for. ``harm``: what a bad canary does, to this
    gate, where that is not being worse by ``detectable``: "one that …".
    """

    rule: str
    amounts: Mapping[Target, Amount]
    lacks: Mapping[Target, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    least: str | None = None
    tolerance: float | None = None
    harm: str | None = None


@dataclass(frozen=True, slots=True)
class Need:
    """``samples``: canary observations; ``blocks``: of looks, where the rule counts them;
    ``seconds``: at the step's rate. None: not known."""

    samples: float | None
    blocks: int | None
    seconds: float | None

    def words(self, unit: str) -> str:
        """``17 blocks, about 830 canary requests``."""
        parts = [plural(self.blocks, "block")] if self.blocks else []
        if self.samples:
            parts.append(f"about {whole(self.samples)} canary {unit}")
        return ", ".join(parts) or f"some canary {unit}"


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a gate takes at one step. A target is in ``needs`` or, with the reason, in ``lacks``.

    ``per_s``: canary observations a second; None: not known. The rest as in
    :class:`RuleForecast`.
    """

    rule: str
    unit: str
    needs: Mapping[Target, Need]
    lacks: Mapping[Target, str]
    per_s: float | None
    notes: tuple[str, ...]
    least: str | None
    tolerance: float | None
    harm: str | None = None


UNSEEN = "nothing is known of the baseline yet"


@runtime_checkable
class Forecasting(Protocol):
    """A gate that can say beforehand what it will take."""

    def forecast(self, past: ArmWindow | None, traffic: StepTraffic) -> Forecast:
        """What it takes at a step with this ``traffic``. ``past``: all that the baseline's
        instances counted since they started, as one window; None: nothing is known of it."""


def fold(
    rules: Sequence[RuleForecast],
    traffic: StepTraffic,
    *,
    unit: str,
    per_request: float | None,
    min_samples: int,
) -> Forecast:
    """A gate fails with the first of its rules, and is harmless or passes with the last.

    ``per_request``: observations that one request makes; ``min_samples``: those that the gate
    asks for before it says anything but failed.
    """
    rate = traffic.requests_per_s
    per_s = rate * per_request if rate and per_request else None
    needs: dict[Target, Need] = {}
    lacks: dict[Target, str] = {}
    quickest: RuleForecast | None = None
    for target in Target:
        found = [
            _need(rule.amounts[target], traffic.look_s, per_s)
            for rule in rules
            if target in rule.amounts
        ]
        missing = [rule.lacks[target] for rule in rules if target in rule.lacks]
        if target in FAILING and found:
            needs[target] = min(found, key=order)
            able = [rule for rule in rules if target in rule.amounts]
            quickest = quickest or able[found.index(needs[target])]
        elif missing:
            lacks[target] = "; ".join(missing)
        else:
            asked = [Amount(samples=min_samples)] if min_samples > 1 else []
            needs[target] = _all([*found, *(_need(a, traffic.look_s, per_s) for a in asked)])
    return Forecast(
        rule=" and ".join(rule.rule for rule in rules),
        unit=unit,
        needs=needs,
        lacks=lacks,
        per_s=per_s,
        notes=tuple(note for rule in rules for note in rule.notes),
        least=next((rule.least for rule in rules if rule.least), None),
        tolerance=next((r.tolerance for r in rules if r.tolerance is not None), None),
        harm=None if quickest is None else quickest.harm,
    )


def _need(amount: Amount, look_s: float, per_s: float | None) -> Need:
    """Decisions fall at looks, and never before the least number of looks with data."""
    least_s = max(amount.blocks * amount.looks * look_s, amount.watch_s)
    blocks = amount.blocks or None
    if per_s is None or (amount.guess and not amount.blocks):
        # What the looks alone take is a bound from below; where nothing but observations is
        # asked for, nothing is known.
        alone_s = amount.lead_s + least_s
        return Need(max(amount.samples, amount.guess) or None, blocks, alone_s or None)
    seconds = amount.lead_s + amount.lead / per_s + max(least_s, amount.samples / per_s)
    looks = max(VALID_LOOKS, math.ceil(seconds / look_s - 1e-9))
    return Need(max(amount.samples, amount.guess, seconds * per_s), blocks, looks * look_s)


def order(need: Need) -> tuple[float, float]:
    """For sorting: the sooner first; what is not known comes last."""
    return (
        math.inf if need.seconds is None else need.seconds,
        math.inf if need.samples is None else need.samples,
    )


def _all(needs: Sequence[Need]) -> Need:
    return Need(
        samples=max((n.samples for n in needs if n.samples is not None), default=None),
        blocks=max((n.blocks for n in needs if n.blocks is not None), default=None),
        seconds=max((n.seconds for n in needs if n.seconds is not None), default=None),
    )
