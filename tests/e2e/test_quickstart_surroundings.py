"""The quickstart, unchanged, with what a team runs: a real Prometheus and a real PostgreSQL."""

from collections.abc import Iterator

import pytest
from sqlalchemy import URL

from canaryctl.controller.settings import Settings
from canaryctl.controller.store import open_store
from tests.e2e.test_quickstart import (
    load,
    stable,
    test_a_bad_artifact_is_rolled_back_by_its_gate,
    test_a_good_artifact_is_promoted,
)
from tests.support.cli import Cli
from tests.support.postgresql import database, postgresql_server
from tests.support.prometheus import Prometheus

__all__ = [
    "load",
    "postgresql_server",
    "stable",
    "test_a_bad_artifact_is_rolled_back_by_its_gate",
    "test_a_good_artifact_is_promoted",
]

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory, postgresql_server: URL) -> Iterator[Cli]:
    folder = tmp_path_factory.mktemp("surroundings")
    state = folder / "state"
    prometheus = Prometheus(folder, state / "prometheus" / "targets.json")
    prometheus.start()
    with database(postgresql_server) as url:
        cli = Cli(
            state,
            CANARYCTL_PROMETHEUS_URL=prometheus.url,
            CANARYCTL_DATABASE_URL=url,
        )
        upgraded = cli.run("db", "upgrade")
        assert upgraded.code == 0, upgraded.err
        yield cli
        with open_store(Settings.from_environment(cli.env)) as store:
            for release in store.releases():
                sources = {row.source for row in store.evidence(release.id)}
                assert sources <= {"prometheus"}, release
        removed = cli.run("remove", "chat")
        assert removed.code == 0, removed.err
    prometheus.stop()
    assert cli.left_over() == []
