"""Writers that must not land: another machine on SQLite, and one frozen in its transaction."""

import signal
import sqlite3
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import URL

from canaryctl.controller.errors import LeaseHeldError, OtherHostError
from canaryctl.controller.settings import Settings
from canaryctl.controller.store import Store, open_store, upgrade
from canaryctl.controller.store.writer import this_host
from tests.support.cli import QUICKSTART, Cli
from tests.support.postgresql import database

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)


def opened(url: str) -> Store:
    return open_store(Settings.from_environment({"HOME": "/", "CANARYCTL_DATABASE_URL": url}))


def moved_elsewhere(path: Path) -> None:
    """As another machine would have left it."""
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE writer_host SET host = 'another-machine'")
    connection.close()


def test_another_machine_is_refused_by_sqlite_and_may_read(tmp_path: Path) -> None:
    path = tmp_path / "canaryctl.db"
    with opened(f"sqlite:///{path}") as store:
        service = store.ensure_service("chat", lambda: 8100, NOW)
        moved_elsewhere(path)
        for write in (
            lambda: store.acquire("service:chat", "me", 6, NOW),
            lambda: store.ensure_service("other", lambda: 8101, NOW),
            store.require_writer,
        ):
            with pytest.raises(OtherHostError, match=r"another-machine.*postgresql\+psycopg"):
                write()
        assert store.services() == (service,)
        assert store.holder("service:chat", NOW) is None


def test_a_moved_database_is_claimed_once_nobody_holds_a_lease(tmp_path: Path) -> None:
    path = tmp_path / "canaryctl.db"
    with opened(f"sqlite:///{path}") as store:
        lease = store.acquire("service:chat", "there", 6, NOW)
        assert lease is not None
        moved_elsewhere(path)
        with pytest.raises(LeaseHeldError, match="there"):
            store.claim_writer(NOW)
        assert store.claim_writer(lease.expires_at) == "another-machine"
        assert store.claim_writer(lease.expires_at) == this_host()
        assert store.acquire("service:chat", "here", 6, lease.expires_at) is not None


def test_the_command_line_says_so(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    assert cli.run("status").code == 0
    assert cli.run("db", "claim").code == 0
    moved_elsewhere(tmp_path / "canaryctl.db")
    assert cli.run("status").code == 0
    assert cli.run("db", "check").code == 0
    for command in (("serve",), ("release", QUICKSTART / "stable.yaml")):
        done = cli.run(*command, timeout_s=20)
        assert done.code == 1
        assert "another-machine" in done.err
        assert "postgresql+psycopg" in done.err
        assert "Traceback" not in done.err
    assert "before: another-machine" in cli.run("db", "claim").out


FROZEN = """
import sys, time
from datetime import UTC, datetime
from canaryctl.controller.errors import StoreUnavailableError
from canaryctl.controller.settings import Settings
from canaryctl.controller.store import open_store

url = sys.argv[1]
store = open_store(Settings.from_environment({"HOME": "/", "CANARYCTL_DATABASE_URL": url}))

def port():
    print("writing", flush=True)
    time.sleep(1)  # stopped in here
    return 8200

try:
    store.ensure_service("stale", port, datetime.now(UTC))
except StoreUnavailableError as error:
    print("refused", flush=True)
else:
    print("landed", flush=True)
"""


def test_a_writer_frozen_in_its_transaction_stops_no_other_and_does_not_land(
    postgresql_server: URL,
) -> None:
    with database(postgresql_server) as url:
        upgrade(url)
        with (
            opened(url) as store,
            subprocess.Popen(
                [sys.executable, "-c", FROZEN, url], stdout=subprocess.PIPE, text=True
            ) as frozen,
        ):
            assert frozen.stdout is not None
            assert frozen.stdout.readline() == "writing\n"
            frozen.send_signal(signal.SIGSTOP)
            try:
                began = time.monotonic()
                store.ensure_service("chat", lambda: 8100, NOW)
                assert time.monotonic() - began < 6  # a lease's length
            finally:
                frozen.send_signal(signal.SIGCONT)
            assert frozen.stdout.readline() == "refused\n"
            assert frozen.wait(20) == 0
            assert [service.name for service in store.services()] == ["chat"]
