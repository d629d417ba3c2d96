"""What graphs cost before the first request: memory and time."""

from typing import Any

import pytest

from canaryctl.common.metrics import Signal
from canaryctl.gates import registry
from canaryctl.gates.base import Look, StartFacts
from canaryctl.gates.outcome import Outcome
from canaryctl.gates.samples import ArmWindow, Labels, Missing, Series
from tests.support.gates import Values, arm, context, judge, spec

MIB = 2**20
MEMORY = spec("graph_memory", max_bytes="512MiB")
READY = spec("ready_time", max_seconds="60s", max_regression="50%")


def memory(mib: float) -> Values:
    found: dict[Labels, float] = {(("kind", "graphs"),): mib * MIB, (("kind", "weights"),): 9e9}
    return {Signal.MEMORY: Series(found)}


def startup(**seconds: float) -> Values:
    return {Signal.STARTUP: Series({(("stage", k),): v for k, v in seconds.items()})}


# -------------------------------------------------------- graph_memory


def test_graphs_may_take_so_much_memory_and_no_more() -> None:
    _, held = judge(MEMORY, 1, arm(memory(508)))
    assert held.outcome is Outcome.PASSED
    assert held.value == 508 * MIB
    _, more = judge(MEMORY, 1, arm(memory(128), memory(513)))
    assert more.outcome is Outcome.FAILED
    assert "Graph memory of the canary is 513 MiB (allowed 512 MiB)" in more.reason


def test_graph_memory_is_compared_with_the_baselines() -> None:
    gate = spec("graph_memory", max_regression="20%")
    _, more = judge(gate, 1, arm(memory(254)), arm(memory(128)))
    assert more.outcome is Outcome.FAILED
    assert "254 MiB against 128 MiB of the baseline (+98 %, allowed +20 %)" in more.reason
    assert judge(gate, 1, arm(memory(150)), arm(memory(128)))[1].outcome is Outcome.PASSED
    _, eager = judge(gate, 1, arm(memory(150)), arm(memory(0)))
    assert eager.outcome is Outcome.INCONCLUSIVE
    assert "of which there is no multiple" in eager.reason


def test_the_log_tells_what_the_page_does_not() -> None:
    silent: Values = {Signal.MEMORY: Missing("memory_bytes is absent from the page")}
    told = {"i0": StartFacts(bytes={"graphs": 600 * MIB})}
    _, result = judge(MEMORY, 1, arm(silent), start=told)
    assert result.outcome is Outcome.FAILED
    _, unknown = judge(MEMORY, 1, arm(silent), start={"another": told["i0"]})
    assert unknown.outcome is Outcome.INCONCLUSIVE
    assert "unknown: no memory from the canary: i0" in unknown.reason
    assert "its log does not tell" in unknown.reason
    _, half = judge(MEMORY, 1, arm(memory(1), silent))
    assert half.outcome is Outcome.INCONCLUSIVE  # one of two says nothing


def test_nobody_to_ask_is_unknown_and_ambiguity_is_an_error() -> None:
    assert judge(MEMORY, 1, ArmWindow((), 0))[1].outcome is Outcome.INCONCLUSIVE
    twice: Values = {Signal.MEMORY: Missing("ambiguous: 2 series where one is expected")}
    assert judge(MEMORY, 1, arm(twice))[1].outcome is Outcome.ERROR


# ---------------------------------------------------------- ready_time


def test_a_slow_capture_is_named_beside_the_baselines() -> None:
    canary = startup(load=12, compile=25, capture=61, ready=98)
    _, result = judge(READY, 1, arm(canary), arm(startup(load=12, compile=26, capture=3, ready=42)))
    assert result.outcome is Outcome.FAILED
    assert "Time until ready of the canary is 98 s (allowed 60 s) against 42 s" in result.reason
    assert "most of it by capture, which took 61 s against 3 s" in result.reason


def test_the_narrower_of_both_limits_holds() -> None:
    _, result = judge(READY, 1, arm(startup(ready=50)), arm(startup(ready=30)))
    assert result.outcome is Outcome.FAILED  # within 60 s, and 67 % longer
    assert result.limit == 45.0
    _, alone = judge(spec("ready_time", max_seconds="60s"), 1, arm(startup(ready=50)))
    assert alone.outcome is Outcome.PASSED


def test_a_baseline_that_does_not_tell_leaves_it_open_but_no_failure() -> None:
    silent: Values = {Signal.STARTUP: Missing("absent")}
    assert judge(READY, 1, arm(startup(ready=50)), arm(silent))[1].outcome is Outcome.INCONCLUSIVE
    assert judge(READY, 1, arm(startup(ready=70)), arm(silent))[1].outcome is Outcome.FAILED


@pytest.mark.parametrize("stage", ["compile", "capture"])
def test_what_is_compiled_or_captured_after_ready_is_named(stage: str) -> None:
    gate = registry.build(spec("ready_time", max_seconds="60s"), context())
    state = gate.start()
    times: dict[str, Any] = {"compile": 25.0, "capture": 3.0, "ready": 40.0}
    for k in range(3):
        state, result = gate.look(state, Look(float(k), arm(startup(**times)), None))
        assert result.outcome is Outcome.PASSED
    times[stage] += 0.6
    _, late = gate.look(state, Look(9.0, arm(startup(**times)), None))
    assert late.outcome is Outcome.FAILED
    assert f"i0 went on with {stage} after it was ready" in late.reason


def test_what_the_log_tells_of_a_late_capture_is_named() -> None:
    gate = registry.build(spec("ready_time", max_seconds="60s"), context())
    state = gate.start()
    for late in ((), ("capture of the FULL graph of bucket 24",)):
        told = {"i0": StartFacts(seconds={"ready": 40.0}, late=late)}
        state, result = gate.look(state, Look(1.0, arm(startup(ready=40)), None, start=told))
    assert result.outcome is Outcome.FAILED
    assert "with requests waiting: i0: capture of the FULL graph of bucket 24" in result.reason
