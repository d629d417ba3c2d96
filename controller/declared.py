"""What an artifact declares of its runtime, and what its instances told of their start: in the
words that gates compare (:mod:`canaryctl.gates.attestation`, :mod:`canaryctl.gates.startup`)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any

from canaryctl.controller.model import Instance
from canaryctl.gates.base import StartFacts
from canaryctl.runtimes.engines.base import NO_SIZES, Stage
from canaryctl.runtimes.replays import NO_GRAPH, BucketKind
from canaryctl.runtimes.spec import RuntimeSpec

_STAGES = ("load", "compile", "capture")
_BYTES = {"graph_bytes": "graphs", "weights_bytes": "weights"}


def declared(runtime: RuntimeSpec, sizes: Sequence[int]) -> dict[str, str]:
    """What the runtime has to be. ``sizes``: that the engine is expected to capture for it. What
    the artifact leaves open is left out; of a GPU, where the runtime uses none. So is the revision
    of a model in a local folder that is no snapshot of the hub's: no engine can attest it."""
    path = PurePosixPath(runtime.model.id)
    unnamed = path.is_absolute() and "snapshots" not in path.parts
    found: dict[str, str | None] = {
        "engine_version": runtime.engine.version,
        "torch_version": runtime.engine.torch,
        "model_revision": None if unnamed else runtime.model.revision,
        "attention_backend": runtime.attention_backend,
        "graph_mode": runtime.graph.mode.value,
        "graph_sizes": ",".join(map(str, sizes)) or NO_SIZES,
    }
    if runtime.gpu.count:
        found |= {
            "cuda_version": runtime.cuda.toolkit,
            "driver_version": runtime.cuda.driver,
            "gpu_model": runtime.gpu.model,
        }
    return {name: value for name, value in found.items() if value is not None}


def start_facts(instance: Instance) -> StartFacts:
    """Of its log, and ``ready`` as it was seen: warm-up included."""
    told: Mapping[str, float] = instance.facts.get("stage_seconds") or {}
    took = {stage: float(told[stage]) for stage in _STAGES if stage in told}
    for name, since, until in (
        ("warmup", Stage.CAPTURED, Stage.WARMED),
        ("ready", Stage.STARTED, Stage.READY),
    ):
        seconds = _between(instance.stages.get(since), instance.stages.get(until))
        if seconds is not None:
            took[name] = seconds
    sizes = {
        kind: int(instance.facts[fact])
        for fact, kind in _BYTES.items()
        if instance.facts.get(fact) is not None
    }
    runs, replays = _warmed(instance.facts.get("warmup") or ())
    late = tuple(instance.facts.get("late_work") or ())
    # Absent where an instance was last observed before all was counted.
    unnamed = int(instance.facts.get("late_work_unnamed", 0))
    # Absent of an instance that started before logs were read for it.
    resolved, by = (dict(instance.facts.get(name) or {}) for name in ("resolved", "resolved_by"))
    return StartFacts(took, sizes, runs, replays, late, unnamed, resolved, by)


def _warmed(batches: Sequence[Mapping[str, Any]]) -> tuple[dict[str, int], dict[str, int]]:
    """Buckets of the warm-up: how often each ran, and the fewest replays of a run. Mixed ones
    that no graph is captured for have nothing to replay."""
    runs, replays = Counter[str](), dict[str, int]()
    unknown = set()
    for batch in batches:
        if batch["kind"] == BucketKind.MIXED and batch.get("graph", NO_GRAPH) == NO_GRAPH:
            continue
        name = f"{batch['kind']} bucket {batch['bucket']}"
        runs[name] += 1
        replayed = batch.get("replayed")
        if replayed is None:
            unknown.add(name)
        else:
            replays[name] = min(replayed, replays.get(name, replayed))
    # What is known to be none stays so, whatever is unknown of another run.
    known = {name: count for name, count in replays.items() if name not in unknown or not count}
    return dict(runs), known


def _between(since: datetime | None, until: datetime | None) -> float | None:
    return None if since is None or until is None else (until - since).total_seconds()
