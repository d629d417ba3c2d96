"""``canaryctl db``: the schema of the database, brought up to date or checked."""

import click

from canaryctl.controller.cli.exits import Exit
from canaryctl.controller.cli.output import emit_json

_as_json = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")


@click.group(no_args_is_help=False)
def db() -> None:
    """Bring the database up to date, or check it.

    The default, an SQLite file, is brought up to date by every command.
    """


@db.command()
@_as_json
def upgrade(as_json: bool) -> None:
    """Make the tables, or bring them to this version's schema. Run again, it changes nothing."""
    from canaryctl.controller.settings import Settings
    from canaryctl.controller.store.schema import examine
    from canaryctl.controller.store.schema import upgrade as upgrade_database

    url = Settings.from_environment().database_url
    before = examine(url).revision
    upgrade_database(url)
    after = examine(url)
    if as_json:
        emit_json({"database": after.database, "before": before, "after": after.revision})
    elif before == after.revision:
        click.echo(f"{after.database}: up to date (schema {after.revision})")
    else:
        click.echo(f"{after.database}: schema {before or 'none'} → {after.revision}")


@db.command()
@_as_json
def claim(as_json: bool) -> None:
    """Make this machine the one that writes an SQLite database, after its file was moved here."""
    from datetime import UTC, datetime

    from canaryctl.controller.settings import Settings
    from canaryctl.controller.store import open_store

    with open_store(Settings.from_environment()) as store:
        before = store.claim_writer(datetime.now(UTC))
    if as_json:
        emit_json({"before": before})
    else:
        click.echo(f"this machine writes from now on; before: {before or 'none'}")


@db.command()
@_as_json
def check(as_json: bool) -> Exit:
    """Compare the database's schema with this version's. Exit code 1 where they differ."""
    from canaryctl.controller.settings import Settings
    from canaryctl.controller.store.schema import examine

    found = examine(Settings.from_environment().database_url)
    if as_json:
        emit_json(
            {
                "database": found.database,
                "revision": found.revision,
                "expected": found.expected,
                "differences": found.differences,
            }
        )
    else:
        click.echo(
            f"{found.database}: schema {found.revision or 'none'}, expected {found.expected}"
        )
        for difference in found.differences:
            click.echo(f"  differs: {difference}")
        if found.revision != found.expected:
            click.echo("  run `canaryctl db upgrade`")
    return Exit.OK if found.good else Exit.ERROR
