"""Whether warmed buckets replayed their graphs."""

from canaryctl.common.metrics import Signal
from canaryctl.gates.base import StartFacts
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.gates.samples import Series
from tests.support.gates import Values, arm, judge, spec

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
