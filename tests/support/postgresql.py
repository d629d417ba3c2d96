"""A PostgreSQL server of the tests' own: an empty cluster on loopback, gone with the session.

``TEST_POSTGRESQL_URL`` names another server to use instead.
"""

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import URL, create_engine, make_url
from sqlalchemy.exc import OperationalError

POSTGRESQL_URL = "TEST_POSTGRESQL_URL"
START_LIMIT_S = 60.0

_PACKAGED = Path("/usr/lib/postgresql")
_UNPRIVILEGED = ("postgres", "nobody")
# Nothing here must outlive the machine: what is tested is which writes land, not the disk.
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "fsync": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
}


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[URL]:
    """The server's maintenance database. Without PostgreSQL: skipped, but with CI=true failed."""
    given = os.environ.get(POSTGRESQL_URL)
    if given is not None:
        yield make_url(given)
        return
    binaries = find_binaries()
    if binaries is None:
        what = (
            f"no PostgreSQL below {_PACKAGED}; run tools/test-services as root, or set "
            f"{POSTGRESQL_URL} to a server on which databases may be made"
        )
        if os.environ.get("CI") == "true":
            pytest.fail(what)
        pytest.skip(what)
    with cluster(binaries) as url:
        yield url


def find_binaries() -> Path | None:
    """The folder of the newest installed server."""
    found = [path.parent for path in _PACKAGED.glob("*/bin/initdb")]
    return max(found, key=lambda path: int(path.parent.name), default=None)


@contextmanager
def cluster(binaries: Path) -> Iterator[URL]:
    """A running server with nothing in it. It ends with the block, or with this process."""
    # Not below pytest's own folders: another user must be able to enter it.
    home = Path(tempfile.mkdtemp(prefix="canaryctl-postgresql-"))
    account = _account()
    password = secrets.token_urlsafe(16)
    (home / "password").write_text(password)
    if account is not None:
        for path in (home, home / "password"):
            os.chown(path, account.pw_uid, account.pw_gid)
    data, port = home / "data", _free_port()
    settings = [word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}")]
    try:
        subprocess.run(
            [
                *_as(account),
                *(str(binaries / "initdb"), "-D", str(data), "-U", "canaryctl", "-E", "UTF8"),
                *("--locale=C.UTF-8", "--auth=scram-sha-256", "--no-sync", "--no-instructions"),
                f"--pwfile={home / 'password'}",
            ],
            check=True,
            capture_output=True,
            cwd=home,
        )
        with (home / "log").open("wb") as log:
            server = subprocess.Popen(
                [
                    *_as(account),
                    *(str(binaries / "postgres"), "-D", str(data), "-p", str(port)),
                    *settings,
                ],
                stdout=log,
                stderr=log,
                cwd=home,
            )
        try:
            url = URL.create(
                "postgresql+psycopg", "canaryctl", password, "127.0.0.1", port, "postgres"
            )
            _await_ready(url, server, home / "log")
            yield url
        finally:
            server.send_signal(signal.SIGQUIT)  # at once: nothing of it is kept
            server.wait(timeout=30)
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def database(server: URL) -> Iterator[str]:
    """The URL of an empty database of its own."""
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


def _account() -> pwd.struct_passwd | None:
    """Whom the server runs as: it refuses to be root. None: as whoever runs the tests."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    return next(known[name] for name in _UNPRIVILEGED if name in known)


def _as(account: pwd.struct_passwd | None) -> list[str]:
    """What runs the rest of the command line as ``account``, and ends it with this process."""
    user = (
        []
        if account is None
        else [f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
    )
    return ["setpriv", *user, "--pdeathsig=QUIT"]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_ready(url: URL, server: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START_LIMIT_S
    while True:
        try:
            _execute(url, "SELECT 1")
        except OperationalError as error:
            if server.poll() is not None or time.monotonic() > until:
                raise AssertionError(f"PostgreSQL: {log.read_text()}") from error
            time.sleep(0.05)
        else:
            return
