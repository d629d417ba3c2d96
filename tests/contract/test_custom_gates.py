"""Gates of an artifact's own metrics, on every source, against a running engine."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from canaryctl.common.metrics import references
from canaryctl.gates import registry
from canaryctl.gates.base import Look
from canaryctl.gates.deltas import window
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.gates.samples import Missing, Scrape
from canaryctl.gates.sources.base import SampleSource, Target
from canaryctl.gates.sources.prometheus import PrometheusSource
from canaryctl.gates.sources.scrape import ScrapeSource
from canaryctl.gates.spec import GateSpec
from tests.support.gates import context, spec
from tests.support.prometheus import Prometheus, labels, write_targets
from tests.support.simulated import SimulatedServer, simulated_spec

ANSWERED = {"metric": "http_requests_total", "sum_over": ["handler", "method", "status"]}
FAILURES = {**ANSWERED, "labels": {"status": "5xx"}, "absent": "zero"}
LATENCY = {"metric": "vllm:e2e_request_latency_seconds", "sum_over": ["engine", "model_name"]}
FAILED = spec("answered_5xx", numerator=FAILURES, denominator=ANSWERED, max_ratio="5%", phi=1)
SLOW = spec("slow_p90", histogram=LATENCY, quantile="p90", max_seconds="20s", phi=1)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedServer]:
    log = tmp_path_factory.mktemp("engine") / "engine.log"
    with SimulatedServer(simulated_spec(), log) as server:
        server.complete()
        yield server


@pytest.fixture(scope="module", params=["scrape", "prometheus"])
def source(
    request: pytest.FixtureRequest,
    engine: SimulatedServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SampleSource]:
    with ExitStack() as stack:
        if request.param == "scrape":
            yield stack.enter_context(closing(ScrapeSource(5.0)))
            return
        folder = tmp_path_factory.mktemp("prometheus")
        server = Prometheus(folder / "data", folder / "targets.json")
        address = engine.url.removeprefix("http://")
        write_targets(server.targets, [(address, "metrics", labels("c0"))])
        server.start()
        stack.callback(server.stop)
        server.until_scraped(["c0"], up=1)
        yield stack.enter_context(closing(PrometheusSource(5.0, url=server.url)))


def read(source: SampleSource, engine: SimulatedServer, gate_spec: GateSpec) -> Scrape:
    """The next sample; a store has a new one only after it has scraped again."""
    gate = registry.build(gate_spec, context())
    target = Target("c0", f"{engine.url}/metrics", labels("c0"))
    asked = time.time()
    until = time.monotonic() + 20
    while True:
        found = source.read(target, references(gate.needs(), {}), time.time())
        if found.at >= asked and not any(
            isinstance(v, Missing) and "scrape" in v.reason for v in found.values.values()
        ):
            return found
        assert time.monotonic() < until, found
        time.sleep(0.1)


def judge(source: SampleSource, engine: SimulatedServer, gate_spec: GateSpec) -> GateResult:
    """After 100 more requests."""
    assert registry.check([gate_spec]) == []
    before = {"c0": read(source, engine, gate_spec)}
    engine.complete_many(100, tokens=2)
    after = {"c0": read(source, engine, gate_spec)}
    gate = registry.build(gate_spec, context())
    return gate.look(gate.start(), Look(0.0, window(before, after, ["c0"]), None))[1]


def test_a_ratio_of_the_engines_own_counters(source: SampleSource, engine: SimulatedServer) -> None:
    result = judge(source, engine, FAILED)
    assert result.outcome is Outcome.PASSED, result.reason
    assert result.samples >= 100
    assert result.value == 0.0
    assert "counts of http_requests_total are in http_requests_total with status=5xx" in (
        result.reason
    )


def test_a_quantile_of_the_engines_own_histogram(
    source: SampleSource, engine: SimulatedServer
) -> None:
    result = judge(source, engine, SLOW)
    assert result.outcome is Outcome.PASSED, result.reason
    assert result.samples >= 100


def test_a_metric_that_is_not_exported_is_an_error_that_names_what_comes_close(
    source: SampleSource, engine: SimulatedServer
) -> None:
    for part, typo, close in (
        ("numerator", "http_request_total", "http_requests_total"),
        ("denominator", "vllm:prompt_token_total", "vllm:prompt_tokens_total"),
    ):
        selectors = {"numerator": FAILURES, "denominator": ANSWERED, part: {"metric": typo}}
        result = judge(source, engine, spec("mine", max_ratio="5%", **selectors))
        assert result.outcome is Outcome.ERROR
        assert "no such metric as the counter" in result.reason
        assert close in result.reason
    wrong = {"metric": "vllm:e2e_latency_seconds"}
    result = judge(source, engine, spec("q", histogram=wrong, quantile="p90", max_seconds="1s"))
    assert result.outcome is Outcome.ERROR
    assert "it has vllm:e2e_request_latency_seconds" in result.reason


def test_series_that_nobody_told_how_to_add_are_an_error(
    source: SampleSource, engine: SimulatedServer
) -> None:
    engine.client.get("/v1/models")  # another handler, and so another series
    alone = {"metric": "http_requests_total"}
    result = judge(source, engine, spec("m", numerator=FAILURES, denominator=alone, max_ratio="5%"))
    assert result.outcome is Outcome.ERROR
    assert "ambiguous" in result.reason
