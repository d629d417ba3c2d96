"""``canaryctl load``: synthetic traffic through a service's router, for drills."""

from pathlib import Path

import click

from canaryctl.controller.cli.records import records


@click.command()
@click.argument("service")
@click.option("--rate", type=float, help="Requests per second.")
@click.option("--profile", type=Path, help="A YAML file that describes the traffic.")
@click.option("--for", "duration", metavar="DURATION", help="How long, such as 90s or 5m.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def load(
    service: str, rate: float | None, profile: Path | None, duration: str | None, as_json: bool
) -> int:
    """Send traffic to a service, and report what its users would have seen.

    Ends on Ctrl-C or SIGTERM with its report. Exit code 1 when no request was answered.
    """
    from canaryctl.runtimes.load.command import main_load

    with records() as (settings, store):
        found = store.service(service)
        url = f"http://{settings.host}:{found.port}"
    return main_load([url], rate=rate, profile_path=profile, duration=duration, as_json=as_json)
