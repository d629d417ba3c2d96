"""Triggers, told once and written for every backend. Revisions use it; it is only added to."""

from dataclasses import dataclass

from alembic import op


@dataclass(frozen=True, slots=True)
class Guard:
    """``on`` a row of ``table`` (UPDATE, UPDATE OF column, INSERT, DELETE), refuse ``when``
    (SQL over OLD and NEW; None: always) with ``message``, as an integrity error."""

    name: str
    table: str
    on: str
    when: str | None
    message: str


def create_guard(guard: Guard) -> None:
    """Create the trigger on the database that is being migrated."""
    for statement in _DIALECTS[op.get_bind().dialect.name](guard):
        op.execute(statement)


def _sqlite(guard: Guard) -> tuple[str, ...]:
    condition = "" if guard.when is None else f" WHEN {guard.when}"
    trigger = f"CREATE TRIGGER {guard.name} BEFORE {guard.on} ON {guard.table} FOR EACH ROW"
    return (f"{trigger}{condition} BEGIN SELECT RAISE(ABORT, '{guard.message}'); END",)


def _postgresql(guard: Guard) -> tuple[str, ...]:
    # The condition is in the function: a WHEN clause could not hold a subquery.
    refuse = f"RAISE EXCEPTION USING ERRCODE = 'check_violation', MESSAGE = '{guard.message}';"
    body = refuse if guard.when is None else f"IF {guard.when} THEN {refuse} END IF;"
    row = "OLD" if guard.on == "DELETE" else "NEW"
    function = f"CREATE FUNCTION {guard.name}() RETURNS trigger LANGUAGE plpgsql"
    trigger = f"CREATE TRIGGER {guard.name} BEFORE {guard.on} ON {guard.table} FOR EACH ROW"
    return (
        f"{function} AS $$ BEGIN {body} RETURN {row}; END $$",
        f"{trigger} EXECUTE FUNCTION {guard.name}()",
    )


_DIALECTS = {"postgresql": _postgresql, "sqlite": _sqlite}
