"""``canaryctl serve``: every service ticked on a schedule, for as long as the daemon runs.

APScheduler owns the schedule: one job a service, never two of the same at once, late ticks
folded into one. A service with an active release is ticked four times a second (an engine's
death must reach the router within two seconds), an idle one once.
"""

import logging
import threading
import time
from collections.abc import Callable

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

from canaryctl.common.errors import CanaryctlError, TemporaryError
from canaryctl.controller.compose import App
from canaryctl.controller.loop import TICK_S, LeasedService
from canaryctl.controller.metrics import ControllerMetrics

log = logging.getLogger(__name__)

DISCOVER_S = 1.0
IDLE_TICK_S = 1.0
MAX_SERVICES_AT_ONCE = 8
UNWELL_AFTER_S = 10.0
"""Looking for services fails when the database does; after this long the daemon says so."""


class Daemon:
    """Ticks all services until stopped. Running engines and routers outlive it."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._services: dict[str, LeasedService] = {}
        self._pace: dict[str, float] = {}  # seconds between ticks
        self._began: dict[str, float] = {}  # the last tick, on the monotonic clock
        self._discovered = time.monotonic()
        self._discovering = threading.Lock()
        self._stopping = False
        self.metrics = ControllerMetrics(app.store)
        self._scheduler = BackgroundScheduler(
            executors={"default": ThreadPoolExecutor(MAX_SERVICES_AT_ONCE)},
            job_defaults={"max_instances": 1, "coalesce": True, "misfire_grace_time": None},
            timezone="UTC",
        )

    def run(self, wait: Callable[[], object], on_ready: Callable[[], None] = lambda: None) -> None:
        """Block until ``wait`` returns; then finish the ticks under way and let the leases go."""
        logging.getLogger("apscheduler").setLevel(logging.ERROR)
        self._app.store.require_writer()
        self._discover()
        self._scheduler.add_job(self._look_again, "interval", seconds=DISCOVER_S, id="discover")
        self._scheduler.start()
        on_ready()
        try:
            wait()
        finally:
            # The scheduler waits for its jobs under a lock that looking for services needs.
            with self._discovering:
                self._stopping = True
            self._scheduler.shutdown(wait=True)
            for name, leased in self._services.items():
                self._let_go(name, leased)

    def fault(self) -> str | None:
        """Why it is not well: it cannot look for services any more. None: it is."""
        age_s = time.monotonic() - self._discovered
        if age_s < UNWELL_AFTER_S:
            return None
        return f"no look at the services for {age_s:.0f} s: is the database reachable?"

    def _let_go(self, name: str, leased: LeasedService) -> None:
        """A lease that cannot be given back expires by itself."""
        try:
            leased.close()
        except Exception:
            log.exception("the lease of %s could not be given back", name)

    def _look_again(self) -> None:
        """A database that is away now is asked again; :meth:`fault` tells when that lasts."""
        with self._discovering:
            if self._stopping:
                return
            try:
                self._discover()
            except TemporaryError as error:
                log.warning("no look at the services: %s", error)

    def _discover(self) -> None:
        """New services get a job; the pace follows whether a release is active."""
        active = {release.service for release in self._app.store.active_releases()}
        for service in self._app.store.services():
            name = service.name
            seconds = TICK_S if name in active else IDLE_TICK_S
            if self._pace.get(name) != seconds:
                self._pace[name] = seconds
                self._began.pop(name, None)
            job = self._scheduler.get_job(name)
            if name not in self._services:
                self._services[name] = self._app.controller(name)
            if job is None:
                self._scheduler.add_job(
                    self._tick, "interval", args=(name,), seconds=seconds, id=name
                )
            elif job.trigger.interval.total_seconds() != seconds:
                job.reschedule("interval", seconds=seconds)
        self._discovered = time.monotonic()

    def _tick(self, name: str) -> None:
        """One service's trouble stops neither the schedule nor any other service."""
        began = time.monotonic()
        due = self._began.get(name, began - self._pace[name]) + self._pace[name]
        self._began[name] = began
        try:
            tick = self._services[name].tick()
            self.metrics.ticked(
                name, tick, duration_s=time.monotonic() - began, late_s=max(0.0, began - due)
            )
        except CanaryctlError:
            self.metrics.failed(name)
            log.exception("tick of %s failed; the next one tries again", name)
        except Exception:
            self.metrics.failed(name)
            log.exception("tick of %s failed unexpectedly; the next one tries again", name)
