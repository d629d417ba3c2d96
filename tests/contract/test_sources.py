"""What every sample source promises: it never raises for what the far side does."""

import re
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from canaryctl.common.errors import UnknownNameError
from canaryctl.common.metrics import MetricKind, MetricRef, Signal
from canaryctl.gates.samples import AMBIGUOUS, HistogramSet, Missing, Scrape, Series, Value
from canaryctl.gates.samples import Histogram as Buckets
from canaryctl.gates.sources import registry
from canaryctl.gates.sources.base import SampleSource, Target
from canaryctl.gates.sources.prometheus import PrometheusSource
from canaryctl.gates.sources.scrape import ScrapeSource
from tests.support.prometheus import Pages, Prometheus, labels, pages, write_targets

__all__ = ["pages"]

REFS = {
    Signal.REQUESTS: MetricRef("requests", MetricKind.COUNTER),
    Signal.TTFT: MetricRef("ttft", MetricKind.HISTOGRAM),
    Signal.STEPS: MetricRef("steps_total", MetricKind.COUNTER_SET),
    Signal.RUNNING: MetricRef("vllm:running", MetricKind.GAUGE),
    Signal.WAITING: MetricRef("waiting", MetricKind.GAUGE),
    Signal.ERRORS: MetricRef(
        "failures_total", MetricKind.COUNTER, born_at_zero=False, exists_with="vllm:running"
    ),
    Signal.OOM: MetricRef("oom_total", MetricKind.COUNTER),
    Signal.STEP_TIME: MetricRef(
        "step_seconds", MetricKind.HISTOGRAM_SET, match={"mode": "FULL|NONE"}, sum_over=("engine",)
    ),
    Signal.STARTUP: MetricRef("start_seconds", MetricKind.GAUGE_SET),
    Signal.SHAPES: MetricRef(
        "shape_tokens", MetricKind.HISTOGRAM_SET, born_at_zero=False, exists_with="vllm:running"
    ),
    Signal.MEMORY: MetricRef("memory_bytes", MetricKind.GAUGE_SET),
}
GOOD = r"""requests_total 7.0
ttft_bucket{le="0.1"} 2
ttft_bucket{le="+Inf"} 3
ttft_sum 0.5
ttft_count 3
steps_total{mode="FULL",reason="a \"b\" \\ c",instance="of the page"} 4
steps_total{mode="NONE",reason="",instance="of the page"} 1
vllm:running{} 1
waiting{queue="a"} 1
waiting{queue="b"} 2
oom_total NaN
step_seconds_bucket{mode="FULL",engine="0",le="0.001"} 2
step_seconds_bucket{mode="FULL",engine="0",le="+Inf"} 3
step_seconds_sum{mode="FULL",engine="0"} 0.25
step_seconds_bucket{mode="FULL",engine="1",le="0.001"} 1
step_seconds_bucket{mode="FULL",engine="1",le="+Inf"} 1
step_seconds_sum{mode="FULL",engine="1"} 0.5
step_seconds_bucket{mode="NONE",engine="0",le="0.001"} 0
step_seconds_bucket{mode="NONE",engine="0",le="+Inf"} 7
step_seconds_sum{mode="NONE",engine="0"} 4
step_seconds_bucket{mode="PIECEWISE",engine="0",le="+Inf"} 9
step_seconds_sum{mode="PIECEWISE",engine="0"} 9
start_seconds{stage="load"} 2.5
start_seconds{stage="capture"} 4
process_start_time_seconds 1700000000.25
"""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """A source, and what it is to read. ``nobody``: targets that cannot be read."""

    source: SampleSource
    target: Target
    nobody: tuple[Target, ...]


@contextmanager
def scraping(pages: Pages, folder: Path) -> Iterator[Arrangement]:
    del folder
    urls = ("http://127.0.0.1:{}/metrics", "http://[::/metrics", "nonsense", "http://", "")
    with closing(ScrapeSource(5.0)) as source:
        yield Arrangement(
            source,
            Target("c0", f"{pages.url}/good", labels("c0")),
            tuple(Target("c1", url.format(unused_port()), labels("c1")) for url in urls),
        )


@contextmanager
def through_prometheus(pages: Pages, folder: Path) -> Iterator[Arrangement]:
    server = Prometheus(folder / "prometheus", folder / "targets.json")
    write_targets(
        server.targets,
        [
            (pages.address, "good", labels("c0")),
            (f"127.0.0.1:{unused_port()}", "good", labels("c1")),
            (pages.address, "absent", labels("c2")),
        ],
    )
    server.start()
    try:
        server.until_scraped(["c0", "c1", "c2"])
        with closing(PrometheusSource(5.0, url=server.url)) as source:
            yield Arrangement(
                source,
                Target("c0", "", labels("c0")),
                tuple(Target(name, "", labels(name)) for name in ("c1", "c2", "never-seen")),
            )
    finally:
        server.stop()


ARRANGEMENTS: dict[str, Callable[[Pages, Path], AbstractContextManager[Arrangement]]] = {
    ScrapeSource.name: scraping,
    PrometheusSource.name: through_prometheus,
}


