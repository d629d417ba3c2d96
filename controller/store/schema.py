"""The schema's revision: which one a database has, and bringing it to this version's.

Alembic is imported only to change or to compare a schema: opening one that is up to date
costs a single SELECT.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sqlalchemy import Connection, Engine, inspect, text

from canaryctl.controller.errors import SchemaError
from canaryctl.controller.store.engine import Database, create_store_engine
from canaryctl.controller.store.writer import require_ours

HEAD = "0003"
"""The revision that this version works with: the newest in canaryctl.migrations."""


class StoreSettings(Protocol):
    """Where the database is."""

    @property
    def database_url(self) -> str: ...

    @property
    def state_dir(self) -> Path: ...


def upgrade(database_url: str) -> None:
    """Bring the database to :data:`HEAD`, in one transaction. Two at once do no harm."""
    engine = create_store_engine(database_url)
    try:
        upgrade_engine(engine)
    finally:
        engine.dispose()


def upgrade_engine(engine: Engine) -> None:
    """As :func:`upgrade`, over an engine that is open already."""
    from alembic import command  # noqa: PLC0415  slow to import, seldom needed
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", "canaryctl.migrations:")
    with Database(engine).writing() as connection:
        _refuse_unknown(_revision(connection), engine)
        if engine.dialect.name == "sqlite":
            require_ours(connection)
        config.attributes["connection"] = connection
        command.upgrade(config, HEAD)


def require_head(engine: Engine) -> None:
    """SchemaError unless the database has this version's schema."""
    found = revision(engine)
    _refuse_unknown(found, engine)
    if found != HEAD:
        raise SchemaError(
            f"the database {_shown(engine)} has the schema {found or 'none'}, expected {HEAD}; "
            "run `canaryctl db upgrade`"
        )


@dataclass(frozen=True, slots=True)
class SchemaReport:
    """What a database has, beside what this version works with. ``database`` has no password."""

    database: str
    revision: str | None
    expected: str
    differences: tuple[str, ...]  # from the declared tables; looked for at ``expected`` only

    @property
    def good(self) -> bool:
        return self.revision == self.expected and not self.differences


def examine(database_url: str) -> SchemaReport:
    """Look at a database, and change nothing in it."""
    engine = create_store_engine(database_url)
    try:
        found = revision(engine)
        differing = differences(engine) if found == HEAD else ()
        return SchemaReport(_shown(engine), found, HEAD, differing)
    finally:
        engine.dispose()


def revision(engine: Engine) -> str | None:
    """The revision that the database has; None for an empty one."""
    with Database(engine).reading() as connection:
        return _revision(connection)


def differences(engine: Engine) -> tuple[str, ...]:
    """What the database has otherwise than the declared tables, a line each."""
    from alembic.autogenerate import compare_metadata  # noqa: PLC0415
    from alembic.migration import MigrationContext  # noqa: PLC0415

    from canaryctl.controller.store.tables import metadata  # noqa: PLC0415

    with Database(engine).reading() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return tuple(str(difference) for difference in compare_metadata(context, metadata))


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
    return None if found is None else str(found)


def _refuse_unknown(found: str | None, engine: Engine) -> None:
    # Revisions are numbered, so that an older program knows a newer database for one.
    if found is not None and found > HEAD:
        raise SchemaError(
            f"the database {_shown(engine)} has the schema {found}, which this version does not "
            f"know (it works with {HEAD}); install the newer canaryctl that wrote it"
        )


def _shown(engine: Engine) -> str:
    return engine.url.render_as_string(hide_password=True)
