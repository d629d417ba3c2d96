"""A real vLLM, started with the adapter's own command line: probe, metrics, log, death."""

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from canaryctl.common.metrics import Signal
from canaryctl.gates.samples import Histogram, Missing, Scrape, Series
from canaryctl.gates.sources.base import Target
from canaryctl.gates.sources.scrape import ScrapeSource
from canaryctl.runtimes.engines.base import Stage
from canaryctl.runtimes.engines.vllm import VllmEngine
from canaryctl.runtimes.engines.vllm_metrics import native
from canaryctl.runtimes.placements.base import InstanceRequest, Liveness
from canaryctl.runtimes.placements.process import ProcessPlacement
from tests.support.cpu_vllm import CORE, VERSION, cpu_runtime

pytestmark = pytest.mark.vllm

DIGEST = "sha256:" + "d" * 64
ENGINE = VllmEngine()


@dataclass(frozen=True)
class Running:
    url: str
    pid: int
    log: Path
    placement: ProcessPlacement

    def facts_lines(self) -> list[str]:
        return self.log.read_text(encoding="utf-8", errors="replace").splitlines()

    def complete(self, prompt: str, tokens: int) -> int:
        body = {"model": "chat", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True}
        answer = httpx.post(f"{self.url}/v1/completions", json=body, timeout=60)
        answer.raise_for_status()
        return int(answer.json()["usage"]["completion_tokens"])

    def scrape(self, *, with_probe: bool = True) -> Scrape:
        refs = ENGINE.metrics(VERSION) if with_probe else native((0, 32))
        source = ScrapeSource(5.0)
        try:
            return source.read(Target("one", f"{self.url}/metrics", {}), refs, time.time())
        finally:
            source.close()


def health(url: str) -> int | None:
    try:
        return httpx.get(url + ENGINE.health_path(), timeout=2).status_code
    except httpx.HTTPError:
        return None


def wait_until_healthy(url: str, placement: ProcessPlacement, log: Path) -> None:
    deadline = time.monotonic() + 240
    while True:
        if health(url) == httpx.codes.OK:
            return
        alive = placement.status("one", DIGEST, None).liveness is Liveness.RUNNING
        if not alive or time.monotonic() > deadline:
            pytest.fail(f"not ready:\n{log.read_text(errors='replace')[-4000:]}")
        time.sleep(0.25)


