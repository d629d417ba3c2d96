"""From the end of a command to messages and an exit code."""

import io
import os
import sys
import traceback

import click

from canaryctl.common.errors import CanaryctlError
from canaryctl.controller.cli.app import app
from canaryctl.controller.cli.exits import Exit, exit_of
from canaryctl.controller.cli.output import emit_json


def run(arguments: list[str]) -> int:
    _print_anything()
    try:
        code = _run(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader went away: nobody is left to tell
        _drop_stdout()
        return Exit.ERROR
    except OSError as error:  # stdout itself, or a file that no command looks after
        _drop_stdout()
        click.echo(f"error: {error}", err=True)
        return Exit.ERROR
    return code


def _run(arguments: list[str]) -> int:
    json_wanted = "--json" in arguments
    try:
        result = app.main(args=arguments, prog_name="canaryctl", standalone_mode=False)
    except (click.Abort, KeyboardInterrupt):
        return _fail("Interrupted", "interrupted", Exit.INTERRUPTED, as_json=json_wanted)
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx is not None else "canaryctl"
        message = f"{error.format_message().rstrip('.')}; see {path} --help"
        return _fail("UsageError", message, Exit.INPUT, as_json=json_wanted)
    except click.ClickException as error:
        return _fail("UsageError", error.format_message(), Exit.INPUT, as_json=json_wanted)
    except CanaryctlError as error:
        kind = type(error).__name__
        return _fail(kind, str(error), exit_of(error), as_json=json_wanted)
    except OSError:
        raise
    except Exception as error:
        traceback.print_exc()
        message = f"a fault in canaryctl: {type(error).__name__}: {error}"
        return _fail("InternalError", message, Exit.ERROR, as_json=json_wanted)
    return result if isinstance(result, int) else Exit.OK


def _fail(kind: str, message: str, code: Exit, *, as_json: bool) -> int:
    for line in message.splitlines() or [kind]:
        click.echo(f"error: {line}", err=True)
    if as_json:
        emit_json({"error": {"kind": kind, "message": message, "exit_code": int(code)}})
    return code


def _print_anything() -> None:
    """A name that the locale cannot write is escaped rather than an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _drop_stdout() -> None:
    """So that the interpreter does not try, and complain, once more when it ends."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
