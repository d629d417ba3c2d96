"""Whether the GPUs suffice for both arms of a release with a fresh baseline. Pure."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from canaryctl.controller.errors import NoGpuError
from canaryctl.controller.model import GpuClaim, GpuLease, Instance, InstanceState
from canaryctl.controller.store.gpus import Occupant, pick


@dataclass(frozen=True, slots=True)
class Arm:
    """Engines to be started. ``claim``: the GPUs of each; None: it runs without."""

    who: str
    engines: int
    claim: GpuClaim | None


def staying(
    leases: Iterable[GpuLease], live: Iterable[Instance], leaving: Collection[str]
) -> tuple[Occupant, ...]:
    """Leases that will not be given back by themselves. ``leaving``: pools that are being ended.

    What starts at the moment will have started by then, so nothing waits for it here.
    """
    kept = {
        instance.id
        for instance in live
        if instance.state is not InstanceState.STOPPING and instance.pool not in leaving
    }
    return tuple(Occupant(lease, InstanceState.READY) for lease in leases if lease.instance in kept)


def shortage(arms: Sequence[Arm], occupants: Sequence[Occupant]) -> str | None:
    """What is missing for all arms at once, in words; None: nothing."""
    held = list(occupants)
    for arm in arms:
        for number in range(arm.engines):
            if arm.claim is None:
                continue
            inventory = [o for o in held if o.lease.inventory == arm.claim.inventory]
            try:
                picked = pick(arm.claim, inventory)
            except NoGpuError as error:
                wanted = " and ".join(_engines(a) for a in arms)
                return (
                    f"baseline: fresh needs room for {wanted} at once; "
                    f"{arm.who} {number + 1} of {arm.engines} has none: {error}"
                )
            held += [_placed(arm, number, arm.claim, gpu) for gpu in picked]
    return None


def _engines(arm: Arm) -> str:
    gpus = 0 if arm.claim is None else arm.claim.count
    return f"{arm.engines} {arm.who} engine{'s' if arm.engines > 1 else ''} of {gpus} GPU"


def _placed(arm: Arm, number: int, claim: GpuClaim, gpu: int) -> Occupant:
    lease = GpuLease(claim.inventory, gpu, f"{arm.who} {number + 1}", claim.fraction, claim.share)
    return Occupant(lease, InstanceState.READY)
