"""What commands print. stdout holds the answer; progress and errors go to stderr.

With ``--json`` stdout holds exactly one JSON document, so a command calls :func:`emit_json`
once, as the last thing it does.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from canaryctl.controller.artifact.mistakes import printable


def emit_json(document: Mapping[str, Any]) -> None:
    """One document, ASCII only, so that it is the same in every locale."""
    click.echo(json.dumps(document, indent=2, allow_nan=False, default=_plain))


def _plain(value: object) -> Any:
    match value:
        case datetime():
            return value.isoformat()
        case Path():
            return str(value)
        case Mapping():
            return dict(value)
        case set() | frozenset():
            return sorted(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def stdout_is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


class Table:
    """Rows under headings: drawn on a terminal, aligned text in a file or pipe.

    A cell is text; what could steer a terminal is escaped. Colour follows NO_COLOR and TERM.
    """

    def __init__(self, *headings: str) -> None:
        self._headings = headings
        self._rows: list[tuple[str, ...]] = []

    def add(self, *cells: object) -> None:
        if len(cells) != len(self._headings):
            raise ValueError(f"found {len(cells)} cells, expected {len(self._headings)}")
        self._rows.append(tuple(printable(str(cell)) for cell in cells))

    def print(self) -> None:
        if stdout_is_terminal():
            self._draw()
        else:
            click.echo(self.plain())

    def plain(self) -> str:
        """Columns two spaces apart, headings in capitals, nothing at the end of a line."""
        headings = tuple(heading.upper() for heading in self._headings)
        return "\n".join(_aligned([headings, *self._rows]))

    def _draw(self) -> None:
        from rich.console import Console
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(box=None, pad_edge=False, header_style="bold")
        for heading in self._headings:
            table.add_column(heading.upper(), overflow="fold")
        for row in self._rows:
            table.add_row(*map(Text, row))
        Console().print(table)


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
