"""Opening a database, and the two kinds of transaction: reading and writing.

Writers come one after the other on every backend (BEGIN IMMEDIATE on SQLite, a
transaction-long advisory lock on PostgreSQL), so that what a writer has read still holds
when it writes. Readers never wait for them.
"""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import (
    ArgumentError,
    DatabaseError,
    IntegrityError,
    InternalError,
    NoSuchModuleError,
    OperationalError,
)
from sqlalchemy.pool import ConnectionPoolEntry

from canaryctl.common.errors import InputError, UnknownNameError
from canaryctl.controller.errors import InvariantError, SchemaError, StoreUnavailableError
from canaryctl.controller.store.columns import dumps, loads

BACKENDS = ("postgresql", "sqlite")
_BUSY_TIMEOUT_S = 10
_WRITER_LOCK = 0x63616E617279  # "canary": the key of the advisory lock
_WRITES = "canaryctl_writes"
_LIMITS_S = {
    # A writer that is frozen in its transaction would keep every other from writing: the server
    # ends it, long before its leases could be missed.
    "idle_in_transaction_session_timeout": 3,
    "lock_timeout": 10,
    "statement_timeout": 30,
}


def parse_url(database_url: str) -> URL:
    """The URL of a backend that can be used; InputError says what is wrong with another."""
    try:
        url = make_url(database_url)
    except ArgumentError:
        raise InputError(
            "the database URL cannot be read; expected sqlite:////path/to/file.db or "
            "postgresql+psycopg://user@host/name"
        ) from None
    backend = url.get_backend_name()
    if backend not in BACKENDS:
        raise UnknownNameError("database backend", backend, BACKENDS)
    if backend == "sqlite" and url.database in {None, "", ":memory:"}:
        raise InputError("found an SQLite URL without a file; expected sqlite:////path/to/file.db")
    return url


def create_store_engine(database_url: str) -> Engine:
    """An engine whose connections may be used from any thread, one at a time.

    The file of an SQLite database is made if need be, for its owner alone.
    """
    url = parse_url(database_url)
    try:
        if url.get_backend_name() == "sqlite":
            return _sqlite_engine(url)
        return _postgresql_engine(url)
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        raise InputError(
            f"the driver of {url.drivername!r} is not installed ({error}); "
            "for PostgreSQL: pip install 'psycopg[binary]'"
        ) from error


def _sqlite_engine(url: URL) -> Engine:
    path = Path(str(url.database))
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        path.chmod(0o600)  # SQLite gives its -wal and -shm files the mode of this one
    except OSError as error:
        raise InputError(
            f"cannot use {path} as the database ({error.strerror}); "
            "set CANARYCTL_STATE_DIR or CANARYCTL_DATABASE_URL to a place that can be written"
        ) from error
    engine = create_engine(
        url,
        connect_args={"timeout": _BUSY_TIMEOUT_S},
        json_serializer=dumps,
        json_deserializer=loads,
    )

    @event.listens_for(engine, "connect")
    def configure(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
        if not isinstance(connection, sqlite3.Connection):
            raise TypeError(f"expected an sqlite3 connection, found {type(connection)}")
        # The driver must not begin transactions by itself: it would begin them too late.
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get(_WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _postgresql_engine(url: URL) -> Engine:
    engine = create_engine(url, pool_pre_ping=True, json_serializer=dumps, json_deserializer=loads)

    @event.listens_for(engine, "connect")
    def configure(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
        cursor = connection.cursor()
        for name, seconds in _LIMITS_S.items():
            cursor.execute(f"SET {name} = '{seconds}s'")
        cursor.close()
        connection.commit()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        if connection.get_execution_options().get(_WRITES, False):
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_WRITER_LOCK})")

    return engine


class Database:
    """Transactions over an engine, with its errors told in canaryctl's own words."""

    def __init__(
        self, engine: Engine, admit: Callable[[Connection], None] = lambda connection: None
    ) -> None:
        """``admit`` begins every writing transaction, and raises where none may be."""
        self.engine = engine
        self._admit = admit
        self._writer = engine.execution_options(**{_WRITES: True})

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that changes nothing."""
        with _own_errors(), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def writing(self, *, anywhere: bool = False) -> Iterator[Connection]:
        """The only writing transaction at this moment; undone whole by any exception.

        ``anywhere``: without asking whether this machine may write.
        """
        with _own_errors(), self._writer.begin() as connection:
            if not anywhere:
                self._admit(connection)
            yield connection


@contextmanager
def _own_errors() -> Iterator[None]:
    try:
        yield
    except IntegrityError as error:
        raise InvariantError(f"the database refused the write: {error.orig}") from error
    except (OperationalError, InternalError) as error:  # the latter: the server ended the session
        raise StoreUnavailableError(
            f"the database cannot be used now: {error.orig}; it is tried again"
        ) from error
    except DatabaseError as error:
        if type(error) is not DatabaseError:  # its subclasses blame the statement
            raise
        raise SchemaError(
            f"what lies there is not a canaryctl database, or is damaged: {error.orig}; restore "
            "it from a backup or name another one"
        ) from error
