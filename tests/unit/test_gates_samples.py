"""Differences between scrapes, and reading the Prometheus text format."""

import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canaryctl.common.metrics import AnySignal, MetricKind, MetricRef, Signal
from canaryctl.gates.deltas import Skipped, delta, window
from canaryctl.gates.readings import Buckets, histogram, histogram_set
from canaryctl.gates.samples import (
    AMBIGUOUS,
    ArmWindow,
    Delta,
    Histogram,
    HistogramSet,
    Labels,
    Missing,
    Scrape,
    Series,
    Value,
)
from canaryctl.gates.sources.exposition import Page, read_page

INF = math.inf


def scrape(
    at: float, values: Mapping[AnySignal, Value], *, instance: str = "c0", born: float | None = None
) -> Scrape:
    return Scrape(instance, at, values, born=born)


def counter(value: float, **labels: str) -> Series:
    return Series({tuple(sorted(labels.items())): value})


FULL: Labels = (("bucket", "8"), ("mode", "FULL"))
EAGER: Labels = (("bucket", "0"), ("mode", "NONE"))


def one(count: int, *, edge: float = 1.0) -> HistogramSet:
    return HistogramSet({FULL: Histogram(((edge, count), (INF, count)), 1.0)})


def difference(before: Value, after: Value, signal: Signal = Signal.REQUESTS) -> Value | Skipped:
    found = delta(scrape(1, {signal: before}), scrape(3, {signal: after}))
    if isinstance(found, Skipped):
        return found
    assert found.span_s == 2
    return found.values[signal]


# --------------------------------------------------------------- deltas


def test_counters_and_histograms_are_exact_differences() -> None:
    assert difference(counter(5), counter(9)) == counter(4)
    before = Histogram(((0.1, 3), (1.0, 5), (INF, 6)), 4.0)
    after = Histogram(((0.1, 4), (1.0, 8), (INF, 9)), 7.5)
    expected = Histogram(((0.1, 1), (1.0, 3), (INF, 3)), 3.5)
    assert difference(before, after, Signal.TTFT) == expected


def test_a_series_born_between_two_scrapes_counts_from_zero() -> None:
    assert difference(Series({}), counter(1, reason="oom"), Signal.OOM) == counter(1, reason="oom")


def test_a_labelled_histogram_born_between_two_scrapes_counts_from_zero() -> None:
    new = Histogram(((1.0, 2), (INF, 3)), 4.5)
    before, after = one(5), HistogramSet({FULL: Histogram(((1.0, 6), (INF, 8)), 3.0), EAGER: new})
    expected = HistogramSet({FULL: Histogram(((1.0, 1), (INF, 3)), 2.0), EAGER: new})
    assert difference(before, after, Signal.STEP_TIME) == expected
    assert difference(HistogramSet({}), HistogramSet({EAGER: new}), Signal.SHAPES) == HistogramSet(
        {EAGER: new}
    )


@given(
    st.lists(
        st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(0, 9), min_size=1)),
        max_size=6,
    )
)
def test_differences_of_sets_lose_and_double_nothing(
    looks: list[dict[str, list[int]]],
) -> None:
    """Observations come between scrapes, of kinds that may appear at any time."""
    seen: dict[Labels, list[int]] = {}

    def taken() -> HistogramSet:
        return HistogramSet(
            {
                labels: Histogram(
                    ((3, sum(v <= 3 for v in values)), (INF, len(values))), float(sum(values))
                )
                for labels, values in seen.items()
            }
        )

    scrapes = [scrape(0, {Signal.SHAPES: taken()})]
    for at, look in enumerate(looks, 1):
        for kind, values in look.items():
            seen.setdefault((("kind", kind),), []).extend(values)
        scrapes.append(scrape(at, {Signal.SHAPES: taken()}))
    found: dict[Labels, tuple[int, int, float]] = {}
    for before, after in itertools.pairwise(scrapes):
        step = delta(before, after)
        assert isinstance(step, Delta)
        value = step.values[Signal.SHAPES]
        assert isinstance(value, HistogramSet)
        for labels, h in value.histograms.items():
            low, count, total = found.get(labels, (0, 0, 0.0))
            found[labels] = (low + h.buckets[0][1], count + h.count, total + h.sum)
    assert found == {
        labels: (h.buckets[0][1], h.count, h.sum) for labels, h in taken().histograms.items()
    }


