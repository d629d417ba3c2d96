"""Releases in the store: one active for a service, found by the start of an id."""

import pytest

from canaryctl.controller.errors import (
    ActiveReleaseError,
    AmbiguousRefError,
    NotFoundError,
    UnloggedChangeError,
)
from canaryctl.controller.model import Lease, Release
from canaryctl.controller.states import Phase
from canaryctl.controller.store import Store
from tests.support.stored import NOW, artifact, end, release


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
