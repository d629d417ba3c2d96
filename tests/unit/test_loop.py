"""Waiting for a release and its drains, whoever acts on it, and whatever cannot be reached."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from canaryctl.common.errors import TemporaryError
from canaryctl.controller.loop import LEASE_TTL_S, SETTLE_LIMIT_S, LeasedService, wait_for
from canaryctl.controller.model import (
    Artifact,
    Instance,
    InstanceState,
    Lease,
    Release,
    ReleaseEvent,
)
from canaryctl.controller.service import ServiceController, Tick
from canaryctl.controller.states import Phase, Trigger
from canaryctl.controller.store import Store, open_store
from canaryctl.runtimes.fencing import StaleTokenError
from tests.support.releases import CANARY, PREVIOUS, T0, document, instance, release

STABLE, CANDIDATE = "sha256:" + "a" * 64, "sha256:" + "b" * 64


@dataclass
class TickingClock:
    """Each sleep may be followed by something that another process does."""

    at: datetime = T0
    then: Any = None

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return (self.at - T0).total_seconds()

    def sleep(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)
        if self.then is not None:
            self.then(self.at)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    url = f"sqlite:///{tmp_path}/canaryctl.db"
    with open_store(cast("Any", SimpleNamespace(database_url=url, state_dir=tmp_path))) as opened:
        opened.ensure_service("chat", lambda: 8000, T0)
        runtime = document().runtime
        for digest, version in ((STABLE, "1"), (CANDIDATE, "2")):
            opened.register_artifact(Artifact(digest, "chat-model", version, "chat", runtime, T0))
        yield opened


def rolled_back(store: Store, fence: Lease) -> Release:
    """A release that has just been rolled back; its canary still runs beside stable."""
    made = store.create_release(release(Phase.PENDING, revision=0, weight=0), now=T0, actor="ann")
    for phase, trigger in (
        (Phase.ROLLING_BACK, Trigger.ABORT),
        (Phase.ROLLED_BACK, Trigger.RESTORED),
    ):
        made = store.commit(
            replace(made, phase=phase),
            (ReleaseEvent(made.id, 0, T0, "phase", "moves", trigger=trigger),),
            fence=fence,
            now=T0,
            stable=(STABLE, PREVIOUS, 1, made.id),
        )
    return made


class SomebodyElse:
    """A service whose lease another holds."""

    def tick(self) -> None:
        return None


def test_while_another_holds_the_lease_the_drains_are_waited_for(store: Store) -> None:
    fence = store.acquire("service:chat", "another", 3600, T0)
    assert fence is not None
    made = rolled_back(store, fence)
    rows: dict[str, Instance] = {}
    for pool in (PREVIOUS, CANARY):
        row = instance(pool)
        rows[pool] = store.add_instance(row, fence=fence, now=T0, gpus=None)
    ended_at = T0 + timedelta(seconds=5)

    def another_acts(now: datetime) -> None:
        if now >= ended_at:
            gone = replace(rows[CANARY], state=InstanceState.STOPPED)
            store.update_instance(gone, fence=fence, now=now)

    clock = TickingClock(then=another_acts)
    waited = wait_for(made.id, cast("LeasedService", SomebodyElse()), store, clock)
    assert waited.settled
    assert waited.release.phase is Phase.ROLLED_BACK
    assert ended_at <= clock.at < ended_at + timedelta(seconds=1)


def test_a_drain_without_end_is_told(store: Store) -> None:
    fence = store.acquire("service:chat", "another", 3600, T0)
    assert fence is not None
    made = rolled_back(store, fence)
    for pool in (PREVIOUS, CANARY):
        store.add_instance(instance(pool), fence=fence, now=T0, gpus=None)
    clock = TickingClock()
    waited = wait_for(made.id, cast("LeasedService", SomebodyElse()), store, clock)
    assert not waited.settled
    assert clock.monotonic() == pytest.approx(SETTLE_LIMIT_S, abs=1)


class Remembering:
    """A controller that counts what it did."""

    def __init__(self) -> None:
        self.ticks = 0
        self.closed = False

    def tick(self, now: datetime, fence: Lease) -> Tick:
        self.ticks += 1
        return Tick(None, True)

    def close(self) -> None:
        self.closed = True


def test_what_cannot_be_reached_now_is_tried_again(store: Store) -> None:
    class Unlucky:
        def tick(self, now: datetime, fence: Lease) -> None:
            raise TemporaryError("the database is locked")

    unlucky = cast("ServiceController", Unlucky())
    leased = LeasedService("chat", lambda: unlucky, store, TickingClock(), "me")
    tick = leased.tick()
    assert tick is not None
    assert not tick.settled
    assert "locked" in tick.troubles[0].why


def test_whoever_takes_the_lease_again_remembers_nothing(store: Store) -> None:
    """Another acted meanwhile: what an earlier controller knows is behind the records."""
    made: list[Remembering] = []

    def make() -> ServiceController:
        made.append(Remembering())
        return cast("ServiceController", made[-1])

    clock = TickingClock()
    leased = LeasedService("chat", make, store, clock, "me")
    for _ in range(2):
        assert leased.tick() is not None
    assert [one.ticks for one in made] == [2]
    clock.sleep(LEASE_TTL_S + 1)  # as if stopped for so long
    lease = store.acquire("service:chat", "another", LEASE_TTL_S, clock.now())
    assert lease is not None
    assert leased.tick() is None  # refused, and what it had under way is ended
    assert made[0].closed
    assert leased.tick() is None
    clock.sleep(LEASE_TTL_S + 1)
    assert leased.tick() is not None
    assert [one.ticks for one in made] == [2, 1]
    leased.close()
    assert made[1].closed
    assert store.holder("service:chat", clock.now()) is None


def test_a_stale_effect_means_that_the_lease_is_lost(store: Store) -> None:
    class Stale(Remembering):
        def tick(self, now: datetime, fence: Lease) -> Tick:
            raise StaleTokenError("a higher token was here")

    stale = Stale()
    leased = LeasedService(
        "chat", lambda: cast("ServiceController", stale), store, TickingClock(), "me"
    )
    assert leased.tick() is None
    assert stale.closed
