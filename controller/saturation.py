"""Driving the canary for ``max_concurrency`` with ``confirm: saturation``: who is driven and by how
much, once a release, before any traffic."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from canaryctl.common.metrics import Signal
from canaryctl.controller.catalog import Catalog
from canaryctl.controller.model import Instance, Release
from canaryctl.controller.plan import Plan
from canaryctl.controller.states import Phase
from canaryctl.controller.view import InstanceView, PoolView
from canaryctl.gates.base import Look
from canaryctl.gates.capacity import MaxConcurrencyGate
from canaryctl.gates.rules.saturation import counted
from canaryctl.gates.samples import ArmWindow, Delta, Missing, Scrape, Series
from canaryctl.runtimes.saturation import Drive, EngineLoad, Saturation, SaturationRun

_BEFORE_TRAFFIC = frozenset({Phase.DEPLOYING, Phase.WARMING})
_LOAD = (Signal.RUNNING, Signal.WAITING, Signal.PREEMPTIONS)

Read = Callable[[Instance, Sequence[Signal], datetime], Scrape]


@dataclass(frozen=True, slots=True)
class Driven:
    """``pending``: the canary is being driven, or is not warm yet. ``found``: requests that it
    held and that it missed, or why it could not be driven; None: nothing is known. ``ended_at``:
    when driving ended, in seconds since the epoch."""

    pending: bool = False
    found: tuple[int, int] | Missing | None = None
    ended_at: float | None = None


class SaturationWatch:
    """The one drive of the active release. Nothing of it is stored until it has ended: a
    controller that starts again begins it anew, and one whose look was recorded has no more to
    do."""

    def __init__(
        self,
        catalog: Catalog,
        read: Read,
        address: Callable[[InstanceView], str],
    ) -> None:
        """``read``: signals from an instance's own page; ``address``: where it listens."""
        self._catalog, self._read, self._address = catalog, read, address
        self._release: str | None = None
        self._forget()

    def _forget(self) -> None:
        self._run: SaturationRun | None = None
        self._driven: str | None = None
        self._ended: Driven | None = None

    @property
    def driven(self) -> str | None:
        """The instance that is being driven: a request of anybody else would disturb it."""
        return self._driven if self._run is not None and self._ended is None else None

    def look(
        self,
        release: Release,
        plan: Plan,
        pools: Mapping[str, PoolView],
        gate: MaxConcurrencyGate,
        now: datetime,
    ) -> Driven:
        """Begin it when it is due, and tell what is known; never waits for a request."""
        if self._release != release.id:
            self.stop()
            self._release = release.id
        if self._ended is not None:
            return self._ended
        if release.phase not in _BEFORE_TRAFFIC:
            self.stop()
            return self._end(Missing("the canary was not driven before it had traffic"), now)
        if self._run is None:
            return self._begin(release, plan, pools, gate, now)
        outcome = self._run.outcome()
        if outcome is None:
            return Driven(pending=True)
        if isinstance(outcome, Saturation):
            return self._end((outcome.held, outcome.missed), now)
        return self._end(Missing(outcome), now)

    def stop(self) -> None:
        """End what is under way; what it has counted so far is forgotten."""
        if self._run is not None:
            self._run.cancel()
        self._forget()

    def _end(self, found: tuple[int, int] | Missing | None, now: datetime) -> Driven:
        self._ended = Driven(found=found, ended_at=now.timestamp())
        return self._ended

    def _begin(
        self,
        release: Release,
        plan: Plan,
        pools: Mapping[str, PoolView],
        gate: MaxConcurrencyGate,
        now: datetime,
    ) -> Driven:
        canary = [m for m in pools.get(release.pool, PoolView()).members if m.serving]
        beside = plan.baseline_pool
        baseline = [m for m in pools.get(beside, PoolView()).members if m.serving] if beside else []
        if not canary or not baseline:
            return Driven(pending=True)
        together = gate.drive_at(self._look(canary, baseline, now))
        if not isinstance(together, int):
            return self._end(together, now)
        instance = canary[0].instance
        runtime = self._catalog.artifact(instance.digest).runtime
        drive = Drive(
            self._address(canary[0]),
            self._catalog.engine(instance.digest).model_name(runtime),
            together=together,
            tokens=runtime.limits.max_model_len,
            step_tokens=runtime.limits.max_num_batched_tokens,
        )
        self._driven = instance.id
        self._run = SaturationRun(
            drive, partial(self._load, instance, now), counted, gate.driven_enough
        )
        return Driven(pending=True)

    def _look(
        self, canary: Sequence[InstanceView], baseline: Sequence[InstanceView], now: datetime
    ) -> Look:
        """What the engines say of their capacity now."""
        return Look(
            at=now.timestamp(),
            canary=self._arm(canary, now),
            baseline=self._arm(baseline, now),
            canary_limits=self._limits(canary[0]),
            baseline_limits=self._limits(baseline[0]),
        )

    def _arm(self, members: Sequence[InstanceView], now: datetime) -> ArmWindow:
        deltas = []
        for member in members:
            scrape = self._read(member.instance, (Signal.CACHE_CONFIG,), now)
            deltas.append(Delta(member.instance.id, 1.0, scrape.values))
        return ArmWindow(tuple(deltas), len(members))

    def _limits(self, member: InstanceView) -> Mapping[str, int]:
        limits = self._catalog.artifact(member.instance.digest).runtime.limits
        return limits.model_dump()

    def _load(self, instance: Instance, now: datetime) -> EngineLoad:
        values = self._read(instance, _LOAD, now).values
        running, waiting, preemptions = (
            value.total if isinstance(value := values.get(signal), Series) else None
            for signal in _LOAD
        )
        return EngineLoad(running, waiting, preemptions)
