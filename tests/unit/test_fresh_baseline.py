"""``baseline: fresh``: what runs beside the canary, and which share each pool takes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from canaryctl.controller.artifact.loader import inspect_artifact
from canaryctl.controller.decide import Decision, decide
from canaryctl.controller.desired import Desired, desired
from canaryctl.controller.model import InstanceState, Release, ReleaseKind
from canaryctl.controller.plan import make_plan
from canaryctl.controller.states import FINAL, Phase
from canaryctl.controller.view import InstanceView, PoolView, View
from canaryctl.gates.outcome import Outcome
from tests.support.artifacts import artifact, write
from tests.support.releases import (
    CANARY,
    PREVIOUS,
    T0,
    clean,
    document,
    instance,
    pool,
    release,
    result,
    verdict,
    view,
)

FRESH = f"{CANARY}.baseline"
EAGER_DIGEST = "sha256:" + "e" * 64


def fresh(phase: Phase = Phase.PROGRESSING, **changes: Any) -> Release:
    rollout = {
        "baseline": "fresh",
        "steps": [{"weight": 5, "bake": "10s"}, {"weight": 25, "bake": "10s"}, {"weight": 50}],
    }
    doc = document(rollout=rollout, replicas=changes.pop("replicas", 4))
    return release(phase, document=doc, **{"weight": 5, "previous_replicas": 4, **changes})


def beside(
    rel: Release, *, canary: int = 1, baseline: int = 1, stable: int = 4, **more: Any
) -> View:
    pools = {
        PREVIOUS: pool(PREVIOUS, ready=stable),
        CANARY: pool(CANARY, ready=canary),
        FRESH: pool(FRESH, ready=baseline),
    }
    return view(rel, **{"pools": pools, "verdict": clean(), **more})


def wanted(v: View) -> Desired:
    return desired(v, EAGER_DIGEST)


def decided(v: View) -> Decision:
    decision = decide(v, wanted(v))
    assert decision is not None
    return decision


@pytest.mark.parametrize(
    ("step", "weight", "engines"), [(0, 5, 1), (1, 25, 1), (2, 50, 2)], ids=["5", "25", "50"]
)
def test_both_arms_are_as_large_and_take_as_much(step: int, weight: int, engines: int) -> None:
    v = beside(fresh(step=step, weight=weight), canary=engines, baseline=engines)
    assert wanted(v).weights == {CANARY: weight, FRESH: weight, PREVIOUS: 100 - 2 * weight}
    target = wanted(v).target(FRESH)
    assert target is not None
    assert (target.digest, target.replicas, target.restart) == (
        v.release.previous_digest if v.release else None,
        engines,
        True,
    )
    assert wanted(v).fallback == {CANARY: PREVIOUS, FRESH: PREVIOUS}


def test_every_step_with_traffic_compares_like_with_like() -> None:
    plan = make_plan(fresh())
    assert [step.unequal_load for step in plan.steps] == [None, None, None]
    assert plan.baseline_pool == FRESH
    assert plan.deciding_share == 0.5


def test_the_artifact_that_needs_more_engines_says_how_many() -> None:
    plan = make_plan(fresh(replicas=4, previous_replicas=8))
    assert [(s.canary_replicas, s.baseline_replicas) for s in plan.steps] == [
        (1, 1),
        (2, 2),
        (4, 4),
    ]
    small = make_plan(fresh(replicas=1, previous_replicas=8))
    assert [s.canary_replicas for s in small.steps] == [1, 1, 1]
    assert small.steps[2].unequal_load is not None
    assert "a baseline engine 12.5 %" in small.steps[2].unequal_load


@pytest.mark.parametrize("phase", sorted(Phase))
def test_it_runs_as_long_as_something_is_compared_in_steps(phase: Phase) -> None:
    v = beside(fresh(phase), effective={PREVIOUS: 90, CANARY: 5, FRESH: 5})
    runs = wanted(v).target(FRESH) is not None
    in_steps = {Phase.DEPLOYING, Phase.WARMING, Phase.PROGRESSING, Phase.PAUSED}
    assert runs == (phase in in_steps)
    if phase in FINAL or not runs:
        assert not wanted(v).weights.get(FRESH)


def test_it_is_loaded_and_warmed_like_the_canary() -> None:
    loading = PoolView((InstanceView(instance(FRESH, state=InstanceState.STARTING), alive=True),))
    pools = {PREVIOUS: pool(PREVIOUS, ready=4), CANARY: pool(CANARY), FRESH: loading}
    deploying = view(fresh(Phase.DEPLOYING), pools=pools)
    assert decided(deploying).release.hold == f"{FRESH} loads its model"
    warming = view(fresh(Phase.WARMING, weight=0), pools=pools, verdict=clean())
    assert decided(warming).release.hold == f"0 of 1 instances of {FRESH} are warm"
    warm = beside(fresh(Phase.WARMING, weight=0))
    assert decided(warm).release.phase is Phase.PROGRESSING


def test_a_step_comes_into_force_with_both_arms() -> None:
    second = fresh(step=2, weight=50)
    v = beside(second, canary=2, baseline=1)
    assert decided(v).release.hold == f"1 of 2 instances of {FRESH} are warm"
    whole = beside(second, canary=2, baseline=2, effective={CANARY: 50, FRESH: 50})
    assert decided(whole).release.step_at == T0


def test_its_death_is_not_the_canarys_failure() -> None:
    v = beside(fresh(step_at=T0), baseline=0)
    assert decided(v).release.phase is Phase.PROGRESSING
    assert wanted(v).weights == {CANARY: 5, PREVIOUS: 95}
    broken = PoolView((InstanceView(instance(FRESH), alive=True, fault="warmup: bucket 8"),))
    pools = {PREVIOUS: pool(PREVIOUS, ready=4), CANARY: pool(CANARY), FRESH: broken}
    assert decided(view(fresh(Phase.WARMING), pools=pools)).release.phase is Phase.WARMING


def test_a_part_of_it_takes_a_part() -> None:
    """Four engines of the stable artifact serve everything: one of them takes a quarter."""
    v = beside(fresh(step=2, weight=50, step_at=T0), canary=2, baseline=1)
    assert wanted(v).weights == {CANARY: 50, FRESH: 25, PREVIOUS: 25}


def test_where_stable_is_gone_its_artifact_serves_on() -> None:
    in_step = fresh(step_at=T0)
    assert wanted(beside(in_step, stable=0)).weights == {CANARY: 5, FRESH: 95}
    assert wanted(beside(in_step, stable=0, canary=0)).weights == {CANARY: 0, FRESH: 100}
    assert wanted(beside(in_step, stable=0, baseline=0)).weights == {CANARY: 100}
    warming = fresh(Phase.WARMING, weight=0)
    assert wanted(beside(warming, stable=0)).weights == {CANARY: 0, FRESH: 100}


def test_it_is_no_rung_but_serves_until_one_is_healthy() -> None:
    back = fresh(Phase.ROLLING_BACK, weight=0, reason="ttft_p90: slow")
    healthy = wanted(beside(back))
    assert (healthy.weights, healthy.target(FRESH)) == ({PREVIOUS: 100}, None)
    gone = beside(back, stable=0, effective={CANARY: 100})
    assert wanted(gone).weights == {FRESH: 100}
    assert decided(gone).release.phase is Phase.ROLLING_BACK
    late = replace(
        gone, now=T0.replace(hour=20), service=replace(gone.service, stable_release="r0")
    )
    failed = decided(late)
    assert failed.release.phase is Phase.FAILED
    assert failed.stable is not None
    assert failed.stable.digest == back.previous_digest
    assert (failed.stable.pool, failed.stable.replicas) == (FRESH, 4)
    assert failed.stable.release == "r0"


def test_a_failed_gate_returns_its_share_too() -> None:
    v = beside(fresh(step_at=T0), verdict=verdict(result(outcome=Outcome.FAILED)))
    after = decided(v).release
    assert after.phase is Phase.ROLLING_BACK
    assert wanted(replace(v, release=after)).weights == {PREVIOUS: 100}


@pytest.mark.parametrize("kind", [ReleaseKind.FIRST, ReleaseKind.ROLLBACK])
def test_beside_nothing_to_compare_with_it_is_left_out_in_words(kind: ReleaseKind) -> None:
    previous = (
        {} if kind is ReleaseKind.ROLLBACK else {"previous_pool": None, "previous_digest": None}
    )
    pending = fresh(Phase.PENDING, kind=kind, **previous)
    assert not make_plan(pending).fresh_baseline
    [event] = decided(view(pending, pools={})).events
    assert f"this {kind.value} release is compared with" in event.message


def test_a_weight_that_two_arms_cannot_have_is_refused_where_it_stands(tmp_path: Path) -> None:
    steps = [{"weight": 25}, {"weight": 51, "bake": "1s"}, {"weight": 100}]
    path = write(tmp_path, artifact("good", 1, rollout={"baseline": "fresh", "steps": steps}))
    lines = path.read_text().splitlines()
    found = inspect_artifact(path).mistakes
    assert [mistake.where for mistake in found] == [
        "rollout.steps[1].weight",
        "rollout.steps[2].weight",
    ]
    for mistake, weight in zip(found, ("51", "100"), strict=True):
        assert mistake.position is not None
        assert lines[mistake.position.line - 1][mistake.position.column - 1 :] == weight
    assert "expected at most 50" in found[0].message
    stable = write(tmp_path, artifact("good", 2, rollout={"steps": steps}))
    assert inspect_artifact(stable).mistakes == ()


def test_after_the_steps_it_is_told_beside_the_stable_pool() -> None:
    for phase in (Phase.PROMOTING, Phase.WATCHING):
        after = fresh(phase)
        assert make_plan(after).baseline_in(after) == PREVIOUS
    assert make_plan(fresh()).baseline_in(fresh()) == FRESH
