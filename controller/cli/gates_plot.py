"""``canaryctl gates plot``: the course of a release's gates as SVG."""

from pathlib import Path

import click

from canaryctl.controller.cli.records import records


@click.command()
@click.argument("release", metavar="RELEASE")
@click.option("--gate", help="This gate alone.")
@click.option("-o", "--output", type=Path, metavar="FILE.SVG", help="Default: stdout.")
def plot(release: str, gate: str | None, output: Path | None) -> None:
    """Draw the evidence of each gate against its bars, and what was measured of both arms."""
    from canaryctl.common.errors import InputError
    from canaryctl.controller.plot import plot as drawn

    with records() as (_, store):
        found = store.release(release)
        picture = drawn(found.id, store.looks(found.id), gate)
    if output is None:
        click.echo(picture, nl=False)
        return
    try:
        output.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{output}: cannot be written: {error.strerror}") from None
    click.echo(str(output), err=True)
