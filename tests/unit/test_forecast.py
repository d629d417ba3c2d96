"""The forecast of a release: time over steps, refusals with offers, and how it is told."""

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from canaryctl.controller.artifact.schema import ArtifactDocument
from canaryctl.controller.explain import explain
from canaryctl.controller.forecast import (
    GateForecast,
    Rate,
    ReleaseForecast,
    Survey,
    forecast_gate,
    forecast_release,
)
from canaryctl.controller.forecast_report import forecast_document, plan_lines
from canaryctl.controller.model import GateRecord, Release, ReleaseEvent, ReleaseKind
from canaryctl.controller.offers import forecast_with_offers
from canaryctl.controller.states import Phase
from canaryctl.gates.outcome import GateResult, Outcome
from tests.support.gates import arm
from tests.support.releases import T0, release
from tests.support.releases import document as make_document
from tests.unit.test_gates_forecast import PAST, VLLM, counted, history
from tests.unit.test_gates_forecast_flow import flow_past

TTFT = {"name": "ttft_p90", "max_regression": "21%"}
OOM = {"name": "oom", "max": 0}
SERVED = Survey(past=arm(PAST), rate=Rate.given(40.0), startup_s=20.0)


def planned(*gates: dict[str, Any], **rollout: Any) -> Release:
    shape = {
        "steps": [{"weight": 10, "bake": "10s"}, {"weight": 50, "bake": "20s"}],
        "interval": "2s",
        "progress_deadline": "30m",
        "detectable": "100%",
        **rollout,
    }
    document = make_document(rollout=shape, gates=[*gates, OOM])
    return release(Phase.PENDING, document=document, kind=ReleaseKind.RELEASE)


def gate(found: ReleaseForecast, name: str) -> GateForecast:
    return next(g for g in found.gates if g.name == name)


def seconds(found: GateForecast) -> float:
    assert found.sure is not None
    return found.sure.seconds


def test_evidence_begins_at_the_step_that_compares_like_with_like() -> None:
    found = forecast_release(planned(TTFT), SERVED)
    assert [s.requests_per_s for s in found.steps] == [4.0, 20.0]
    assert [s.planned.unequal_load is None for s in found.steps] == [False, True]
    ttft = gate(found, "ttft_p90")
    assert ttft.sure is not None
    assert ttft.sure.step == 1
    assert ttft.forecast is not None
    need = ttft.forecast.needs["no_harm"]  # type: ignore[index]
    assert need.seconds is not None
    assert ttft.sure.seconds == pytest.approx(10 + need.seconds)
    assert found.sure_s == ttft.sure.seconds
    assert gate(found, "oom") == GateForecast("oom", judged=False)
    assert found.refusals == ()


def test_evidence_adds_up_over_steps_that_compare() -> None:
    once = planned(TTFT, steps=[{"weight": 50, "bake": "20s"}])
    twice = planned(TTFT, steps=[{"weight": 50, "bake": "20s"}, {"weight": 50, "bake": "20s"}])
    at_once, later = (gate(forecast_release(rel, SERVED), "ttft_p90") for rel in (once, twice))
    assert later.sure is not None
    assert later.sure.step == 1
    assert seconds(later) == pytest.approx(seconds(at_once))


def test_a_canary_that_grows_takes_the_time_of_a_start() -> None:
    steps = [{"weight": 25, "bake": "10s"}, {"weight": 50, "bake": "20s"}]
    shape = {"steps": steps, "baseline": "fresh", "detectable": "100%"}
    alike = make_document(rollout=shape, gates=[TTFT], replicas=4)
    rel = release(Phase.PENDING, document=alike, previous_replicas=4)
    slow, quick = (
        forecast_release(rel, replace(SERVED, startup_s=startup)) for startup in (40.0, None)
    )
    assert [step.grows_s for step in slow.steps] == [0.0, 40.0]
    assert seconds(gate(slow, "ttft_p90")) == pytest.approx(seconds(gate(quick, "ttft_p90")) + 40)
    assert slow.steps_s == quick.steps_s + 40


