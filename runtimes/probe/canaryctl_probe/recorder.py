"""What the probe counts of each engine, and what it hands to the page.

Nothing in here raises into the engine: a report that cannot be read is counted as an error of
the part that it spoiled, and the other parts are counted all the same.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .facts import Facts
from .histograms import (
    REQUEST_EDGES,
    STEP_EDGES,
    TOKEN_EDGES,
    Histogram,
    copies,
    size_edges,
)
from .steps import Grid, Step, classify, shape_limits, shapes, step_seconds

logger = logging.getLogger("vllm.canaryctl_probe")

NO_GRID = "the engine's configuration could not be read"
METRICS_OFF = "the engine runs without --cudagraph-metrics"
NO_STATS = "the engine's model runner reports no graph statistics"
OTHER_FORM = "the engine's reports of its steps are of a form that this probe does not know"
INTERLEAVED = "with pipeline parallelism several steps are under way at once"

LATENCIES: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "ttft": ("Time to the first token", REQUEST_EDGES),
    "prefill": (
        "Time of a finished request's prompt in the engine, from queue to token",
        REQUEST_EDGES,
    ),
    "tpot": ("Decode time per output token after the first, of a finished request", TOKEN_EDGES),
    "itl": ("Time between two outputs of a request", TOKEN_EDGES),
    "e2e": ("Time from arrival to the last token", REQUEST_EDGES),
}

PARTS = ("configuration", "step", "tokens", "requests", "page")
"""What an error may spoil: the engine's description, a step's counts, the latencies of its
tokens, those of requests that ended with it, and what a scrape shows."""


def latencies() -> dict[str, Histogram]:
    """An empty histogram for each of :data:`LATENCIES`."""
    return {name: Histogram(bounds) for name, (_, bounds) in LATENCIES.items()}


@dataclass
class StepCount:
    steps: int = 0
    actual: int = 0
    padded: int = 0


@dataclass
class EngineCounts:
    """Everything counted of one engine."""

    grid: Grid | None = None
    facts: Facts | None = None
    steps: dict[Step, StepCount] = field(default_factory=dict)
    shapes: dict[str, Histogram] = field(default_factory=dict)  # by kind
    step_times: dict[tuple[str, int], Histogram] = field(default_factory=dict)  # mode, bucket
    latencies: dict[str, Histogram] = field(default_factory=latencies)
    silent_steps: int = 0  # outputs that came without graph statistics
    unread_steps: int = 0  # graph statistics of a form not known
    _ended_before: int = 0  # requests that ended in the last report
    _decoded_before: bool = False  # the last report was of a step of decodes alone

    def observe_step(self, scheduler: Any, iteration: Any) -> None:
        ended, self._ended_before = self._ended_before, _ended(iteration)
        decoded, self._decoded_before = self._decoded_before, False
        stats, grid = None if scheduler is None else scheduler.cudagraph_stats, self.grid
        if stats is None or grid is None:
            self.silent_steps += scheduler is not None and iteration is not None
            return
        try:
            step, size = classify(stats, iteration, grid, ended)
            sizes = shapes(step, size, iteration, grid)
        except Exception:
            self.unread_steps += 1
            raise
        count = self.steps.get(step)
        if count is None:
            count = self.steps[step] = StepCount()
        count.steps += 1
        count.actual += size.actual
        count.padded += size.padded
        for kind, value in sizes.items():
            self._shape(kind, grid).observe(value)
        self._decoded_before = step.pure_decode == "true"
        if decoded and self._decoded_before and grid.one_step_at_a_time:
            self._observe_step_time(step, iteration)

    def _shape(self, kind: str, grid: Grid) -> Histogram:
        histogram = self.shapes.get(kind)
        if histogram is None:
            histogram = self.shapes[kind] = Histogram(size_edges(shape_limits(grid)[kind]))
        return histogram

    def _observe_step_time(self, step: Step, iteration: Any) -> None:
        key = (step.mode, step.bucket)
        histogram = self.step_times.get(key)
        if histogram is None:
            histogram = self.step_times[key] = Histogram(STEP_EDGES)
        histogram.observe(step_seconds(iteration))

    def observe_tokens(self, iteration: Any) -> None:
        self.latencies["itl"].observe_all(iteration.inter_token_latencies_iter)
        self.latencies["ttft"].observe_all(iteration.time_to_first_tokens_iter)

    def observe_request(self, request: Any) -> None:
        self.latencies["e2e"].observe(request.e2e_latency)
        if request.num_generation_tokens > 0:  # one that was aborted before has no such time
            self.latencies["prefill"].observe(request.prefill_time)
        # vLLM's own histogram counts 0 s for a request of one token; it has no such time.
        if request.num_generation_tokens > 1:
            self.latencies["tpot"].observe(request.mean_time_per_output_token)

    def snapshot(self) -> "EngineCounts":
        """As it is now; what is counted later does not show in it."""
        return EngineCounts(
            grid=self.grid,
            facts=self.facts,
            steps={s: StepCount(c.steps, c.actual, c.padded) for s, c in self.steps.items()},
            shapes=copies(self.shapes),
            step_times=copies(self.step_times),
            latencies=copies(self.latencies),
            silent_steps=self.silent_steps,
            unread_steps=self.unread_steps,
        )

    def unknown(self) -> dict[str, str]:
        """What this engine cannot say → why."""
        reasons = {} if self.facts is None else dict(self.facts.unknown)
        why = None if self.steps else self._why_no_steps()
        if why is not None:
            reasons.update(dict.fromkeys(("steps", "shapes", "step_time"), why))
        elif self.grid is not None and not self.grid.one_step_at_a_time:
            reasons["step_time"] = INTERLEAVED
        if self.grid is None:
            reasons["grid"] = NO_GRID
        return reasons

    def _why_no_steps(self) -> str | None:
        if self.grid is None:
            return NO_GRID
        if not self.grid.reports_steps:
            return METRICS_OFF
        if self.unread_steps:
            return OTHER_FORM
        return NO_STATS if self.silent_steps else None


def _ended(iteration: Any) -> int:
    return len(getattr(iteration, "finished_requests", ()))


@dataclass(frozen=True)
class Snapshot:
    """``errors``: by part."""

    engines: Mapping[int, EngineCounts]
    errors: Mapping[str, int]


class Recorder:
    """Counts what engines report. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engines: dict[int, EngineCounts] = {}
        self._errors = dict.fromkeys(PARTS, 0)

    def describe_grid(self, engine: int, read: Callable[[], Grid]) -> None:
        grid = self.tried("configuration", read)
        if grid is not None:
            with self._lock:
                self._of(engine).grid = grid

    def describe_facts(self, engine: int, read: Callable[[], Facts]) -> None:
        facts = self.tried("configuration", read)
        if facts is not None:
            with self._lock:
                self._of(engine).facts = facts

    def observe(self, engine: int, scheduler: Any, iteration: Any) -> None:
        """Count one report: a step's SchedulerStats and the IterationStats of its outputs.

        Either may be None. Never raises.
        """
        with self._lock:
            try:
                counts = self._of(engine)
                self._guarded("step", counts.observe_step, scheduler, iteration)
                if iteration is None:
                    return
                self._guarded("tokens", counts.observe_tokens, iteration)
                for request in iteration.finished_requests:
                    self._guarded("requests", counts.observe_request, request)
            except Exception as error:
                self._count(error, "requests")

    def _guarded(self, part: str, observe: Callable[..., None], *report: Any) -> None:
        try:
            observe(*report)
        except Exception as error:
            self._count(error, part)

    def tried(self, part: str, action: Callable[[], Any]) -> Any:
        """What ``action`` returns; None where it raised, which is counted."""
        try:
            return action()
        except Exception as error:
            with self._lock:
                self._count(error, part)
            return None

    def snapshot(self) -> Snapshot:
        with self._lock:
            engines = {number: counts.snapshot() for number, counts in self._engines.items()}
            return Snapshot(engines, dict(self._errors))

    def _of(self, engine: int) -> EngineCounts:
        counts = self._engines.get(engine)
        if counts is None:
            counts = self._engines[engine] = EngineCounts()
        return counts

    def _count(self, error: Exception, part: str) -> None:
        self._errors[part] += 1
        if self._errors[part] == 1:
            logger.warning(
                "canaryctl probe: the %s could not be read; later ones are only counted",
                part,
                exc_info=error,
            )
