"""What a simulated engine attests of itself, in the probe's own terms.

Captured sizes are those that the simulated engine really replays, so that a grid that was
silently reduced shows as one that differs from what was asked for.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from canaryctl.runtimes.probe.canaryctl_probe.facts import ARTIFACT, Facts
from canaryctl.runtimes.probe.canaryctl_probe.steps import Grid
from canaryctl.runtimes.simulator.config import SimulatorConfig
from canaryctl.runtimes.simulator.faults import Fault
from canaryctl.runtimes.simulator.prefix import BLOCK_SIZE
from canaryctl.runtimes.simulator.startup import StartedEngine, listed

NOT_SIMULATED = "a simulated engine has none"
_NOT_SIMULATED = (
    *("torch_version", "cuda_version", "nccl_version", "driver_version", "gpu_model"),
    *("attention_backend", "compile_mode", "dtype", "quantization", "kv_cache_dtype"),
    "startup_warmup",
)


@dataclass(frozen=True, slots=True)
class Attested:
    grid: Grid
    facts: Facts


def attest(
    config: SimulatorConfig, engine: StartedEngine, environment: Mapping[str, str]
) -> Attested:
    """Of an engine that has started."""
    requested = "default" if config.capture_sizes is None else listed(config.capture_sizes)
    grid = Grid(
        mode=config.graph_mode,
        sizes=engine.graphs.sizes,
        requested_mode=config.graph_mode,
        requested=requested,
        engine_version=config.version,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        decode_tokens=1,
        reports_steps=True,
        one_step_at_a_time=True,
    )
    attested = {
        "engine_name": "simulated",
        "engine_version": config.version,
        "gpu_count": "1",
        "graph_mode": grid.mode,
        "graph_sizes": listed(grid.sizes) or "none",
        "requested_mode": grid.requested_mode,
        "requested_sizes": requested,
        "model": config.model,
        "block_size": str(BLOCK_SIZE),
        "max_model_len": str(config.max_model_len),
        "max_num_seqs": str(config.max_num_seqs),
        "max_num_batched_tokens": str(config.max_num_batched_tokens),
        "tensor_parallel": "1",
        "pipeline_parallel": "1",
        "data_parallel": "1",
        "expert_parallel": "1",
        "speculative_tokens": "0",
    }
    unknown = dict.fromkeys(_NOT_SIMULATED, NOT_SIMULATED)
    revision = config.revision
    if Fault.OTHER_REVISION in config.args.faults:
        revision = f"another-than-{revision}"
    for name, value in (
        ("model_revision", revision),
        ("artifact", environment.get(ARTIFACT)),
    ):
        if value:
            attested[name] = value
        else:
            unknown[name] = "it was not told"
    for stage in ("compile", "capture"):
        if stage not in engine.stage_s:
            unknown[f"startup_{stage}"] = "graphs are off, so there was no such stage"
    tokens = engine.memory.kv_tokens
    facts = Facts(
        attested=attested,
        startup_s=engine.stage_s,
        memory_bytes=engine.memory.by_kind(),
        kv_cache_tokens=tokens,
        max_concurrency=tokens / config.max_model_len,
        unknown=unknown,
    )
    return Attested(grid, facts)
