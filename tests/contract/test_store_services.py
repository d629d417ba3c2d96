"""Services in the store: their ports and their stable pools."""

import pytest

from canaryctl.common.errors import TemporaryError
from canaryctl.controller.errors import InvariantError, NotFoundError
from canaryctl.controller.model import Lease, Release
from canaryctl.controller.store import Store
from tests.support.stored import DIGESTS, LATER, NOW


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
