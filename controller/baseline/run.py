"""Run the stages of a baseline: start, load, read, stop."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from canaryctl.common.clock import Clock
from canaryctl.common.errors import PermanentError
from canaryctl.common.metrics import Signal
from canaryctl.controller.baseline.engines import StageEngines, StageError, Up, reached
from canaryctl.controller.baseline.figures import Run, by_label, info, measured
from canaryctl.controller.baseline.load import Load
from canaryctl.controller.baseline.record import BaselineRecord, StageRecord, Start
from canaryctl.controller.baseline.slo import Slo
from canaryctl.controller.baseline.stages import Stage
from canaryctl.controller.errors import NoGpuError
from canaryctl.controller.memory import with_logged
from canaryctl.gates.samples import Scrape
from canaryctl.runtimes.load.generate import run_load
from canaryctl.runtimes.load.report import Outcome
from canaryctl.runtimes.model_size import is_local
from canaryctl.runtimes.spec import ModelSpec

Say = Callable[[str], None]


@dataclass(slots=True)
class _Stage:
    """A stage as it goes on."""

    stage: Stage
    conditions: Mapping[str, str | None] = field(default_factory=dict)
    start: Start | None = None
    runs: list[Run] = field(default_factory=list)
    fault: str | None = None

    def record(self) -> StageRecord:
        graph = self.stage.runtime.graph
        return StageRecord(
            name=self.stage.name,
            digest=self.stage.digest,
            mode=graph.mode.value,
            requested_sizes=graph.capture_sizes,
            conditions=self.conditions,
            start=self.start,
            runs=tuple(self.runs),
            fault=self.fault,
        )


class BaselineRun:
    """``say``: told what goes on, a line each. ``start_limit_s``: for one engine, from its start
    until it is ready. ``simulated``: there is no CUDA, driver or GPU to know of. ``slo``: of the
    artifact; empty: it has none."""

    def __init__(
        self,
        engines: StageEngines,
        load: Load,
        *,
        clock: Clock,
        simulated: bool,
        repeats: int,
        start_limit_s: float,
        slo: Slo,
        say: Say,
    ) -> None:
        self._engines, self._load, self._clock = engines, load, clock
        self._simulated, self._repeats = simulated, repeats
        self._start_limit_s, self._slo, self._say = start_limit_s, slo, say

    def run(self, stages: Sequence[Stage], artifact: str, digest: str, service: str) -> (
        BaselineRecord
    ):  # fmt: skip
        """Every stage ``repeats`` times: in turns where all have a GPU at once, otherwise one
        after the other. What fails is in the record of its stage."""
        begun = self._clock.now()
        kept = [_Stage(stage) for stage in stages]
        together = len(stages) > 1 and self._engines.fit_together(stages)
        self._say(
            "all engines at once, loaded in turns" if together else "one engine after the other"
        )
        groups = [kept] if together else [[one] for one in kept]
        for group in groups:
            self._group(group)
        return BaselineRecord(
            artifact=artifact,
            digest=digest,
            service=service,
            begun_at=begun.isoformat(),
            traffic=f"{self._load.source}, {len(self._load.requests)} requests",
            repeats=self._repeats,
            interleaved=together,
            slo=self._slo,
            stages=tuple(one.record() for one in kept),
        )

    def _group(self, group: Sequence[_Stage]) -> None:
        """Engines that are up together."""
        up = [(one, ready) for one in group if (ready := self._start(one)) is not None]
        beside = share_a_gpu([ready.instance.gpus for _, ready in up])
        for (one, _), beside_others in zip(up, beside, strict=True):
            if one.start is not None:
                one.start = replace(one.start, beside_others=beside_others)
        for repeat in range(self._repeats):
            # Whoever is first meets another machine than the last: the order turns.
            turn = repeat % max(1, len(up))
            for one, ready in (*up[turn:], *up[:turn]):
                if one.fault is None:
                    self._measure(one, ready, repeat)
        for _, ready in up:
            self._engines.stop(ready.instance.id)

    def _start(self, one: _Stage) -> Up | None:
        begun = self._clock.now()
        try:
            up = self._engines.start(one.stage, self._start_limit_s)
        except (StageError, NoGpuError, PermanentError) as error:
            one.fault = f"it did not start: {error}"
            self._say(f"{one.stage.name}: {one.fault}")
            return None
        scrape = self._engines.scrape(up)
        one.start = started(up, scrape)
        one.conditions = conditions(up, scrape, self._load.identity, simulated=self._simulated)
        took = (self._clock.now() - begun).total_seconds()
        self._say(f"{one.stage.name}: ready after {took:.1f} s")
        return up

    def _measure(self, one: _Stage, up: Up, repeat: int) -> None:
        outcomes: list[Outcome] = []
        before = self._engines.scrape(up)
        report = asyncio.run(
            run_load(
                [up.url],
                self._load.profile,
                model=up.model,
                planned=self._load.repeat(repeat),
                on_outcome=outcomes.append,
            )
        )
        run = measured(report, outcomes, before, self._engines.scrape(up), self._slo)
        one.runs.append(run)
        if run.failed == run.requests:
            one.fault = f"run {repeat + 1}: none of {run.requests} requests was answered"
        self._say(
            f"{one.stage.name}, run {repeat + 1} of {self._repeats}: {run.requests} requests, "
            f"{run.failed} failed, {run.tokens_per_s:.0f} tokens/s"
        )


def share_a_gpu(gpus: Sequence[Collection[int]]) -> list[bool]:
    """Of each engine, by the ``gpus`` of each, whether another one is on a GPU of its own."""
    uses = Counter(gpu for of_one in gpus for gpu in of_one)
    return [any(uses[gpu] > 1 for gpu in of_one) for of_one in gpus]


def started(up: Up, scrape: Scrape) -> Start:
    """What the start of an engine showed, from its log, its page and its warm-up."""
    facts, limits = up.instance.facts, up.stage.runtime.limits
    tokens = facts.get("kv_cache_tokens") or kv_tokens(scrape)
    warmed: dict[str, int] = {}
    for done in facts.get("warmup", ()):
        name = f"{done['kind']} {done['bucket']}"
        warmed[name] = warmed.get(name, 0) + 1
    captured = facts.get("captured_sizes")
    return Start(
        captured_sizes=None if captured is None else tuple(captured),
        stage_s={
            **facts.get("stage_seconds", {}),
            **by_label(scrape.values.get(Signal.STARTUP), "stage"),
        },
        memory_bytes=memory_of(scrape, facts, gpus=up.stage.runtime.gpu.count),
        kv_cache_tokens=tokens,
        max_concurrency=tokens and min(limits.max_num_seqs, tokens / limits.max_model_len),
        reached=reached(up.instance),
        warmed=warmed,
    )


def memory_of(scrape: Scrape, facts: Mapping[str, Any], *, gpus: int) -> dict[str, float]:
    """Bytes by kind, from an engine's page and from what its log told (``facts``).

    vLLM says how much less of its GPU was free after the capture than before it, and not how much
    was: on one GPU the one follows from the other.
    """
    memory = with_logged(by_label(scrape.values.get(Signal.MEMORY), "kind"), facts)
    after, graphs = (memory.get(kind) for kind in ("gpu_used_after_capture", "graphs"))
    if gpus == 1 and after is not None and graphs is not None:
        memory.setdefault("gpu_used_before_capture", after - graphs)
    return memory


def conditions(up: Up, scrape: Scrape, traffic: str, *, simulated: bool) -> dict[str, str | None]:
    """Under what an engine was measured, as it attests itself; None: it does not say."""
    attested = info(scrape.values.get(Signal.ATTESTATION))
    runtime = up.stage.runtime
    version = attested.get("engine_version")
    none = "none (simulated)" if simulated else ("none" if runtime.gpu.count == 0 else None)
    return {
        "model": runtime.model.id,
        "model revision": attested.get("model_revision") or _of_a_folder(runtime.model),
        "engine": version and f"{runtime.engine.name} {version}",
        "CUDA": attested.get("cuda_version") or none,
        "driver": attested.get("driver_version") or none,
        "GPU": attested.get("gpu_model") or none,
        "tensor parallel": attested.get("tensor_parallel") or str(runtime.parallel.tensor),
        "pipeline parallel": attested.get("pipeline_parallel") or str(runtime.parallel.pipeline),
        "expert parallel": attested.get("expert_parallel") or str(runtime.parallel.expert),
        "traffic": traffic,
    }


def _of_a_folder(model: ModelSpec) -> str | None:
    """A declared revision that no engine can attest counts for its folder alone. None: the model
    is in none, or nothing is declared of it."""
    if model.revision is None or not is_local(model.id):
        return None
    return f"{model.revision} as declared of {Path(model.id).resolve()}"


def kv_tokens(scrape: Scrape) -> int | None:
    """How many tokens the KV cache holds, by the engine's page."""
    said = info(scrape.values.get(Signal.CACHE_CONFIG))
    with suppress(LookupError, ValueError):
        return int(said["kv_cache_size_tokens"])
    with suppress(LookupError, ValueError):
        return int(said["num_gpu_blocks"]) * int(said["block_size"])
    return None
