"""What every gate promises, whatever it judges."""

import json
import math
import time
from collections.abc import Mapping
from functools import cache
from statistics import fmean
from typing import Any

import pytest

from canaryctl.common.metrics import AnySignal, Signal
from canaryctl.common.parity import Agreement, Parity
from canaryctl.gates import registry
from canaryctl.gates.base import Event, Gate, GateContext, Look, StartFacts, State
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.gates.samples import (
    ArmWindow,
    Delta,
    Histogram,
    HistogramSet,
    Missing,
    Series,
    Value,
)
from canaryctl.gates.spec import GateSpec

CONTEXT = GateContext(gates_total=4, detectable=1.0, interval_s=2.0, canary_share=0.5)
LIMITS = {"max_num_seqs": 64, "max_model_len": 4096, "max_num_batched_tokens": 8192}
EDGES = [*(0.04 * 1.1 ** (k / 2) for k in range(100)), math.inf]

GIVEN: Mapping[str, Any] = {
    "max_regression": "20%",
    "max_ratio": "2%",
    "min_ratio": "98%",
    "max": 0,
    "max_seconds": "3s",
    "max_bytes": "1GiB",
    "max_nats": 0.1,
}
OWN: Mapping[str, Mapping[str, Any]] = {"padding_ratio": {"max_ratio": "150%"}}


def build(name: str, **changes: Any) -> Gate:
    family = registry.GATES[name]
    limits = {limit: GIVEN[limit] for limit in family.limits} | dict(OWN.get(name, {}))
    spec = GateSpec.model_validate({"name": name, **limits, **changes})
    assert registry.check([spec]) == []
    return registry.build(spec, CONTEXT)


def latencies(slow: bool, requests: int = 60) -> Histogram:
    """Half of them near 0.1 s and a tail to 0.2 s; slow: all of them twenty times that."""
    counts = [0] * len(EDGES)
    for k in range(requests):
        value = (0.1 + 0.1 * (k / requests) ** 4) * (20 if slow else 1)
        counts[next(i for i, edge in enumerate(EDGES) if value <= edge)] += 1
    total, buckets = 0, []
    for edge, count in zip(EDGES, counts, strict=True):
        total += count
        buckets.append((edge, total))
    return Histogram(tuple(buckets), 6.0)


FAST, SLOW = latencies(False), latencies(True)


def steps(**counts: float) -> Series:
    """``full``, or a reason of eager pure-decode steps."""
    return Series(
        {
            (
                ("bucket", "8" if what == "full" else "0"),
                ("mode", "FULL" if what == "full" else "NONE"),
                ("pure_decode", "true"),
                ("reason", "" if what == "full" else what),
            ): count
            for what, count in counts.items()
        }
    )


def step_times(slow: bool) -> HistogramSet:
    """600 steps of one bucket, all near 2.5 ms; slow: near 5 ms."""
    edges = [0.001 * 1.1 ** (k / 2) for k in range(60)]
    buckets = tuple((e, 600 if e > (0.005 if slow else 0.0025) else 0) for e in edges)
    labels = (("bucket", "8"), ("mode", "FULL"))
    return HistogramSet({labels: Histogram((*buckets, (math.inf, 600)), 2.0)})


def values(bad: bool, at: float = 0.0) -> dict[AnySignal, Value]:
    histogram = SLOW if bad else FAST
    return {
        Signal.TTFT: histogram,
        Signal.TPOT: histogram,
        Signal.ITL: Histogram(tuple((e, 40 * n) for e, n in histogram.buckets), 240.0),
        Signal.E2E: histogram,
        Signal.PREFILL: histogram,
        Signal.REQUESTS: Series({(): 60.0}),
        Signal.ERRORS: Series({(): 50.0 if bad else 0.0}),
        Signal.OOM: Series({(): 1.0} if bad else {}),
        Signal.STEPS: steps(downgraded=110.0, beyond_grid=400.0) if bad else steps(full=4000.0),
        Signal.TOKENS_ACTUAL: Series({(): 1000.0}),
        Signal.TOKENS_PADDED: Series({(): 3000.0 if bad else 1010.0}),
        Signal.STEP_TIME: step_times(bad),
        Signal.RUNNING: Series({(): 10.0 + 10 * at if bad else 10.0}),  # more hang at every look
        Signal.WAITING: Series({(): 0.0}),
        Signal.GRID: Series({(("mode", "FULL_AND_PIECEWISE"),): 1.0}),
        Signal.MEMORY: Series({(("kind", "graphs"),): 2.0**33 if bad else 2.0**28}),
        Signal.STARTUP: Series(
            {
                (("stage", "capture"),): 18.0 if bad else 1.0,
                (("stage", "ready"),): 20.0 if bad else 2.0,
            }
        ),
        Signal.ATTESTATION: Series({(("engine_version", "0.24.0" if bad else "0.25.1"),): 1.0}),
        Signal.CACHE_CONFIG: Series(
            {
                (
                    ("block_size", "16"),
                    ("num_gpu_blocks", "2000" if bad else "20000"),
                ): 1.0
            }
        ),
    }


