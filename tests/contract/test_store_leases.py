"""Leases in the store, and the fence that they are to every write."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from canaryctl.controller.errors import FencedError
from canaryctl.controller.model import InstanceState, Lease, Release
from canaryctl.controller.store import Store
from tests.support.stored import DIGESTS, NOW, claim, instance


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
