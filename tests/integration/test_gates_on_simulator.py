"""Faults of the simulated engine, each found by the right gate on the engine's own pages."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from canaryctl.common.metrics import AnySignal, Signal, references
from canaryctl.controller.declared import declared
from canaryctl.gates import registry
from canaryctl.gates.base import Look, StartFacts
from canaryctl.gates.deltas import next_start, window
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.gates.samples import Scrape
from canaryctl.gates.sources.base import Target
from canaryctl.gates.sources.scrape import ScrapeSource
from canaryctl.gates.spec import GateSpec
from tests.support.gates import context, spec
from tests.support.simulated import ENGINE, SimulatedServer, simulated_spec

LIMITS = {"max_num_seqs": 256, "max_model_len": 4096}
SIZES = {"mode": "FULL_AND_PIECEWISE", "capture_sizes": [1, 2, 4, 8, 16]}


@dataclass
class Bench:
    """A canary with a fault beside a sound baseline."""

    canary: SimulatedServer
    baseline: SimulatedServer
    source: ScrapeSource
    threads: list[Thread] = field(default_factory=list)

    def load(self, count: int = 120, rate: float = 60, tokens: int = 16) -> None:
        """Requests to both at once, while gates look."""
        for server in (self.canary, self.baseline):

            def work(server: SimulatedServer = server) -> None:
                server.complete_many(count, rate=rate, tokens=tokens)

            self.threads.append(Thread(target=work, daemon=True))
            self.threads[-1].start()

    def judge(self, specs: Sequence[GateSpec], looks: int) -> list[GateResult]:
        gates = [registry.build(one, context()) for one in specs]
        states = [gate.start() for gate in gates]
        results: list[GateResult] = []
        wanted: set[AnySignal] = {Signal.REQUESTS}
        wanted.update(*(gate.needs() for gate in gates))
        refs = references(wanted, ENGINE.metrics("0.25.1"))
        before: dict[str, Scrape] = {}
        log = self.canary.facts()
        for _ in range(looks + 1):
            now = time.time()
            after = {
                name: self.source.read(Target(name, f"{server.url}/metrics", {}), refs, now)
                for name, server in (("c0", self.canary), ("b0", self.baseline))
            }
            if before:
                look = Look(
                    now,
                    window(before, after, ["c0"]),
                    window(before, after, ["b0"]),
                    canary_limits=LIMITS,
                    baseline_limits=LIMITS,
                    declared=declared(self.canary.spec, ENGINE.resolved_grid(self.canary.spec)),
                    start={"c0": StartFacts(resolved=log.resolved, resolved_by=log.resolved_by)},
                )
                results = []
                for index, gate in enumerate(gates):
                    states[index], result = gate.look(states[index], look)
                    results.append(result)
            before = next_start(before, after)
            time.sleep(0.3)
        return results

    def close(self) -> None:
        for thread in self.threads:
            thread.join(timeout=30)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedServer]:
    log = tmp_path_factory.mktemp("sound") / "engine.log"
    with SimulatedServer(simulated_spec(graph=SIZES), log) as server:
        yield server


@pytest.fixture
def bench(tmp_path: Path, sound: SimulatedServer) -> Iterator[Callable[..., Bench]]:
    with ExitStack() as stack:

        def start(fault: str = "", **args: Any) -> Bench:
            given = {"fault": fault, **args} if fault else args
            server = SimulatedServer(simulated_spec(given, graph=SIZES), tmp_path / "engine.log")
            canary = stack.enter_context(server)
            source = stack.enter_context(closing(ScrapeSource(5.0)))
            found = Bench(canary, sound, source)
            stack.callback(found.close)
            return found

        yield start


def test_a_sound_canary_fails_nowhere(bench: Callable[..., Bench]) -> None:
    found = bench()
    found.load(tokens=32)
    specs = [
        spec("graph_fallback", max_ratio="5%"),
        spec("graph_hit", min_ratio="95%"),
        spec("beyond_grid", max_ratio="60%"),
        spec("padding_ratio", max_ratio="400%"),
        spec("step_time", max_regression="46%"),
        spec("graph_memory", max_bytes="2GiB", max_regression="5%"),
        spec("ready_time", max_seconds="60s"),
        spec("attestation"),
        spec("dispatched_vs_finished", max_seconds="2s"),
    ]
    results = found.judge(specs, 10)
    assert not [r for r in results if r.outcome in (Outcome.FAILED, Outcome.ERROR)], results
    by_name = {r.name: r for r in results}
    for name in ("attestation", "graph_memory", "ready_time"):
        assert by_name[name].outcome is Outcome.PASSED, by_name[name].reason
    assert by_name["step_time"].details["by_bucket"], by_name["step_time"].reason
    for name in ("graph_fallback", "padding_ratio", "dispatched_vs_finished"):
        assert by_name[name].samples > 0, by_name[name].reason


def test_graphs_that_are_captured_and_not_replayed(bench: Callable[..., Bench]) -> None:
    found = bench("eager_fallback")
    found.load(count=200, rate=25, tokens=32)
    fallback, hit, beyond = found.judge(
        [
            spec("graph_fallback", max_ratio="5%"),
            spec("graph_hit", min_ratio="95%"),
            spec("beyond_grid", max_ratio="90%"),
        ],
        24,
    )
    assert fallback.outcome is Outcome.FAILED, fallback.reason
    assert "downgraded by the engine" in fallback.reason
    assert hit.outcome is Outcome.FAILED, hit.reason
    assert beyond.outcome is not Outcome.FAILED, beyond.reason


def test_a_grid_that_is_silently_reduced(bench: Callable[..., Bench]) -> None:
    (result,) = bench("grid_reduced").judge([spec("attestation")], 1)
    assert result.outcome is Outcome.FAILED
    assert "graph_sizes: declared 1,2,4,8,16, attested 1,2,4 (8, 16 missing)" in result.reason


def test_a_mode_that_the_attention_backend_cannot_do(bench: Callable[..., Bench]) -> None:
    found = bench("mode_downgraded")
    page = found.canary.page().labels("canaryctl_attestation_info")
    assert page["graph_mode"] == "FULL_AND_PIECEWISE", "as vLLM's API server has it"
    (result,) = found.judge([spec("attestation")], 1)
    assert result.outcome is Outcome.FAILED
    assert (
        "graph_mode: declared FULL_AND_PIECEWISE, attested PIECEWISE (by its log: CUDAGraphMode."
        "FULL_AND_PIECEWISE is not supported with SimulatedAttention backend (support: "
        "AttentionCGSupport.NEVER); setting cudagraph_mode=PIECEWISE because"
    ) in result.reason


def test_a_cache_that_shrank(bench: Callable[..., Bench]) -> None:
    (result,) = bench("small_kv", fault_factor=20, gpu_memory_gib=40).judge(
        [spec("max_concurrency", max_regression="5%")], 1
    )
    assert result.outcome is Outcome.FAILED, result.reason
    assert "requests at once against" in result.reason


def test_a_capture_that_takes_long(bench: Callable[..., Bench]) -> None:
    (result,) = bench("slow_capture", time_scale=0.02, fault_factor=60).judge(
        [spec("ready_time", max_regression="50%")], 1
    )
    assert result.outcome is Outcome.FAILED, result.reason
    assert "most of it by capture, which took" in result.reason
    assert "against" in result.reason


def test_an_engine_that_hangs_while_its_health_is_good(bench: Callable[..., Bench]) -> None:
    found = bench()
    found.load(count=120, rate=60, tokens=4)
    time.sleep(0.5)
    found.canary.switch("hang")
    (result,) = found.judge([spec("dispatched_vs_finished", max_seconds="1s")], 8)
    assert found.canary.health() == 200
    assert result.outcome is Outcome.FAILED, result.reason
    assert "requests were sent and do not end: at least" in result.reason
    found.canary.switch()


def test_metrics_that_are_missing_pass_nothing(bench: Callable[..., Bench]) -> None:
    found = bench("missing_metrics")
    found.load(count=60, tokens=4)
    specs = [
        spec("graph_fallback", max_ratio="5%"),
        spec("graph_hit", min_ratio="95%"),
        spec("beyond_grid", max_ratio="5%"),
        spec("padding_ratio", max_ratio="150%"),
        spec("step_time", max_regression="46%"),
        spec("graph_memory", max_bytes="2GiB"),
        spec("ready_time", max_seconds="60s"),
        spec("attestation"),
    ]
    for result in found.judge(specs, 4):
        assert result.outcome is Outcome.INCONCLUSIVE, result
        assert not result.no_harm
        assert "absent" in result.reason
        assert result.valid_looks == 0