def arm(found: Mapping[AnySignal, Value], name: str = "c0") -> ArmWindow:
    return ArmWindow((Delta(name, 2.0, found),), 1)


def parity(diverged: int) -> Parity:
    asked, nats = {"8": 300}, 2.0 if diverged else 0.01
    canary = Agreement(asked, {"8": diverged} if diverged else {}, nats)
    return Parity("b0 (eager)", canary, Agreement(asked, {}, 0.01))


def look(at: float, *, bad: bool = False, **changes: Any) -> Look:
    given: dict[str, Any] = {
        "at": at,
        "canary": arm(values(bad, at)),
        "baseline": arm(values(False), "b0"),
        "declared": {"engine_version": "0.25.1"},
        "canary_limits": LIMITS,
        "baseline_limits": LIMITS,
        "canary_events": EVENTS if bad else (),
        "progress_checks": 1,
        "start": {
            "c0": StartFacts(
                runs={"decode bucket 8": 3}, replays={"decode bucket 8": 0 if bad else 12}
            )
        },
        "parity": parity(60 if bad else 0),
    }
    return Look(**{**given, **changes})


EVENTS = (
    Event("oom", "c0", 1.0, "torch.OutOfMemoryError"),
    Event("exit", "c0", 2.0, "exit code 0"),
    Event("no_progress", "c0", 2.0, "no token in 3 s"),
)


@cache
def judged(name: str, *, bad: bool) -> tuple[State, GateResult]:
    """The gate after 300 looks at a canary that is all bad, or as good as its baseline."""
    gate = build(name)
    state, result = gate.look(gate.start(), look(0.0, bad=bad))
    for k in range(1, 300):
        state, result = gate.look(state, look(2.0 * k, bad=bad))
        if result.outcome is Outcome.FAILED:
            break
    return state, result


every_gate = pytest.mark.parametrize("name", registry.known_names())


@every_gate
def test_a_bad_canary_fails_and_a_good_one_does_not(name: str) -> None:
    _, failed = judged(name, bad=True)
    assert failed.outcome is Outcome.FAILED
    assert failed.name == name
    _, good = judged(name, bad=False)
    assert good.outcome in (Outcome.PASSED, Outcome.INCONCLUSIVE)
    assert good.outcome is Outcome.PASSED or good.no_harm
    assert good.valid_looks >= 3
    assert good.reason != failed.reason


@every_gate
def test_failed_is_sticky(name: str) -> None:
    gate = build(name)
    state, failed = judged(name, bad=True)
    stored = json.loads(json.dumps(state, allow_nan=False))
    for later in (look(999.0), look(999.0, canary=ArmWindow((), 0)), look(999.0, baseline=None)):
        after, again = gate.look(stored, later)
        assert again == failed
        assert after == stored


@every_gate
def test_the_state_is_json_and_a_resumed_gate_goes_on_bit_for_bit(name: str) -> None:
    gate, again = build(name), build(name)
    through, resumed = gate.start(), again.start()
    for k in range(23):
        now = look(300.0 * k, unequal_load="batch" if 8 <= k < 11 else None)
        before = json.dumps(through, allow_nan=False)
        next_state, result = gate.look(through, now)
        assert json.dumps(through) == before, "look changed the state that it was given"
        through = next_state
        resumed, resumed_result = again.look(json.loads(json.dumps(resumed, allow_nan=False)), now)
        assert json.dumps(resumed) == json.dumps(through)
        assert resumed_result == result


@every_gate
def test_nothing_measured_is_never_a_pass(name: str) -> None:
    gate = build(name)
    nothing = ArmWindow((), 0)
    state, result = gate.look(
        gate.start(), look(0.0, canary=nothing, baseline=nothing, progress_checks=0, parity=None)
    )
    assert result.outcome is Outcome.INCONCLUSIVE
    assert not result.no_harm
    assert result.valid_looks == 0
    assert result.reason
    json.dumps(state, allow_nan=False)


@every_gate
def test_missing_signals_are_named_and_never_a_pass(name: str) -> None:
    gate = build(name)
    if gate.hard or not gate.needs():
        return
    state, _ = judged(name, bad=False)
    why = "no answer within 2 s"
    missing: dict[AnySignal, Value] = dict.fromkeys(gate.needs(), Missing(why))
    compares = "max_regression" in registry.GATES[name].limits
    for side in ("canary", "baseline") if compares else ("canary",):
        changes: dict[str, Any] = {side: arm(missing)}
        _, result = gate.look(state, look(500.0, **changes))
        assert result.outcome is Outcome.INCONCLUSIVE
        assert not result.no_harm
        assert why in result.reason
        assert side in result.reason
    _, result = gate.look(state, look(500.0, baseline=None))
    assert (result.outcome is Outcome.INCONCLUSIVE) is compares


