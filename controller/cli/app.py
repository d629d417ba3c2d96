"""The command tree. A new command is one module and one line in ``COMMANDS``.

A command returns its exit code (None: 0) and raises errors of the error tree; ``main`` turns
both into what the shell sees. Nothing a command needs is imported before it runs.
"""

import click

from canaryctl.controller.cli.lazy import Lazy, LazyGroup

COMMANDS = {
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
