"""Ticking under a lease: in the foreground for ``release --wait``, on a schedule for ``serve``.

Each service has a lease of its own, so that several commands may work side by side; whoever
holds it acts and everybody else only reads.
"""

import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import uuid4

from canaryctl.common.clock import Clock
from canaryctl.common.errors import TemporaryError
from canaryctl.controller.errors import FencedError
from canaryctl.controller.model import InstanceState, Lease, Release
from canaryctl.controller.reconcile import Trouble
from canaryctl.controller.service import ServiceController, Tick
from canaryctl.controller.states import FINAL, Phase
from canaryctl.controller.store import Store
from canaryctl.runtimes.fencing import StaleTokenError

log = logging.getLogger(__name__)

LEASE_TTL_S = 6.0
RENEW_AFTER_S = 1.5
TICK_S = 0.25
SETTLE_LIMIT_S = 120.0
"""After a release is final, how long the foreground waits for drains; then it says so."""


def holder_name() -> str:
    """Unique for each process, and telling: host, pid, and a part that no restart repeats."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:6]}"


class LeasedService:
    """A service that is ticked while its lease is held.

    ``make``: a controller that remembers nothing, for each time that the lease is taken: what
    an earlier one remembers is behind the records once another has acted.
    """

    def __init__(
        self,
        service: str,
        make: Callable[[], ServiceController],
        store: Store,
        clock: Clock,
        holder: str,
    ) -> None:
        self.service = service
        self._make = make
        self._store, self._clock, self._holder = store, clock, holder
        self._held: tuple[Lease, ServiceController] | None = None

    def tick(self) -> Tick | None:
        """One tick; None while another holder acts."""
        now = self._clock.now()
        try:
            self._hold(now)
            if self._held is None:
                return None
            lease, controller = self._held
            return controller.tick(now, lease)
        except (FencedError, StaleTokenError) as error:
            log.warning("%s: the lease is lost; another controller acts (%s)", self.service, error)
            self._stand_down()
            return None
        except TemporaryError as error:
            log.warning("%s: nothing was done at this tick: %s", self.service, error)
            return Tick(None, False, (Trouble("tick", str(error)),))

    def _hold(self, now: datetime) -> None:
        """Take the lease if it is free, and renew it long before it expires."""
        if self._held is None:
            name = f"service:{self.service}"
            lease = self._store.acquire(name, self._holder, LEASE_TTL_S, now)
            if lease is not None:
                self._held = lease, self._make()
            return
        lease, controller = self._held
        if lease.expires_at - now < timedelta(seconds=LEASE_TTL_S - RENEW_AFTER_S):
            self._held = self._store.renew(lease, LEASE_TTL_S, now), controller

    def _stand_down(self) -> Lease | None:
        """End what the controller itself has under way: loads, warm-ups."""
        if self._held is None:
            return None
        lease, controller = self._held
        self._held = None
        controller.close()
        return lease

    def retire(self) -> Tick | None:
        """From now on nothing of the service should run; the first tick towards it."""
        tick = self.tick()
        if self._held is None:
            return None
        lease, _ = self._held
        self._store.clear_stable(self.service, fence=lease, now=self._clock.now())
        return tick

    def close(self) -> None:
        """Let go, so that the next holder need not wait for the lease to expire."""
        lease = self._stand_down()
        if lease is not None:
            self._store.release_lease(lease)


@dataclass(frozen=True, slots=True)
class Waited:
    """How waiting ended. ``timed_out``: the release is still held."""

    release: Release
    timed_out: bool
    settled: bool


def wait_for(
    release_id: str,
    leased: LeasedService,
    store: Store,
    clock: Clock,
    *,
    until_promoted: bool = False,
    timeout_s: float | None = None,
    on_tick: Callable[[Release], None] = lambda release: None,
) -> Waited:
    """Tick (or watch another holder tick) until the release is final and its drains are done."""
    started = clock.now()
    final_at = None
    while True:
        tick = leased.tick()
        now = clock.now()
        release = store.release(release_id)
        on_tick(release)
        if until_promoted and release.phase is Phase.WATCHING:
            return Waited(release, timed_out=False, settled=False)
        if release.phase in FINAL:
            final_at = final_at or now
            # While another acts, or one that died still holds the lease, the records say it.
            is_settled = tick.settled if tick is not None else _settled(store, release.service)
            if is_settled or now - final_at > timedelta(seconds=SETTLE_LIMIT_S):
                return Waited(release, timed_out=False, settled=is_settled)
        elif timeout_s is not None and now - started > timedelta(seconds=timeout_s):
            return Waited(release, timed_out=True, settled=False)
        spent = (clock.now() - now).total_seconds()
        clock.sleep(max(0.02, TICK_S - spent))


def _settled(store: Store, name: str) -> bool:
    """As the records have it: the stable runtime serves and nothing else runs. A release that
    has begun since then is not waited for."""
    if store.active_release(name) is not None:
        return True
    service = store.service(name)
    wanted = service.stable_replicas if service.stable_pool is not None else 0
    instances = store.instances(service=name, live_only=True)
    return len(instances) == wanted and all(
        instance.pool == service.stable_pool and instance.state is InstanceState.READY
        for instance in instances
    )
