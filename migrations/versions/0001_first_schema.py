"""The first schema: artifacts, services, releases and their log, instances, evidence, leases."""

import sqlalchemy as sa
from alembic import op

from canaryctl.migrations.guards import Guard, create_guard

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


PHASES = (
    "('deploying', 'failed', 'paused', 'pending', 'preflight', 'progressing', 'promoting', "
    "'rolled_back', 'rolling_back', 'succeeded', 'warming', 'watching')"
)
TRIGGERS = (
    "('abort', 'checked', 'deadline', 'deployed', 'done', 'engine_exit', 'gate_failed', "
    "'no_rung', 'pause', 'promote', 'refused', 'restored', 'resume', 'serving', 'start', "
    "'step', 'supersede', 'warm')"
)
FINAL = "('failed', 'rolled_back', 'succeeded')"
ENDED = "('dead', 'stopped')"

GUARDS = (
    Guard(
        "releases_final",
        "releases",
        "UPDATE OF phase",
        f"OLD.phase IN {FINAL} AND NEW.phase <> OLD.phase",
        "the release is final: its phase never changes again",
    ),
    Guard(
        "instances_ended",
        "instances",
        "UPDATE OF state",
        f"OLD.state IN {ENDED} AND NEW.state NOT IN {ENDED}",
        "the instance has ended: it does not come back",
    ),
    Guard(
        "gpu_leases_fit",
        "gpu_leases",
        "INSERT",
        "EXISTS (SELECT 1 FROM gpu_leases AS other WHERE other.inventory = NEW.inventory"
        " AND other.gpu = NEW.gpu AND NOT (other.shared AND NEW.shared))"
        " OR (SELECT coalesce(sum(other.fraction), 0) FROM gpu_leases AS other"
        " WHERE other.inventory = NEW.inventory AND other.gpu = NEW.gpu)"
        " + NEW.fraction > 1.000001",
        "the GPU is leased: exclusively, or to so many that the fractions exceed one",
    ),
    Guard(
        "gpu_leases_fixed",
        "gpu_leases",
        "UPDATE",
        None,
        "a GPU lease is never changed: it is given back and taken anew",
    ),
    Guard(
        "leases_token_rises",
        "leases",
        "UPDATE",
        "NEW.token < OLD.token OR (NEW.token = OLD.token AND NEW.holder IS NOT NULL"
        " AND (OLD.holder IS NULL OR NEW.holder <> OLD.holder))",
        "a new holder of a lease needs a higher token",
    ),
    Guard("leases_kept", "leases", "DELETE", None, "a lease is kept: its token must rise"),
    *(
        Guard(
            f"{table}_{name}",
            table,
            on,
            None,
            f"rows of {table} are never changed or deleted",
        )
        for table in ("runtimes", "artifacts", "release_events", "measurements")
        for on, name in (("UPDATE", "unchanged"), ("DELETE", "kept"))
    ),
)


def upgrade() -> None:
    _create_tables()
    for guard in GUARDS:
        create_guard(guard)


