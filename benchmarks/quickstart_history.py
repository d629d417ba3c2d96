"""The A/A history of the quickstart's simulated engines: five equal ones side by side for two
hours, each under the traffic of one engine at the step of weight 50.

    python -m benchmarks.quickstart_history history.jsonl
    canaryctl gates history history.jsonl -o examples/quickstart/history.json

It runs the simulated engine's own core in virtual time, and writes down what its metrics page
would have said every two seconds. A real engine's history is recorded with `canaryctl gates
record`.
"""

import argparse
import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from benchmarks import _virtual_time
from canaryctl.common.metrics import Signal
from canaryctl.controller.artifact.loader import load_artifact
from canaryctl.runtimes.engines.simulated import SimulatedEngine
from canaryctl.runtimes.load.profile import Profile, parse_profile
from canaryctl.runtimes.load.schedule import planned_requests
from canaryctl.runtimes.simulator.config import SimulatorConfig
from canaryctl.runtimes.simulator.core import EngineCore, Stream
from canaryctl.runtimes.simulator.faults import ActiveFaults
from canaryctl.runtimes.simulator.startup import start
from canaryctl.runtimes.simulator.stats import Stats

QUICKSTART = Path(__file__).resolve().parents[1] / "examples" / "quickstart"
ENGINES, LOOK_S, SPAN_S = 5, 2.0, 7200.0
WARM_UP_S = 60.0


async def record(out: TextIO, *, engines: int, look_s: float, span_s: float) -> None:
    """Write the looks of ``engines`` equal engines, one JSON line for each signal."""
    profile = parse_profile((QUICKSTART / "load.yaml").read_text(), "load.yaml")
    assert profile.rate is not None
    cores = [await _core(seed) for seed in range(engines)]
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(core.run()) for core in cores]
        # Weight 50: each of the two engines takes half of the quickstart's traffic.
        halves = [
            profile.model_copy(update={"rate": profile.rate / 2, "seed": n}) for n in range(engines)
        ]
        running += [
            tasks.create_task(_ask(core, half, WARM_UP_S + span_s))
            for core, half in zip(cores, halves, strict=True)
        ]
        await asyncio.sleep(WARM_UP_S)
        for look in range(round(span_s / look_s) + 1):
            for number, core in enumerate(cores):
                out.writelines(_lines(look * look_s, f"simulated-{number}", core.stats))
            await asyncio.sleep(look_s)
        for task in running:
            task.cancel()


async def _core(seed: int) -> EngineCore:
    runtime = load_artifact(QUICKSTART / "stable.yaml").document.runtime
    argv = SimulatedEngine().launch(runtime, host="127.0.0.1", port=1).argv
    config = SimulatorConfig.from_json(argv[argv.index("--config") + 1])
    config = replace(config, args=replace(config.args, seed=seed))
    faults = ActiveFaults()
    started = await start(config, faults)
    return EngineCore(config, started.memory, started.batcher, faults, on_death=_died)


def _died(after_s: float) -> None:
    raise RuntimeError("a simulated engine without faults died")


async def _ask(core: EngineCore, profile: Profile, span_s: float) -> None:
    """The requests of a profile at their times, whether earlier ones were answered or not."""
    began = asyncio.get_running_loop().time()
    async with asyncio.TaskGroup() as clients:
        for request in planned_requests(profile, duration_s=span_s, requests=None):
            await asyncio.sleep(began + request.at_s - asyncio.get_running_loop().time())
            tokens = request.output_tokens
            stream = core.submit(
                request.prompt,
                prompt_tokens=len(request.prompt),
                most=tokens,
                least=tokens,
                ignore_eos=True,
            )
            clients.create_task(_read(stream))


async def _read(stream: Stream) -> None:
    while stream.finish_reason is None or stream.words:
        await stream.read()


def _lines(at: float, engine: str, stats: Stats) -> Iterator[str]:
    for signal in (Signal.TTFT, Signal.TPOT, Signal.ITL, Signal.E2E):
        buckets, _ = stats.fine[signal.value].shown()
        head = {"at": at, "arm": "baseline", "instance": engine, "signal": signal.value}
        counts = {edge: round(count) for edge, count in buckets}
        yield json.dumps({**head, "buckets": counts}) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    with parser.parse_args().out.open("w", encoding="utf-8") as out:
        _virtual_time.run(record(out, engines=ENGINES, look_s=LOOK_S, span_s=SPAN_S))


if __name__ == "__main__":
    main()
