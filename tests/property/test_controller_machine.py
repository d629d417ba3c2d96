"""A whole controller on a world that goes wrong: engines die, the router forgets or stops, gates
fail, people ask for things, time jumps, and the controller is killed before any effect.

Store, decisions, reconciling and the tick are the real ones; placement, router and looks are
small fakes that keep the promises of their protocols. What a person relies on is asserted all
the time, and after enough quiet ticks everything is where it should be.
"""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sqlalchemy import event

from canaryctl.controller.artifact.digest import digest_of
from canaryctl.controller.artifact.loader import LoadedArtifact
from canaryctl.controller.artifact.schema import ArtifactDocument, Baseline
from canaryctl.controller.catalog import Catalog
from canaryctl.controller.errors import FinalReleaseError
from canaryctl.controller.judge import Judge
from canaryctl.controller.loads import StepLoads
from canaryctl.controller.loop import LeasedService
from canaryctl.controller.model import (
    GpuClaim,
    InstanceState,
    Release,
    Verb,
)
from canaryctl.controller.observe import Observer
from canaryctl.controller.progress import ProgressWatch
from canaryctl.controller.reconcile import Reconciler
from canaryctl.controller.service import JUDGED, ServiceController
from canaryctl.controller.states import Phase, Trigger
from canaryctl.controller.store import Store
from canaryctl.controller.store.engine import create_store_engine
from canaryctl.controller.store.log import replay
from canaryctl.controller.submit import AlreadyStableError, Submitter
from canaryctl.gates.outcome import Outcome
from canaryctl.runtimes.engines.registry import engine
from canaryctl.runtimes.routers.base import RouteTable
from tests.support.world import (
    BEFORE_PROMOTION,
    LEASE_OVER_S,
    SERVICE,
    TICK_S,
    Crash,
    Effects,
    Engines,
    Gates,
    Looks,
    NoLoads,
    NoWatch,
    Routes,
    TestClock,
    document,
    empty_database,
)


class ControllerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory(prefix="canaryctl-machine-")
        self.path = Path(self.directory.name) / "canaryctl.db"
        shutil.copy(empty_database(), self.path)
        self.clock = TestClock()
        self.effects = Effects()
        self.engines = Engines(self.effects)
        self.routes = Routes(self.effects, on_apply=self.check_table)
        self.looks = Looks(self.engines)
        self.gates = Gates()
        self.loads = NoLoads()
        self.preflight: tuple[str, ...] = ()
        self.asked_to_promote: set[str] = set()
        self.failed_early: set[str] = set()
        self.holders = 0
        self.number = 0
        self.start_controller()

    # The controller's life

    def start_controller(self) -> None:
        self.holders += 1
        database = create_store_engine(f"sqlite:///{self.path}")

        @event.listens_for(database, "connect")
        def hurry(connection: Any, _: object) -> None:
            connection.execute("PRAGMA synchronous = OFF")

        # The process may end before a transaction, and after it.
        event.listen(database, "begin", lambda _: self.effects.point())
        self.store = Store(database)
        catalog = Catalog(self.store, engine)
        claim = GpuClaim("simulated", tuple(range(12)), 1, 0.9, share=False)
        controller = ServiceController(
            SERVICE,
            store=self.store,
            catalog=catalog,
            observer=cast("Observer", self.looks),
            judge=cast("Judge", self.gates),
            reconciler=Reconciler(
                self.store, catalog, self.engines, self.routes, lambda *_: claim, "127.0.0.1"
            ),
            router=self.routes,
            loads=cast("StepLoads", self.loads),
            preflight=lambda release, view: self.preflight,
            watch=lambda **limits: cast("ProgressWatch", NoWatch(**limits)),
        )
        self.leased = LeasedService(
            SERVICE, lambda: controller, self.store, self.clock, f"holder-{self.holders}"
        )

    def tick(self, ends_in: int | None = None) -> Any:
        """One tick; a crash in it is followed by a controller that knows nothing."""
        before = self.store.active_release(SERVICE)
        self.effects.ends_in = ends_in
        try:
            tick = self.leased.tick()
            self.effects.ends_in = None
        except Crash:
            self.store.close()
            self.start_controller()
            self.clock.sleep(LEASE_OVER_S)
            tick = None
        if before is not None:
            self.check_promotion(before)
            if tick is not None:
                self.check_failure(before)
        self.clock.sleep(TICK_S)
        return tick

    # What happens

    @initialize(
        graphs=st.booleans(),
        replicas=st.integers(1, 2),
        first=st.booleans(),
        baseline=st.sampled_from(Baseline),
    )
    def begin(self, graphs: bool, replicas: int, first: bool, baseline: Baseline) -> None:
        """A first release, or one beside a stable runtime."""
        if not first:
            self.submit(graphs=graphs, replicas=replicas, pause=False, baseline=baseline)
            self.all_becomes_quiet()
        self.submit(graphs=graphs, replicas=replicas, pause=False, baseline=baseline)

    @precondition(lambda self: self.active() is None)
    @rule(
        graphs=st.booleans(),
        replicas=st.integers(1, 3),
        pause=st.booleans(),
        baseline=st.sampled_from(Baseline),
    )
    def submit(self, graphs: bool, replicas: int, pause: bool, baseline: Baseline) -> None:
        self.number += 1
        self.release_of(
            document(self.number, graphs=graphs, replicas=replicas, pause=pause, baseline=baseline)
        )

    def release_of(self, made: ArtifactDocument) -> None:
        loaded = LoadedArtifact(made, digest_of(made.runtime), "", Path())
        Submitter(self.store, engine, self.engines.free_port).release(
            loaded, actor="ann", now=self.clock.now()
        )

    @precondition(lambda self: self.active() is None)
    @rule(to=st.sampled_from(("previous", "eager")))
    def roll_back_service(self, to: str) -> None:
        service = self.store.service(SERVICE)
        submitter = Submitter(self.store, engine, self.engines.free_port)
        stable = service.stable_release and self.store.release(service.stable_release)
        if not stable or (to == "previous" and stable.previous_digest is None):
            return
        uses_graphs = self.store.artifact(stable.digest).runtime.uses_graphs
        if to == "eager" and not uses_graphs:
            return
        try:
            submitter.rollback(SERVICE, to, actor="ann", reason="", now=self.clock.now())
        except AlreadyStableError:
            return

    @rule(ticks=st.integers(1, 8))
    def ticks_pass(self, ticks: int) -> None:
        for _ in range(ticks):
            self.tick()

    @precondition(lambda self: self.active() is not None)
    @rule(
        phase=st.sampled_from((Phase.WARMING, Phase.PROGRESSING, Phase.PROMOTING, Phase.WATCHING))
    )
    def goes_on_to(self, phase: Phase) -> None:
        """So that what happens next happens in late phases as often as in early ones."""
        for _ in range(40):
            release = self.active()
            if release is None or release.phase is phase:
                return
            self.tick()

    @rule(effects=st.integers(1, 40))
    def killed_before_an_effect(self, effects: int) -> None:
        self.tick(ends_in=effects)

    @precondition(lambda self: self.engines.running)
    @rule(data=st.data())
    def engine_dies(self, data: st.DataObject) -> None:
        self.engines.die(data.draw(st.sampled_from(sorted(self.engines.running))))

    @precondition(lambda self: self.starting())
    @rule(data=st.data())
    def engine_will_never_be_ready(self, data: st.DataObject) -> None:
        self.looks.never_ready.add(data.draw(st.sampled_from(self.starting())))

    @rule()
    def next_start_fails(self) -> None:
        self.engines.cannot_start = 1

    @precondition(lambda self: self.active() is not None)
    @rule(outcome=st.sampled_from((Outcome.FAILED, Outcome.PASSED, Outcome.INCONCLUSIVE)))
    def gate_says(self, outcome: Outcome) -> None:
        release = self.active()
        if release is None or self.gates.soft.get(release.id) is Outcome.FAILED:
            return  # a failure stands
        self.gates.soft[release.id] = outcome
        if outcome is Outcome.FAILED and release.phase in BEFORE_PROMOTION:
            self.failed_early.add(release.id)

    @precondition(lambda self: self.active() is not None)
    @rule(verb=st.sampled_from((Verb.PROMOTE, Verb.ABORT, Verb.PAUSE, Verb.RESUME, Verb.RESUME)))
    def person_asks(self, verb: Verb) -> None:
        release = self.active()
        if release is None:
            return
        try:
            self.store.add_request(release.id, verb, "ann", "", self.clock.now())
        except FinalReleaseError:
            return
        if verb is Verb.PROMOTE:
            self.asked_to_promote.add(release.id)

    @rule()
    def router_loses_its_table(self) -> None:
        self.routes.table = RouteTable(SERVICE, ())

    @rule()
    def router_stops_or_comes_back(self) -> None:
        self.routes.runs = not self.routes.runs

    @rule(faults=st.sampled_from(((), (), ("no GPU like H200",))))
    def machine_changes(self, faults: tuple[str, ...]) -> None:
        self.preflight = faults

    @rule(seconds=st.sampled_from((1, 10, 130)))
    def time_passes(self, seconds: int) -> None:
        self.clock.sleep(seconds)

    @rule()
    def all_becomes_quiet(self) -> None:
        """Whatever happened: the release ends, and only the right engines run and serve."""
        self.routes.runs = True
        self.engines.cannot_start = 0
        self.looks.never_ready.clear()
        settled = False
        for number in range(300):
            tick = self.tick()
            settled = tick is not None and tick.settled
            if settled and self.active() is None:
                break
            self.clock.sleep(0 if number < 80 else 5)
        assert self.active() is None, self.active()
        assert settled, (self.store.instances(live_only=True), self.routes.table)
        service = self.store.service(SERVICE)
        left = self.store.instances(live_only=True)
        assert {instance.id for instance in left} == self.engines.running
        assert {instance.pool for instance in left} <= {service.stable_pool}
        wanted = service.stable_replicas if service.stable_pool else 0
        assert len(left) == wanted
        assert {lease.instance for lease in self.store.leased_gpus()} == self.engines.running
        serving = {pool: weight for pool, weight in self.routes.table.weights.items() if weight}
        assert serving == ({service.stable_pool: 100} if service.stable_pool else {})

    def teardown(self) -> None:
        try:
            self.all_becomes_quiet()
        finally:
            self.store.close()
            self.directory.cleanup()

    # What holds

    def active(self) -> Release | None:
        return self.store.active_release(SERVICE)

    def starting(self) -> list[str]:
        """Canaries and their like that are on their way; a stable one that never comes up is
        another story."""
        release = self.active()
        return [
            instance.id
            for instance in self.store.instances(live_only=True)
            if instance.state is InstanceState.STARTING
            and release is not None
            and instance.pool == release.pool
        ]

    def check_table(self, table: RouteTable) -> None:
        """Whoever gets traffic is warm, and somebody gets it as soon as anybody can."""
        known = {instance.id: instance for instance in self.store.instances(live_only=True)}
        for pool in table.pools:
            members = [known[member.instance] for member in pool.members]
            assert all(member.state is InstanceState.READY for member in members), pool
            assert not pool.weight or members, pool
        release = self.active()
        rungs = {release.previous_pool, release.eager_pool} if release else set()
        if release is not None and release.previous_pool is not None:
            self.check_fresh_baseline(table, release)
            rungs.add(release.fresh_pool)
        serving = [pool for pool in table.pools if pool.members and pool.name in rungs]
        assert not serving or sum(table.weights.values()) == 100 or self.is_first(release), table

    def check_fresh_baseline(self, table: RouteTable, release: Release) -> None:
        """Beside a stable runtime that serves, it never has more than the canary, and nothing
        outside the steps."""
        weights = table.weights
        ready = {pool.name for pool in table.pools if pool.members}
        if release.previous_pool in ready:
            in_steps = release.phase in (Phase.PROGRESSING, Phase.PAUSED)
            most = weights.get(release.pool, 0) if in_steps else 0
            assert weights.get(release.fresh_pool, 0) <= most, (release.phase, table)

    def is_first(self, release: Release | None) -> bool:
        return release is not None and release.previous_pool is None

    def check_promotion(self, before: Release) -> None:
        after = self.store.release(before.id)
        if after.phase is not Phase.PROMOTING or before.phase is Phase.PROMOTING:
            return
        moves = [event for event in self.store.events(after.id) if event.trigger is Trigger.PROMOTE]
        [move] = moves
        asked = move.actor == "ann" and after.id in self.asked_to_promote
        assert asked or self.gates.promotable

    def check_failure(self, before: Release) -> None:
        """A failed gate returns traffic at the very tick that sees it, whatever else is asked."""
        failed = self.gates.soft.get(before.id) is Outcome.FAILED
        if failed and before.phase in JUDGED:
            phase = self.store.release(before.id).phase
            assert phase in (Phase.ROLLING_BACK, Phase.ROLLED_BACK, Phase.FAILED), phase

    @invariant()
    def logs_replay(self) -> None:
        for release in self.store.releases():
            assert replay(self.store.events(release.id)) is release.phase

    @invariant()
    def a_failed_gate_is_never_forgotten(self) -> None:
        for name in self.failed_early:
            phase = self.store.release(name).phase
            assert phase not in (Phase.SUCCEEDED, Phase.WATCHING, Phase.PROMOTING), phase

    @invariant()
    def whatever_runs_is_known(self) -> None:
        """No engine without a live record: it would be left over."""
        live = {instance.id for instance in self.store.instances(live_only=True)}
        assert self.engines.running <= live


