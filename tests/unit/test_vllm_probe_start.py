"""The core's line on its graphs, in full."""

import logging
from collections.abc import Iterator

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


@pytest.mark.parametrize("message", [None, 3, ValueError("Graph capturing finished"), b"x"])
def test_whatever_else_is_logged_passes_as_it_is(message: object) -> None:
    record = logging.LogRecord("x", logging.INFO, "x.py", 1, message, None, None)
    assert InFull().filter(record)
    assert record.msg is message
