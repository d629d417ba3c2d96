"""The machine that may write an SQLite database: asked for, and changed on purpose."""

from datetime import datetime

from sqlalchemy import delete, select

from canaryctl.controller.errors import LeaseHeldError
from canaryctl.controller.store import tables
from canaryctl.controller.store.base import Repository
from canaryctl.controller.store.writer import claim


class Hosts(Repository):
    """The machine that may write."""

    def require_writer(self) -> None:
        """OtherHostError unless this machine may write; the first one that asks becomes it."""
        with self._database.writing():
            pass

    def claim_writer(self, now: datetime) -> str | None:
        """From now on this machine writes, after the file was moved; returns the one before.

        LeaseHeldError while a controller holds a lease: it would write on.
        """
        leases = tables.leases.c
        with self._database.writing(anywhere=True) as connection:
            holder = connection.execute(
                select(leases.holder)
                .where(leases.holder.is_not(None), leases.expires_at > now)
                .limit(1)
            ).scalar_one_or_none()
            if holder is not None:
                raise LeaseHeldError(
                    f"the controller {holder} acts on this database; stop it, wait for its lease "
                    "to expire, and claim the database then"
                )
            before = connection.execute(select(tables.writer_host.c.host)).scalar_one_or_none()
            connection.execute(delete(tables.writer_host))
            claim(connection)
        return before