TestController = ControllerMachine.TestCase
TestController.settings = settings(
    max_examples=12,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture
def world() -> Iterator[ControllerMachine]:
    """The same world without chance: a service with a stable runtime, and a release begun."""
    world = ControllerMachine()
    world.submit(graphs=True, replicas=1, pause=False, baseline=Baseline.STABLE)
    release = world.active()
    assert release is not None
    world.gates.soft[release.id] = Outcome.PASSED
    world.all_becomes_quiet()
    world.submit(graphs=True, replicas=1, pause=False, baseline=Baseline.STABLE)
    yield world
    world.teardown()


def test_a_canary_that_cannot_be_started_is_rolled_back(world: ControllerMachine) -> None:
    """Neither is it tried for ever, nor does the controller end with an error."""
    release = world.active()
    assert release is not None
    world.engines.cannot_start = 1
    world.ticks_pass(8)
    after = world.store.release(release.id)
    assert after.phase is Phase.ROLLED_BACK
    [fault] = world.store.faults(release.id)
    assert "cannot be started: no such program" in fault.detail


def test_without_a_router_a_release_still_ends(world: ControllerMachine) -> None:
    """Its gates and its deadline do not wait for what cannot be reached."""
    release = world.active()
    assert release is not None
    world.ticks_pass(4)
    world.routes.runs = False
    world.gates.soft[release.id] = Outcome.FAILED
    tick = world.tick()
    assert world.store.release(release.id).phase is Phase.ROLLING_BACK
    assert "the router does not come up" in [trouble.why for trouble in tick.troubles]
