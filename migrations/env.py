"""Runs the migrations on the connection that the caller gives, in the caller's transaction."""

from alembic import context

connection = context.config.attributes["connection"]
context.configure(connection=connection)
with context.begin_transaction():
    context.run_migrations()