def test_counts_gather_evidence_at_every_step() -> None:
    errors = {"name": "error_rate", "max_ratio": "2%"}
    found = gate(forecast_release(planned(errors), SERVED), "error_rate")
    slower = gate(forecast_release(planned(errors, steps=[{"weight": 10}]), SERVED), "error_rate")
    assert found.sure is not None
    assert found.sure.step == 1
    assert seconds(found) < seconds(slower)


def test_the_first_steps_last_until_the_canary_has_answered_enough() -> None:
    slow = replace(SERVED, rate=Rate.given(2.0))
    found = forecast_release(planned(TTFT), slow)
    assert found.steps[0].least_s == pytest.approx(100.0)  # 20 requests at 0.2 a second


def test_a_deadline_that_is_too_short_is_refused_with_what_would_help() -> None:
    found = forecast_with_offers(planned(TTFT, progress_deadline="2m"), SERVED)
    refused = gate(found, "ttft_p90")
    assert refused.refused is not None
    assert "blocks, about" in refused.refused
    assert "the progress deadline is 2 min" in refused.refused
    offered = "\n".join(refused.offers)
    assert "interval: 1s: decided after about" in offered
    assert "progress_deadline: 4m: decided after about" in offered
    assert found.refusals[0].startswith("ttft_p90: it takes")
    assert "\n  - interval" in found.refusals[0]


def test_every_offer_holds_when_it_is_taken() -> None:
    asked = {"name": "ttft_p99", "max_regression": "10%"}
    low = replace(SERVED, rate=Rate.given(8.0))
    before = planned(asked, detectable="50%", progress_deadline="6m")
    refused = gate(forecast_with_offers(before, low), "ttft_p99")
    assert refused.refused is not None
    variants: dict[str, dict[str, Any]] = {
        "ttft_p95 in its place": {"gates": {**asked, "name": "ttft_p95"}},
        "detectable: 75%": {"detectable": "75%"},
        "progress_deadline: 12m": {"progress_deadline": "12m"},
    }
    offered = [offer.split(": decided")[0] for offer in refused.offers]
    assert offered == [*variants, "an A/A history (`canaryctl gates history`)"]
    known = replace(low, history=history(1.0))
    assert forecast_release(before, known).refusals == ()
    for changes in variants.values():
        gates = changes.pop("gates", asked)
        rollout = {"detectable": "50%", "progress_deadline": "6m", **changes}
        after = forecast_release(planned(gates, **rollout), low)
        assert after.refusals == ()
        assert not any(g.warning for g in after.gates)


def test_a_share_that_never_compares_is_refused_and_an_even_one_is_offered() -> None:
    steps = [{"weight": 10, "bake": "10s"}, {"weight": 30, "bake": "20s"}]
    found = forecast_with_offers(planned(TTFT, steps=steps), SERVED)
    refused = gate(found, "ttft_p90")
    assert refused.refused is not None
    assert "no step compares like with like" in refused.refused
    assert any("a last step of weight" in offer for offer in refused.offers)


def test_a_comparing_step_that_ends_too_soon_is_refused_and_a_longer_one_is_offered() -> None:
    steps = [{"weight": 50, "bake": "20s"}, {"weight": 80, "bake": "10s"}]
    refused = gate(forecast_with_offers(planned(TTFT, steps=steps), SERVED), "ttft_p90")
    assert refused.refused is not None
    assert "the last step that compares like with like (weight 50) ends before" in refused.refused
    assert any(offer.startswith("bake: ") for offer in refused.offers)


def test_coarse_buckets_are_refused_in_their_own_words() -> None:
    coarse = counted(random.Random(3), 20_000, edges=VLLM)
    survey = replace(SERVED, past=arm(coarse))
    asked = {"name": "ttft_p99", "max_regression": "10%"}
    refused = gate(forecast_with_offers(planned(asked, detectable="50%"), survey), "ttft_p99")
    assert refused.refused is not None
    assert "more than 150 % can be told" in refused.refused
    assert any(offer.startswith("detectable: ") for offer in refused.offers)


