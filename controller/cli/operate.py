"""``promote``, ``abort``, ``pause``, ``resume``: recorded at once with who and why, and acted
on by whoever holds the service's lease."""

from collections.abc import Callable
from getpass import getuser
from typing import Any

import click

from canaryctl.controller.cli.exits import Exit
from canaryctl.controller.cli.output import emit_json
from canaryctl.controller.cli.release import opened
from canaryctl.controller.model import Verb

ANSWER_WAIT_S = 10.0
"""How long a command waits for the acting controller's answer before it leaves the request."""


def _command(verb: Verb, text: str) -> click.Command:
    @click.command(verb.value, help=text)
    @click.argument("release", metavar="RELEASE")
    @click.option("--reason", default="", help="Why; kept in the release's log.")
    @click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
    def command(release: str, reason: str, as_json: bool) -> int:
        return _ask(verb, release, reason, as_json)

    return command


def _ask(verb: Verb, ref: str, reason: str, as_json: bool) -> int:
    """0 when it was done or recorded, 5 when the release's state refuses it."""
    with opened() as app:
        release = app.store.release(ref)
        request = app.store.add_request(release.id, verb, getuser(), reason, app.clock.now())
        leased = app.controller(release.service)
        answer: str | None = None
        try:
            waited_s = 0.0
            while waited_s < ANSWER_WAIT_S:
                leased.tick()
                found = next(r for r in app.store.requests(release.id) if r.id == request.id)
                answer = found.answer
                if answer is not None:
                    break
                app.clock.sleep(0.25)
                waited_s += 0.25
        finally:
            leased.close()
        after = app.store.release(release.id)
    words = answer or "recorded; the controller that holds the service has not answered yet"
    if as_json:
        emit_json(
            {
                "release": after.id,
                "verb": verb.value,
                "answer": answer,
                "phase": after.phase.value,
            }
        )
    else:
        click.echo(f"{verb.value} {after.id}: {words} ({after.phase.value})")
    refused = answer is not None and answer != "done"
    return Exit.REFUSED if refused else Exit.OK


promote: Callable[..., Any] = _command(
    Verb.PROMOTE, "Promote a release now. A failed gate still overrides."
)
abort: Callable[..., Any] = _command(Verb.ABORT, "End a release: traffic returns, then the rest.")
pause: Callable[..., Any] = _command(Verb.PAUSE, "Hold a release at its weight; gates go on.")
resume: Callable[..., Any] = _command(Verb.RESUME, "Let a held release go on.")
