"""Driving simulated engines to the concurrency that they have to hold: real servers, the driver
and the gate."""

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from canaryctl.common.metrics import Signal, references
from canaryctl.gates import registry
from canaryctl.gates.capacity import MaxConcurrencyGate
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.gates.rules.saturation import counted
from canaryctl.gates.samples import Scrape, Series
from canaryctl.gates.sources.base import Target
from canaryctl.gates.sources.scrape import ScrapeSource
from canaryctl.runtimes.saturation import Drive, EngineLoad, Saturation, SaturationRun
from tests.support.gates import arm, context, judge, spec
from tests.support.simulated import ENGINE, SimulatedServer, simulated_spec

GATE = spec("max_concurrency", max_regression="5%", confirm="saturation")
LIMITS = {"max_num_seqs": 64, "max_num_batched_tokens": 2048, "max_model_len": 512}
# A cache of 26.x requests of the longest length: less than max_num_seqs.
ARGS = {"gpu_memory_gib": 5.63, "kv_bytes_per_token": 130_000, "step_scale": 1.0}


def runtime(**args: Any) -> Any:
    return simulated_spec({**ARGS, **args}, limits=LIMITS)


class Engine:
    """What the controller does with one: reads its page, drives it, judges it."""

    def __init__(self, server: SimulatedServer) -> None:
        self.server = server

    def scrape(self, *signals: Signal) -> Scrape:
        target = Target("i0", self.server.url + ENGINE.metrics_path(), {})
        with closing(ScrapeSource(timeout_s=5.0)) as source:
            refs = references(signals, ENGINE.metrics("0.25.1"))
            return source.read(target, refs, time.time())

    def load(self) -> EngineLoad:
        signals = (Signal.RUNNING, Signal.WAITING, Signal.PREEMPTIONS)
        values = self.scrape(*signals).values
        told = [
            value.total if isinstance(value := values.get(signal), Series) else None
            for signal in signals
        ]
        return EngineLoad(*told)

    def capacity(self) -> float:
        """By its own account."""
        labels = self.server.page().labels("vllm:cache_config_info")
        return float(labels["kv_cache_max_concurrency"])

    def drive(self, together: int, **changes: Any) -> SaturationRun:
        given = {"tokens": 512, "step_tokens": 2048, **changes}
        model = ENGINE.model_name(self.server.spec)
        drive = Drive(self.server.url, model, together, **given)
        return SaturationRun(drive, self.load, counted, gate().driven_enough)

    def driven(self, together: int) -> Saturation:
        found = self.drive(together).wait(120)
        assert isinstance(found, Saturation), found
        return found

    def judged(self, found: Saturation) -> GateResult:
        """Beside a baseline that says the same of itself."""
        values = self.scrape(Signal.CACHE_CONFIG).values
        own = arm({Signal.CACHE_CONFIG: values[Signal.CACHE_CONFIG]})
        driven = (found.held, found.missed)
        limits = {"canary_limits": LIMITS, "baseline_limits": LIMITS, "saturation": driven}
        return judge(GATE, 1, own, own, **limits)[1]


def gate() -> MaxConcurrencyGate:
    found = registry.build(GATE, context())
    assert isinstance(found, MaxConcurrencyGate)
    return found


@pytest.fixture
def engine(tmp_path: Path) -> Callable[..., Any]:
    return lambda **args: SimulatedServer(runtime(**args), tmp_path / "log")


def test_an_engine_holds_what_it_says(engine: Callable[..., Any]) -> None:
    with engine() as server:
        sound = Engine(server)
        capacity = sound.capacity()
        assert 10 < capacity < 64, capacity  # the cache is what limits it
        found = sound.driven(int(0.95 * capacity))
        assert found.missed == 0
        result = sound.judged(found)
        preempted = server.page().value("vllm:num_preemptions_total")
    assert result.outcome is Outcome.PASSED, result.reason
    assert "0 % of" in result.reason
    assert preempted == 0


def test_a_little_more_than_it_holds_is_seen(engine: Callable[..., Any]) -> None:
    """Of fifty, two: by so much the first ones are longer than the last when they end."""
    with engine() as server:
        full = Engine(server)
        capacity = int(full.capacity())
        assert full.driven(capacity).missed == 0
        over = full.driven(capacity + 2)
    assert over.missed > 0.01 * (over.held + over.missed)


def test_a_cache_that_is_smaller_than_it_says_is_caught(engine: Callable[..., Any]) -> None:
    with engine() as server:
        honest = Engine(server).capacity()
    with engine(fault="overstated_kv", fault_factor=1.5) as server:
        liar = Engine(server)
        assert liar.capacity() == honest
        found = liar.driven(int(0.95 * honest))
        result = liar.judged(found)
        preempted = server.page().value("vllm:num_preemptions_total")
    assert result.outcome is Outcome.FAILED, result.reason
    assert "were not held; at most 1 % may" in result.reason
    assert "chance of saying so by accident ≤ 1 %" in result.reason
    assert preempted + found.missed > 0


def test_driving_leaves_the_engine_idle_and_can_be_given_up(engine: Callable[..., Any]) -> None:
    with engine(step_scale=20.0) as server:
        slow = Engine(server)
        run = slow.drive(12)
        server.until(lambda: server.page().value("vllm:num_requests_running") > 0)
        run.cancel()
        assert run.wait(20) == "driving it was given up"
        server.until(lambda: server.page().value("vllm:num_requests_running") == 0)


def test_an_engine_that_others_use_is_not_driven(
    engine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("canaryctl.runtimes.saturation._IDLE_WITHIN_S", 0.3)
    with engine(step_scale=20.0) as server, server.streaming(tokens=64):
        assert Engine(server).drive(4).wait(20) == "the engine has 1 requests of others"


def test_an_engine_that_is_gone_tells_nothing(
    engine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("canaryctl.runtimes.saturation._IDLE_WITHIN_S", 0.3)
    with engine() as server:
        gone = Engine(server)
    found = gone.drive(4).wait(20)
    assert found == "the engine does not say how many requests it has"
