"""What one simulated engine is told: the JSON document behind ``--config``."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from canaryctl.common.errors import InputError, UnknownNameError
from canaryctl.runtimes.simulator.faults import (
    DEFAULT_SHARE,
    RUNNING_ONLY,
    START_ONLY,
    Fault,
    parse_faults,
)
from canaryctl.runtimes.simulator.graphs import GRAPH_MODES

_INTEGER, _NUMBER, _TEXT = (int,), (int, float), (str,)


def _arg(default: Any, kinds: tuple[type, ...], low: float, high: float = 1e15) -> Any:
    return field(default=default, metadata={"kinds": kinds, "low": low, "high": high})


@dataclass(frozen=True, slots=True)
class SimulatorArgs:
    """``engine.args`` of a simulated artifact. None: the calibration's value, or the fault's own.

    ``time_scale``: stages of the start as a share of what a real engine takes.
    ``step_scale``: step times as a multiple of the calibrated ones.
    ``jitter``: the standard deviation of the logarithm of a step's time.
    """

    seed: int = _arg(0, _INTEGER, 0)
    time_scale: float = _arg(0.04, _NUMBER, 0, 100)
    step_scale: float = _arg(1.0, _NUMBER, 0.001, 1000)
    jitter: float = _arg(0.05, _NUMBER, 0, 1)
    gpu_memory_gib: float | None = _arg(None, _NUMBER, 0.001)
    weights_gib: float | None = _arg(None, _NUMBER, 0)
    kv_bytes_per_token: int | None = _arg(None, _INTEGER, 1)
    fault: str = ""
    fault_factor: float | None = _arg(None, _NUMBER, 0.001, 1e6)
    fault_share: float = _arg(DEFAULT_SHARE, _NUMBER, 0.0001, 1)
    fault_at: str = "start"
    fault_after_s: float = _arg(0.0, _NUMBER, 0, 1e6)

    @property
    def faults(self) -> tuple[Fault, ...]:
        return parse_faults(self.fault)


def args_problems(args: Mapping[str, Any]) -> list[str]:
    """Everything wrong with ``engine.args``; each says what was found and what is allowed."""
    known = {entry.name: entry for entry in fields(SimulatorArgs)}
    problems = [
        str(UnknownNameError("simulated engine argument", name, known))
        for name in args
        if name not in known
    ]
    for name, value in args.items():
        if name in known and known[name].metadata and value is not None:
            problems += _number_problems(name, value, known[name].metadata)
    return problems + _fault_problems(args)


def _number_problems(name: str, value: Any, rule: Mapping[str, Any]) -> list[str]:
    low, high = rule["low"], rule["high"]
    if not isinstance(value, rule["kinds"]) or isinstance(value, bool) or not low <= value <= high:
        kind = "a whole number" if rule["kinds"] == _INTEGER else "a number"
        return [f"{name} is {value!r}, expected {kind} from {low:g} to {high:g}"]
    return []


def _fault_problems(args: Mapping[str, Any]) -> list[str]:
    at = args.get("fault_at", "start")
    if at not in {"start", "running"}:
        return [f"fault_at is {at!r}, expected start or running"]
    try:
        faults = parse_faults(_fault_text(args.get("fault", "")))
    except InputError as error:
        return [str(error)]
    problems = []
    if at == "start" and args.get("fault_after_s"):
        problems.append("fault_after_s counts from ready; it needs fault_at: running")
    if not faults:
        problems += [f"{name} without fault" for name in args if name.startswith("fault_")]
    for fault in faults:
        if at == "running" and fault in START_ONLY:
            problems.append(f"fault {fault} needs fault_at: start")
        if at == "start" and fault in RUNNING_ONLY:
            problems.append(f"fault {fault} needs fault_at: running")
    return problems


def _fault_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and all(isinstance(name, str) for name in value):
        return ",".join(value)
    raise InputError(f"fault is {value!r}, expected one name, or several with commas")


def parse_args(args: Mapping[str, Any]) -> SimulatorArgs:
    """InputError lists all problems."""
    problems = args_problems(args)
    if problems:
        raise InputError("; ".join(problems))
    return SimulatorArgs(**{**args, "fault": _fault_text(args.get("fault", ""))})


@dataclass(frozen=True, slots=True)
class SimulatorConfig:
    """One simulated engine. ``capture_sizes``: as requested, None for the default grid."""

    model: str
    version: str
    revision: str | None = None
    graph_mode: str = "FULL_AND_PIECEWISE"
    capture_sizes: tuple[int, ...] | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int = 4096
    memory_fraction: float = 0.9
    args: SimulatorArgs = SimulatorArgs()

    @property
    def served_name(self) -> str:
        """The model's name in answers and metrics."""
        return served_name(self.model)

    def to_json(self) -> str:
        document = asdict(self)
        document["args"] = {
            name: value for name, value in document["args"].items() if value not in (None, "")
        }
        if not document["args"].get("fault"):
            for name in ("fault_share", "fault_at", "fault_after_s"):
                del document["args"][name]
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "SimulatorConfig":
        """InputError says what is wrong with the document."""
        try:
            document = json.loads(text)
        except ValueError as error:
            raise InputError(f"--config is not JSON: {error}") from error
        if not isinstance(document, dict):
            raise InputError(f"--config is {document!r}, expected an object")
        _require_known("configuration field", document, (entry.name for entry in fields(cls)))
        missing = {"model", "version"} - set(document)
        if missing:
            raise InputError(f"--config lacks {', '.join(sorted(missing))}")
        if document.get("graph_mode", "NONE") not in GRAPH_MODES:
            raise UnknownNameError("graph mode", str(document["graph_mode"]), GRAPH_MODES)
        sizes = document.get("capture_sizes")
        document["capture_sizes"] = None if sizes is None else tuple(sizes)
        return cls(**{**document, "args": parse_args(document.get("args", {}))})


def served_name(model: str) -> str:
    return f"simulated/{model}"


def _require_known(kind: str, document: Mapping[str, Any], allowed: Iterable[str]) -> None:
    names = tuple(allowed)
    for name in document:
        if name not in names:
            raise UnknownNameError(kind, name, names)
