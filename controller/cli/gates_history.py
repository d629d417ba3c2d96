"""``canaryctl gates record`` and ``history``: how equal engines differ by chance, as a file."""

from pathlib import Path

import click

from canaryctl.controller.cli.exits import Exit
from canaryctl.controller.cli.output import Table, emit_json
from canaryctl.controller.cli.release import opened

_LEAST_EVERY_S = 0.5


@click.command()
@click.argument("service")
@click.option("--for", "duration", default="1h", show_default=True, metavar="DURATION")
@click.option("--every", default="15s", show_default=True, metavar="DURATION")
@click.option("-o", "--output", type=Path, required=True, metavar="HISTORY.JSONL")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def record(service: str, duration: str, every: str, output: Path, as_json: bool) -> int:
    """Record the latencies of a service's stable engines, as samples of an A/A history.

    An hour or more of the load that releases will have, on five engines or more. Ctrl-C ends it;
    what was recorded by then is whole. Exit code 1 when no engine could be read.
    """
    from datetime import timedelta

    from canaryctl.common.errors import InputError

    for_s, every_s = _seconds("--for", duration), _seconds("--every", every)
    if every_s < _LEAST_EVERY_S:
        raise InputError(f"--every: found {every}, expected {_LEAST_EVERY_S:g}s or more")
    rounds = lines = engines = 0
    told: set[str] = set()
    with opened() as app:
        recorder, clock = app.recorder, app.clock
        recorder.round(service, clock.now())  # a wrong name leaves no file behind
        try:
            file = output.open("x", encoding="utf-8")
        except FileExistsError:
            raise InputError(f"{output} is there already; two recordings do not mix") from None
        except OSError as error:
            raise InputError(f"{output}: cannot be written: {error.strerror}") from None
        with file:
            begun = clock.now()
            while True:
                found = recorder.round(service, clock.now())
                file.writelines(f"{line}\n" for line in found.lines)
                file.flush()
                rounds, lines = rounds + 1, lines + len(found.lines)
                engines = max(engines, found.engines)
                for fault in sorted(set(found.faults) - told):
                    click.echo(fault, err=True)
                told.update(found.faults)
                due = begun + timedelta(seconds=rounds * every_s)
                if (due - begun).total_seconds() > for_s + 1e-9:
                    break
                clock.sleep(max(0.0, (due - clock.now()).total_seconds()))
    if as_json:
        emit_json({"file": str(output), "rounds": rounds, "engines": engines, "lines": lines})
    else:
        click.echo(f"{rounds} rounds of {engines} engines in {output}")
    return Exit.OK if lines else Exit.ERROR


@click.command()
@click.argument("samples", type=Path, metavar="HISTORY.JSONL")
@click.option("-o", "--output", type=Path, metavar="HISTORY.JSON", help="Where to write it.")
@click.option("--signal", help="Of samples that name none: ttft, tpot, itl, e2e or prefill.")
@click.option("--json", "as_json", is_flag=True, help="The history itself on stdout.")
def history(samples: Path, output: Path | None, signal: str | None, as_json: bool) -> None:
    """Say what recorded samples show of how strongly requests depend on each other.

    The file written by -o is small, and serves as rollout.history and as --history, like the
    samples themselves.
    """
    import json

    from canaryctl.common.errors import InputError, UnknownNameError
    from canaryctl.controller.samplefiles import load_history
    from canaryctl.gates.history import SIGNALS

    if signal is not None and signal not in SIGNALS:
        raise UnknownNameError("signal", signal, SIGNALS)
    found = load_history(samples, None if signal is None else SIGNALS[signal])
    if output is not None:
        try:
            output.write_text(json.dumps(found.as_document(), indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise InputError(f"{output}: cannot be written: {error.strerror}") from None
    if as_json:
        emit_json(found.as_document())
        return
    table = Table("signal", "quantile", "phi", "upper", "block", "engines")
    for (of, p), learned in found.dependences.items():
        table.add(
            of.value,
            f"p{p * 100:g}",
            f"{learned.phi:.3g}",
            f"{learned.phi_upper:.3g}",
            f"{found.block_s(learned):g}s",
            learned.engines,
        )
    table.print()
    if found.lacks:
        click.echo(f"of no use yet: {found.lacks}", err=True)


def _seconds(option: str, text: str) -> float:
    from canaryctl.common.errors import InputError
    from canaryctl.common.units import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise InputError(f"{option}: {error}") from None