def _create_tables() -> None:
    op.create_table(
        "leases",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("holder", sa.String(length=255), nullable=True),
        sa.Column("token", sa.Integer(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("token >= 1", name="ck_leases_token"),
        sa.PrimaryKeyConstraint("name", name="pk_leases"),
    )
    op.create_table(
        "runtimes",
        sa.Column("digest", sa.String(length=80), nullable=False),
        sa.Column("runtime", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_runtimes"),
    )
    op.create_table(
        "services",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("port", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("port BETWEEN 1 AND 65535", name="ck_services_port"),
        sa.PrimaryKeyConstraint("name", name="pk_services"),
        sa.UniqueConstraint("port", name="uq_services_port"),
    )
    op.create_table(
        "artifacts",
        sa.Column("serial", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.Column("service", sa.String(length=64), nullable=False),
        sa.Column("digest", sa.String(length=80), nullable=False),
        sa.Column("eager_of", sa.String(length=80), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["digest"], ["runtimes.digest"], name="fk_artifacts_digest"),
        sa.ForeignKeyConstraint(["eager_of"], ["runtimes.digest"], name="fk_artifacts_eager_of"),
        sa.PrimaryKeyConstraint("serial", name="pk_artifacts"),
        sa.UniqueConstraint("name", "version", name="uq_artifacts_name_version"),
    )
    op.create_index("ix_artifacts_digest", "artifacts", ["digest"])
    op.create_index("ix_artifacts_service", "artifacts", ["service"])
    op.create_table(
        "instances",
        sa.Column("id", sa.String(length=128), nullable=False),
        sa.Column("service", sa.String(length=64), nullable=False),
        sa.Column("pool", sa.String(length=128), nullable=False),
        sa.Column("digest", sa.String(length=80), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("port", sa.Integer(), nullable=False),
        sa.Column("gpus", sa.JSON(), nullable=False),
        sa.Column("handle", sa.JSON(), nullable=True),
        sa.Column("stages", sa.JSON(), nullable=False),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("stop_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("restarts", sa.Integer(), nullable=False),
        sa.Column("not_before", sa.DateTime(timezone=True), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "\"state\" IN ('dead', 'ready', 'requested', 'starting', 'stopped', 'stopping')",
            name="ck_instances_state",
        ),
        sa.CheckConstraint(
            "(\"state\" IN ('dead', 'stopped')) = (ended_at IS NOT NULL)", name="ck_instances_ended"
        ),
        sa.CheckConstraint("port BETWEEN 1 AND 65535", name="ck_instances_port"),
        sa.CheckConstraint("restarts >= 0", name="ck_instances_restarts"),
        sa.ForeignKeyConstraint(["digest"], ["runtimes.digest"], name="fk_instances_digest"),
        sa.ForeignKeyConstraint(["service"], ["services.name"], name="fk_instances_service"),
        sa.PrimaryKeyConstraint("id", name="pk_instances"),
    )
    op.create_index("ix_instances_service", "instances", ["service"])
    op.create_table(
        "releases",
        sa.Column("serial", sa.Integer(), nullable=False),
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("service", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("digest", sa.String(length=80), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("phase", sa.String(length=16), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("phase_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("deadline_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("previous_digest", sa.String(length=80), nullable=True),
        sa.Column("previous_pool", sa.String(length=128), nullable=True),
        sa.Column("previous_replicas", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("step_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("weight", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("rollback_target", sa.String(length=80), nullable=True),
        sa.Column("hold", sa.Text(), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "(phase IN ('failed', 'rolled_back', 'succeeded')) = (finished_at IS NOT NULL)",
            name="ck_releases_finished_when_final",
        ),
        sa.CheckConstraint("\"kind\" IN ('first', 'release', 'rollback')", name="ck_releases_kind"),
        sa.CheckConstraint(
            f'"phase" IN {PHASES}',
            name="ck_releases_phase",
        ),
        sa.CheckConstraint("previous_replicas >= 1", name="ck_releases_previous_replicas"),
        sa.CheckConstraint("revision >= 0", name="ck_releases_revision"),
        sa.CheckConstraint("step >= 0", name="ck_releases_step"),
        sa.CheckConstraint("weight BETWEEN 0 AND 100", name="ck_releases_weight"),
        sa.ForeignKeyConstraint(["digest"], ["runtimes.digest"], name="fk_releases_digest"),
        sa.ForeignKeyConstraint(
            ["previous_digest"], ["runtimes.digest"], name="fk_releases_previous_digest"
        ),
        sa.ForeignKeyConstraint(["service"], ["services.name"], name="fk_releases_service"),
        sa.PrimaryKeyConstraint("serial", name="pk_releases"),
        sa.UniqueConstraint("id", name="uq_releases_id"),
    )
    op.create_index("ix_releases_service", "releases", ["service"])
    op.create_index(
        "uq_releases_one_active",
        "releases",
        ["service"],
        unique=True,
        sqlite_where=sa.text("phase NOT IN ('failed', 'rolled_back', 'succeeded')"),
        postgresql_where=sa.text("phase NOT IN ('failed', 'rolled_back', 'succeeded')"),
    )
    op.create_table(
        "evidence",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("release", sa.String(length=64), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("instance", sa.String(length=128), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("raw", sa.LargeBinary(), nullable=False),
        sa.Column("values", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["release"], ["releases.id"], name="fk_evidence_release"),
        sa.PrimaryKeyConstraint("id", name="pk_evidence"),
    )
    op.create_index("ix_evidence_release", "evidence", ["release"])
    op.create_table(
        "faults",
        sa.Column("release", sa.String(length=64), nullable=False),
        sa.Column("instance", sa.String(length=128), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.CheckConstraint("\"kind\" IN ('exit', 'no_progress', 'oom')", name="ck_faults_kind"),
        sa.ForeignKeyConstraint(["release"], ["releases.id"], name="fk_faults_release"),
        sa.PrimaryKeyConstraint("release", "instance", "kind", name="pk_faults"),
    )
    op.create_table(
        "gate_records",
        sa.Column("release", sa.String(length=64), nullable=False),
        sa.Column("gate", sa.String(length=64), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("state", sa.JSON(), nullable=False),
        sa.Column("result", sa.JSON(), nullable=False),
        sa.CheckConstraint(
            "\"outcome\" IN ('error', 'failed', 'inconclusive', 'passed')",
            name="ck_gate_records_outcome",
        ),
        sa.ForeignKeyConstraint(["release"], ["releases.id"], name="fk_gate_records_release"),
        sa.PrimaryKeyConstraint("release", "gate", name="pk_gate_records"),
    )
    op.create_table(
        "gpu_leases",
        sa.Column("inventory", sa.String(length=64), nullable=False),
        sa.Column("gpu", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("instance", sa.String(length=128), nullable=False),
        sa.Column("fraction", sa.Float(), nullable=False),
        sa.Column("shared", sa.Boolean(), nullable=False),
        sa.CheckConstraint("fraction > 0 AND fraction <= 1", name="ck_gpu_leases_fraction"),
        sa.CheckConstraint("gpu >= 0", name="ck_gpu_leases_gpu"),
        sa.ForeignKeyConstraint(["instance"], ["instances.id"], name="fk_gpu_leases_instance"),
        sa.PrimaryKeyConstraint("inventory", "gpu", "instance", name="pk_gpu_leases"),
    )
    op.create_index("ix_gpu_leases_instance", "gpu_leases", ["instance"])
    op.create_index(
        "uq_gpu_leases_exclusive",
        "gpu_leases",
        ["inventory", "gpu"],
        unique=True,
        sqlite_where=sa.text("NOT shared"),
        postgresql_where=sa.text("NOT shared"),
    )
    op.create_table(
        "measurements",
        sa.Column("release", sa.String(length=64), nullable=False),
        sa.Column("gate", sa.String(length=64), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("result", sa.JSON(), nullable=False),
        sa.CheckConstraint(
            "\"outcome\" IN ('error', 'failed', 'inconclusive', 'passed')",
            name="ck_measurements_outcome",
        ),
        sa.ForeignKeyConstraint(["release"], ["releases.id"], name="fk_measurements_release"),
        sa.PrimaryKeyConstraint("release", "gate", "at", name="pk_measurements"),
    )
    op.create_table(
        "release_events",
        sa.Column("release", sa.String(length=64), nullable=False),
        sa.Column("seq", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("from_phase", sa.String(length=16), nullable=True),
        sa.Column("to_phase", sa.String(length=16), nullable=True),
        sa.Column("trigger", sa.String(length=16), nullable=True),
        sa.Column("actor", sa.String(length=255), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.CheckConstraint(
            f'"from_phase" IS NULL OR "from_phase" IN {PHASES}',
            name="ck_release_events_from_phase",
        ),
        sa.CheckConstraint(
            f'"to_phase" IS NULL OR "to_phase" IN {PHASES}',
            name="ck_release_events_to_phase",
        ),
        sa.CheckConstraint(
            f'"trigger" IS NULL OR "trigger" IN {TRIGGERS}',
            name="ck_release_events_trigger",
        ),
        sa.CheckConstraint("seq >= 1", name="ck_release_events_seq"),
        sa.ForeignKeyConstraint(["release"], ["releases.id"], name="fk_release_events_release"),
        sa.PrimaryKeyConstraint("release", "seq", name="pk_release_events"),
    )
    op.create_table(
        "requests",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("release", sa.String(length=64), nullable=False),
        sa.Column("verb", sa.String(length=16), nullable=False),
        sa.Column("actor", sa.String(length=255), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("answered_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "\"verb\" IN ('abort', 'pause', 'promote', 'resume', 'supersede')",
            name="ck_requests_verb",
        ),
        sa.CheckConstraint("(answered_at IS NULL) = (answer IS NULL)", name="ck_requests_answered"),
        sa.ForeignKeyConstraint(["release"], ["releases.id"], name="fk_requests_release"),
        sa.PrimaryKeyConstraint("id", name="pk_requests"),
    )
    op.create_index("ix_requests_release", "requests", ["release"])
    op.create_table(
        "stable",
        sa.Column("service", sa.String(length=64), nullable=False),
        sa.Column("digest", sa.String(length=80), nullable=False),
        sa.Column("pool", sa.String(length=128), nullable=False),
        sa.Column("replicas", sa.Integer(), nullable=False),
        sa.Column("release", sa.String(length=64), nullable=True),
        sa.CheckConstraint("replicas >= 1", name="ck_stable_replicas"),
        sa.ForeignKeyConstraint(["digest"], ["runtimes.digest"], name="fk_stable_digest"),
        sa.ForeignKeyConstraint(["release"], ["releases.id"], name="fk_stable_release"),
        sa.ForeignKeyConstraint(["service"], ["services.name"], name="fk_stable_service"),
        sa.PrimaryKeyConstraint("service", name="pk_stable"),
    )
