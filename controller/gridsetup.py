"""From options and an artifact to what a planner needs: traffic, cost model, rules and wish."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from canaryctl.common.errors import InputError, PermanentError
from canaryctl.controller.artifact.loader import load_artifact
from canaryctl.controller.artifact.rewrite import write_grid
from canaryctl.controller.gridplans import StoredPlan, beside, in_state, load_plan, store_plan
from canaryctl.controller.prometheus import URL
from canaryctl.controller.settings import Settings
from canaryctl.controller.traffic import Range, read_traffic
from canaryctl.runtimes.engines.base import runs_as
from canaryctl.runtimes.engines.registry import engine
from canaryctl.runtimes.grid.calibration import Calibration, load_calibration, packaged
from canaryctl.runtimes.grid.cost import CostModel
from canaryctl.runtimes.grid.distribution import Shapes, Traffic, merged
from canaryctl.runtimes.grid.drift import Drift, drift
from canaryctl.runtimes.grid.figures import Figures
from canaryctl.runtimes.grid.optimise import Objective
from canaryctl.runtimes.grid.planner import DEFAULT, Judged, Wish, judge_grid
from canaryctl.runtimes.grid.problem import Limits
from canaryctl.runtimes.grid.replay import replay
from canaryctl.runtimes.grid.rules import EngineRules
from canaryctl.runtimes.grid.traces import read_counts, read_trace
from canaryctl.runtimes.grid.warm import grid_buckets, warm_buckets
from canaryctl.runtimes.spec import GraphMode, GraphSpec, LimitsSpec, RuntimeSpec


@dataclass(frozen=True, slots=True)
class Question:
    """The options of ``canaryctl grid``; times in seconds, shares of one."""

    service: str | None
    selectors: tuple[str, ...]
    since: float | None
    hours: str | None
    trace: Path | None
    speed: float
    counts: Path | None
    calibration: Path | None
    tokens_per_request: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    mode: str | None
    sequence_parallel: int
    objective: str
    max_memory: float | None
    max_capture_time: float | None
    max_sizes: int | None
    min_coverage: float | None
    max_p99: float | None
    max_mean: float | None
    margin: float
    min_gain: float
    worth: float

    @property
    def limits(self) -> Limits:
        return Limits(
            max_memory_mib=self.max_memory,
            max_capture_s=self.max_capture_time,
            max_sizes=self.max_sizes,
            min_coverage=self.min_coverage,
            max_p99_s=self.max_p99,
            max_mean_s=self.max_mean,
            margin=self.margin,
        )

    def wish(self, max_model_len: int) -> Wish:
        return Wish(
            tokens_per_request=self.tokens_per_request or max_model_len,
            limits=self.limits,
            objective=Objective(self.objective),
            min_gain=self.min_gain,
            worth=self.worth,
        )

    def cost(self) -> CostModel:
        found = packaged() if self.calibration is None else load_calibration(self.calibration)
        return CostModel(found)


def other_engine(runtime: RuntimeSpec, measured: Calibration) -> tuple[str, ...]:
    """A note where the runtime's engine is not the one that was measured; else nothing."""
    runs = runs_as(engine(runtime.engine.name), runtime)
    if measured.engine.partition(", ")[0] == runs:
        return ()
    which = f"the artifact runs {runs}; the figures are of {measured.engine}"
    return (f"{which}: canaryctl grid calibrate measures its own",)


@dataclass(frozen=True, slots=True)
class GridSetup:
    """``runtime``: of the artifact; None without. ``others``: grids to compare with, by name."""

    runtime: RuntimeSpec | None
    rules: EngineRules
    cost: CostModel
    wish: Wish
    others: dict[str, tuple[int, ...]]

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader of its figures has to know of them."""
        return () if self.runtime is None else other_engine(self.runtime, self.cost.calibration)

    def traffic(self, question: Question) -> Traffic:
        return read_question(question, self.cost, self.rules)

    def require_resolved(self, sizes: tuple[int, ...]) -> None:
        """PermanentError where the engine would capture other sizes than were planned."""
        if not sizes:
            return
        resolved = (
            self.rules.resolve(sizes)
            if self.runtime is None
            else engine(self.runtime.engine.name).resolved_grid(
                _with_grid(self.runtime, self.rules.mode, sizes)
            )
        )
        if resolved != sizes:
            raise PermanentError(
                f"the engine would capture {resolved} where {sizes} was planned; plan with "
                "--sequence-parallel or other limits"
            )

    def write(self, path: Path, grid: Figures, shapes: Shapes, traffic: Traffic) -> str:
        """Set the grid in an artifact and store the plan; the new digest. InputError where
        nothing was worth a graph."""
        if not grid.sizes:
            raise InputError("no size is worth a graph: nothing was written; consider mode NONE")
        document = load_artifact(path).document
        decode, mixed = warm_buckets(grid.sizes, shapes, self.rules, document.runtime.limits)
        loaded = write_grid(
            path,
            mode=self.rules.mode,
            sizes=grid.sizes,
            decode_buckets=decode,
            mixed_token_buckets=mixed,
        )
        now = datetime.now(UTC)
        plan = StoredPlan(
            source=traffic.source,
            planned_at=_iso(now),
            observed_at=_observed(traffic, now),
            calibration=self.cost.calibration.whose,
            mode=self.rules.mode,
            sizes=grid.sizes,
            decode=dict(shapes.decode.items()),
            mixed=dict(shapes.mixed.items()),
            notes=shapes.notes,
        )
        state = in_state(Settings.from_environment().state_dir, loaded.digest)
        store_plan(plan, beside(path), state)
        return loaded.digest


def _iso(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


def _observed(traffic: Traffic, now: datetime) -> str | None:
    """Never later than ``now``: another machine's clock may be ahead."""
    if traffic.observed_at is None:
        return None
    return _iso(min(now, datetime.fromtimestamp(traffic.observed_at, UTC)))


