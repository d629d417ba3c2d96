"""Every look of a release with what the gates made of it, so that verdicts can be recomputed."""

import sqlalchemy as sa
from alembic import op

from canaryctl.migrations.guards import Guard, create_guard

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

OUTCOMES = "('error', 'failed', 'inconclusive', 'passed')"

GUARDS = tuple(
    Guard(
        f"{table}_{name}",
        table,
        on,
        None,
        f"rows of {table} are never changed or deleted",
    )
    for table in ("gate_terms", "looks", "measurements")
    for on, name in (("UPDATE", "unchanged"), ("DELETE", "kept"))
)


def upgrade() -> None:
    _drop_measurements()
    op.create_table(
        "gate_terms",
        sa.Column("release", sa.String(length=64), nullable=False),
        sa.Column("terms", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["release"], ["releases.id"], name="fk_gate_terms_release"),
        sa.PrimaryKeyConstraint("release", name="pk_gate_terms"),
    )
    op.create_table(
        "looks",
        sa.Column("release", sa.String(length=64), nullable=False),
        sa.Column("seq", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("promotable", sa.Boolean(), nullable=False),
        sa.Column("look", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint("seq >= 1", name="ck_looks_seq"),
        sa.CheckConstraint(f'"outcome" IN {OUTCOMES}', name="ck_looks_outcome"),
        sa.ForeignKeyConstraint(["release"], ["releases.id"], name="fk_looks_release"),
        sa.PrimaryKeyConstraint("release", "seq", name="pk_looks"),
    )
    op.create_table(
        "measurements",
        sa.Column("release", sa.String(length=64), nullable=False),
        sa.Column("look", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("gate", sa.String(length=64), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("result", sa.LargeBinary(), nullable=False),
        sa.Column("state_digest", sa.String(length=64), nullable=False),
        sa.CheckConstraint(f'"outcome" IN {OUTCOMES}', name="ck_measurements_outcome"),
        sa.ForeignKeyConstraint(
            ["release", "look"], ["looks.release", "looks.seq"], name="fk_measurements_release"
        ),
        sa.PrimaryKeyConstraint("release", "look", "gate", name="pk_measurements"),
    )
    for guard in GUARDS:
        create_guard(guard)


def _drop_measurements() -> None:
    """No version has ever written one. PostgreSQL keeps the functions of a table's triggers."""
    op.drop_table("measurements")
    if op.get_bind().dialect.name == "postgresql":
        for name in ("unchanged", "kept"):
            op.execute(f"DROP FUNCTION measurements_{name}()")
