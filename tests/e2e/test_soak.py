"""Eight releases, good and bad, over two services side by side. ``benchmarks/soak.py`` runs a
hundred; its table is docs/benchmarks/soak.md."""

from pathlib import Path

import pytest

from benchmarks.soak import order, soak
from tests.support.artifacts import KINDS

SEED = 5


def test_the_seed_has_good_and_bad_releases_on_both_services() -> None:
    orders = order(8, 2, SEED)
    assert [len(kinds) for kinds in orders] == [4, 4]
    assert all("good" in kinds and set(kinds) - {"good"} for kinds in orders)
    assert order(8, 2, SEED) == orders
    assert {kind for kinds in order(200, 3, SEED) for kind in kinds} == set(KINDS)


@pytest.mark.timeout(300)
def test_eight_releases_end_where_they_should_and_leave_nothing(tmp_path: Path) -> None:
    found = soak(tmp_path, releases=8, services=2, seed=SEED)
    assert found.wrong == [], found.table()
    assert len(found.ended) == 8
    assert found.looks > 50
    assert all(load.answered > 500 for load in found.loads)
