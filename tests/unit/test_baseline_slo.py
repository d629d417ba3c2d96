"""What a baseline run served within the artifact's SLO, and how it is stored and shown."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canaryctl.controller.baseline.figures import Run, measured
from canaryctl.controller.baseline.record import (
    BaselineRecord,
    StageRecord,
    Start,
    compare_conditions,
    load_record,
    store_record,
)
from canaryctl.controller.baseline.slo import Goodput, goodput, slo_of
from canaryctl.controller.baseline.summary import summary_of
from canaryctl.controller.cli.baseline_print import (
    compared_document,
    print_compared,
    print_record,
    record_document,
)
from canaryctl.gates.samples import Scrape
from canaryctl.gates.spec import GateSpec
from canaryctl.runtimes.load.report import Failed, Outcome, report

GIB = 2**30
SLO = {"ttft": 0.2, "tpot": 0.02, "itl": 0.1, "e2e": 1.0}
EXACTLY = Outcome(
    "u", ttft_s=0.2, tpot_s=0.02, itl_max_s=0.1, e2e_s=1.0, output_tokens=40, sent_s=0.0
)
ONE_TOKEN = Outcome("u", ttft_s=0.1, e2e_s=0.1, output_tokens=1, sent_s=0.5)
FAILED = replace(EXACTLY, failed=Failed.CUT_OFF, reason="reset")


def gates(*limits: tuple[str, str | None]) -> list[GateSpec]:
    return [
        GateSpec(name=name, max_seconds=limit, max_regression=None if limit else "10%")
        for name, limit in limits
    ]


def test_the_slo_is_the_least_limit_of_each_latency_that_clients_see() -> None:
    declared = gates(
        ("ttft_p99", "1s"),
        ("ttft_p50", "200ms"),
        ("e2e", "3s"),
        ("tpot_p99", None),
        ("prefill_p99", "100ms"),
        ("progress", "2s"),
        ("dispatched_vs_finished", "30s"),
        ("ready_time", "90s"),
    )
    assert slo_of(declared) == {"ttft": 0.2, "e2e": 3.0}
    assert slo_of(gates(("ttft_p99", None), ("progress", "2s"))) == {}
    with pytest.raises(ValueError, match="needs an SLO"):
        goodput([EXACTLY], {}, asked=1)


def test_a_limit_is_met_exactly_and_missed_by_any_more() -> None:
    assert goodput([EXACTLY], SLO, asked=1) == Goodput(1, 1, 40, 1)
    for name, value in (("ttft_s", 0.2), ("tpot_s", 0.02), ("itl_max_s", 0.1), ("e2e_s", 1.0)):
        over: dict[str, Any] = {name: value * 1.0001}
        slow = replace(EXACTLY, **over)
        assert goodput([EXACTLY, slow], SLO, asked=2) == Goodput(2, 1, 40, 1), name


def test_failed_and_unsent_requests_are_asked_and_not_met() -> None:
    assert goodput([EXACTLY, FAILED], SLO, asked=4) == Goodput(4, 1, 40, 1)
    assert goodput([FAILED, FAILED], SLO, asked=2) == Goodput(2, 0, 0, 0)
    assert goodput([], SLO, asked=3) == Goodput(3, 0, 0, 0)


def test_a_single_token_has_no_gap_to_be_late_in() -> None:
    assert goodput([EXACTLY, ONE_TOKEN], SLO, asked=2) == Goodput(2, 2, 41, 2)
    late = replace(ONE_TOKEN, ttft_s=0.3)
    assert goodput([EXACTLY, late], SLO, asked=2) == Goodput(2, 1, 40, 1)


def test_what_is_not_told_is_never_met() -> None:
    untold = replace(EXACTLY, tpot_s=None)
    nothing_generated = replace(ONE_TOKEN, output_tokens=0)
    found = goodput([EXACTLY, untold, nothing_generated], SLO, asked=3)
    assert found == Goodput(3, 1, 40, 1)


def test_where_none_tells_or_none_was_asked_it_is_unknown() -> None:
    whole = replace(EXACTLY, ttft_s=None, tpot_s=None, itl_max_s=None)  # not streamed
    assert goodput([whole], SLO, asked=1) == "no answered request tells its TTFT"
    assert goodput([whole], {"e2e": 1.0}, asked=1) == Goodput(1, 1, 40, 1)
    assert goodput([ONE_TOKEN], {"tpot": 0.02}, asked=1) == "no answered request tells its TPOT"
    assert goodput([], SLO, asked=0) == "no request was asked"


def at(sent_s: float | None, e2e_s: float) -> Outcome:
    return Outcome("u", ttft_s=e2e_s, e2e_s=e2e_s, output_tokens=1, sent_s=sent_s)


def in_flight(*outcomes: Outcome) -> int | None:
    found = goodput(outcomes, {"e2e": 1.0}, asked=len(outcomes))
    assert isinstance(found, Goodput)
    return found.in_flight


def test_those_at_once_are_of_requests_that_met_it() -> None:
    assert in_flight(at(0, 0.5), at(0.4, 0.5), at(0.5, 0.5)) == 2  # one ends as another begins
    assert in_flight(at(0, 0.9), at(0.1, 0.2), at(0.2, 0.5)) == 3
    assert in_flight(at(0, 0.9), at(0.1, 2.0), at(0.2, 0.5)) == 2
    assert in_flight(at(0, 0.9), at(None, 0.2)) is None
    assert in_flight(at(0, 2.0), at(None, 2.0)) == 0


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 8)), max_size=20))
def test_those_at_once_are_as_counted_at_every_moment(spans: list[tuple[int, int]]) -> None:
    outcomes = [replace(at(sent, 0.1), e2e_s=float(length)) for sent, length in spans]
    found = goodput(outcomes, {"e2e": 8.0}, asked=21)
    counted = (sum(a <= t < a + length for a, length in spans) for t in range(30))
    assert isinstance(found, Goodput)
    assert found.in_flight == max(counted)


def test_a_run_keeps_its_goodput_or_why_there_is_none() -> None:
    done = report(["u"], [EXACTLY, FAILED], elapsed_s=4.0, lags_s=[], not_sent=1, unfinished=1)
    scrape = Scrape("i", 1.0, {})
    run = measured(done, [EXACTLY, FAILED], scrape, replace(scrape, at=2.0), SLO)
    assert run.goodput == Goodput(4, 1, 40, 1)
    assert run.goodput.share == 0.25
    assert run.tokens_per_s_within_slo == 10.0
    without = measured(done, [EXACTLY, FAILED], scrape, replace(scrape, at=2.0), {})
    assert without.goodput is None
    assert without.tokens_per_s_within_slo is None
    assert not any("goodput" in why for why in without.unknown)
    none = report(["u"], [], elapsed_s=4.0, lags_s=[], not_sent=0, unfinished=0)
    idle = measured(none, [], scrape, replace(scrape, at=2.0), SLO)
    assert idle.goodput is None
    assert "goodput: no request was asked" in idle.unknown


RUN = Run(10, 0, 2.0, 100, False, dict.fromkeys(("ttft", "tpot", "itl", "e2e")), None)
START = Start((1, 2), {}, {"gpu_used_after_capture": 4.0 * GIB}, 1000, 8.0, {}, {})
GOOD = replace(RUN, goodput=Goodput(10, 9, 80, 6))
STAGE = StageRecord("own", "sha256:abc", "FULL", (1, 2), {}, START, (GOOD, GOOD))


def record(**changes: Any) -> BaselineRecord:
    whole = BaselineRecord(
        "a@1", "sha256:abc", "chat", "2026-01-01T00:00:00+00:00", "t", 2, True, (STAGE,), SLO
    )
    return replace(whole, **changes)


def shown(capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    """Rows of the table by their label."""
    out = capsys.readouterr().out.split("\n\n", 1)[1]
    rows = (line.split("  ") for line in out.splitlines())
    return {row[0]: [cell.strip() for cell in row[1:] if cell] for row in rows}


LABELS = (
    "requests within SLO",
    "tokens/s within SLO",
    "concurrency within SLO",
    "tokens/s within SLO per GiB",
    "concurrency within SLO per GiB",
)


def test_the_summary_is_per_gib_and_the_kv_cache_stays_beside_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = summary_of(STAGE)
    assert found.share_within_slo is not None
    assert found.share_within_slo.median == 0.9
    assert found.tokens_per_s_within_slo is not None
    assert found.tokens_per_s_within_slo.median == 40.0
    assert found.tokens_per_s_within_slo_per_gib == 10.0
    assert found.concurrency_within_slo_per_gib == 1.5
    assert (found.tokens_per_s_per_gib, found.concurrency_per_gib) == (12.5, 2.0)
    print_record(record())
    rows = shown(capsys)
    assert [rows[label] for label in LABELS] == [["90.00%"], ["40"], ["6"], ["10.00"], ["1.50"]]
    assert rows["concurrency per GiB"] == ["2.00"]
    one_untold = replace(STAGE, runs=(GOOD, RUN))
    assert summary_of(one_untold).share_within_slo is None
    assert summary_of(one_untold).tokens_per_s_within_slo_per_gib is None


def test_without_limits_the_rows_say_so_and_without_measurement_unknown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = replace(STAGE, runs=(RUN, RUN))
    for slo, said in (({}, "no SLO"), (SLO, "unknown"), (None, "unknown")):
        kept = record(slo=slo, stages=(plain,))
        print_record(kept)
        rows = shown(capsys)
        assert [rows[label] for label in LABELS] == [[said]] * 5
        document = record_document(kept)
        assert document["slo"] == slo
        summary = document["stages"][0]["summary"]
        assert summary["share_within_slo"] is None
        assert summary["tokens_per_s_within_slo_per_gib"] is None


def test_records_are_read_back_and_those_of_earlier_versions_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = record()
    path = store_record(kept, tmp_path)
    assert load_record(path) == kept
    old = json.loads(path.read_text())
    del old["slo"]
    for run in old["stages"][0]["runs"]:
        del run["goodput"]
    path.write_text(json.dumps(old))
    earlier = load_record(path)
    assert earlier == record(slo=None, stages=(replace(STAGE, runs=(RUN, RUN)),))
    print_record(earlier)
    assert shown(capsys)["requests within SLO"] == ["unknown"]


def test_runs_held_to_other_limits_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    a, b = record(), record(artifact="b@1", slo={"ttft": 0.05})
    print_compared((a, b), (STAGE, STAGE))
    said = "their SLOs differ: TTFT 200 ms, TPOT 20 ms, ITL 100 ms, E2E 1 s; and TTFT 50 ms"
    assert said in capsys.readouterr().out
    print_compared((a, a), (STAGE, STAGE))
    assert "differ" not in capsys.readouterr().out
    found = compare_conditions({}, {})
    document = compared_document((a, b), (STAGE, STAGE), found)
    assert (document["a"]["slo"], document["b"]["slo"]) == (SLO, {"ttft": 0.05})
