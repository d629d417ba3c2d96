"""The only place that writes SQL. Records go in and come out as canaryctl.controller.model.

Methods that write for the acting controller take ``fence``, its lease, and check it in the
same transaction; ``now`` is always given. Any thread may use a store.
"""

from typing import Self

from sqlalchemy import Engine

from canaryctl.controller.store.artifacts import Artifacts
from canaryctl.controller.store.engine import create_store_engine
from canaryctl.controller.store.evidence import EvidenceLog
from canaryctl.controller.store.hosts import Hosts
from canaryctl.controller.store.instances import Instances
from canaryctl.controller.store.leases import Leases
from canaryctl.controller.store.looks import Looks
from canaryctl.controller.store.releases import Releases
from canaryctl.controller.store.requests import Requests
from canaryctl.controller.store.schema import (
    HEAD,
    StoreSettings,
    require_head,
    revision,
    upgrade,
    upgrade_engine,
)
from canaryctl.controller.store.services import Services

__all__ = ["Store", "StoreSettings", "open_store", "upgrade"]


class Store(Artifacts, Services, Releases, Requests, Instances, EvidenceLog, Looks, Leases, Hosts):
    """All subjects over one engine, whose schema is up to date (:func:`open_store`)."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._engine = engine

    def close(self) -> None:
        """Close every connection that is not in use."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_store(settings: StoreSettings) -> Store:
    """The store of ``settings``.

    An SQLite database is made and brought up to date by itself; for another one SchemaError
    says when `canaryctl db upgrade` is needed.
    """
    engine = create_store_engine(settings.database_url)
    try:
        if engine.dialect.name == "sqlite" and revision(engine) != HEAD:
            upgrade_engine(engine)
        require_head(engine)
    except BaseException:
        engine.dispose()
        raise
    return Store(engine)
