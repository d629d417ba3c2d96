"""A calibration measured on a real engine: one start for each of a few grids, one at a time.

Each is started by the engine's own adapter on GPUs that nothing else uses, and asked for batches
of exactly so many sequences; the step times are those that the engine itself counted
(``Signal.STEP_TIME``) while they ran, the cost of graphs is what its log says.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from canaryctl.common.clock import Clock
from canaryctl.common.errors import InputError, PermanentError
from canaryctl.common.metrics import Signal
from canaryctl.controller.baseline.engines import StageEngines, StageError, Up
from canaryctl.controller.baseline.figures import by_label
from canaryctl.controller.baseline.run import kv_tokens
from canaryctl.controller.baseline.stages import Stage
from canaryctl.controller.calibration.grids import MeasuredGrid, grids
from canaryctl.controller.calibration.kept import Kept, MeasuredStart
from canaryctl.controller.calibration.visits import Visits, prefill_us
from canaryctl.controller.calibration.words import engine_words, machine_words
from canaryctl.controller.errors import NoGpuError
from canaryctl.controller.gridsetup import rules_of
from canaryctl.controller.memory import with_logged
from canaryctl.runtimes.engines.base import Engine
from canaryctl.runtimes.grid.calibration import Calibration
from canaryctl.runtimes.grid.runs import About, MeasuredRun, calibration_of
from canaryctl.runtimes.spec import RuntimeSpec

START_S: Final = 900.0
ROUNDS: Final = 5
_FREED_S: Final = 10.0
"""Until the memory of an engine that has ended is free, at most."""

T = TypeVar("T")
Say = Callable[[str], None]


def asked(
    runtime: RuntimeSpec, digest: str, *, starts: int, kv_bytes_per_token: int | None
) -> dict[str, Any]:
    """What is measured, as JSON: the same again goes on where it was cut off."""
    return {
        "artifact": digest,
        "number of starts": starts,
        "size of the KV cache's tokens": kv_bytes_per_token,
        "number of rounds": ROUNDS,
        "set of grids": [
            [grid.name, grid.graph.mode.value, grid.graph.capture_sizes, grid.batches]
            for grid in grids(runtime)
        ],
    }


class CalibrationRun:
    """``kept``: the starts that are finished; those are not measured again. ``starts``: of each
    grid with graphs; the median of what their captures took counts, since it varies."""

    def __init__(
        self,
        engines: StageEngines,
        engine: Engine,
        kept: Kept,
        *,
        clock: Clock,
        starts: int,
        kv_bytes_per_token: int | None,
        say: Say,
    ) -> None:
        self._engines, self._engine, self._kept, self._clock = engines, engine, kept, clock
        self._starts, self._kv_bytes_per_token, self._say = starts, kv_bytes_per_token, say

    def run(self, runtime: RuntimeSpec, model: str) -> Calibration:
        """Minutes. ``model``: what it is called. PermanentError where an engine does not come up
        or runs other graphs than were asked for; NoGpuError where no GPU is free."""
        found: dict[str, list[MeasuredStart]] = {}
        # Again and again rather than one grid's all at once: a slow spell is not one grid's own.
        for number in range(1, self._starts + 1):
            for grid in grids(runtime):
                spec = grid.runtime(runtime)
                if number > 1 and not spec.uses_graphs:
                    continue
                name = grid.name if number == 1 else f"{grid.name}-{number}"
                start = self._kept.find(name)
                if start is None:
                    start = self._measure(Stage(name, spec), grid, timed=number == 1)
                    self._kept.add(start)
                found.setdefault(grid.name, []).append(start)
        eager = found["eager"][0]
        return calibration_of(
            [_run(runtime, grid, found[grid.name]) for grid in grids(runtime)],
            About(
                machine=eager.machine,
                engine=eager.engine,
                model=model,
                method=f"per batch the mean step as the engine timed it, in {ROUNDS} rounds; "
                f"graphs by the median of {self._starts} starts; prefill from the difference of "
                "two prompt lengths, graphs off",
                assumed="",
                prefill_us_per_token=_said(eager.prefill_us_per_token),
                kv_bytes_per_token=_said(eager.kv_bytes_per_token),
                kv_cache_tokens=_said(eager.kv_cache_tokens),
            ),
        )

    def _measure(self, stage: Stage, grid: MeasuredGrid, *, timed: bool) -> MeasuredStart:
        self._say(f"{stage.name}: starting")
        up = self._start(stage)
        facts = up.instance.facts
        try:
            sizes = graphs_of(stage, self._engine.resolved_grid(stage.runtime), facts)
            steps = self._steps(up, grid, sizes) if timed else ()
            eager = {} if stage.runtime.uses_graphs else self._without_graphs(up)
            self._engines.require_alone(up)
        finally:
            self._engines.stop(up.instance.id)
        captured = _capture(stage.name, facts) if stage.runtime.uses_graphs else None
        if captured is not None:
            self._say(f"{stage.name}: {captured[0]:.1f} MiB, captured in {captured[1]:.3f} s")
        mib, seconds = captured or (None, None)
        machine = machine_words(self._engine, up.instance.gpus)
        engine = engine_words(self._engine, stage.runtime, facts["attested"])
        return MeasuredStart(
            stage.name, machine, engine, sizes, tuple(steps), mib, seconds, **eager
        )

    def _start(self, stage: Stage) -> Up:
        give_up_at = self._clock.now().timestamp() + _FREED_S
        while True:
            try:
                return self._engines.start(stage, START_S)
            except StageError as error:
                raise PermanentError(f"the engine {stage.name} did not come up: {error}") from error
            except NoGpuError:
                if self._clock.now().timestamp() > give_up_at:
                    raise
                self._clock.sleep(0.5)

    def _steps(
        self, up: Up, grid: MeasuredGrid, sizes: tuple[int, ...]
    ) -> Sequence[tuple[int, float]]:
        spec, rules = up.stage.runtime, rules_of(up.stage.runtime)
        visits = Visits(
            up.url,
            up.model,
            spec.limits,
            rules,
            rules.graphs(sizes),
            lambda: self._engines.scrape(up, (Signal.STEP_TIME,)),
        )
        for batch in grid.batches:
            visits.run(batch)  # the first one compiles and allocates
        # Round after round, so that a slow spell of the machine is not one size's own.
        rounds = [[visits.timed_ms(batch) for batch in grid.batches] for _ in range(ROUNDS)]
        steps = []
        for batch, found in zip(grid.batches, zip(*rounds, strict=True), strict=True):
            steps += [(visits.tokens(batch), ms) for ms in found]
            said = f"{statistics.fmean(found):.2f} ms a step ({min(found):.2f}–{max(found):.2f})"
            self._say(f"{grid.name}: {batch} sequences, {said}")
        return steps

    def _without_graphs(self, up: Up) -> dict[str, Any]:
        """What is measured of the engine without graphs alone."""
        scrape, facts = self._engines.scrape(up), up.instance.facts
        tokens = facts.get("kv_cache_tokens") or kv_tokens(scrape)
        if tokens is None:
            raise PermanentError("the engine does not say how many tokens its KV cache holds")
        memory = with_logged(by_label(scrape.values.get(Signal.MEMORY), "kind"), facts)
        per_token = self._kv_bytes_per_token
        if per_token is None and memory.get("kv_cache"):
            per_token = round(memory["kv_cache"] / tokens)
        if per_token is None:
            raise InputError(
                "the engine does not say what a token of KV cache takes; give "
                "--kv-bytes-per-token (2 × layers × KV heads × head size × bytes of a number)"
            )
        return {
            "kv_cache_tokens": tokens,
            "kv_bytes_per_token": per_token,
            "prefill_us_per_token": prefill_us(up.url, up.model, up.stage.runtime.limits),
        }


def graphs_of(stage: Stage, expected: tuple[int, ...], facts: Mapping[str, Any]) -> tuple[int, ...]:
    """The sizes that the engine attests. Of its default grid it may have more than ``expected``:
    what releases and GPUs add to it is not all known. PermanentError for any other difference."""
    wanted = stage.runtime.graph
    mode = (facts.get("attested") or {}).get("graph_mode")
    sizes: Sequence[int] | None = facts.get("captured_sizes")
    if mode is None or sizes is None:
        raise PermanentError(f"the engine {stage.name} does not attest which graphs it has")
    lost, more = sorted(set(expected) - set(sizes)), sorted(set(sizes) - set(expected))
    if mode != wanted.mode.value or lost or (more and wanted.capture_sizes is not None):
        raise PermanentError(
            f"the engine {stage.name} runs other graphs than it was asked for: mode {mode}, sizes "
            f"{_listed(sizes)}; expected {wanted.mode.value}, {_listed(expected)}; its log may say "
            "why"
        )
    return tuple(sorted(sizes))


def _listed(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(sizes))) or "none"


def _capture(name: str, facts: Mapping[str, Any]) -> tuple[float, float]:
    """MiB and seconds of the graphs of one start."""
    graph_bytes, seconds = facts.get("graph_bytes"), facts["stage_seconds"].get("capture")
    if graph_bytes is None or seconds is None:
        raise PermanentError(f"the log of {name} does not say what its graphs took")
    return graph_bytes / 2**20, seconds


def _run(runtime: RuntimeSpec, grid: MeasuredGrid, starts: Sequence[MeasuredStart]) -> MeasuredRun:
    """With the medians of what its starts said."""
    first, rules = starts[0], rules_of(grid.runtime(runtime))
    graphs = rules.graphs(first.sizes)
    captured = bool(graphs.sizes)
    return MeasuredRun(
        grid.name,
        grid.graph.mode.value,
        first.sizes,
        rules.largest_decode,
        first.step_ms,
        statistics.median(_said(start.graph_mib) for start in starts) if captured else None,
        statistics.median(_said(start.capture_s) for start in starts) if captured else None,
    )


def _said(value: T | None) -> T:
    if value is None:
        raise AssertionError("a start is kept when all of it was measured")
    return value