def prepare(question: Question, artifact: Path | None, against: Sequence[str]) -> GridSetup:
    """InputError where options contradict each other or the artifact."""
    if artifact is None:
        runtime, limits = None, LimitsSpec()
        limits = limits.model_copy(
            update={
                name: value
                for name in ("max_num_seqs", "max_num_batched_tokens")
                if (value := getattr(question, name)) is not None
            }
        )
    else:
        if question.max_num_seqs or question.max_num_batched_tokens:
            raise InputError("--max-num-seqs and --max-num-batched-tokens are the artifact's")
        runtime = load_artifact(artifact).document.runtime
        limits = runtime.limits
    rules = _rules(question, runtime, limits)
    if rules.mode == "NONE":
        raise InputError("the artifact has graph mode NONE; give --mode to plan a grid for it")
    others = {DEFAULT: rules.default()}
    if runtime is not None:
        adapter = engine(runtime.engine.name)
        others[DEFAULT] = adapter.resolved_grid(_with_grid(runtime, rules.mode, None))
        if runtime.graph.capture_sizes is not None:
            others["own"] = adapter.resolved_grid(
                _with_grid(runtime, rules.mode, runtime.graph.capture_sizes)
            )
    for text in against:
        others[text if len(text) <= 24 else f"{text[:23]}…"] = rules.resolve(_sizes(text))
    return GridSetup(runtime, rules, question.cost(), question.wish(limits.max_model_len), others)


@dataclass(frozen=True, slots=True)
class ArtifactGrid:
    """The grid of an artifact's file under its own rules. ``name``: the file's."""

    name: str
    shapes: Shapes
    judged: Judged
    notes: tuple[str, ...]


def grid_of(
    path: Path, traffic: Traffic, cost: CostModel, tokens_per_request: int | None
) -> ArtifactGrid:
    """What the grid of an artifact's file does with ``traffic``, under its own limits."""
    runtime = load_artifact(path).document.runtime
    rules = rules_of(runtime)
    shapes = traffic.planned(rules.max_num_seqs)
    judged = judge_grid(
        engine(runtime.engine.name).resolved_grid(runtime),
        shapes,
        cost,
        rules,
        tokens_per_request=tokens_per_request or runtime.limits.max_model_len,
    )
    notes = (*judged.notes, *other_engine(runtime, cost.calibration))
    return ArtifactGrid(str(path), shapes, judged, notes)


def drift_of(
    runtime: RuntimeSpec,
    digest: str,
    question: Question,
    plan_file: Path | None,
    tolerance: float,
) -> tuple[Drift, StoredPlan]:
    """Compare what the runtime's grid was planned from with the traffic asked for."""
    rules, cost = rules_of(runtime), question.cost()
    if rules.mode == "NONE":
        raise InputError("the stable runtime has graph mode NONE: it has no grid")
    path = plan_file or in_state(Settings.from_environment().state_dir, digest)
    if not path.exists():
        raise InputError(
            f"{path}: no plan is stored for the stable runtime; plan with --write, or give --plan "
            "with the ARTIFACT.grid.json that lies beside the artifact"
        )
    stored = load_plan(path)
    now = read_question(question, cost, rules).planned(rules.max_num_seqs)
    found = drift(
        engine(runtime.engine.name).resolved_grid(runtime),
        stored.shapes,
        now,
        cost,
        rules,
        question.wish(runtime.limits.max_model_len),
        tolerance=tolerance,
    )
    return found, stored