def arm_of(*values: Value) -> ArmWindow:
    deltas = tuple(Delta(f"c{i}", 1.0, {Signal.STEP_TIME: v}) for i, v in enumerate(values))
    return ArmWindow(deltas, len(values))


def test_an_arm_adds_its_instances_within_each_label() -> None:
    both = HistogramSet({**one(2).histograms, EAGER: Histogram(((1.0, 0), (INF, 7)), 9.0)})
    arm = arm_of(one(3), both, Missing("no answer"))
    assert histogram_set(arm, Signal.STEP_TIME, "canary") == {
        FULL: Buckets((1.0, INF), (5, 5)),
        EAGER: Buckets((1.0, INF), (0, 7)),
    }
    assert histogram_set(arm_of(HistogramSet({})), Signal.STEP_TIME, "canary") == {}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ((one(1), one(1, edge=2.0)), "different bucket edges"),
        ((counter(1),), "c0: not a set of histograms"),
        ((HistogramSet({FULL: Histogram((), 0.0)}),), r"no \+Inf bucket"),
        ((one(1), Missing(f"{AMBIGUOUS}: two")), AMBIGUOUS),
        ((Missing("no answer"),), "no step_time from the canary: c0: no answer"),
    ],
)
def test_an_arm_that_cannot_say_is_missing(values: tuple[Value, ...], says: str) -> None:
    found = histogram_set(arm_of(*values), Signal.STEP_TIME, "canary")
    assert isinstance(found, Missing)
    assert re.search(says, found.reason)


def test_the_first_scrape_of_an_instance_gives_no_difference() -> None:
    arm = window({}, {"c0": scrape(3, {Signal.OOM: counter(1)})}, ["c0", "c1"])
    assert arm.deltas == ()
    assert arm.instances == 2
    assert arm.skipped["c0"].startswith("first scrape")
    assert arm.skipped["c1"] == "not scraped"


def test_window_keeps_the_instances_that_answered() -> None:
    before = {name: scrape(1, {Signal.REQUESTS: counter(5)}, instance=name) for name in "ab"}
    after = {
        "a": scrape(3, {Signal.REQUESTS: counter(7)}, instance="a"),
        "b": scrape(3, {Signal.REQUESTS: counter(2)}, instance="b"),
    }
    arm = window(before, after, ["a", "b"])
    assert [d.instance for d in arm.deltas] == ["a"]
    assert "fell from 5 to 2" in arm.skipped["b"]


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (counter(5), counter(4), "reset"),
        (counter(5, status="500"), Series({}), "vanished"),
        (Histogram(((INF, 5),), 1), Histogram(((INF, 4),), 1), "a bucket fell"),
        (Histogram(((1.0, 5), (INF, 5)), 1), Histogram(((1.0, 4), (INF, 9)), 2), "a bucket fell"),
        (Histogram(((1.0, 5), (INF, 5)), 1), Histogram(((2.0, 6), (INF, 6)), 2), "edges changed"),
        (one(5), one(4), "a bucket fell"),
        (one(5), HistogramSet({}), 'mode="FULL"} vanished'),
        (one(5, edge=1.0), one(6, edge=2.0), "edges changed"),
    ],
)
def test_a_reset_skips_the_instance(before: Value, after: Value, says: str) -> None:
    found = difference(before, after)
    assert isinstance(found, Skipped)
    assert says in found.reason


