"""``canaryctl baseline``: an artifact's stages under one load, before anything is released."""

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from canaryctl.controller.cli.exits import Exit
from canaryctl.controller.cli.output import emit_json

if TYPE_CHECKING:
    from canaryctl.controller.baseline.load import Load
    from canaryctl.controller.baseline.record import BaselineRecord


@click.group(no_args_is_help=False)
def baseline() -> None:
    """Measure an artifact eager, with the default grid and with its own, under one load."""


_as_json = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")


@baseline.command()
@click.argument("artifact", metavar="ARTIFACT", type=Path)
@click.option("--trace", type=Path, metavar="FILE", help="Requests: CSV or JSON lines.")
@click.option("--load", "profile", type=Path, metavar="FILE", help="A load profile (YAML).")
@click.option("--speed", type=float, default=1.0, help="Send a trace so many times as fast.")
@click.option("--for", "duration", metavar="TIME", help="Of the load, for each stage and repeat.")
@click.option("--requests", type=click.IntRange(min=1), help="At most so many, likewise.")
@click.option("--repeats", type=click.IntRange(min=1, max=100), default=3, help="3.")
@click.option("--stage", "wanted", multiple=True, metavar="NAME",
              help="Only eager, default or own. May be given several times.")  # fmt: skip
@click.option("--start-limit", default="10m", metavar="TIME",
              help="Until an engine is ready at most; 10m.")  # fmt: skip
@_as_json
def run(
    artifact: Path,
    trace: Path | None,
    profile: Path | None,
    speed: float,
    duration: str | None,
    requests: int | None,
    repeats: int,
    wanted: tuple[str, ...],
    start_limit: str,
    as_json: bool,
) -> Exit:
    """Start, load and measure the stages of ARTIFACT, and store what was found with it.

    The stages are eager, the engine's default grid, and the artifact's own. Exit code 1 where one
    could not be measured. No service is touched, and no engine is left.
    """
    from canaryctl.common.errors import InputError
    from canaryctl.controller.artifact.loader import load_artifact
    from canaryctl.controller.baseline.load import of_profile, of_trace
    from canaryctl.controller.baseline.record import store_record
    from canaryctl.controller.baseline.run import BaselineRun
    from canaryctl.controller.baseline.slo import slo_of
    from canaryctl.controller.baseline.stages import stages_of
    from canaryctl.controller.cli.checks import document_checks
    from canaryctl.controller.cli.release import opened
    from canaryctl.controller.compose import stage_engines
    from canaryctl.controller.gridplans import in_state
    from canaryctl.runtimes.engines.registry import engine

    if (trace is None) == (profile is None):
        raise InputError("a baseline run needs exactly one of --trace and --load")
    duration_s = None if duration is None else _seconds("--for", duration)
    limit_s = _seconds("--start-limit", start_limit)
    loaded = load_artifact(artifact, document_checks())
    runtime = loaded.document.runtime
    asked: Load
    if trace is not None:
        asked = of_trace(
            trace,
            speed=speed,
            duration_s=duration_s,
            requests=requests,
            max_model_len=runtime.limits.max_model_len,
        )
    else:
        assert profile is not None  # noqa: S101  the other of exactly one
        asked = of_profile(profile, duration_s=duration_s, requests=requests)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the engines are ended either way
    with opened() as app:
        adapter = engine(runtime.engine.name)
        planned = in_state(app.settings.state_dir, loaded.digest).exists()
        stages = stages_of(runtime, adapter, planned=planned, wanted=wanted)
        with stage_engines(app, loaded.document, pool="baseline-run") as engines:
            record = BaselineRun(
                engines,
                asked,
                clock=app.clock,
                simulated=adapter.simulated,
                repeats=repeats,
                start_limit_s=limit_s,
                slo=slo_of(loaded.document.gates),
                say=lambda line: click.echo(line, err=True),
            ).run(
                stages,
                f"{loaded.document.name}@{loaded.document.version}",
                loaded.digest,
                loaded.document.service,
            )
        path = store_record(record, app.settings.state_dir)
    click.echo(f"stored as {path}", err=True)
    _show(record, as_json)
    return Exit.OK if record.complete else Exit.ERROR


@baseline.command()
@click.argument("reference", metavar="REF|FILE")
@_as_json
def show(reference: str, as_json: bool) -> None:
    """Show the last baseline run of an artifact."""
    _show(_latest(reference), as_json)


@baseline.command()
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@_as_json
def compare(before: str, after: str, as_json: bool) -> Exit:
    """Compare the last baseline runs of two artifacts.

    Exit code 1 where they were measured under different conditions, which are named.
    """
    from canaryctl.controller.baseline.record import compare_conditions
    from canaryctl.controller.cli.baseline_print import compared_document, print_compared

    a, b = _latest(before), _latest(after)
    stages = (a.of_artifact or a.stages[0], b.of_artifact or b.stages[0])
    found = compare_conditions(stages[0].conditions, stages[1].conditions)
    if as_json:
        emit_json(compared_document((a, b), stages, found))
    elif found.comparable:
        print_compared((a, b), stages)
    else:
        click.echo(f"not comparable: {found.why_not}")
    return Exit.OK if found.comparable else Exit.ERROR


def _latest(reference: str) -> "BaselineRecord":
    from canaryctl.common.errors import InputError
    from canaryctl.controller.baseline.record import latest_record
    from canaryctl.controller.cli.artifact import find
    from canaryctl.controller.settings import Settings

    found = find(reference)
    record = latest_record(Settings.from_environment().state_dir, found.digest)
    if record is None:
        raise InputError(
            f"{found.name}@{found.version} has no baseline run here; make one: "
            f"`canaryctl baseline run ARTIFACT --trace FILE`"
        )
    return record


def _show(record: "BaselineRecord", as_json: bool) -> None:
    from canaryctl.controller.cli.baseline_print import print_record, record_document

    if as_json:
        document: dict[str, Any] = record_document(record)
        emit_json(document)
    else:
        print_record(record)


def _seconds(option: str, text: str) -> float:
    from canaryctl.common.errors import InputError
    from canaryctl.common.units import parse_duration

    try:
        found = parse_duration(text)
    except ValueError as error:
        raise InputError(f"{option}: {error}") from None
    if found <= 0:
        raise InputError(f"{option}: found {text!r}, expected more than 0")
    return found
