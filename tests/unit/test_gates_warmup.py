"""Whether warmed buckets replayed their graphs."""

from canaryctl.common.metrics import Signal
from canaryctl.gates import registry
from canaryctl.gates.base import Look, StartFacts
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.gates.samples import Series
from tests.support.gates import Values, arm, context, judge, spec

STEPS: Values = {Signal.STEPS: Series({(("mode", "FULL"), ("bucket", "8")): 9.0})}
RUNS = {"decode bucket 4": 3, "decode bucket 8": 3}


def judged(*starts: StartFacts, mode: str = "FULL_AND_PIECEWISE") -> GateResult:
    facts = {f"i{n}": start for n, start in enumerate(starts)}
    arms = arm(*(STEPS for _ in starts))
    return judge(spec("warmup"), 1, arms, start=facts, declared={"graph_mode": mode})[1]


def test_every_bucket_replayed() -> None:
    result = judged(*[StartFacts(runs=RUNS, replays=dict.fromkeys(RUNS, 5))] * 2)
    assert result.outcome is Outcome.PASSED
    assert "4 decode buckets replayed" in result.reason
    mixed = StartFacts(runs={"mixed bucket 64": 3, **RUNS}, replays={"mixed bucket 64": 1, **RUNS})
    assert "2 decode buckets and 1 mixed-token bucket replayed" in judged(mixed).reason


def test_a_mixed_bucket_is_held_to_the_same() -> None:
    runs = {**RUNS, "mixed bucket 64": 3}
    idle = judged(StartFacts(runs=runs, replays={**RUNS, "mixed bucket 64": 0}))
    assert idle.outcome is Outcome.FAILED
    assert "not replayed: i0: mixed bucket 64;" in idle.reason
    assert judged(StartFacts(runs=runs, replays=RUNS)).outcome is Outcome.INCONCLUSIVE


def test_a_bucket_that_did_not_replay_names_itself() -> None:
    good = StartFacts(runs=RUNS, replays=dict.fromkeys(RUNS, 5))
    bad = StartFacts(runs=RUNS, replays={"decode bucket 4": 5, "decode bucket 8": 0})
    result = judged(good, bad)
    assert result.outcome is Outcome.FAILED
    assert "not replayed: i1: decode bucket 8;" in result.reason
    assert "decode bucket 4" not in result.reason


def test_what_the_engine_does_not_count_is_unknown() -> None:
    result = judged(StartFacts(runs=RUNS, replays={"decode bucket 4": 5}))
    assert result.outcome is Outcome.INCONCLUSIVE
    assert "did not say of i0: decode bucket 8" in result.reason
    assert judged(StartFacts()).outcome is Outcome.INCONCLUSIVE


def test_without_graphs_there_is_nothing_to_replay() -> None:
    assert judged(StartFacts(runs=RUNS), mode="NONE").outcome is Outcome.PASSED


def test_what_is_captured_after_ready_is_named_whatever_was_warmed() -> None:
    gate = registry.build(spec("warmup"), context())
    state = gate.start()
    good = StartFacts(runs=RUNS, replays=RUNS)
    parity = "capture of the FULL graph of bucket 1"  # nobody waited for it
    seen = (good, good, StartFacts(runs=RUNS, replays=RUNS, late=(parity,)))
    for at, start in enumerate(seen):
        told = {"i0": StartFacts(runs=RUNS, replays=RUNS, late=(parity,)), "i1": start}
        look = Look(float(at), arm(STEPS, STEPS), None, start=told, declared={"graph_mode": "FULL"})
        state, result = gate.look(state, look)
    assert result.outcome is Outcome.FAILED
    assert result.reason == (
        "not all was warm: after it was ready, with requests waiting: "
        "i1: capture of the FULL graph of bucket 1"
    )


def test_of_an_eager_runtime_a_late_compilation_counts_too() -> None:
    gate = registry.build(spec("warmup"), context())
    state = gate.start()
    for late in ((), ("Triton kernel JIT compilation of a",) * 5):
        told = {"i0": StartFacts(late=late)}
        look = Look(1.0, arm(STEPS), None, start=told, declared={"graph_mode": "NONE"})
        state, result = gate.look(state, look)
    assert result.outcome is Outcome.FAILED
    assert result.reason.endswith("i0: Triton kernel JIT compilation of a and 2 more")


def test_late_work_is_judged_by_its_count_and_the_latest_are_named() -> None:
    gate = registry.build(spec("warmup"), context())
    state = gate.start()
    for unnamed in (40, 40, 43):
        told = {"i0": StartFacts(runs=RUNS, replays=RUNS, late=("a", "b"), unnamed_late=unnamed)}
        state, result = gate.look(state, Look(1.0, arm(STEPS), None, start=told))
    assert result.outcome is Outcome.FAILED
    assert result.reason.endswith("with requests waiting: i0: a; i0: b and 1 more")
