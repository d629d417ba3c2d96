"""The list before a launch: each line answered from evidence, never from a claim. Pure.

Evidence is what was planned (the stored grid plan), what was measured (the last baseline run, the
gates of the artifact's last release) and what runs now. What nobody measured is a no.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from canaryctl.common.units import format_duration
from canaryctl.controller.artifact.schema import ArtifactDocument
from canaryctl.controller.baseline.record import (
    BaselineRecord,
    StageRecord,
    compare_conditions,
)
from canaryctl.controller.baseline.summary import summary_of
from canaryctl.controller.gridplans import StoredPlan
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.runtimes.engines.base import Stage
from canaryctl.runtimes.grid.distribution import Distribution, Shapes
from canaryctl.runtimes.grid.rules import EngineRules
from canaryctl.runtimes.grid.warm import warm_buckets
from canaryctl.runtimes.spec import RuntimeSpec

PLAN_IT: Final = "canaryctl grid plan --service SERVICE --since 7d --write ARTIFACT"
RUN_IT: Final = "canaryctl baseline run ARTIFACT --trace FILE"
NO_GRAPHS: Final = "graphs are off: there is nothing to show"
COMPARED: Final = tuple(f"{name} {at}" for name in ("ttft", "tpot", "itl") for at in ("p95", "p99"))


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known. ``sizes``: the grid that the engine resolves; empty without graphs.

    ``gates``: results of the artifact's last release, ``release`` its id. ``rung``: the service's
    previous runtime as it was found serving, in words; None: none was.
    """

    document: ArtifactDocument
    digest: str
    simulated: bool
    sizes: tuple[int, ...]
    rules: EngineRules
    now: datetime
    max_age_s: float
    plan: StoredPlan | None = None
    record: BaselineRecord | None = None
    gates: Mapping[str, GateResult] = field(default_factory=dict)
    release: str | None = None
    rung: str | None = None

    @property
    def runtime(self) -> RuntimeSpec:
        return self.document.runtime

    @property
    def stage(self) -> StageRecord | None:
        """The stage of the baseline run that ran the artifact itself, where it was measured."""
        stage = self.record.of_artifact if self.record is not None else None
        return stage if stage is not None and stage.runs and stage.fault is None else None


@dataclass(frozen=True, slots=True)
class Line:
    """One line's answer. ``do``: what gets the evidence, or changes the answer; None where it
    holds."""

    name: str
    holds: bool
    found: str
    do: str | None = None


@dataclass(frozen=True, slots=True)
class _Answer:
    holds: bool
    found: str
    do: str | None = None


def checklist(evidence: Evidence) -> tuple[Line, ...]:
    """Every line, in the order in which the evidence is gathered."""
    lines = []
    for name, graphs_only, answer in _LINES:
        if graphs_only and not evidence.sizes:
            lines.append(Line(name, True, NO_GRAPHS))
            continue
        said = answer(evidence)
        lines.append(Line(name, said.holds, said.found, None if said.holds else said.do))
    return tuple(lines)


def _histogram(evidence: Evidence) -> _Answer:
    plan = evidence.plan
    if plan is None:
        return _Answer(False, "no distribution of traffic is kept for this artifact", PLAN_IT)
    steps = plan.shapes.total
    if plan.observed_at is None:
        found = f"{steps} steps of {plan.source}; the plan does not tell when they were"
        return _Answer(False, found, PLAN_IT)
    age = evidence.now - datetime.fromisoformat(plan.observed_at)
    found = f"{steps} steps of {plan.source}, {format_duration(round(age.total_seconds()))} old"
    if age > timedelta(seconds=evidence.max_age_s):
        limit = format_duration(evidence.max_age_s)
        return _Answer(False, f"{found}, at most {limit} expected", f"{PLAN_IT}, or --max-age")
    return _Answer(steps > 0, found, PLAN_IT)


def _planned(evidence: Evidence) -> _Answer:
    plan, graph = evidence.plan, evidence.runtime.graph
    if plan is None:
        return _Answer(False, "no plan is kept for this artifact", PLAN_IT)
    if (plan.mode, plan.sizes) != (graph.mode.value, evidence.sizes):
        return _Answer(
            False,
            f"planned {plan.mode} {_list(plan.sizes)}, the artifact captures {graph.mode.value} "
            f"{_list(evidence.sizes)}",
            PLAN_IT,
        )
    return _Answer(True, f"{_list(plan.sizes)}, planned {plan.planned_at}")


