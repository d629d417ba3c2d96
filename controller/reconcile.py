"""Effects: bring what is to what should be. Every effect is idempotent and every intent is in
the store before its effect, so a controller killed between any two lines goes on afterwards.

Order matters twice: traffic moves before instances are touched, and an instance is stopped
only once the router itself reports that its pool takes nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import uuid4

from canaryctl.common.errors import InputError, PermanentError, TemporaryError
from canaryctl.controller.artifact.secrets import resolve_secrets
from canaryctl.controller.catalog import Catalog
from canaryctl.controller.desired import Desired, PoolTarget
from canaryctl.controller.model import (
    Fault,
    GpuClaim,
    Instance,
    InstanceState,
    Lease,
    Release,
)
from canaryctl.controller.store import Store
from canaryctl.controller.view import InstanceView, View
from canaryctl.runtimes.engines.base import Engine, EngineFault, Stage
from canaryctl.runtimes.placements.base import InstanceRequest, Placement
from canaryctl.runtimes.routers.base import Pool, PoolMember, Router, RouteTable
from canaryctl.runtimes.spec import RuntimeSpec

STOP_GRACE_S = 5.0
"""From SIGTERM to SIGKILL, after draining: there is nothing left to finish."""

BACK_OFF_LIMIT_S = 60.0
HEALTHY_FOR_S = 600.0
"""An instance that served this long starts the back-off anew."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """An effect that did not succeed and is tried again at the next tick."""

    what: str
    why: str


class Reconciler:
    """``gpus``: (engine, runtime) → what to lease for one instance; None for no GPU."""

    def __init__(
        self,
        store: Store,
        catalog: Catalog,
        placement: Placement,
        router: Router,
        gpus: Callable[[Engine, RuntimeSpec], GpuClaim | None],
        host: str,
    ) -> None:
        self._store, self._catalog = store, catalog
        self._placement, self._router = placement, router
        self._gpus, self._host = gpus, host
        self._applied: dict[str, RouteTable] = {}

    def reconcile(
        self, desired: Desired, view: View, releases: Callable[[str], Release], fence: Lease
    ) -> tuple[Trouble, ...]:
        """One pass. ``releases``: pool → the release that made it (its secrets, its drain)."""
        troubles: list[Trouble] = []
        self._try(troubles, "routing", lambda: self._route(desired, view, fence))
        for pool in view.pools.values():
            for member in pool.members:
                self._try(
                    troubles,
                    member.instance.id,
                    lambda m=member: self._settle(m, desired, view, releases, fence),  # type: ignore[misc]
                )
        for target in desired.pools:
            self._try(
                troubles,
                f"starting {target.pool}",
                lambda t=target: self._fill(t, view, releases, fence),  # type: ignore[misc]
            )
        return tuple(troubles)

    def _try(self, troubles: list[Trouble], what: str, effect: Callable[[], None]) -> None:
        try:
            effect()
        except TemporaryError as error:
            troubles.append(Trouble(what, str(error)))

    # Traffic

    def _route(self, desired: Desired, view: View, fence: Lease) -> None:
        table = self._table(desired, view)
        name = view.service.name
        if self._applied.get(name) == table and view.in_force(table.weights):
            return
        self._store.require(fence)
        self._router.apply(table, fence.token)
        self._applied[name] = table

    def _table(self, desired: Desired, view: View) -> RouteTable:
        pools = []
        for name, pool in view.pools.items():
            members = tuple(
                PoolMember(m.instance.id, self._host, m.instance.port)
                for m in pool.members
                if m.serving
            )
            weight = desired.weights.get(name, 0)
            if not members and not weight:
                continue
            artifact = self._catalog.artifact(pool.members[0].instance.digest)
            pools.append(Pool(name, artifact.title, artifact.digest, members, weight))
        names = {pool.name for pool in pools}
        return RouteTable(
            view.service.name,
            tuple(
                replace(pool, fallback=fallback)
                if (fallback := desired.fallback.get(pool.name)) in names
                else pool
                for pool in pools
            ),
        )

    # Instances

    def _settle(
        self,
        member: InstanceView,
        desired: Desired,
        view: View,
        releases: Callable[[str], Release],
        fence: Lease,
    ) -> None:
        """Start what was asked for, end what is dead, drain what is not wanted any more."""
        instance, now = member.instance, view.now
        if instance.state is InstanceState.STOPPING:
            self._drain(member, releases, now, fence)
            return
        wanted = desired.target(instance.pool)
        if wanted is None or self._surplus(member, wanted, view):
            self._ask_to_stop(member, view, fence)
        elif instance.stop_at is not None:
            self._end(instance, InstanceState.DEAD, instance.reason, now, fence)
        elif instance.state is InstanceState.REQUESTED:
            if instance.not_before is None or now >= instance.not_before:
                self._start_or_give_up(instance, view, releases, fence)
        elif not member.alive or (member.fault and wanted.restart):
            self._end(instance, InstanceState.DEAD, member.fault or instance.reason, now, fence)

    def _surplus(self, member: InstanceView, target: PoolTarget, view: View) -> bool:
        pool = view.pool(target.pool)
        if pool.launched <= target.replicas:
            return False
        launched = [
            m.instance for m in pool.members if m.instance.state is not InstanceState.STOPPING
        ]
        launched.sort(key=lambda i: (i.created_at, i.id))
        return member.instance in launched[target.replicas :]

    def _ask_to_stop(self, member: InstanceView, view: View, fence: Lease) -> None:
        instance = member.instance
        if member.serving and (view.effective is None or view.effective.get(instance.pool, 0) > 0):
            return  # traffic returns first
        self._store.update_instance(
            replace(instance, state=InstanceState.STOPPING, stop_at=view.now),
            fence=fence,
            now=view.now,
        )

    def _drain(
        self,
        member: InstanceView,
        releases: Callable[[str], Release],
        now: datetime,
        fence: Lease,
    ) -> None:
        """Requests under way are waited for, up to the limit; then the engine is stopped."""
        instance = member.instance
        limit = timedelta(seconds=releases(instance.pool).document.rollout.drain)
        asked = instance.stop_at or now
        if member.alive and member.running_requests != 0 and now < asked + limit:
            return
        self._end(instance, InstanceState.STOPPED, instance.reason, now, fence)

    def _end(
        self,
        instance: Instance,
        state: InstanceState,
        reason: str | None,
        now: datetime,
        fence: Lease,
    ) -> None:
        if instance.stop_at is None:
            # Whoever takes over goes on ending it: nobody ever serves with what is being ended.
            instance = replace(instance, stop_at=now)
            self._store.update_instance(instance, fence=fence, now=now)
        self._store.require(fence)
        gone = self._placement.stop(
            instance.id,
            instance.digest,
            instance.handle,
            grace_s=STOP_GRACE_S,
            token=fence.token,
        )
        if gone:
            self._store.update_instance(
                replace(instance, state=state, reason=reason, ended_at=now), fence=fence, now=now
            )

    def _start_or_give_up(
        self,
        instance: Instance,
        view: View,
        releases: Callable[[str], Release],
        fence: Lease,
    ) -> None:
        """One that can never start is an exit: the gates roll a canary back for it."""
        try:
            self._start(instance, releases, view.now, fence)
        except (InputError, PermanentError) as error:
            why = f"{instance.id} cannot be started: {error}"
            if view.release is not None and view.release.pool == instance.pool:
                self._store.add_fault(
                    Fault(view.release.id, instance.id, EngineFault.EXIT, view.now, why),
                    fence=fence,
                )
            self._end(instance, InstanceState.DEAD, why, view.now, fence)

    def _start(
        self,
        instance: Instance,
        releases: Callable[[str], Release],
        now: datetime,
        fence: Lease,
    ) -> None:
        artifact = self._catalog.artifact(instance.digest)
        launch = self._catalog.engine(instance.digest).launch(
            artifact.runtime, host=self._host, port=instance.port
        )
        self._store.require(fence)
        handle = self._placement.ensure(
            InstanceRequest(
                instance=instance.id,
                digest=instance.digest,
                launch=launch,
                port=instance.port,
                gpus=instance.gpus,
                token=fence.token,
                secrets=resolve_secrets(releases(instance.pool).document.secrets),
            )
        )
        self._store.update_instance(
            replace(
                instance,
                state=InstanceState.STARTING,
                handle=handle,
                stages={Stage.STARTED: now},
            ),
            fence=fence,
            now=now,
        )

    def _fill(
        self,
        target: PoolTarget,
        view: View,
        releases: Callable[[str], Release],
        fence: Lease,
    ) -> None:
        """Record one more instance of the pool, if it needs one. One a tick is enough."""
        if view.pool(target.pool).launched >= target.replicas:
            return
        everyone = self._store.instances(pool=target.pool)
        dead = [i for i in everyone if i.state is InstanceState.DEAD]
        if dead and not target.restart:
            return
        restarts, not_before = self._back_off(dead, view.now) if dead else (0, None)
        artifact = self._catalog.artifact(target.digest)
        engine = self._catalog.engine(target.digest)
        self._store.add_instance(
            Instance(
                id=f"{target.pool}-{uuid4().hex[:6]}",
                service=view.service.name,
                pool=target.pool,
                digest=target.digest,
                state=InstanceState.REQUESTED,
                created_at=view.now,
                port=self._free_port(),
                restarts=restarts,
                not_before=not_before,
            ),
            fence=fence,
            now=view.now,
            gpus=self._gpus(engine, artifact.runtime),
        )

    def _back_off(self, dead: list[Instance], now: datetime) -> tuple[int, datetime]:
        last = max(dead, key=lambda i: i.ended_at or i.created_at)
        ended = last.ended_at or now
        ready_at: datetime | None = dict(last.stages).get(Stage.READY)
        served_s = (ended - ready_at).total_seconds() if ready_at else 0.0
        restarts = 1 if served_s >= HEALTHY_FOR_S else last.restarts + 1
        wait_s = min(BACK_OFF_LIMIT_S, 2.0 ** (restarts - 1))
        return restarts, ended + timedelta(seconds=wait_s)

    def _free_port(self) -> int:
        used = self._store.used_ports()
        while (port := self._placement.free_port()) in used:
            continue
        return port


def settled(desired: Desired, view: View) -> bool:
    """Nothing is left to do: all that is wanted serves and nothing else runs."""
    wanted: Mapping[str, int] = {target.pool: target.replicas for target in desired.pools}
    running = {name: len(pool.members) for name, pool in view.pools.items() if pool.members}
    return running == wanted and view.in_force(desired.weights) and _all_ready(desired, view)


def _all_ready(desired: Desired, view: View) -> bool:
    return all(view.pool(target.pool).ready >= target.replicas for target in desired.pools)
