"""Which GPUs an instance gets. Pure: the leases of the inventory in, the picks out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from canaryctl.controller.errors import NoGpuError
from canaryctl.controller.model import GpuClaim, GpuLease, InstanceState

_ROUNDING = 1e-9  # 0.7 + 0.2 + 0.1 is one

_UNSETTLED = frozenset({InstanceState.REQUESTED, InstanceState.STARTING, InstanceState.STOPPING})
"""An engine sizes its KV cache by the memory that is free while it starts. Another one that
takes or frees memory on the same GPU at that moment makes it too large or too small."""


@dataclass(frozen=True, slots=True)
class Occupant:
    """A lease and the state of the instance that holds it."""

    lease: GpuLease
    state: InstanceState


def pick(claim: GpuClaim, occupants: Iterable[Occupant]) -> tuple[int, ...]:
    """``claim.count`` of the candidates, the emptiest first; NoGpuError says what is in the way.

    ``occupants``: every lease of the claim's inventory.
    """
    by_gpu: dict[int, list[Occupant]] = {gpu: [] for gpu in claim.candidates}
    for occupant in occupants:
        by_gpu.setdefault(occupant.lease.gpu, []).append(occupant)
    obstacles = {gpu: _obstacle(claim, by_gpu[gpu]) for gpu in claim.candidates}
    free = [gpu for gpu in claim.candidates if obstacles[gpu] is None]
    if len(free) < claim.count:
        reasons = "; ".join(f"GPU {gpu}: {why}" for gpu, why in obstacles.items() if why)
        raise NoGpuError(
            f"{claim.count} of the GPUs {list(claim.candidates)} ({claim.inventory}) wanted, "
            f"{len(free)} free" + (f"; {reasons}" if reasons else "")
        )
    free.sort(key=lambda gpu: _used(by_gpu[gpu]))  # stable: in the order of the candidates
    return tuple(sorted(free[: claim.count]))


def _obstacle(claim: GpuClaim, occupants: Sequence[Occupant]) -> str | None:
    for occupant in occupants:
        lease = occupant.lease
        if not (claim.share and lease.shared):
            alone = "this claim does not share" if lease.shared else "exclusively"
            return f"held by {lease.instance} ({alone})"
    used = _used(occupants)
    if used + claim.fraction > 1 + _ROUNDING:
        holders = ", ".join(
            f"{occupant.lease.instance} ({occupant.lease.fraction:g})" for occupant in occupants
        )
        return f"{used:g} of it held by {holders}, {claim.fraction:g} more does not fit"
    for occupant in occupants:
        if occupant.state in _UNSETTLED:
            doing = "stopping" if occupant.state is InstanceState.STOPPING else "starting"
            return f"another instance is {doing} on it ({occupant.lease.instance})"
    return None


def _used(occupants: Sequence[Occupant]) -> float:
    return sum(occupant.lease.fraction for occupant in occupants)