def test_another_process_is_a_restart_even_where_all_counters_grew() -> None:
    values: dict[AnySignal, Value] = {Signal.REQUESTS: counter(5)}
    later: dict[AnySignal, Value] = {Signal.REQUESTS: counter(50)}
    found = delta(scrape(1, values, born=100.0), scrape(3, later, born=101.5))
    assert isinstance(found, Skipped)
    assert "restarted" in found.reason
    assert isinstance(delta(scrape(1, values), scrape(3, later, born=101.5)), Delta)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (Missing("no answer"), counter(5), "no earlier value: no answer"),
        (counter(5), Missing("timed out"), "timed out"),
        (counter(math.nan), counter(5), "earlier counter"),
        (counter(1), counter(math.inf), "later counter"),
        (counter(-1), counter(5), "negative"),
        (Histogram(((1.0, 5), (INF, 4)), 1), Histogram(((1.0, 5), (INF, 6)), 1), "buckets fall"),
        (Histogram(((1.0, 5), (INF, 5)), 1), Histogram(((1.0, 9), (INF, 6)), 1), "buckets fall"),
        (Histogram(((1.0, 1), (INF, 5)), 1), Histogram(((1.0, 5), (INF, 6)), 1), "difference"),
        (Histogram((), 0), Histogram((), 0), "no +Inf bucket"),
        (Histogram(((INF, 1),), math.nan), Histogram(((INF, 2),), 1), "sum"),
        (counter(5), Histogram(((INF, 2),), 1), "a counter in one scrape and a histogram in"),
        (one(5), Histogram(((INF, 7),), 1), "a set of histograms in one scrape and a histogram"),
        (one(5), HistogramSet({FULL: Histogram(((1.0, 6),), 1)}), "no +Inf bucket"),
        (HistogramSet({}), HistogramSet({FULL: Histogram(((INF, 1),), math.nan)}), "sum"),
    ],
)
def test_what_cannot_be_used_is_missing_with_the_reason(
    before: Value, after: Value, says: str
) -> None:
    found = difference(before, after)
    assert isinstance(found, Missing)
    assert says in found.reason


def test_gauges_and_infos_are_the_later_value() -> None:
    assert difference(counter(9), counter(2), Signal.WAITING) == counter(2)
    info = counter(1, num_gpu_blocks="7")
    assert difference(Missing("no answer"), info, Signal.CACHE_CONFIG) == info


def test_time_must_pass_and_instances_must_agree() -> None:
    found = delta(scrape(3, {}), scrape(3, {}))
    assert isinstance(found, Skipped)
    with pytest.raises(ValueError, match="two instances"):
        delta(scrape(1, {}), scrape(3, {}, instance="other"))


def test_a_signal_that_was_not_asked_for_before_is_missing() -> None:
    found = delta(scrape(1, {}), scrape(3, {Signal.REQUESTS: counter(4)}))
    assert isinstance(found, Delta)
    assert isinstance(found.values[Signal.REQUESTS], Missing)


# ----------------------------------------------------------- exposition

PAGE = """\
# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.7e+09
# TYPE vllm:ttft histogram
vllm:ttft_sum{engine="0",model_name="m"} 2.5
vllm:ttft_bucket{engine="0",le="0.1",model_name="m"} 3.0
vllm:ttft_bucket{engine="0",le="+Inf",model_name="m"} 5.0
vllm:ttft_count{engine="0",model_name="m"} 5.0
vllm:success_total{finished_reason="stop",model_name="m"} 7.0
vllm:success_total{finished_reason="length",model_name="m"} 2.0
vllm:success_total{finished_reason="error",model_name="m"} 1.0 1700000000000
vllm:success_created{finished_reason="error",model_name="m"} 1.6e+09
vllm:waiting{model_name="a \\"b\\", } c"} 4.0
vllm:cache{block_size="16",num_gpu_blocks="100"} 1.0
vllm:steps_total{mode="FULL",pure_decode="true"} 10.0
vllm:steps_total{mode="NONE",pure_decode="true"} 2.0
vllm:ttft_other 9
"""


def read(ref: MetricRef, text: str = PAGE) -> Value:
    return read_page(text, {Signal.REQUESTS: ref}).values[Signal.REQUESTS]


