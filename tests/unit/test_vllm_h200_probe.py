"""What the probe told of vLLM 0.25.1 on an H200 under a planned grid, as recorded."""

import gzip
from pathlib import Path

import pytest

from canaryctl.common.metrics import AnySignal, Signal
from canaryctl.gates.samples import HistogramSet, Series, Value
from canaryctl.gates.sources.exposition import read_page
from canaryctl.runtimes.engines.vllm import VllmEngine

RECORD = Path(__file__).parents[1] / "data" / "vllm" / "0.25.1-h200" / "probe-planned.txt.gz"
SIZES = [1, 4, 6, 8, 9, 10, 48, 64, 76, 84, 100, 129, 159, 194]


@pytest.fixture(scope="module")
def values() -> dict[AnySignal, Value]:
    with gzip.open(RECORD, "rt", encoding="utf-8") as file:
        return dict(read_page(file.read(), VllmEngine().metrics("0.25.1")).values)


def series(value: Value) -> dict[tuple[str, ...], float]:
    assert isinstance(value, Series), value
    return {tuple(v for _, v in labels): count for labels, count in value.values.items()}


def labelled(value: Value, name: str) -> list[str]:
    assert isinstance(value, Series), value
    return [dict(labels)[name] for labels in value.values]


def test_what_runs_is_attested(values: dict[AnySignal, Value]) -> None:
    for name, said in (
        ("engine_version", "0.25.1"),
        ("torch_version", "2.11.0+cu130"),
        ("driver_version", "580.159.04"),
        ("gpu_model", "NVIDIA H200"),
        ("graph_mode", "FULL_AND_PIECEWISE"),
        ("graph_sizes", ",".join(map(str, SIZES))),
    ):
        assert labelled(values[Signal.ATTESTATION], name) == [said]


def test_every_step_is_counted_in_a_size_of_the_grid(values: dict[AnySignal, Value]) -> None:
    buckets = {int(bucket) for bucket in labelled(values[Signal.STEPS], "bucket")}
    assert buckets <= {0, *SIZES}
    actual, padded = values[Signal.TOKENS_ACTUAL], values[Signal.TOKENS_PADDED]
    assert isinstance(actual, Series)
    assert isinstance(padded, Series)
    assert actual.values.keys() == padded.values.keys()
    assert all(padded.values[labels] >= count for labels, count in actual.values.items())


def test_shapes_and_steps_agree(values: dict[AnySignal, Value]) -> None:
    shapes, steps = values[Signal.SHAPES], values[Signal.STEPS]
    assert isinstance(shapes, HistogramSet)
    assert isinstance(steps, Series)
    counted = {dict(labels)["kind"]: h for labels, h in shapes.histograms.items()}
    assert counted["scheduled_tokens"].count == steps.total
    pure = sum(n for labels, n in steps.values.items() if dict(labels)["pure_decode"] == "true")
    assert counted["decode_sequences"].count == pure
    assert counted["scheduled_tokens"].sum == sum(series(values[Signal.TOKENS_ACTUAL]).values())


def test_a_decode_step_takes_milliseconds_and_a_larger_size_no_less(
    values: dict[AnySignal, Value],
) -> None:
    times = values[Signal.STEP_TIME]
    assert isinstance(times, HistogramSet)
    mean = {
        int(dict(labels)["bucket"]): h.sum / h.count
        for labels, h in times.histograms.items()
        if dict(labels)["mode"] == "FULL" and h.count > 100
    }
    assert all(0.001 < seconds < 0.006 for seconds in mean.values()), mean
    assert mean[1] < mean[10] < mean[48], mean
