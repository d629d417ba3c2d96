"""Instances in the store, and the GPUs they hold."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from canaryctl.controller.errors import (
    EndedInstanceError,
    InvariantError,
    NoGpuError,
    NotFoundError,
)
from canaryctl.controller.model import GpuClaim, GpuLease, Instance, InstanceState, Lease, Release
from canaryctl.controller.store import Store
from canaryctl.runtimes.engines.base import Stage
from canaryctl.runtimes.placements.base import Handle
from tests.support.stored import DIGESTS, LATER, NOW, claim, instance


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
