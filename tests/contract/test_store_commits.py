"""A release's decisions: written whole or not at all, and requests answered by them."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from canaryctl.controller.errors import (
    FinalReleaseError,
    InvariantError,
    NotFoundError,
    StaleWriteError,
    UnloggedChangeError,
)
from canaryctl.controller.model import GateRecord, Lease, Release, Verb
from canaryctl.controller.states import IllegalTransitionError, Phase, Trigger
from canaryctl.controller.store import Store
from tests.support.stored import (
    DIGESTS,
    LATER,
    NOW,
    end,
    moved,
    release,
    result,
)


def test_a_commit_writes_all_of_a_decision(store: Store, started: Release, fence: Lease) -> None:
    request = store.add_request(started.id, Verb.PAUSE, "ann", "lunch", NOW)
    records = [
        GateRecord(started.id, name, LATER, {"looks": 1}, result(name)) for name in ("oom", "exit")
    ]
    wanted = replace(
        started,
        phase=Phase.PREFLIGHT,
        phase_at=LATER,
        deadline_at=LATER,
        previous_digest=DIGESTS["a"],
        previous_pool="old",
        previous_replicas=3,
        step=2,
        step_at=LATER,
        weight=55,
        reason="why",
        rollback_target="previous",
        hold="for samples",
    )
    event = moved(Trigger.START, actor="ann", data={"n": [1, {"x": None}]})
    stored = store.commit(
        wanted,
        [event, moved(None, message="a note")],
        fence=fence,
        now=LATER,
        gates=records,
        answers={request.id: "paused"},
        stable=(DIGESTS["a"], "pool", 2, started.id),
    )
    assert stored == replace(wanted, revision=1) == store.release(started.id)
    _, move, note = store.events(started.id)
    assert move == replace(
        event, release=started.id, seq=2, from_phase=Phase.PENDING, to_phase=Phase.PREFLIGHT
    )
    assert (note.seq, note.message, note.from_phase) == (3, "a note", None)
    assert store.replay_phase(started.id) is Phase.PREFLIGHT
    assert store.gate_records(started.id) == (records[1], records[0])
    (answered,) = store.requests(started.id)
    assert answered == replace(request, answered_at=LATER, answer="paused")
    assert store.service("chat").stable_pool == "pool"

    newer = replace(records[0], state={"looks": 2}, at=LATER + timedelta(seconds=1))
    store.commit(stored, [], fence=fence, now=LATER, gates=[newer])
    assert store.gate_records(started.id) == (records[1], newer)


@pytest.mark.parametrize("at_fault", ["revision", "events", "answers", "stable", "gates"])
def test_a_commit_that_fails_writes_nothing(
    store: Store, started: Release, fence: Lease, at_fault: str
) -> None:
    wanted = replace(started, phase=Phase.PREFLIGHT, reason="half done")
    arguments: dict[str, Any] = {
        "gates": [GateRecord(started.id, "oom", LATER, {}, result())],
        "stable": (DIGESTS["a"], "pool", 1, started.id),
    }
    events = [moved(Trigger.START)]
    error: type[Exception] = StaleWriteError
    match at_fault:
        case "revision":
            wanted = replace(wanted, revision=7)
        case "events":
            events, error = [moved(Trigger.START), moved(Trigger.DONE)], IllegalTransitionError
        case "answers":
            arguments["answers"] = {4711: "to nobody"}
        case "stable":
            arguments["stable"], error = (DIGESTS["f"], "pool", 1, None), InvariantError
        case "gates":
            arguments["gates"], error = arguments["gates"] * 2, InvariantError
    with pytest.raises(error):
        store.commit(wanted, events, fence=fence, now=LATER, **arguments)
    assert store.release(started.id) == started
    assert len(store.events(started.id)) == 1
    assert store.gate_records(started.id) == ()
    assert store.service("chat").stable_digest is None


def test_a_phase_changes_only_by_logged_triggers(
    store: Store, started: Release, fence: Lease
) -> None:
    preflight = replace(started, phase=Phase.PREFLIGHT)
    for wanted, events in (
        (preflight, []),
        (preflight, [moved(None, from_phase=Phase.PENDING, to_phase=Phase.PREFLIGHT)]),
        (preflight, [moved(Trigger.START, to_phase=Phase.WARMING)]),
        (preflight, [moved(Trigger.START, from_phase=Phase.WARMING)]),
        (started, [moved(Trigger.START)]),
    ):
        with pytest.raises(UnloggedChangeError):
            store.commit(wanted, events, fence=fence, now=NOW)
    with pytest.raises(NotFoundError):
        store.commit(release(), [], fence=fence, now=NOW)


def test_a_final_release_stays_final(store: Store, started: Release, fence: Lease) -> None:
    request = store.add_request(started.id, Verb.PROMOTE, "ann", "now", NOW)
    ended = end(store, started, fence)
    assert ended.finished_at == LATER
    (answered,) = store.requests(started.id)
    assert (answered.id, answered.answered_at) == (request.id, LATER)
    assert "rolled_back" in (answered.answer or "")
    with pytest.raises(FinalReleaseError, match="rolled_back"):
        store.add_request(started.id, Verb.ABORT, "ann", "late", LATER)
    for trigger in Trigger:
        with pytest.raises(IllegalTransitionError):
            store.commit(
                replace(ended, phase=Phase.ROLLING_BACK), [moved(trigger)], fence=fence, now=LATER
            )
    noted = store.commit(ended, [moved(None)], fence=fence, now=LATER + timedelta(seconds=1))
    assert noted.finished_at == LATER
    assert store.active_releases() == ()


def test_weights_are_per_cent(store: Store, started: Release, fence: Lease) -> None:
    for weight in (-1, 101):
        with pytest.raises(InvariantError):
            store.commit(replace(started, weight=weight), [], fence=fence, now=NOW)
    assert store.release(started.id).revision == 0


def test_of_many_writers_on_one_revision_one_lands(
    store: Store, started: Release, fence: Lease
) -> None:
    def write(number: int) -> str:
        try:
            store.commit(
                replace(started, reason=str(number)),
                [moved(None, message=str(number))],
                fence=fence,
                now=NOW,
            )
        except StaleWriteError:
            return "stale"
        return str(number)

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(write, range(16)))
    (landed,) = (outcome for outcome in outcomes if outcome != "stale")
    assert store.release(started.id).reason == landed
    assert [event.message for event in store.events(started.id)[1:]] == [landed]


def test_requests_are_answered_once(store: Store, started: Release, fence: Lease) -> None:
    first = store.add_request(started.id, Verb.PAUSE, "ann", "", NOW)
    second = store.add_request(started.id, Verb.RESUME, "ben", "go", LATER)
    assert store.pending_requests(started.id) == (first, second)
    stored = store.commit(started, [], fence=fence, now=LATER, answers={first.id: "done"})
    assert store.pending_requests(started.id) == (second,)
    with pytest.raises(StaleWriteError):
        store.commit(stored, [], fence=fence, now=LATER, answers={first.id: "again"})
    assert [request.answer for request in store.requests(started.id)] == ["done", None]
    with pytest.raises(NotFoundError):
        store.add_request("zz", Verb.PAUSE, "ann", "", NOW)