@pytest.mark.parametrize("survey", [Survey(silence="nobody looked"), replace(SERVED, rate=None)])
def test_nothing_is_refused_on_a_guess(survey: Survey) -> None:
    asked = {"name": "ttft_p99", "max_regression": "10%"}
    found = forecast_release(planned(asked, detectable="11%"), survey)
    assert found.refusals == ()
    assert gate(found, "ttft_p99").forecast.least is not None  # type: ignore[union-attr]


def test_what_no_data_could_decide_is_refused_without_any() -> None:
    found = forecast_release(planned(TTFT, interval="15s", progress_deadline="5m"), Survey())
    refused = gate(found, "ttft_p90")
    assert refused.refused is not None
    assert "at least" in refused.refused


def test_a_counted_rate_is_given_the_benefit_of_chance() -> None:
    rate = Rate.counted(9, 3.0)
    assert rate.per_s == 3.0
    assert rate.most == pytest.approx(17 / 3)


def test_on_inconclusive_promote_turns_a_refusal_into_a_warning() -> None:
    asked = planned(TTFT, progress_deadline="1m", on_inconclusive="promote")
    found = gate(forecast_release(asked, SERVED), "ttft_p90")
    assert found.refused is None
    assert "promoted undecided" in (found.warning or "")


def test_what_fits_only_without_the_start_is_warned_of() -> None:
    found = gate(forecast_release(planned(TTFT), SERVED), "ttft_p90")
    tight = round(seconds(found)) + 5
    warned = gate(
        forecast_release(planned(TTFT, progress_deadline=f"{tight}s"), SERVED), "ttft_p90"
    )
    assert warned.refused is None
    assert "are left of the progress deadline once the canary is warm" in (warned.warning or "")


def test_proven_needs_a_history_and_then_a_margin() -> None:
    asked = {**TTFT, "margin": "46%"}
    refused = gate(forecast_release(planned(asked, promote_on="proven"), SERVED), "ttft_p90")
    assert "needs a history of equal runtimes" in (refused.refused or "")
    known = replace(SERVED, history=history(1.0))
    found = gate(forecast_release(planned(asked, promote_on="proven"), known), "ttft_p90")
    assert found.refused is None
    assert found.likely is not None
    assert seconds(found) >= found.likely.seconds


def test_the_first_release_is_planned_by_its_own_load() -> None:
    document = ArtifactDocument.model_validate(
        {
            **make_document(gates=[OOM]).model_dump(mode="json", exclude_unset=True),
            "gates": [{"name": "ttft_p90", "max_seconds": "250ms"}, OOM],
        }
    )
    first = release(
        Phase.PENDING,
        document=document,
        kind=ReleaseKind.FIRST,
        previous_pool=None,
        previous_digest=None,
    )
    found = forecast_release(first, Survey(load_rates={"generated": 20.0}))
    assert found.steps[0].requests_per_s == 20.0
    assert gate(found, "ttft_p90").sure is not None


UNFINISHED = {"name": "dispatched_vs_finished"}
BUSY = replace(SERVED, past=arm({**PAST, **flow_past(20.0, 40.0)}))
QUICK = replace(SERVED, past=arm({**PAST, **flow_past(20.0, 4.0)}))


def test_a_limit_on_age_that_the_baseline_breaks_is_refused_and_a_longer_one_offered() -> None:
    short = {**UNFINISHED, "max_seconds": "30s"}
    refused = gate(
        forecast_with_offers(planned(short, progress_deadline="2h"), BUSY), "dispatched_vs_finished"
    )
    assert refused.refused is not None
    assert "the baseline's requests take" in refused.refused
    assert any(offer.startswith("max_seconds: 1m: decided") for offer in refused.offers)
    longer = {**UNFINISHED, "max_seconds": "1m"}
    assert forecast_release(planned(longer, progress_deadline="2h"), BUSY).refusals == ()


