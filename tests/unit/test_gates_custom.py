"""Gates that an artifact makes of the engine's own metrics."""

import math
from typing import Any

import pytest

from canaryctl.common.metrics import AnySignal, CustomSignal, MetricKind, MetricRef, Signal
from canaryctl.common.metrics import references as to_read
from canaryctl.gates import registry
from canaryctl.gates.outcome import Outcome
from canaryctl.gates.samples import Histogram, Missing, Series, Value
from canaryctl.gates.sources.exposition import read_page
from tests.support.gates import arm, context, judge, spec

PREEMPTIONS = {"metric": "vllm:num_preemptions_total"}
REQUESTS = {"metric": "http_requests_total", "labels": {"status": "2.."}}
QUEUE: dict[str, Any] = {"metric": "vllm:request_queue_time_seconds", "sum_over": ["engine"]}
RATIO = spec("preempted", numerator=PREEMPTIONS, denominator=REQUESTS, max_ratio="2%", phi=1)
SLOW = spec("queue_p90", histogram=QUEUE, quantile="p90", max_seconds="1s", phi=1)


def signals(name: str, *parts: str) -> list[CustomSignal]:
    return [CustomSignal(f"{name}.{part}", MetricRef("any", MetricKind.COUNTER)) for part in parts]


def counted(events: float, of: float) -> dict[AnySignal, Value]:
    numerator, denominator = signals("preempted", "numerator", "denominator")
    return {numerator: Series({(): events}), denominator: Series({(): of})}


def test_it_reads_what_it_names_and_nothing_else() -> None:
    gate = registry.build(RATIO, context())
    found = to_read(gate.needs(), {Signal.TTFT: MetricRef("ttft", MetricKind.HISTOGRAM)})
    assert {(signal.value, ref.name) for signal, ref in found.items()} == {
        ("preempted.numerator", "vllm:num_preemptions_total"),
        ("preempted.denominator", "http_requests_total"),
    }
    (ref,) = to_read(registry.build(SLOW, context()).needs(), {}).values()
    assert ref == MetricRef(QUEUE["metric"], MetricKind.HISTOGRAM, sum_over=("engine",))


def test_a_ratio_is_judged_like_errors() -> None:
    _, failed = judge(RATIO, 20, arm(counted(8, 40)))
    assert failed.outcome is Outcome.FAILED
    assert (
        "20 % of 40 counts of http_requests_total with status=2.. are in "
        "vllm:num_preemptions_total; at most 2 % may" in failed.reason
    )
    assert judge(RATIO, 20, arm(counted(0, 40)))[1].outcome is Outcome.PASSED
    compared = RATIO.model_copy(update={"max_ratio": None, "max_regression": 0.5})
    _, worse = judge(compared, 60, arm(counted(4, 40)), arm(counted(1, 40)))
    assert worse.outcome is Outcome.FAILED


def test_counts_of_an_unknown_kind_are_taken_for_dependent() -> None:
    """One burst of 64 is one event, unless the artifact says that they are independent."""
    cautious = RATIO.model_copy(update={"phi": None})
    assert judge(RATIO, 1, arm(counted(20, 64)))[1].outcome is Outcome.FAILED
    assert judge(cautious, 1, arm(counted(20, 64)))[1].outcome is Outcome.INCONCLUSIVE


def test_a_quantile_is_judged_like_a_latency() -> None:
    (signal,) = signals("queue_p90", "histogram")

    def histogram(slow: int) -> dict[AnySignal, Value]:
        return {signal: Histogram(((0.5, 100 - slow), (1.0, 100 - slow), (math.inf, 100)), 1.0)}

    _, failed = judge(SLOW, 20, arm(histogram(60)))
    assert failed.outcome is Outcome.FAILED
    assert "took longer than 1 s" in failed.reason
    _, passed = judge(SLOW, 20, arm(histogram(0)))
    assert passed.outcome is Outcome.PASSED
    assert "queue_p90 (vllm:request_queue_time_seconds) p90 of the canary" in passed.reason


PAGE = """# TYPE vllm:num_preemptions counter
vllm:num_preemptions_total{engine="0"} 3.0
http_requests_total{status="4xx"} 2.0
vllm:request_queue_time_seconds_bucket{engine="0",le="+Inf"} 5
vllm:request_queue_time_seconds_sum{engine="0"} 1.0
"""


def read(selector: dict[str, Any], kind: str = "numerator") -> Value:
    limits: dict[str, Any]
    if kind == "numerator":
        limits = {"numerator": selector, "denominator": REQUESTS, "max_ratio": "2%"}
    else:
        limits = {"histogram": selector, "quantile": "p90", "max_seconds": "1s"}
    gate = registry.build(spec("mine", **limits), context())
    page = read_page(PAGE, to_read(gate.needs(), {}))
    (wanted,) = [s for s in gate.needs() if s.value == f"mine.{kind}"]
    return page.values[wanted]


