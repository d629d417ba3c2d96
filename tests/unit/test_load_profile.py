"""Profiles, the requests they plan, and the report: pure."""

import itertools
import json
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canaryctl.runtimes.load.profile import Profile, ProfileError, parse_profile
from canaryctl.runtimes.load.report import Failed, Outcome, quantiles, report, summarise
from canaryctl.runtimes.load.schedule import PlannedRequest, planned_requests

WHOLE = """
rate: 40
seed: 7
prompt_tokens: {min: 8, max: 64}
output_tokens: {min: 8, max: 24}
sessions: 5
stream: true
for: 60s
"""


def planned(
    text: str, duration_s: float | None = 60, requests: int | None = None
) -> list[PlannedRequest]:
    return list(planned_requests(parse_profile(text), duration_s=duration_s, requests=requests))


def test_a_profile_is_read_with_its_units() -> None:
    profile = parse_profile(WHOLE)
    assert (profile.rate, profile.duration, profile.timeout) == (40, 60.0, 60.0)
    assert parse_profile("rate: 0.5\ntimeout: 1m30s").timeout == 90.0


def test_every_mistake_is_told_at_once() -> None:
    with pytest.raises(ProfileError) as caught:
        parse_profile(
            "rate: -1\nfor: 60\nsesions: 3\nprompt_tokens: {min: 9, max: 8}\n"
            "output_tokens: {min: 0}\nstream: yes please\n",
            "load.yaml",
        )
    text = str(caught.value)
    for expected in ("rate", "for", "sesions: unknown key", "min 9 is above max 8", "stream"):
        assert expected in text
    assert {"output_tokens.min", "output_tokens.max"} <= {
        mistake.split(":")[0] for mistake in caught.value.mistakes
    }
    assert all(line.startswith("load.yaml: ") for line in text.splitlines())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "empty"),
        ("# nothing", "empty"),
        ("- rate: 1", "expected a mapping"),
        ("rate: [", "not YAML"),
        ("rate: 1\nrate: 2", "rate is given twice"),
        ("a: &a [1]\nrate: *a", "alias"),
        ("rate: 2001-13-45", "not YAML"),
        ("seed: 1", "exactly one of rate and phases"),
        ("rate: 1\nphases: [{rate: 1, for: 1s}]", "exactly one of rate and phases"),
        ("phases: [{rate: 1, for: 0s}]", "above zero"),
        ("phases: [{rate: 1}]", "phases.0.for"),
        ("rate: 1\nfor: 0s", "above zero"),
        ("rate: true", "rate"),
        ("rate: .nan", "rate"),
        ("rate: .inf", "rate"),
        ("rate: 1\nprompt: words", "prompt"),
        ("rate: 1\nsession_header: 'a b'", "session_header"),
        ("rate: 1 #" + "x" * 70_000, "longer than"),
    ],
)
def test_what_is_wrong_is_said(text: str, expected: str) -> None:
    with pytest.raises(ProfileError, match=expected):
        parse_profile(text)


def test_a_run_draws_a_seed_only_where_none_is_named() -> None:
    assert parse_profile("rate: 1\nseed: 0").with_seed(9).seed == 0
    assert parse_profile("rate: 1").with_seed(9).seed == 9


def test_the_same_seed_plans_the_same_and_another_does_not() -> None:
    assert planned(WHOLE) == planned(WHOLE)
    assert planned(WHOLE) != planned(WHOLE.replace("seed: 7", "seed: 8"))


def test_another_rate_asks_the_same_questions_at_other_times() -> None:
    def questions(text: str) -> list[tuple[object, ...]]:
        found = planned(text, duration_s=None, requests=100)
        return [(each.prompt, each.output_tokens, each.session) for each in found]

    assert questions(WHOLE) == questions(WHOLE.replace("rate: 40", "rate: 5"))


def test_arrivals_are_poisson() -> None:
    times = [request.at_s for request in planned("rate: 50", duration_s=200)]
    assert abs(len(times) - 10_000) < 5 * math.sqrt(10_000)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert mean == pytest.approx(0.02, rel=0.05)
    assert math.sqrt(variance) == pytest.approx(mean, rel=0.05)  # as of an exponential


