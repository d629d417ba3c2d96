"""When an instance may take users' traffic. Pure: facts in, stages out.

    started → loaded → compiled → captured → warmed → ready

A process that runs, and a server that answers, are not ready: users would become the warm-up.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from canaryctl.runtimes.engines.base import LogFacts, Stage
from canaryctl.runtimes.spec import RuntimeSpec


@dataclass(frozen=True, slots=True)
class Readiness:
    """``missing``: what the next stage waits for. ``fault``: why it will never be ready."""

    stages: Mapping[Stage, datetime]
    missing: str | None = None
    fault: str | None = None

    @property
    def ready(self) -> bool:
        return Stage.READY in self.stages and self.fault is None


def assess(
    facts: LogFacts,
    *,
    alive: bool,
    health_ok: bool,
    spec: RuntimeSpec,
    warmed: bool,
    previous: Mapping[Stage, datetime],
    now: datetime,
    captured: tuple[int, ...] | None = None,
) -> Readiness:
    """The stages complete at ``now``, strictly in order; a complete one keeps its time.

    ``captured``: the grid that the engine itself reports, None while it is not known. A grid
    that lacks what the artifact asks for is a fault that names the sizes. ``warmed``: every
    bucket of the plan ran; where the plan does not block, ready does not wait for it.
    """
    stages = dict(previous)
    fault = _fault(facts, alive, captured, spec, ready=Stage.READY in previous)
    if fault is not None:
        return Readiness(stages, fault=fault)
    # Stages run in order, and the server listens only when the engine is initialised.
    seen = max((stage.order for stage in facts.stages), default=-1)
    if spec.uses_graphs:
        proven, proof = captured is not None, "graph capture to be seen in the log or reported"
    else:
        proven, proof = health_ok, "the server to listen"
    conditions = {
        Stage.STARTED: (alive, "the process to run"),
        Stage.LOADED: (seen >= Stage.LOADED.order or health_ok, "the model to be loaded"),
        Stage.COMPILED: (seen >= Stage.COMPILED.order or health_ok, "compilation"),
        Stage.CAPTURED: (seen >= Stage.CAPTURED.order or proven, proof),
        Stage.WARMED: (warmed, "every bucket of the warm-up plan to be run"),
        Stage.READY: (health_ok, "the server to answer its health check"),
    }
    missing = None
    for stage, (complete, waits_for) in conditions.items():
        if complete:
            stages.setdefault(stage, now)
        elif stage not in stages and (
            stage is not Stage.WARMED or spec.warmup_plan.block_ready_until_complete
        ):
            missing = waits_for
            break
    return Readiness(dict(sorted(stages.items(), key=lambda item: item[0].order)), missing)


def lacking_sizes(spec: RuntimeSpec, captured: Iterable[int]) -> tuple[str, ...]:
    """What the artifact asks of the grid and ``captured`` does not have, in words.

    Requested capture sizes must be there. Decode buckets of the warm-up plan must not exceed
    the largest size: they are padded to the next. Speculative decoding runs several tokens per
    sequence and step, and the engine rounds sizes up to multiples of that number.
    """
    have = set(captured)
    if not have:
        return ("every size: no graph was captured",)
    tokens = 1 + (spec.speculative.num_speculative_tokens if spec.speculative else 0)
    asked = {-(-size // tokens) * tokens for size in spec.graph.capture_sizes or ()}
    faults = []
    if lost := sorted(asked - have):
        faults.append(f"capture sizes {_list(lost)}")
    largest = max(have)
    beyond = [size for size in spec.warmup_plan.decode_buckets if size * tokens > largest]
    if beyond:
        faults.append(f"decode buckets {_list(sorted(beyond))} (the largest size is {largest})")
    return tuple(faults)


def overdue(
    stages: Mapping[Stage, datetime], deadlines: Mapping[str, float], now: datetime
) -> str | None:
    """The stage that has taken longer than its deadline, in words; None while none has.

    ``deadlines``: seconds for ``load``, ``compile``, ``capture`` and ``warm``, each counted
    from the end of the stage before. ``warm`` includes the wait until the server listens.
    """
    unknown = sorted(set(deadlines) - set(_TIMED))
    if unknown:
        raise ValueError(f"no stage is named {_list(unknown)}; expected {_list(_TIMED)}")
    for name, (begins, ends) in _TIMED.items():
        if begins not in stages or ends in stages or name not in deadlines:
            continue
        taken = (now - stages[begins]).total_seconds()
        if taken > deadlines[name]:
            return (
                f"{name} is not complete {taken:.0f} s after {begins.value} "
                f"(deadline {deadlines[name]:.0f} s)"
            )
    return None


_TIMED = {
    "load": (Stage.STARTED, Stage.LOADED),
    "compile": (Stage.LOADED, Stage.COMPILED),
    "capture": (Stage.COMPILED, Stage.CAPTURED),
    "warm": (Stage.CAPTURED, Stage.WARMED),
}


def _fault(
    facts: LogFacts,
    alive: bool,
    captured: tuple[int, ...] | None,
    spec: RuntimeSpec,
    *,
    ready: bool,
) -> str | None:
    if not alive:
        said = (*facts.out_of_memory[:1], *facts.fatal[:1])
        return "the engine's process has ended" + (f": {said[0]}" if said else "")
    if ready:
        return None  # from here on gates judge
    if facts.out_of_memory:
        return f"out of memory while starting: {facts.out_of_memory[0]}"
    if captured is not None and spec.uses_graphs:
        lacking = lacking_sizes(spec, captured)
        if lacking:
            return f"the captured grid [{_list(captured)}] lacks {'; '.join(lacking)}"
    return None


def _list(items: Iterable[object]) -> str:
    return ", ".join(str(item) for item in items)
