"""A calibration measured on a real engine: one start for each of a few grids, one at a time.

Each is started by the engine's own adapter, and asked for batches of exactly so many sequences;
the step times are those that the engine itself counted (``Signal.STEP_TIME``) while they ran, the
cost of graphs is what its log says.
"""

import json
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from canaryctl.common.errors import InputError, PermanentError
from canaryctl.common.metrics import Signal
from canaryctl.gates.deltas import delta
from canaryctl.gates.samples import Delta, Histogram, HistogramSet, Scrape, Series
from canaryctl.gates.sources import registry as sources
from canaryctl.gates.sources.base import Target
from canaryctl.runtimes.engines.base import Engine, LogFacts, Stage, runs_as
from canaryctl.runtimes.engines.registry import engine
from canaryctl.runtimes.generation import PATH, completion_body
from canaryctl.runtimes.grid.calibration import Calibration
from canaryctl.runtimes.grid.runs import About, MeasuredRun, calibration_of
from canaryctl.runtimes.httpclient import client, healthy
from canaryctl.runtimes.logtail import LogTail
from canaryctl.runtimes.machine import inspect_machine
from canaryctl.runtimes.placements.base import InstanceRequest, Liveness, Placement
from canaryctl.runtimes.simulator.graphs import GraphSet
from canaryctl.runtimes.spec import GraphMode, GraphSpec, RuntimeSpec, WarmupPlan
from canaryctl.runtimes.warmup import WarmupRun, WarmupState, plan_requests

TORCH_SCRIPT: Final = (
    Path(__file__).resolve().parents[1] / "runtimes" / "calibrator" / "canaryctl_calibrate_torch.py"
)
START_S: Final = 900.0
BATCH_S: Final = 180.0
ROUNDS: Final = 5
_FEW: Final = (1, 2, 4, 8, 12, 16, 24, 32, 48)
_BATCHES: Final = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_DENSE: Final = 64
_SPARSE: Final = (8, 64, 512)
_PREFILLS: Final = 5
_DIGEST: Final = "sha256:" + "0" * 64

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Plan:
    name: str
    graph: GraphSpec
    batches: tuple[int, ...]