def _share(figure: str, gate: str, limit_of: Callable[[Evidence], float | None]) -> (
    Callable[[Evidence], _Answer]
):  # fmt: skip
    """A share of steps from the baseline run, or the gate of the last release; within the limit
    that the artifact itself sets."""

    def answer(evidence: Evidence) -> _Answer:
        stage = evidence.stage
        found = None if stage is None else summary_of(stage).graphs[figure]
        if found is not None:
            limit = limit_of(evidence)
            worst = found.least if figure == "hit" else found.most
            said = f"{worst:.2%} at worst in the baseline run"
            if limit is None:
                return _Answer(True, said)
            good = worst >= limit if figure == "hit" else worst <= limit
            return _Answer(good, f"{said}, the gate {gate} allows {limit:.2%}", PLAN_IT)
        result = evidence.gates.get(gate)
        if result is not None and result.samples and result.outcome is not Outcome.ERROR:
            said = f"{gate} in release {evidence.release}: {result.reason}"
            return _Answer(result.outcome is not Outcome.FAILED, said, PLAN_IT)
        return _Answer(False, "not measured", RUN_IT)

    return answer


def _limit(gate: str, field_name: str, less: float = 0.0) -> Callable[[Evidence], float | None]:
    def limit(evidence: Evidence) -> float | None:
        for spec in evidence.document.gates:
            value: float | None = getattr(spec, field_name)
            if spec.name == gate and value is not None:
                return value - less
        return None

    return limit


def _memory(evidence: Evidence) -> _Answer:
    start = evidence.stage.start if evidence.stage is not None else None
    said = start.memory_bytes if start is not None else {}
    kinds = ("gpu_used_before_capture", "gpu_used_after_capture")
    if not all(kind in said for kind in kinds):
        found = "not recorded" if start is None else "the engine does not say what it took"
        return _Answer(False, found, RUN_IT)
    before, after = (said[kind] / 2**30 for kind in kinds)
    others = ", other engines' included" if start is not None and start.beside_others else ""
    return _Answer(True, f"{before:.2f} GiB before, {after:.2f} GiB after{others}")


def _kv_cache(evidence: Evidence) -> _Answer:
    start = evidence.stage.start if evidence.stage is not None else None
    if start is None or start.kv_cache_tokens is None or start.max_concurrency is None:
        return _Answer(False, "not recorded", RUN_IT)
    return _Answer(
        True, f"{start.kv_cache_tokens} tokens, {start.max_concurrency:.1f} requests at once"
    )


def _warm_up(evidence: Evidence) -> _Answer:
    """By the plan, and by what ran. A bucket warms the graph that it is padded to."""
    runtime, plan = evidence.runtime, evidence.plan
    shapes = plan.shapes if plan else Shapes(Distribution.of({}), Distribution.of({}))
    decode, mixed = warm_buckets(evidence.sizes, shapes, evidence.rules, runtime.limits)
    each = evidence.rules.decode_tokens
    warm = runtime.warmup_plan
    lacking = [
        f"{kind} {bucket}"
        for kind, wanted, buckets, tokens in (
            ("decode", decode, warm.decode_buckets, each),
            ("mixed", mixed, warm.mixed_token_buckets, 1),
        )
        for bucket in _uncovered(wanted, buckets, evidence.sizes, tokens)
    ]
    if lacking:
        do = f"add them to warmup_plan, as {PLAN_IT} does"
        return _Answer(False, f"the warm-up plan leaves out {', '.join(lacking)}", do)
    start = evidence.stage.start if evidence.stage is not None else None
    if start is None:
        return _Answer(False, "the plan covers every bucket; it was not seen to run", RUN_IT)
    planned = [f"decode {n}" for n in warm.decode_buckets]
    planned += [f"mixed {n}" for n in warm.mixed_token_buckets]
    short = [name for name in planned if start.warmed.get(name, 0) < warm.repeat_per_bucket]
    if short:
        return _Answer(False, f"not run as often as planned: {', '.join(short)}", RUN_IT)
    return _Answer(True, f"{len(planned)} buckets, {warm.repeat_per_bucket} times each")


def _uncovered(
    wanted: Iterable[int], buckets: Iterable[int], sizes: Sequence[int], tokens: int
) -> list[int]:
    """Of ``wanted`` those whose graph no bucket is padded to; both in units of ``tokens``."""

    def graph(bucket: int) -> int:
        return bisect_left(sizes, bucket * tokens)

    warmed = {graph(bucket) for bucket in buckets}
    return [bucket for bucket in wanted if graph(bucket) not in warmed]


