"""Two equal vLLM engines on the CPU under the same load, their metrics pages written down.

The second part takes CPU away from one of them: busy loops share the one processor that its
processes are then held to.
"""

import gzip
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import yaml

from canaryctl.common.metrics import Signal
from canaryctl.gates.samples import Histogram
from canaryctl.gates.sources.base import Target
from canaryctl.gates.sources.scrape import ScrapeSource
from canaryctl.runtimes.engines.vllm import VllmEngine
from canaryctl.runtimes.placements.base import Handle, InstanceRequest, Liveness
from canaryctl.runtimes.placements.process import ProcessPlacement
from tests.support.cpu_vllm import VERSION, cpu_runtime

ENGINE = VllmEngine()
DIGEST = "sha256:" + "a" * 64
SIGNALS = (Signal.TTFT, Signal.TPOT, Signal.ITL, Signal.E2E)
READY_S = 300.0
WARM_UP_S = 60.0
PROMPT_TOKENS, OUTPUT_TOKENS = {"min": 8, "max": 48}, {"min": 8, "max": 24}


@dataclass(frozen=True, slots=True)
class Engine:
    """One running engine; the first one is the baseline."""

    name: str
    url: str
    handle: Handle

    def processes(self) -> list[psutil.Process]:
        api = psutil.Process(self.handle.pid)
        return [api, *api.children(recursive=True)]


@contextmanager
def engines(
    folder: Path, python: Path, model: Path, names: Sequence[str]
) -> Iterator[list[Engine]]:
    """Started one after the other, and stopped in the end."""
    placement = ProcessPlacement(folder)
    with ExitStack() as stack:
        started = [stack.enter_context(_engine(placement, python, model, name)) for name in names]
        yield started


@contextmanager
def _engine(placement: ProcessPlacement, python: Path, model: Path, name: str) -> Iterator[Engine]:
    spec = cpu_runtime(python, model, args={"enable-prefix-caching": False})
    port = placement.free_port()
    launch = ENGINE.launch(spec, host="127.0.0.1", port=port)
    handle = placement.ensure(InstanceRequest(name, DIGEST, launch, port))
    url = placement.base_url(handle)
    try:
        until = time.monotonic() + READY_S
        while not _is_healthy(url):
            alive = placement.status(name, DIGEST, handle).liveness is Liveness.RUNNING
            if not alive or time.monotonic() > until:
                raise SystemExit(f"{name} did not become ready: see {placement.log_path(name)}")
            time.sleep(0.5)
        yield Engine(name, url, handle)
    finally:
        while not placement.stop(name, DIGEST, handle, grace_s=5):
            time.sleep(0.1)


def _is_healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=2).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


@contextmanager
def load(folder: Path, running: Sequence[Engine], rate_per_s: float) -> Iterator[None]:
    """Poisson arrivals of its own for each engine, as a router's even split makes them, until
    the block ends."""
    processes = []
    for seed, engine in enumerate(running):
        profile = folder / f"load-{engine.name}.yaml"
        profile.write_text(
            yaml.safe_dump(
                {
                    "rate": float(rate_per_s),
                    "seed": seed,
                    "prompt_tokens": PROMPT_TOKENS,
                    "output_tokens": OUTPUT_TOKENS,
                }
            )
        )
        argv = [sys.executable, "-m", "canaryctl.runtimes.load", "--profile", str(profile)]
        argv += ["--until-eof", "--json", "--for", "24h", "--target", engine.url]
        with profile.with_suffix(".json").open("wb") as report:
            processes.append(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=report))
    try:
        yield
    finally:
        for process in processes:
            if process.stdin is not None:
                process.stdin.close()
        for process in processes:
            process.wait(60)


def record(
    out: Path, running: Sequence[Engine], *, looks: int, look_s: float, arms: Sequence[str]
) -> None:
    """Write ``looks`` + 1 scrapes of every engine, ``look_s`` apart, as gzipped JSON lines."""
    source = ScrapeSource(5.0)
    refs = {signal: ENGINE.metrics(VERSION)[signal] for signal in SIGNALS}
    began = time.monotonic()
    try:
        with gzip.open(out, "wt", encoding="utf-8") as file:
            for look in range(looks + 1):
                time.sleep(max(0.0, began + look * look_s - time.monotonic()))
                for engine, arm in zip(running, arms, strict=True):
                    at = round(time.monotonic() - began, 3)
                    target = Target(engine.name, f"{engine.url}/metrics", {})
                    scrape = source.read(target, refs, at)
                    for signal in SIGNALS:
                        value = scrape.values[signal]
                        if isinstance(value, Histogram):
                            file.write(_line(look * look_s, arm, engine.name, signal, value))
                file.flush()
    finally:
        source.close()


def _line(at: float, arm: str, instance: str, signal: Signal, value: Histogram) -> str:
    buckets = {"+Inf" if math.isinf(e) else repr(e): n for e, n in value.buckets}
    head = {"at": at, "arm": arm, "instance": instance, "signal": signal.value}
    return json.dumps({**head, "buckets": buckets}, separators=(",", ":")) + "\n"


@contextmanager
def less_cpu(engine: Engine, loops: int) -> Iterator[None]:
    """Hold the engine to one processor, and let so many busy loops share it."""
    processor = max(os.sched_getaffinity(0))
    for process in engine.processes():
        for thread in process.threads():
            os.sched_setaffinity(thread.id, {processor})
    busy = [
        subprocess.Popen(["taskset", "-c", str(processor), "sh", "-c", "while :; do :; done"])
        for _ in range(loops)
    ]
    try:
        yield
    finally:
        for loop in busy:
            loop.kill()
            loop.wait()
