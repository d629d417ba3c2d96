"""Replay: the stored looks say every verdict again, whatever happened to the controller."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import update

from canaryctl.controller.replay import replay
from canaryctl.controller.store import tables
from canaryctl.controller.store.columns import dumps
from canaryctl.gates.base import Event
from canaryctl.gates.outcome import Outcome
from tests.support.judging import Judged, judged


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Judged]:
    with judged(tmp_path) as run:
        yield run


def traffic(run: Judged, random_: random.Random, slower: float = 1.0, requests: int = 60) -> None:
    for _ in range(requests):
        run.baseline.answer(random_.lognormvariate(-1.7, 0.45))
        run.canary.answer(random_.lognormvariate(-1.7, 0.45) * slower)


def test_a_release_replays_to_the_same_failure(run: Judged) -> None:
    draws = random.Random(5)
    while True:
        traffic(run, draws, slower=2.0)
        found = run.tick()
        if found.verdict.outcome is Outcome.FAILED:
            break
        assert run.at < 3600
    again = run.replay()
    assert again.difference is None
    assert again.results["ttft_p90"].outcome is Outcome.FAILED
    assert again.looks > 20
    stored = {r.gate: r.result for r in run.store.gate_records(run.release.id)}
    # JSON has no tuples: what is compared is what is stored.
    assert {n: r.reason for n, r in again.results.items()} == {
        n: r.reason for n, r in stored.items()
    }


def test_it_agrees_after_restarts_lost_commits_outages_and_resets(run: Judged) -> None:
    draws = random.Random(6)
    for number in range(40):
        traffic(run, draws)
        run.source.down = number in (11, 12)
        run.tick(commits=number % 7 != 3)
        if number % 9 == 5:
            run.restart()
        if number == 20:
            run.canary.counts[3] = 0
        run.tick(after_s=0.25)  # between two looks only the hard gates are asked
        run.progress_checks += 1
    run.tick(Event("oom", "r1-0", 1.0, "CUDA out of memory"), after_s=0.25)
    again = run.replay()
    assert again.difference is None
    assert again.results["oom"].outcome is Outcome.FAILED
    looks = list(run.store.looks(run.release.id))
    assert [look.seq for look in looks] == list(range(1, len(looks) + 1))
    assert [m.gate for m in looks[-1].measurements] == ["oom"]  # what changed between two looks
    assert looks[-1].outcome is Outcome.FAILED


def test_a_look_whose_commit_failed_is_taken_again_with_nothing_lost(
    run: Judged, tmp_path: Path
) -> None:
    (tmp_path / "whole").mkdir()
    with judged(tmp_path / "whole") as whole:
        for number in range(30):
            for each in (run, whole):
                traffic(each, random.Random(number))
                each.tick(commits=each is whole or number % 3 != 1)
                if number % 3 == 1 and each is run:
                    each.tick(after_s=0)
        for each in (run, whole):
            assert each.replay().agrees
        assert run.store.gate_records("r1") == whole.store.gate_records("r1")


def test_between_looks_a_hard_gate_counts_nothing_that_is_not_recorded(run: Judged) -> None:
    for _ in range(5):
        run.tick(after_s=0.25)
    records = {r.gate: r for r in run.store.gate_records("r1")}
    assert records["engine_exit"].state["looks"] == 1
    assert run.replay().agrees


@pytest.mark.parametrize("what", ["look", "result", "state", "verdict", "standing"])
def test_the_first_difference_is_told(run: Judged, what: str) -> None:
    draws = random.Random(7)
    for _ in range(6):
        traffic(run, draws)
        run.tick()
    terms = run.store.gate_terms("r1")
    assert terms is not None
    looks, standing = list(run.store.looks("r1")), list(run.store.gate_records("r1"))
    third = looks[3]
    *others, last = third.measurements
    match what:
        case "look":
            baseline = third.look.baseline
            assert baseline is not None
            swapped = replace(third.look, canary=baseline, baseline=third.look.canary)
            third = replace(third, look=swapped)
        case "result":
            last = replace(last, result=replace(last.result, outcome=Outcome.FAILED))
        case "state":
            last = replace(last, state_digest="0" * 64)
        case "verdict":
            third = replace(third, promotable=not third.promotable)
        case _:
            state = {**standing[0].state, "looks": 99}
            standing[0] = replace(standing[0], state=state)
    if what != "look":
        third = replace(third, measurements=(*others, last))
    looks[3] = third
    found = replay(terms, looks, standing).difference
    assert found is not None
    if what == "standing":
        assert (found.look, found.what) == (6, "state to resume from")
        return
    assert found.look == 4
    if what == "result":
        assert (found.what, found.recorded, found.gate) == ("outcome", "failed", last.gate)
    assert found.gate in str(found)


def test_terms_are_those_of_the_recording(run: Judged) -> None:
    """A version that shares α otherwise goes on with the release as it was begun."""
    terms = run.store.gate_terms("r1")
    assert terms is not None
    other = replace(terms, context=replace(terms.context, gates_total=5))
    traffic(run, random.Random(8))
    run.tick()
    traffic(run, random.Random(9))
    run.tick()
    assert not replay(other, run.store.looks("r1"), run.store.gate_records("r1")).agrees
    assert run.replay().agrees


def test_what_was_recorded_cannot_be_changed(run: Judged) -> None:
    run.tick()
    change = update(tables.looks).values(outcome="passed", look=dumps({}).encode())
    with pytest.raises(Exception, match="never changed"), run.store._database.writing() as c:
        c.execute(change)
