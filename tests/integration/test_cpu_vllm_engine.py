"""A real vLLM, started with the adapter's own command line: probe, metrics, log, death."""

import json
import re
import runpy
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
from canaryctl.common.parity import Parity
from canaryctl.gates.samples import Histogram, HistogramSet, Missing, Scrape, Series
from canaryctl.gates.sources.base import Target
from canaryctl.gates.sources.scrape import ScrapeSource
from canaryctl.runtimes.engines.base import Stage
from canaryctl.runtimes.engines.vllm import VllmEngine
from canaryctl.runtimes.engines.vllm_metrics import native
from canaryctl.runtimes.parity import ParityRun, Reference, Side
from canaryctl.runtimes.placements.base import InstanceRequest, Liveness
from canaryctl.runtimes.placements.process import ProcessPlacement
from canaryctl.runtimes.probe.canaryctl_probe.recorder import PARTS
from tests.support.cpu_vllm import CORE, ROOT, VERSION, cpu_runtime

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
    for unsaid in (Signal.TOKENS_PADDED, Signal.SHAPES, Signal.STEP_TIME):
        assert isinstance(scrape.values[unsaid], Missing), unsaid
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
    assert errors(page) == dict.fromkeys(PARTS, 0)


def errors(page: str) -> dict[str, float]:
    found = re.findall(r'^canaryctl_probe_errors_total{part="(\w+)"} (\S+)$', page, re.MULTILINE)
    return {part: float(value) for part, value in found}


def test_what_runs_is_attested(engine: Running, tiny_model: Path) -> None:
    scrape = engine.scrape()
    info = scrape.values[Signal.ATTESTATION]
    assert isinstance(info, Series)
    (labels,) = map(dict, info.values)
    assert labels.pop("torch_version").startswith("2.13.0")
    assert labels == {
        "engine_name": "vllm",
        "engine_version": VERSION,
        "compile_mode": "NONE",
        "graph_mode": "NONE",
        "graph_sizes": "none",
        "requested_mode": "NONE",
        "requested_sizes": "default",
        "model": str(tiny_model),
        "dtype": labels["dtype"],
        "quantization": "none",
        "kv_cache_dtype": "auto",
        "block_size": labels["block_size"],
        "max_model_len": "512",
        "max_num_seqs": "16",
        "max_num_batched_tokens": labels["max_num_batched_tokens"],
        "tensor_parallel": "1",
        "pipeline_parallel": "1",
        "data_parallel": "1",
        "expert_parallel": "1",
        "speculative_tokens": "0",
        "artifact": DIGEST,
    }
    startup, memory = scrape.values[Signal.STARTUP], scrape.values[Signal.MEMORY]
    assert isinstance(startup, Series)
    assert {dict(k)["stage"] for k in startup.values} == {"ready"}
    assert 1 < startup.total < 240
    assert isinstance(memory, Series)
    assert memory.values == {(("kind", "kv_cache"),): 2**30}, "as its environment asked for"
    page = httpx.get(f"{engine.url}/metrics").text
    facts = ENGINE.read_log(engine.facts_lines(), VERSION)
    assert gauge(page, "kv_cache_tokens") == facts.kv_cache_tokens
    assert gauge(page, "max_concurrency") == facts.max_concurrency
    unknown = set(re.findall(r'^canaryctl_probe_unknown{.*what="(\w+)"', page, re.MULTILINE))
    assert unknown >= {"oom", "gpus", "gpu_model", "driver_version", "cuda_version"}
    assert unknown >= {"nccl_version", "model_revision", "memory_weights", "startup_load"}


def gauge(page: str, name: str) -> float:
    (found,) = re.findall(rf'^canaryctl_{name}{{engine="0"}} (\S+)$', page, re.MULTILINE)
    return float(found)


def test_the_recorded_interface_is_that_of_the_installed_engine(cpu_vllm_python: Path) -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "record_vllm_interfaces.py"))
    (packages,) = cpu_vllm_python.parents[1].glob("lib/python3.*/site-packages")
    recorded = json.loads((ROOT / "tests/data/vllm/interfaces.json").read_text(encoding="utf-8"))
    assert tool["record"](packages) == recorded[VERSION]


