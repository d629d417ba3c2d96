"""The tables, and the invariants that the database itself holds.

Constraints are declared here. Triggers, which SQLAlchemy cannot declare, are made by the
first migration: a final phase stays final, an ended instance stays ended, runtimes,
artifacts and events are never changed or deleted, GPU leases on one GPU fit together, a
fencing token never falls.
"""

from collections.abc import Iterable
from enum import StrEnum

from sqlalchemy import (
    JSON,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from canaryctl.controller.model import InstanceState, ReleaseKind, Verb
from canaryctl.controller.states import FINAL, Phase, Trigger
from canaryctl.controller.store.columns import UtcDateTime
from canaryctl.gates.outcome import Outcome
from canaryctl.runtimes.engines.base import EngineFault

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _among(column: str, values: Iterable[StrEnum]) -> str:
    return f'"{column}" IN ({_quoted(values)})'


def _quoted(values: Iterable[StrEnum]) -> str:
    return ", ".join(f"'{value}'" for value in sorted(values))


def _one_of(column: str, values: Iterable[StrEnum]) -> CheckConstraint:
    return CheckConstraint(_among(column, values), name=column)


def _one_of_or_none(column: str, values: Iterable[StrEnum]) -> CheckConstraint:
    return CheckConstraint(f'"{column}" IS NULL OR {_among(column, values)}', name=column)


_FINAL = f"phase IN ({_quoted(FINAL)})"
_NOT_FINAL = text(f"phase NOT IN ({_quoted(FINAL)})")

runtimes = Table(
    "runtimes",
    metadata,
    Column("digest", String(80), primary_key=True),
    Column("runtime", JSON, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
)

artifacts = Table(
    "artifacts",
    metadata,
    Column("serial", Integer, primary_key=True),  # the order of registration
    Column("name", String(64), nullable=False),
    Column("version", String(64), nullable=False),
    Column("service", String(64), nullable=False, index=True),
    Column("digest", ForeignKey("runtimes.digest"), nullable=False, index=True),
    Column("eager_of", ForeignKey("runtimes.digest")),
    Column("created_at", UtcDateTime, nullable=False),
    UniqueConstraint("name", "version"),
)

services = Table(
    "services",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("port", Integer, nullable=False, unique=True),
    Column("created_at", UtcDateTime, nullable=False),
    CheckConstraint("port BETWEEN 1 AND 65535", name="port"),
)

releases = Table(
    "releases",
    metadata,
    Column("serial", Integer, primary_key=True),  # the order of creation
    Column("id", String(64), nullable=False, unique=True),
    Column("service", ForeignKey("services.name"), nullable=False, index=True),
    Column("kind", String(16), nullable=False),
    Column("digest", ForeignKey("runtimes.digest"), nullable=False),
    Column("document", JSON, nullable=False),
    Column("phase", String(16), nullable=False),
    Column("revision", Integer, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("phase_at", UtcDateTime, nullable=False),
    Column("deadline_at", UtcDateTime, nullable=False),
    Column("previous_digest", ForeignKey("runtimes.digest")),
    Column("previous_pool", String(128)),
    Column("previous_replicas", Integer, nullable=False),
    Column("step", Integer, nullable=False),
    Column("step_at", UtcDateTime),
    Column("weight", Integer, nullable=False),
    Column("reason", Text),
    Column("rollback_target", String(80)),
    Column("hold", Text),
    Column("finished_at", UtcDateTime),
    _one_of("kind", ReleaseKind),
    _one_of("phase", Phase),
    CheckConstraint("weight BETWEEN 0 AND 100", name="weight"),
    CheckConstraint("step >= 0", name="step"),
    CheckConstraint("revision >= 0", name="revision"),
    CheckConstraint("previous_replicas >= 1", name="previous_replicas"),
    CheckConstraint(f"({_FINAL}) = (finished_at IS NOT NULL)", name="finished_when_final"),
)

Index(
    "uq_releases_one_active",
    releases.c.service,
    unique=True,
    sqlite_where=_NOT_FINAL,
    postgresql_where=_NOT_FINAL,
)

# Which artifact serves each service: apart from services, since it names a release that
# names its service.
stable = Table(
    "stable",
    metadata,
    Column("service", ForeignKey("services.name"), primary_key=True),
    Column("digest", ForeignKey("runtimes.digest"), nullable=False),
    Column("pool", String(128), nullable=False),
    Column("replicas", Integer, nullable=False),
    Column("release", ForeignKey("releases.id")),
    CheckConstraint("replicas >= 1", name="replicas"),
)

release_events = Table(
    "release_events",
    metadata,
    Column("release", ForeignKey("releases.id"), primary_key=True),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("at", UtcDateTime, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("message", Text, nullable=False),
    Column("from_phase", String(16)),
    Column("to_phase", String(16)),
    Column("trigger", String(16)),
    Column("actor", String(255), nullable=False),
    Column("data", JSON, nullable=False),
    CheckConstraint("seq >= 1", name="seq"),
    _one_of_or_none("from_phase", Phase),
    _one_of_or_none("to_phase", Phase),
    _one_of_or_none("trigger", Trigger),
)

requests = Table(
    "requests",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("release", ForeignKey("releases.id"), nullable=False, index=True),
    Column("verb", String(16), nullable=False),
    Column("actor", String(255), nullable=False),
    Column("reason", Text, nullable=False),
    Column("at", UtcDateTime, nullable=False),
    Column("answered_at", UtcDateTime),
    Column("answer", Text),
    _one_of("verb", Verb),
    CheckConstraint("(answered_at IS NULL) = (answer IS NULL)", name="answered"),
)

instances = Table(
    "instances",
    metadata,
    Column("id", String(128), primary_key=True),
    Column("service", ForeignKey("services.name"), nullable=False, index=True),
    Column("pool", String(128), nullable=False),
    Column("digest", ForeignKey("runtimes.digest"), nullable=False),
    Column("state", String(16), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("port", Integer, nullable=False),
    Column("gpus", JSON, nullable=False),
    Column("handle", JSON(none_as_null=True)),
    Column("stages", JSON, nullable=False),
    Column("facts", JSON, nullable=False),
    Column("exit_code", Integer),
    Column("ended_at", UtcDateTime),
    Column("stop_at", UtcDateTime),
    Column("restarts", Integer, nullable=False),
    Column("not_before", UtcDateTime),
    Column("reason", Text),
    _one_of("state", InstanceState),
    CheckConstraint("port BETWEEN 1 AND 65535", name="port"),
    CheckConstraint("restarts >= 0", name="restarts"),
    CheckConstraint(
        f"({_among('state', (InstanceState.STOPPED, InstanceState.DEAD))})"
        " = (ended_at IS NOT NULL)",
        name="ended",
    ),
)

gpu_leases = Table(
    "gpu_leases",
    metadata,
    Column("inventory", String(64), primary_key=True),
    Column("gpu", Integer, primary_key=True, autoincrement=False),
    Column("instance", ForeignKey("instances.id"), primary_key=True, index=True),
    Column("fraction", Float, nullable=False),
    Column("shared", Boolean, nullable=False),
    CheckConstraint("gpu >= 0", name="gpu"),
    CheckConstraint("fraction > 0 AND fraction <= 1", name="fraction"),
)

Index(
    "uq_gpu_leases_exclusive",
    gpu_leases.c.inventory,
    gpu_leases.c.gpu,
    unique=True,
    sqlite_where=text("NOT shared"),
    postgresql_where=text("NOT shared"),
)

evidence = Table(
    "evidence",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("release", ForeignKey("releases.id"), nullable=False, index=True),
    Column("at", UtcDateTime, nullable=False),
    Column("instance", String(128), nullable=False),
    Column("source", Text, nullable=False),
    Column("raw", LargeBinary, nullable=False),  # zlib over UTF-8
    Column("values", JSON, nullable=False),
)

faults = Table(
    "faults",
    metadata,
    Column("release", ForeignKey("releases.id"), primary_key=True),
    Column("instance", String(128), primary_key=True),
    Column("kind", String(16), primary_key=True),
    Column("at", UtcDateTime, nullable=False),
    Column("detail", Text, nullable=False),
    _one_of("kind", EngineFault),
)

gate_records = Table(
    "gate_records",
    metadata,
    Column("release", ForeignKey("releases.id"), primary_key=True),
    Column("gate", String(64), primary_key=True),
    Column("at", UtcDateTime, nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("state", JSON, nullable=False),
    Column("result", JSON, nullable=False),
    _one_of("outcome", Outcome),
)

# On which terms a release is judged: fixed when it is recorded.
gate_terms = Table(
    "gate_terms",
    metadata,
    Column("release", ForeignKey("releases.id"), primary_key=True),
    Column("terms", JSON, nullable=False),
)

looks = Table(
    "looks",
    metadata,
    Column("release", ForeignKey("releases.id"), primary_key=True),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("at", UtcDateTime, nullable=False),
    Column("outcome", String(16), nullable=False),  # of the verdict after this look
    Column("promotable", Boolean, nullable=False),
    Column("look", LargeBinary, nullable=False),  # zlib over JSON
    CheckConstraint("seq >= 1", name="seq"),
    _one_of("outcome", Outcome),
)

measurements = Table(
    "measurements",
    metadata,
    Column("release", String(64), primary_key=True),
    Column("look", Integer, primary_key=True, autoincrement=False),
    Column("gate", String(64), primary_key=True),
    Column("outcome", String(16), nullable=False),
    Column("result", LargeBinary, nullable=False),  # zlib over JSON
    Column("state_digest", String(64), nullable=False),  # SHA-256 of the gate's state
    ForeignKeyConstraint(["release", "look"], ["looks.release", "looks.seq"]),
    _one_of("outcome", Outcome),
)

# One row at most, on SQLite only: PostgreSQL takes writers from any host.
writer_host = Table(
    "writer_host",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("host", String(255), nullable=False),
    CheckConstraint("id = 1", name="id"),
)

leases = Table(
    "leases",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("holder", String(255)),  # none: given back
    Column("token", Integer, nullable=False),
    Column("expires_at", UtcDateTime, nullable=False),
    CheckConstraint("token >= 1", name="token"),
)
