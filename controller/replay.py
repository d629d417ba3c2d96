"""Every verdict of a release again, from its stored looks, by the code that gave it. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from canaryctl.controller.model import GateRecord, LookRecord
from canaryctl.gates.base import Gate, State
from canaryctl.gates.fold import fold
from canaryctl.gates.outcome import GateResult, Outcome, unseen
from canaryctl.gates.records import state_digest
from canaryctl.gates.terms import GateTerms

VERDICT = "verdict"


@dataclass(frozen=True, slots=True)
class Difference:
    """Where replay and record part. ``what``: outcome, state, a field of the result, …"""

    look: int
    gate: str  # "verdict": of all gates together
    what: str
    recorded: Any
    replayed: Any

    def __str__(self) -> str:
        return (
            f"look {self.look}, {self.gate}: {self.what} was recorded as {self.recorded!r}, "
            f"and replayed as {self.replayed!r}"
        )


@dataclass(frozen=True, slots=True)
class Replay:
    """``results``: each gate's last, as replayed. ``difference``: the first, None if none."""

    looks: int
    measurements: int
    results: Mapping[str, GateResult]
    difference: Difference | None

    @property
    def agrees(self) -> bool:
        return self.difference is None


@dataclass(slots=True)
class _Replayer:
    """Compares look by look; what was asked at a look is what was recorded of it."""

    terms: GateTerms
    gates: dict[str, Gate]
    states: dict[str, State]
    results: dict[str, GateResult] = field(default_factory=dict)
    looks: int = 0
    measurements: int = 0

    def look(self, record: LookRecord) -> Difference | None:
        self.looks += 1
        if record.seq != self.looks:
            return Difference(self.looks, VERDICT, "number", record.seq, self.looks)
        for measurement in record.measurements:
            self.measurements += 1
            name = measurement.gate
            if name not in self.gates:
                return Difference(record.seq, name, "gate", name, None)
            state, result = self.gates[name].look(self.states[name], record.look)
            self.states[name], self.results[name] = state, result
            found = _unlike(measurement.result, result)
            if found is None and measurement.state_digest != state_digest(state):
                found = ("state (its SHA-256)", measurement.state_digest, state_digest(state))
            if found is not None:
                return Difference(record.seq, name, *found)
        return self._verdict(record)

    def _verdict(self, record: LookRecord) -> Difference | None:
        verdict = fold(
            [self.results.get(name) or unseen(name) for name in self.gates],
            required=tuple(self.gates),
            promote_on=self.terms.promote_on,
        )
        for what, recorded, replayed in (
            ("outcome", record.outcome, verdict.outcome),
            ("promotable", record.promotable, verdict.promotable),
        ):
            if recorded != replayed:
                return Difference(record.seq, VERDICT, what, _shown(recorded), _shown(replayed))
        return None

    def end(self, standing: Iterable[GateRecord]) -> Difference | None:
        """The states that a controller would go on from are the replayed ones, too."""
        for record in standing:
            replayed = self.states.get(record.gate)
            if replayed is None or state_digest(dict(record.state)) != state_digest(replayed):
                return Difference(
                    self.looks, record.gate, "state to resume from", record.state, replayed
                )
        return None


def replay(terms: GateTerms, looks: Iterable[LookRecord], standing: Iterable[GateRecord]) -> Replay:
    """Judge ``looks`` anew, in order, from nothing. ``standing``: the gates' stored states."""
    gates = terms.gates()
    replayer = _Replayer(terms, gates, {name: gate.start() for name, gate in gates.items()})
    difference = None
    for record in looks:
        difference = replayer.look(record)
        if difference is not None:
            break
    if difference is None:
        difference = replayer.end(standing)
    return Replay(replayer.looks, replayer.measurements, dict(replayer.results), difference)


def _unlike(recorded: GateResult, replayed: GateResult) -> tuple[str, Any, Any] | None:
    """The first field that differs, the outcome before all others."""
    names = list(GateResult.__dataclass_fields__)
    for name in sorted(names, key=lambda n: n != "outcome"):
        old, new = _plain(getattr(recorded, name)), _plain(getattr(replayed, name))
        if old != new:
            return name, _shown(old), _shown(new)
    return None


def _plain(value: Any) -> Any:
    """As it comes back from JSON: tuples are lists."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _shown(value: Any) -> Any:
    return value.value if isinstance(value, Outcome) else value