def warmup_of(runtime: RuntimeSpec) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(decode buckets, mixed-token buckets) that warm the runtime's whole grid, its own or its
    engine's default. InputError for a runtime without one."""
    sizes = engine(runtime.engine.name).resolved_grid(runtime)
    if not sizes:
        raise InputError(
            f"found graph mode {runtime.graph.mode.value}, which captures nothing; expected a grid"
        )
    return grid_buckets(sizes, rules_of(runtime), runtime.limits)


def rules_of(runtime: RuntimeSpec, mode: str | None = None, ranks: int = 1) -> EngineRules:
    speculative = runtime.speculative
    return EngineRules(
        max_num_seqs=runtime.limits.max_num_seqs,
        max_num_batched_tokens=runtime.limits.max_num_batched_tokens,
        mode=mode or runtime.graph.mode.value,
        speculative_tokens=speculative.num_speculative_tokens if speculative else 0,
        sequence_parallel=ranks,
    )


def read_question(question: Question, cost: CostModel, rules: EngineRules) -> Traffic:
    """The traffic that the options name; InputError where they name none, or several."""
    from_server = bool(question.service or question.selectors)
    given = [from_server, question.trace is not None, question.counts is not None]
    if sum(given) != 1:
        raise InputError(
            "found "
            + ("no source of traffic" if not any(given) else "several sources of traffic")
            + ", expected one of --service (or --selector), --trace and --counts"
        )
    if question.trace is not None:
        tokens = cost.calibration.kv_cache_tokens
        traffic = replay(
            read_trace(question.trace), cost, rules, kv_tokens=tokens, speed=question.speed
        )
        traffic = _written(traffic, question.trace)
    elif question.counts is not None:
        traffic = _written(read_counts(question.counts), question.counts)
    else:
        traffic = _from_server(question)
    return traffic if question.hours is None else _of_hours(traffic, question.hours)


def _written(traffic: Traffic, path: Path) -> Traffic:
    """What a file tells happened before it was last written."""
    return replace(traffic, observed_at=path.stat().st_mtime)


def _from_server(question: Question) -> Traffic:
    settings = Settings.from_environment().prometheus
    if settings is None:
        raise InputError(f"no Prometheus is known; set {URL}, or give --trace or --counts")
    selector = {} if question.service is None else {"service": question.service}
    for text in question.selectors:
        name, equals, value = text.partition("=")
        if not (equals and name.isidentifier()):
            raise InputError(f"--selector: found {text!r}, expected LABEL=VALUE")
        selector[name] = value
    end = time.time()
    return read_traffic(settings, selector, Range(end - (question.since or 0), end))


def _of_hours(traffic: Traffic, text: str) -> Traffic:
    first, _, last = text.partition("-")
    try:
        begin, end = int(first), int(last or first)
    except ValueError:
        begin = end = -1
    if not (0 <= begin <= 23 and 0 <= end <= 23):
        raise InputError(f"--hours: found {text!r}, expected FIRST-LAST such as 8-17, from 0 to 23")
    wanted = {hour % 24 for hour in range(begin, end + 1 + (24 if end < begin else 0))}
    parts = [kinds for hour, kinds in traffic.by_hour.items() if hour in wanted]
    if not parts:
        raise InputError(f"{traffic.source} has no step in the hours {text} (UTC)")
    names = {kind for kinds in parts for kind in kinds}
    found = {kind: merged(kinds[kind] for kinds in parts if kind in kinds) for kind in names}
    by_hour = {hour: kinds for hour, kinds in traffic.by_hour.items() if hour in wanted}
    source = f"{traffic.source}, hours {text} (UTC)"
    return replace(traffic, source=source, kinds=found, by_hour=by_hour)


def _rules(question: Question, runtime: RuntimeSpec | None, limits: LimitsSpec) -> EngineRules:
    if runtime is not None:
        return rules_of(runtime, question.mode, question.sequence_parallel)
    return EngineRules(
        limits.max_num_seqs,
        limits.max_num_batched_tokens,
        question.mode or "FULL_AND_PIECEWISE",
        sequence_parallel=question.sequence_parallel,
    )


def _with_grid(runtime: RuntimeSpec, mode: str, sizes: Sequence[int] | None) -> RuntimeSpec:
    graph: dict[str, Any] = {"mode": GraphMode(mode), "capture_sizes": sizes and tuple(sizes)}
    return runtime.model_copy(update={"graph": GraphSpec(**graph)})


def _sizes(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = (0,)
    if min(found) < 1:
        raise InputError(f"--against: found {text!r}, expected sizes such as 1,2,4,8")
    return found
