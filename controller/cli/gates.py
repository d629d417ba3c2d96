"""``canaryctl gates``: why a release is where it is, and judging by hand."""

import click

from canaryctl.controller.cli.lazy import Lazy, LazyGroup
from canaryctl.controller.cli.output import emit_json
from canaryctl.controller.cli.records import document, records

_CLI = "canaryctl.controller.cli"
COMMANDS = {
    "explain": Lazy(f"{_CLI}.gates:explain", "Say why a release is where it is."),
    "plot": Lazy(f"{_CLI}.gates_plot:plot", "Draw the evidence of a release as SVG."),
    "record": Lazy(f"{_CLI}.gates_history:record", "Record samples of the stable engines."),
    "history": Lazy(f"{_CLI}.gates_history:history", "Summarise recorded samples."),
    "judge": Lazy(f"{_CLI}.gates_judge:judge", "Judge a file of samples."),
    "replay": Lazy(f"{_CLI}.gates_replay:replay", "Recompute every verdict from the evidence."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS, no_args_is_help=True)
def gates() -> None:
    """Explain what the gates said, and judge by them."""


@click.command()
@click.argument("release", metavar="RELEASE")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def explain(release: str, as_json: bool) -> None:
    """Say in sentences why a release was promoted, held or rolled back."""
    from canaryctl.controller.explain import explain as sentences

    with records() as (_, store):
        found = store.release(release)
        lines = sentences(found, store.gate_records(found.id), store.events(found.id))
        if as_json:
            emit_json({**document(store, found), "explanation": list(lines)})
            return
    for line in lines:
        click.echo(line)
