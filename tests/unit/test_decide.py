"""Decisions as operators meet them: the release's record, the events, and who serves."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from canaryctl.controller.decide import MIN_STEP_REQUESTS, Decision, decide
from canaryctl.controller.desired import desired
from canaryctl.controller.model import OperatorRequest, Release, ReleaseKind, Verb
from canaryctl.controller.states import Phase, Trigger
from canaryctl.controller.view import InstanceView, LoadState, PoolView, View
from canaryctl.gates.outcome import Outcome
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

EAGER_DIGEST = "sha256:" + "e" * 64


def decided(v: View) -> Decision:
    decision = decide(v, desired(v, EAGER_DIGEST))
    assert decision is not None
    return decision


def request(verb: Verb) -> OperatorRequest:
    return OperatorRequest(7, CANARY, verb, "alice", "because", T0)


def in_step(**changes: Any) -> Release:
    return release(step_at=T0, **changes)


def test_a_failed_gate_returns_traffic_in_the_same_record() -> None:
    v = view(in_step(), at=1, verdict=verdict(result(outcome=Outcome.FAILED)))
    after = decided(v).release
    assert (after.phase, after.weight) == (Phase.ROLLING_BACK, 0)
    assert after.reason == "ttft_p90: ttft_p90 says so"


def test_a_failed_gate_overrides_a_promote_request_and_a_pause() -> None:
    failed = verdict(result(outcome=Outcome.FAILED))
    for phase in (Phase.PAUSED, Phase.PROGRESSING, Phase.PROMOTING, Phase.WATCHING):
        v = view(in_step(phase=phase), verdict=failed, requests=(request(Verb.PROMOTE),))
        assert decided(v).release.phase is Phase.ROLLING_BACK


def test_an_engine_exit_is_told_apart() -> None:
    v = view(in_step(), verdict=verdict(result("engine_exit", Outcome.FAILED)))
    assert decided(v).events[-1].trigger is Trigger.ENGINE_EXIT


def test_error_and_no_data_never_promote() -> None:
    last = in_step(step=1, weight=50)
    for outcome in (Outcome.ERROR, Outcome.INCONCLUSIVE):
        v = view(last, at=60, verdict=clean(result(outcome=outcome)), step_requests=100)
        assert decided(v).release.phase is Phase.PROGRESSING


def test_a_step_waits_for_the_router_the_bake_and_the_requests() -> None:
    waiting = decided(view(release(), effective={PREVIOUS: 100}, verdict=clean())).release
    assert waiting.step_at is None
    in_force = decided(view(release(), at=3, verdict=clean())).release
    assert in_force.step_at == T0 + timedelta(seconds=3)
    baking = decided(view(in_step(), at=5, verdict=clean(), step_requests=100)).release
    assert (baking.step, baking.hold) == (0, "step 1 bakes")
    unused = decided(
        view(in_step(), at=11, verdict=clean(), step_requests=MIN_STEP_REQUESTS - 1)
    ).release
    assert unused.step == 0
    moved = decided(
        view(in_step(), at=11, verdict=clean(), step_requests=MIN_STEP_REQUESTS)
    ).release
    assert (moved.step, moved.weight, moved.step_at) == (1, 50, None)


def test_hard_gates_must_be_measured_before_a_step() -> None:
    unmeasured = verdict(
        result("engine_exit", Outcome.PASSED),
        result("oom", Outcome.PASSED),
        result("progress", Outcome.INCONCLUSIVE),
    )
    after = decided(view(in_step(), at=60, verdict=unmeasured, step_requests=100)).release
    assert after.step == 0
    assert after.hold is not None
    assert after.hold.startswith("progress")


def test_promotion_needs_the_rule_of_every_gate() -> None:
    last = in_step(step=1, weight=50)
    held = decided(view(last, at=60, verdict=clean(result()), step_requests=100)).release
    assert held.phase is Phase.PROGRESSING
    promoted = decided(
        view(last, at=60, verdict=clean(result(), promotable=True), step_requests=100)
    ).release
    assert (promoted.phase, promoted.weight) == (Phase.PROMOTING, 100)


def test_the_deadline_decides_by_policy_and_needs_no_data() -> None:
    late = decided(view(in_step(), at=601, verdict=None, effective=None)).release
    assert late.phase is Phase.ROLLING_BACK
    assert late.reason is not None
    assert late.reason.startswith("deadline")
    doc = document()
    rollout = doc.rollout.model_copy(update={"on_inconclusive": "promote"})
    from canaryctl.controller.artifact.schema import OnInconclusive

    rollout = doc.rollout.model_copy(update={"on_inconclusive": OnInconclusive.PROMOTE})
    lenient = in_step(document=doc.model_copy(update={"rollout": rollout}))
    assert decided(view(lenient, at=601, verdict=clean())).release.phase is Phase.PROMOTING


def test_the_deadline_holds_while_paused() -> None:
    v = view(in_step(phase=Phase.PAUSED), at=601, verdict=clean())
    assert decided(v).release.phase is Phase.ROLLING_BACK


def test_pause_and_resume_keep_the_weight() -> None:
    paused = decided(view(in_step(), verdict=clean(), requests=(request(Verb.PAUSE),)))
    assert (paused.release.phase, paused.release.weight) == (Phase.PAUSED, 10)
    assert paused.answers == {7: "done"}
    v = view(replace(paused.release), verdict=clean(), requests=(request(Verb.RESUME),))
    resumed = decided(v).release
    assert (resumed.phase, resumed.step, resumed.weight) == (Phase.PROGRESSING, 0, 10)


def test_a_request_that_cannot_be_met_is_answered() -> None:
    refused = decided(view(in_step(), verdict=clean(), requests=(request(Verb.RESUME),)))
    assert refused.answers[7].startswith("refused")
    assert refused.release.phase is Phase.PROGRESSING


def test_a_step_may_ask_for_a_person_even_at_the_end() -> None:
    doc = document(rollout={"steps": [{"weight": 10}, {"weight": 50, "bake": "1s", "pause": True}]})
    at_last = in_step(document=doc, step=1, weight=50)
    good = clean(result(), promotable=True)
    paused = decided(view(at_last, at=5, verdict=good, step_requests=100)).release
    assert paused.phase is Phase.PAUSED
    resumed = decided(view(paused, at=6, verdict=good, requests=(request(Verb.RESUME),))).release
    assert (resumed.phase, resumed.weight) == (Phase.PROGRESSING, 50)
    forced = replace(resumed, step_at=T0)
    assert (
        decided(view(forced, at=9, verdict=good, step_requests=100)).release.phase
        is Phase.PROMOTING
    )


def test_preflight_faults_refuse_before_anything_is_started() -> None:
    v = view(release(Phase.PREFLIGHT), preflight_faults=("no GPU like H200",))
    after = decided(v).release
    assert after.reason == "preflight: no GPU like H200"
    assert after.phase is Phase.ROLLING_BACK


def test_a_canary_that_can_never_be_ready_is_not_waited_for() -> None:
    broken = PoolView((InstanceView(instance(CANARY), alive=True, fault="warmup: bucket 8"),))
    v = view(release(Phase.WARMING), pools={PREVIOUS: pool(PREVIOUS), CANARY: broken})
    assert decided(v).release.reason == "warmup: bucket 8"


def test_warming_ends_with_a_look_before_traffic() -> None:
    warm = release(Phase.WARMING, weight=0)
    assert decided(view(warm, verdict=clean(), looked=False)).release.phase is Phase.WARMING
    after = decided(view(warm, verdict=clean())).release
    assert (after.phase, after.weight) == (Phase.PROGRESSING, 10)


def test_generated_load_must_end_well() -> None:
    doc = document(rollout={"steps": [{"weight": 0, "load": "generated"}, {"weight": 50}]})
    at_load = in_step(document=doc, weight=0)
    running = decided(view(at_load, at=9, verdict=clean(), step_requests=199)).release
    assert running.hold is not None
    assert running.hold.startswith("the generated load runs")
    broken = decided(
        view(at_load, at=9, verdict=clean(), step_requests=500, load=LoadState(fault="refused"))
    )
    assert broken.release.step == 0
    done = decided(view(at_load, at=9, verdict=clean(), step_requests=200))
    assert done.release.weight == 50


def test_watching_ends_in_one_commit_with_the_new_stable() -> None:
    watched = release(Phase.WATCHING, weight=100)
    early = decided(view(watched, at=29, verdict=clean()))
    assert early.release.phase is Phase.WATCHING
    done = decided(view(watched, at=30, verdict=clean()))
    assert done.release.phase is Phase.SUCCEEDED
    assert done.release.finished_at is not None
    assert done.stable is not None
    assert done.stable.pool == CANARY


def test_rollback_is_over_when_the_router_says_so() -> None:
    back = release(Phase.ROLLING_BACK, weight=0, reason="ttft_p90: slow")
    assert decided(view(back)).release.phase is Phase.ROLLING_BACK
    after = decided(view(back, effective={PREVIOUS: 100}))
    assert after.release.phase is Phase.ROLLED_BACK
    assert after.release.rollback_target == "previous"
    assert after.stable is None


def test_rollback_never_sends_traffic_to_a_previous_that_is_down() -> None:
    back = release(Phase.ROLLING_BACK, weight=0, reason="ttft_p90: slow")
    pools = {PREVIOUS: pool(PREVIOUS, ready=0, dead=1), CANARY: pool(CANARY)}
    v = view(back, pools=pools)
    wanted = desired(v, EAGER_DIGEST)
    assert wanted.weights == {CANARY: 100}
    assert wanted.target(CANARY) is not None
    assert wanted.target(f"{CANARY}.eager") is not None
    assert decided(v).release.phase is Phase.ROLLING_BACK


def test_eager_takes_over_and_becomes_stable() -> None:
    back = release(Phase.ROLLING_BACK, weight=0, reason="ttft_p90: slow")
    eager = f"{CANARY}.eager"
    pools = {
        PREVIOUS: pool(PREVIOUS, ready=0, dead=1),
        eager: PoolView((InstanceView(instance(eager), alive=True),)),
    }
    v = view(back, pools=pools, effective={eager: 100})
    after = decided(v)
    assert after.release.rollback_target == "eager"
    assert after.stable is not None
    assert (after.stable.digest, after.stable.pool) == (EAGER_DIGEST, eager)


def test_a_rung_that_is_not_whole_serves_better_than_nobody() -> None:
    doc = document(replicas=2)
    back = release(Phase.ROLLING_BACK, document=doc, weight=0, reason="ttft_p90: slow")
    eager = f"{CANARY}.eager"
    pools = {PREVIOUS: pool(PREVIOUS, ready=0, dead=1), eager: pool(eager)}
    early = view(back, pools=pools, effective={})
    assert desired(early, EAGER_DIGEST).weights == {eager: 100}
    assert decided(early).release.phase is Phase.ROLLING_BACK
    after = decided(view(back, at=4000, pools=pools, effective={eager: 100}))
    assert after.release.phase is Phase.FAILED
    assert after.stable is not None
    assert (after.stable.digest, after.stable.pool) == (EAGER_DIGEST, eager)


def test_a_refused_first_release_starts_nothing_to_roll_back_to() -> None:
    """No eager runtime is brought up on a machine that the preflight refused."""
    first = release(
        Phase.ROLLING_BACK,
        kind=ReleaseKind.FIRST,
        previous_pool=None,
        previous_digest=None,
        weight=0,
        reason="preflight: no GPU like H200",
    )
    refused = view(first, pools={}, effective={})
    assert desired(refused, EAGER_DIGEST).pools == ()
    assert decided(refused).release.phase is Phase.FAILED
    eager = f"{CANARY}.eager"
    with_baseline = view(first, pools={eager: pool(eager)}, effective={})
    assert desired(with_baseline, EAGER_DIGEST).weights == {eager: 100}


def test_no_healthy_rung_holds_the_best_one_and_calls_a_person() -> None:
    back = release(Phase.ROLLING_BACK, weight=0, reason="ttft_p90: slow")
    pools = {PREVIOUS: pool(PREVIOUS, ready=0), CANARY: pool(CANARY)}
    early = decided(view(back, at=100, pools=pools))
    assert early.release.phase is Phase.ROLLING_BACK
    after = decided(view(back, at=4000, pools=pools))
    assert after.release.phase is Phase.FAILED
    assert after.stable is not None
    assert after.stable.pool == CANARY


def test_a_first_release_without_graphs_has_no_rung() -> None:
    doc = document()
    runtime = doc.runtime.model_validate({**doc.runtime.model_dump(), "graph": {"mode": "NONE"}})
    first = release(
        Phase.ROLLING_BACK,
        document=doc.model_copy(update={"runtime": runtime}),
        kind=ReleaseKind.FIRST,
        previous_pool=None,
        previous_digest=None,
        weight=0,
    )
    assert decided(view(first, pools={}, effective={})).release.phase is Phase.FAILED
