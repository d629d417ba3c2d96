"""What every repository of the store shares: transactions, and the fence around some."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, Engine, exists, select

from canaryctl.controller.errors import FencedError
from canaryctl.controller.model import Lease
from canaryctl.controller.store import tables
from canaryctl.controller.store.engine import Database
from canaryctl.controller.store.writer import claim


class Repository:
    """One subject of the store. All of them share the engine."""

    def __init__(self, engine: Engine) -> None:
        # PostgreSQL's locks hold among all machines: any may write.
        self._database = (
            Database(engine, claim) if engine.dialect.name == "sqlite" else Database(engine)
        )

    @contextmanager
    def _fenced(self, fence: Lease, now: datetime) -> Iterator[Connection]:
        """A writing transaction for whoever holds ``fence`` at ``now``; FencedError otherwise.

        Nobody can take the lease over before the transaction ends: writers come one by one, and
        the lease's row stays locked.
        """
        with self._database.writing() as connection:
            check_fence(connection, fence, now)
            yield connection


def check_fence(connection: Connection, fence: Lease, now: datetime) -> None:
    """FencedError unless the lease is still this holder's, under this token, at ``now``."""
    leases = tables.leases.c
    row = connection.execute(
        select(leases.holder, leases.token, leases.expires_at)
        .where(leases.name == fence.name)
        .with_for_update()
    ).one_or_none()
    if row is None:
        raise FencedError(f"nobody holds the lease {fence.name!r}; acquire it before writing")
    if (row.holder, row.token) != (fence.holder, fence.token):
        raise FencedError(
            f"the lease {fence.name!r} of {fence.holder} (token {fence.token}) was lost; "
            f"now: {row.holder or 'nobody'} (token {row.token}). Nothing was written"
        )
    if row.expires_at <= now:
        raise FencedError(
            f"the lease {fence.name!r} of {fence.holder} expired at {row.expires_at}, it is {now}; "
            "acquire it anew and read again. Nothing was written"
        )


def held(fence: Lease) -> ColumnElement[bool]:
    """The same as a condition of the writing statement itself."""
    leases = tables.leases.c
    return exists().where(
        leases.name == fence.name, leases.holder == fence.holder, leases.token == fence.token
    )
