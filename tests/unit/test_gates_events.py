"""Hard gates: predicates on events."""

from canaryctl.common.metrics import Signal
from canaryctl.gates.base import Event
from canaryctl.gates.outcome import Outcome
from canaryctl.gates.samples import Series
from tests.support.gates import arm, judge, spec


def event(kind: str, detail: str = "it said so") -> Event:
    return Event(kind, "c0", 5.0, detail)


def test_oom_counts_one_event_told_twice_once() -> None:
    gate = spec("oom", max=1)
    counted = arm({Signal.OOM: Series({(): 1.0})})
    _, result = judge(gate, 1, counted, canary_events=(event("oom"),))
    assert result.outcome is Outcome.PASSED
    _, result = judge(gate, 2, counted, canary_events=(event("oom"),))
    assert result.outcome is Outcome.FAILED  # the counter rose again
    assert result.value == 2.0


def test_a_counter_alone_is_enough_for_oom() -> None:
    _, result = judge(spec("oom", max=0), 1, arm({Signal.OOM: Series({(): 1.0})}))
    assert result.outcome is Outcome.FAILED
    assert "counter" in result.reason


def test_engine_exit_allows_none_by_default() -> None:
    clean = judge(spec("engine_exit"), 1, arm({}))[1]
    assert clean.outcome is Outcome.PASSED
    _, result = judge(spec("engine_exit"), 1, arm({}), canary_events=(event("exit", "code 0"),))
    assert result.outcome is Outcome.FAILED
    assert "c0: code 0" in result.reason
    _, result = judge(spec("engine_exit", max=1), 1, arm({}), canary_events=(event("exit"),))
    assert result.outcome is Outcome.PASSED


def test_events_of_another_kind_do_not_count() -> None:
    for name in ("oom", "engine_exit"):
        limits = {"max": 0}
        _, result = judge(spec(name, **limits), 1, arm({}), canary_events=(event("no_progress"),))
        assert result.outcome is Outcome.PASSED


def test_progress_needs_a_generation_to_have_ended() -> None:
    gate = spec("progress", max_seconds="5s")
    waiting = judge(gate, 1, arm({}))[1]
    assert waiting.outcome is Outcome.INCONCLUSIVE
    assert waiting.valid_looks == 0
    assert judge(gate, 1, arm({}), progress_checks=1)[1].outcome is Outcome.PASSED
    hung = judge(gate, 1, arm({}), progress_checks=9, canary_events=(event("no_progress"),))[1]
    assert hung.outcome is Outcome.FAILED
    assert "no token within 5 s" in hung.reason