def test_steps_tokens_and_latencies_agree_with_the_requests_made(engine: Running) -> None:
    before = engine.scrape()
    with ThreadPoolExecutor(4) as pool:
        made = sum(pool.map(lambda n: engine.complete("x" * 20, n), (1, 8, 30, 30)))
    assert made == 69
    after, own = engine.scrape(), engine.scrape(with_probe=False)

    for latency in (Signal.TTFT, Signal.PREFILL, Signal.ITL, Signal.E2E):
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
    # The same by the engine's own counters, whatever was asked of it before.
    page = httpx.get(f"{engine.url}/metrics").text
    assert total(after, Signal.TOKENS_ACTUAL) == (
        own_counter(page, "prompt_tokens")
        + own_counter(page, "generation_tokens")
        - own_counter(page, "request_success")
        - own_counter(page, "prefix_cache_hits")
    )
    assert errors(page) == dict.fromkeys(PARTS, 0)


def own_counter(page: str, name: str) -> float:
    found = re.findall(rf"^vllm:{name}_total{{.*}} (\S+)$", page, re.MULTILINE)
    return sum(map(float, found))


def histograms(scrape: Scrape, signal: Signal) -> dict[str, Histogram]:
    """By the kind of shape, or by mode and bucket."""
    value = scrape.values[signal]
    assert isinstance(value, HistogramSet), value
    return {"/".join(v for _, v in sorted(k)): h for k, h in value.histograms.items()}


def test_shapes_and_step_times_agree_with_steps_and_tokens(engine: Running) -> None:
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda n: engine.complete("y" * 40, n), (20, 25, 30)))
    scrape = engine.scrape()
    counted, shapes = steps(scrape), histograms(scrape, Signal.SHAPES)
    by_kind = {
        kind: sum(v for (_, _, pure, _), v in counted.items() if pure == kind)
        for kind in ("true", "false", "unknown")
    }
    assert shapes["scheduled_tokens"].count == sum(counted.values())
    assert shapes["scheduled_tokens"].sum == total(scrape, Signal.TOKENS_ACTUAL)
    assert shapes["decode_sequences"].count == by_kind["true"]
    assert shapes["mixed_tokens"].count == by_kind["false"]
    assert by_kind["unknown"] == 0, "every request runs to its length"
    decoded = shapes["mixed_tokens"].sum - shapes["prefill_tokens"].sum
    assert shapes["decode_sequences"].sum + decoded == count(scrape, Signal.ITL)

    (times,) = histograms(scrape, Signal.STEP_TIME).values()
    assert set(histograms(scrape, Signal.STEP_TIME)) == {"0/NONE"}
    assert 10 < times.count < by_kind["true"]
    itl = scrape.values[Signal.ITL]
    assert isinstance(itl, Histogram)
    assert 0.0001 < times.sum / times.count < 1
    assert times.sum < itl.sum


def test_answers_are_compared_by_the_ids_of_their_tokens(engine: Running) -> None:
    """A token of text alone would be no answer."""
    side = Side(engine.url, "chat", most=1, longest=2, token_ids=ENGINE.tells_token_ids)
    found = ParityRun(side, Reference(side, "itself")).wait(60)
    assert isinstance(found, Parity), found
    assert found.token_ids
    assert (found.canary.prompts, found.canary.diverged) == (24, {})
    assert found.canary.nats == pytest.approx(0, abs=1e-4)
    asked = {"model": "chat", "prompt": "x", "max_tokens": 4, "ignore_eos": True, "logprobs": 1}
    asked |= {"temperature": 0, "return_tokens_as_token_ids": True}
    (choice,) = httpx.post(f"{engine.url}/v1/completions", json=asked).json()["choices"]
    assert all(re.fullmatch(r"token_id:\d+", token) for token in choice["logprobs"]["tokens"])


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