def labels(**pairs: str) -> Labels:
    return tuple(sorted(pairs.items()))


def test_each_kind_of_metric() -> None:
    kind = MetricKind
    assert read(MetricRef("vllm:ttft", kind.HISTOGRAM)) == Histogram(((0.1, 3), (INF, 5)), 2.5)
    summed = MetricRef("vllm:success", kind.COUNTER, sum_over=("finished_reason",))
    assert read(summed) == Series({labels(model_name="m"): 10.0})
    failed = MetricRef("vllm:success_total", kind.COUNTER, match={"finished_reason": "err.*"})
    assert read(failed) == Series({labels(finished_reason="error", model_name="m"): 1.0})
    assert read(MetricRef("vllm:waiting", kind.GAUGE)) == Series(
        {labels(model_name='a "b", } c'): 4.0}
    )
    assert read(MetricRef("vllm:cache", kind.INFO)) == Series(
        {labels(block_size="16", num_gpu_blocks="100"): 1.0}
    )
    steps = read(MetricRef("vllm:steps", kind.COUNTER_SET))
    assert isinstance(steps, Series)
    assert steps.total == 12.0
    assert len(steps.values) == 2
    assert read(MetricRef("vllm:ttft", kind.HISTOGRAM_SET)) == HistogramSet(
        {labels(engine="0", model_name="m"): Histogram(((0.1, 3), (INF, 5)), 2.5)}
    )
    assert read(MetricRef("vllm:steps_total", kind.GAUGE_SET)) == steps


def test_a_match_must_cover_the_whole_value() -> None:
    ref = MetricRef("vllm:success_total", MetricKind.COUNTER, match={"finished_reason": "err"})
    found = read(ref)
    assert isinstance(found, Missing)
    assert "absent" in found.reason


def test_several_series_where_one_is_expected_are_named() -> None:
    found = read(MetricRef("vllm:success", MetricKind.COUNTER))
    assert isinstance(found, Missing)
    assert found.reason.startswith(AMBIGUOUS)
    for reason in ("stop", "length", "error"):
        assert f'finished_reason="{reason}"' in found.reason
    two = PAGE + PAGE.replace('engine="0"', 'engine="1"')
    found = read(MetricRef("vllm:ttft", MetricKind.HISTOGRAM), two)
    assert isinstance(found, Missing)
    assert found.reason.startswith(AMBIGUOUS)
    both = "a 1\na_total 1\n"
    found = read(MetricRef("a", MetricKind.COUNTER), both)
    assert isinstance(found, Missing)
    assert found.reason.startswith(AMBIGUOUS)


def test_histograms_known_to_be_split_are_added() -> None:
    two = PAGE + PAGE.replace('engine="0"', 'engine="1"')
    ref = MetricRef("vllm:ttft", MetricKind.HISTOGRAM, sum_over=("engine",))
    assert read(ref, two) == Histogram(((0.1, 6), (INF, 10)), 5.0)


def test_absence_is_zero_only_beside_its_witness() -> None:
    ref = MetricRef("oom", MetricKind.COUNTER, born_at_zero=False, exists_with="vllm:success")
    page = read_page(PAGE, {Signal.OOM: ref})
    assert page.values[Signal.OOM] == Series({})
    assert "vllm:success_total" in page.raw  # what the zero was taken from
    other = MetricRef("oom", MetricKind.COUNTER, born_at_zero=False, exists_with="nowhere")
    assert isinstance(read(other), Missing)
    assert isinstance(read(MetricRef("oom", MetricKind.COUNTER)), Missing)


