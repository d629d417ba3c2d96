"""What a gate is. Gates are pure: samples and a state in, a result and a state out.

Adding a gate is one module, one line in ``registry.py``, one row in docs/gates.md and the
contract tests of ``tests/contract/test_gates.py``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from canaryctl.common.metrics import AnySignal, Signal
from canaryctl.common.parity import Parity
from canaryctl.gates.history import AaHistory
from canaryctl.gates.outcome import GateResult
from canaryctl.gates.samples import ArmWindow, Missing
from canaryctl.gates.spec import GateSpec

State = dict[str, Any]
"""JSON-serialisable; a gate resumed from its stored state continues bit for bit."""


PROMPT_SIGNALS = frozenset({Signal.TTFT, Signal.PREFILL, Signal.E2E})
"""Latencies of which computing the prompt is a part. TPOT and ITL begin after it."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something a placement, a log or a progress probe saw happen, outside the metrics."""

    kind: str  # canaryctl.runtimes.engines.base.EngineFault: exit, oom, no_progress
    instance: str
    at: float
    detail: str


@dataclass(frozen=True, slots=True)
class StartFacts:
    """Of one instance, from its log and as it was seen: seconds by stage (load, compile, capture,
    ready), bytes by kind (weights, graphs).

    ``runs``: how often the warm-up ran each bucket that there is a graph for, by name (``decode
    bucket 8``, ``mixed bucket 256``); ``replays``: the fewest steps of one such run that replayed
    the graph, by the engine's own count; a bucket that it does not count is absent.

    ``late``: what its log says that it compiled or captured after it was ready, in order, the
    latest ones; ``unnamed_late``: how many came before those.

    ``resolved``: what its log says that it made of what it was asked, by the names of attestation;
    ``resolved_by``: the words of the log for it.
    """

    seconds: Mapping[str, float] = field(default_factory=dict)
    bytes: Mapping[str, int] = field(default_factory=dict)
    runs: Mapping[str, int] = field(default_factory=dict)
    replays: Mapping[str, int] = field(default_factory=dict)
    late: tuple[str, ...] = ()
    unnamed_late: int = 0
    resolved: Mapping[str, str] = field(default_factory=dict)
    resolved_by: Mapping[str, str] = field(default_factory=dict)

    @property
    def late_count(self) -> int:
        return self.unnamed_late + len(self.late)


@dataclass(frozen=True, slots=True)
class Look:
    """All that is known at one evaluation (``at``: seconds since the epoch).

    ``unequal_load``: why latency cannot be compared now (None: it can).
    ``unequal_prefix``: why what a prompt costs cannot be, and so TTFT, prefill and E2E.
    ``weight``: the canary's share of traffic by the step in force, per cent (None: unknown).
    ``canary_limits`` and ``baseline_limits``: the artifacts' ``limits``: max_num_seqs,
    max_model_len, max_num_batched_tokens.
    ``canary_events``: events of the canary since the release began, all of them.
    ``declared``: what the canary's artifact says of itself, by the names that an engine attests
    it under (:mod:`canaryctl.gates.attestation`).
    ``start``: what instances of both arms told of their start, by instance.
    ``saturation``: requests that the canary held and that it missed since the last look, driven
    at the concurrency that it has to hold; Missing: why it could not be driven; None: it was not.
    ``progress_checks``: generations of one token by the canary that ended in time, so far.
    ``parity``: how the canary's answers agreed with a reference's before any traffic; None: not
    measured, and nobody said why.
    """

    at: float
    canary: ArmWindow
    baseline: ArmWindow | None  # None: the release has nothing to compare with
    unequal_load: str | None = None
    unequal_prefix: str | None = None
    weight: float | None = None
    canary_limits: Mapping[str, int] | None = None
    baseline_limits: Mapping[str, int] | None = None
    canary_events: tuple[Event, ...] = ()
    progress_checks: int = 0
    declared: Mapping[str, str] | None = None
    start: Mapping[str, StartFacts] = field(default_factory=dict)
    saturation: tuple[int, int] | Missing | None = None
    parity: Parity | Missing | None = None

    def of(self, signal: AnySignal) -> "Look":
        """The look as a gate on ``signal`` takes it: where prompts are part of what is measured,
        unequal prefix caches are an unequal load."""
        if self.unequal_prefix is None or signal not in PROMPT_SIGNALS:
            return self
        return replace(self, unequal_load=self.unequal_load or self.unequal_prefix)


@dataclass(frozen=True, slots=True)
class GateContext:
    """What holds for the whole release. ``detectable``: a ratio, 0.5 for 50 %."""

    gates_total: int  # gates that spend α
    detectable: float
    interval_s: float
    canary_share: float  # of all observations at the deciding step, 0-1
    has_baseline: bool = True
    history: AaHistory | None = None  # of equal engines; None: how observations depend is unknown


class Gate(Protocol):
    spec: GateSpec
    hard: bool  # a predicate on events: spends no α, judged in every step

    def needs(self) -> frozenset[AnySignal]:
        """Signals it reads. One that the engine cannot give makes it inconclusive, by name."""

    def start(self) -> State: ...

    def look(self, state: State, look: Look) -> tuple[State, GateResult]:
        """Judge one more window. Does not change ``state``; raises nothing on bad data."""
