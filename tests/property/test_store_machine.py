"""Two controllers, several services, crashes anywhere: what the store says stays true.

A plain model runs beside the database. Each rule works out what must happen, does it, and
the invariants compare all that is stored.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from sqlalchemy import Connection, event

from canaryctl.common.errors import CanaryctlError
from canaryctl.controller.artifact.schema import ArtifactDocument
from canaryctl.controller.errors import (
    ActiveReleaseError,
    EndedInstanceError,
    FencedError,
    FinalReleaseError,
    InvariantError,
    NoGpuError,
    StaleWriteError,
)
from canaryctl.controller.model import (
    LIVE_STATES,
    Artifact,
    GateRecord,
    GpuClaim,
    Instance,
    InstanceState,
    Lease,
    Release,
    ReleaseEvent,
    ReleaseKind,
    Verb,
)
from canaryctl.controller.states import (
    ACTIVE,
    FINAL,
    TRANSITIONS,
    IllegalTransitionError,
    Phase,
    Trigger,
)
from canaryctl.controller.store import Store, upgrade
from canaryctl.controller.store.engine import create_store_engine
from canaryctl.gates.outcome import GateResult, Outcome

START = datetime(2026, 1, 1, tzinfo=UTC)
TTL_S = 30
SERVICES = ("chat", "code")
HOLDERS = ("one", "two")
DIGEST = "sha256:" + "a" * 64
DOCUMENT = ArtifactDocument.model_validate(
    {
        "apiVersion": "canaryctl/v1",
        "kind": "RuntimeArtifact",
        "name": "chat-small",
        "version": "1",
        "service": "chat",
        "runtime": {"engine": {"name": "simulated", "version": "1"}, "model": {"id": "m"}},
        "gates": [{"name": "oom", "max": 0}],
    }
)


def crashes(statements: int) -> st.SearchStrategy[int | None]:
    """Mostly none; before one of so many statements, or 0: in the commit."""
    return st.sampled_from((None,) * (2 * statements) + tuple(range(statements + 1)))


class Crash(BaseException):
    """The process ends here."""


class CrashPoint:
    """Ends a writing transaction before its n-th statement, or while it commits."""

    def __init__(self) -> None:
        self.before_statement: int | None = None
        self.in_commit = False

    def arm(self, at: int | None) -> None:
        """``at``: before that statement; 0: in the commit; None: not at all."""
        self.before_statement = at or None
        self.in_commit = at == 0

    def on_statement(self, *_: object) -> None:
        if self.before_statement is not None:
            self.before_statement -= 1
            if self.before_statement == 0:
                self.arm(None)
                raise Crash

    def on_commit(self, _: Connection) -> None:
        if self.in_commit:
            self.arm(None)
            raise Crash


@cache
def _empty() -> Path:
    """A database with the service and artifact rows that every run starts from."""
    path = Path(tempfile.mkdtemp(prefix="canaryctl-store-")) / "empty.db"
    upgrade(f"sqlite:///{path}")
    engine = create_store_engine(f"sqlite:///{path}")
    store = Store(engine)
    store.register_artifact(Artifact(DIGEST, "chat-small", "1", "chat", DOCUMENT.runtime, START))
    for port, service in enumerate(SERVICES, start=8100):
        store.ensure_service(service, lambda port=port: port, START)  # type: ignore[misc]
    store.close()
    return path


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory(prefix="canaryctl-store-")
        self.path = Path(self.directory.name) / "canaryctl.db"
        shutil.copy(_empty(), self.path)
        self.crash_point = CrashPoint()
        self.open()
        self.now = START
        self.releases: dict[str, Release] = {}
        self.logged: dict[str, int] = {}  # events
        self.instances: dict[str, Instance] = {}
        self.shares: dict[str, tuple[int, float, bool]] = {}  # live leases: GPU, fraction, shared
        self.stable: dict[str, str | None] = dict.fromkeys(SERVICES)
        self.lease: Lease | None = None  # in the database
        self.believed: dict[str, Lease] = {}  # what each holder thinks it has
        self.unanswered: set[int] = set()

    def open(self) -> None:
        engine = create_store_engine(f"sqlite:///{self.path}")
        event.listen(engine, "before_cursor_execute", self.crash_point.on_statement)
        event.listen(engine, "commit", self.crash_point.on_commit)
        self.store = Store(engine)

    def teardown(self) -> None:
        self.store.close()
        self.directory.cleanup()

    @contextmanager
    def crashing(self, at: int | None) -> Iterator[None]:
        self.crash_point.arm(at)
        try:
            yield
        finally:
            self.crash_point.arm(None)

    def attempt(
        self, write: Callable[[], Any], expected: type[Exception] | None, crash: int | None
    ) -> Any:
        """What ``write`` returned, or None when it rightly failed or the process ended in it."""
        written, failure = None, None
        with self.crashing(crash):
            try:
                written = write()
            except Crash:
                self.store.close()
                self.open()
                return None
            except CanaryctlError as error:
                failure = error
        found = None if failure is None else type(failure)
        assert found is expected, f"expected {expected}, found {failure!r}"
        return written

    def fenced_out(self, holder: str) -> bool:
        believed = self.believed[holder]
        return (
            self.lease is None
            or (self.lease.holder, self.lease.token) != (believed.holder, believed.token)
            or self.lease.expires_at <= self.now
        )

    def actor(self, data: st.DataObject) -> str:
        """Somebody who believes to hold the lease, mostly rightly."""
        rightly = [holder for holder in self.believed if not self.fenced_out(holder)]
        return data.draw(st.sampled_from(rightly * 5 + sorted(self.believed)))

    # Time and leases

    @initialize(service=st.sampled_from(SERVICES))
    def begin(self, service: str) -> None:
        self.acquire(HOLDERS[0])
        self.create(service, None)

    @rule(seconds=st.sampled_from((1, 5, 10, 31)))
    def time_passes(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)

    @rule(holder=st.sampled_from(HOLDERS))
    def acquire(self, holder: str) -> None:
        in_force = self.lease is not None and self.lease.expires_at > self.now
        got = self.store.acquire("controller", holder, TTL_S, self.now)
        if in_force and self.lease is not None and self.lease.holder not in (holder, ""):
            assert got is None
            return
        assert got is not None
        if self.lease is not None:
            same = in_force and self.lease.holder == holder
            assert got.token == self.lease.token if same else got.token > self.lease.token
        self.lease = self.believed[holder] = got

    @precondition(lambda self: self.believed)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        holder = data.draw(st.sampled_from(sorted(self.believed)))
        believed = self.believed[holder]
        self.store.release_lease(believed)
        if self.lease is not None and self.lease.token == believed.token:
            # A lease that was given back: no holder, its token kept.
            self.lease = replace(self.lease, holder="")

    # Releases

    def free(self) -> list[str]:
        busy = {known.service for known in self.releases.values() if known.phase in ACTIVE}
        return [service for service in SERVICES if service not in busy]

    @precondition(lambda self: self.free())
    @rule(data=st.data(), crash=crashes(6))
    def create_any(self, data: st.DataObject, crash: int | None) -> None:
        self.create(data.draw(st.sampled_from(self.free() * 3 + list(SERVICES))), crash)

    def create(self, service: str, crash: int | None) -> None:
        release = Release(
            id=f"r{len(self.releases)}x",
            service=service,
            kind=ReleaseKind.RELEASE,
            digest=DIGEST,
            document=DOCUMENT,
            phase=Phase.PENDING,
            revision=0,
            created_at=self.now,
            phase_at=self.now,
            deadline_at=self.now,
        )
        written = self.attempt(
            lambda: self.store.create_release(release, now=self.now, actor="ann"),
            None if service in self.free() else ActiveReleaseError,
            crash,
        )
        if written is not None:
            self.releases[release.id] = written
            self.logged[release.id] = 1

    def pick(self, data: st.DataObject) -> Release:
        active = [name for name, known in self.releases.items() if known.phase in ACTIVE]
        return self.releases[data.draw(st.sampled_from(active * 5 + sorted(self.releases)))]

    @precondition(lambda self: self.believed and self.releases)
    @rule(data=st.data(), moves=st.integers(1, 5), crash=crashes(12), answer_lost=st.booleans())
    def go_on(self, data: st.DataObject, moves: int, crash: int | None, answer_lost: bool) -> None:
        """Legal moves, mostly forward; the process may end in the last or right after it."""
        holder, name = self.actor(data), self.pick(data).id
        for left in reversed(range(moves)):
            release = self.releases[name]
            onward = [move for phase, move in TRANSITIONS if phase is release.phase]
            forward = [
                move
                for move in onward
                if TRANSITIONS[release.phase, move] is not Phase.ROLLING_BACK
            ]
            if not onward:
                return
            trigger = data.draw(st.sampled_from(forward * 8 + onward))
            self.commit(holder, release, trigger, crash=None if left else crash)
        if answer_lost:
            self.store.close()
            self.open()

    @precondition(lambda self: self.believed and self.releases)
    @rule(
        data=st.data(),
        trigger=st.sampled_from(Trigger),
        weight=st.sampled_from((-1, 0, 50, 100, 101)),
        stale=st.booleans(),
    )
    def commit_anything(
        self, data: st.DataObject, trigger: Trigger, weight: int, stale: bool
    ) -> None:
        self.commit(self.actor(data), self.pick(data), trigger, weight=weight, stale=stale)

    def commit(
        self,
        holder: str,
        release: Release,
        trigger: Trigger,
        *,
        weight: int = 10,
        stale: bool = False,
        crash: int | None = None,
    ) -> None:
        phase = TRANSITIONS.get((release.phase, trigger), Phase.PROGRESSING)
        wanted = replace(release, phase=phase, weight=weight, revision=release.revision - stale)
        promoted = phase is Phase.SUCCEEDED
        pending = [request.id for request in self.store.pending_requests(release.id)]
        result = GateResult("oom", Outcome.PASSED, str(release.revision))
        expected: type[Exception] | None = None
        if self.fenced_out(holder):
            expected = FencedError
        elif stale:
            expected = StaleWriteError
        elif (release.phase, trigger) not in TRANSITIONS:
            expected = IllegalTransitionError
        elif not 0 <= weight <= 100:
            expected = InvariantError
        written = self.attempt(
            lambda: self.store.commit(
                wanted,
                [ReleaseEvent("", 0, self.now, "phase", "moves", trigger=trigger)],
                fence=self.believed[holder],
                now=self.now,
                gates=[GateRecord(release.id, "oom", self.now, {}, result)],
                answers=dict.fromkeys(pending[:1], "done"),
                stable=(DIGEST, release.id, 1, release.id) if promoted else None,
            ),
            expected,
            crash,
        )
        if written is None:
            return
        finished_at = self.now if phase in FINAL else None
        assert written == replace(wanted, revision=release.revision + 1, finished_at=finished_at)
        self.releases[release.id] = written
        self.logged[release.id] += 1
        self.unanswered -= set(pending if phase in FINAL else pending[:1])
        if promoted:
            self.stable[release.service] = release.id

    @precondition(lambda self: self.releases)
    @rule(data=st.data(), verb=st.sampled_from(Verb))
    def ask(self, data: st.DataObject, verb: Verb) -> None:
        release = self.releases[data.draw(st.sampled_from(sorted(self.releases)))]
        request = self.attempt(
            lambda: self.store.add_request(release.id, verb, "ann", "", self.now),
            FinalReleaseError if release.phase in FINAL else None,
            None,
        )
        if request is not None:
            self.unanswered.add(request.id)

    # Instances

    def fits(self, gpu: int, fraction: float, share: bool) -> bool:
        holders = [
            (name, used, shared)
            for name, (leased, used, shared) in self.shares.items()
            if leased == gpu
        ]
        return (
            all(share and shared for _, _, shared in holders)
            and sum(used for _, used, _ in holders) + fraction <= 1
            and all(self.instances[name].state is InstanceState.READY for name, _, _ in holders)
        )

    @precondition(lambda self: self.believed)
    @rule(
        data=st.data(),
        service=st.sampled_from(SERVICES),
        fraction=st.sampled_from((0.25, 0.5, 1.0)),
        share=st.booleans(),
        crash=crashes(6),
    )
    def add_instance(
        self, data: st.DataObject, service: str, fraction: float, share: bool, crash: int | None
    ) -> None:
        holder = self.actor(data)
        number = len(self.instances)
        wanted = Instance(
            id=f"i{number}",
            service=service,
            pool="p",
            digest=DIGEST,
            state=InstanceState.REQUESTED,
            created_at=self.now,
            port=9000 + number,
        )
        expected: type[Exception] | None = None
        if self.fenced_out(holder):
            expected = FencedError
        elif not any(self.fits(gpu, fraction, share) for gpu in (0, 1)):
            expected = NoGpuError
        added = self.attempt(
            lambda: self.store.add_instance(
                wanted,
                fence=self.believed[holder],
                now=self.now,
                gpus=GpuClaim("local", (0, 1), 1, fraction, share),
            ),
            expected,
            crash,
        )
        if added is not None:
            (gpu,) = added.gpus
            assert self.fits(gpu, fraction, share)
            self.instances[added.id] = added
            self.shares[added.id] = (gpu, fraction, share)

    @precondition(lambda self: self.believed and self.instances)
    @rule(
        data=st.data(),
        state=st.sampled_from(InstanceState),
        crash=crashes(6),
    )
    def update_instance(self, data: st.DataObject, state: InstanceState, crash: int | None) -> None:
        holder = self.actor(data)
        known = self.instances[data.draw(st.sampled_from(sorted(self.instances)))]
        expected: type[Exception] | None = None
        if self.fenced_out(holder):
            expected = FencedError
        elif known.state not in LIVE_STATES and state in LIVE_STATES:
            expected = EndedInstanceError
        updated = self.attempt(
            lambda: self.store.update_instance(
                replace(known, state=state, ended_at=known.ended_at),
                fence=self.believed[holder],
                now=self.now,
            ),
            expected,
            crash,
        )
        if updated is not None:
            self.instances[known.id] = updated
            if state not in LIVE_STATES:
                self.shares.pop(known.id, None)

    # What must hold after every step

    @invariant()
    def rows_are_what_was_written(self) -> None:
        stored = {release.id: release for release in self.store.releases()}
        assert stored == self.releases
        assert {found.id: found for found in self.store.instances()} == self.instances
        for service in self.store.services():
            assert service.stable_release == self.stable[service.name]

    @invariant()
    def one_active_release_for_a_service(self) -> None:
        active = [release.service for release in self.store.active_releases()]
        assert len(active) == len(set(active))

    @invariant()
    def the_log_leads_to_the_phase(self) -> None:
        for release in self.store.releases():
            assert self.store.replay_phase(release.id) is release.phase
            log = self.store.events(release.id)
            assert [event.seq for event in log] == list(range(1, self.logged[release.id] + 1))
            assert 0 <= release.weight <= 100
            assert (release.phase in FINAL) == (release.finished_at is not None)

    @invariant()
    def nobody_waits_for_a_release_that_has_ended(self) -> None:
        waiting = set()
        for release in self.store.releases():
            pending = {request.id for request in self.store.pending_requests(release.id)}
            assert not (pending and release.phase in FINAL)
            waiting |= pending
        assert waiting == self.unanswered

    @invariant()
    def gpus_are_held_by_the_living_and_fit(self) -> None:
        leases = self.store.leased_gpus()
        assert {lease.instance: (lease.gpu, lease.fraction, lease.shared) for lease in leases} == (
            self.shares
        )
        for gpu in (0, 1):
            on_it = [lease for lease in leases if lease.gpu == gpu]
            assert len(on_it) <= 1 or all(lease.shared for lease in on_it)
            assert sum(lease.fraction for lease in on_it) <= 1
        live = {found.id for found in self.store.instances(live_only=True)}
        assert {lease.instance for lease in leases} == live


StoreMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
test_the_store = StoreMachine.TestCase