def reason(value: Value) -> str:
    assert isinstance(value, Missing)
    return value.reason


def test_a_metric_that_the_engine_does_not_export_is_an_error_with_what_comes_close() -> None:
    typo = reason(read({"metric": "vllm:num_preemption_total"}))
    assert typo == (
        "no such metric as the counter vllm:num_preemption_total is exported by the engine; it "
        "has vllm:num_preemptions_total"
    )
    assert "it has vllm:request_queue_time_seconds" in reason(
        read({"metric": "vllm:request_queued_time_seconds"}, "histogram")
    )
    assert "none of its counters is called so" in reason(read({"metric": "zzz"}))
    signal = signals("preempted", "numerator")[0]
    _, result = judge(RATIO, 1, arm({**counted(0, 40), signal: Missing(typo)}))
    assert result.outcome is Outcome.ERROR
    assert not result.no_harm
    assert "it has vllm:num_preemptions_total" in result.reason


def test_one_instance_that_exports_another_name_makes_the_whole_arm_an_error() -> None:
    signal = signals("preempted", "numerator")[0]
    other = {**counted(0, 40), signal: Missing("no such metric as x")}
    assert judge(RATIO, 1, arm(counted(0, 40), other))[1].outcome is Outcome.ERROR


def test_labels_that_no_series_has_are_shown_beside_those_there_are() -> None:
    found = reason(read(REQUESTS))
    assert 'http_requests_total{status="4xx"}' in found
    assert "no such metric" not in found


def test_absence_is_zero_only_where_the_artifact_says_so_and_the_metric_is_there() -> None:
    failures = {"metric": "http_requests_total", "labels": {"status": "5.."}}
    assert "absent" in reason(read(failures))
    assert read({**failures, "absent": "zero"}) == Series({})
    assert "no such metric" in reason(read({"metric": "http_request_total", "absent": "zero"}))


@pytest.mark.parametrize(
    ("limits", "field", "says"),
    [
        ({"numerator": PREEMPTIONS, "max_ratio": "1%"}, "numerator", "numerator and denominator"),
        ({"histogram": QUEUE, "max_seconds": "1s"}, "histogram", "histogram and quantile"),
        ({"quantile": "p90", "max_seconds": "1s"}, "quantile", "found quantile, expected either"),
        (
            {"numerator": PREEMPTIONS, "denominator": REQUESTS, "quantile": "p90", "max": 1},
            "numerator",
            "found numerator and denominator and quantile",
        ),
        ({"numerator": PREEMPTIONS, "denominator": REQUESTS}, "name", "needs max_ratio or"),
        (
            {"numerator": PREEMPTIONS, "denominator": REQUESTS, "max_seconds": "1s"},
            "max_seconds",
            "takes no max_seconds",
        ),
        (
            {"histogram": QUEUE, "quantile": "p90", "max_regression": "0%"},
            "max_regression",
            "no two runs",
        ),
        (
            {"histogram": {"metric": "a_seconds_bucket"}, "quantile": "p90", "max_seconds": "1s"},
            "histogram",
            "the histogram's own name: a_seconds",
        ),
        (
            {"histogram": {"metric": "tokens"}, "quantile": "p90", "max_seconds": "1s"},
            "histogram",
            "expected a histogram of seconds",
        ),
        (
            {
                "histogram": {"metric": "a_seconds", "absent": "zero"},
                "quantile": "p90",
                "max_seconds": "1s",
            },
            "histogram",
            "absent: zero is for counters",
        ),
    ],
)
def test_each_mistake_in_making_one_is_named(limits: dict[str, Any], field: str, says: str) -> None:
    found = registry.check([spec("mine", **limits)])
    assert any(f == field and says in message for _, f, message in found), found


def test_names_and_shapes_are_checked() -> None:
    bad = spec("Mine!", numerator=PREEMPTIONS, denominator=REQUESTS, max_ratio="1%")
    assert "lower-case letters" in registry.check([bad])[0][2]
    taken = spec("error_rate", numerator=PREEMPTIONS, denominator=REQUESTS, max_ratio="1%")
    assert "needs a name of its own" in registry.check([taken])[0][2]
    assert "needs a name of its own" in registry.check([spec("oom", max=0, phi=2)])[0][2]
    for selector in ({"metric": "a b"}, {"metric": "a", "labels": {"x": "("}}):
        with pytest.raises(ValueError, match=r"metric|regular expression"):
            spec("mine", numerator=selector)


def test_a_latency_of_its_own_needs_a_comparable_load_too() -> None:
    assert registry.compares_latency(
        spec("queue", histogram=QUEUE, quantile="p90", max_regression="10%")
    )
    assert not registry.compares_latency(SLOW)
    assert registry.spends_alpha(SLOW)
