"""The figures of a stage over its repeats. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from canaryctl.controller.baseline.figures import LATENCIES, Run, Spread, spread
from canaryctl.controller.baseline.record import StageRecord

GIB: Final = 2**30
QUANTILES: Final = ("p50", "p95", "p99")
GRAPH_SHARES: Final = ("coverage", "hit", "full", "fallback", "beyond", "padding")


@dataclass(frozen=True, slots=True)
class Summary:
    """Over the repeats of a stage; None: one of them does not know it.

    ``latency``: "ttft p99" and the like, seconds. ``graphs``: shares by name. ``decode_step_s``:
    the mean step of decodes alone, as the engine timed it. Per GiB: of what
    was in use of the GPUs after capture; where the engine says no more, or others used its GPU too,
    of weights, graphs and KV cache, which are told of one worker.

    Within the SLO (None also where there is none): the share of requests from 0 to 1 that met every
    limit, their tokens per second, and the most of them in flight at once. ``concurrency_per_gib``
    is what the KV cache and ``max_num_seqs`` hold, at whatever latency.
    """

    latency: Mapping[str, Spread | None]
    graphs: Mapping[str, Spread | None]
    decode_step_s: Spread | None
    tokens_per_s: Spread | None
    failed: int
    saturated: bool
    memory_gib: float | None
    tokens_per_s_per_gib: float | None
    concurrency_per_gib: float | None
    share_within_slo: Spread | None
    tokens_per_s_within_slo: Spread | None
    concurrency_within_slo: Spread | None
    tokens_per_s_within_slo_per_gib: float | None
    concurrency_within_slo_per_gib: float | None


def summary_of(stage: StageRecord) -> Summary:
    rate = spread(run.tokens_per_s for run in stage.runs)
    good_rate = spread(run.tokens_per_s_within_slo for run in stage.runs)
    good = [run.goodput for run in stage.runs]
    at_once = spread(None if one is None else one.in_flight for one in good)
    memory = memory_gib(stage)
    held = stage.start.max_concurrency if stage.start is not None else None
    return Summary(
        latency={
            f"{name} {at}": spread(_quantile(run, name, at) for run in stage.runs)
            for name in LATENCIES
            for at in QUANTILES
        },
        graphs={name: spread(_graph(run, name) for run in stage.runs) for name in GRAPH_SHARES},
        decode_step_s=spread(run.decode_step_s for run in stage.runs),
        tokens_per_s=rate,
        failed=sum(run.failed for run in stage.runs),
        saturated=any(run.saturated for run in stage.runs),
        memory_gib=memory,
        tokens_per_s_per_gib=_per(_median(rate), memory),
        concurrency_per_gib=_per(held, memory),
        share_within_slo=spread(None if one is None else one.share for one in good),
        tokens_per_s_within_slo=good_rate,
        concurrency_within_slo=at_once,
        tokens_per_s_within_slo_per_gib=_per(_median(good_rate), memory),
        concurrency_within_slo_per_gib=_per(_median(at_once), memory),
    )


def memory_gib(stage: StageRecord) -> float | None:
    """What the engine takes of its GPUs, in GiB."""
    said = stage.start.memory_bytes if stage.start is not None else {}
    alone = stage.start is None or not stage.start.beside_others
    if alone and "gpu_used_after_capture" in said:
        return said["gpu_used_after_capture"] / GIB
    if {stage.conditions.get(name) for name in ("tensor parallel", "pipeline parallel")} != {"1"}:
        return None
    parts = [said.get(kind) for kind in ("weights", "graphs", "kv_cache")]
    if stage.mode == "NONE" and parts[1] is None:
        parts[1] = 0.0  # there are none
    return None if None in parts else sum(filter(None, parts)) / GIB


def _median(found: Spread | None) -> float | None:
    return None if found is None else found.median


def _per(value: float | None, memory: float | None) -> float | None:
    return None if value is None or not memory else value / memory


def _quantile(run: Run, name: str, at: str) -> float | None:
    found = run.latency.get(name)
    value: float | None = None if found is None else getattr(found, at)
    return value


def _graph(run: Run, name: str) -> float | None:
    value: float | None = None if run.graphs is None else getattr(run.graphs, name)
    return value
