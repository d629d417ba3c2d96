"""The core's line on its graphs, in full."""

import logging
from collections.abc import Iterator, Mapping
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest

from canaryctl.runtimes.engines.vllm_log import read_vllm_log
from canaryctl.runtimes.probe.canaryctl_probe.start import RUNNERS, InFull, say_in_full

LINE = "Graph capturing finished in %.0f secs, took %.2f GiB"  # vLLM 0.25.1, either model runner
MIB = 1 << 20


@pytest.fixture(params=RUNNERS)
def runner(request: pytest.FixtureRequest) -> Iterator[logging.Logger]:
    logger = logging.getLogger(request.param)
    before = logger.level
    logger.setLevel(logging.INFO)
    yield logger
    logger.setLevel(before)
    for name in RUNNERS:
        logging.getLogger(name).filters.clear()


def test_a_capture_is_said_to_the_millisecond_and_the_kib(
    runner: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    runner.info(LINE, 2.7312, 133.4 / 1024)
    say_in_full()
    say_in_full()
    runner.info(LINE, 2.7312, 133.4 / 1024)
    runner.info("Graph pool memory: %.2f GiB (actual)", 0.25)
    rounded, full, other = (record.getMessage() for record in caplog.records)
    assert rounded == "Graph capturing finished in 3 secs, took 0.13 GiB"
    assert other == "Graph pool memory: 0.25 GiB (actual)"
    assert len(runner.filters) == 1
    facts = read_vllm_log([full])
    assert facts.stage_seconds["capture"] == pytest.approx(2.731)
    assert facts.graph_bytes == pytest.approx(133.4 * MIB, abs=1024)
    assert full.endswith(
        ", as the probe cannot read: UnknownError: capture_model is not what logs it"
    )
    assert facts.resolved == {}


class Mode(Enum):
    """As vLLM's CUDAGraphMode."""

    NONE = 0
    PIECEWISE = 1
    FULL = 2
    FULL_DECODE_ONLY = (2, 0)
    FULL_AND_PIECEWISE = (2, 1)


class Runner:
    """Has what the record of vLLM's interfaces says that either model runner has."""

    def __init__(self, **parts: Any) -> None:
        vars(self).update(parts)

    def capture_model(self, logger: logging.Logger) -> None:
        def once() -> None:  # vLLM logs it through functions of its own
            logger.info(LINE, 2.7312, 133.4 / 1024)

        once()


def descriptors(*sizes: int) -> set[SimpleNamespace]:
    return {_Descriptor(num_tokens=size) for size in sizes}


class _Descriptor(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]


def first(mode: Mode, graphs: Mapping[Mode, Any]) -> Runner:
    return Runner(cudagraph_dispatcher=SimpleNamespace(cudagraph_mode=mode, cudagraph_keys=graphs))


def second(mode: Mode, graphs: Mapping[Mode, Any]) -> Runner:
    return Runner(cudagraph_manager=SimpleNamespace(cudagraph_mode=mode, _capture_descs=graphs))


@pytest.mark.parametrize("generation", [first, second])
def test_what_was_captured_is_said_as_the_worker_resolved_it(
    runner: logging.Logger, caplog: pytest.LogCaptureFixture, generation: Any
) -> None:
    say_in_full()
    both = {Mode.PIECEWISE: descriptors(8, 1, 2, 16), Mode.FULL: descriptors(1, 2, 8)}
    for mode, graphs in (
        (Mode.FULL_AND_PIECEWISE, both),
        (Mode.PIECEWISE, {Mode.PIECEWISE: descriptors(4, 2), Mode.FULL: set()}),
        (Mode.FULL_DECODE_ONLY, {Mode.FULL: descriptors(4, 2)}),
        (Mode.FULL, {}),
    ):
        generation(mode, graphs).capture_model(runner)
    lines = [record.getMessage() for record in caplog.records]
    took = "Graph capturing finished in 2.731 secs, took 0.130273 GiB, as "
    assert lines == [
        f"{took}FULL_AND_PIECEWISE of 1,2,8,16",
        f"{took}PIECEWISE of 2,4",
        f"{took}FULL_DECODE_ONLY of 2,4",
        f"{took}FULL of none",
    ]
    assert [read_vllm_log([line]).resolved for line in lines] == [
        {"graph_mode": "FULL_AND_PIECEWISE", "graph_sizes": "1,2,8,16"},
        {"graph_mode": "PIECEWISE", "graph_sizes": "2,4"},
        {"graph_mode": "FULL_DECODE_ONLY"},
        {"graph_mode": "FULL", "graph_sizes": "none"},
    ]


@pytest.mark.parametrize(
    "broken",
    [
        Runner(),
        Runner(cudagraph_manager=None),
        first(Mode.FULL, {Mode.FULL: [SimpleNamespace(num_tokens="100 %s\n%d")]}),
        Runner(cudagraph_dispatcher=SimpleNamespace(cudagraph_mode="FULL", cudagraph_keys={})),
    ],
)
def test_a_runner_of_another_form_costs_the_mode_alone(
    runner: logging.Logger, caplog: pytest.LogCaptureFixture, broken: Runner
) -> None:
    say_in_full()
    broken.capture_model(runner)
    (line,) = (record.getMessage() for record in caplog.records)
    assert "\n" not in line
    assert ", as the probe cannot read: " in line
    facts = read_vllm_log([line])
    assert facts.stage_seconds["capture"] == pytest.approx(2.731)
    assert facts.resolved == {}


@pytest.mark.parametrize("message", [None, 3, ValueError("Graph capturing finished"), b"x"])
def test_whatever_else_is_logged_passes_as_it_is(message: object) -> None:
    record = logging.LogRecord("x", logging.INFO, "x.py", 1, message, None, None)
    assert InFull().filter(record)
    assert record.msg is message
