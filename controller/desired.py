"""What should run and where traffic should go, from the records and what is warm. Pure.

Reconciling compares this with what is; both are made anew at every tick, so a crash between
any two effects loses nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from canaryctl.controller.model import Release, Service
from canaryctl.controller.plan import Plan
from canaryctl.controller.rungs import best_rung, must_start, rungs
from canaryctl.controller.states import FINAL, Phase
from canaryctl.controller.view import View


@dataclass(frozen=True, slots=True)
class PoolTarget:
    """A pool that should exist. ``restart``: a member that dies is replaced, with back-off."""

    pool: str
    digest: str
    replicas: int
    restart: bool


@dataclass(frozen=True, slots=True)
class Desired:
    pools: tuple[PoolTarget, ...] = ()
    weights: Mapping[str, int] = field(default_factory=dict)
    fallback: Mapping[str, str] = field(default_factory=dict)

    def target(self, pool: str) -> PoolTarget | None:
        return next((target for target in self.pools if target.pool == pool), None)


def desired(view: View, eager_digest: str | None) -> Desired:
    """The state to reach now. ``eager_digest``: of the release's eager variant, if it has one."""
    release, plan = view.release, view.plan
    if release is None or plan is None or release.phase in FINAL:
        return _steady(view.service, view)
    if release.phase in (Phase.PENDING, Phase.PREFLIGHT):
        return _steady(view.service, view)
    if release.phase is Phase.ROLLING_BACK:
        return _rolling_back(release, view, eager_digest)
    return _rolling_out(release, plan, view, eager_digest)


def _steady(service: Service, view: View) -> Desired:
    if service.stable_pool is None or service.stable_digest is None:
        return Desired()
    pool = service.stable_pool
    return Desired(
        pools=(PoolTarget(pool, service.stable_digest, service.stable_replicas, restart=True),),
        weights={pool: 100} if view.pool(pool).ready else {},
    )


def _previous(release: Release) -> tuple[PoolTarget, ...]:
    if release.previous_pool is None or release.previous_digest is None:
        return ()
    return (
        PoolTarget(
            release.previous_pool, release.previous_digest, release.previous_replicas, restart=True
        ),
    )


def _rolling_out(release: Release, plan: Plan, view: View, eager_digest: str | None) -> Desired:
    pools = list(_previous(release))
    if plan.eager_baseline and eager_digest is not None:
        pools.append(PoolTarget(release.eager_pool, eager_digest, 1, restart=True))
    pools += _fresh(release, plan)
    full = release.phase in (Phase.PROMOTING, Phase.WATCHING)
    replicas = plan.replicas if full else plan.steps[release.step].canary_replicas
    pools.append(PoolTarget(release.pool, release.digest, replicas, restart=False))
    beside = [target.pool for target in pools if target.pool != release.previous_pool]
    return Desired(
        pools=tuple(pools),
        weights=_shares(release, plan, view),
        fallback=dict.fromkeys(beside, release.previous_pool) if release.previous_pool else {},
    )


_IN_STEPS = frozenset({Phase.DEPLOYING, Phase.WARMING, Phase.PROGRESSING, Phase.PAUSED})
"""When something is compared in steps, and a fresh baseline runs."""


def _fresh(release: Release, plan: Plan) -> tuple[PoolTarget, ...]:
    """The stable artifact once more, as large as the canary. A member that dies is replaced: it
    is no fault of the canary."""
    if not plan.fresh_baseline or release.phase not in _IN_STEPS:
        return ()
    if release.previous_digest is None:
        return ()
    replicas = plan.steps[release.step].baseline_replicas
    return (PoolTarget(release.fresh_pool, release.previous_digest, replicas, restart=True),)


def _shares(release: Release, plan: Plan, view: View) -> dict[str, int]:
    """The release's wanted weight, held to what is warm. A dead pool gets nothing."""
    canary, previous = view.pool(release.pool), view.pool(release.previous_pool)
    capacity = 100 * canary.ready // plan.replicas
    weight = min(release.weight, capacity)
    if release.previous_pool is None:
        # Before promotion a first release serves nobody; after it there is nothing beside it.
        return {release.pool: 100} if release.weight == 100 and canary.ready else {}
    fresh = view.pool(release.fresh_pool).ready if _fresh(release, plan) else 0
    if not previous.ready and fresh:
        # The stable artifact serves, if only by its youngest instances.
        served = weight if canary.ready else 0
        return {release.pool: served, release.fresh_pool: 100 - served}
    if not previous.ready and canary.ready and release.weight > 0:
        # Whoever has users already keeps them all while the other side restarts.
        return {release.pool: 100}
    if not canary.ready or weight == 0:
        return {release.previous_pool: 100} if previous.ready else {}
    if weight == 100:
        return {release.pool: 100}
    beside = min(weight, 100 * fresh // release.previous_replicas)
    rest = {release.fresh_pool: beside} if fresh else {}
    return {release.pool: weight, **rest, release.previous_pool: 100 - weight - beside}


def _rolling_back(release: Release, view: View, eager_digest: str | None) -> Desired:
    pools = list(_previous(release))
    pools += [
        PoolTarget(rung.pool, eager_digest, rung.replicas, restart=True)
        for rung in must_start(release, view)
        if rung.pool == release.eager_pool and eager_digest is not None
    ]
    best = best_rung(release, view)
    if best is not None:
        return Desired(tuple(pools), {best.pool: 100})
    # No rung can take it yet: whoever serves keeps serving, the previous runtime first. The
    # canary is kept only while it has users; one that never had any is of no help.
    # A fresh baseline is no rung, but while nobody else runs the stable artifact it serves on.
    held: dict[str, int] = {}
    if view.pool(release.previous_pool).ready and release.previous_pool is not None:
        held = {release.previous_pool: 100}
    elif view.pool(release.fresh_pool).ready and release.previous_digest is not None:
        held = {release.fresh_pool: 100}
        launched = view.pool(release.fresh_pool).launched
        pools.append(
            PoolTarget(release.fresh_pool, release.previous_digest, launched, restart=False)
        )
    elif view.pool(release.pool).ready and (view.effective or {}).get(release.pool, 0) > 0:
        held = {release.pool: 100}
        pools.append(
            PoolTarget(
                release.pool, release.digest, view.pool(release.pool).launched, restart=False
            )
        )
    else:
        # A rung that is not whole yet serves better than nobody.
        some = (rung.pool for rung in rungs(release, view) if view.pool(rung.pool).ready)
        held = dict.fromkeys(list(some)[:1], 100)
    return Desired(tuple(pools), held)
