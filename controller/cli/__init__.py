"""The command line: ``main`` and what it makes of every end a command can come to.

An error is one ``error: …`` on stderr. Where ``--json`` was given, stdout then holds the one
document ``{"error": {"kind": …, "message": …, "exit_code": …}}``, so that a program reads JSON
whatever happened; only what a command itself reports as its result (the mistakes of
``artifact validate``, a release rolled back) has that command's own document.
"""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (``cli/exits.py``)."""
    from canaryctl.controller.cli.ending import run

    return run(list(sys.argv[1:] if arguments is None else arguments))