@every_gate
def test_hard_gates_work_without_metrics(name: str) -> None:
    gate = build(name)
    if not gate.hard:
        assert gate.needs() or name == "output_parity"  # which is measured by requests
        return
    silent = arm({})
    _, good = gate.look(gate.start(), look(0.0, canary=silent, baseline=None))
    assert good.outcome is Outcome.PASSED
    _, bad = gate.look(gate.start(), look(0.0, canary=silent, baseline=None, canary_events=EVENTS))
    assert bad.outcome is Outcome.FAILED


@every_gate
def test_ambiguous_series_are_an_error_that_names_them(name: str) -> None:
    gate = build(name)
    if gate.hard or not gate.needs():
        return
    why = "ambiguous: 2 series where one is expected: a{engine=0}, a{engine=1}"
    ambiguous: dict[AnySignal, Value] = dict.fromkeys(gate.needs(), Missing(why))
    _, result = gate.look(gate.start(), look(0.0, canary=arm(ambiguous)))
    assert result.outcome is Outcome.ERROR
    assert "a{engine=1}" in result.reason


LABELS = (("bucket", "8"), ("mode", "FULL"))
ODD: list[Value] = [
    HistogramSet({}),
    HistogramSet({(): Histogram(((1.0, 5), (math.inf, 5)), 1.0)}),
    HistogramSet({LABELS: Histogram(((1.0, 5), (math.inf, 2)), 0.0)}),
    HistogramSet({LABELS: Histogram(((math.inf, 500),), 0.0)}),
    HistogramSet({LABELS: Histogram(((0.0, 0), (math.inf, 500)), 9.0)}),
    Histogram((), 0.0),
    Histogram(((1.0, 5),), 0.0),
    Histogram(((1.0, 5), (math.inf, 2)), 0.0),
    Histogram(((1.0, -5), (math.inf, 2)), 0.0),
    Histogram(((2.0, 1), (1.0, 1), (math.inf, 2)), 0.0),
    Histogram(((math.inf, 0),), 0.0),
    Histogram(((math.inf, 70),), 0.0),
    Histogram(((0.0, 0), (math.inf, 70)), math.nan),
    Histogram(((5.0, 70), (math.inf, 70)), 1.0),
    Series({}),
    Series({(): math.nan}),
    Series({(): -1.0}),
    Series({(): math.inf}),
    Series({(("mode", "NONE"),): 5.0}),
    Series({(("mode", ""), ("pure_decode", "true")): 5.0}),
    Series({(("num_gpu_blocks", "many"), ("block_size", "-3")): 1.0}),
    Missing(""),
]


@every_gate
@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_no_data_however_odd_raises_or_fails(name: str, odd: Value) -> None:
    gate = build(name)
    strange: dict[AnySignal, Value] = dict.fromkeys(Signal, odd)
    for canary, baseline in (
        (strange, values(False)),
        (values(False), strange),
        (strange, strange),
    ):
        state = gate.start()
        for at in (0.0, 2.0, 2.0, 1.0, 700.0):
            state, result = gate.look(
                state, look(at, canary=arm(canary), baseline=arm(baseline), canary_limits={})
            )
            json.dumps(state, allow_nan=False)
            counts = isinstance(odd, Series)  # which may truly be many errors
            assert result.outcome is not Outcome.FAILED or gate.hard or counts
            assert result.reason


@every_gate
def test_reasons_are_for_people(name: str) -> None:
    for bad in (False, True):
        _, result = judged(name, bad=bad)
        for clutter in ("None", "nan", "inf ", "{", "Missing(", "  "):
            assert clutter not in result.reason, result.reason


@pytest.mark.parametrize("engines", [1, 9])
def test_a_look_of_eight_gates_with_190_edges_costs_milliseconds(engines: int) -> None:
    """Beside so many engines of the baseline, when half an hour is remembered."""
    fine = [*(0.02 * 1.1 ** (k / 2) for k in range(189)), math.inf]
    buckets = tuple((edge, 60 if edge > 0.3 else min(60, k // 2)) for k, edge in enumerate(fine))
    found: dict[AnySignal, Value] = dict.fromkeys(Signal, Histogram(buckets, 6.0))
    names = ["ttft", "tpot", "itl", "e2e", "prefill", "ttft_p99", "tpot_p99", "e2e_p90"]
    gates = [build(name) for name in names]
    states = [gate.start() for gate in gates]
    spent = []
    for k in range(240):
        beside = ArmWindow(tuple(Delta(f"b{n}", 15.0, found) for n in range(engines)), engines)
        now = look(15.0 * k, canary=arm(found), baseline=beside)
        started = time.process_time()
        for index, gate in enumerate(gates):
            states[index], _ = gate.look(states[index], now)
        spent.append(time.process_time() - started)
    # From the half hour on, means of twenty looks each: 5 ms are promised, 2 to 3 were measured.
    # The least of them: what shares the processor's caches only adds to it.
    assert min(fmean(spent[k : k + 20]) for k in range(120, 240, 20)) < 0.005
