"""Room for a canary and its fresh baseline at once, before anything is started."""

from dataclasses import replace

from canaryctl.controller.model import GpuClaim, GpuLease, InstanceState
from canaryctl.controller.room import Arm, shortage, staying
from tests.support.releases import PREVIOUS, instance

ONE = GpuClaim("local", (0, 1, 2, 3), 1, 0.9, share=False)


def lease(gpu: int, holder: str) -> GpuLease:
    return GpuLease("local", gpu, holder, 0.9, shared=False)


def test_there_is_room_for_both_or_it_says_what_is_missing() -> None:
    stable = [instance(PREVIOUS, number=n) for n in range(2)]
    held = staying([lease(n, i.id) for n, i in enumerate(stable)], stable, leaving=())
    both = (Arm("canary", 1, ONE), Arm("baseline", 1, ONE))
    assert shortage(both, held) is None
    found = shortage((Arm("canary", 1, ONE), Arm("baseline", 2, ONE)), held)
    assert found is not None
    assert "1 canary engine of 1 GPU and 2 baseline engines of 1 GPU at once" in found
    assert "baseline 2 of 2 has none: 1 of the GPUs [0, 1, 2, 3] (local) wanted, 0 free" in found
    assert "GPU 2: held by canary 1" in found


def test_what_is_on_its_way_out_is_not_in_the_way() -> None:
    stopping = instance(PREVIOUS, state=InstanceState.STOPPING, number=0)
    old = replace(instance("r00", number=1), id="r00-1")
    starting = instance(PREVIOUS, state=InstanceState.STARTING, number=2)
    leases = [lease(0, stopping.id), lease(1, old.id), lease(2, starting.id)]
    held = staying(leases, [stopping, old, starting], leaving={"r00"})
    assert [occupant.lease.gpu for occupant in held] == [2]
    assert shortage((Arm("canary", 3, ONE),), held) is None
    assert shortage((Arm("canary", 4, ONE),), held) is not None


def test_engines_without_a_gpu_always_have_room() -> None:
    assert shortage((Arm("canary", 9, None), Arm("baseline", 4, ONE)), ()) is None


def test_shared_gpus_are_filled_to_one() -> None:
    half = GpuClaim("local", (0,), 1, 0.45, share=True)
    assert shortage((Arm("canary", 1, half), Arm("baseline", 1, half)), ()) is None
    assert shortage((Arm("canary", 1, half), Arm("baseline", 2, half)), ()) is not None
