"""Which machine writes: an SQLite file on a shared file system must have one writer host."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "writer_host",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.CheckConstraint("id = 1", name="ck_writer_host_id"),
        sa.PrimaryKeyConstraint("id", name="pk_writer_host"),
    )
