"""The command tree. A new command is one module and one line in ``COMMANDS``.

A command returns its exit code (None: 0) and raises errors of the error tree; ``main`` turns
both into what the shell sees. Nothing a command needs is imported before it runs.
"""

import click

from canaryctl.controller.cli.lazy import Lazy, LazyGroup

_CLI = "canaryctl.controller.cli"
COMMANDS = {
    "release": Lazy(f"{_CLI}.release:release", "Release an artifact, by canary."),
    "status": Lazy(f"{_CLI}.status:status", "Show services, or one service or release."),
    "history": Lazy(f"{_CLI}.status:history", "List releases, the newest first."),
    "promote": Lazy(f"{_CLI}.operate:promote", "Promote a release now."),
    "abort": Lazy(f"{_CLI}.operate:abort", "End a release: traffic returns first."),
    "pause": Lazy(f"{_CLI}.operate:pause", "Hold a release at its weight; gates go on."),
    "resume": Lazy(f"{_CLI}.operate:resume", "Let a held release go on."),
    "retry": Lazy(f"{_CLI}.release:retry", "Try a release that has ended again."),
    "rollback": Lazy(f"{_CLI}.release:rollback", "Go back to an earlier runtime or to eager."),
    "remove": Lazy(f"{_CLI}.remove:remove", "Stop a service's engines and its router."),
    "gates": Lazy(f"{_CLI}.gates:gates", "Explain what the gates said."),
    "grid": Lazy(f"{_CLI}.grid:grid", "Plan the capture grid from traffic, and compare grids."),
    "baseline": Lazy(f"{_CLI}.baseline:baseline", "Measure an artifact's stages under one load."),
    "checklist": Lazy(
        f"{_CLI}.checklist:checklist", "Say by what was measured if an artifact is ready."
    ),
    "load": Lazy(f"{_CLI}.load:load", "Send synthetic traffic to a service, for drills."),
    "serve": Lazy(f"{_CLI}.serve:serve", "Act on every service, as a daemon."),
    "db": Lazy(f"{_CLI}.db:db", "Bring the database up to date, or check it."),
    "doctor": Lazy(f"{_CLI}.doctor:doctor", "Check the machine, the database and the router."),
    "artifact": Lazy(
        "canaryctl.controller.cli.artifact:artifact", "Check, show and compare artifacts."
    ),
}


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="canaryctl", prog_name="canaryctl")
def app() -> None:
    """Release LLM serving runtimes by canary, with gates and rollback."""
