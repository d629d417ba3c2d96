"""What the probe costs an engine: CPU time for each step that it counts, and for a scrape.

    python -m benchmarks.probe_cost [--out docs/benchmarks/probe.md]

The reports are of the form that vLLM makes; vLLM itself is not needed. CPU time of the thread,
since the engine's API server runs the probe in its event loop: what it takes is taken from there.
"""

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from canaryctl.runtimes.probe.canaryctl_probe.page import RecorderCollector
from canaryctl.runtimes.probe.canaryctl_probe.recorder import Recorder
from canaryctl.runtimes.probe.canaryctl_probe.steps import Grid

TARGET_US = 20.0  # a step
STEPS, REPEATS = 2000, 7
SCRAPES = 5
SIZES = (1, 2, 4, *range(8, 257, 8))
GRID = Grid(
    mode="FULL_AND_PIECEWISE",
    sizes=SIZES,
    requested_mode="FULL_AND_PIECEWISE",
    requested="default",
    engine_version="0.25.1",
    max_num_seqs=256,
    max_num_batched_tokens=8192,
    decode_tokens=1,
    reports_steps=True,
    one_step_at_a_time=True,
)


@dataclass
class Iteration:
    """As vLLM's IterationStats, what the probe reads of it."""

    num_generation_tokens: int
    time_to_first_tokens_iter: list[float] = field(default_factory=list)
    inter_token_latencies_iter: list[float] = field(default_factory=list)
    finished_requests: list[SimpleNamespace] = field(default_factory=list)


Report = tuple[SimpleNamespace, Iteration]


def decode(sequences: int, *, finished: int = 0, waits: int = 1) -> Report:
    """A step of decodes alone; ``waits``: how many different times its sequences waited."""
    bucket = next(size for size in SIZES if size >= sequences)
    stat = _stat(sequences, bucket, "FULL")
    times = [0.002 + 0.0001 * (n % waits) for n in range(sequences)]
    ended = [_ended() for _ in range(finished)]
    return stat, Iteration(sequences, [], times, ended)


def mixed(sequences: int, prompt: int) -> Report:
    """A step in which a prompt was completed beside decodes."""
    stat = _stat(sequences + prompt, sequences + prompt, "PIECEWISE")
    return stat, Iteration(sequences + 1, [0.05], [0.003] * sequences)


def _stat(tokens: int, padded: int, mode: str) -> SimpleNamespace:
    stat = SimpleNamespace(num_unpadded_tokens=tokens, num_padded_tokens=padded, runtime_mode=mode)
    return SimpleNamespace(cudagraph_stats=stat)


def _ended() -> SimpleNamespace:
    return SimpleNamespace(
        e2e_latency=1.5,
        prefill_time=0.04,
        num_generation_tokens=128,
        mean_time_per_output_token=0.002,
    )


CASES: dict[str, Report] = {
    "1 decode": decode(1),
    "8 decodes": decode(8),
    "64 decodes": decode(64),
    "64 decodes, one of them its last": decode(64, finished=1),
    "256 decodes": decode(256),
    "256 decodes, all waited differently": decode(256, waits=256),
    "16 decodes and a prompt of 400 tokens": mixed(16, 400),
}


def recorder() -> Recorder:
    found = Recorder()
    found.describe_grid(0, lambda: GRID)
    return found


def step_us(report: Report, *, steps: int = STEPS, repeats: int = REPEATS) -> list[float]:
    """CPU microseconds of counting the report once, in each repeat; the first one is left out."""
    stats, iteration = report
    target = recorder()

    def count() -> None:
        for _ in range(steps):
            target.observe(0, stats, iteration)

    found = [_cpu_s(count) / steps * 1e6 for _ in range(repeats + 1)][1:]
    assert sum(target.snapshot().errors.values()) == 0
    return found


def full_page(buckets: int) -> CollectorRegistry:
    """Of an engine that decoded in so many captured sizes, and ran prompts."""
    target = recorder()
    for size in SIZES[:buckets]:
        for _ in range(3):
            target.observe(0, *decode(size))
    target.observe(0, *mixed(16, 400))
    registry = CollectorRegistry()
    registry.register(RecorderCollector(target))
    return registry


def scrape(buckets: int) -> dict[str, Any]:
    """Lines and bytes of the probe's part of the page, and CPU milliseconds of writing it."""
    registry = full_page(buckets)
    text = generate_latest(registry)
    times = [_cpu_s(lambda: generate_latest(registry)) * 1e3 for _ in range(SCRAPES)]
    return {"lines": text.count(b"\n"), "bytes": len(text), "ms": times}


def _cpu_s(action: Callable[[], object]) -> float:
    began = time.thread_time()
    action()
    return time.thread_time() - began


MACHINE = """Machine: {machine}, {cpus} CPUs, Python {python}. CPU time of one thread: the median
and (least–most) of repeats, the first one left out."""
COMMAND = """Command:

```sh
python -m benchmarks.probe_cost --out docs/benchmarks/probe.md
```"""
EACH_STEP = """## Each engine step

In the API server's event loop, {steps} times in a row. Target: under {target:g} µs for a usual
step. The engine core is a process of its own and waits for none of it."""
EACH_SCRAPE = """## Each scrape

The probe's part of the page, after steps in so many captured sizes: each has a histogram of step
times. Written by prometheus_client in the event loop, as vLLM's own part of the page is; counting
goes on from a copy. While it is written no token is streamed: seen by clients, and by the time to
the first token; not by times between tokens, which the engine core measures. A scrape every 15 s
takes less than 0.5 % of the event loop even with every size in use."""


def page() -> str:
    rows = [[name, _range(step_us(report), 1)] for name, report in CASES.items()]
    scrapes = []
    for buckets in (1, 8, len(SIZES)):
        found = scrape(buckets)
        size = f"{found['bytes'] / 1024:.0f}"
        scrapes.append([str(buckets), str(found["lines"]), size, _range(found["ms"], 1)])
    machine = MACHINE.format(
        machine=platform.machine(), cpus=os.cpu_count(), python=platform.python_version()
    )
    parts = [
        "# What the probe costs",
        machine,
        COMMAND,
        EACH_STEP.format(steps=STEPS, target=TARGET_US),
        _table(["step", "µs"], rows),
        EACH_SCRAPE,
        _table(["sizes", "lines", "KiB", "ms"], scrapes),
    ]
    return "\n\n".join(parts)


def _range(values: Sequence[float], digits: int) -> str:
    return f"{median(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="a file for the page; default: standard output")
    out = parser.parse_args().out
    text = page() + "\n"
    if out is None:
        sys.stdout.write(text)
    else:
        out.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
