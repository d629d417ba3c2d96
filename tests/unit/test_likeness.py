"""Like with like: equal load per engine and equal prefix caches, as planned and as measured."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canaryctl.common.metrics import Signal
from canaryctl.controller.likeness import LOAD_TOLERANCE, TRAILING_S, Trail, Unlike, follow
from canaryctl.controller.model import Release
from canaryctl.controller.plan import make_plan
from canaryctl.controller.states import Phase
from canaryctl.gates.base import Look
from canaryctl.gates.deltas import next_start, window
from canaryctl.gates.samples import ArmWindow, Missing, Scrape, Series, Value
from tests.support.releases import T0, document, release

T0_S = T0.timestamp()
EVEN = {"steps": [{"weight": 50}]}
FRESH = {"baseline": "fresh", "steps": [{"weight": 5}]}
LOADED = {"steps": [{"weight": 0, "load": "generated"}, {"weight": 50}]}


def page(name: str, at: float, requests: float, **values: float | None) -> Scrape:
    """``at`` seconds after the step came into force. A value of None is one that is not said."""
    given: Mapping[str, float | None] = {"requests": requests, **values}
    found: dict[Any, Value] = {
        Signal(signal): Missing("the engine does not say") if v is None else Series({(): v})
        for signal, v in given.items()
    }
    return Scrape(name, T0_S + at, found)


class Judged:
    """A release at a step that is in force, look after look."""

    def __init__(
        self, rollout: Mapping[str, Any], *, canaries: int = 1, baselines: int = 1, **changes: Any
    ) -> None:
        doc = document(rollout=rollout, replicas=changes.pop("replicas", 1))
        self.release: Release = release(document=doc, **{"step_at": T0, "weight": 50, **changes})
        self.arms = [f"c{n}" for n in range(canaries)], [f"b{n}" for n in range(baselines)]
        self.trail, self.before = Trail(), dict[str, Scrape]()

    def look(self, *pages: Scrape) -> Unlike:
        scrapes = {scrape.instance: scrape for scrape in pages}
        before, self.before = self.before, next_start(self.before, scrapes)
        canary, baseline = (window(before, scrapes, arm) for arm in self.arms)
        now = max(scrape.at for scrape in pages)
        plan = make_plan(self.release)
        self.trail, found = follow(self.trail, self.release, plan, before, canary, baseline, now)
        return found

    def run(self, looks: int, every_s: float, canary: float, baseline: float, **v: Any) -> Unlike:
        """``canary`` and ``baseline`` requests a look and engine; the last look's answer."""
        found = Unlike()
        for n in range(looks + 1):
            at = n * every_s
            found = self.look(
                *(page(name, at, n * canary, **v) for name in self.arms[0]),
                *(page(name, at, n * baseline, **v) for name in self.arms[1]),
            )
        return found


def test_load_is_compared_by_rate() -> None:
    """The same load, though the canary's window is of two scrapes and the baseline's of one."""
    judged = Judged(EVEN)
    judged.look(page("c0", 5, 500), page("b0", 5, 500))
    assert judged.look(page("c0", 15, 1500), page("b0", 10, 1000)) == Unlike()
    found = judged.look(page("c0", 20, 2000), page("b0", 15, 1100))
    assert found.load is not None
    assert found.load.startswith("in the last 5s 500 requests came to each canary engine and 100")


def test_a_difference_too_small_for_a_window_adds_up() -> None:
    """Twice the load, in windows of half a second: none of them shows it, a minute does."""
    assert Judged(EVEN).run(4, 0.5, 5, 10).load is None
    found = Judged(EVEN).run(60, 0.5, 5, 10).load
    assert found is not None
    assert "in the last 30s 300 requests came to each canary engine and 600" in found


def test_what_is_over_is_forgotten() -> None:
    judged = Judged(EVEN)
    judged.run(20, 15, 50, 100)
    for n in range(1, 22):
        at = 300 + n * 15.0
        latest = judged.look(page("c0", at, 1000 + n * 100), page("b0", at, 2000 + n * 100))
    assert latest.load is None
    assert len(judged.trail.chunks) <= TRAILING_S / 15


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.floats(1, 5000))
def test_equal_rates_are_equal_whatever_the_number_of_engines(
    canaries: int, baselines: int, requests: float
) -> None:
    shares = {"steps": [{"weight": 50}], "baseline": "fresh"}
    judged = Judged(shares, canaries=canaries, baselines=baselines, replicas=1, previous_replicas=1)
    assert judged.run(3, 15, requests, requests).load is None


@settings(max_examples=30, deadline=None)
@given(st.floats(1, 1000), st.floats(0, 1))
def test_within_the_tolerance_is_never_unequal(requests: float, share: float) -> None:
    less = requests * (1 - LOAD_TOLERANCE * share)
    assert Judged(EVEN).run(30, 15, less, requests).load is None
    assert Judged(EVEN).run(30, 15, requests, less).load is None


def test_a_queue_is_no_excuse() -> None:
    """A canary that answers half of what comes to it has the same load, and is slow."""
    judged = Judged(EVEN)
    for n in range(40):
        canary = page("c0", n * 15.0, n * 50, running=64, waiting=n * 50)
        found = judged.look(canary, page("b0", n * 15.0, n * 100, running=8, waiting=0))
    assert found == Unlike()


def test_where_the_queue_is_not_said_answers_are_counted() -> None:
    found = Judged(EVEN).run(40, 15, 50, 100, running=None).load
    assert found is not None
    assert "sequences" not in found
    said = Judged(EVEN).run(40, 15, 50, 100, running=3, waiting=0).load
    assert said is not None
    assert "(3.0 and 3.0 sequences run at once)" in said


