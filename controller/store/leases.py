"""Who may act. A lease is held by one at a time, and its token rises with every new holder."""

from datetime import datetime, timedelta

from sqlalchemy import insert, select, update

from canaryctl.controller.errors import FencedError
from canaryctl.controller.model import Lease
from canaryctl.controller.store import tables
from canaryctl.controller.store.base import Repository, check_fence, held
from canaryctl.controller.store.codec import lease_of


class Leases(Repository):
    """Leases by name."""

    def acquire(self, name: str, holder: str, ttl_s: float, now: datetime) -> Lease | None:
        """The lease for ``ttl_s`` seconds, or None while another holds it.

        One that was given back or has expired is taken over under a higher token. Who holds
        it already keeps the token: holders' names must be unique to a process.
        """
        leases = tables.leases
        expires_at = now + timedelta(seconds=ttl_s)
        acting = self.holder(name, now)
        if acting is not None and acting.holder != holder:
            return None  # those who wait keep no writer waiting
        with self._database.writing() as connection:
            row = connection.execute(select(leases).where(leases.c.name == name)).one_or_none()
            if row is None:
                lease = Lease(name, holder, 1, expires_at)
                connection.execute(
                    insert(leases).values(name=name, holder=holder, token=1, expires_at=expires_at)
                )
                return lease
            held = row.holder is not None and row.expires_at > now
            if held and row.holder != holder:
                return None
            lease = Lease(name, holder, row.token if held else row.token + 1, expires_at)
            connection.execute(
                update(leases)
                .where(leases.c.name == name)
                .values(holder=holder, token=lease.token, expires_at=expires_at)
            )
            return lease

    def renew(self, lease: Lease, ttl_s: float, now: datetime) -> Lease:
        """The same lease for ``ttl_s`` seconds from ``now``; FencedError when it was lost."""
        leases = tables.leases
        expires_at = now + timedelta(seconds=ttl_s)
        with self._database.writing() as connection:
            check_fence(connection, lease, now)
            connection.execute(
                update(leases).where(leases.c.name == lease.name).values(expires_at=expires_at)
            )
        return Lease(lease.name, lease.holder, lease.token, expires_at)

    def require(self, lease: Lease) -> None:
        """FencedError when another has taken it over. Asked right before an effect outside."""
        with self._database.reading() as connection:
            if not connection.execute(select(held(lease))).scalar_one():
                raise FencedError(
                    f"the lease {lease.name!r} of {lease.holder} (token {lease.token}) was lost; "
                    "nothing was changed"
                )

    def release_lease(self, lease: Lease) -> None:
        """Give it back; nothing happens when it was lost before."""
        leases = tables.leases.c
        with self._database.writing() as connection:
            connection.execute(
                update(tables.leases)
                .where(
                    leases.name == lease.name,
                    leases.holder == lease.holder,
                    leases.token == lease.token,
                )
                .values(holder=None)
            )

    def holder(self, name: str, now: datetime) -> Lease | None:
        """The lease in force at ``now``."""
        leases = tables.leases
        with self._database.reading() as connection:
            row = (
                connection.execute(
                    select(leases).where(
                        leases.c.name == name,
                        leases.c.holder.is_not(None),
                        leases.c.expires_at > now,
                    )
                )
                .mappings()
                .one_or_none()
            )
        return None if row is None else lease_of(row)
