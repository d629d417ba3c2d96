"""One trace of requests, the same for every engine: quiet, busy, and bursts beyond small grids."""

import asyncio
import json
import random
import time
from dataclasses import dataclass

from benchmarks._h200_client import Answer, address, ask
from canaryctl.runtimes.generation import completion_body


@dataclass(frozen=True, slots=True)
class TraceRequest:
    at_s: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Phase:
    """``rate``: requests a second at random times, or ``burst`` of them at its begin."""

    seconds: float
    rate: float = 0.0
    burst: int = 0


PHASES = (
    Phase(5, rate=4),
    Phase(6, rate=40),
    Phase(2.5, burst=20),
    Phase(2.5, burst=40),
    Phase(2.5, burst=64),
    Phase(2.5, burst=100),
    Phase(3, rate=12),
)
REHEARSAL = (Phase(0.5, rate=8), Phase(0.5, burst=20), Phase(0.1, burst=60))


def make_trace(phases: tuple[Phase, ...], seed: int = 1) -> tuple[TraceRequest, ...]:
    """Prompts of 16 to 400 tokens, mostly short; answers of 48 to 96."""
    draw = random.Random(seed)
    found: list[TraceRequest] = []
    begin = 0.0
    for phase in phases:
        times = [begin] * phase.burst
        at = begin
        while phase.rate and (at := at + draw.expovariate(phase.rate)) < begin + phase.seconds:
            times.append(at)
        for when in times:
            prompt = min(400, 16 + round(draw.expovariate(1 / 60)))
            found.append(TraceRequest(when, prompt, draw.randint(48, 96)))
        begin += phase.seconds
    return tuple(found)


def run_trace(url: str, model: str, requests: tuple[TraceRequest, ...]) -> list[Answer]:
    """Each request at its time, whether earlier ones were answered or not."""
    return asyncio.run(_run(url, model, requests))


async def _run(url: str, model: str, requests: tuple[TraceRequest, ...]) -> list[Answer]:
    host, port = address(url)
    begun = time.perf_counter()

    async def one(request: TraceRequest) -> Answer:
        body = completion_body(
            model, prompt_tokens=request.prompt_tokens, output_tokens=request.output_tokens
        )
        text = json.dumps({**body, "stream": True}).encode()
        await asyncio.sleep(max(0.0, begun + request.at_s - time.perf_counter()))
        return await ask(host, port, text)

    return await asyncio.gather(*(one(request) for request in requests))
