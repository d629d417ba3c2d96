"""CUDA graphs as the probe sees them, on one GPU: four grids under one trace, and its own cost.

    python -m benchmarks.h200_graphs --out OUT        on a host with an H200 and vLLM 0.25.1
    python -m benchmarks.h200_graphs --simulated      the rehearsal, with simulated engines
    python -m benchmarks.h200_graphs --out OUT --page the page again, of what OUT holds

Eager, PIECEWISE, the default grid and nine sizes up to 48 get the same requests in turns. From the
shapes of those steps `grid plan` finds a grid, which is started and gets them too. All of them are
asked what `output_parity` asks, against the eager one. Then the default grid with the probe is
measured beside the same without it, interleaved. All engines are up at once
and share the GPU; each is told the size of its KV cache, so that they can be started side by side.
Nine minutes at most: what no time is left for is said.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx

from benchmarks import _h200_artifacts as artifacts
from benchmarks._h200_buckets import UnsaidError, steps_between
from benchmarks._h200_client import run_cell
from benchmarks._h200_graphs_page import page
from benchmarks._h200_planned import plan, write_counts
from benchmarks._h200_trace import PHASES, REHEARSAL, make_trace, run_trace
from canaryctl.common.errors import CanaryctlError
from canaryctl.common.metrics import Signal
from canaryctl.controller.artifact.wholefile import replace_file
from canaryctl.controller.baseline.leftovers import Leftovers, none_left
from canaryctl.controller.declared import declared
from canaryctl.gates.samples import Missing, Scrape, Series
from canaryctl.gates.sources.base import Target
from canaryctl.gates.sources.scrape import ScrapeSource
from canaryctl.runtimes.engines import registry
from canaryctl.runtimes.engines.base import Launch
from canaryctl.runtimes.grid.calibration import load_calibration, packaged
from canaryctl.runtimes.grid.cost import CostModel
from canaryctl.runtimes.machine import inspect_machine
from canaryctl.runtimes.parity import Reference, Side, measure
from canaryctl.runtimes.placements.base import InstanceRequest, Liveness, Placement
from canaryctl.runtimes.placements.process import ProcessPlacement
from canaryctl.runtimes.spec import RuntimeSpec

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 540.0
# What each may take, to know what still fits.
START_S, TRACE_S, PLANNED_S, PARITY_S, PAIR_S = 170.0, 40.0, 90.0, 30.0, 8.0
LEVELS = (1, 8, 40)
EAGER, WITH, BARE, PLANNED = "eager", "default", "default, no probe", "planned"
GRIDS: Mapping[str, Mapping[str, Any]] = {
    EAGER: {"mode": "NONE"},
    "piecewise": {"mode": "PIECEWISE"},
    "default": {"mode": "FULL_AND_PIECEWISE"},
    "nine": {"mode": "FULL_AND_PIECEWISE", "capture_sizes": artifacts.NINE},
}
KV_CACHE_BYTES = 4 << 30
COUNTS = "shapes.csv"
RESULTS, PAGE = "h200_graphs.json", "h200_graphs.md"


@dataclass(frozen=True, slots=True)
class Options:
    out: Path
    work: Path
    simulated: bool
    fraction: float
    pairs: int
    cell_s: float
    limit_s: float
    parity: tuple[str, ...]
    calibration: Path | None
    page_only: bool
    note: str


@dataclass(frozen=True, slots=True)
class Running:
    name: str
    spec: RuntimeSpec
    digest: str
    url: str
    model: str
    began: float  # monotonic seconds


class Bench:
    """``leftovers``: what ends the engines that are started here by ``placement``."""

    def __init__(self, options: Options, placement: Placement, leftovers: Leftovers) -> None:
        self.options = options
        self._began = time.monotonic()
        self._placement, self._leftovers = placement, leftovers
        self._source = ScrapeSource(10.0)
        self._base = _simulated() if options.simulated else _gpu(options)
        self._engine = registry.engine(self._base["engine"]["name"])
        self._running: dict[str, Running] = {}
        self._eager: Reference | None = None  # asked once
        self._grids = dict(GRIDS)
        self._run = f"{int(time.time())}"
        self.results: dict[str, Any] = {
            "machine": _machine(self._base),
            "engines": {},
            "overhead": {},
            "parity": {},
            "not_run": [],
        }

    def run(self) -> int:
        """0 when everything was measured."""
        self._save()
        try:
            self._measure()
        except KeyboardInterrupt:
            self._not_done("the rest", "it was interrupted")
        finally:
            self._close()
        return 1 if self.results["not_run"] else 0

    def _measure(self) -> None:
        for name in (*GRIDS, BARE):
            self._try(f"start {name}", START_S, lambda name=name: self._launch(name))
        for name in tuple(self._running):
            self._try(f"wait for {name}", 1.0, lambda name=name: self._await(name))
        trace = make_trace(REHEARSAL if self.options.simulated else PHASES)
        for name in sorted(self.results["engines"], key=lambda name: name != WITH):
            self._try(f"trace on {name}", TRACE_S, lambda name=name: self._trace(name, trace))
        if WITH in self.results["engines"]:
            self._try("plan a grid and start it", PLANNED_S, self._plan)
        if PLANNED in self.results["engines"]:
            self._try(f"trace on {PLANNED}", TRACE_S, lambda: self._trace(PLANNED, trace))
        for name in sorted(self.results["engines"]):
            if name in self.options.parity:
                self._try(f"parity of {name}", PARITY_S, lambda name=name: self._parity(name))
        for number in range(self.options.pairs):
            self._try(f"pair {number + 1}", PAIR_S, lambda number=number: self._pair(number))

    def _try(self, what: str, needed_s: float, action: Any) -> None:
        left_s = self._left_s()
        if left_s < needed_s:
            why = f"it may take {needed_s:.0f} s, and {left_s:.0f} s are left"
            self._not_done(what, why)
            return
        began = time.monotonic()
        try:
            action()
        except (RuntimeError, LookupError, OSError, CanaryctlError, httpx.HTTPError) as error:
            self._not_done(what, f"{type(error).__name__}: {error}")
        else:
            say(f"{what}: {time.monotonic() - began:.0f} s")
            self._save()

    def _not_done(self, what: str, why: str) -> None:
        say(f"{what}: not done: {why}")
        self.results["not_run"].append(f"{what}: {why}")
        self._save()

    def _left_s(self) -> float:
        return self.options.limit_s - (time.monotonic() - self._began)

    def _launch(self, name: str) -> None:
        spec = self._spec(name)
        digest = f"sha256:{sha256(name.encode()).hexdigest()}"
        port = self._placement.free_port()
        launch = self._engine.launch(spec, host="127.0.0.1", port=port)
        if name == BARE:
            launch = without_probe(launch)
        instance = self._instance(name)
        self._leftovers.begin(instance, digest)
        handle = self._placement.ensure(
            InstanceRequest(instance, digest, launch, port, gpus=() if self._simulated else (0,))
        )
        url = self._placement.base_url(handle)
        model = self._engine.model_name(spec)
        self._running[name] = Running(name, spec, digest, url, model, time.monotonic())

    def _await(self, name: str) -> None:
        """Until it is healthy and no longer slow as at first; one that ends is not waited for."""
        running = self._running[name]
        instance = self._instance(name)
        while not _healthy(running.url + self._engine.health_path()):
            status = self._placement.status(instance, running.digest, None)
            late = time.monotonic() - running.began > START_S or self._left_s() <= 0
            if status.liveness is not Liveness.RUNNING or late:
                self._keep_log(name)
                del self._running[name]
                self._leftovers.end(instance, running.digest)
                raise RuntimeError(f"it is not ready: {self._log(name)[-600:]}")
            time.sleep(0.25)
        ready_s = time.monotonic() - running.began
        self._cell(name, 4, 0.5)  # what is slow the first time
        self._cell(name, LEVELS[-1], 0.3)
        if name != BARE:
            facts = self._engine.read_log(self._log(name).splitlines(), running.spec.engine.version)
            self.results["engines"][name] = {
                "ready_s": ready_s,
                "started_alone": name == PLANNED,
                "declared": declared(running.spec, self._engine.resolved_grid(running.spec)),
                "attested": {**self._attested(name), **facts.resolved},  # the log decides
                "log": {
                    "graph_bytes": facts.graph_bytes,
                    "weights_bytes": facts.weights_bytes,
                    "kv_cache_tokens": facts.kv_cache_tokens,
                    "stage_seconds": dict(facts.stage_seconds),
                },
            }

    def _plan(self) -> None:
        running = self._up(WITH)
        document = plan(
            self.options.out / COUNTS, running.spec, artifacts.NINE, self.options.calibration
        )
        self._grids[PLANNED] = {
            "mode": "FULL_AND_PIECEWISE",
            "capture_sizes": document["planned"]["sizes"],
        }
        (self.options.out / "plan.json").write_text(json.dumps(document) + "\n")
        self._launch(PLANNED)
        self._await(PLANNED)

    def _trace(self, name: str, trace: Any) -> None:
        running = self._up(name)
        before = self._scrape(name)
        answers = run_trace(running.url, running.model, trace)
        after = self._scrape(name)
        (self.options.out / f"{name}.metrics").write_text(after.raw)
        if name == WITH:
            write_counts(self.options.out / COUNTS, before, after)
        good = sum(answer.failure is None for answer in answers)
        self.results["engines"][name] |= {
            "requests": len(answers),
            "failed": len(answers) - good,
            "steps": steps_between(before, after),
        }

    def _parity(self, name: str) -> None:
        self._eager = self._eager or Reference(self._side(EAGER), "the eager runtime")
        found = asyncio.run(measure(self._side(name), self._eager, timeout_s=PARITY_S))
        self.results["parity"][name] = asdict(found)

    def _side(self, name: str) -> Side:
        running = self._up(name)
        limits = running.spec.limits
        return Side(
            running.url,
            running.model,
            limits.max_num_seqs,
            limits.max_model_len,
            self._engine.tells_token_ids,
        )

    def _pair(self, number: int) -> None:
        """Both at each level, one right after the other; the order turns with every pair."""
        for level in LEVELS:
            order = (WITH, BARE) if number % 2 == 0 else (BARE, WITH)
            found = {name: self._cell(name, level, self.options.cell_s) for name in order}
            pair = {"with": found[WITH], "without": found[BARE]}
            self.results["overhead"].setdefault(str(level), []).append(pair)

    def _cell(self, name: str, level: int, seconds: float) -> float | None:
        """TPOT p50 in seconds."""
        running = self._up(name)
        cell = run_cell(
            running.url,
            running.model,
            concurrency=level,
            seconds=seconds,
            prompt_tokens=64,
            output_tokens=64,
        ).as_document()
        tpot: Mapping[str, float] | None = cell["tpot_s"]
        return None if tpot is None else tpot["p50"]

    def _scrape(self, name: str) -> Scrape:
        running = self._up(name)
        refs = self._engine.metrics(running.spec.engine.version)
        target = Target(name, f"{running.url}/metrics", {})
        return self._source.read(target, refs, time.time())

    def _attested(self, name: str) -> dict[str, str]:
        value = self._scrape(name).values[Signal.ATTESTATION]
        if not isinstance(value, Series):
            why = value.reason if isinstance(value, Missing) else "not an info"
            raise UnsaidError(f"the engine attests nothing: {why}")
        (labels,) = map(dict, value.values)
        return labels

    def _up(self, name: str) -> Running:
        if name not in self._running:
            raise UnsaidError(f"the engine {name} does not run")
        return self._running[name]

    def _spec(self, name: str) -> RuntimeSpec:
        graph = self._grids[WITH if name == BARE else name]
        return RuntimeSpec.model_validate({**self._base, "graph": graph})

    @property
    def _simulated(self) -> bool:
        return self.options.simulated

    def _instance(self, name: str) -> str:
        return f"graphs-{self._run}-{name.replace(', ', '-').replace(' ', '-')}"

    def _log(self, name: str) -> str:
        path = self._placement.log_path(self._instance(name))
        return path.read_text(errors="replace") if path.exists() else ""

    def _keep_log(self, name: str) -> None:
        (self.options.out / f"{self._instance(name)}.log").write_text(self._log(name)[:60_000])

    def _save(self) -> None:
        replace_file(self.options.out / RESULTS, json.dumps(self.results, indent=1) + "\n")

    def _close(self) -> None:
        for name in self._running:
            self._keep_log(name)
        self._source.close()


def without_probe(launch: Launch) -> Launch:
    """The same engine, and nobody counts its steps."""
    argv = tuple(word for word in launch.argv if word != "--cudagraph-metrics")
    return replace(launch, argv=argv, pythonpath=())


def _healthy(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2, trust_env=False).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def _machine(base: Mapping[str, Any]) -> str:
    machine = inspect_machine()
    gpus = ", ".join(gpu.name for gpu in machine.gpus) or "no GPU"
    engine = base["engine"]
    return f"{gpus}, driver {machine.driver or 'none'}, {engine['name']} {engine['version']}"


def _gpu(options: Options) -> dict[str, Any]:
    model = options.work / "model"
    for tool in ("random_model.py", "random_weights.py"):
        subprocess.run([sys.executable, str(ROOT / "tools" / tool), str(model)], check=True)
    site = next(iter(os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    engine = artifacts.gpu_engine(
        [sys.executable],
        str(Path(site).absolute()) if site else "",
        model,
        options.work / "vllm-cache",
        fraction=options.fraction,
        warm=[1],
    )
    return engine.variant(args={"kv-cache-memory-bytes": KV_CACHE_BYTES, "load-format": "auto"})


def _simulated() -> dict[str, Any]:
    return {
        "engine": {"name": "simulated", "version": "0.25.1", "args": {"time_scale": 0}},
        "model": {"id": "qwen"},
        "limits": {"max_num_seqs": 128, "max_num_batched_tokens": 8192, "max_model_len": 2048},
    }


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def parse(argv: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "out")))
    parser.add_argument("--work", type=Path, default=Path(".h200-graphs"), help="state and caches")
    parser.add_argument("--simulated", action="store_true", help="rehearse without a GPU")
    parser.add_argument("--fraction", type=float, default=0.14, help="of GPU memory, each of six")
    parser.add_argument("--pairs", type=int, default=8, help="of measurements with and without")
    parser.add_argument("--cell", type=float, default=1.0, help="seconds of one measurement")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for all of it")
    parser.add_argument(
        "--parity", default="piecewise,default,nine,planned", help="who is asked for parity"
    )
    parser.add_argument("--calibration", type=Path, help="of this engine, instead of the packaged")
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page again")
    parser.add_argument("--note", default="", help="of the page: what else ran, say")
    given = parser.parse_args(argv)
    return Options(
        out=given.out.absolute(),
        work=given.work.absolute(),
        simulated=given.simulated,
        fraction=given.fraction,
        pairs=given.pairs,
        cell_s=given.cell,
        limit_s=given.limit,
        parity=tuple(given.parity.split(",")),
        calibration=given.calibration,
        page_only=given.page,
        note=given.note,
    )


def write_page(options: Options) -> None:
    """Of what was measured into ``out``."""
    given = options.calibration
    cost = CostModel(packaged() if given is None else load_calibration(given))
    results = json.loads((options.out / RESULTS).read_text())
    (options.out / PAGE).write_text(page(results, cost, options.note))


def main(argv: Sequence[str]) -> int:
    options = parse(argv)
    if options.page_only:
        write_page(options)
        return 0
    for folder in (options.work, options.out):
        folder.mkdir(parents=True, exist_ok=True)
    state = options.work / "state"
    placement = ProcessPlacement(state)
    with none_left(state, placement) as leftovers:
        code = Bench(options, placement, leftovers).run()
    write_page(options)
    return code


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the engines are ended either way
    sys.exit(main(sys.argv[1:]))
