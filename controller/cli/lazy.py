"""Groups whose commands are imported when they are run, so that ``--help`` stays fast."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click

from canaryctl.controller.artifact.mistakes import did_you_mean


class Lazy(NamedTuple):
    """``target``: "module:attribute" of a click command. ``help``: its line in the list."""

    target: str
    help: str


class LazyGroup(click.Group):
    """A group that knows its commands by name and help alone."""

    def __init__(self, *args: Any, lazy: Mapping[str, Lazy], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return None
        module, _, attribute = self.lazy[cmd_name].target.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.lazy and not name.startswith("-"):
            names = list(self.lazy)
            raise click.UsageError(
                f"unknown command {name!r}, expected one of {', '.join(names)}"
                f"{did_you_mean(name, names)}",
                ctx=ctx,
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in self.lazy.items()])