def grids(runtime: RuntimeSpec) -> tuple[_Plan, ...]:
    """Eager, the default in both modes, and a small, a dense and a sparse one: enough to tell what
    having graphs costs from what each costs, from what its size adds and from what the largest one
    takes. Nothing runs on the sparse one."""
    most = runtime.limits.max_num_seqs
    batches = tuple(size for size in _BATCHES if size <= most)
    both = GraphMode.FULL_AND_PIECEWISE
    few = tuple(size for size in _FEW if size <= max(1, most // 2))
    beyond = next((size for size in batches if size > few[-1]), most)
    # Without graphs it is launching that takes the time, whatever the batch: every other will do.
    apart = tuple(sorted({*batches[::2], batches[-1]}))
    dense = tuple(range(1, min(most, _DENSE) + 1))
    sparse = tuple(size for size in _SPARSE if size <= runtime.limits.max_num_batched_tokens)
    return (
        _Plan("eager", GraphSpec(mode=GraphMode.NONE), apart),
        _Plan("default", GraphSpec(mode=both), batches),
        _Plan("piecewise", GraphSpec(mode=GraphMode.PIECEWISE), batches),
        _Plan("few", GraphSpec(mode=both, capture_sizes=few), (*few, beyond)),
        _Plan("dense", GraphSpec(mode=both, capture_sizes=dense), batches[:4]),
        _Plan("sparse", GraphSpec(mode=both, capture_sizes=sparse), ()),
    )


def calibrate_engine(
    runtime: RuntimeSpec,
    place: Placement,
    say: Say,
    *,
    kv_bytes_per_token: int | None,
    starts: int = 1,
) -> Calibration:
    """Minutes: one start for each of six grids. With more ``starts`` those with graphs are
    captured so often, and the median counts: how long it takes varies from one to the next.

    PermanentError where one does not come up, or runs other graphs than were asked for.
    """
    adapter = engine(runtime.engine.name)
    runs: list[MeasuredRun] = []
    eager_facts, prefill_us = None, 0.0
    for plan in grids(runtime):
        spec = runtime.model_copy(update={"graph": plan.graph, "warmup_plan": WarmupPlan()})
        say(f"{plan.name}: starting")
        with _started(plan.name, spec, adapter, place) as (url, facts, read):
            if plan.name == "eager":
                eager_facts = facts
                per_token = kv_bytes_per_token or _kv_bytes_per_token(read(), facts)
                prefill_us = _prefill_us(url, adapter.model_name(spec), spec)
            sizes = adapter.resolved_grid(spec)
            graphs = GraphSet.of(plan.graph.mode.value, sizes, spec.limits.max_num_seqs)
            visit = _Visits(url, adapter.model_name(spec), spec, graphs, read)
            for batch in plan.batches:
                visit.run(batch)  # the first one compiles and allocates
            # Round after round, so that a slow spell of the machine is not one size's own.
            rounds = [[visit.timed_ms(batch) for batch in plan.batches] for _ in range(ROUNDS)]
            steps = []
            for batch, found in zip(plan.batches, zip(*rounds, strict=True), strict=True):
                steps.append((batch, statistics.median(found)))
                spread = f"{min(found):.2f}–{max(found):.2f}"
                say(f"{plan.name}: {batch} sequences, {steps[-1][1]:.2f} ms a step ({spread})")
        if not spec.uses_graphs:
            runs.append(MeasuredRun(plan.name, "NONE", (), spec.limits.max_num_seqs, steps))
            continue
        captures = [_capture(plan.name, facts)]
        while len(captures) < starts:
            again = f"{plan.name}-{len(captures) + 1}"
            with _started(again, spec, adapter, place) as (_, facts, _):
                captures.append(_capture(again, facts))
        run = _run(plan, sizes, spec, steps, captures)
        runs.append(run)
        each = ", ".join(f"{seconds:.3f} s" for _, seconds in captures)
        count = len(run.graphs.full) + len(run.graphs.piecewise)
        say(f"{plan.name}: {count} graphs, {run.graph_mib:.1f} MiB, captured in {each}")
    if eager_facts is None or eager_facts.kv_cache_tokens is None:
        raise PermanentError("the eager engine's log does not say how many tokens its cache holds")
    return calibration_of(
        runs,
        About(
            machine=_machine(adapter),
            engine=_engine(adapter, runtime),
            model=f"{runtime.model.id}, max_model_len {runtime.limits.max_model_len}",
            method=f"per batch the median step as the engine counted it, in {ROUNDS} rounds; "
            f"graphs by the median of {starts} starts; prefill from the difference of two prompt "
            "lengths, graphs off",
            assumed="",
            prefill_us_per_token=prefill_us,
            kv_bytes_per_token=per_token,
            kv_cache_tokens=eager_facts.kv_cache_tokens,
        ),
    )


def calibrate_torch(python: str, options: Sequence[str]) -> Calibration:
    """By the interpreter that has torch; see ``runtimes/calibrator``. What plain torch cannot
    tell, a compiled step without a graph, is taken for its eager one."""
    done = subprocess.run(
        [python, str(TORCH_SCRIPT), *options], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise PermanentError(f"{python} could not measure: {done.stderr.strip()[-500:]}")
    return torch_calibration(json.loads(done.stdout))


def torch_calibration(found: dict[str, Any]) -> Calibration:
    """From the script's document. InputError where it captured nothing (no CUDA)."""
    shape = found["shape"]
    per_token = 2 * shape["layers"] * shape["kv_heads"] * shape["head_dim"] * 2
    eager = next(run for run in found["runs"] if run["mode"] == "NONE")
    runs = [
        MeasuredRun(
            run["name"],
            run["mode"],
            tuple(run["sizes"]),
            max(run["sizes"], default=1),
            [(size, milliseconds) for size, milliseconds in run["step_ms"]],
            run.get("graph_mib"),
            run.get("capture_s"),
        )
        for run in found["runs"]
    ]
    # One size captured, every other beyond it: the eager steps once more, as steps without a graph.
    captured = [run for run in runs if run.mode != "NONE"]
    if not captured:
        raise InputError("plain torch captured nothing: it found no CUDA device")
    smallest = captured[-1]
    beyond = [(size, ms) for size, ms in eager["step_ms"] if size > smallest.sizes[-1]]
    runs.append(
        MeasuredRun(
            "beyond",
            smallest.mode,
            smallest.sizes,
            smallest.max_num_seqs,
            beyond,
            smallest.graph_mib,
            smallest.capture_s,
        )
    )
    return calibration_of(
        runs,
        About(
            machine=found["machine"],
            engine=found["engine"],
            model="layers of "
            + ", ".join(f"{name} {value}" for name, value in sorted(shape.items())),
            method="plain torch CUDA graphs of layers with random weights, median step",
            assumed="steps without a graph are eager ones, not compiled; no sampling and no "
            "scheduler; the cache takes 90 % of free memory; prefill is no slower than launching",
            prefill_us_per_token=0.0,
            kv_bytes_per_token=per_token,
            kv_cache_tokens=max(1, int(0.9 * found["free_bytes"] / per_token)),
        ),
    )


def _engine(adapter: Engine, runtime: RuntimeSpec) -> str:
    torch = runtime.engine.torch
    return runs_as(adapter, runtime) + (f", torch {torch}" if torch else "")


def _machine(adapter: Engine) -> str:
    if adapter.simulated:
        return "a simulated GPU"
    gpus = inspect_machine().gpus
    return f"one {gpus[0].name}, driver {gpus[0].driver}" if gpus else "a machine without a GPU"


@contextmanager
def _started(
    name: str, spec: RuntimeSpec, adapter: Engine, place: Placement
) -> Iterator[tuple[str, LogFacts, Callable[[], Scrape]]]:
    """The engine's address, its log's facts, and a way to scrape it; stopped afterwards."""
    instance = f"calibrate-{name}-{time.time_ns()}"
    port = place.free_port()
    launch = adapter.launch(spec, host="127.0.0.1", port=port)
    gpus = tuple(range(spec.gpu.count))
    handle = place.ensure(InstanceRequest(instance, _DIGEST, launch, port, gpus))
    try:
        url = place.base_url(handle)
        tail = LogTail(place.log_path(instance))
        deadline = time.monotonic() + START_S
        while not healthy(url, adapter.health_path(), 1):
            alive = place.status(instance, _DIGEST, handle).liveness is Liveness.RUNNING
            if not alive or time.monotonic() > deadline:
                why = "\n".join(tail.lines()[-5:])
                raise PermanentError(f"the engine {name} did not come up:\n{why}")
            time.sleep(0.2)
        facts = adapter.read_log(tail.lines(), spec.engine.version)
        if spec.uses_graphs and Stage.CAPTURED not in facts.stages:
            raise PermanentError(f"the log of {name} does not tell of its graphs: {tail.path}")
        source = sources.build("scrape", timeout_s=10.0)
        refs = adapter.metrics(spec.engine.version)
        wanted = {s: refs[s] for s in (Signal.STEP_TIME, Signal.MEMORY) if s in refs}
        target = Target(instance, f"{url}/metrics", {})
        yield url, facts, lambda: source.read(target, wanted, time.time())
    finally:
        while not place.stop(instance, _DIGEST, handle, grace_s=20.0):
            time.sleep(0.2)


@dataclass(frozen=True, slots=True)
class _Visits:
    """Batches of sequences that decode together on one engine."""

    url: str
    model: str
    spec: RuntimeSpec
    graphs: GraphSet
    read: Callable[[], Scrape]

    def run(self, batch: int) -> None:
        plan = WarmupPlan(decode_buckets=(batch,), repeat_per_bucket=1)
        batches = plan_requests(plan, self.spec.limits)
        run = WarmupRun(self.url, self.model, batches, batch_timeout_s=BATCH_S)
        progress = run.wait(BATCH_S)
        if progress.state is not WarmupState.DONE:
            run.cancel()
            raise PermanentError(f"{batch} sequences: {progress.reason or 'not done in time'}")

    def timed_ms(self, batch: int) -> float:
        """The median step."""
        before = self.read()
        self.run(batch)
        expected = self.graphs.dispatch(batch, pure_decode=True)
        found = delta(before, self.read())
        return _median_ms(found, expected.mode.value, expected.bucket, batch)


def _median_ms(found: object, mode: str, bucket: int, batch: int) -> float:
    """By the histogram of the graph that such a batch is to replay."""
    value = found.values.get(Signal.STEP_TIME) if isinstance(found, Delta) else None
    if not isinstance(value, HistogramSet):
        raise PermanentError(f"the engine's step times cannot be read: {value or found}")
    wanted = {"mode": mode, "bucket": str(bucket)}
    for labels, histogram in value.histograms.items():
        if wanted.items() <= dict(labels).items() and histogram.count:
            return _middle(histogram) * 1000
    seen = sorted(f"{dict(labels)}" for labels, h in value.histograms.items() if h.count)
    raise PermanentError(
        f"{batch} sequences were to run {mode} at {bucket}, but no step did; seen: {seen}"
    )


def _middle(histogram: Histogram) -> float:
    """The middle of the bucket that holds the median; edges are 5 % apart."""
    half, low = histogram.count / 2, 0.0
    for edge, count in histogram.buckets:
        if count >= half:
            return low if edge == float("inf") else (low + edge) / 2
        low = edge
    raise AssertionError("a histogram ends with +Inf")


def _capture(name: str, facts: LogFacts) -> tuple[float, float]:
    """MiB and seconds of the graphs of one start."""
    seconds = facts.stage_seconds.get("capture")
    if facts.graph_bytes is None or seconds is None:
        raise PermanentError(f"the log of {name} does not say what its graphs took")
    return facts.graph_bytes / 2**20, seconds


def _run(
    plan: _Plan,
    sizes: tuple[int, ...],
    spec: RuntimeSpec,
    steps: Sequence[tuple[int, float]],
    captures: Sequence[tuple[float, float]],
) -> MeasuredRun:
    """With the medians of what its starts said."""
    graph_mib, capture_s = map(statistics.median, zip(*captures, strict=True))
    return MeasuredRun(
        plan.name,
        plan.graph.mode.value,
        sizes,
        spec.limits.max_num_seqs,
        steps,
        graph_mib,
        capture_s,
    )


def _kv_bytes_per_token(scrape: Scrape, facts: LogFacts) -> int:
    memory = scrape.values.get(Signal.MEMORY)
    if isinstance(memory, Series) and facts.kv_cache_tokens:
        for labels, size in memory.values.items():
            if dict(labels).get("kind") == "kv_cache":
                return round(size / facts.kv_cache_tokens)
    if facts.kv_cache_bytes and facts.kv_cache_tokens:
        return round(facts.kv_cache_bytes / facts.kv_cache_tokens)
    raise InputError(
        "the engine does not say what a token of KV cache takes; give --kv-bytes-per-token "
        "(2 × layers × KV heads × head size × bytes of a number)"
    )


def _prefill_us(url: str, model: str, spec: RuntimeSpec) -> float:
    """Microseconds that a prompt token adds, from two lengths of prompt."""
    most = min(spec.limits.max_model_len, spec.limits.max_num_batched_tokens) - 8
    medians = []
    with client(BATCH_S) as http:
        for tokens in (most // 2, most):
            times = []
            for _ in range(_PREFILLS + 1):
                body = completion_body(model, prompt_tokens=tokens, output_tokens=1)
                begun = time.perf_counter()
                http.post(url + PATH, json=body).raise_for_status()
                times.append(time.perf_counter() - begun)
            medians.append(statistics.median(times[1:]))
    return max(0.0, (medians[1] - medians[0]) / (most - most // 2) * 1e6)
