"""``canaryctl gates replay``: every verdict of a release again, from what is stored of it."""

import click

from canaryctl.controller.cli.exits import Exit
from canaryctl.controller.cli.output import emit_json
from canaryctl.controller.cli.records import records


@click.command()
@click.argument("release", metavar="RELEASE")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def replay(release: str, as_json: bool) -> int:
    """Recompute every look's outcome from the stored evidence, by the code that judged it.

    Exit code 0 when all agree, 1 with the first difference when they do not.
    """
    from canaryctl.common.errors import InputError
    from canaryctl.controller.replay import replay as replayed

    with records() as (_, store):
        found = store.release(release)
        terms = store.gate_terms(found.id)
        if terms is None:
            raise InputError(
                f"release {found.id} was recorded by a version that kept no looks: "
                "there is nothing to replay"
            )
        done = replayed(terms, store.looks(found.id), store.gate_records(found.id))
    if as_json:
        difference = done.difference
        emit_json(
            {
                "release": found.id,
                "agrees": done.agrees,
                "looks": done.looks,
                "measurements": done.measurements,
                "gates": [
                    {"name": r.name, "outcome": r.outcome.value, "reason": r.reason}
                    for r in done.results.values()
                ],
                "difference": None
                if difference is None
                else {
                    "look": difference.look,
                    "gate": difference.gate,
                    "what": difference.what,
                    "recorded": difference.recorded,
                    "replayed": difference.replayed,
                },
            }
        )
    elif done.difference is not None:
        click.echo(f"{found.id} differs at {done.difference}")
    else:
        click.echo(
            f"{found.id}: {done.looks} looks and {done.measurements} gate results replayed; "
            "every outcome, value and state agrees"
        )
        for result in done.results.values():
            click.echo(f"  {result.name}: {result.outcome.value}")
    return Exit.OK if done.agrees else Exit.ERROR
