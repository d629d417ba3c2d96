"""The start of a simulated engine: the stages of a real one, their times and log lines.

Stages take ``time_scale`` of the calibrated seconds. The lines are worded as vLLM's, so that
the same reader finds the facts; the prefix says that they are simulated.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

from canaryctl.common.errors import PermanentError
from canaryctl.runtimes.engines.grid import resolve_sizes
from canaryctl.runtimes.simulator.batching import Batcher, BatchLimits
from canaryctl.runtimes.simulator.config import SimulatorConfig
from canaryctl.runtimes.simulator.cost import GIB, MIB, calibrated, calibration
from canaryctl.runtimes.simulator.faults import ActiveFaults, Fault
from canaryctl.runtimes.simulator.graphs import GraphSet
from canaryctl.runtimes.simulator.memory import MemoryPlan, plan_memory

LOG = logging.getLogger("simulated")


class StartError(PermanentError):
    """The simulated engine could not start; the log has said why."""


@dataclass(frozen=True, slots=True)
class StartedEngine:
    """What the stages left behind. ``stage_s``: seconds by stage, ``ready`` all of them."""

    memory: MemoryPlan
    graphs: GraphSet
    batcher: Batcher
    stage_s: Mapping[str, float]


def captured_mode(config: SimulatorConfig, faults: ActiveFaults) -> str:
    """What this engine makes of the mode that it was asked for."""
    lowered = Fault.MODE_DOWNGRADED in faults and config.graph_mode != "NONE"
    return "PIECEWISE" if lowered else config.graph_mode


def captured_graphs(config: SimulatorConfig, faults: ActiveFaults) -> GraphSet:
    """The graphs that this engine captures."""
    if config.graph_mode == "NONE":
        return GraphSet((), ())
    sizes = resolve_sizes(
        config.capture_sizes,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
    )
    if Fault.GRID_REDUCED in faults:
        sizes = sizes[: -(-len(sizes) // 2)]
    return GraphSet.of(captured_mode(config, faults), sizes, config.max_num_seqs)


async def start(config: SimulatorConfig, faults: ActiveFaults) -> StartedEngine:
    """Go through all stages. StartError when the engine cannot start."""
    began = time.monotonic()
    cost, assumed = calibrated(), calibration()["assumed"]
    scale = config.args.time_scale
    graphs = captured_graphs(config, faults)
    compiled = config.graph_mode != "NONE"
    LOG.info(
        "Initializing a simulated engine (v%s) for model %s: no model runs here",
        config.version,
        config.model,
    )
    try:
        memory = plan_memory(config, graphs, cost, kv_divisor=faults.factor_of(Fault.SMALL_KV))
    except PermanentError as error:
        LOG.error("EngineCore failed to start.")  # noqa: TRY400  the line says all there is
        LOG.error("ValueError: %s", error)  # noqa: TRY400
        raise StartError(str(error)) from error
    load_s = assumed["load_s"] * scale
    await asyncio.sleep(load_s)
    LOG.info("Model loading took %.4f GiB and %.6f seconds", memory.weights_bytes / GIB, load_s)
    stage_s, compile_s = {"load": load_s}, 0.0
    if compiled:
        compile_s = assumed["compile_s"] * scale
        stage_s["compile"] = compile_s
        await asyncio.sleep(compile_s)
        LOG.info("torch.compile took %.2f s in total", compile_s)
    LOG.info("GPU KV cache size: %s tokens", f"{memory.kv_tokens:,}")
    LOG.info(
        "Maximum concurrency for %s tokens per request: %.2fx",
        f"{config.max_model_len:,}",
        memory.kv_tokens / config.max_model_len,
    )
    mode = captured_mode(config, faults)
    if mode != config.graph_mode:
        LOG.warning(
            "CUDAGraphMode.%s is not supported with SimulatedAttention backend (support: "
            "AttentionCGSupport.NEVER); setting cudagraph_mode=%s because attention is compiled "
            "piecewise",
            config.graph_mode,
            mode,
        )
    if graphs.sizes and Fault.LATE_CAPTURE not in faults:
        stage_s["capture"] = cost.capture_s(graphs) * scale
        stage_s["capture"] *= faults.factor_of(Fault.SLOW_CAPTURE)
        await _capture(stage_s["capture"], memory, faults, f"{mode} of {listed(graphs.sizes)}")
    LOG.info(
        "init engine (profile, create kv cache, warmup model) took %.2f s (compilation: %.2f s)",
        time.monotonic() - began,
        compile_s,
    )
    limits = BatchLimits(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        num_blocks=int(memory.num_blocks / faults.factor_of(Fault.OVERSTATED_KV)),
    )
    batcher = Batcher(
        limits,
        graphs,
        cost,
        compiled=compiled,
        seed=config.args.seed,
        step_scale=config.args.step_scale,
        jitter=config.args.jitter,
    )
    stage_s["ready"] = time.monotonic() - began
    return StartedEngine(memory, graphs, batcher, stage_s)


def listed(sizes: tuple[int, ...]) -> str:
    """As engines list a grid."""
    return ",".join(map(str, sizes))


async def _capture(seconds: float, memory: MemoryPlan, faults: ActiveFaults, graphs: str) -> None:
    if Fault.OOM_CAPTURE in faults:
        await asyncio.sleep(seconds / 2)
        LOG.error("EngineCore failed to start.")
        LOG.error(
            "torch.OutOfMemoryError: CUDA out of memory (simulated). Tried to allocate %d MiB. "
            "GPU 0 has a total capacity of %.2f GiB of which 1.25 MiB is free.",
            round(memory.graph_bytes / MIB / 2),
            memory.gpu_bytes / GIB,
        )
        raise StartError("out of memory while graphs were captured")
    await asyncio.sleep(seconds)
    LOG.info(
        "Graph capturing finished in %.3f secs, took %.6f GiB, as %s",
        seconds,
        memory.graph_bytes / GIB,
        graphs,
    )
