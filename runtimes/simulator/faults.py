"""Faults that a simulated engine can be given, and which of them are in force."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from canaryctl.common.errors import InputError, UnknownNameError


class Fault(StrEnum):
    SLOW_TAIL = "slow_tail"  # a share of requests is `factor` times slower
    SLOW = "slow"  # every step is `factor` times slower
    OOM_CAPTURE = "oom_capture"  # out of memory while graphs are captured: exits 1
    OOM_LOAD = "oom_load"  # out of memory in a step: 503 for two seconds, then exits 0
    EXIT = "exit"  # the process ends with code 0
    HANG = "hang"  # accepts requests, generates nothing; /health stays 200
    EAGER_FALLBACK = "eager_fallback"  # graphs are captured and not replayed
    GRID_REDUCED = "grid_reduced"  # the larger half of the grid is silently not captured
    MODE_DOWNGRADED = "mode_downgraded"  # full graphs are captured piecewise; its log alone says so
    SMALL_KV = "small_kv"  # the KV cache is `factor` times smaller
    OVERSTATED_KV = "overstated_kv"  # the KV cache is `factor` times smaller than it is said to be
    WRONG_OUTPUT = "wrong_output"  # tokens of steps that replayed a graph are wrong
    OTHER_REVISION = "other_revision"  # the model's files are of another revision than asked for
    SLOW_CAPTURE = "slow_capture"  # capture takes `factor` times longer
    LATE_CAPTURE = "late_capture"  # a graph is captured by the first step that needs it
    SLOW_FIRST_REQUEST = "slow_first_request"  # the first request waits FIRST_REQUEST_S
    MISSING_METRICS = "missing_metrics"  # latency histograms and step counters are absent
    METRICS_RENAMED = "metrics_renamed"  # per-token latency has another name
    COUNTER_RESET = "counter_reset"  # counters start again from zero, the process does not


FIRST_REQUEST_S = 1.5

START_ONLY = frozenset(
    {
        Fault.OOM_CAPTURE,
        Fault.GRID_REDUCED,
        Fault.MODE_DOWNGRADED,
        Fault.SMALL_KV,
        Fault.OVERSTATED_KV,
        Fault.OTHER_REVISION,
        Fault.SLOW_CAPTURE,
        Fault.LATE_CAPTURE,
    }
)
RUNNING_ONLY = frozenset({Fault.COUNTER_RESET})
DEFAULT_FACTOR: Mapping[Fault, float] = {
    Fault.SLOW_TAIL: 8.0,
    Fault.SLOW: 3.0,
    Fault.SMALL_KV: 2.0,
    Fault.OVERSTATED_KV: 2.0,
    Fault.SLOW_CAPTURE: 20.0,
    Fault.LATE_CAPTURE: 10.0,
}
DEFAULT_SHARE = 0.05


def parse_faults(names: str | Iterable[str]) -> tuple[Fault, ...]:
    """``"slow_tail, hang"`` or a list of names; UnknownNameError lists the allowed ones."""
    if isinstance(names, str):
        names = names.split(",")
    stripped = [name.strip() for name in names]
    for name in stripped:
        if name and name not in set(Fault):
            raise UnknownNameError("fault", name, set(Fault))
    return tuple(Fault(name) for name in stripped if name)


@dataclass
class ActiveFaults:
    """The faults in force. ``factor`` and ``share``: None means each fault's own default."""

    active: set[Fault] = field(default_factory=set)
    factor: float | None = None
    share: float = DEFAULT_SHARE

    def __contains__(self, fault: Fault) -> bool:
        return fault in self.active

    def factor_of(self, fault: Fault) -> float:
        """How many times slower or smaller; 1 when the fault is not in force."""
        if fault not in self.active:
            return 1.0
        return DEFAULT_FACTOR[fault] if self.factor is None else self.factor

    @property
    def slow_share(self) -> float:
        return self.share if Fault.SLOW_TAIL in self.active else 0.0

    def as_document(self) -> dict[str, Any]:
        return {
            "faults": sorted(self.active),
            "factor": self.factor,
            "share": self.share,
        }


@dataclass(frozen=True, slots=True)
class FaultRequest:
    """What a running engine is asked to switch to; it replaces what was in force."""

    faults: tuple[Fault, ...]
    factor: float | None = None
    share: float = DEFAULT_SHARE

    @classmethod
    def parse(cls, document: object) -> "FaultRequest":
        """``{"faults": ["slow"], "factor": 4, "share": 0.1}``; InputError says what is wrong."""
        if not isinstance(document, dict):
            raise InputError(f"found {document!r}, expected an object with faults")
        unknown = set(document) - {"faults", "factor", "share"}
        if unknown:
            raise UnknownNameError("field", min(unknown), ("faults", "factor", "share"))
        names = document.get("faults", "")
        if not isinstance(names, str | list) or not all(isinstance(name, str) for name in names):
            raise InputError(f"faults is {names!r}, expected a list of names")
        faults = parse_faults(names)
        for fault in faults:
            if fault in START_ONLY:
                raise InputError(f"{fault} can only be in force from the start of the engine")
        factor = _number(document, "factor", above=0.0)
        share = _number(document, "share", above=0.0, most=1.0)
        return cls(faults, factor, DEFAULT_SHARE if share is None else share)


def _number(
    document: Mapping[str, Any], name: str, *, above: float, most: float = 1e6
) -> float | None:
    value = document.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not above < value <= most:
        raise InputError(
            f"{name} is {value!r}, expected a number above {above:g}, at most {most:g}"
        )
    return float(value)
