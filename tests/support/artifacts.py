"""Small simulated artifacts that are decided within seconds, for crash, failover and soak tests.

The bad ones fail by gates that need no long comparison: an event, a limit known before traffic,
or a share that a few requests settle.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

GPUS = "32"
"""``CANARYCTL_SIMULATED_GPUS`` for several services side by side."""

LOAD = {
    "rate": 12,
    "prompt_tokens": {"min": 8, "max": 24},
    "output_tokens": {"min": 16, "max": 24},
    "for": "1h",
    "timeout": "20s",
}
"""The traffic of one service. Three requests a second reach the canary at its first step."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A sort of artifact. ``gates``: those that may be named for its end; none: promoted.

    ``kills``: its engine ends while it may be answering requests.
    """

    gates: tuple[str, ...] = ()
    args: Mapping[str, Any] | None = None
    kills: bool = False


def _running(fault: str, after_s: float, **more: Any) -> dict[str, Any]:
    """``after_s``: from when the server listens; on a busy machine warm-up takes seconds more."""
    return {"fault": fault, "fault_at": "running", "fault_after_s": after_s, **more}


KINDS: Mapping[str, Kind] = {
    "good": Kind(),
    "exits": Kind(("engine_exit",), _running("exit", 6), kills=True),
    "oom": Kind(("oom", "engine_exit"), _running("oom_load", 6), kills=True),
    "oom-capture": Kind(("oom", "engine_exit"), {"fault": "oom_capture"}),
    "hangs": Kind(("progress",), _running("hang", 6), kills=True),
    "fallback": Kind(("graph_fallback",), {"fault": "eager_fallback"}),
    "small-kv": Kind(("max_concurrency",), {"fault": "small_kv", "fault_factor": 100}),
    "grid": Kind(("readiness",), {"fault": "grid_reduced"}),
}
BAD = tuple(kind for kind in KINDS if kind != "good")


def artifact(
    kind: str,
    number: int,
    *,
    service: str = "chat",
    rollout: Mapping[str, Any] | None = None,
    args: Mapping[str, Any] | None = None,
    **sections: Any,
) -> dict[str, Any]:
    """An artifact document; ``number`` makes it another runtime than any other's."""
    return {
        "apiVersion": "canaryctl/v1",
        "kind": "RuntimeArtifact",
        "name": f"{service}-{kind}",
        "version": str(number),
        "service": service,
        "runtime": {
            "engine": {
                "name": "simulated",
                "version": "0.25.1",
                "args": {
                    "time_scale": 0.01,
                    "seed": number,
                    **(KINDS[kind].args or {}),
                    **(args or {}),
                },
            },
            "gpu": {"count": 1, "memory_fraction": 0.9},
            "model": {"id": "qwen3-0.6b", "revision": "simulated-1"},
            "graph": {"mode": "FULL_AND_PIECEWISE", "capture_sizes": [1, 2, 4, 8]},
            "limits": {"max_num_seqs": 64, "max_num_batched_tokens": 1024, "max_model_len": 1024},
            "warmup_plan": {
                "decode_buckets": [1, 2],
                "mixed_token_buckets": [64],
                "repeat_per_bucket": 1,
            },
        },
        "rollout": {
            "steps": [{"weight": 25, "bake": "1s"}, {"weight": 50, "bake": "1s"}],
            "interval": "500ms",
            "drain": "3s",
            "progress_deadline": "2m",
            "rollback_window": "4s",
            "detectable": "200%",
            **(rollout or {}),
        },
        "gates": [
            {"name": "error_rate", "max_ratio": "20%"},
            {"name": "oom", "max": 0},
            {"name": "engine_exit", "max": 0},
            {"name": "progress", "max_seconds": "2s"},
            {"name": "graph_fallback", "max_ratio": "40%"},
            {"name": "max_concurrency", "max_regression": "5%"},
        ],
        "rollback": {"ladder": ["previous", "eager"]},
        **sections,
    }


def first(number: int, *, service: str = "chat", **more: Any) -> dict[str, Any]:
    """What makes a service: judged under a few requests of the controller's own."""
    steps = [{"weight": 0, "load": "generated", "requests": 60}]
    return artifact("good", number, service=service, rollout={"steps": steps}, **more)


def write(folder: Path, document: Mapping[str, Any]) -> Path:
    """The file of the artifact, named after it."""
    path = folder / f"{document['name']}-{document['version']}.yaml"
    path.write_text(yaml.safe_dump(dict(document), sort_keys=False))
    return path


def write_load(folder: Path) -> Path:
    path = folder / "load.yaml"
    path.write_text(yaml.safe_dump(LOAD))
    return path
