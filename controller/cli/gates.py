"""``canaryctl gates``: why a release is where it is."""

import click

from canaryctl.controller.cli.output import emit_json
from canaryctl.controller.cli.release import document, opened


@click.group()
def gates() -> None:
    """Explain what the gates said."""


@gates.command()
@click.argument("release", metavar="RELEASE")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def explain(release: str, as_json: bool) -> None:
    """Say in sentences why a release was promoted, held or rolled back."""
    from canaryctl.controller.explain import explain as sentences

    with opened() as app:
        found = app.store.release(release)
        lines = sentences(found, app.store.gate_records(found.id), app.store.events(found.id))
        if as_json:
            emit_json({**document(app, found), "explanation": list(lines)})
            return
    for line in lines:
        click.echo(line)
