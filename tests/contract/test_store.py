"""What every database keeps to, by the store's own methods and against raw SQL."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Engine, Executable, delete, insert, update
from sqlalchemy.exc import IntegrityError

from canaryctl.common.errors import TemporaryError
from canaryctl.controller.artifact.schema import ArtifactDocument
from canaryctl.controller.errors import (
    ActiveReleaseError,
    AmbiguousRefError,
    EndedInstanceError,
    FencedError,
    FinalReleaseError,
    ImmutableArtifactError,
    InvariantError,
    NoGpuError,
    NotFoundError,
    SecondVerdictError,
    StaleWriteError,
    UnloggedChangeError,
)
from canaryctl.controller.model import (
    Artifact,
    Fault,
    GateRecord,
    GpuClaim,
    GpuLease,
    Instance,
    InstanceState,
    Lease,
    Release,
    ReleaseEvent,
    ReleaseKind,
    Verb,
)
from canaryctl.controller.states import IllegalTransitionError, Phase, Trigger
from canaryctl.controller.store import Store, open_store, tables, upgrade
from canaryctl.controller.store.engine import create_store_engine
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.runtimes.engines.base import EngineFault, Stage
from canaryctl.runtimes.placements.base import Handle

NOW = datetime(2026, 5, 4, 3, 2, 1, 123456, tzinfo=UTC)
LATER = NOW + timedelta(seconds=5)
DIGESTS = {letter: "sha256:" + letter * 64 for letter in "abcdef"}

DOCUMENT = ArtifactDocument.model_validate(
    {
        "apiVersion": "canaryctl/v1",
        "kind": "RuntimeArtifact",
        "name": "chat-small",
        "version": "1",
        "service": "chat",
        "runtime": {
            "engine": {"name": "simulated", "version": "1", "args": {"seed": 7, "faults": ["oom"]}},
            "gpu": {"count": 1, "memory_fraction": 0.3, "share": True},
            "model": {"id": "sim/small"},
            "graph": {"capture_sizes": [1, 2, 4]},
        },
        "secrets": {"TOKEN": {"from_env": "TOKEN"}},
        "rollout": {"steps": [{"weight": 5, "bake": "1m30s"}, {"weight": 50, "bake": "250ms"}]},
        "gates": [{"name": "ttft_p99", "max_regression": "12.5%"}, {"name": "oom", "max": 0}],
    }
)


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    upgrade(store_url)
    with open_store(SimpleNamespace(database_url=store_url, state_dir=Path())) as opened:
        yield opened


@pytest.fixture
def raw(store: Store, store_url: str) -> Iterator[Engine]:
    """The database without the store, as another program would use it."""
    engine = create_store_engine(store_url)
    yield engine
    engine.dispose()


@pytest.fixture
def fence(store: Store) -> Lease:
    lease = store.acquire("controller", "one", 60, NOW)
    assert lease is not None
    return lease


def artifact(letter: str = "a", **changes: Any) -> Artifact:
    return Artifact(
        **{
            "digest": DIGESTS[letter],
            "name": "chat-small",
            "version": "1",
            "service": "chat",
            "runtime": DOCUMENT.runtime,
            "created_at": NOW,
            **changes,
        }
    )


_ids = count(1)


def release(**changes: Any) -> Release:
    return Release(
        **{
            "id": f"r{next(_ids)}-x",
            "service": "chat",
            "kind": ReleaseKind.RELEASE,
            "digest": DIGESTS["a"],
            "document": DOCUMENT,
            "phase": Phase.PENDING,
            "revision": 0,
            "created_at": NOW,
            "phase_at": NOW,
            "deadline_at": NOW + timedelta(minutes=30),
            **changes,
        }
    )


def instance(name: str, **changes: Any) -> Instance:
    return Instance(
        **{
            "id": name,
            "service": "chat",
            "pool": "p",
            "digest": DIGESTS["a"],
            "state": InstanceState.REQUESTED,
            "created_at": NOW,
            "port": 9000,
            **changes,
        }
    )


def moved(trigger: Trigger | None, **changes: Any) -> ReleaseEvent:
    return ReleaseEvent(
        **{
            "release": "",
            "seq": 0,
            "at": LATER,
            "kind": "phase" if trigger else "hold",
            "message": f"by {trigger}",
            "trigger": trigger,
            **changes,
        }
    )


def result(name: str = "oom", outcome: Outcome = Outcome.PASSED, **changes: Any) -> GateResult:
    return GateResult(**{"name": name, "outcome": outcome, "reason": "seen", **changes})


@pytest.fixture
def started(store: Store) -> Release:
    """A pending release of the service chat."""
    store.register_artifact(artifact())
    store.ensure_service("chat", lambda: 8100, NOW)
    return store.create_release(release(), now=NOW, actor="ann")


# Artifacts


def test_an_artifact_comes_back_as_it_was(store: Store) -> None:
    wanted = artifact(eager_of=None)
    assert store.register_artifact(wanted) == wanted
    assert store.artifact("chat-small@1") == wanted
    assert store.artifacts() == store.artifacts("chat") == (wanted,)
    assert store.artifacts("other") == ()


def test_registering_again_returns_the_first(store: Store) -> None:
    store.register_artifact(artifact())
    assert store.register_artifact(artifact(created_at=LATER)).created_at == NOW
    assert len(store.artifacts()) == 1


def test_a_name_and_version_stand_for_one_runtime(store: Store) -> None:
    store.register_artifact(artifact("a"))
    with pytest.raises(ImmutableArtifactError, match="a new version"):
        store.register_artifact(artifact("b"))
    with pytest.raises(ImmutableArtifactError, match="for the service chat"):
        store.register_artifact(artifact("a", service="other"))
    assert store.artifacts() == (artifact("a"),)


def test_one_runtime_under_several_names(store: Store) -> None:
    first = store.register_artifact(artifact("a"))
    second = store.register_artifact(artifact("a", name="twin", service="other"))
    assert store.artifact("twin@1") == second
    assert store.artifact(DIGESTS["a"]) == first
    assert store.artifact(DIGESTS["a"], "other") == second


def test_artifacts_are_found_by_what_people_type(store: Store) -> None:
    one = store.register_artifact(artifact("a"))
    two = store.register_artifact(artifact("b", version="2"))
    eager = store.register_artifact(artifact("c", version="2-eager", eager_of=DIGESTS["b"]))
    cafe = store.register_artifact(artifact("d", name="cafe", version="1"))
    near = replace(artifact("e", name="near"), digest=DIGESTS["a"][:-1] + "0")
    store.register_artifact(near)
    assert store.artifact("chat-small") == two  # the latest that was not derived
    assert store.artifact("chat-small@1") == one
    assert store.artifact("chat-small@2-eager") == eager
    assert store.artifact("sha256:bbbb") == store.artifact("bbbbbb") == two
    assert store.artifact("cafe") == cafe  # a name before a digest
    assert store.artifact(DIGESTS["a"]) == one
    with pytest.raises(AmbiguousRefError, match="near@1"):
        store.artifact("aaaa")
    for nothing in ("", "bbb", "sha256:", "chat%", "chat-small@3", "sha256:ffff"):
        with pytest.raises(NotFoundError):
            store.artifact(nothing)
    with pytest.raises(NotFoundError, match="of the service other"):
        store.artifact("chat-small", "other")


# Services


def test_services(store: Store, fence: Lease, started: Release) -> None:
    chat = store.service("chat")
    assert (chat.port, chat.created_at, chat.stable_digest) == (8100, NOW, None)
    assert store.ensure_service("chat", lambda: 1 // 0, LATER) == chat
    ports = iter((8100, 8100, 8101))
    other = store.ensure_service("another", lambda: next(ports), NOW)
    assert other.port == 8101
    assert store.services() == (other, chat)
    with pytest.raises(TemporaryError, match="no port"):
        store.ensure_service("third", lambda: 8100, NOW)
    with pytest.raises(NotFoundError):
        store.service("third")
    for replicas in (2, 3):
        store.set_stable("chat", DIGESTS["a"], "pool", replicas, started.id, fence=fence, now=NOW)
        chat = store.service("chat")
        assert (chat.stable_digest, chat.stable_pool) == (DIGESTS["a"], "pool")
        assert (chat.stable_replicas, chat.stable_release) == (replicas, started.id)
    with pytest.raises(InvariantError):
        store.set_stable("chat", DIGESTS["f"], "pool", 1, started.id, fence=fence, now=NOW)
    assert store.service("chat") == chat


# Releases


def test_a_release_comes_back_as_it_was(store: Store, started: Release) -> None:
    assert store.release(started.id) == started
    assert store.release(started.id[:2]) == started
    assert store.active_release("chat") == started
    assert store.active_releases() == store.releases() == (started,)
    (created,) = store.events(started.id)
    assert (created.seq, created.actor, created.to_phase) == (1, "ann", Phase.PENDING)
    assert store.replay_phase(started.id) is Phase.PENDING


def test_one_active_release_for_a_service(store: Store, started: Release, fence: Lease) -> None:
    with pytest.raises(ActiveReleaseError, match=rf"{started.id}.*pending.*--supersede"):
        store.create_release(release(), now=NOW, actor="ben")
    store.ensure_service("other", lambda: 8101, NOW)
    store.create_release(release(service="other"), now=NOW, actor="ben")
    end(store, started, fence)
    second = store.create_release(release(), now=NOW, actor="ben")
    assert store.active_release("chat") == second
    assert [found.id for found in store.releases("chat")] == [second.id, started.id]
    assert [found.id for found in store.releases(limit=1)] == [second.id]


def test_a_release_needs_its_service_and_artifact(store: Store) -> None:
    with pytest.raises(NotFoundError, match="service"):
        store.create_release(release(), now=NOW, actor="ann")
    store.ensure_service("chat", lambda: 8100, NOW)
    with pytest.raises(NotFoundError, match="artifact"):
        store.create_release(release(), now=NOW, actor="ann")
    store.register_artifact(artifact())
    with pytest.raises(UnloggedChangeError):
        store.create_release(release(phase=Phase.WATCHING), now=NOW, actor="ann")
    assert store.releases() == ()


def test_releases_are_found_by_the_start_of_an_id(store: Store, started: Release) -> None:
    store.ensure_service("other", lambda: 8101, NOW)
    twin = store.create_release(release(id=started.id + "2", service="other"), now=NOW, actor="ann")
    assert store.release(started.id) == started
    assert store.release(twin.id) == twin
    with pytest.raises(AmbiguousRefError, match=twin.id):
        store.release(started.id[:-1])
    for nothing in ("", "_", "%", "zz"):
        with pytest.raises(NotFoundError):
            store.release(nothing)
    with pytest.raises(NotFoundError):
        store.events("zz")


def end(store: Store, running: Release, fence: Lease) -> Release:
    return store.commit(
        replace(running, phase=Phase.ROLLED_BACK, reason="aborted", rollback_target="none"),
        [moved(Trigger.ABORT), moved(Trigger.RESTORED)],
        fence=fence,
        now=LATER,
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


# Requests


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


# Instances and GPUs


def test_an_instance_comes_back_as_it_was(store: Store, started: Release, fence: Lease) -> None:
    added = store.add_instance(instance("i1"), fence=fence, now=NOW, gpus=None)
    assert added == store.instance("i1") == instance("i1")
    wanted = replace(
        added,
        state=InstanceState.STARTING,
        handle=Handle("i1", DIGESTS["a"], 4711, 1770000000.125, 9000, "/tmp/i1.log"),  # noqa: S108
        stages={Stage.STARTED: NOW, Stage.LOADED: LATER},
        facts={"kv_tokens": 12, "edges": [1.5, float("inf")]},
        restarts=2,
        not_before=LATER,
        stop_at=LATER,
        reason="restarted",
    )
    assert store.update_instance(wanted, fence=fence, now=LATER) == wanted
    assert store.instance("i1") == wanted
    other = replace(instance("i2", pool="q", port=9001), created_at=LATER)
    store.add_instance(other, fence=fence, now=NOW, gpus=None)
    dead = replace(wanted, state=InstanceState.DEAD, exit_code=0)
    assert store.update_instance(dead, fence=fence, now=LATER).ended_at == LATER
    assert [found.id for found in store.instances()] == ["i1", "i2"]
    assert [found.id for found in store.instances(live_only=True)] == ["i2"]
    assert [found.id for found in store.instances("chat", "p")] == ["i1"]
    assert store.instances("other") == ()
    assert store.used_ports() == {8100, 9001}
    with pytest.raises(EndedInstanceError, match="dead"):
        store.update_instance(wanted, fence=fence, now=LATER)
    with pytest.raises(NotFoundError):
        store.update_instance(instance("i3"), fence=fence, now=LATER)
    with pytest.raises(NotFoundError):
        store.instance("i3")
    with pytest.raises(InvariantError):
        store.add_instance(instance("i1"), fence=fence, now=NOW, gpus=None)


def claim(*candidates: int, count: int = 1, fraction: float = 0.9, share: bool = False) -> GpuClaim:
    return GpuClaim("local", candidates, count, fraction, share)


@pytest.fixture
def run(store: Store, started: Release, fence: Lease) -> Callable[..., Instance]:
    """Add an instance with GPUs, and have it ready unless told otherwise."""

    def add(name: str, gpus: GpuClaim, state: InstanceState = InstanceState.READY) -> Instance:
        added = store.add_instance(instance(name), fence=fence, now=NOW, gpus=gpus)
        return store.update_instance(replace(added, state=state), fence=fence, now=NOW)

    return add


def test_gpus_are_leased_and_freed_with_the_instance(
    store: Store, run: Callable[..., Instance], fence: Lease
) -> None:
    one = run("i1", claim(0, 1, 2, count=2))
    assert one.gpus == (0, 1)
    two = run("i2", claim(0, 1, 2))
    assert two.gpus == (2,)
    assert store.leased_gpus() == (
        GpuLease("local", 0, "i1", 0.9, shared=False),
        GpuLease("local", 1, "i1", 0.9, shared=False),
        GpuLease("local", 2, "i2", 0.9, shared=False),
    )
    with pytest.raises(NoGpuError, match=r"GPU 0: held by i1.*GPU 2: held by i2"):
        run("i3", claim(0, 1, 2))
    with pytest.raises(NotFoundError):
        store.instance("i3")
    elsewhere = GpuClaim("simulated", (0,), 1, 0.9, share=False)
    assert run("i4", elsewhere).gpus == (0,)
    for state in (InstanceState.STOPPING, InstanceState.STOPPED):
        store.update_instance(replace(one, state=state), fence=fence, now=LATER)
        taken = {lease.gpu for lease in store.leased_gpus() if lease.inventory == "local"}
        assert taken == ({0, 1, 2} if state is InstanceState.STOPPING else {2})
    assert run("i5", claim(0, 1, 2)).gpus == (0,)


def test_gpus_are_shared_as_far_as_fractions_go(run: Callable[..., Instance]) -> None:
    for number, fraction in enumerate((0.7, 0.2, 0.1)):
        assert run(f"i{number}", claim(0, fraction=fraction, share=True)).gpus == (0,)
    with pytest.raises(NoGpuError, match=r"held by i0 \(0.7\).*0.01 more does not fit"):
        run("over", claim(0, fraction=0.01, share=True))
    with pytest.raises(NoGpuError, match="does not share"):
        run("alone", claim(0, fraction=0.01))
    assert run("beside", claim(0, 1, fraction=0.1, share=True)).gpus == (1,)
    assert run("emptiest", claim(0, 1, 2, fraction=0.1, share=True)).gpus == (2,)


@pytest.mark.parametrize(
    ("state", "word"),
    [
        (InstanceState.REQUESTED, "starting"),
        (InstanceState.STARTING, "starting"),
        (InstanceState.STOPPING, "stopping"),
    ],
)
def test_starts_on_one_gpu_are_serialised(
    run: Callable[..., Instance], state: InstanceState, word: str
) -> None:
    run("i1", claim(0, fraction=0.3, share=True), state)
    with pytest.raises(NoGpuError, match=f"another instance is {word} on it .i1."):
        run("i2", claim(0, fraction=0.3, share=True))
    assert run("i3", claim(0, 1, fraction=0.3, share=True)).gpus == (1,)


# Evidence


def test_evidence_is_kept_word_for_word(store: Store, started: Release) -> None:
    lines = [f'metric{{le="{n}"}} {n} é\n' for n in range(450)]
    for number, line in enumerate(lines):
        store.add_evidence(
            started.id, NOW, "i1", "http://127.0.0.1/metrics", line, {"n": number, "x": [None]}
        )
    found = list(store.evidence(started.id))
    assert [entry.raw for entry in found] == lines
    assert [entry.values["n"] for entry in found] == list(range(450))
    assert (found[0].at, found[0].instance) == (NOW, "i1")
    store.add_evidence(started.id, NOW, "i1", "s", "", {"x": [float("inf"), -1e-300]})
    assert list(store.evidence(started.id))[-1].values == {"x": [float("inf"), -1e-300]}
    assert list(store.evidence("zz")) == []
    with pytest.raises(InvariantError):
        store.add_evidence("zz", NOW, "i1", "s", "", {})


def test_a_fault_is_kept_once(store: Store, started: Release) -> None:
    fault = Fault(started.id, "i1", EngineFault.OOM, NOW, "CUDA out of memory")
    assert store.add_fault(fault)
    assert not store.add_fault(replace(fault, at=LATER, detail="again"))
    exited = replace(fault, kind=EngineFault.EXIT, at=LATER)
    assert store.add_fault(exited)
    assert store.faults(started.id) == (fault, exited)


def test_a_look_has_one_verdict(store: Store, started: Release) -> None:
    failed = result(outcome=Outcome.FAILED, value=0.25, details={"edge": [1, float("inf")]})
    for _ in range(2):
        store.add_measurement(started.id, "oom", NOW, failed)
    with pytest.raises(SecondVerdictError, match=r"failed.*passed"):
        store.add_measurement(started.id, "oom", NOW, result())
    store.add_measurement(started.id, "exit", NOW, result("exit"))
    store.add_measurement(started.id, "oom", LATER, result())
    looks = store.measurements(started.id, "oom")
    assert [(look.at, look.result) for look in looks] == [(NOW, failed), (LATER, result())]
    assert [look.gate for look in store.measurements(started.id)] == ["exit", "oom", "oom"]


def test_a_gate_resumes_bit_for_bit(store: Store, started: Release, fence: Lease) -> None:
    state = {"e": 0.1 + 0.2, "tiny": 5e-324, "inf": float("inf"), "big": 2**70, "n": [[], {}]}
    record = GateRecord(started.id, "ttft_p99", NOW, state, result("ttft_p99", value=1 / 3))
    store.commit(started, [], fence=fence, now=NOW, gates=[record])
    assert store.gate_records(started.id) == (record,)


# Leases and the fence


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def test_a_lease_has_one_holder(store: Store) -> None:
    one = store.acquire("tick", "one", 10, NOW)
    assert one == Lease("tick", "one", 1, at(10)) == store.holder("tick", at(9))
    assert store.acquire("tick", "two", 10, at(9)) is None
    assert store.acquire("other", "two", 10, at(9)) is not None
    again = store.acquire("tick", "one", 10, at(5))
    assert again == Lease("tick", "one", 1, at(15))
    renewed = store.renew(again, 10, at(8))
    assert renewed == Lease("tick", "one", 1, at(18))
    assert store.holder("tick", at(18)) is None
    two = store.acquire("tick", "two", 10, at(18))
    assert two == Lease("tick", "two", 2, at(28))
    with pytest.raises(FencedError, match="lost; now: two"):
        store.renew(renewed, 10, at(19))
    store.release_lease(renewed)  # lost already: nothing happens
    assert store.holder("tick", at(19)) == two
    store.release_lease(two)
    assert store.holder("tick", at(19)) is None
    assert store.acquire("tick", "two", 10, at(19)) == Lease("tick", "two", 3, at(29))
    with pytest.raises(FencedError, match="expired"):
        store.renew(Lease("tick", "two", 3, at(29)), 10, at(29))
    with pytest.raises(FencedError, match="nobody"):
        store.renew(Lease("none", "two", 3, at(29)), 10, at(20))


def test_of_many_that_want_a_lease_one_gets_it(store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda n: store.acquire("tick", str(n), 10, NOW), range(16)))
    assert len([lease for lease in got if lease is not None]) == 1


@pytest.mark.parametrize(
    "lost", ["expired", "taken over", "taken back", "given back", "never held"]
)
def test_without_the_lease_nothing_lands(
    store: Store, started: Release, fence: Lease, lost: str
) -> None:
    kept = store.add_instance(instance("i1"), fence=fence, now=NOW, gpus=claim(0))
    then = at(30)
    match lost:
        case "expired":
            then = at(60)
        case "taken over":
            then = at(61)
            assert store.acquire("controller", "two", 600, then) is not None
        case "taken back":  # the same holder has it again, under a token of its own
            store.release_lease(fence)
            then = NOW
            assert store.acquire("controller", "one", 600, then) is not None
        case "given back":
            store.release_lease(fence)
        case "never held":
            fence = replace(fence, name="no such lease")
    writes: list[Callable[[], object]] = [
        lambda: store.commit(replace(started, reason="x"), [], fence=fence, now=then),
        lambda: store.set_stable("chat", DIGESTS["a"], "p", 1, None, fence=fence, now=then),
        lambda: store.add_instance(instance("i2"), fence=fence, now=then, gpus=claim(1)),
        lambda: store.update_instance(
            replace(kept, state=InstanceState.DEAD), fence=fence, now=then
        ),
    ]
    for write in writes:
        with pytest.raises(FencedError):
            write()
    assert store.release(started.id) == started
    assert store.service("chat").stable_digest is None
    assert store.instances() == (kept,)
    assert [lease.gpu for lease in store.leased_gpus()] == [0]


# What the database refuses by itself


def test_times_are_utc_and_never_naive(store: Store, started: Release, fence: Lease) -> None:
    elsewhere = NOW.astimezone(timezone(timedelta(hours=5, minutes=30)))
    stored = store.commit(replace(started, step_at=elsewhere), [], fence=fence, now=NOW)
    found = store.release(stored.id).step_at
    assert found == NOW
    assert found.utcoffset() == timedelta(0)
    with pytest.raises(Exception, match="naive"):
        store.add_evidence(started.id, NOW.replace(tzinfo=None), "i1", "s", "", {})


def test_invariants_hold_against_any_program(
    store: Store, started: Release, fence: Lease, raw: Engine
) -> None:
    ended = end(store, started, fence)
    current = store.create_release(release(), now=NOW, actor="ann")
    store.add_instance(instance("i1"), fence=fence, now=NOW, gpus=claim(0))
    store.add_instance(instance("i2"), fence=fence, now=NOW, gpus=claim(1, share=True))
    store.add_instance(instance("i3"), fence=fence, now=NOW, gpus=None)
    store.update_instance(instance("i3", state=InstanceState.DEAD), fence=fence, now=NOW)
    store.add_measurement(current.id, "oom", NOW, result())
    releases, instances, gpus = tables.releases, tables.instances, tables.gpu_leases

    def lease(gpu: int, fraction: float, *, shared: bool) -> Executable:
        return insert(gpus).values(
            inventory="local", gpu=gpu, instance="i3", fraction=fraction, shared=shared
        )

    a_final = update(releases).where(releases.c.id == ended.id)
    a_current = update(releases).where(releases.c.id == current.id)
    refused: list[Executable] = [
        a_final.values(phase=Phase.PROGRESSING, finished_at=None),
        a_final.values(phase=Phase.SUCCEEDED),
        a_final.values(finished_at=None),
        a_current.values(phase="asleep"),
        a_current.values(kind="wish"),
        a_current.values(weight=101),
        a_current.values(weight=-1),
        a_current.values(phase=Phase.SUCCEEDED),  # without finished_at
        a_current.values(digest=DIGESTS["f"]),
        update(instances).where(instances.c.id == "i3").values(state="ready", ended_at=None),
        update(instances).where(instances.c.id == "i1").values(state="lost"),
        update(instances).where(instances.c.id == "i1").values(state="dead"),
        lease(0, 0.05, shared=True),
        lease(1, 0.05, shared=False),
        lease(1, 0.2, shared=True),
        lease(2, 1.5, shared=False),
        update(gpus).values(fraction=0.1),
        update(tables.leases).values(token=0),
        update(tables.leases).values(holder="two"),
        delete(tables.leases),
        delete(tables.services),
    ]
    for table in (
        tables.runtimes,
        tables.artifacts,
        tables.release_events,
        tables.measurements,
    ):
        changed = {column.name: column for column in table.primary_key.columns}
        refused += [update(table).values(changed), delete(table)]
    for statement in refused:
        with pytest.raises(IntegrityError), raw.begin() as connection:
            connection.execute(statement)
    second: dict[str, Any] = {
        **{column.name: getattr(current, column.name, None) for column in releases.columns},
        "serial": 99,
        "id": "second",
        "document": {},
    }
    with pytest.raises(IntegrityError), raw.begin() as connection:
        connection.execute(insert(releases).values(second))
    with raw.begin() as connection:  # the same statement for a service that has none
        connection.execute(insert(tables.services).values(name="other", port=8101, created_at=NOW))
        connection.execute(insert(releases).values({**second, "service": "other"}))
        connection.execute(lease(1, 0.1, shared=True))
        connection.execute(a_current.values(weight=100))
