"""Traffic leaves a dead or failing canary in time, as Envoy's admin interface says.

``benchmarks/failover.py`` measures the same many times; its table is docs/benchmarks/failover.md.
"""

from collections.abc import Iterator

import pytest

from benchmarks.failover import FALLBACK, INTERVAL_S, Bench, bench

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench(tmp_path_factory.mktemp("failover")) as made:
        yield made


@pytest.mark.parametrize(
    ("how", "gates"),
    [("SIGKILL", {"engine_exit"}), ("out of memory", {"oom", "engine_exit"})],
)
def test_a_dead_canary_has_no_traffic_within_two_seconds(
    measured: Bench, how: str, gates: set[str]
) -> None:
    run = measured.measure(how)
    assert run.gate in gates
    assert 0 <= run.seconds < 2


def test_a_failing_sample_ends_traffic_within_an_interval_and_a_second(measured: Bench) -> None:
    run = measured.measure(FALLBACK)
    assert run.gate == "graph_fallback"
    assert 0 <= run.seconds <= INTERVAL_S + 1
