"""Shapes of traffic through a real Prometheus."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from canaryctl.common.errors import InputError, TemporaryError
from canaryctl.controller.prometheus import PrometheusSettings
from canaryctl.controller.traffic import Range, read_traffic
from canaryctl.runtimes.grid.distribution import Distribution, Kind
from tests.support.cli import Cli
from tests.support.prometheus import Pages, Prometheus, free_port, labels, pages, write_targets

__all__ = ["pages"]


def histogram(name: str, counts: Mapping[float, int], **own: str) -> str:
    """``counts``: cumulative, by upper edge."""
    told = "".join(f'{label}="{value}",' for label, value in own.items())
    return "".join(
        f'{name}_bucket{{{told}le="{edge}"}} {count}\n' for edge, count in counts.items()
    )


def shape(kind: str, counts: Mapping[float, int]) -> str:
    return histogram("canaryctl_step_shape", counts, engine="0", kind=kind)


INF = float("inf")
TOKENS = "vllm:iteration_tokens_total"


@pytest.fixture(scope="module")
def server(pages: Pages, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    found = Prometheus(folder, folder / "targets.json")
    pages.content |= {
        "old": shape("decode_sequences", {1: 10, 2: 10, 4: 30, INF: 30}),
        "coarse": histogram(TOKENS, {1: 5, 8: 6, 16: 6, INF: 6}),
    }
    targets = [
        (pages.address, "old", labels("old")),
        (pages.address, "coarse", labels("coarse", service="coarse")),
    ]
    write_targets(found.targets, targets)
    found.start()
    found.until_scraped(["old", "coarse"])
    yield found
    found.stop()


def settings(server: Prometheus) -> PrometheusSettings:
    return PrometheusSettings(server.url)


@pytest.fixture(scope="module")
def begun(server: Prometheus, pages: Pages) -> float:
    """When counting begins: what was counted before is not in any of the tests' ranges."""
    begin = time.time()
    pages.content["old"] = shape("decode_sequences", {1: 17, 2: 20, 4: 41, INF: 41}) + shape(
        "mixed_tokens", {64: 2, 512: 9, INF: 9}
    )
    pages.content["coarse"] = histogram(TOKENS, {1: 5, 8: 10, 16: 10, INF: 12})
    server.until(
        "the later counts",
        lambda: (
            server.query('canaryctl_step_shape_bucket{kind="mixed_tokens",le="512.0"} == 9')
            or server.query('canaryctl_step_shape_bucket{kind="mixed_tokens",le="512"} == 9')
        ),
    )
    pages.content["new"] = shape("decode_sequences", {1: 100, 2: 100, 4: 100, INF: 100})
    write_targets(
        server.targets,
        [
            (pages.address, "new", labels("new")),
            (pages.address, "coarse", labels("coarse", service="coarse")),
        ],
    )
    server.until_scraped(["new"])
    return begin


def test_counts_are_exact_differences_of_every_engine(server: Prometheus, begun: float) -> None:
    end = time.time()
    found = read_traffic(settings(server), {"service": "chat"}, Range(begun, end))
    assert found.observed_at is not None
    assert begun < found.observed_at <= end
    # The old engine's before it left, and all of the one that was born in the range.
    assert found.of(Kind.DECODE_SEQUENCES) == Distribution((1, 2, 4), (107, 3, 1))
    assert found.of(Kind.MIXED_TOKENS) == Distribution((64, 512), (2, 7))
    assert found.notes == ()
    assert "canaryctl_step_shape" in found.source


def test_vllms_own_histogram_where_there_is_no_probe(server: Prometheus, begun: float) -> None:
    found = read_traffic(settings(server), {"service": "coarse"}, Range(begun, time.time()))
    assert found.of(Kind.SCHEDULED_TOKENS) == Distribution((8, 9), (4, 2))
    assert "taken for one of its bucket's upper edge" in found.notes[0]


def test_nothing_found_is_no_plan(server: Prometheus) -> None:
    with pytest.raises(InputError, match=r"no step counted by .* with \{service="):
        read_traffic(settings(server), {"service": "nobody"}, Range(time.time() - 60, time.time()))


def test_a_server_that_is_away_is_said() -> None:
    away = PrometheusSettings(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(TemporaryError, match="cannot be asked: ConnectError"):
        read_traffic(away, {"service": "chat"}, Range(time.time() - 60, time.time()))


def test_a_plan_from_prometheus(server: Prometheus, begun: float, tmp_path: Path) -> None:
    cli = Cli(tmp_path / "state", CANARYCTL_PROMETHEUS_URL=server.url)
    since = f"{time.time() - begun:.0f}s"
    done = cli.run("grid", "plan", "--service", "chat", "--since", since, "--json")
    assert done.code == 0, done.err
    assert done.document["traffic"]["decode_sequences"]["1"] >= 100
    assert done.document["planned"]["sizes"]


def test_a_range_is_looked_at_at_every_hour() -> None:
    assert Range(1000, 2000).edges() == [1000, 2000]
    assert Range(3000, 11000).edges() == [3000, 3600, 7200, 10800, 11000]
    assert Range(3600, 7200).edges() == [3600, 7200]