def test_under_the_controllers_own_load_users_of_stable_show_at_once() -> None:
    """Both arms are asked the same, so that chance explains two requests and no more."""
    judged = Judged(LOADED, weight=0)
    assert judged.run(1, 0.5, 10, 10).load is None
    judged = Judged(LOADED, weight=0)
    assert judged.run(1, 0.5, 10, 12).load is None
    judged = Judged(LOADED, weight=0)
    found = judged.run(1, 0.5, 10, 20).load
    assert found is not None
    assert "20 to each baseline engine" in found
    assert Judged(EVEN).run(1, 0.5, 10, 20).load is None  # users' requests: this may be chance


def test_idle_arms_are_equal() -> None:
    assert Judged(LOADED, weight=0).run(5, 1, 0, 0) == Unlike()


def test_the_window_in_which_the_weight_changed_is_of_neither_step() -> None:
    judged = Judged(EVEN)
    judged.look(page("c0", -2, 10), page("b0", -2, 90))
    found = judged.look(page("c0", 3, 15), page("b0", 3, 95))
    assert found.load == "the window began before the step's weight was in force"
    assert judged.trail.chunks == ()
    assert judged.look(page("c0", 8, 40), page("b0", 8, 120)) == Unlike()


def test_a_new_step_begins_with_an_empty_trail() -> None:
    judged = Judged(EVEN)
    judged.run(20, 15, 50, 100)
    judged.release = replace(judged.release, step_at=T0.replace(minute=30))
    at = 1800.0
    judged.look(page("c0", at, 5000), page("b0", at, 5000))
    assert judged.look(page("c0", at + 5, 5050), page("b0", at + 5, 5060)) == Unlike()


def test_an_arm_that_is_not_whole_is_unequal() -> None:
    judged = Judged(FRESH, baselines=0, previous_replicas=4, replicas=4)
    judged.look(page("c0", 0, 0))
    assert judged.look(page("c0", 5, 50)).load == "0 of 1 baseline engines serve"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"phase": Phase.WATCHING}, "traffic is not shared by steps while watching"),
        ({"step_at": None}, "the step's weight is not in force yet"),
    ],
)
def test_outside_a_step_nothing_is_compared(changes: dict[str, Any], reason: str) -> None:
    assert Judged(EVEN, **changes).run(3, 15, 50, 50).load == reason


def test_what_the_plan_knows_is_said_by_the_plan() -> None:
    nine = Judged({"steps": [{"weight": 5}]}, weight=5)
    found = nine.run(3, 15, 50, 50).load
    assert (
        found == "at weight 5 a canary engine takes 5 % of the traffic and a baseline engine 95 %"
    )
    assert Judged(FRESH, weight=5).run(3, 15, 50, 50).load is None


def test_without_a_baseline_nothing_is_unequal() -> None:
    empty = ArmWindow((), 1)
    at_step = Judged(EVEN).release
    assert follow(Trail(), at_step, make_plan(at_step), {}, empty, None, T0_S) == (
        Trail(),
        Unlike(),
    )


def prefix(judged: Judged, looks: int, canary: float, baseline: float, each: int = 20) -> Unlike:
    """Hit ratios by arm; ``each`` requests of a hundred tokens a look."""
    found = Unlike()
    for n in range(looks + 1):
        tokens = n * each * 100
        hits = {"c0": tokens * canary, "b0": tokens * baseline}
        found = judged.look(
            *(
                page(name, n * 5.0, n * each, prefix_queries=tokens, prefix_hits=hits[name])
                for name in ("c0", "b0")
            )
        )
    return found


def test_caches_that_differ_are_told_with_both_ratios() -> None:
    found = prefix(Judged(EVEN), 5, 0.04, 0.62)
    assert found.load is None
    assert found.prefix == (
        "the canary found 4% of its prompts in the prefix cache and the baseline 62%"
    )


def test_a_few_requests_more_or_less_are_chance() -> None:
    assert prefix(Judged(EVEN), 1, 0.3, 0.5).prefix is None
    assert prefix(Judged(EVEN), 30, 0.3, 0.5).prefix is not None
    assert prefix(Judged(EVEN), 30, 0.42, 0.5).prefix is None


def test_a_cache_that_is_switched_off_finds_nothing() -> None:
    judged = Judged(EVEN)
    for n in range(10):
        on = page("b0", n * 5.0, n * 20, prefix_queries=n * 2000, prefix_hits=n * 1000)
        found = judged.look(page("c0", n * 5.0, n * 20, prefix_queries=0, prefix_hits=0), on)
    assert found.prefix is not None
    assert Judged(EVEN).run(9, 5, 20, 20, prefix_queries=0, prefix_hits=0).prefix is None


def test_a_cache_that_is_not_told_of_is_not_judged() -> None:
    judged = Judged(EVEN)
    for n in range(10):
        on = page("b0", n * 5.0, n * 20, prefix_queries=n * 2000, prefix_hits=n * 1000)
        assert judged.look(page("c0", n * 5.0, n * 20), on).prefix is None


def test_only_what_begins_with_a_prompt_minds_the_cache() -> None:
    look = Look(0.0, ArmWindow((), 1), ArmWindow((), 1), unequal_prefix="caches differ")
    for signal in (Signal.TTFT, Signal.PREFILL, Signal.E2E):
        assert look.of(signal).unequal_load == "caches differ"
    for signal in (Signal.TPOT, Signal.ITL):
        assert look.of(signal) is look
    both = replace(look, unequal_load="batch")
    assert both.of(Signal.TTFT).unequal_load == "batch"