@pytest.fixture(scope="module", params=sorted(ARRANGEMENTS))
def arranged(
    request: pytest.FixtureRequest, pages: Pages, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Arrangement]:
    pages.content["good"] = GOOD
    with ARRANGEMENTS[request.param](pages, tmp_path_factory.mktemp(request.param)) as found:
        yield found


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def read(arranged: Arrangement) -> Scrape:
    """A scrape that went well; on a busy machine one may not."""
    until = time.monotonic() + 20
    while True:
        found = arranged.source.read(arranged.target, REFS, time.time())
        if not isinstance(found.values[Signal.REQUESTS], Missing):
            return found
        assert time.monotonic() < until, found
        time.sleep(0.1)


def reason(value: Value) -> str:
    assert isinstance(value, Missing)
    return value.reason


def test_every_source_is_held_to_this() -> None:
    assert set(ARRANGEMENTS) == set(registry.SOURCES)


def test_it_reads_what_is_there_and_names_what_is_not(arranged: Arrangement) -> None:
    scrape = read(arranged)
    assert (scrape.instance, scrape.source) == ("c0", arranged.source.name)
    assert scrape.values[Signal.REQUESTS] == Series({(): 7.0})
    assert scrape.values[Signal.TTFT] == Buckets(((0.1, 2), (float("inf"), 3)), 0.5)
    assert scrape.values[Signal.RUNNING] == Series({(): 1.0})
    assert scrape.values[Signal.ERRORS] == Series({})
    assert scrape.born == 1700000000.25
    waiting = reason(scrape.values[Signal.WAITING])
    assert waiting.startswith(AMBIGUOUS)
    assert 'queue="a"' in waiting
    assert "oom_total" in reason(scrape.values[Signal.OOM])


def test_sets_keep_their_members_apart(arranged: Arrangement) -> None:
    values = read(arranged).values
    inf = float("inf")
    assert values[Signal.STEP_TIME] == HistogramSet(
        {
            (("mode", "FULL"),): Buckets(((0.001, 3), (inf, 4)), 0.75),
            (("mode", "NONE"),): Buckets(((0.001, 0), (inf, 7)), 4.0),
        }
    )
    assert values[Signal.SHAPES] == HistogramSet({})
    assert values[Signal.STARTUP] == Series(
        {(("stage", "load"),): 2.5, (("stage", "capture"),): 4.0}
    )
    assert "memory_bytes is absent" in reason(values[Signal.MEMORY])


def test_labels_are_those_of_the_page(arranged: Arrangement) -> None:
    """Also one that the source itself selects by."""
    page = ("instance", "of the page")
    assert read(arranged).values[Signal.STEPS] == Series(
        {
            (page, ("mode", "FULL"), ("reason", 'a "b" \\ c')): 4.0,
            (page, ("mode", "NONE"), ("reason", "")): 1.0,
        }
        if arranged.source.name == "scrape"
        # An empty label is no label to Prometheus.
        else {
            (page, ("mode", "FULL"), ("reason", 'a "b" \\ c')): 4.0,
            (page, ("mode", "NONE")): 1.0,
        }
    )


def test_the_lines_that_values_came_from_are_kept(arranged: Arrangement) -> None:
    raw = read(arranged).raw
    assert re.search(r"^requests_total 7(\.0)?( \d+)?$", raw, re.MULTILINE)
    assert re.search(r'^ttft_bucket\{le="0\.1"\} 2( \d+)?$', raw, re.MULTILINE)
    assert re.search(r'^step_seconds_sum\{.*mode="NONE".*\} 4(\.0)?( \d+)?$', raw, re.MULTILINE)
    assert "queue" not in raw
    assert "PIECEWISE" not in raw


def test_its_time_is_never_after_the_question(arranged: Arrangement) -> None:
    asked = time.time()
    scrape = arranged.source.read(arranged.target, REFS, asked)
    assert asked - 30 < scrape.at <= asked


def test_time_goes_on_with_the_samples(arranged: Arrangement) -> None:
    first = read(arranged)
    until = time.monotonic() + 10
    while (later := read(arranged)).at <= first.at:
        assert time.monotonic() < until, "no newer sample in 10 s"
        time.sleep(0.05)
    assert later.values == first.values


def test_nobody_there_is_missing_with_the_reason(arranged: Arrangement) -> None:
    for target in arranged.nobody:
        scrape = arranged.source.read(target, REFS, time.time())
        assert scrape.instance == target.instance
        assert set(scrape.values) == set(REFS)
        assert all(reason(value) for value in scrape.values.values())
        assert (scrape.raw, scrape.born) == ("", None)


def test_it_may_be_used_by_several_threads(arranged: Arrangement) -> None:
    with ThreadPoolExecutor(8) as pool:
        scrapes = list(pool.map(lambda _: read(arranged), range(64)))
    assert all(scrape.values[Signal.REQUESTS] == Series({(): 7.0}) for scrape in scrapes)


def test_an_unknown_source_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="prometheus, scrape"):
        registry.build("telepathy", timeout_s=1.0)


@pytest.mark.parametrize("name", sorted(registry.SOURCES))
def test_a_timeout_must_be_a_time(name: str) -> None:
    options = {"url": "http://127.0.0.1:9"} if name == "prometheus" else {}
    with pytest.raises(ValueError, match="timeout of 0 s"):
        registry.build(name, timeout_s=0, **options)
