"""Alembic migrations; they import nothing but SQLAlchemy."""
