"""Gates on how engine steps ran: graphs replayed, padding, and steps that no graph is for.

``graph_fallback``: of the pure-decode steps that a captured graph is for, those that ran eager.
``graph_hit``: of the same, those that replayed in the mode expected; FULL expected and PIECEWISE
served is a lesser fault than eager, and named. ``beyond_grid``: of all pure-decode steps, those
larger than the largest graph: nothing fell back there, the grid is too small for the load.
``padding_ratio``: tokens computed, padding included, over tokens scheduled; 100 % is none.

An engine that cannot say is unknown, never zero. Of a step or two it may not be able to tell
whether it was pure decode: those are doubtful, and an engine that cannot tell of most of them
cannot say at all.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from canaryctl.common.metrics import AnySignal, Signal
from canaryctl.gates.base import Look, State
from canaryctl.gates.counts import PHI_STEPS, CountGate, Tally
from canaryctl.gates.readings import each_series, series
from canaryctl.gates.samples import ArmWindow, Labels, Missing
from canaryctl.gates.wording import percent, plural

GRAPH_FALLBACK, GRAPH_HIT = "graph_fallback", "graph_hit"
BEYOND_GRID, PADDING_RATIO = "beyond_grid", "padding_ratio"

UNKNOWN = "unknown"
EAGER, PIECEWISE, FULL = "NONE", "PIECEWISE", "FULL"
GRAPH_MODE = "graph_mode"  # what a look declares of the artifact's graphs
REASONS: Mapping[str, str] = {
    "downgraded": "downgraded by the engine",
    UNKNOWN: "for a reason that the engine does not give",
}
NO_GRAPHS = "graphs are off: no step is to replay one"


@dataclass(slots=True)
class _Steps:
    """One arm's steps of one look. ``replayed``: by mode, ``eager``: by reason: both of pure
    decode that a graph is for. ``graphs``: replays that were pure decode, by mode and bucket."""

    replayed: dict[str, float] = field(default_factory=dict)
    eager: dict[str, float] = field(default_factory=lambda: dict.fromkeys(REASONS, 0.0))
    graphs: dict[str, float] = field(default_factory=dict)
    beyond: float = 0.0
    mixed_beyond: float = 0.0  # with prompts in them
    untold_eager: float = 0.0
    untold_beyond: float = 0.0
    untold: float = 0.0

    @property
    def eligible(self) -> float:
        return sum(self.replayed.values()) + sum(self.eager.values())

    @property
    def pure(self) -> float:
        return self.eligible + self.beyond

    def count(self, said: Mapping[str, str], steps: float) -> None:
        """Steps of one series; ``said``: its labels, whose kind and mode are known to be there."""
        kind, mode = said["pure_decode"].lower(), said["mode"].upper()
        eager, beyond = mode == EAGER, said.get("reason") == BEYOND_GRID
        if kind == UNKNOWN:
            self.untold += steps
            self.untold_eager += steps if eager and not beyond else 0.0
            self.untold_beyond += steps if beyond else 0.0
        elif kind == "false":
            self.mixed_beyond += steps if beyond else 0.0
        elif beyond:
            self.beyond += steps
        elif eager:
            _add(self.eager, said.get("reason") or UNKNOWN, steps)
        else:
            _add(self.replayed, mode, steps)
            _add(self.graphs, f"{mode} {said.get('bucket', UNKNOWN)}", steps)


class _StepGate(CountGate):
    """Pure-decode steps of one kind among others."""

    _phi = PHI_STEPS
    _reasons = REASONS

    def needs(self) -> frozenset[AnySignal]:
        return frozenset({Signal.STEPS, Signal.GRID})

    def _tally(self, look: Look, arm: ArmWindow | None, who: str) -> Tally | Missing:
        steps = _read_steps(arm, who)
        if isinstance(steps, Missing):
            return steps
        mode = _mode(look, arm, who)
        if mode == EAGER and not steps.eligible:
            return Missing(f"{who}: {NO_GRAPHS}")
        return self._of(steps, mode)

    @abstractmethod
    def _of(self, steps: _Steps, mode: str | Missing) -> Tally | Missing: ...

    def _notes(self, state: State) -> str:
        beyond, pure = state["aside"].get("beyond", 0.0), state["aside"].get("pure", 0.0)
        if not beyond:
            return ""
        return (
            f"; not counted: {plural(beyond, 'step')} beyond the grid, "
            f"{percent(beyond / pure)} of pure decode"
        )


class GraphFallbackGate(_StepGate):
    """Eager among the pure-decode steps that a graph is for."""

    _title, _unit, _subject = "Graph fallback", "eligible decode steps", "ran eager"

    def _of(self, steps: _Steps, mode: str | Missing) -> Tally:
        del mode  # a graph of either kind is no fallback
        return Tally(
            events=sum(steps.eager.values()),
            observations=steps.eligible,
            by_reason=steps.eager,
            doubtful=steps.untold_eager,
            aside={"beyond": steps.beyond, "pure": steps.pure, **steps.graphs},
        )


class GraphHitGate(_StepGate):
    """Pure-decode steps that replayed the mode expected, of those that a graph is for.

    Expected is what the artifact declares (FULL in every mode but PIECEWISE); where a look does
    not say, what the engine resolved.
    """

    _unit = "eligible decode steps"
    _subject = "did not replay the graph expected"
    _title = "Graph hit"
    _reasons: Mapping[str, str] = {
        **REASONS,
        PIECEWISE: "ran PIECEWISE where FULL was expected",
    }

    def _of(self, steps: _Steps, mode: str | Missing) -> Tally | Missing:
        if isinstance(mode, Missing):
            return mode
        lesser = 0.0 if mode == PIECEWISE else steps.replayed.get(PIECEWISE, 0.0)
        missed = {**steps.eager, PIECEWISE: lesser}
        return Tally(
            events=sum(missed.values()),
            observations=steps.eligible,
            by_reason=missed,
            doubtful=steps.untold_eager,
            aside={"beyond": steps.beyond, "pure": steps.pure, **steps.graphs},
        )

    def _most(self) -> float | None:
        return None if self.spec.min_ratio is None else 1 - self.spec.min_ratio

    def _measure(self, share: float) -> float:
        return 1 - share

    def _heading(self, state: State) -> str:
        if not state["samples"]:
            return self._title
        return f"{self._title} {percent(1 - state['events'] / state['samples'])}"


class BeyondGridGate(_StepGate):
    """Pure-decode steps larger than the largest graph: the share of the load that no graph of
    this grid is for."""

    _title, _unit, _subject = "Beyond the grid", "pure-decode steps", "were larger than any graph"

    def _of(self, steps: _Steps, mode: str | Missing) -> Tally:
        del mode
        return Tally(
            events=steps.beyond,
            observations=steps.pure,
            doubtful=steps.untold_beyond,
            aside={"mixed_beyond": steps.mixed_beyond},
        )

    def _notes(self, state: State) -> str:
        mixed = state["aside"].get("mixed_beyond", 0.0)
        return f"; beside them {plural(mixed, 'step')} with prompts" if mixed else ""


class PaddingRatioGate(CountGate):
    """Tokens computed over tokens scheduled.

    The tokens of a step come together, so that a step is the observation and its share of
    padding the event; such a fraction is at most as spread out as a whole event (convexity).
    """

    _title, _unit, _subject = "Padding ratio", "engine steps", "were padding, by their tokens"
    _phi = PHI_STEPS

    def needs(self) -> frozenset[AnySignal]:
        return frozenset({Signal.STEPS, Signal.TOKENS_ACTUAL, Signal.TOKENS_PADDED})

    def _tally(self, look: Look, arm: ArmWindow | None, who: str) -> Tally | Missing:
        del look
        steps = series(arm, Signal.STEPS, who)
        actual = series(arm, Signal.TOKENS_ACTUAL, who)
        padded = series(arm, Signal.TOKENS_PADDED, who)
        if isinstance(steps, Missing):
            return Missing(f"unknown: {steps.reason}")
        if isinstance(actual, Missing):
            return Missing(f"unknown: {actual.reason}")
        if isinstance(padded, Missing):
            return Missing(f"unknown: {padded.reason}")
        scheduled, computed = sum(actual.values()), sum(padded.values())
        if scheduled > computed:
            return Missing(
                f"unknown: the {who} says that it scheduled {scheduled:.0f} tokens and computed "
                f"{computed:.0f}, padding included"
            )
        count = sum(steps.values())
        share = (computed - scheduled) / computed if computed else 0.0
        aside = {"actual": scheduled, "padded": computed}
        for what, tokens in (("actual", actual), ("padded", padded)):
            for labels, number in tokens.items():
                bucket = dict(labels).get("bucket")
                if bucket not in (None, "0"):
                    _add(aside, f"{what} {bucket}", number)
        return Tally(count * share, count, aside=aside)

    def _most(self) -> float | None:
        most = self.spec.max_ratio
        return None if most is None else 1 - 1 / most

    def _measure(self, share: float) -> float:
        return 1 / (1 - share)

    def _heading(self, state: State) -> str:
        aside = state["aside"]
        if not aside.get("actual"):
            return self._title
        allowed = (
            "" if self.spec.max_ratio is None else f" (allowed {percent(self.spec.max_ratio)})"
        )
        return f"{self._title} {percent(aside['padded'] / aside['actual'])}{allowed}"

    def _details(self, state: State) -> dict[str, Any]:
        aside = state["aside"]
        buckets = sorted({int(name.split()[1]) for name in aside if " " in name})
        ratios = {
            str(size): aside.get(f"padded {size}", 0.0) / actual
            for size in buckets
            if (actual := aside.get(f"actual {size}", 0.0))
        }
        return {"by_bucket": ratios}


def _read_steps(arm: ArmWindow | None, who: str) -> _Steps | Missing:
    found = series(arm, Signal.STEPS, who)
    if isinstance(found, Missing):
        return Missing(f"unknown: {found.reason}")
    steps = _Steps()
    for labels, count in found.items():
        said = dict(labels)
        known = said.get("pure_decode", "").lower() in ("true", "false", UNKNOWN)
        if not known or not said.get("mode"):
            return Missing(
                f"unknown: the {who} counts steps without saying whether they were pure decode "
                f"and in which mode they ran: {_named(labels)}"
            )
        steps.count(said, count)
    if steps.untold > steps.pure:
        return Missing(
            f"unknown: of {steps.untold:.0f} steps the {who} cannot tell whether they were pure "
            f"decode, and {steps.pure:.0f} it says were"
        )
    return steps


def _mode(look: Look, arm: ArmWindow | None, who: str) -> str | Missing:
    """The graph mode expected of an arm: as declared of the canary, else as it was resolved."""
    if who == "canary" and look.declared is not None and GRAPH_MODE in look.declared:
        return look.declared[GRAPH_MODE].upper()
    infos = each_series(arm, Signal.GRID, who)
    if isinstance(infos, Missing):
        return Missing(f"unknown which mode is expected: {infos.reason}")
    modes = {dict(labels).get("mode", "") for _, info in infos for labels in info.values}
    if len(modes) != 1 or "" in modes:
        said = ", ".join(sorted(modes)) or "no mode"
        return Missing(f"unknown which mode is expected: the {who} says {said}")
    return modes.pop().upper()


def _add(sums: dict[str, float], name: str, number: float) -> None:
    sums[name] = sums.get(name, 0.0) + number


def _named(labels: Labels) -> str:
    return ", ".join(f"{name}={value}" for name, value in labels) or "no labels"


def ratio_fault(ratio: float) -> str | None:
    """What is wrong with ``max_ratio`` of padding_ratio, if anything."""
    if ratio > 1:
        return None
    return (
        "expected more than 100 %: it is tokens computed with padding over tokens scheduled, and "
        "100 % is no padding"
    )
