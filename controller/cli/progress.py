"""What a person sees while a release goes on: a line for each event, and on a terminal a live
line below them with the phase, the weight and the gates."""

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

import click

from canaryctl.controller.artifact.mistakes import printable

if TYPE_CHECKING:
    from rich.live import Live

    from canaryctl.controller.model import Release, ReleaseEvent
    from canaryctl.controller.store import Store

_COLOURS = {
    "succeeded": "green",
    "watching": "green",
    "promoting": "green",
    "rolling_back": "yellow",
    "rolled_back": "yellow",
    "failed": "red",
}


class Progress:
    """Prints what is new at each tick. Plain lines when not a terminal, or with ``--json``."""

    def __init__(self, store: "Store", release: "Release", *, to_stderr: bool) -> None:
        self._store, self._release = store, release
        self._stream = sys.stderr if to_stderr else sys.stdout
        self._shown = 0
        self._revision = -1
        self._live: Live | None = None

    def __enter__(self) -> Self:
        title = f"{self._release.document.name}@{self._release.document.version}"
        engine = self._release.document.runtime.engine
        click.echo(
            f"release {self._release.id}: {printable(title)} for {self._release.service} "
            f"({printable(engine.name)} {printable(engine.version)})",
            file=self._stream,
        )
        if self._stream.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(file=self._stream), refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, release: "Release") -> None:
        if release.revision == self._revision:
            return
        self._revision = release.revision
        events = self._store.events(release.id)
        for event in events[self._shown :]:
            self._line(event)
        self._shown = len(events)
        if self._live is not None:
            self._live.update(self._state(release))

    def _line(self, event: "ReleaseEvent") -> None:
        where = event.to_phase.value if event.to_phase is not None else event.kind
        text = f"{event.at:%H:%M:%S}  {where:<12}  {printable(event.message)}"
        if self._live is None:
            click.echo(text, file=self._stream)
            return
        from rich.text import Text

        self._live.console.print(Text(text, style=_COLOURS.get(where, "")))

    def _state(self, release: "Release") -> str:
        gates = "  ".join(
            f"{record.gate} {record.result.outcome.value}"
            for record in self._store.gate_records(release.id)
        )
        hold = f"  {release.hold}" if release.hold else ""
        return printable(f"{release.phase.value}  weight {release.weight} %{hold}\n{gates}")
