"""Which machine writes an SQLite database. Its locks hold among the processes of one machine:
on a shared file system two hosts would damage the file, or act against each other."""

import socket
from functools import cache
from pathlib import Path

from sqlalchemy import Connection, insert, inspect, select

from canaryctl.controller.errors import OtherHostError
from canaryctl.controller.store import tables

_MACHINE_IDS = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
_host = tables.writer_host.c.host


@cache
def this_host() -> str:
    """The machine's own id; in a container that has none, its host name."""
    for path in _MACHINE_IDS:
        try:
            found = path.read_text().strip()
        except OSError:
            continue
        if found:
            return found
    return f"host name {socket.gethostname()}"


def claim(connection: Connection) -> None:
    """The first writer's machine is recorded; OtherHostError on any other machine."""
    known = connection.execute(select(_host)).scalar_one_or_none()
    if known is None:
        connection.execute(insert(tables.writer_host).values(id=1, host=this_host()))
    else:
        _refuse_another(known)


def require_ours(connection: Connection) -> None:
    """OtherHostError where another machine is recorded; nothing is written."""
    if inspect(connection).has_table(tables.writer_host.name):
        known = connection.execute(select(_host)).scalar_one_or_none()
        if known is not None:
            _refuse_another(known)


def _refuse_another(known: str) -> None:
    if known != this_host():
        raise OtherHostError(
            f"this SQLite database is written by another machine ({known}; this one is "
            f"{this_host()}). SQLite's locks hold on one machine only: for controllers on "
            "several, set CANARYCTL_DATABASE_URL to postgresql+psycopg://USER@HOST/NAME. Reading "
            "works. If the file was moved here for good, run `canaryctl db claim`"
        )
