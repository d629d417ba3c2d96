"""Empty databases to test the store on: SQLite, and PostgreSQL where one is named."""

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import URL, create_engine, make_url

POSTGRESQL_URL = "TEST_POSTGRESQL_URL"


@contextmanager
def _sqlite(directory: Path) -> Iterator[str]:
    yield f"sqlite:///{directory}/state/canaryctl.db"


@contextmanager
def _postgresql(_: Path) -> Iterator[str]:
    """A database of its own beside the one that the variable names."""
    server = make_url(os.environ[POSTGRESQL_URL])
    name = f"canaryctl_{uuid.uuid4().hex}"
    _execute(server, f"CREATE DATABASE {name}")
    try:
        yield server.set(database=name).render_as_string(hide_password=False)
    finally:
        _execute(server, f"DROP DATABASE {name} WITH (FORCE)")


def _execute(server: URL, statement: str) -> None:
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(statement)
    engine.dispose()


BACKENDS: dict[str, Callable[[Path], AbstractContextManager[str]]] = {"sqlite": _sqlite}
if POSTGRESQL_URL in os.environ:
    BACKENDS["postgresql"] = _postgresql


@pytest.fixture(params=sorted(BACKENDS))
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database, once for each backend."""
    with BACKENDS[request.param](tmp_path) as url:
        yield url
