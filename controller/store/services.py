"""Services, and the artifact that is stable on each."""

from collections.abc import Callable
from datetime import datetime

from sqlalchemy import Connection, Select, delete, insert, select

from canaryctl.common.errors import TemporaryError
from canaryctl.controller.errors import NotFoundError
from canaryctl.controller.model import Lease, Service
from canaryctl.controller.store import tables
from canaryctl.controller.store.base import Repository
from canaryctl.controller.store.codec import service_of

_PORT_ATTEMPTS = 100

Stable = tuple[str, str, int, str | None]
"""What becomes stable: digest, pool, replicas, and the release whose document holds."""


class Services(Repository):
    """Serving targets by name."""

    def ensure_service(self, name: str, port_factory: Callable[[], int], now: datetime) -> Service:
        """The service, made if need be with a port that no other service has.

        ``port_factory`` names a port that is free on the machine; it is asked inside the
        transaction, so it must answer at once.
        """
        with self._database.writing() as connection:
            found = _service(connection, name)
            if found is not None:
                return found
            taken = set(connection.scalars(select(tables.services.c.port)))
            for _ in range(_PORT_ATTEMPTS):
                port = port_factory()
                if port not in taken:
                    break
            else:
                raise TemporaryError(
                    f"no port for the service {name}: all of {_PORT_ATTEMPTS} that were "
                    "offered belong to other services"
                )
            connection.execute(insert(tables.services).values(name=name, port=port, created_at=now))
            return Service(name=name, port=port, created_at=now)

    def service(self, name: str) -> Service:
        with self._database.reading() as connection:
            found = _service(connection, name)
        if found is None:
            raise NotFoundError(
                f"no service {name!r}; it begins with its first `canaryctl release`"
            )
        return found

    def services(self) -> tuple[Service, ...]:
        """All of them, by name."""
        with self._database.reading() as connection:
            rows = connection.execute(_select().order_by(tables.services.c.name)).mappings()
            return tuple(service_of(row) for row in rows)

    def set_stable(
        self,
        service: str,
        digest: str,
        pool: str,
        replicas: int,
        release: str | None,
        *,
        fence: Lease,
        now: datetime,
    ) -> None:
        """From now on ``pool`` serves, with ``replicas`` instances of ``digest``."""
        with self._fenced(fence, now) as connection:
            write_stable(connection, service, (digest, pool, replicas, release))

    def clear_stable(self, service: str, *, fence: Lease, now: datetime) -> None:
        """From now on nothing should serve; the service's history stays."""
        with self._fenced(fence, now) as connection:
            connection.execute(delete(tables.stable).where(tables.stable.c.service == service))


def write_stable(connection: Connection, service: str, becomes: Stable) -> None:
    """In place of what was stable before."""
    digest, pool, replicas, release = becomes
    connection.execute(delete(tables.stable).where(tables.stable.c.service == service))
    connection.execute(
        insert(tables.stable).values(
            service=service, digest=digest, pool=pool, replicas=replicas, release=release
        )
    )


def _select() -> Select[tuple[object, ...]]:
    services, stable = tables.services, tables.stable
    return select(
        services.c.name,
        services.c.port,
        services.c.created_at,
        stable.c.digest,
        stable.c.pool,
        stable.c.replicas,
        stable.c.release,
    ).join_from(services, stable, services.c.name == stable.c.service, isouter=True)


def _service(connection: Connection, name: str) -> Service | None:
    row = (
        connection.execute(_select().where(tables.services.c.name == name)).mappings().one_or_none()
    )
    return None if row is None else service_of(row)
