"""Names of vLLM's metrics, against pages recorded from the real engine."""

from pathlib import Path

import pytest

from canaryctl.common.errors import InputError
from canaryctl.common.metrics import MetricKind, Signal
from canaryctl.gates.samples import Histogram, HistogramSet, Missing, Series
from canaryctl.gates.sources.exposition import read_page
from canaryctl.runtimes.engines.vllm import VllmEngine
from canaryctl.runtimes.engines.vllm_metrics import NEWEST, OLDEST, native

DATA = Path(__file__).parents[1] / "data" / "vllm"
PAGE = (DATA / "0.32.0-cpu" / "metrics.txt").read_text(encoding="utf-8")
VERSIONS = [f"0.{minor}.0" for minor in range(OLDEST[1], NEWEST[1] + 1)]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_signal_but_oom_has_a_name_and_says_what_it_is(version: str) -> None:
    refs = VllmEngine().metrics(version)
    assert set(Signal) - set(refs) == {Signal.OOM}
    histograms = {signal for signal, ref in refs.items() if ref.kind is MetricKind.HISTOGRAM}
    assert histograms == {Signal.TTFT, Signal.PREFILL, Signal.TPOT, Signal.ITL, Signal.E2E}


def test_a_recorded_page_has_every_signal() -> None:
    values = read_page(PAGE, VllmEngine().metrics("0.32.0")).values
    assert {s for s, v in values.items() if isinstance(v, Missing)} == set()
    requests, errors = values[Signal.REQUESTS], values[Signal.ERRORS]
    assert isinstance(requests, Series)
    assert isinstance(errors, Series)
    assert (requests.total, errors.total) == (5, 0)


def test_the_engine_and_the_probe_counted_the_same_requests() -> None:
    fine = read_page(PAGE, VllmEngine().metrics("0.32.0")).values
    own = read_page(PAGE, native((0, 32))).values
    for signal in (Signal.TTFT, Signal.PREFILL, Signal.ITL, Signal.E2E):
        a, b = fine[signal], own[signal]
        assert isinstance(a, Histogram)
        assert isinstance(b, Histogram)
        assert a.count == b.count > 0
        assert a.sum == pytest.approx(b.sum)
        assert len(a.buckets) > 4 * len(b.buckets)


def test_replicas_behind_one_server_are_added_up_but_for_their_start() -> None:
    both = PAGE + PAGE.replace('engine="0"', 'engine="1"')
    one, two = (read_page(p, VllmEngine().metrics("0.32.0")).values for p in (PAGE, both))
    for signal in (Signal.TOKENS_ACTUAL, Signal.MEMORY):
        a, b = one[signal], two[signal]
        assert isinstance(a, Series)
        assert isinstance(b, Series)
        assert b.total == 2 * a.total > 0
    start, starts = one[Signal.STARTUP], two[Signal.STARTUP]
    assert isinstance(start, Series)
    assert isinstance(starts, Series)
    assert set(starts.values.values()) == set(start.values.values())
    assert len(starts.values) == 2 * len(start.values)
    shapes = two[Signal.SHAPES]
    assert isinstance(shapes, HistogramSet)
    kinds = {dict(labels)["kind"] for labels in shapes.histograms}
    assert kinds == {"scheduled_tokens", "decode_sequences", "mixed_tokens", "prefill_tokens"}


def test_native_names_need_no_probe() -> None:
    without = "\n".join(line for line in PAGE.splitlines() if "canaryctl" not in line)
    values = read_page(without, native((0, 32))).values
    assert not any(isinstance(value, Missing) for value in values.values())
    assert Signal.STEPS not in values


def test_errors_are_5xx_of_generating_routes_alone() -> None:
    page = PAGE + "".join(
        f'http_requests_total{{handler="{handler}",method="POST",status="{status}"}} {count}\n'
        for handler, status, count in (
            ("/v1/messages", "5xx", 7),
            ("/v1/responses", "4xx", 11),
            ("/tokenize", "5xx", 100),
            ("/v1/models", "5xx", 1000),
        )
    )
    values = read_page(page, VllmEngine().metrics("0.32.0")).values
    requests, errors = values[Signal.REQUESTS], values[Signal.ERRORS]
    assert isinstance(requests, Series)
    assert isinstance(errors, Series)
    assert (requests.total, errors.total) == (5 + 7 + 11, 7)


def test_a_renamed_metric_is_missing_and_never_zero() -> None:
    page = PAGE.replace("canaryctl_tpot_seconds", "canaryctl_tpot2_seconds")
    value = read_page(page, VllmEngine().metrics("0.32.0")).values[Signal.TPOT]
    assert isinstance(value, Missing)
    assert "canaryctl_tpot_seconds" in value.reason


@pytest.mark.parametrize("version", ["0.19.1", "0.34.0", "1.0.0"])
def test_a_release_outside_the_range_is_refused_by_name(version: str) -> None:
    with pytest.raises(InputError, match=r"expected 0\.20 to 0\.33"):
        VllmEngine().metrics(version)