@pytest.mark.parametrize(
    ("line", "kind", "says"),
    [
        ("x NaN", MetricKind.GAUGE, "NaN"),
        ("x -1", MetricKind.COUNTER, "-1"),
        ("x +Inf", MetricKind.COUNTER, "inf"),
        ('x{a="b} 1', MetricKind.GAUGE, "unparsable"),
        ("x one", MetricKind.GAUGE, "unparsable"),
        ("x", MetricKind.GAUGE, "unparsable"),
        ("x 1_0", MetricKind.GAUGE, "unparsable"),
        ("x 1 2 3", MetricKind.GAUGE, "unparsable"),
        ('x{a="b"} 5 # {id="1"} 7', MetricKind.GAUGE, "unparsable"),
        ('x{a="b",a="c"} 5', MetricKind.GAUGE, "unparsable"),
        ('x_bucket{le="low"} 1', MetricKind.HISTOGRAM, "le='low'"),
        ('x_bucket{le="NaN"} 1', MetricKind.HISTOGRAM, "NaN"),
        ('x_bucket{le="1"} 1', MetricKind.HISTOGRAM, "+Inf"),
        ('x_bucket{le="1"} 3\nx_bucket{le="+Inf"} 2', MetricKind.HISTOGRAM, "fall"),
        ('x_bucket{le="+Inf"} NaN', MetricKind.HISTOGRAM, "nan"),
        ('x_bucket{le="+Inf"} 2\nx_sum NaN', MetricKind.HISTOGRAM, "sum"),
        ('x_bucket{a="b",le="1"} 2\n', MetricKind.HISTOGRAM_SET, 'x{a="b"} cannot be used'),
        ("x_bucket 2\n", MetricKind.HISTOGRAM_SET, "le=''"),
        ('x{a="b"} NaN', MetricKind.GAUGE_SET, "NaN"),
        ('x{a="b"} -1', MetricKind.COUNTER_SET, "-1"),
    ],
)
def test_bad_lines_are_missing_and_spoil_nothing_else(
    line: str, kind: MetricKind, says: str
) -> None:
    refs = {
        Signal.E2E: MetricRef("x", kind),
        Signal.TTFT: MetricRef("vllm:ttft", MetricKind.HISTOGRAM),
    }
    page = read_page(f"{line}\n{PAGE}", refs)
    bad = page.values[Signal.E2E]
    assert isinstance(bad, Missing)
    assert says in bad.reason
    assert isinstance(page.values[Signal.TTFT], Histogram)


def test_raw_is_exactly_what_was_used_and_enough_to_read_again() -> None:
    refs = {
        Signal.TTFT: MetricRef("vllm:ttft", MetricKind.HISTOGRAM),
        Signal.WAITING: MetricRef("vllm:waiting", MetricKind.GAUGE),
    }
    page = read_page(PAGE, refs)
    assert sorted(page.raw.splitlines()) == sorted(
        line
        for line in PAGE.splitlines()
        if line.startswith(("vllm:ttft_b", "vllm:ttft_s", "vllm:w"))
    )
    assert read_page(page.raw, refs).values == page.values


def test_the_process_is_known_by_its_start() -> None:
    def born(text: str) -> float | None:
        page: Page = read_page(text, {})
        return page.born

    assert born(PAGE) == 1.7e9
    assert born("x 1\n") is None
    assert born(PAGE + "process_start_time_seconds 3\n") is None
    assert born("process_start_time_seconds broken value here\n") is None


def test_what_was_read_of_an_arm_is_that_arm_s_alone() -> None:
    """Gates of one look share it; another look, or another arm of the same numbers, does not."""
    few, many = (Histogram(((1.0, n), (math.inf, n)), 1.0) for n in (3, 8))
    one = ArmWindow((Delta("c", 1.0, {Signal.TTFT: few, Signal.E2E: many}),), 1)
    first = histogram(one, Signal.TTFT, "canary")
    assert histogram(one, Signal.TTFT, "canary") is first
    assert histogram(one, Signal.E2E, "canary") != first
    other = replace(one, deltas=(Delta("c", 1.0, {Signal.TTFT: many}),))
    found = histogram(other, Signal.TTFT, "canary")
    assert isinstance(found, Buckets)
    assert found.count == 8
    assert one == ArmWindow(one.deltas, 1)  # it is no part of what an arm is
    for who in ("canary", "baseline"):
        missing = histogram(one, Signal.ITL, who)
        assert isinstance(missing, Missing)
        assert who in missing.reason