def _ready(evidence: Evidence) -> _Answer:
    if not evidence.runtime.warmup_plan.block_ready_until_complete:
        do = "set warmup_plan.block_ready_until_complete: true"
        return _Answer(False, "the warm-up plan does not block readiness", do)
    stage = evidence.stage
    reached = stage.start.reached if stage is not None and stage.start is not None else {}
    if stage is None or not reached:
        return _Answer(False, "no start was recorded", RUN_IT)
    lacking = [name for name in Stage if name not in reached]
    if lacking:
        return _Answer(False, f"the start did not come by {', '.join(lacking)}", RUN_IT)
    begun = [run.begun_at for run in stage.runs if run.begun_at is not None]
    if len(begun) < len(stage.runs):
        return _Answer(False, "when traffic came is not recorded", RUN_IT)
    captured, warmed = (
        datetime.fromisoformat(reached[name]).timestamp() for name in (Stage.CAPTURED, Stage.WARMED)
    )
    later = min(begun) - warmed
    found = f"warm {warmed - captured:.1f} s after capture, traffic {later:.1f} s after that"
    return _Answer(captured <= warmed <= min(begun), found, RUN_IT)


def _compared(evidence: Evidence) -> _Answer:
    record, own = evidence.record, evidence.stage
    if record is None or own is None:
        return _Answer(False, "not compared", RUN_IT)
    why = "no other stage was measured"
    for other in reversed(record.stages):
        if other.digest == own.digest or not other.runs or other.fault is not None:
            continue
        found = compare_conditions(own.conditions, other.conditions)
        if not found.comparable:
            why = f"not comparable with {other.name}: {found.why_not}"
            continue
        mine, theirs = summary_of(own).latency, summary_of(other).latency
        pairs = {name: (mine[name], theirs[name]) for name in COMPARED}
        lacking = [name for name, (a, b) in pairs.items() if a is None or b is None]
        if any(run.saturated for run in (*own.runs, *other.runs)):
            why = f"against {other.name} the client was saturated: latencies are its own"
            continue
        if lacking:
            why = f"unknown against {other.name}: {', '.join(lacking)}"
            continue
        told = [
            f"{name} {a.median * 1e3:.2f} ms against {b.median * 1e3:.2f}"
            for name, (a, b) in pairs.items()
            if a is not None and b is not None
        ]
        return _Answer(True, f"with {other.name}: {', '.join(told)}")
    return _Answer(False, why, RUN_IT)


def _rung(evidence: Evidence) -> _Answer:
    if evidence.rung is not None:
        return _Answer(True, evidence.rung)
    eager = evidence.record.stage("eager") if evidence.record is not None else None
    own = eager is not None and eager.digest == evidence.digest
    if eager is None or own or not eager.runs:
        return _Answer(False, "neither a previous runtime nor eager was seen healthy", RUN_IT)
    requests, failed = sum(r.requests for r in eager.runs), sum(r.failed for r in eager.runs)
    good = eager.fault is None and not failed
    return _Answer(good, f"eager answered {requests - failed} of {requests} requests", RUN_IT)


def _versions(evidence: Evidence) -> _Answer:
    runtime, stage = evidence.runtime, evidence.stage
    wanted = {"model.revision": runtime.model.revision}
    if not evidence.simulated:
        wanted["engine.torch"] = runtime.engine.torch
        if runtime.gpu.count:
            wanted |= {"cuda.toolkit": runtime.cuda.toolkit, "cuda.driver": runtime.cuda.driver}
            wanted["gpu.model"] = runtime.gpu.model
    lacking = [name for name, value in wanted.items() if not value]
    if lacking:
        do = "add them to the artifact, as `canaryctl baseline show` attests them"
        return _Answer(False, f"the artifact leaves open {', '.join(lacking)}", do)
    declared = f"{runtime.engine.name} {runtime.engine.version}"
    attested = stage.conditions.get("engine") if stage is not None else None
    if attested is None:
        return _Answer(False, f"declared {declared}; no engine has attested it", RUN_IT)
    found = f"declared {declared}, attested {attested}"
    return _Answer(attested == declared, found, "correct engine.version, or the installation")


def _list(sizes: Iterable[int]) -> str:
    return ", ".join(map(str, sizes))


_LINES: Final[tuple[tuple[str, bool, Callable[[Evidence], _Answer]], ...]] = (
    ("histogram of traffic at hand", True, _histogram),
    ("grid planned from it", True, _planned),
    ("hit ratio measured", True, _share("hit", "graph_hit", _limit("graph_hit", "min_ratio"))),
    (
        "fallback measured",
        True,
        _share("fallback", "graph_fallback", _limit("graph_fallback", "max_ratio")),
    ),
    (
        "padding measured",
        True,
        _share("padding", "padding_ratio", _limit("padding_ratio", "max_ratio", less=1.0)),
    ),
    ("memory before and after capture recorded", True, _memory),
    ("KV capacity recorded", False, _kv_cache),
    ("warm-up covers every bucket", True, _warm_up),
    ("ready only after capture and warm-up", False, _ready),
    ("TTFT, TPOT and ITL p95 and p99 compared", False, _compared),
    ("eager or previous runtime healthy", False, _rung),
    ("versions in the artifact", False, _versions),
)