def test_phases_follow_each_other_and_begin_anew() -> None:
    text = (
        "phases:\n- {rate: 100, for: 10s}\n- {rate: 5, for: 10s, output_tokens: {min: 99, max: 99}}"
    )
    requests = planned(text, duration_s=40)
    per_phase = Counter(int(request.at_s // 10) for request in requests)
    assert all(abs(per_phase[phase] - 1000) < 150 for phase in (0, 2))
    assert all(20 < per_phase[phase] < 90 for phase in (1, 3))
    second = [request for request in requests if 10 <= request.at_s < 20]
    assert {request.output_tokens for request in second} == {99}


@given(
    low=st.integers(1, 50),
    spread=st.integers(0, 50),
    seed=st.integers(-1000, 1000),
    sessions=st.integers(0, 4),
    text=st.booleans(),
)
def test_requests_keep_to_their_profile(
    low: int, spread: int, seed: int, sessions: int, text: bool
) -> None:
    kind = "text" if text else "token_ids"
    ranges = f"{{min: {low}, max: {low + spread}}}"
    requests = planned(
        f"rate: 20\nseed: {seed}\nsessions: {sessions}\nprompt: {kind}\nvocabulary: 50\n"
        f"prompt_tokens: {ranges}\noutput_tokens: {ranges}",
        duration_s=None,
        requests=20,
    )
    assert len(requests) == 20
    assert [request.at_s for request in requests] == sorted(request.at_s for request in requests)
    for request in requests:
        assert low <= len(request.prompt) <= low + spread
        assert low <= request.output_tokens <= low + spread
        assert (request.session is None) == (sessions == 0)
        if not text:
            assert all(0 <= int(token) < 50 for token in request.prompt)
    assert len({request.session for request in requests}) <= max(1, sessions)


def test_quantiles_are_ranks_and_nothing_is_no_zero() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    found = quantiles([None, *values])
    assert found is not None
    assert (found.p50, found.p90, found.p99, found.count) == (50, 90, 99, 100)
    assert quantiles([]) is None
    assert quantiles([None]) is None


def outcome(target: str = "a", artifact: str | None = "x@1", **more: object) -> Outcome:
    values: dict[str, object] = {"target": target, "artifact": artifact, **more}
    return Outcome(**values)  # type: ignore[arg-type]


def test_failures_are_kept_apart_by_when_they_happened() -> None:
    summary = summarise(
        [
            outcome(ttft_s=0.1, e2e_s=1.0, output_tokens=4),
            outcome(failed=Failed.CUT_OFF, reason="reset", ttft_s=9.0, output_tokens=2),
            outcome(artifact=None, failed=Failed.BEFORE_RESPONSE, reason="refused"),
            outcome(failed=Failed.BEFORE_RESPONSE, reason="http_503"),
        ]
    )
    assert (summary.ok, summary.failed, summary.output_tokens) == (1, 3, 6)
    assert summary.failures == {
        "cut_off": {"reset": 1},
        "before_response": {"refused": 1, "http_503": 1},
    }
    assert summary.ttft is not None
    assert summary.ttft.p99 == 0.1  # a failed request has no latency
    assert summary.tpot is None


def test_the_report_counts_by_target_and_by_artifact() -> None:
    done = report(
        ["a", "b"],
        [
            outcome("a", "x@1", ttft_s=0.1),
            outcome("a", "x@2", ttft_s=0.2),
            outcome("a", None, failed=Failed.BEFORE_RESPONSE, reason="refused"),
        ],
        elapsed_s=2.0,
        lags_s=[0.001],
        not_sent=0,
        unfinished=1,
    )
    assert (done.sent, done.ok, done.failed, done.unfinished) == (4, 2, 1, 1)
    assert {name: summary.ok for name, summary in done.artifacts.items()} == {"x@1": 1, "x@2": 1}
    assert done.targets["b"].ok == 0
    assert done.saturated is False
    assert json.loads(json.dumps(done.as_document()))["targets"]["a"]["failed"] == 1
    assert "failed before response: 1 × refused" in done.as_text()


@pytest.mark.parametrize(("lag_s", "not_sent"), [(0.2, 0), (0.0, 3)])
def test_a_client_that_cannot_keep_up_says_so(lag_s: float, not_sent: int) -> None:
    done = report(["a"], [outcome()], elapsed_s=1, lags_s=[lag_s], not_sent=not_sent, unfinished=0)
    assert done.saturated
    assert "SATURATED" in done.as_text()


def test_a_profile_is_not_needed_for_a_rate() -> None:
    assert parse_profile("rate: 20.0") == Profile(rate=20.0)
