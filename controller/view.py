"""What is known at one tick: the values that deciding and reconciling start from. No I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from canaryctl.controller.model import (
    Instance,
    InstanceState,
    OperatorRequest,
    Release,
    Service,
)
from canaryctl.controller.plan import Plan
from canaryctl.gates.outcome import Verdict


@dataclass(frozen=True, slots=True)
class InstanceView:
    """An instance as recorded and as seen. ``alive``: its process runs and its health is good
    (before it listens: its process runs). ``fault``: why it can never become ready."""

    instance: Instance
    alive: bool
    fault: str | None = None
    running_requests: int | None = None  # None: could not be read

    @property
    def serving(self) -> bool:
        instance = self.instance
        return self.alive and instance.state is InstanceState.READY and instance.stop_at is None


@dataclass(frozen=True, slots=True)
class PoolView:
    """The instances of one pool that are not ended."""

    members: tuple[InstanceView, ...] = ()

    @property
    def ready(self) -> int:
        return sum(member.serving for member in self.members)

    @property
    def launched(self) -> int:
        """Instances that are meant to run: not stopping, not ended."""
        return sum(
            member.instance.state
            in (InstanceState.REQUESTED, InstanceState.STARTING, InstanceState.READY)
            for member in self.members
        )

    @property
    def fault(self) -> str | None:
        return next((member.fault for member in self.members if member.fault), None)


@dataclass(frozen=True, slots=True)
class LoadState:
    """The requests that the controller makes at a step with ``load``. ``fault``: why it makes
    none any more."""

    fault: str | None = None


@dataclass(frozen=True, slots=True)
class View:
    """Everything that a decision about one service depends on.

    ``effective``: weights as the router reports them; None when it cannot say.
    ``step_requests``: requests that the canary has answered in the current step.
    ``looked``: the gates have judged samples of the warm canary at least once.
    ``blind``: why the gates can read nothing of an arm at the moment.
    """

    now: datetime
    service: Service
    release: Release | None
    plan: Plan | None
    pools: Mapping[str, PoolView]
    effective: Mapping[str, int] | None
    verdict: Verdict | None = None
    requests: tuple[OperatorRequest, ...] = ()
    preflight_faults: tuple[str, ...] | None = None  # None: not checked yet
    load: LoadState = field(default_factory=LoadState)
    step_requests: int = 0
    looked: bool = False
    blind: str | None = None

    def pool(self, name: str | None) -> PoolView:
        return self.pools.get(name, PoolView()) if name else PoolView()

    def in_force(self, wanted: Mapping[str, int]) -> bool:
        """The router serves exactly these weights (pools of weight 0 do not matter)."""
        if self.effective is None:
            return False
        return {p: w for p, w in self.effective.items() if w} == {
            p: w for p, w in wanted.items() if w
        }
