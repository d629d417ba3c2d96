"""Instances, and the GPUs they hold. A GPU is leased and freed with the instance's own row."""

from dataclasses import replace
from datetime import datetime

from sqlalchemy import Connection, delete, insert, select, update

from canaryctl.controller.errors import EndedInstanceError, NotFoundError
from canaryctl.controller.model import (
    LIVE_STATES,
    GpuClaim,
    GpuLease,
    Instance,
    InstanceState,
    Lease,
)
from canaryctl.controller.store import tables
from canaryctl.controller.store.base import Repository, held
from canaryctl.controller.store.codec import (
    condition_row,
    gpu_lease_of,
    instance_of,
    instance_row,
)
from canaryctl.controller.store.gpus import Occupant, pick

_instances, _gpus = tables.instances, tables.gpu_leases


class Instances(Repository):
    """Running engines, and those that ran."""

    def add_instance(
        self, instance: Instance, *, fence: Lease, now: datetime, gpus: GpuClaim | None
    ) -> Instance:
        """Record the intent to run it, with the GPUs it will have; returns it with them.

        ``gpus`` None: it runs without one. NoGpuError when the claim cannot be met now.
        """
        with self._fenced(fence, now) as connection:
            picked = () if gpus is None else pick(gpus, _occupants(connection, gpus.inventory))
            instance = replace(instance, gpus=picked)
            connection.execute(
                insert(_instances).values(**instance_row(instance), **condition_row(instance))
            )
            if gpus is not None and picked:
                connection.execute(
                    insert(_gpus),
                    [
                        {
                            "inventory": gpus.inventory,
                            "gpu": gpu,
                            "instance": instance.id,
                            "fraction": gpus.fraction,
                            "shared": gpus.share,
                        }
                        for gpu in picked
                    ],
                )
        return instance

    def update_instance(self, instance: Instance, *, fence: Lease, now: datetime) -> Instance:
        """Write what changes of an instance; returns it as stored.

        One that has ended frees its GPUs in the same transaction, and cannot come back:
        EndedInstanceError. Service, pool, digest and GPUs stay as they were added.
        """
        ended = instance.state not in LIVE_STATES
        if ended and instance.ended_at is None:
            instance = replace(instance, ended_at=now)
        with self._fenced(fence, now) as connection:
            state = connection.execute(
                select(_instances.c.state).where(_instances.c.id == instance.id)
            ).scalar_one_or_none()
            if state is None:
                raise NotFoundError(f"no instance {instance.id!r}")
            if state not in LIVE_STATES and not ended:
                raise EndedInstanceError(
                    f"instance {instance.id} is {state} and cannot become "
                    f"{instance.state.value}; start another one"
                )
            connection.execute(
                update(_instances)
                .where(_instances.c.id == instance.id, held(fence))
                .values(condition_row(instance))
            )
            if ended:
                connection.execute(delete(_gpus).where(_gpus.c.instance == instance.id))
        return instance

    def instance(self, instance: str) -> Instance:
        query = select(_instances).where(_instances.c.id == instance)
        with self._database.reading() as connection:
            row = connection.execute(query).mappings().one_or_none()
        if row is None:
            raise NotFoundError(f"no instance {instance!r}")
        return instance_of(row)

    def instances(
        self, service: str | None = None, pool: str | None = None, live_only: bool = False
    ) -> tuple[Instance, ...]:
        """In the order of their creation."""
        query = select(_instances).order_by(_instances.c.created_at, _instances.c.id)
        if service is not None:
            query = query.where(_instances.c.service == service)
        if pool is not None:
            query = query.where(_instances.c.pool == pool)
        if live_only:
            query = query.where(_instances.c.state.in_(LIVE_STATES))
        with self._database.reading() as connection:
            return tuple(instance_of(row) for row in connection.execute(query).mappings())

    def leased_gpus(self) -> tuple[GpuLease, ...]:
        """All of them, by inventory and GPU."""
        query = select(_gpus).order_by(_gpus.c.inventory, _gpus.c.gpu, _gpus.c.instance)
        with self._database.reading() as connection:
            return tuple(gpu_lease_of(row) for row in connection.execute(query).mappings())

    def used_ports(self) -> set[int]:
        """Ports of live instances and of services."""
        live = select(_instances.c.port).where(_instances.c.state.in_(LIVE_STATES))
        with self._database.reading() as connection:
            return set(connection.scalars(live.union(select(tables.services.c.port))))


def _occupants(connection: Connection, inventory: str) -> tuple[Occupant, ...]:
    rows = connection.execute(
        select(_gpus, _instances.c.state)
        .join_from(_gpus, _instances, _gpus.c.instance == _instances.c.id)
        .where(_gpus.c.inventory == inventory)
    ).mappings()
    return tuple(Occupant(gpu_lease_of(row), InstanceState(row["state"])) for row in rows)
