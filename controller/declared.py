"""What an artifact declares of its runtime, and what its instances told of their start: in the
words that gates compare (:mod:`canaryctl.gates.attestation`, :mod:`canaryctl.gates.startup`)."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from canaryctl.controller.model import Instance
from canaryctl.gates.base import StartFacts
from canaryctl.runtimes.engines.base import Stage
from canaryctl.runtimes.spec import RuntimeSpec

_STAGES = ("load", "compile", "capture")
_BYTES = {"graph_bytes": "graphs", "weights_bytes": "weights"}
NO_SIZES = "none"


def declared(runtime: RuntimeSpec, sizes: Sequence[int]) -> dict[str, str]:
    """What the runtime has to be. ``sizes``: that the engine is expected to capture for it. What
    the artifact leaves open is left out; of a GPU, where the runtime uses none."""
    found: dict[str, str | None] = {
        "engine_version": runtime.engine.version,
        "torch_version": runtime.engine.torch,
        "model_revision": runtime.model.revision,
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
    return StartFacts(took, sizes)


def _between(since: datetime | None, until: datetime | None) -> float | None:
    return None if since is None or until is None else (until - since).total_seconds()
