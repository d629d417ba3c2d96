"""Empty databases to test the store on: SQLite and PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL

from tests.support.postgresql import database

BACKENDS = ("postgresql", "sqlite")


@pytest.fixture(params=BACKENDS)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database, once for each backend."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/state/canaryctl.db"
        return
    server: URL = request.getfixturevalue("postgresql_server")
    with database(server) as url:
        yield url