@pytest.fixture(scope="module")
def engine(
    cpu_vllm_python: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    placement = ProcessPlacement(tmp_path_factory.mktemp("state"))
    spec = cpu_runtime(cpu_vllm_python, tiny_model)
    assert ENGINE.check(spec) == ()
    port = placement.free_port()
    launch = ENGINE.launch(spec, host="127.0.0.1", port=port)
    handle = placement.ensure(InstanceRequest("one", DIGEST, launch, port))
    url, log = placement.base_url(handle), placement.log_path("one")
    try:
        wait_until_healthy(url, placement, log)
        yield Running(url, handle.pid, log, placement)
    finally:
        deadline = time.monotonic() + 20
        while not placement.stop("one", DIGEST, handle, grace_s=5):
            assert time.monotonic() < deadline, "the engine could not be stopped"
            time.sleep(0.1)


def steps(scrape: Scrape) -> dict[tuple[str, str, str, str], float]:
    value = scrape.values[Signal.STEPS]
    assert isinstance(value, Series)
    names = ("mode", "bucket", "pure_decode", "reason")
    return {tuple(dict(k)[n] for n in names): v for k, v in value.values.items()}  # type: ignore[misc]


def total(scrape: Scrape, signal: Signal) -> float:
    value = scrape.values[signal]
    assert isinstance(value, Series), value
    return value.total


def count(scrape: Scrape, signal: Signal) -> int:
    value = scrape.values[signal]
    assert isinstance(value, Histogram), value
    return value.count


def test_before_any_request_counts_are_zero_and_steps_unknown(engine: Running) -> None:
    scrape = engine.scrape()
    assert count(scrape, Signal.TTFT) == 0
    assert total(scrape, Signal.REQUESTS) == 0
    assert total(scrape, Signal.ERRORS) == 0
    assert isinstance(scrape.values[Signal.STEPS], Missing)
    assert isinstance(scrape.values[Signal.TOKENS_PADDED], Missing)
    assert scrape.born is not None


def test_the_log_tells_the_stages_and_the_capacity(engine: Running) -> None:
    facts = ENGINE.read_log(engine.facts_lines(), VERSION)
    assert facts.stages == (Stage.STARTED, Stage.LOADED, Stage.COMPILED, Stage.CAPTURED)
    assert facts.kv_cache_tokens is not None
    assert facts.max_concurrency == facts.kv_cache_tokens / 512
    assert facts.stage_seconds["init"] > 0
    assert facts.graph_bytes is None
    assert (facts.out_of_memory, facts.fatal) == ((), ())


def test_the_grid_and_what_cannot_be_said_are_shown(engine: Running) -> None:
    grid = engine.scrape().values[Signal.GRID]
    assert isinstance(grid, Series)
    (labels,) = map(dict, grid.values)
    assert labels == {
        "mode": "NONE",
        "sizes": "",
        "requested": "default",
        "engine_version": VERSION,
    }
    page = httpx.get(f"{engine.url}/metrics").text
    assert 'canaryctl_probe_unknown{engine="0",reason="the engine core reports no' in page
    assert "canaryctl_oom_total" not in page
    assert "canaryctl_probe_errors_total 0.0" in page


def test_steps_tokens_and_latencies_agree_with_the_requests_made(engine: Running) -> None:
    before = engine.scrape()
    with ThreadPoolExecutor(4) as pool:
        made = sum(pool.map(lambda n: engine.complete("x" * 20, n), (1, 8, 30, 30)))
    assert made == 69
    after, own = engine.scrape(), engine.scrape(with_probe=False)

    for latency in (Signal.TTFT, Signal.ITL, Signal.E2E):
        assert count(after, latency) == count(own, latency), latency
    assert count(after, Signal.TTFT) - count(before, Signal.TTFT) == 4
    assert count(after, Signal.TPOT) - count(before, Signal.TPOT) == 3, "one has a single token"
    assert count(after, Signal.ITL) - count(before, Signal.ITL) == 69 - 4
    fine, coarse = after.values[Signal.ITL], own.values[Signal.ITL]
    assert isinstance(fine, Histogram)
    assert isinstance(coarse, Histogram)
    assert fine.sum == pytest.approx(coarse.sum)
    assert total(after, Signal.REQUESTS) - total(before, Signal.REQUESTS) == 4
    assert total(after, Signal.ERRORS) == 0

    counted = steps(after)
    assert {mode for mode, *_ in counted} == {"NONE"}
    assert {pure for _, _, pure, _ in counted} <= {"true", "false", "unknown"}
    decodes = sum(v for (_, _, pure, _), v in counted.items() if pure == "true")
    assert 29 <= decodes <= 65, "the longest request alone decodes 29 times"
    # Prompts of 20 bytes, and every token but a request's last is an input of the next step. A
    # prompt's whole blocks may come from the cache, which has none of 20 tokens.
    assert total(after, Signal.TOKENS_ACTUAL) == 4 * 20 + 65
    assert total(after, Signal.TOKENS_PADDED) == total(after, Signal.TOKENS_ACTUAL)


def test_a_request_that_is_refused_counts_as_a_request_and_not_as_an_error(
    engine: Running,
) -> None:
    before = engine.scrape()
    body = {"model": "chat", "prompt": "x", "max_tokens": 100_000}
    assert httpx.post(f"{engine.url}/v1/completions", json=body).status_code == 400
    after = engine.scrape()
    assert total(after, Signal.REQUESTS) - total(before, Signal.REQUESTS) == 1
    assert total(after, Signal.ERRORS) == total(before, Signal.ERRORS)


def test_death_of_the_engine_core_is_seen_in_health_log_and_exit(engine: Running) -> None:
    (core,) = (p for p in psutil.Process(engine.pid).children() if p.cmdline()[0].strip() == CORE)
    core.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    seen: set[int | None] = set()
    while engine.placement.status("one", DIGEST, None).liveness is Liveness.RUNNING:
        assert time.monotonic() - killed < 30
        seen.add(health(engine.url))
        time.sleep(0.05)
    assert httpx.codes.SERVICE_UNAVAILABLE in seen
    facts = ENGINE.read_log(engine.facts_lines(), VERSION)
    assert any("EngineDeadError" in line or "unexpectedly" in line for line in facts.fatal)
