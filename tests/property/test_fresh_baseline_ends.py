"""Releases with a fresh baseline, ended in every phase by everyone who can: nothing is left over,
and the stable artifact serves all the time."""

from collections.abc import Iterator

import pytest

from canaryctl.controller.artifact.schema import Baseline
from canaryctl.controller.model import InstanceState, Release, Verb
from canaryctl.controller.states import FINAL, Phase
from canaryctl.gates.outcome import Outcome
from tests.property.test_controller_machine import ControllerMachine
from tests.support.world import SERVICE, document

BEFORE_STEPS = (Phase.PENDING, Phase.PREFLIGHT, Phase.DEPLOYING, Phase.WARMING)
IN_STEPS = (Phase.PROGRESSING, Phase.PAUSED)
AFTER_STEPS = (Phase.PROMOTING, Phase.WATCHING)


class World(ControllerMachine):
    """A service of two engines, and a release with a fresh baseline that pauses at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.gates.counted = 500  # enough for the load of a first release
        self.submit(graphs=False, replicas=2, pause=False, baseline=Baseline.STABLE)
        self.gates.soft[self.release.id] = Outcome.PASSED
        self.all_becomes_quiet()
        self.stable = self.store.service(SERVICE)
        self.begun: list[str] = []
        self.again()

    def again(self) -> Release:
        self.submit(graphs=False, replicas=2, pause=True, baseline=Baseline.FRESH)
        release = self.release
        self.gates.soft[release.id] = Outcome.INCONCLUSIVE
        self.begun.append(release.id)
        return release

    @property
    def release(self) -> Release:
        release = self.active()
        assert release is not None
        return release

    def phase(self) -> Phase:
        return self.release.phase

    def until(self, phase: Phase) -> Release:
        """The first tick after which the release is in that phase."""
        for _ in range(200):
            if self.release.phase is phase:
                return self.release
            if self.release.phase is Phase.PAUSED and phase in AFTER_STEPS:
                self.ask(Verb.PROMOTE)
            self.tick()
        raise AssertionError(f"never {phase.value}: {self.release}")

    def ask(self, verb: Verb) -> None:
        if verb is Verb.PROMOTE:
            self.asked_to_promote.add(self.release.id)
        self.store.add_request(self.release.id, verb, "ann", "", self.clock.now())

    def fresh(self, release: Release) -> list[InstanceState]:
        return [i.state for i in self.store.instances(pool=release.fresh_pool)]

    def live(self, release: Release) -> int:
        return len(self.store.instances(pool=release.fresh_pool, live_only=True))


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.all_becomes_quiet()
    assert [world.live(world.store.release(name)) for name in world.begun] == [0] * len(world.begun)
    world.teardown()


def test_it_serves_as_much_as_the_canary_and_ends_with_the_steps(world: World) -> None:
    release = world.until(Phase.PROGRESSING)
    world.ticks_pass(2)
    weights = world.routes.table.weights
    assert weights == {release.pool: 25, release.fresh_pool: 25, release.previous_pool: 50}
    world.until(Phase.PAUSED)
    weights = world.routes.table.weights
    assert (weights[release.pool], weights[release.fresh_pool]) == (50, 50)
    world.until(Phase.WATCHING)
    assert world.live(release) == 0
    world.all_becomes_quiet()
    assert world.store.release(release.id).phase is Phase.SUCCEEDED
    assert InstanceState.DEAD not in world.fresh(release)


@pytest.mark.parametrize("phase", [*BEFORE_STEPS, *IN_STEPS, *AFTER_STEPS])
def test_superseded_in_every_phase(world: World, phase: Phase) -> None:
    release = world.until(phase)
    world.ask(Verb.SUPERSEDE)
    world.all_becomes_quiet()
    assert world.store.release(release.id).phase is Phase.ROLLED_BACK
    assert world.store.service(SERVICE).stable_pool == world.stable.stable_pool


def test_aborted_and_tried_again_it_is_another_one(world: World) -> None:
    release = world.until(Phase.PROGRESSING)
    world.ask(Verb.ABORT)
    world.all_becomes_quiet()
    assert world.store.release(release.id).phase is Phase.ROLLED_BACK
    retried = world.again()
    assert retried.fresh_pool != release.fresh_pool
    world.until(Phase.PROGRESSING)
    assert world.live(retried) == 1
    world.ask(Verb.ABORT)


@pytest.mark.parametrize("phase", [Phase.WARMING, Phase.PROGRESSING])
def test_a_gate_that_fails_ends_it_as_well(world: World, phase: Phase) -> None:
    release = world.until(phase)
    world.gates.soft[release.id] = Outcome.FAILED
    world.tick()
    assert not world.routes.table.weights.get(release.fresh_pool)
    world.all_becomes_quiet()
    assert world.store.release(release.id).phase is Phase.ROLLED_BACK


def test_paused_and_resumed_it_stays_as_it_is(world: World) -> None:
    release = world.until(Phase.PROGRESSING)
    world.ticks_pass(2)
    before = world.store.instances(pool=release.fresh_pool)
    world.ask(Verb.PAUSE)
    world.ticks_pass(4)
    assert world.phase() is Phase.PAUSED
    assert world.routes.table.weights[release.fresh_pool] == 25
    world.ask(Verb.RESUME)
    world.ticks_pass(2)
    assert world.phase() is Phase.PROGRESSING
    assert world.store.instances(pool=release.fresh_pool) == before


def test_its_death_costs_the_canary_nothing(world: World) -> None:
    release = world.until(Phase.PROGRESSING)
    world.ticks_pass(2)
    [fresh] = world.store.instances(pool=release.fresh_pool)
    world.engines.die(fresh.id)
    world.ticks_pass(2)
    assert world.release.phase is Phase.PROGRESSING
    assert world.store.faults(release.id) == ()
    weights = world.routes.table.weights
    assert (weights[release.pool], weights.get(release.fresh_pool, 0)) == (25, 0)
    world.clock.sleep(1)
    world.ticks_pass(12)
    assert world.live(release) >= 1
    assert InstanceState.DEAD in world.fresh(release)
    assert world.release.phase not in FINAL


def test_where_stable_dies_its_artifact_serves_on_and_is_handed_back(world: World) -> None:
    release = world.until(Phase.PROGRESSING)
    world.ticks_pass(2)
    for instance in world.store.instances(pool=release.previous_pool):
        world.engines.die(instance.id)
    world.tick()
    weights = world.routes.table.weights
    assert (weights[release.pool], weights[release.fresh_pool]) == (25, 75)
    world.gates.soft[release.id] = Outcome.FAILED
    world.tick()
    assert world.routes.table.weights[release.fresh_pool] == 100
    world.all_becomes_quiet()
    assert world.store.release(release.id).phase is Phase.ROLLED_BACK
    assert world.store.service(SERVICE).stable_pool == world.stable.stable_pool


def test_the_controllers_own_load_is_for_the_two_arms_while_both_are_whole(world: World) -> None:
    world.ask(Verb.ABORT)
    world.all_becomes_quiet()
    world.gates.counted = 100  # fewer than the step asks for: it goes on
    made = document(9, graphs=False, replicas=2, pause=False, baseline="fresh", loaded=True)
    world.release_of(made)
    release = world.until(Phase.PROGRESSING)
    world.ticks_pass(3)
    [canary] = world.store.instances(pool=release.pool)
    [fresh] = world.store.instances(pool=release.fresh_pool)
    assert world.loads.asked == (f"http://{canary.id}", f"http://{fresh.id}")
    assert world.routes.table.weights[release.previous_pool or ""] == 100
    world.engines.die(fresh.id)
    world.tick()
    assert not world.loads.asked
    world.clock.sleep(1)
    world.ticks_pass(12)
    assert len(world.loads.asked) == 2
    assert f"http://{fresh.id}" not in world.loads.asked
    world.gates.counted = 500


@pytest.mark.parametrize("effects", [2, 5, 9, 14, 20])
def test_killed_while_the_baseline_is_started_or_ended(world: World, effects: int) -> None:
    world.until(Phase.DEPLOYING)
    world.killed_before_an_effect(effects)
    release = world.until(Phase.PROGRESSING)
    world.ticks_pass(2)
    assert world.live(release) == 1
    world.gates.soft[release.id] = Outcome.FAILED
    world.killed_before_an_effect(effects)
    world.all_becomes_quiet()
    assert world.store.release(release.id).phase is Phase.ROLLED_BACK