def test_piling_up_is_never_proven_and_a_limit_on_age_offered_in_its_place() -> None:
    piles = {**UNFINISHED, "max_regression": "50%"}
    assert forecast_release(planned(piles), QUICK).refusals == ()
    proven = planned(piles, promote_on="proven")
    refused = gate(forecast_with_offers(proven, QUICK), "dispatched_vs_finished")
    assert refused.refused is not None
    assert "a limit on their age" in refused.refused
    assert refused.offers[0].startswith("max_seconds: 10s in place of max_regression: decided")


def test_piling_up_is_compared_at_equal_load_alone_and_an_age_at_any() -> None:
    uneven = [{"weight": 10, "bake": "1m"}]
    piles = {**UNFINISHED, "max_regression": "50%"}
    refused = gate(forecast_release(planned(piles, steps=uneven), BUSY), "dispatched_vs_finished")
    assert "no step compares like with like" in (refused.refused or "")
    age = {**UNFINISHED, "max_seconds": "2m"}
    longer = planned(age, steps=uneven, progress_deadline="4h")
    found = gate(forecast_release(longer, BUSY), "dispatched_vs_finished")
    assert found.refused is None
    assert found.sure is not None


def test_an_eager_baseline_has_no_graphs_to_time() -> None:
    first = release(
        Phase.PENDING,
        document=make_document(gates=[{"name": "step_time", "max_regression": "10%"}, OOM]),
        kind=ReleaseKind.FIRST,
        previous_pool=None,
        previous_digest=None,
    )
    found = gate(forecast_with_offers(first, Survey(load_rates={"generated": 20.0})), "step_time")
    assert "declare the gate from the next release on" in (found.refused or "")
    assert found.offers == ()


def test_what_one_look_decides_and_what_a_bad_canary_does_are_told() -> None:
    held = {"name": "max_concurrency", "max_regression": "5%"}
    piles = {**UNFINISHED, "max_regression": "50%"}
    document = forecast_document(forecast_release(planned(held, piles), QUICK))
    said = "\n".join(plan_lines(document))
    assert (
        "Decided at the first look at the warm canary, before any traffic: max_concurrency." in said
    )
    assert "A canary of whose requests 2 % never end fails after about" in said


def test_the_document_is_json_and_the_sentences_follow_from_it() -> None:
    found = forecast_with_offers(planned(TTFT), SERVED)
    document = json.loads(json.dumps(forecast_document(found), allow_nan=False))
    assert document["decidable"] is True
    assert document["gates"][0]["needs"]["no_harm"]["blocks"] > 0
    said = "\n".join(plan_lines(document))
    assert "Planned for 40 requests a second, as given." in said
    assert "ttft_p90 (block share, 4 looks a block) allows promotion after" in said
    assert "at step 2," in said
    assert "Decided by what happens, without waiting: oom, engine_exit, progress." in said
    assert "The progress deadline is 30 min (the stable runtime took 20 s to start)." in said


def test_explain_tells_the_plan_and_how_long_the_rest_takes() -> None:
    rel = planned(TTFT)
    document = forecast_document(forecast_release(rel, SERVED))
    created = ReleaseEvent(rel.id, 1, T0, "phase", "recorded", data={"plan": document})
    result = GateResult(
        "ttft_p90", Outcome.INCONCLUSIVE, "not yet", samples=100, needed=500, valid_looks=5
    )
    said = explain(rel, [GateRecord(rel.id, "ttft_p90", T0, {}, result)], [created])
    assert any(
        "It needs 500 canary samples in all and has 100, about 20 s more at the traffic that was "
        "planned for." in line
        for line in said
    )
    assert "As planned before it began:" in said
    without = explain(rel, [], [replace(created, data={})])
    assert "As planned before it began:" not in without


def test_one_gate_alone_is_forecast_as_within_its_release() -> None:
    rel = planned(TTFT)
    alone = forecast_gate(rel, rel.document.gates[0], SERVED)
    assert alone == gate(forecast_release(rel, SERVED), "ttft_p90")
